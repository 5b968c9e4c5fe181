"""`darksight demo`: the main job end to end, on the handwritten digits that scikit-learn ships.

A small classifier is trained, the map of its predictions fitted and a gate calibrated; then a real service is started,
and traffic replayed against it, clean at first and then corrupted, as a client in production would send it.
"""

from __future__ import annotations

import argparse
import math
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from darksight_core.simplex import Floats
from darksight_service.cli.console import Bars, print_table, require, say
from darksight_service.errors import RefusedError

__all__ = ["add_parser", "digits_predictions", "run"]

_FOLDS = 5
_ALPHA = 0.01
_COVERAGE = 0.95
_TRAFFIC = ("clean", "noise", "overlaid")
# ln 1000: by Ville's inequality evidence for nothing reaches it once in 1,000 times at most.
_ALARM = math.log(1000.0)


def add_parser(commands: Any) -> None:
    """Add `demo` to the command line."""
    parser = commands.add_parser(
        "demo",
        help="train a small classifier on digits, fit its map, serve it, and replay clean and corrupted traffic",
        description="Trains a small classifier on scikit-learn's digits, fits the map of its predictions, draws it, "
        "calibrates a gate, starts a service and replays clean, noisy and overlaid images against it. Takes about a "
        "minute.",
    )
    parser.add_argument("--out", type=Path, default=Path("darksight-demo"), help="folder for its files (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the fit (%(default)s)")
    parser.set_defaults(run=run)


