"""How much memory a predictions file may take, whatever its headers declare."""

from __future__ import annotations

from darksight_core.predictions.defects import defect

__all__ = ["check_expansion", "rows_of_chunk"]

# Rows of one-hot probabilities compress to a hundredth of their size; zeros that are meant to fill memory to less.
_MAX_RATIO = 200
_SMALL_BYTES = 1 << 30

_CHUNK_BYTES = 1 << 26


def check_expansion(declared: int, n_bytes: int, source: str) -> None:
    """Refuse a file whose arrays would take far more memory than its size suggests.

    Parameters
    ----------
    declared
        Bytes of its arrays as its headers declare them.
    n_bytes
        Size of the file.
    source
        Name for messages.
    """
    limit = max(_SMALL_BYTES, _MAX_RATIO * n_bytes)
    if declared > limit:
        text = f"a file of {n_bytes} bytes declares arrays of {declared}; the limit is {limit}. Save it uncompressed."
        raise defect("predictions_expansion", source, text)


def rows_of_chunk(most: int, row_bytes: int) -> int:
    """Rows to read at a time: as many as are wanted, but at most 64 MB of them."""
    return max(1, min(most, _CHUNK_BYTES // max(row_bytes, 1)))
