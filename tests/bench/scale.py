"""Beyond one process: a fit in two ranks against one, and bulk scoring on Ray against two local processes.

Reference and result are measured in one run, as wall time of whole commands. Each rank and each worker has one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.bench import results
from tests.bench.fit import data_sets, jittered

_ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def write_store(folder: Path, rows: int, files: int, classes: int = 10) -> str:
    """Files of predictions of ten classes, and the pattern of their names."""
    sets = data_sets()
    probs = sets.get("cifar10_resnet56", next(iter(sets.values())))
    for number in range(files):
        part = jittered(probs, rows // files)
        part = part[np.random.default_rng(number).permutation(len(part))]
        table = pa.table({f"prob_{k}": part[:, k] for k in range(classes)})
        pq.write_table(table, folder / f"part{number:03d}.parquet", row_group_size=125_000)
    return str(folder / "part*.parquet")


def fit(pattern: str, out: Path, ranks: int) -> tuple[float, dict[str, object]]:
    """Wall seconds and report of a fit."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command += ["-m", "darksight_core.fit", pattern, "--out", str(out), "--overwrite"]
    started = time.perf_counter()
    done = subprocess.run(command, env=_ENVIRONMENT, capture_output=True, text=True, check=True)
    return time.perf_counter() - started, json.loads(done.stdout[done.stdout.index("{") :])


def bench_fit(rows: int) -> results.Parts:
    """Two ranks against one rank, both under torchrun."""
    table = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "small").mkdir()
        # Compiles what is compiled once per machine.
        fit(write_store(folder / "small", 20_000, 1), folder / "small.safetensors", 1)
        pattern = write_store(folder, rows, 8)
        first = None
        for ranks in (1, 2):
            wall, found = fit(pattern, folder / f"{ranks}.safetensors", ranks)
            first = first or wall
            version = str(found["version"])[:12]
            table.append((ranks, f"{wall:.1f}", f"{first / wall:.2f}", f"{found['kl_sym']:.5f}", version))
            print(table[-1], file=sys.stderr)
    return results.Table(("ranks", "wall s", "times one rank", "KL_sym", "version of the bundle"), table)


def descendants(root: int) -> dict[int, int]:
    """Resident memory in kB of all processes below one."""
    parents, sizes = {}, {}
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            facts = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
        except OSError:
            continue
        number = int(status.parent.name)
        parents[number], sizes[number] = int(facts["PPid"]), int(facts.get("VmRSS", "0 kB").split()[0])
    below, grown = {root}, True
    while grown:
        more = {child for child, parent in parents.items() if parent in below} - below
        below, grown = below | more, bool(more)
    return {number: sizes.get(number, 0) for number in below}


def score(bundle: Path, pattern: str, out: Path, *options: str) -> tuple[float, float, float]:
    """Wall seconds, and the largest worker in MB in the first and in the second half of the time."""
    command = [
        sys.executable,
        "-m",
        "darksight_service.cli",
        "score",
        str(bundle),
        pattern,
        "--out",
        str(out),
        "--quiet",
    ]
    started = time.perf_counter()
    process = subprocess.Popen([*command, *options], env=_ENVIRONMENT, stdout=subprocess.DEVNULL)
    seen = []
    while process.poll() is None:
        seen.append(max(size for size in descendants(process.pid).values()))
        time.sleep(0.5)
    wall = time.perf_counter() - started
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    half = len(seen) // 2
    return wall, max(seen[: half + 1]) / 1024, max(seen[half:]) / 1024


def bench_ray(rows: int) -> results.Table:
    """Ray with two actors against two local processes."""
    table = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "small").mkdir()
        fit(write_store(folder / "small", 50_000, 1), folder / "model.safetensors", 1)
        pattern = write_store(folder, rows, 10)
        first = None
        for engine in ("local", "ray"):
            options = ("--engine", engine, "--workers", "2")
            wall, early, late = score(folder / "model.safetensors", pattern, folder / engine, *options)
            first = first or wall
            table.append((engine, f"{wall:.1f}", f"{rows / wall:,.0f}", f"{first / wall:.2f}", early, late))
            print(table[-1], file=sys.stderr)
    header = ("engine, 2 workers", "wall s", "rows/s", "of local", "largest process, first half, MB", "second half, MB")
    return results.Table(header, table)


def main(argv: list[str]) -> int:
    """Run the part named."""
    parser = argparse.ArgumentParser(prog="./dev bench scale", description=__doc__)
    parser.add_argument("part", choices=["fit", "ray"])
    parser.add_argument("--rows", type=int, help="default: 1,000,000 to fit, 10,000,000 to score")
    args = parser.parse_args(argv)
    if args.part == "fit":
        rows = args.rows or 1_000_000
        results.save(f"scale: {rows:,} rows of ten classes fitted by two ranks", bench_fit(rows))
    else:
        rows = args.rows or 10_000_000
        results.save(f"scale: {rows:,} rows of ten classes scored on Ray", bench_ray(rows))
    return 0
