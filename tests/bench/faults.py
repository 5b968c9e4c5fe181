"""Faults: what is lost or doubled while everything is killed, paused, stopped and filled, and what an outage costs.

Clients log every acknowledgement, a nemesis breaks service and database, and a checker compares the logs with SQL
(support/faults). PostgreSQL runs with the settings of production. Latencies are from when a call was due to its answer.
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
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from darksight_core.bundle import read_bundle
from tests.bench import results
from tests.support.faults.checker import NO_FAULTS, Call, Report, check, read_logs
from tests.support.faults.clients import CLASSES, MODEL, running_clients
from tests.support.faults.nemesis import Nemesis, Service, small_disk
from tests.support.faults.readiness import ReadinessProbe
from tests.support.postgres import running_postgres
from tests.support.replicas import service_links
from tests.support.servers import wait_until

_PARTS = ("nemesis", "outage", "sqlite")
_PRODUCTION = {"fsync": "on", "full_page_writes": "on"}
_DISK_BYTES = 64 << 20
_READY_SECONDS = 10.0
# From the acknowledgement of an event.
_SQL_SECONDS = 2.0
_KILLS = 9


def make_gated_bundle(path: Path, seed: int = 0) -> Path:
    """A bundle with both rules, without a fit."""
    from darksight_core.bundle import write_bundle
    from darksight_core.gate.gate import Gate
    from darksight_core.guarantees.conformal import cutoff
    from tests.support.bundles import CERTIFICATE, make_bundle

    made = make_bundle(rows=900, classes=CLASSES, seed=seed)
    gate = Gate(outlier=cutoff(len(made.calibration), 0.05), reject_score="msp", threshold=1.0)
    write_bundle(path, made.with_gate(gate, CERTIFICATE))
    return path


@contextmanager
def started(service: Service) -> Iterator[Service]:
    """A service for the time of a block; nothing of it is left at the end."""
    service.start()
    try:
        yield service
    finally:
        service.kill()
        (service.data_dir.parent / "logs" / "service.log").write_text("".join(service.lines))


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


def counts(report: Report, set_aside: int) -> results.Parts:
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
        "calls", "answered", "rows acknowledged as recorded", "as not recorded", "rows in SQL",
        "of calls without answer", "lost", "doubled", "wrong", "of nobody", "off in counts per minute",
        "files set aside",
    )  # fmt: skip
    failures = ", ".join(f"{count:,} {code}" for code, count in report.failures.most_common()) or "none"
    return results.Table(header, rows), f"Failed attempts of clients: {failures}."


def nemesis(folder: Path, args: argparse.Namespace, bundle: Path) -> tuple[results.Parts, bool]:
    """All faults on PostgreSQL."""
    return _tormented(folder, args.minutes, args.seed, bundle, with_postgres=True)


def sqlite(folder: Path, args: argparse.Namespace, bundle: Path) -> tuple[results.Parts, bool]:
    """Those that apply to the embedded store."""
    return _tormented(folder, args.minutes / 4, args.seed, bundle, with_postgres=False)


def _tormented(
    folder: Path, minutes: float, seed: int, bundle: Path, *, with_postgres: bool
) -> tuple[results.Parts, bool]:
    data_dir, probed = folder / "data", make_gated_bundle(folder / "probe.safetensors", seed=1)
    with (
        running_postgres(in_memory=False, **_PRODUCTION) as postgres,
        small_disk(data_dir, _DISK_BYTES) as is_small,
    ):
        # The embedded store would lie on the small disk itself, and fill it.
        has_disk = is_small and with_postgres
        service = Service(
            data_dir,
            bundle,
            postgres.migrated_database() if with_postgres else "",
            service_links(),
            has_stepped_clock=True,
            others={"probe": probed},
        )
        probe = ReadinessProbe(service.target, f"http://127.0.0.1:{service.http_port}", "probe")
        with started(service):
            broken = Nemesis(service, postgres if with_postgres else None, has_small_disk=has_disk, seed=seed)
            with running_clients(service.target, folder / "logs", rate=150.0), probe.running():
                done = torment(broken, minutes, seed)
            service.settle()
            status = service.stop()
        url = service.url or f"sqlite:///{data_dir / 'darksight.db'}"
        report = check(read_logs(folder / "logs"), url, bundle, others=[read_bundle(probed).version])
        table = results.Table(("fault", "times"), sorted(done.items()))
        parts = [f"{sum(done.values())} faults in {minutes:.2g} minutes.", table]
        parts += counts(report, len(service.set_aside()))
        parts.append(
            f"Ready while calls failed: {probe.longest_seconds:.1f} s at most (goal {_READY_SECONDS:.0f}); "
            f"{probe.failed:,} of {probe.calls:,} calls failed on a service that said it was ready."
        )
        if with_postgres and not has_disk:
            parts.append("The disk was not filled: mounting a small one is not permitted here.")
        is_good = report.faults() == NO_FAULTS and probe.longest_seconds <= _READY_SECONDS
        return parts, is_good and status == 0


def outage(folder: Path, args: argparse.Namespace, bundle: Path) -> tuple[results.Parts, bool]:
    """The database away for a minute: latencies before, during and after, and the time to catch up."""
    data_dir = folder / "data"
    with running_postgres(in_memory=False, **_PRODUCTION) as postgres:
        with started(Service(data_dir, bundle, postgres.migrated_database())) as service:
            with running_clients(service.target, folder / "logs", threads=8, rate=args.rate):
                time.sleep(5.0)
                moments = [time.time()]
                time.sleep(args.seconds / 2)
                moments.append(time.time())
                Nemesis(service, postgres).outage(args.seconds)
                moments.append(time.time())
                backlog = waiting_bytes(service)
                # Segments are called by the time of their beginning.
                limit = moments[-1] * 1e9
                wait_until(lambda: all(int(path.stem) > limit for path in service.waiting()), 600.0, "the drain")
                moments.append(time.time())
                time.sleep(args.seconds / 2)
                moments.append(time.time())
            service.settle()
            status = service.stop()
        calls = read_logs(folder / "logs")
        report = check(calls, service.url, bundle)
    before, gone, back, caught_up, end = moments
    windows = {
        "before": [(before, gone)],
        "after": [(caught_up, end)],
        "before and after": [(before, gone), (caught_up, end)],
        "database away": [(gone, back)],
        "catching up": [(back, caught_up)],
    }
    found = {name: latencies(calls, spans) for name, spans in windows.items()}
    usual = typical_p99(found["before and after"][0]), percentile(found["before and after"][0], 99)
    rows = []
    for name, (answers, failed) in found.items():
        typical, p99 = typical_p99(answers), percentile(answers, 99)
        rows.append(
            (
                name, f"{len(answers):,}", failed, f"{1e3 * percentile(answers, 50):.2f}", f"{1e3 * typical:.2f}",
                f"{typical / usual[0]:.2f}", f"{1e3 * p99:.2f}", f"{p99 / usual[1]:.2f}",
            )
        )  # fmt: skip
    header = (
        "window", "calls", "failed", "p50, ms", "p99 of a second, median, ms", "against before and after",
        "p99 of all calls, ms", "against before and after (goal 1.5)",
    )  # fmt: skip
    drained = caught_up - back
    share = drained / (back - gone)
    parts = [
        f"{args.rate:.0f} calls per second of 1 to 300 rows, database away for {back - gone:.1f} s; "
        f"{backlog / 1e6:.1f} MB waited and were in SQL {drained:.1f} s after its return.",
        results.Table(("figure", "found"), [("time to catch up / time away", f"{share:.2f}")]),
        results.Table(header, rows),
        *counts(report, len(service.set_aside())),
    ]
    is_good = report.faults() == NO_FAULTS and status == 0 and not report.unrecorded and not found["database away"][1]
    return parts, is_good


def waiting_bytes(service: Service) -> int:
    """Size of the spools."""
    size = 0
    for path in service.waiting():
        with suppress(FileNotFoundError):
            size += path.stat().st_size
    return size


def latencies(calls: dict[int, Call], spans: list[tuple[float, float]]) -> tuple[list[tuple[float, float]], int]:
    """Moment and seconds of the calls due in any of these spans of time, and how many attempts failed in them."""

    def is_within(moment: float) -> bool:
        return any(start <= moment < end for start, end in spans)

    answers = [call.answer for call in calls.values() if call.answer is not None]
    due = [(answer["at"] - answer["seconds"], answer["seconds"]) for answer in answers]
    failures = [failure["at"] for call in calls.values() for failure in call.failures]
    return [each for each in due if is_within(each[0])], sum(map(is_within, failures))


def percentile(answers: list[tuple[float, float]], q: float) -> float:
    """Of the seconds of answers."""
    return float(np.percentile([seconds for _, seconds in answers], q)) if answers else float("nan")


def typical_p99(answers: list[tuple[float, float]]) -> float:
    """p99 of each second, and of these the median: a shared machine that stands still for a while does not move it."""
    by_second: dict[int, list[tuple[float, float]]] = {}
    for answer in answers:
        by_second.setdefault(int(answer[0]), []).append(answer)
    return float(np.median([percentile(part, 99) for part in by_second.values()])) if by_second else float("nan")


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
            parts, is_clean = globals()[part](folder, args, bundle)
            results.save(f"faults: {titles[part]}", parts)
            is_good &= is_clean
            if args.keep is not None:
                shutil.copytree(folder / "logs", args.keep / part, dirs_exist_ok=True)
    return 0 if is_good else 1
