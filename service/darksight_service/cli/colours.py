"""Colours of what commands print: on a terminal only, and never if NO_COLOR is set (no-color.org)."""

from __future__ import annotations

import os
from typing import TextIO

__all__ = ["painted", "shows_colours"]

# Words that stand for a state, with the codes of their colours.
_CODES = {
    "accept": "32",
    "active": "32",
    "enforced": "32",
    "ok": "32",
    "previous": "2",
    "shadow": "33",
    "warning": "33",
    "error": "1;31",
    "reject": "31",
}


def shows_colours(stream: TextIO) -> bool:
    """Whether a stream is a terminal that shows colours."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def painted(text: str, state: str, stream: TextIO) -> str:
    """Text in the colour of a state, if it is one and the stream shows colours."""
    return f"\x1b[{_CODES[state]}m{text}\x1b[0m" if state in _CODES and shows_colours(stream) else text
