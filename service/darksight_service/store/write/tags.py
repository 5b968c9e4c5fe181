"""The dictionary of tags: numbers of key-value pairs in the database, inserted on first use and cached.

Keys and values come from callers, so both are bounded: a key has up to `max_values` values, and a model up to
`MAX_KEYS` keys. Further pairs are stored under the value `_other` of their key, or under the key `_other`, and counted.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from sqlalchemy import Connection, Engine, insert, select

from darksight_core.rows.tags import OTHER, TagSet
from darksight_service.store.engine import writing
from darksight_service.store.tables import model, tag

__all__ = ["MAX_KEYS", "SetNumbers", "TagNumbers", "are_current"]

_log = logging.getLogger("darksight.store")

MAX_KEYS = 64
"""Keys of a model."""


class SetNumbers(NamedTuple):
    """Numbers of the tags of each set, sorted, and the stored pair of each number."""

    ids: Sequence[tuple[int, ...]]
    pairs: Mapping[int, tuple[str, str]] = MappingProxyType({})


class TagNumbers:
    """Numbers of tags.

    Parameters
    ----------
    engine
        Of the database.
    max_values
        Values of a key, without `_other`.
    """

    def __init__(self, engine: Engine, max_values: int) -> None:
        self._engine = engine
        self._max_values = max_values
        self._lock = threading.Lock()
        self._known: dict[int, dict[tuple[str, str], int]] = {}
        self._values: dict[int, Counter[str]] = {}

    def of_sets(self, model_id: int, sets: Sequence[TagSet]) -> SetNumbers:
        """The numbers of the tags of each set; pairs that are new are inserted."""
        pairs = {pair for each in sets for pair in each}
        if not pairs:
            return SetNumbers([()] * len(sets))
        with self._lock:
            stored = self._stored(model_id, pairs)
            known = self._known.get(model_id, {})
            if not known.keys() >= set(stored.values()):
                stored = self._add(model_id, pairs)
                known = self._known[model_id]
            ids = [tuple(sorted({known[stored[pair]] for pair in each})) for each in sets]
            return SetNumbers(ids, {known[pair]: pair for pair in stored.values()})

    def clear(self) -> None:
        """Read all numbers from the database again."""
        with self._lock:
            self._known.clear()
            self._values.clear()

    def _stored(self, model_id: int, pairs: Iterable[tuple[str, str]]) -> Mapping[tuple[str, str], tuple[str, str]]:
        """Under which pair each of them is or will be stored; the caller holds the lock."""
        known, values = self._known.get(model_id, {}), Counter(self._values.get(model_id, {}))
        found = {}
        for key, value in sorted(pairs):
            pair = (key, value)
            if pair not in known:
                if key not in values and len(values) >= MAX_KEYS:
                    pair = (OTHER, OTHER)
                elif value != OTHER and values[key] >= self._max_values:
                    pair = (key, OTHER)
                else:
                    values[key] += value != OTHER
            found[key, value] = pair
        return found

    def _add(self, model_id: int, pairs: Iterable[tuple[str, str]]) -> Mapping[tuple[str, str], tuple[str, str]]:
        """Insert the pairs that are missing."""
        try:
            with writing(self._engine) as connection:
                self._read(connection, model_id)
                # Another process may have added values since, so that fewer are left.
                stored = self._stored(model_id, pairs)
                self._insert(connection, model_id, sorted(set(stored.values()) - self._known[model_id].keys()))
        except BaseException:
            # What was inserted is not there.
            self._known.pop(model_id, None)
            self._values.pop(model_id, None)
            raise
        return stored

    def _read(self, connection: Connection, model_id: int) -> None:
        """Read the tags of a model, which no other process changes until the end of the transaction."""
        if connection.dialect.name == "postgresql":
            connection.execute(select(model.c.id).where(model.c.id == model_id).with_for_update(key_share=True))
        found = connection.execute(select(tag.c.key, tag.c.value, tag.c.id).where(tag.c.model_id == model_id))
        known = {(key, value): number for key, value, number in found}
        self._known[model_id] = known
        self._values[model_id] = Counter()
        for pair in known:
            self._count(model_id, *pair)

    def _insert(self, connection: Connection, model_id: int, pairs: Iterable[tuple[str, str]]) -> None:
        for key, value in pairs:
            added = connection.execute(insert(tag).values(model_id=model_id, key=key, value=value))
            assert added.inserted_primary_key is not None
            self._known[model_id][key, value] = int(added.inserted_primary_key[0])
            self._count(model_id, key, value)
            if value == OTHER:
                _log.warning("tag_values_full", extra={"model_id": model_id, "key": key, "limit": self._max_values})

    def _count(self, model_id: int, key: str, value: str) -> None:
        """Count a pair; a key counts also if it has no value but `_other`."""
        if key != OTHER:
            self._values[model_id][key] += value != OTHER


def are_current(connection: Connection, numbers: SetNumbers) -> bool:
    """Whether the database has these numbers: another one, such as a restored backup, may have others."""
    if not numbers.pairs:
        return True
    query = select(tag.c.id, tag.c.key, tag.c.value).where(tag.c.id.in_(list(numbers.pairs)))
    return {number: (key, value) for number, key, value in connection.execute(query)} == numbers.pairs
