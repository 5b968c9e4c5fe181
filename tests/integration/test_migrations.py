"""Migrations on SQLite and on a real PostgreSQL: up, down, by many at a time, and killed half-way."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from darksight_service.cli import main
from darksight_service.cli.app import run
from darksight_service.errors import SchemaMismatchError
from darksight_service.store import migrate, revisions
from darksight_service.store.points import PointFilter
from darksight_service.store.store import Store
from darksight_service.store.tables import audit_point, detector_state
from packaging.version import Version
from sqlalchemy import delete, inspect, text

from darksight_core import __version__
from darksight_core.drift.urn import audit_numbers
from tests.support.points import make_outcomes, make_points

NOW_MS = 1_800_000_000_000
ROOT = Path(__file__).parents[2]

# Eight processes that begin at the same moment; forked, because to import everything takes longer than to migrate.
STARTERS = """
import os, sys
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/service"]
from darksight_service.store import migrate
from darksight_service.store.store import Store
from darksight_service.store.tables import detector_state
url = sys.argv[2]
gate, open_gate = os.pipe()
children = []
for _ in range(8):
    child = os.fork()
    if not child:
        os.close(open_gate)
        os.read(gate, 1)
        store = Store.open(url, check=False)
        before, _ = store.upgrade()
        store.check()
        os._exit(10 if before is None else 20)
    children.append(child)
os.close(open_gate)
print(*(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""

# Stops in the middle of the second revision, after some of its tables were made.
HANGER = """
import sys, time
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/service"]
from sqlalchemy import Engine, event
from darksight_service.store.store import Store
from darksight_service.store.tables import detector_state

@event.listens_for(Engine, "before_cursor_execute")
def hang(connection, cursor, statement, *_):
    if "CREATE TABLE policy_change" in statement:
        print("half-way", flush=True)
        time.sleep(600)

Store.open(sys.argv[2], check=False).upgrade()
"""


def start(program: str, url: str) -> subprocess.Popen[str]:
    """A process that migrates."""
    return subprocess.Popen([sys.executable, "-c", program, str(ROOT), url], stdout=subprocess.PIPE, text=True)


def test_up_check_down_up_with_rows_present(empty_url: str, open_store: Callable[..., Store]) -> None:
    """The migrated database equals the tables; going back one revision keeps the points, going back all leaves none."""
    store = open_store(empty_url, check=False)
    batch = make_points(50, ms=NOW_MS, names=None)

    assert store.upgrade() == (None, revisions.head())
    store.insert([batch, make_outcomes({batch.prediction_ids()[0]: 1})])
    store.append_change("policy", "digits", {"alpha": 0.01})
    store.check()
    assert store.upgrade() == (revisions.head(), revisions.head())

    migrate.downgrade(store._engine, "0001")
    with pytest.raises(SchemaMismatchError, match="darksight db upgrade"):
        store.check()
    assert store.upgrade() == ("0001", revisions.head())
    store.check()
    assert len(store.list_points(PointFilter("digits")).points) == 50
    assert (store.stats().points, store.stats().outcomes, store.stats().changes) == (50, 0, 0)

    migrate.downgrade(store._engine, "base")
    with store._engine.connect() as connection:
        assert inspect(connection).get_table_names() == ["alembic_version"]
    again = open_store(empty_url, check=False)
    again.upgrade()
    again.check()
    assert again.insert([batch]).points == 50


def test_states_of_detectors_move_with_the_schema(empty_url: str, open_store: Callable[..., Store]) -> None:
    """Drift evidence outlives revision 0009 and its way back; the row of the lock stays behind."""
    store = open_store(empty_url, check=False)
    store.upgrade()
    of_all = {"bundle_id": 1, "replica": "a", "tag_id": 0}
    states = [
        {**of_all, "detector": "", "state": b""},
        {**of_all, "detector": "segments", "tag_id": 7, "state": b"of a tag"},
        {**of_all, "detector": "stream", "state": b"of all"},
    ]
    with store._engine.begin() as connection:
        connection.execute(detector_state.insert(), states)

    migrate.downgrade(store._engine, "0008")
    with store._engine.begin() as connection:
        before = [[*connection.execute(text(f"SELECT * FROM {name}"))] for name in ("drift_state", "segment_state")]
    store.upgrade()

    assert [[(*row[:-1], bytes(row[-1])) for row in rows] for rows in before] == [
        [(1, "a", b"of all")],
        [(1, "a", 7, b"of a tag")],
    ]
    with store._engine.begin() as connection:
        found = connection.execute(detector_state.select().order_by(detector_state.c.detector)).mappings().all()
    assert [{**row, "state": bytes(row["state"])} for row in found] == states[1:]
    store.check()


def test_points_that_were_drawn_before_stay_in_the_audit(empty_url: str, open_store: Callable[..., Store]) -> None:
    """Revision 0012 gives them the odds with which they were drawn: four times as high up to a p-value of 1/4."""
    store = open_store(empty_url, check=False, audit_rate=1.0)
    store.upgrade()
    points = make_points(40, ms=NOW_MS)
    store.insert([points])
    migrate.downgrade(store._engine, "0011")
    numbers = audit_numbers(points.ids) / np.where(points.p_value <= 0.25, 4.0, 1.0) / 64.0
    with store._engine.begin() as connection:
        connection.execute(delete(audit_point))
        listed = [
            {"point_id": each, "key": key, "bundle_id": 1}
            for each, key, known in zip(points.id_bytes(), numbers.tolist(), points.predicted >= 0, strict=True)
            if known
        ]
        connection.execute(audit_point.insert(), listed)

    store.upgrade()
    found, depth = store.drawn_points(PointFilter("digits"), limit=100)

    assert (len(found), depth) == (len(listed), 1.0)
    assert (found.error_chance == 0.0).all()
    assert found.audit_odds.tolist() == np.where(found.p_value <= 0.25, 1 / 16, 1 / 64).tolist()
    store.check()


def test_check_sees_a_table_that_was_altered_by_hand(empty_url: str, open_store: Callable[..., Store]) -> None:
    """The right revision is not enough."""
    store = open_store(empty_url, check=False)
    store.upgrade()
    with store._engine.begin() as connection:
        connection.execute(text("ALTER TABLE bundle ADD COLUMN extra INTEGER"))

    with pytest.raises(SchemaMismatchError, match="extra"):
        store.check()


def test_a_database_that_is_behind_is_refused_with_the_command(
    empty_url: str, open_store: Callable[..., Store]
) -> None:
    """A database is migrated by being opened only if the caller asks for it."""
    with pytest.raises(SchemaMismatchError, match="run: darksight db upgrade"):
        open_store(empty_url)

    open_store(empty_url, auto_upgrade=True).check()


def test_a_database_that_is_ahead_is_used(url: str, open_store: Callable[..., Store]) -> None:
    """The release before goes on while the next one migrates."""
    store = open_store(url)
    with store._engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))

    again = open_store(url)

    assert again.insert([make_points(5, ms=NOW_MS)]).points == 5
    assert again.upgrade() == ("9999", "9999")


