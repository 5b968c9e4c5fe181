"""What clients were told beside what is in SQL: each recorded row once, and every row as its bundle judges it."""

from __future__ import annotations

import base64
import json
import struct
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from darksight_service.store.engine import make_engine
from darksight_service.store.tables import bundle, point, rollup
from sqlalchemy import Engine, func, select

from darksight_core.bundle import Bundle, read_bundle
from darksight_core.rows.schema import ScoredBatch
from darksight_core.runtime.policy import ScoringPolicy
from darksight_core.runtime.scorer import Scorer
from tests.support.faults.clients import pool, row_name

__all__ = ["NO_FAULTS", "Call", "Report", "check", "opened", "read_logs"]

_ROW = (1 << 20) - 1
_EXAMPLES = 5
_FLOAT = struct.Struct("<f")


@dataclass(slots=True)
class Call:
    """What a client asked, and what it was told."""

    ms: int
    start: int
    rows: int
    named: bool
    batch: str
    answer: dict[str, Any] | None = None
    failures: list[dict[str, Any]] = field(default_factory=list)

    @property
    def is_recorded(self) -> bool:
        """Whether the service said that the rows are on disk."""
        return self.answer is not None and self.answer["recorded"]


@dataclass(slots=True)
class Report:
    """Rows, unless it says calls.

    Parameters
    ----------
    calls, answered_calls, failures
        Calls made, those that got an answer in the end, and failed attempts by their status.
    recorded, unrecorded
        Answered with the promise that they are stored, and without.
    stored, unasked
        In SQL; and those of them for which no answer arrived, so that nothing was promised.
    counted
        In the counts per minute, which are kept in the same transactions.
    lost, duplicated
        Recorded and not stored; stored more than once.
    wrong
        Stored or answered other than the bundle says, or stored under another id or name.
    strangers
        Stored though nobody asked.
    examples
        What is wrong with the first few.
    """

    calls: int = 0
    answered_calls: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    recorded: int = 0
    unrecorded: int = 0
    stored: int = 0
    unasked: int = 0
    counted: int = 0
    lost: int = 0
    duplicated: int = 0
    wrong: int = 0
    strangers: int = 0
    examples: list[str] = field(default_factory=list)

    def faults(self) -> dict[str, Any]:
        """What must be all zero and empty."""
        found = {name: getattr(self, name) for name in ("lost", "duplicated", "wrong", "strangers", "examples")}
        return {**found, "miscounted": self.counted - self.stored}

    def add_example(self, text: str) -> None:
        """Remember the first few."""
        if len(self.examples) < _EXAMPLES:
            self.examples.append(text)


NO_FAULTS = Report().faults()
"""What `Report.faults` gives when all is well."""


@contextmanager
def opened(url: str) -> Iterator[Engine]:
    """A database for the time of a block."""
    engine = make_engine(url)
    try:
        yield engine
    finally:
        engine.dispose()


def read_logs(folder: Path) -> dict[int, Call]:
    """All calls of all clients, by the time that names them."""
    calls: dict[int, Call] = {}
    for path in sorted(folder.glob("*.jsonl")):
        with path.open() as lines:
            for event in map(json.loads, lines):
                if event["kind"] == "call":
                    calls[event["ms"]] = Call(*(event[name] for name in ("ms", "start", "rows", "named", "batch")))
                elif event["kind"] == "answer":
                    calls[event["ms"]].answer = event
                else:
                    calls[event["ms"]].failures.append(event)
    return calls


