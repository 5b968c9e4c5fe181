"""Numbers of models and bundles in the database, inserted on first use and cached."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Connection, Engine, select

from darksight_service.errors import StoreUnavailableError
from darksight_service.store.engine import reading, writing
from darksight_service.store.tables import bundle, insert_into, model

__all__ = ["Names", "bundle_numbers", "check_model"]


class Names:
    """Numbers of models and bundles.

    Parameters
    ----------
    engine
        Of the database.
    clock
        Unix milliseconds.
    """

    def __init__(self, engine: Engine, clock: Callable[[], int]) -> None:
        self._engine = engine
        self._clock = clock
        self._lock = threading.Lock()
        self._models: dict[str, int] = {}
        self._bundles: dict[tuple[str, str], tuple[int, int]] = {}

    def model_id(self, name: str) -> int:
        """Number of a model, which is inserted if it is new."""
        with self._lock:
            if name not in self._models:
                with writing(self._engine) as connection:
                    found = _model(connection, name, self._clock())
                self._models[name] = found
            return self._models[name]

    def bundle_of(self, name: str, version: str) -> tuple[int, int]:
        """Numbers of a bundle and its model, which are inserted if they are new."""
        with self._lock:
            if (name, version) not in self._bundles:
                with writing(self._engine) as connection:
                    found = _bundle(connection, name, version, self._clock(), {})
                self._bundles[name, version] = found
            return self._bundles[name, version]

    def clear(self) -> None:
        """Read all numbers from the database again."""
        with self._lock:
            self._models.clear()
            self._bundles.clear()

    def register(self, name: str, version: str, *, class_names: Sequence[str], calibration_rows: int) -> None:
        """Store the classes and calibration rows of a bundle."""
        facts = {"class_names": list(class_names), "calibration_rows": calibration_rows}
        with writing(self._engine) as connection:
            _bundle(connection, name, version, self._clock(), facts)

    def known(self, name: str, version: str | None) -> dict[int, str]:
        """Versions by number of a model's bundles, or of the one asked for; empty if there are none."""
        query = select(bundle.c.id, bundle.c.version).join(model).where(model.c.name == name)
        if version is not None:
            query = query.where(bundle.c.version == version)
        with reading(self._engine) as connection:
            return {row.id: row.version for row in connection.execute(query)}


def bundle_numbers(connection: Connection, name: str, version: str) -> tuple[int, int] | None:
    """Numbers of a bundle and its model in the database; None if it is not there."""
    query = select(bundle.c.id, model.c.id).join(model).where(model.c.name == name, bundle.c.version == version)
    found = connection.execute(query).one_or_none()
    return None if found is None else (int(found[0]), int(found[1]))


def check_model(connection: Connection, name: str, number: int) -> None:
    """StoreUnavailableError if a model has another number, because the database is another one."""
    if connection.scalar(select(model.c.id).where(model.c.name == name)) != number:
        raise StoreUnavailableError("the database has other numbers of models than before")


def _model(connection: Connection, name: str, now: int) -> int:
    query = select(model.c.id).where(model.c.name == name)
    found = connection.scalar(query)
    if found is None:
        connection.execute(insert_into(connection, model).values(name=name, created_at=now).on_conflict_do_nothing())
        found = connection.scalar(query)
    assert found is not None
    return int(found)


def _bundle(connection: Connection, name: str, version: str, now: int, facts: dict[str, Any]) -> tuple[int, int]:
    model_id = _model(connection, name, now)
    query = select(bundle.c.id).where(bundle.c.model_id == model_id, bundle.c.version == version)
    found = connection.scalar(query)
    if found is None:
        row = insert_into(connection, bundle).values(model_id=model_id, version=version, created_at=now)
        connection.execute(row.on_conflict_do_nothing())
        found = connection.scalar(query)
    if facts:
        connection.execute(bundle.update().where(bundle.c.id == found).values(**facts))
    assert found is not None
    return int(found), model_id
