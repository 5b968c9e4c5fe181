"""Revisions of the schema: those that this version knows, and the one that a database has.

The revisions are in `migrations/` at the top of the repository and, installed, in `darksight_migrations`. Every process
that opens the store asks for them, so this module does without alembic, which takes half a second to import;
`darksight_service.store.migrate` runs the migrations.
"""

from __future__ import annotations

import importlib.util
import logging
import re
from functools import cache
from pathlib import Path

from sqlalchemy import Engine, inspect, text

from darksight_service.errors import SchemaMismatchError
from darksight_service.store.engine import reading

__all__ = ["current", "folder", "head", "knows", "releases", "require"]

_RELEASE = re.compile(r'^release = "(.+)"$', re.MULTILINE)

_log = logging.getLogger("darksight.store")


def folder() -> Path:
    """The directory of the revisions: installed, or in the checkout that this file is part of."""
    checkout = Path(__file__).parents[3] / "migrations"
    if (checkout / "env.py").is_file():
        return checkout
    installed = importlib.util.find_spec("darksight_migrations")
    assert installed is not None
    assert installed.submodule_search_locations is not None
    return Path(installed.submodule_search_locations[0])


@cache
def _known() -> tuple[str, ...]:
    """All revisions in order: a file `0001_points.py` has the revision 0001."""
    return tuple(sorted(path.name.partition("_")[0] for path in (folder() / "versions").glob("[0-9]*_*.py")))


def releases() -> dict[str, str]:
    """All revisions in order, with the first release that has each."""
    return {
        path.name.partition("_")[0]: found[1] if (found := _RELEASE.search(path.read_text(encoding="utf-8"))) else ""
        for path in sorted((folder() / "versions").glob("[0-9]*_*.py"))
    }


def head() -> str:
    """The revision that this version needs."""
    return _known()[-1]


def knows(revision: str) -> bool:
    """Whether this version has a revision."""
    return revision in _known()


def current(engine: Engine) -> str | None:
    """The revision of the database, None if it is empty."""
    with reading(engine) as connection:
        if not inspect(connection).has_table("alembic_version"):
            return None
        found: str | None = connection.scalar(text("SELECT version_num FROM alembic_version"))
        return found


def require(engine: Engine) -> None:
    """SchemaMismatchError unless the database has all revisions that this version knows.

    A database with later revisions is accepted: after a migration the previous release keeps working, see
    migrations/README.md.
    """
    found, wanted = current(engine), head()
    if found == wanted:
        return
    if found is not None and not knows(found):
        _log.warning("database_is_newer", extra={"revision": found, "known": wanted})
        return
    raise SchemaMismatchError(
        f"the database is at revision {found or 'none'}, this version needs {wanted}; run: darksight db upgrade",
        found=found,
        wanted=wanted,
    )
