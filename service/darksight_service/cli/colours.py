"""Colours of what commands print: on a terminal only, and never if NO_COLOR is set (no-color.org)."""

from __future__ import annotations

import os
from typing import TextIO

__all__ = ["STYLES", "painted", "shows_colours"]

STYLES = {
    "accept": "green",
    "active": "green",
    "enforced": "green",
    "ok": "green",
    "previous": "dim",
    "shadow": "yellow",
    "warning": "yellow",
    "error": "bold red",
    "reject": "red",
}
"""Words that stand for a state, with their styles as rich names them."""

_CODES = {"green": "32", "yellow": "33", "red": "31", "bold red": "1;31", "dim": "2"}


def shows_colours(stream: TextIO) -> bool:
    """Whether a stream is a terminal that shows colours."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def painted(text: str, state: str, stream: TextIO) -> str:
    """Text in the colour of a state, where the stream shows colours. Without rich, which takes long to import."""
    return f"\x1b[{_CODES[STYLES[state]]}m{text}\x1b[0m" if shows_colours(stream) else text
