"""Text in CSV files that spreadsheets must not run as a formula."""

from __future__ import annotations

import re
import unicodedata

__all__ = ["csv_text"]

_STARTS = frozenset("=+-@")
# A signed number is no formula, and ids of that form stay what they are.
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")


def csv_text(text: str) -> str:
    """A text, with an apostrophe before it if a spreadsheet would read it as a formula.

    Spreadsheets skip white space and control characters, and some read full-width forms of = + - @ as the plain ones.

    >>> csv_text("=1+1"), csv_text("-5"), csv_text("id-5")
    ("'=1+1", '-5', 'id-5')
    """
    if text[:1].isalnum():
        return text
    for char in text:
        if char.isspace() or unicodedata.category(char).startswith("C"):
            continue
        is_formula = unicodedata.normalize("NFKC", char)[:1] in _STARTS and _NUMBER.fullmatch(text) is None
        return f"'{text}" if is_formula else text
    return text
