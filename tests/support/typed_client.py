"""The types of both clients, as mypy must see them: checked with the packages, never run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import assert_type

import numpy as np
import polars as pl
from darksight_client import AsyncClient, Client, Gated, Model, Point, Scored
from numpy.typing import NDArray


def blocking(c: Client, x: NDArray[np.float64], t: pl.DataFrame) -> None:
    """`Client`."""
    assert_type(c.score("a", x), Scored)
    assert_type(c.score("a", t, version="b"), pl.DataFrame)
    assert_type(c.score(model="a", probs=x, partial_ok=True), Scored)
    assert_type(c.gate("a", x), Gated)
    assert_type(c.models(), tuple[Model, ...])
    assert_type(c.health(), bool)
    assert_type(c.points("a"), Iterator[Point])
    assert_type(c.stream("a", [x]), Iterator[Scored])
    assert_type(c.reset_evidence("a"), str)


async def asynchronous(c: AsyncClient, x: NDArray[np.float64], t: pl.DataFrame) -> None:
    """`AsyncClient`."""
    assert_type(await c.score("a", x), Scored)
    assert_type(await c.score("a", t, version="b"), pl.DataFrame)
    assert_type(await c.gate("a", x), Gated)
    assert_type(await c.models(), tuple[Model, ...])
    assert_type(c.points("a"), AsyncIterator[Point])
    assert_type(c.stream("a", [x]), AsyncIterator[Scored])
    async for p in c.points("a"):
        assert_type(p, Point)
