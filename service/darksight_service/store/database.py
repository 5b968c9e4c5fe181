"""What the parts of the store share: the engine, the clock, and the numbers of models and bundles."""

from __future__ import annotations

import time
from collections.abc import Callable

from sqlalchemy import Engine

from darksight_service.store.names import Names

__all__ = ["FOREVER_MS", "Database"]

FOREVER_MS = (1 << 48) - 1
"""The last time that an id can have."""


class Database:
    """A database with the tables of the store; the queries of `Store` are subclasses of it, by topic.

    Parameters
    ----------
    engine
        Of the database.
    clock
        Unix milliseconds.
    """

    def __init__(self, engine: Engine, *, clock: Callable[[], int] | None = None) -> None:
        self._engine = engine
        self._clock = clock or (lambda: time.time_ns() // 1_000_000)
        self._names = Names(engine, self._clock)
