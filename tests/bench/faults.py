"""Faults: what is lost or doubled while everything is killed, paused, stopped and filled, and what an outage costs.

Clients log every acknowledgement, a nemesis breaks service and database, and a checker compares the logs with SQL
(tests/faults). PostgreSQL runs with the settings of production. Latencies are from when a call was due to its answer.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from tests.bench import results
from tests.bench.spool import in_turns, make_points
from tests.faults.checker import NO_FAULTS, Call, Report, check, read_logs
from tests.faults.clients import CLASSES, MODEL, running_clients
from tests.faults.nemesis import Nemesis, Service, small_disk
from tests.postgres import Postgres, running_postgres

_PARTS = ("nemesis", "outage", "sqlite")
_PRODUCTION = {"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on"}
_DISK_BYTES = 64 << 20


def make_gated_bundle(path: Path) -> Path:
    """A bundle with both rules, without a fit."""
    from darksight_core.bundle import write_bundle
    from darksight_core.conformal import cutoff
    from darksight_core.gate import Gate
    from tests.bundles import make_bundle

    made = make_bundle(rows=900, classes=CLASSES)
    gate = Gate(outlier=cutoff(len(made.calibration), 0.05), reject_score="msp", threshold=1.0)
    write_bundle(path, made.with_gate(gate, {"promise": "for the benchmark"}))
    return path


def migrated(postgres: Postgres) -> str:
    """URL of a new database with all tables."""
    from darksight_service.store import Store

    url = postgres.fresh_database()
    with Store.open(url, check=False) as store:
        store.upgrade()
    return url


@contextmanager
def started(service: Service) -> Iterator[Service]:
    """A service for the time of a block; nothing of it is left at the end."""
    service.start()
    try:
        yield service
    finally:
        service.kill()


def torment(nemesis: Nemesis, minutes: float, seed: int) -> Counter[str]:
    """Every fault in turn, each round in another order, until the time is over; how often each was done."""
    done: Counter[str] = Counter()
    rng = random.Random(seed)
    end = time.monotonic() + 60.0 * minutes
    while time.monotonic() < end:
        for name, fault in rng.sample(sorted(nemesis.faults().items()), len(nemesis.faults())):
            if time.monotonic() > end:
                break
            fault()
            done[name] += 1
            print(f"{max(end - time.monotonic(), 0.0):.0f} s left: {name}", file=sys.stderr)
            time.sleep(rng.uniform(0.0, 1.5))
    return done


def counts(report: Report, set_aside: int) -> str:
    """What the checker found, as tables."""
    faults = report.faults()
    rows = [
        (
            f"{report.calls:,}", f"{report.answered_calls:,}", f"{report.recorded:,}", f"{report.unrecorded:,}",
            f"{report.stored:,}", f"{report.unasked:,}", faults["lost"], faults["duplicated"], faults["wrong"],
            faults["strangers"], faults["miscounted"], set_aside,
        )
    ]  # fmt: skip
    header = (
        "calls", "answered", "rows acknowledged as recorded", "as not recorded", "rows in SQL", "of calls without answer",
        "lost", "doubled", "wrong", "of nobody", "off in counts per minute", "files set aside",
    )  # fmt: skip
    failures = ", ".join(f"{count:,} {code}" for code, count in report.failures.most_common()) or "none"
    return f"{results.markdown(header, rows)}\n\nFailed attempts of clients: {failures}."


def nemesis(folder: Path, args: argparse.Namespace, bundle: Path) -> tuple[str, bool]:
    """All faults on PostgreSQL."""
    return _tormented(folder, args.minutes, args.seed, bundle, with_postgres=True)


def sqlite(folder: Path, args: argparse.Namespace, bundle: Path) -> tuple[str, bool]:
    """Those that apply to the embedded store."""
    return _tormented(folder, args.minutes / 4, args.seed, bundle, with_postgres=False)


def _tormented(folder: Path, minutes: float, seed: int, bundle: Path, *, with_postgres: bool) -> tuple[str, bool]:
    data_dir = folder / "data"
    with (
        running_postgres(in_memory=False, **_PRODUCTION) as postgres,
        small_disk(data_dir, _DISK_BYTES) as is_small,
    ):
        # The embedded store would lie on the small disk itself, and fill it.
        has_disk = is_small and with_postgres
        service = Service(data_dir, bundle, migrated(postgres) if with_postgres else "", has_stepped_clock=True)
        if not with_postgres:
            service.url = f"sqlite:///{folder / 'store.db'}"
        with started(service):
            broken = Nemesis(service, postgres if with_postgres else None, has_small_disk=has_disk, seed=seed)
            with running_clients(service.target, folder / "logs", rate=150.0):
                done = torment(broken, minutes, seed)
            service.settle()
            status = service.stop()
        report = check(read_logs(folder / "logs"), service.url, bundle)
        table = results.markdown(("fault", "times"), sorted(done.items()))
        text = f"{sum(done.values())} faults in {minutes:.2g} minutes.\n\n{table}\n\n"
        text += counts(report, len(service.set_aside()))
        if with_postgres and not has_disk:
            text += "\n\nThe disk was not filled: mounting a small one is not permitted here."
        return text, report.faults() == NO_FAULTS and status == 0


def outage(folder: Path, args: argparse.Namespace, bundle: Path) -> tuple[str, bool]:
    """The database away for a minute: latencies before, during and after, and the time to catch up."""
    data_dir = folder / "data"
    with running_postgres(in_memory=False, **_PRODUCTION) as postgres:
        with started(Service(data_dir, bundle, migrated(postgres))) as service:
            with running_clients(service.target, folder / "logs", threads=8, rate=args.rate):
                time.sleep(5.0)
                moments = [time.time()]
                time.sleep(args.seconds / 2)
                moments.append(time.time())
                Nemesis(service, postgres).outage(args.seconds)
                moments.append(time.time())
                backlog = sum(path.stat().st_size for path in service.waiting())
                # Segments are called by the time of their beginning.
                while any(int(path.stem) < moments[-1] * 1e9 for path in service.waiting()):
                    time.sleep(0.05)
                moments.append(time.time())
                time.sleep(args.seconds / 2)
                moments.append(time.time())
            service.settle()
            status = service.stop()
        calls = read_logs(folder / "logs")
        report = check(calls, service.url, bundle)
    _, before, gone, back, caught_up, end = (0.0, *moments)
    windows = {
        "before": [(before, gone)],
        "after": [(caught_up, end)],
        "before and after": [(before, gone), (caught_up, end)],
        "database away": [(gone, back)],
        "catching up": [(back, caught_up)],
    }
    found = {name: latencies(calls, spans) for name, spans in windows.items()}
    usual = float(np.percentile(found["before and after"][0], 99))
    rows = []
    for name, (seconds, failed) in found.items():
        p50, p99 = (float(np.percentile(seconds, q)) if len(seconds) else float("nan") for q in (50, 99))
        rows.append((name, f"{len(seconds):,}", failed, f"{1e3 * p50:.2f}", f"{1e3 * p99:.2f}", f"{p99 / usual:.2f}"))
    header = ("window", "calls", "failed", "p50, ms", "p99, ms", "p99 / before and after (goal 1.5)")
    drained = caught_up - back
    text = (
        f"{args.rate:.0f} calls per second of 1 to 300 rows, database away for {back - gone:.1f} s; "
        f"{backlog / 1e6:.1f} MB waited and were in SQL {drained:.1f} s after its return, "
        f"{drained / (back - gone):.2f} of the outage (goal 2).\n\n"
        f"{results.markdown(header, rows)}\n\n{counts(report, len(service.set_aside()))}\n\n{spool_cost(folder)}"
    )
    is_good = report.faults() == NO_FAULTS and status == 0 and not report.unrecorded and not found["database away"][1]
    return text, is_good


def latencies(calls: dict[int, Call], spans: list[tuple[float, float]]) -> tuple[list[float], int]:
    """Seconds of the calls answered in any of these spans of time, and how many attempts failed in them."""

    def is_within(event: dict[str, float]) -> bool:
        return any(start <= event["at"] < end for start, end in spans)

    answers = [call.answer for call in calls.values() if call.answer is not None]
    seconds = [answer["seconds"] for answer in answers if is_within(answer)]
    return seconds, sum(is_within(failure) for call in calls.values() for failure in call.failures)


def spool_cost(folder: Path) -> str:
    """CPU that writing down adds to a call of one row."""
    from darksight_service.records import encode
    from darksight_service.spool import Spool

    batch = make_points(1, 10)
    with Spool(folder / "cost") as spool:
        found = in_turns({"append": lambda: spool.append(encode(batch))}, repeat=2000, rounds=7)
    return f"To encode and append a record of one row (K = 10) takes {1e6 * found['append'][0]:.1f} us CPU (goal 30)."


def main(argv: list[str]) -> int:
    """Run all parts, or the ones named; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="./dev bench faults", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*_PARTS, []], default=[])
    parser.add_argument("--minutes", type=float, default=3.0, help="of faults on PostgreSQL (default 3)")
    parser.add_argument("--seconds", type=float, default=60.0, help="that the database is away (default 60)")
    parser.add_argument("--rate", type=float, default=250.0, help="calls per second in the outage (default 250)")
    parser.add_argument("--seed", type=int, default=0, help="of the order of faults")
    parser.add_argument("--keep", type=Path, help="copy logs of clients and of the service to this folder")
    args = parser.parse_args(argv)
    titles = {
        "nemesis": "all of them, on PostgreSQL",
        "outage": f"database away for {args.seconds:.0f} s",
        "sqlite": "on the embedded SQLite",
    }
    is_good = True
    for part in args.parts or _PARTS:
        with tempfile.TemporaryDirectory(prefix="ds-faults-") as name:
            folder = Path(name)
            bundle = make_gated_bundle(folder / f"{MODEL}.safetensors")
            text, is_clean = globals()[part](folder, args, bundle)
            results.save(f"faults: {titles[part]}", text)
            is_good &= is_clean
            if args.keep is not None:
                shutil.copytree(folder / "logs", args.keep / part, dirs_exist_ok=True)
    return 0 if is_good else 1