def digits_predictions(corruption: str = "clean") -> tuple[NDArray[np.float32], NDArray[np.int64], Floats]:
    """Predictions (1797, 10) for digits by networks that were not trained on them, labels, and the images shown.

    Each of five networks predicts the fifth of the images that it has not seen: `clean`, with `noise`, or `overlaid`
    by another digit.
    """
    from sklearn.datasets import load_digits
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.model_selection import StratifiedKFold
    from sklearn.neural_network import MLPClassifier

    images, labels = load_digits(return_X_y=True)
    images = images / 16.0
    shown = _corrupt(images, corruption)
    probs = np.empty((len(images), 10), dtype=np.float32)
    for train, rest in StratifiedKFold(_FOLDS, shuffle=True, random_state=0).split(images, labels):
        network = MLPClassifier((32,), alpha=1e-3, batch_size=64, max_iter=40, random_state=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            network.fit(images[train], labels[train])
        probs[rest] = network.predict_proba(shown[rest])
    return probs, labels.astype(np.int64), shown


def _corrupt(images: Floats, corruption: str) -> Floats:
    """Images as a broken camera or a new kind of input would show them."""
    if corruption == "clean":
        return images
    if corruption == "noise":
        return np.clip(images + np.random.default_rng(0).normal(scale=0.35, size=images.shape), 0.0, 1.0)
    overlaid: Floats = 0.5 * (images + np.random.default_rng(1).permutation(images))
    return overlaid


def run(args: argparse.Namespace) -> int:
    """Run the demonstration."""
    require("torch", "fit")
    require("matplotlib", "report")
    require("sqlalchemy", "service")
    args.out.mkdir(parents=True, exist_ok=True)
    bundle, test = _prepare(args)
    with _service(bundle, args.out / "data") as (target, url):
        rows = [_replay(target, corruption, test if corruption == "clean" else None) for corruption in _TRAFFIC]
        _await_points(target, sum(row[1] for row in rows))
        evidence = _metric(url, "darksight_drift_evidence")
    print()
    print_table(
        [(name, n, *(f"{100 * share:.1f}%" for share in shares)) for name, n, shares in rows],
        ("traffic", "rows", "accepted", "outliers", "low confidence", "accuracy of all", "of accepted"),
    )
    print(
        f"\nThe alarm on the outlier rate stands at evidence e^{evidence:.0f} against 'nothing has changed' "
        f"(it rings above e^{_ALARM:.1f}: one false alarm in 1,000 services, however long they run)."
    )
    say(f"wrote {bundle}, {args.out / 'map.png'}, and every point to {args.out / 'data' / 'darksight.db'}")
    say(f"go on: darksight serve --model digits={bundle} --data-dir {args.out / 'data'}")
    return 0


def _prepare(args: argparse.Namespace) -> tuple[Path, NDArray[np.int64]]:
    """Train, fit, draw and calibrate; the bundle with its gate, and the rows that nothing has seen."""
    from darksight_core.bundle import read_bundle, write_bundle
    from darksight_core.certify import Rules, ScoredRows, certify
    from darksight_core.fit import FitConfig
    from darksight_core.fit.pipeline import fit_bundle
    from darksight_core.predictions import from_arrays
    from darksight_core.scorer import Scorer
    from darksight_core.split import make_split
    from darksight_service.cli.fit import picture, summary

    say("training five small networks on digits; each predicts the images it has not seen")
    probs, labels, _ = digits_predictions()
    np.savez(args.out / "predictions.npz", probs=probs, labels=labels)
    predictions = from_arrays(probs, labels=labels, source=str(args.out / "predictions.npz"))
    fitted, gated = args.out / "fitted.safetensors", args.out / "digits.safetensors"
    with Bars() as bars:
        report = fit_bundle(predictions, fitted, config=FitConfig(seed=args.seed), overwrite=True, report=bars)
    print_table(*summary(report))
    picture(report, args.out / "map.png")

    say(f"calibrating a gate: at most {_ALPHA:.0%} false outliers, {_COVERAGE:.0%} of usual traffic accepted")
    bundle, split = read_bundle(fitted), make_split(len(labels), args.seed)
    held_out = from_arrays(probs[split.calibrate], labels=labels[split.calibrate])
    rows = ScoredRows.of(held_out, Scorer.of(bundle).score(held_out.probs))
    found = certify(rows, Rules(alpha=_ALPHA, coverage=_COVERAGE, score="msp"), len(bundle.calibration))
    write_bundle(gated, bundle.with_gate(found.gate, found.certificate), overwrite=True)
    return gated, split.test


@contextmanager
def _service(bundle: Path, data_dir: Path) -> Iterator[tuple[str, str]]:
    """`darksight serve` as a process of its own; where it listens."""
    shutil.rmtree(data_dir, ignore_errors=True)
    data_dir.mkdir()
    log = data_dir / "serve.log"
    say(f"starting a service with an embedded database; it logs to {log}")
    with log.open("w") as file:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "darksight_service", "serve", "--model", f"digits={bundle}"),
                *("--data-dir", str(data_dir), "--grpc-port", "0", "--http-port", "0"),
            ],
            stderr=file,
        )
    try:
        found = None
        while found is None:
            if process.poll() is not None:
                raise RefusedError(f"the service did not start; see {log}")
            time.sleep(0.1)
            found = re.search(r"gRPC (\S+), metrics and health on (\S+)", log.read_text(encoding="utf-8"))
        yield found[1], found[2]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def _replay(target: str, corruption: str, where: NDArray[np.int64] | None) -> tuple[str, int, Sequence[float]]:
    """Send traffic row by row as requests come in, and the right classes later, as they become known."""
    from darksight_client import Client, Reason

    probs, labels, _ = digits_predictions(corruption)
    if where is not None:
        probs, labels = probs[where], labels[where]
    right = probs.argmax(axis=1) == labels
    with Client(target) as client:
        bar = tqdm(probs, desc=f"{corruption:<15}", unit=" calls", file=sys.stderr)
        answers = [client.gate("digits", row) for row in bar]
        client.report("digits", [answer.prediction_id for answer in answers], labels.tolist())
    accepted = np.array([answer.accepted for answer in answers])
    reasons = np.array([answer.reason for answer in answers])
    shares = (
        accepted.mean(),
        (reasons == Reason.OUTLIER).mean(),
        (reasons == Reason.LOW_CONFIDENCE).mean(),
        right.mean(),
        right[accepted].mean() if accepted.any() else math.nan,
    )
    return corruption, len(right), [float(share) for share in shares]


def _await_points(target: str, rows: int) -> None:
    """Wait until every point is in the store, which is about a second behind."""
    from darksight_client import Client

    with Client(target) as client:
        while sum(1 for _ in client.points("digits", page_size=10_000)) < rows:
            time.sleep(0.2)


def _metric(url: str, name: str) -> float:
    """The value of a metric of one series."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as page:
        lines = page.read().decode().splitlines()
    return next((float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name + "{")), math.nan)
