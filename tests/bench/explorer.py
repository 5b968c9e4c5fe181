"""The explorer: first paint of 100,000 points in Chromium, panning them, and its API among millions of stored points.

Chromium draws WebGL in software here, on the same cores as server and database; with a graphics card drawing is faster.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import psycopg
from darksight_service.control.changes import deploy_at_start
from darksight_service.control.state_file import StateFile
from darksight_service.store.store import Store

from darksight_core.bundle import Bundle, read_bundle, write_bundle
from darksight_core.drift.detectors import make_detectors
from darksight_core.evaluation.drift import baseline_of
from tests.bench import results
from tests.bench.store import CLASSES, batches
from tests.support.browser import running_browser, watched_page
from tests.support.bundles import make_bundle
from tests.support.postgres import running_postgres

DAYS_MS = 10 * 86_400_000
HOUR_MS = 3_600_000
SIZE = 2048
DRAWN = 100_000
CAMERAS = 40

# Frames and long tasks while the map is dragged; both in milliseconds.
_WATCH = """() => {
  window.frames_ms = []; window.tasks_ms = []; let last = performance.now();
  new PerformanceObserver((list) => list.getEntries().forEach((entry) => window.tasks_ms.push(entry.duration)))
    .observe({ type: "longtask" });
  const tick = (now) => { window.frames_ms.push(now - last); last = now; requestAnimationFrame(tick); };
  requestAnimationFrame(tick);
}"""


def fill(url: str, bundle: Bundle, rows: int, now_ms: int) -> int:
    """Ten days of points up to now, of 40 cameras in 5 cities; how many were stored."""
    store = Store.open(url, check=False)
    store.upgrade()
    detectors = make_detectors(baseline_of(bundle))
    store.follow_drift("bench", lambda model, version: detectors)
    cameras = np.random.default_rng(0).integers(0, CAMERAS, SIZE)
    sets = tuple((("camera", str(each)), ("city", f"city {each % 5}")) for each in range(CAMERAS))
    tagged = {"versions": (bundle.version,), "tag_sets": sets, "tags": cameras.astype(np.intp)}
    count = max(1, rows // SIZE)
    made = batches(count, SIZE, start_ms=now_ms - DAYS_MS, step_ms=DAYS_MS / count)
    done = 0
    while waiting := [replace(batch, **tagged) for _, batch in zip(range(10), made, strict=False)]:
        done += store.insert(waiting).points
        if done % (SIZE * 500) < SIZE * 10:
            print(f"{done:,} rows", file=sys.stderr)
    store.close()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE point")
    return done


@contextmanager
def explorer(data_dir: Path, url: str) -> Iterator[str]:
    """`darksight explore` as a process; its address."""
    command = [sys.executable, "-m", "darksight_service.cli", "explore", "--explorer-port", "0"]
    process = subprocess.Popen(
        [*command, "--data-dir", str(data_dir), "--database-url", url], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    found = next(filter(None, (re.search(r"explorer on (\S+)", line) for line in process.stderr)))
    try:
        yield found[1]
    finally:
        process.terminate()
        process.wait()


def api(url: str, now_ms: int, turns: int) -> results.Parts:
    """Median and 95th percentile of what the pages ask for."""
    hour = f"since_ms={now_ms - HOUR_MS}"
    paths = {
        "map": "/api/map?model=digits",
        "reference points": "/api/map/reference?model=digits",
        "newest 10,000 points, and how many there are": "/api/map/points?model=digits&count=1",
        "newest 2,000 points of the last hour": f"/api/map/points?model=digits&limit=2000&{hour}",
        "newest 2,000 rejected ones of a class": "/api/map/points?model=digits&limit=2000&decision=reject&classes=3",
        "sample of 10,000 over ten days": "/api/map/points?model=digits&sample=1",
        "density P(y; θ), cached": "/api/map/density?model=digits&layer=student",
        "density of the KDE, cached": "/api/map/density?model=digits&layer=kde",
        "newest 10,000 points of a segment": "/api/map/points?model=digits&tags=camera%3D7",
        "newest 10,000 points with the values of a tag": "/api/map/points?model=digits&tag_key=camera",
        "drift now": "/api/drift?model=digits",
        "segments (goal 300)": "/api/drift/segments?model=digits",
    }
    rows = []
    with httpx.Client(base_url=url, timeout=120) as client:
        for name, path in paths.items():
            client.get(path).raise_for_status()
            took = []
            for _ in range(turns):
                started = time.perf_counter()
                client.get(path).raise_for_status()
                took.append(1e3 * (time.perf_counter() - started))
            rows.append((name, f"{np.median(took):.1f}", f"{np.percentile(took, 95):.1f}"))
            print(rows[-1], file=sys.stderr)
    return results.Table(("request", "median, ms", "p95, ms (goal 200)"), rows)


def painting(url: str) -> results.Parts:
    """Seconds until the points are drawn, and how the map answers to the mouse."""
    with running_browser() as browser, watched_page(browser, url) as page:
        page.goto(f"/map?amount={DRAWN}")
        seen = "name => performance.getEntriesByName(name)[0]?.startTime"
        page.wait_for_function(seen, arg="darksight:all")
        first, whole = (page.evaluate(seen, name) / 1e3 for name in ("darksight:first", "darksight:all"))
        told = page.locator("#count").inner_text()
        page.evaluate(_WATCH)
        box = page.locator("#plot").bounding_box()
        assert box is not None
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        page.mouse.move(x, y)
        page.mouse.down()
        for step in range(40):
            page.mouse.move(x + 4 * step, y + 2 * step)
        page.mouse.up()
        frames, tasks = (np.array(page.evaluate(f"window.{name}_ms")) for name in ("frames", "tasks"))
    table = results.Table(
        (
            "first points drawn, s",
            "all drawn, s (goal 3)",
            "frame while dragging: median, ms",
            "p95, ms",
            "longest task, ms",
        ),
        [(first, whole, float(np.median(frames)), float(np.percentile(frames, 95)), float(tasks.max(initial=0.0)))],
    )
    return told, table


def main(argv: list[str]) -> int:
    """Fill a store and measure."""
    parser = argparse.ArgumentParser(prog="./dev bench explorer", description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000, help="stored points (default 10,000,000)")
    parser.add_argument("--turns", type=int, default=40, help="requests of each kind (default 40)")
    args = parser.parse_args(argv)
    now_ms = int(time.time() * 1000)
    with (
        tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/tmp")) as name,
        running_postgres(in_memory=False, fsync="off", shared_buffers="512MB", max_wal_size="4GB") as server,
    ):
        folder, url = Path(name), server.fresh_database()
        write_bundle(folder / "digits.safetensors", make_bundle(30_000, CLASSES))
        done = fill(url, read_bundle(folder / "digits.safetensors"), args.rows, now_ms)
        with Store.open(url) as store:
            deploy_at_start(
                StateFile(folder / "data" / "registry.json"),
                store,
                folder / "data" / "bundles",
                [("digits", folder / "digits.safetensors")],
            )
        with explorer(folder / "data", url) as address:
            results.save(f"explorer: API among {done:,} stored points", api(address, now_ms, args.turns))
            results.save(f"explorer: {DRAWN:,} points in Chromium", painting(address))
    return 0
