"""Many short texts as one run of bytes, so that no row needs a Python object of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Texts"]


@dataclass(frozen=True, slots=True, eq=False)
class Texts:
    """n texts, some of which may be missing.

    Parameters
    ----------
    data
        Their UTF-8 bytes, one after the other, (bytes,) uint8.
    sizes
        Bytes of each text, (n,) int64; -1 if it is missing.
    """

    data: NDArray[np.uint8]
    sizes: NDArray[np.int64]

    @classmethod
    def none(cls, n: int) -> Texts:
        """n missing texts."""
        return cls(np.empty(0, dtype=np.uint8), np.full(n, -1, dtype=np.int64))

    @classmethod
    def of(cls, texts: Sequence[str | None]) -> Texts:
        """From Python objects."""
        encoded = [b"" if text is None else text.encode() for text in texts]
        sizes = [-1 if text is None else len(data) for text, data in zip(texts, encoded, strict=True)]
        return cls(np.frombuffer(b"".join(encoded), np.uint8), np.array(sizes, dtype=np.int64))

    @classmethod
    def join(cls, parts: Sequence[Texts]) -> Texts:
        """The texts of several, in order."""
        return cls(np.concatenate([part.data for part in parts]), np.concatenate([part.sizes for part in parts]))

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def ends(self) -> NDArray[np.int64]:
        """Where each text ends in `data`, (n,)."""
        return np.cumsum(np.maximum(self.sizes, 0))

    def __getitem__(self, rows: NDArray[Any] | slice) -> Texts:
        sizes = self.sizes[rows]
        lengths = np.maximum(sizes, 0)
        # Bytes of a text are consecutive: where it starts in the old run, less where it starts in the new one.
        starts = self.ends[rows] - np.cumsum(lengths)
        return Texts(self.data[np.repeat(starts, lengths) + np.arange(lengths.sum())], sizes)

    def tolist(self) -> list[str | None]:
        """As Python objects."""
        data = self.data.tobytes()
        pairs = zip(self.sizes.tolist(), self.ends.tolist(), strict=True)
        if data.isascii():
            # A slice of a text takes half the time of decoding a slice of bytes.
            text = data.decode("ascii")
            return [None if size < 0 else text[end - size : end] for size, end in pairs]
        return [None if size < 0 else data[end - size : end].decode() for size, end in pairs]
