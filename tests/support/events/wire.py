"""Events of inference loggers as they are on the wire."""

from __future__ import annotations

from pathlib import Path

__all__ = ["RESPONSES", "read_wire"]

_FOLDER = Path(__file__).parent
_HOP = ("host", "accept-encoding")

RESPONSES = tuple(sorted(path.stem for path in _FOLDER.glob("*_response.http")))
"""Names of the files with predictions; all have the same."""


def read_wire(kind: str, **changed: str) -> tuple[dict[str, str], bytes]:
    """Headers and body of an event; `changed` replaces headers, with `_` for `-`, and an empty text removes one."""
    head, _, body = (_FOLDER / f"{kind}.http").read_bytes().partition(b"\n\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in head.decode().splitlines())}
    headers |= {name.replace("_", "-"): value for name, value in changed.items()}
    return {name: value for name, value in headers.items() if value and name not in _HOP}, body