def check(calls: dict[int, Call], url: str, bundle_path: Path, *, others: Collection[str] = ()) -> Report:
    """Compare.

    Parameters
    ----------
    calls
        See `read_logs`.
    url
        Of the database.
    bundle_path
        The bundle that answered all of them.
    others
        Versions that other callers used; their points are not looked at.
    """
    judges = _Judges(read_bundle(bundle_path))
    report = Report(calls=len(calls))
    for call in calls.values():
        report.failures.update(failure["code"] for failure in call.failures)
        if call.answer is not None:
            report.answered_calls += 1
            report.recorded += call.rows * call.is_recorded
            report.unrecorded += call.rows * (not call.is_recorded)
            if not judges.is_answer_right(call):
                report.wrong += call.rows
                report.add_example(f"answer to {call.ms}")
    times = {ms: np.zeros(call.rows, dtype=np.int64) for ms, call in calls.items()}
    for row in _stored(url, others):
        report.stored += 1
        call, number = calls.get(row.event_at), int.from_bytes(row.id[-4:], "big") & _ROW
        if call is None or number >= call.rows:
            report.strangers += 1
            report.add_example(f"stranger {row}")
            continue
        times[call.ms][number] += 1
        report.unasked += call.answer is None
        if not judges.is_row_right(call, number, row):
            report.wrong += 1
            report.add_example(f"row {number} of {call.ms}: {row}")
    for ms, counts in times.items():
        report.duplicated += int((counts > 1).sum())
        missing = int((counts == 0).sum()) if calls[ms].is_recorded else 0
        report.lost += missing
        if missing or (counts > 1).any():
            report.add_example(f"call {ms} is stored {sorted(set(counts.tolist()))} times: {calls[ms]}"[:400])
    with opened(url) as engine, engine.connect() as connection:
        counted = select(func.sum(rollup.c.points)).join_from(rollup, bundle, bundle.c.id == rollup.c.bundle_id)
        report.counted = int(connection.scalar(counted.where(bundle.c.version.not_in(others))) or 0)
    return report


@dataclass(frozen=True, slots=True, eq=False)
class _Truth:
    """What the bundle says of a batch; `rows` as they are stored: reason, whether accepted, p-value in 4 bytes."""

    scored: ScoredBatch
    rows: list[tuple[int, bool, bytes | None]]

    @classmethod
    def of(cls, scored: ScoredBatch) -> _Truth:
        is_accepted = scored.accepted.tolist()
        p_values = [None if np.isnan(value) else _FLOAT.pack(value) for value in scored.p_value.tolist()]
        return cls(scored, list(zip(scored.reason.tolist(), is_accepted, p_values, strict=True)))


class _Judges:
    """What the bundle says of each batch: the same rows in the same company, so that numbers agree to the last bit."""

    def __init__(self, found: Bundle) -> None:
        assert found.gate is not None
        policy, rows = ScoringPolicy(Scorer.of(found), found.gate), pool()
        self.version = found.version
        self._truth = cache(lambda start, count: _Truth.of(policy.score(rows[start : start + count])))

    def is_answer_right(self, call: Call) -> bool:
        """Whether the caller was told what the bundle says."""
        said, scored = call.answer, self._truth(call.start, call.rows).scored
        assert said is not None
        p_value = np.frombuffer(base64.b64decode(said["p_value"]), "<f8")
        return (
            said["version"] == self.version
            # The stored id has the time of that of the caller.
            and said["batch"].startswith(call.batch[:12])
            and np.array_equal(said["decision"], scored.decision)
            and np.array_equal(said["reason"], scored.reason)
            and np.array_equal(p_value, scored.p_value, equal_nan=True)
        )

    def is_row_right(self, call: Call, number: int, row: Any) -> bool:
        """Whether a stored row is the one that was asked about, as the bundle judges it."""
        batch = (call.answer or {}).get("batch", "")
        p_value = None if row.p_value is None else _FLOAT.pack(row.p_value)
        return (
            row.version == self.version
            and (row.reason, row.is_accepted, p_value) == self._truth(call.start, call.rows).rows[number]
            and row.id.hex().startswith(call.batch[:12])
            and (not batch or row.id == (int(batch, 16) + number).to_bytes(16, "big"))
            and row.prediction_id == (row_name(call.ms, number) if call.named else None)
        )


def _stored(url: str, others: Collection[str]) -> Iterator[Any]:
    query = select(
        point.c.id, point.c.event_at, point.c.reason, point.c.is_accepted, point.c.p_value, point.c.prediction_id,
        bundle.c.version,
    ).join_from(point, bundle, bundle.c.id == point.c.bundle_id, isouter=True)  # fmt: skip
    query = query.where(bundle.c.version.is_(None) | bundle.c.version.not_in(others))
    with opened(url) as engine, engine.connect() as connection:
        # Of the query alone: as options of the connection they would hold for what begins its transaction.
        yield from connection.execute(query.execution_options(stream_results=True, yield_per=20_000))
