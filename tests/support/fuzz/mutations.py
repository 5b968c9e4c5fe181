"""Messages with changed bytes, made from good ones with a fixed seed."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence

__all__ = ["Mutations"]


class Mutations:
    """Messages that are good, nearly good, or noise."""

    def __init__(self, seeds: Sequence[bytes], count: int, seed: int) -> None:
        self._random = random.Random(seed)
        self._seeds = seeds
        self._left = count
        self._lock = threading.Lock()

    def __iter__(self) -> Mutations:
        return self

    def __next__(self) -> tuple[int, bytes]:
        with self._lock:
            if self._left <= 0:
                raise StopIteration
            self._left -= 1
            return self._left, self._make()

    def _make(self) -> bytes:
        rng = self._random
        data = bytearray(rng.choice(self._seeds))
        kind = rng.randrange(8)
        if kind == 0:
            return rng.randbytes(rng.randrange(200))
        if kind == 1:
            return bytes(data[: rng.randrange(len(data))])
        if kind == 2:
            data[rng.randrange(len(data)) :] = rng.randbytes(rng.randrange(64))
        if kind == 3:
            return bytes(data)
        for _ in range(rng.choice([1, 1, 1, 2, 4, 16])):
            place = rng.randrange(len(data)) if data else 0
            match rng.randrange(6):
                case 0 | 1 if data:
                    data[place] ^= 1 << rng.randrange(8)
                case 2:
                    data[place : place + 1] = rng.choice([b"\x00", b"\xff", b"\x7f", b"\x80", b"\x01"])
                case 3:
                    # Not a number, infinities, the largest and the least float32, minus one.
                    data[place : place + 4] = rng.choice(
                        [
                            b"\0\0\xc0\x7f",
                            b"\0\0\x80\x7f",
                            b"\0\0\x80\xff",
                            b"\xff\xff\x7f\x7f",
                            b"\1\0\0\0",
                            b"\0\0\x80\xbf",
                        ]
                    )
                case 4:
                    data[place:place] = rng.randbytes(rng.randrange(1, 9))
                case _:
                    # A field number and type, with a length or a large number behind it.
                    data[place:place] = bytes([rng.randrange(128)]) + rng.choice(
                        [bytes([rng.randrange(256)]), b"\xff" * 9 + b"\x01", rng.randbytes(8)]
                    )
        return bytes(data)
