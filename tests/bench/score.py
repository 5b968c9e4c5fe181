"""Pace, start-up time and memory of the scorer, beside the bare forward pass of its network."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable

PROBE = """
import resource, sys, time
started = time.perf_counter()
if sys.argv[1] == "numpy":
    sys.modules["numba"] = None
from darksight_core.scorer import Scorer
imported = time.perf_counter() - started
from tests.bench.score import make_parts
embedder, kde, calibration, probs = make_parts(10, 1000)
started = time.perf_counter()
scorer = Scorer(embedder, kde, calibration)
ready = time.perf_counter() - started
for _ in range(3):
    scorer.score(probs)
    scorer.score(probs[:1])
_, resident, shared, *_ = map(int, open("/proc/self/statm").read().split())
megabytes = resource.getpagesize() / 1e6
print(imported, ready, resident * megabytes, (resident - shared) * megabytes)
"""


def make_parts(classes: int, anchors: int, rows: int = 4096):  # type: ignore[no-untyped-def]  # a tuple of four parts
    """Embedder, density, calibration and rows (n, K) of a map that was not fitted, with a network of 128-128."""
    import numpy as np

    from darksight_core.embed import Embedder, Network
    from darksight_core.kde import Kde
    from darksight_core.scorer import Calibration
    from darksight_core.simplex import log_softmax
    from darksight_core.student import Student

    rng = np.random.default_rng(0)
    radius = 5.0 * np.sqrt(classes)
    means = rng.uniform(-radius, radius, size=(classes, 2))
    student = Student(means, np.full(classes, 1.2), np.zeros(classes))
    points = means[rng.integers(classes, size=10_000)] + rng.standard_t(2.0, size=(10_000, 2)).clip(-radius, radius)
    shapes = ((classes, 128), (128, 128), (128, 2))
    embedder = Embedder(
        student=student,
        network=Network(
            weights=tuple(rng.normal(size=shape) * np.sqrt(2.0 / shape[0]) for shape in shapes),
            biases=tuple(np.zeros(shape[1]) for shape in shapes),
        ),
        anchors=np.concatenate([means, points[: anchors - classes]]) if anchors > classes else means[:anchors],
        bound=4.0 * radius,
        n_inputs=classes,
    )
    kde = Kde.fit(points)
    calibration = Calibration(
        {"log_density": student.log_density(points[:2000]), "log_kde": kde.log_density(points[:2000])}
    )
    logits = student.log_posterior(points[-rows:]) + 0.5 * rng.normal(size=(rows, classes))
    return embedder, kde, calibration, np.exp(log_softmax(logits)).astype(np.float32)


def best_of(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Least CPU seconds of each call, measured in turns so that all see the same machine."""
    best = dict.fromkeys(calls, float("inf"))
    for call in calls.values():
        call()
    for _ in range(rounds):
        for name, call in calls.items():
            started = time.process_time()
            call()
            best[name] = min(best[name], time.process_time() - started)
    return best


def measure(classes: int, anchors: int, rounds: int) -> None:
    """Print one row of the table for each batch size."""
    import numpy as np

    from darksight_core.scorer import Scorer

    embedder, kde, calibration, probs = make_parts(classes, anchors)
    compiled, plain = (Scorer(embedder, kde, calibration, compiled=flag) for flag in (None, False))
    *hidden, (last_weight, last_bias) = zip(embedder.network.weights, embedder.network.biases, strict=True)

    def forward(values):  # type: ignore[no-untyped-def]  # float32 in and out
        for weight, bias in hidden:
            values = np.maximum(values @ weight + bias, 0.0)
        return values @ last_weight + last_bias

    for rows in (1, 16, 256, 4096):
        batches = np.split(probs, len(probs) // rows)[: max(1, 200 // rows)]
        few = batches[: max(1, 20 // rows)]
        calls = {
            "forward": lambda batches=batches: [forward(batch) for batch in batches],
            "score": lambda batches=batches: [compiled.score(batch) for batch in batches],
            "numpy": lambda few=few: [plain.score(batch) for batch in few],
        }
        seconds = best_of(calls, rounds)
        each = {name: value / (len(few) if name == "numpy" else len(batches)) for name, value in seconds.items()}
        print(
            f"{classes:>7} {anchors:>7} {rows:>6} {each['forward'] * 1e6:>10.1f} {each['score'] * 1e6:>10.1f} "
            f"{each['numpy'] * 1e6:>10.1f} {each['score'] / each['forward']:>7.2f} {rows / each['score']:>10.0f}"
        )


def main(argv: list[str]) -> int:
    """Print the table; see --help."""
    parser = argparse.ArgumentParser(prog="score", description=__doc__)
    parser.add_argument("--classes", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--anchors", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args(argv)
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    if any(os.environ.get(name) != value for name, value in threads.items()):
        # BLAS reads these when it is loaded, so they must be there from the start.
        command = [sys.executable, "-m", "tests.bench", "score", *argv]
        return subprocess.run(command, env={**os.environ, **threads}, check=False).returncode

    print("CPU microseconds per call, best of rounds, BLAS at one thread")
    print("classes anchors   rows    forward      score      numpy   ratio     rows/s")
    for classes in args.classes:
        measure(classes, args.anchors, args.rounds)
    print("\nengine     import s    ready s    resident MB    of it not file-backed")
    for engine in ("compiled", "numpy"):
        done = subprocess.run([sys.executable, "-c", PROBE, engine], capture_output=True, text=True, check=True)
        imported, ready, resident, private = map(float, done.stdout.split())
        print(f"{engine:<9} {imported:>9.2f} {ready:>10.2f} {resident:>14.0f} {private:>24.0f}")
    return 0