def test_of_many_starters_one_migrates(empty_url: str) -> None:
    """Eight processes start on an empty database at the same moment; one migrates, the others find it done."""
    said, _ = start(STARTERS, empty_url).communicate(timeout=120)

    assert sorted(map(int, said.split())) == [10] + [20] * 7


def test_a_migration_killed_half_way_can_be_run_again(empty_url: str, open_store: Callable[..., Store]) -> None:
    """What it had done of a revision is undone, and nobody waits for the dead."""
    victim = start(HANGER, empty_url)
    assert victim.stdout is not None
    assert victim.stdout.readline() == "half-way\n"
    victim.kill()
    victim.communicate()

    store = open_store(empty_url, check=False)
    before, after = store.upgrade()

    assert after == revisions.head()
    assert before in (None, "0001")
    store.check()


def test_the_command_line_looks_after_the_database(
    empty_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Upgrade, check, stats and prune, for people and as JSON; what cannot be done exits 2 with a sentence."""
    monkeypatch.setenv("DARKSIGHT_DATABASE_URL", empty_url)

    assert main(["db", "check"]) == 2
    assert "run: darksight db upgrade" in capsys.readouterr().err
    assert main(["db", "upgrade"]) == 0
    assert capsys.readouterr().out == f"revision {revisions.head()}, was empty\n"
    assert main(["db", "upgrade", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"before": revisions.head(), "after": revisions.head()}
    assert main(["db", "check"]) == 0
    assert capsys.readouterr().out.startswith("valid")
    with Store.open(empty_url) as store:
        store.insert([make_points(7, ms=NOW_MS - 70 * 86_400_000)])
    assert main(["db", "stats", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["points"] == 7
    assert main(["db", "prune"]) == 2
    assert "--max-days" in capsys.readouterr().err
    assert main(["db", "prune", "--max-rows", "1000000", "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["points"] == 0
    assert main(["db", "stats"]) == 0


def test_each_revision_names_its_release(empty_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In order, none later than this one; the list marks the revision of the database."""
    where = ["--database-url", empty_url]
    assert run(["db", "upgrade", *where]) == 0
    capsys.readouterr()
    assert run(["db", "history", *where, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)

    releases = [Version(each["release"]) for each in found]
    assert releases == sorted(releases)
    assert releases[-1] <= Version(Version(__version__).base_version)
    assert [each["revision"] for each in found if each["is_current"]] == [found[-1]["revision"]] == [revisions.head()]


def test_a_schema_is_downgraded_and_upgraded_by_command(empty_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The downgrade needs a confirmation, since it deletes; an unknown revision is refused."""
    where = ("--database-url", empty_url)

    statuses = [
        run(["db", "upgrade", *where]),
        run(["db", "downgrade", "0001", *where]),
        run(["db", "downgrade", "9999", "--delete", *where]),
        run(["db", "downgrade", "0001", "--delete", *where]),
        run(["db", "upgrade", *where]),
        run(["db", "check", *where]),
    ]

    shown = capsys.readouterr()
    assert statuses == [0, 2, 2, 0, 0, 0]
    head = revisions.head()
    assert shown.out.splitlines()[1:3] == [f"revision 0001, was {head}", f"revision {head}, was 0001"]
    assert "add --delete" in shown.err
    assert f"cannot downgrade from revision {head} to '9999'" in shown.err


def test_revisions_are_those_of_alembic():
    """Found by the names of their files, without alembic."""
    config = Config()
    config.set_main_option("script_location", str(revisions.folder()))
    found = [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()]

    assert revisions.head() == found[0]
    assert all(map(revisions.knows, found))
    assert not revisions.knows("9999")
