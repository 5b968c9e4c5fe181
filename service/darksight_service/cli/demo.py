"""`darksight demo`: the main job end to end, on the handwritten digits that scikit-learn ships.

A small classifier is trained, the map of its predictions fitted and a gate calibrated. Then a real service is started,
watched by a real Prometheus if one is installed, and five callers send it their traffic as in production: one sends
what the classifier was made for, the others what it was not. Each caller is a model of its own to the service, so that
each has its own alarms.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from darksight_core.simplex import Floats
from darksight_service.cli.console import Bars, print_table, require, say
from darksight_service.cli.replay import SPEED, Alarm, running_prometheus, why_not
from darksight_service.cli.traffic import KINDS, show
from darksight_service.errors import RefusedError

if TYPE_CHECKING:
    from darksight_client import Gated

__all__ = ["add_parser", "digits_predictions", "run"]

_FOLDS = 5
_ALPHA = 0.01
_COVERAGE = 0.95
# A large share stays unseen, for a clean replay that is long enough to be quiet in.
_SHARES = (0.4, 0.3, 0.3)
# With a Prometheus that looks every second: 60 rows of each corrupted kind between two looks.
_SECONDS = 30.0
_LAST_LOOK = 3.0
# For one call, on a machine that is busy with something else.
_PATIENCE = 60.0


def add_parser(commands: Any) -> None:
    """Add `demo` to the command line."""
    parser = commands.add_parser(
        "demo",
        help="train a small classifier on digits, fit its map, serve it, and replay clean and drifted traffic",
        description="Trains a small classifier on scikit-learn's digits, fits the map of its predictions, draws it, "
        "calibrates a gate, starts a service and replays clean, noisy, rotated and new-class traffic against it. With "
        "Prometheus installed, shows which alert fires after how many points; without, the evidence that the service "
        "itself has. Takes about a minute.",
    )
    parser.add_argument("--out", type=Path, default=Path("darksight-demo"), help="folder for its files (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the fit (%(default)s)")
    parser.set_defaults(run=run)


def digits_predictions(kind: str = "clean") -> tuple[NDArray[np.float32], NDArray[np.int64], Floats]:
    """Predictions (1797, 10) by networks that were not trained on what they see, labels of the digits, and the images.

    Each of five networks predicts the fifth of the images that it has not seen, shown as traffic of a kind of `KINDS`.
    """
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    shown = show(images / 16.0, kind)
    probs = np.empty((len(shown), 10), dtype=np.float32)
    for network, rest in _networks():
        probs[rest] = network.predict_proba(shown[rest])
    return probs, labels.astype(np.int64), shown


@lru_cache(maxsize=1)
def _networks() -> list[tuple[Any, NDArray[np.int64]]]:
    """Five networks, each with the images that it was not trained on."""
    from sklearn.datasets import load_digits
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.model_selection import StratifiedKFold
    from sklearn.neural_network import MLPClassifier

    images, labels = load_digits(return_X_y=True)
    found = []
    for train, rest in StratifiedKFold(_FOLDS, shuffle=True, random_state=0).split(images, labels):
        network = MLPClassifier((32,), alpha=1e-3, batch_size=64, max_iter=40, random_state=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            network.fit(images[train] / 16.0, labels[train])
        found.append((network, rest))
    return found


@dataclass(slots=True)
class _Caller:
    """Traffic of one kind and what became of it; letters have no right class."""

    kind: str
    model: str
    probs: NDArray[np.float32]
    labels: NDArray[np.int64] | None
    answers: list[Gated] = field(default_factory=list)

    def shares(self) -> list[str]:
        """Accepted, outliers, doubtful ones, and accuracy of all and of those accepted, as text."""
        from darksight_client import Reason

        accepted = np.array([answer.accepted for answer in self.answers])
        reasons = np.array([answer.reason for answer in self.answers])
        shares = [accepted.mean(), (reasons == Reason.OUTLIER).mean(), (reasons == Reason.LOW_CONFIDENCE).mean()]
        if self.labels is not None:
            right = self.probs.argmax(axis=1) == self.labels
            shares += [right.mean(), right[accepted].mean() if accepted.any() else math.nan]
        return [*(f"{100 * share:.1f}%" for share in shares), *["-"] * (5 - len(shares))]


def run(args: argparse.Namespace) -> int:
    """Run the demonstration."""
    require("torch", "fit")
    require("matplotlib", "report")
    require("sqlalchemy", "service")
    args.out.mkdir(parents=True, exist_ok=True)
    bundle, unseen = _prepare(args)
    callers = _callers(unseen)
    models = {caller.model: bundle for caller in callers}
    with _service(models, args.out / "data") as (target, url), contextlib.ExitStack() as stack:
        prometheus, reason, alarms, promises = None, why_not(), list[Alarm](), dict[str, str]()
        if reason is None:
            say(f"starting Prometheus with the rules of deploy/prometheus, in which time runs {SPEED} times as fast")
            prometheus = stack.enter_context(running_prometheus(args.out / "prometheus", {"demo": url}))
        _replay(target, callers, 0.0 if prometheus is None else _SECONDS)
        _await_points(target, callers)
        evidence = _evidence(url)
        if prometheus is not None:
            time.sleep(_LAST_LOOK)
            alarms, promises = prometheus.alarms(), prometheus.promises()
    print()
    print_table(
        [(caller.kind, len(caller.answers), *caller.shares()) for caller in callers],
        ("traffic", "rows", "accepted", "outliers", "low confidence", "accuracy of all", "of accepted"),
    )
    if reason is None:
        _print_alarms(callers, alarms, promises)
    else:
        _print_evidence(callers, evidence, reason)
    print(
        "\nNot every drift shows in outliers: of sideways digits the networks are as sure as of upright ones, so the "
        "gate lets\nthem pass. PSI on p-values sees that something moved; that answers are wrong, only outcomes show."
    )
    say(f"wrote {bundle}, {args.out / 'map.png'}, and every point to {args.out / 'data' / 'darksight.db'}")
    say(f"go on: darksight serve --data-dir {args.out / 'data'}, and look at the map on http://127.0.0.1:8082")
    return 0


def _prepare(args: argparse.Namespace) -> tuple[Path, NDArray[np.int64]]:
    """Train, fit, draw and calibrate; the bundle with its gate, and the rows that nothing has seen."""
    from darksight_core.bundle import read_bundle, write_bundle
    from darksight_core.fit import FitConfig
    from darksight_core.fit.context import FitContext
    from darksight_core.fit.pipeline import fit_bundle
    from darksight_core.gate.certify import Rules, ScoredRows, certify
    from darksight_core.predictions import from_arrays
    from darksight_core.predictions.split import make_split
    from darksight_core.runtime.scorer import Scorer
    from darksight_service.cli.fit import picture, summary

    say("training five small networks on digits; each predicts the images it has not seen")
    probs, labels, _ = digits_predictions()
    np.savez(args.out / "predictions.npz", probs=probs, labels=labels)
    predictions = from_arrays(probs, labels=labels, source=str(args.out / "predictions.npz"))
    fitted, gated = args.out / "fitted.safetensors", args.out / "digits.safetensors"
    config = FitConfig(seed=args.seed)
    with Bars() as bars:
        report = fit_bundle(
            predictions,
            fitted,
            config=config,
            shares=_SHARES,
            overwrite=True,
            context=FitContext.alone(len(predictions), bars),
        )
    print_table(*summary(report))
    picture(report, args.out / "map.png")

    say(f"calibrating a gate: at most {_ALPHA:.0%} false outliers, {_COVERAGE:.0%} of usual traffic accepted")
    bundle, split = read_bundle(fitted), make_split(len(labels), args.seed, _SHARES)
    held_out = from_arrays(probs[split.calibrate], labels=labels[split.calibrate])
    rows = ScoredRows.of(held_out, Scorer.of(bundle).score(held_out.probs))
    found = certify(rows, Rules(alpha=_ALPHA, coverage=_COVERAGE, score="msp"), len(bundle.calibration))
    write_bundle(gated, bundle.with_gate(found.gate, found.certificate), overwrite=True)
    return gated, split.test


def _callers(unseen: NDArray[np.int64]) -> list[_Caller]:
    """One caller for each kind; the clean one sends what nothing has seen."""
    callers = []
    for kind in KINDS:
        probs, labels, _ = digits_predictions(kind)
        if kind == "clean":
            callers.append(_Caller(kind, "digits", probs[unseen], labels[unseen]))
        else:
            callers.append(_Caller(kind, f"digits-{kind}", probs, None if kind == "letters" else labels))
    return callers


@contextlib.contextmanager
def _service(models: Mapping[str, Path], data_dir: Path) -> Iterator[tuple[str, str]]:
    """`darksight serve` as a process of its own; where it listens."""
    shutil.rmtree(data_dir, ignore_errors=True)
    data_dir.mkdir()
    log = data_dir / "serve.log"
    say(f"starting a service with an embedded database; it logs to {log}")
    with log.open("w") as file:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "darksight_service", "serve", "--data-dir", str(data_dir)),
                *("--grpc-port", "0", "--http-port", "0", "--explorer-port", "0"),
                *(f"--model={name}={bundle}" for name, bundle in models.items()),
            ],
            stderr=file,
        )
    try:
        found = None
        while found is None:
            if process.poll() is not None:
                raise RefusedError(f"the service did not start; see {log}")
            time.sleep(0.1)
            text = log.read_text(encoding="utf-8")
            found = re.search(r"gRPC (\S+), metrics and health on (\S+?)(?:, explorer on (\S+))?\n", text)
        if found[3]:
            say(f"while it serves, its maps are on {found[3]}")
        yield found[1], found[2]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def _replay(target: str, callers: list[_Caller], seconds: float) -> None:
    """Send the rows of all callers one by one, spread evenly, and the right classes later, as they become known."""
    from darksight_client import Client

    for kind, what in KINDS.items():
        say(f"{kind:<9} {what}")
    rows = [((i + 0.5) / len(caller.probs), caller, row) for caller in callers for i, row in enumerate(caller.probs)]
    rows.sort(key=lambda entry: entry[0])
    start = time.monotonic()
    with Client(target, timeout_seconds=_PATIENCE) as client:
        for at, caller, row in tqdm(rows, desc=f"{'five callers':<15}", unit=" calls", file=sys.stderr):
            # Short waits are not worth their overhead.
            if (early := start + at * seconds - time.monotonic()) > 0.002:
                time.sleep(early)
            caller.answers.append(client.gate(caller.model, row))
        for caller in callers:
            if caller.labels is not None:
                ids = [answer.prediction_id for answer in caller.answers]
                client.report(caller.model, ids, caller.labels.tolist())


def _await_points(target: str, callers: list[_Caller]) -> None:
    """Wait until every point is in the store, which is about a second behind."""
    from darksight_client import Client

    with Client(target, timeout_seconds=_PATIENCE) as client:
        for caller in callers:
            while sum(1 for _ in client.points(caller.model, page_size=1_000)) < len(caller.answers):
                time.sleep(0.2)


def _evidence(url: str) -> dict[str, float]:
    """ln of the evidence for a changed outlier rate, by model."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as page:
        text = page.read().decode()
    found = re.findall(r'^darksight_drift_evidence\{model="([^"]+)".*\} (\S+)$', text, re.M)
    return {model: float(value) for model, value in found}


