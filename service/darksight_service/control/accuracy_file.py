"""The accuracy of all models, written by the storage worker and read by workers."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["AccuracyFile"]


class AccuracyFile:
    """JSON values by model; a reader has either the old or the new contents.

    Parameters
    ----------
    path
        Of the file; it may be absent.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: tuple[int, dict[str, Any]] = (0, {})

    def write(self, found: Mapping[str, Any]) -> None:
        """Replace the contents."""
        partial = self._path.with_suffix(".partial")
        partial.write_text(json.dumps(found), encoding="utf-8")
        os.replace(partial, self._path)

    def read(self) -> dict[str, Any]:
        """The contents; empty if there is no file, or it cannot be read."""
        try:
            changed = os.stat(self._path).st_mtime_ns
            if changed != self._known[0]:
                self._known = changed, json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return self._known[1]
