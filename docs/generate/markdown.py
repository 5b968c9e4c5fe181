"""Pieces of Markdown that the generated pages consist of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["join", "table"]


def join(parts: Iterable[str]) -> str:
    """Paragraphs, without those that are empty."""
    return "\n\n".join(part for part in parts if part) + "\n"


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; line ends and bars in cells are escaped."""
    cells = [[str(cell).replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in [list(header), ["---"] * len(header), *cells])