def _print_alarms(callers: list[_Caller], alarms: list[Alarm], promises: Mapping[str, str]) -> None:
    """Which alert fired for which traffic, after how many points, and how unlikely that is without drift."""
    print(
        "\nAlerts that Prometheus fired. It read the service and evaluated the rules of deploy/prometheus every second."
        f"\nWindows and waiting times of those on drift were divided by {SPEED}: a second stands for a minute."
        "\nPoints are those it had counted when the alert first fired. DarkSightScoreDrift needs 1,000 points and then"
        "\n5 minutes: the clean replay is too short for it.\n"
    )
    lines: list[tuple[object, ...]] = []
    for caller in callers:
        fired = [alarm for alarm in alarms if alarm.model == caller.model]
        lines += [(caller.kind, alarm.name, alarm.severity, f"{alarm.rows:,}") for alarm in fired]
        if not fired:
            lines.append((caller.kind, "none", "-", f"(of {len(caller.answers):,})"))
    lines += [("service", alarm.name, alarm.severity, "-") for alarm in alarms if not alarm.model]
    width = max(len(str(line[1])) for line in lines)
    aligned = [(kind, str(name).ljust(width), *others) for kind, name, *others in lines]
    print_table(aligned, ("traffic", "alert".ljust(width), "severity", "after points"))
    print("\nHow unlikely each is without drift:")
    for name in dict.fromkeys(alarm.name for alarm in alarms):
        print(f"  {name}: {promises[name]}")


def _print_evidence(callers: list[_Caller], evidence: Mapping[str, float], reason: str) -> None:
    """What the service itself says about each traffic."""
    from darksight_core.drift import ville_threshold
    from darksight_service.metrics.exposition import DRIFT_LEVEL

    limit = ville_threshold(DRIFT_LEVEL)
    print(
        f"\nNo alerts: {reason}.\nInstead, the service's own evidence (darksight_drift_evidence) that the outlier rate "
        f"has left its calibrated value. It is\nan alarm from e^{limit:.1f} on: one false alarm in "
        f"{1 / DRIFT_LEVEL:.0f} services at most, however long they run.\n"
    )
    print_table(
        [
            (caller.kind, f"e^{evidence[caller.model]:.1f}", "yes" if evidence[caller.model] >= limit else "no")
            for caller in callers
        ],
        ("traffic", "evidence", "alarm"),
    )
