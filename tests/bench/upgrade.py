"""Upgrade: which alerts fire while two replicas with traffic are upgraded one after the other, from another commit.

The old release runs from a git worktree with the packages of this one. Prometheus has the rules of this one all the
time, those about drift sixty times faster (tests/support/prometheus.py), and sends its alerts to a real Alertmanager.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
from darksight_client import Client, DarkSightClientError

from tests.bench import results
from tests.support.alertmanager import run_alertmanager
from tests.support.faults.clients import CLASSES, MODEL
from tests.support.postgres import running_postgres
from tests.support.prometheus import run_prometheus
from tests.support.servers import Server, start_server

ROOT = Path(__file__).parents[2]


def environment(root: Path) -> dict[str, str]:
    """Variables by which Python finds the code of a checkout first."""
    # Without the current directory, which has the code of this one.
    return {"PYTHONPATH": os.pathsep.join([str(root), str(root / "service")]), "PYTHONSAFEPATH": "1"}


@contextmanager
def traffic(targets: list[str]) -> Iterator[Counter[str]]:
    """Twenty calls a second of rows as the bundle was calibrated on, until the end of the block; rows by result."""
    counted, stop = Counter[str](), threading.Event()

    def run() -> None:
        rng = np.random.default_rng(1)
        with Client(targets, timeout_seconds=20.0) as client:
            while not stop.wait(0.05):
                size = int(rng.choice([1, 5, 40]))
                try:
                    client.score(MODEL, rng.dirichlet(np.full(CLASSES, 0.4), size).astype(np.float32))
                    counted["scored"] += size
                except DarkSightClientError:
                    counted["failed"] += size

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield counted
    finally:
        stop.set()
        thread.join()


def serve(folder: Path, root: Path, bundle: Path, url: str, ports: Mapping[str, str] | None = None) -> Server:
    """A replica with the code of a checkout; one that is started again gets the ports that it had."""
    options = [part for name, port in (ports or {}).items() for part in (f"--{name}-port", port)]
    options += ["--workers", "2", "--database-url", url]
    return start_server(
        folder, {MODEL: bundle}, *options, has_tables=False,
        environment={**environment(root), "DARKSIGHT_AUTO_UPGRADE": "true"},
    )  # fmt: skip


def main(argv: list[str]) -> int:
    """Run the upgrade and tell which alerts fired."""
    parser = argparse.ArgumentParser(prog="./dev bench upgrade", description=__doc__)
    parser.add_argument("commit", nargs="?", default="HEAD~1", help="the commit to upgrade from (default HEAD~1)")
    parser.add_argument("--seconds", type=float, default=80.0, help="before, between and after upgrades (default 80)")
    args = parser.parse_args(argv)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="darksight-upgrade-")))
        subprocess.run(
            ["git", "worktree", "add", "--quiet", "--detach", folder / "old", args.commit], cwd=ROOT, check=True
        )
        stack.callback(subprocess.run, ["git", "worktree", "remove", "--force", folder / "old"], cwd=ROOT, check=True)
        # Of the old release, as an operator has it.
        bundle = folder / "bundle.safetensors"
        script = (
            f"from pathlib import Path; from tests.bench import faults; faults.make_gated_bundle(Path({str(bundle)!r}))"
        )
        made = {**os.environ, **environment(folder / "old")}
        subprocess.run([sys.executable, "-c", script], cwd=folder, env=made, check=True)
        url = stack.enter_context(running_postgres()).fresh_database()
        replicas = [serve(folder / name, folder / "old", bundle, url) for name in ("a", "b")]
        stack.callback(lambda: [each.process.kill() for each in replicas])
        alertmanager = stack.enter_context(run_alertmanager(folder))
        services = {each.data_dir.name: each.http_url for each in replicas}
        prometheus = stack.enter_context(run_prometheus(folder / "prometheus", services, alertmanager=alertmanager.url))
        counted = stack.enter_context(traffic([each.grpc_target for each in replicas]))
        time.sleep(args.seconds)
        for number, old in enumerate(replicas):
            ports = {"grpc": old.grpc_target.rpartition(":")[2], "http": old.http_url.rpartition(":")[2]}
            old.stop()
            replicas[number] = serve(old.data_dir, ROOT, bundle, url, ports)
            time.sleep(args.seconds)
        states = Counter(
            (series["metric"]["alertname"], series["metric"]["alertstate"]) for series in prometheus.samples("ALERTS")
        )
        (psi,) = prometheus.get("query", query="model:darksight_psi:1d")["result"]
        inserted = sum(each.counted("darksight_drain_rows_total") for each in replicas)
    rows = [
        ("rows scored, failed", f"{counted['scored']:,}, {counted['failed']:,}"),
        ("rows stored, by the counters of the new release", f"{inserted:,.0f}"),
        ("PSI of a day", f"{float(psi['value'][1]):.3f}"),
        ("alerts that were pending", ", ".join(sorted(name for name, state in states if state == "pending")) or "none"),
        ("alerts that fired", ", ".join(sorted(name for name, state in states if state == "firing")) or "none"),
        ("notifications of Alertmanager", len(alertmanager.sent)),
    ]
    results.save(f"upgrade: two replicas from {args.commit}", results.Table(("figure", "found"), rows))
    return int(any(state == "firing" for _, state in states) or bool(alertmanager.sent))
