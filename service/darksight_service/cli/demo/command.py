"""`darksight demo`: the whole system on the handwritten digits that scikit-learn ships.

Trains a small classifier, fits the map of its predictions and calibrates a gate. Then starts a real service, to which
six callers send traffic as in production: one sends what the classifier was trained for, the others do not. Each caller
uses a model of its own, so that each has its own drift evidence.
"""

from __future__ import annotations

import math
import re
import signal
import sys
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from darksight_client import Gated, Reason
from numpy.typing import NDArray
from tqdm import tqdm

from darksight_core.bundle import read_bundle, write_bundle
from darksight_core.drift.stream import DriftTest
from darksight_core.evaluation.drift import baseline_of, report_drift
from darksight_core.fit.config import FitConfig
from darksight_core.gate.certify import Targets, certify
from darksight_core.gate.scored_predictions import ScoredPredictions
from darksight_core.predictions import from_arrays
from darksight_core.predictions.split import make_split
from darksight_core.runtime.scorer import Scorer
from darksight_service.cli.console import Bars, print_table, require, say
from darksight_service.cli.demo.digits import KINDS, digits_predictions
from darksight_service.cli.demo.serving import (
    DemoService,
    command_line,
    compiling,
    run_service,
    send_traffic,
)
from darksight_service.cli.fit import draw_report, fit_table

__all__ = ["demo"]

_ALPHA = 0.01
_COVERAGE = 0.95
# A large share stays unseen, so that the clean traffic is long enough to show no alarm.
_SHARES = (0.4, 0.3, 0.3)
_THREES = "threes"
# Kinds of the traffic after the end, clean most of the time.
_TRICKLE = ("clean", "noisy", "rotated", "letters")
_KINDS = {**KINDS, _THREES: "clean digits, but a three is half of the traffic instead of a tenth"}


@dataclass(slots=True)
class _Caller:
    """Traffic of one kind and its answers; letters have no labels."""

    kind: str
    model: str
    probs: NDArray[np.float32]
    labels: NDArray[np.int64] | None
    answers: list[Gated] = field(default_factory=list)

    def shares(self) -> list[str]:
        """Shares of accepted rows, outliers and low confidence, and accuracy of all and of accepted rows, as text."""
        accepted = np.array([answer.accepted for answer in self.answers])
        reasons = np.array([answer.reason for answer in self.answers])
        shares = [accepted.mean(), (reasons == Reason.OUTLIER).mean(), (reasons == Reason.LOW_CONFIDENCE).mean()]
        if self.labels is not None:
            right = self.probs.argmax(axis=1) == self.labels
            shares += [right.mean(), right[accepted].mean() if accepted.any() else math.nan]
        return [*(f"{100 * share:.1f}%" for share in shares), *["-"] * (5 - len(shares))]


def demo(*, out: Path = Path("darksight-demo"), seed: int = 0, no_serve: bool = False) -> None:
    """Fit, serve and monitor a small digit classifier.

    Trains a classifier on scikit-learn's digits, fits and draws the map of its predictions, calibrates a gate, starts a
    service, and sends it clean, noisy, rotated, new-class and unbalanced traffic. Shows the drift evidence of the
    service, what kind of drift it was and what it cost in accuracy. The service then keeps running with a little
    traffic that drifts now and then, until an interrupt (Ctrl-C). All of it before that takes about a minute.

    Parameters
    ----------
    out
        Directory for the files of the demo.
    seed
        Seed of the fit.
    no_serve
        Stop the service at the end, for scripts.
    """
    # A script that runs the demo in the background can end it, and its service, by either signal.
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.default_int_handler)
    require("torch", "fit")
    require("matplotlib", "report")
    out.mkdir(parents=True, exist_ok=True)
    with compiling():
        bundle, unseen = _prepare(out, seed)
    callers = _callers(unseen)
    data_dir = out / "data"
    with run_service({caller.model: bundle for caller in callers}, data_dir) as service:
        if service.explorer:
            say(f"while the demo runs, its maps are on {service.explorer}")
        _monitor(service, callers, bundle)
        say(f"wrote {bundle}, {out / 'map.png'}, and every point to {data_dir / 'darksight.db'}")
        if not no_serve:
            _keep_serving(service, callers)
    say(f"to look at the maps again, run: {command_line('serve', '--data-dir', str(data_dir))}")
    say(f"to fit your own predictions, run: {command_line('fit', '--help')}")


def _keep_serving(service: DemoService, callers: list[_Caller]) -> None:
    """Serve the maps with a little traffic until an interrupt."""
    say("the service keeps running, with two rows of traffic per second; press Ctrl-C to stop it")
    if service.explorer:
        say(f"open {service.explorer} to see the map")
    traffic = {caller.kind: caller.probs for caller in callers if caller.kind in _TRICKLE}
    send_traffic(service, callers[0].model, traffic)


def _monitor(service: DemoService, callers: list[_Caller], bundle: Path) -> None:
    """Send all traffic, and print what was found."""
    _replay(service, callers)
    evidence = _read_evidence(service.url)
    print()
    print_table(
        [(caller.kind, len(caller.answers), *caller.shares()) for caller in callers],
        ("traffic", "rows", "accepted", "outliers", "low confidence", "accuracy of all", "of accepted"),
    )
    _print_evidence(callers, evidence, DriftTest.of(baseline_of(read_bundle(bundle))).threshold)
    _print_drift(callers, bundle)
    print(
        "\nA wrong prediction need not be unusual. The networks are confident about most sideways digits, so the gate"
        "\naccepts them, although few are right. Drift alarms show that the traffic changed; only reported outcomes"
        "\nshow that predictions are wrong.",
        flush=True,
    )


def _prepare(out: Path, seed: int) -> tuple[Path, NDArray[np.int64]]:
    """Train, fit, draw and calibrate; returns the bundle and the numbers of the rows that are still unseen."""
    from darksight_core.fit.context import FitContext
    from darksight_core.fit.pipeline import fit_bundle

    say("training five small networks on digits; each predicts the images that it was not trained on")
    probs, labels, _ = digits_predictions()
    np.savez(out / "predictions.npz", probs=probs, labels=labels)
    predictions = from_arrays(probs, labels=labels, source=str(out / "predictions.npz"))
    fitted, gated = out / "fitted.safetensors", out / "digits.safetensors"
    with Bars() as bars:
        report = fit_bundle(
            predictions,
            fitted,
            config=FitConfig(seed=seed),
            shares=_SHARES,
            overwrite=True,
            context=FitContext.alone(len(predictions), bars),
        )
    print_table(*fit_table(report))
    draw_report(report, out / "map.png")

    say(f"calibrating a gate: at most {_ALPHA:.0%} false outliers, {_COVERAGE:.0%} of usual traffic accepted")
    bundle, split = read_bundle(fitted), make_split(len(labels), seed, _SHARES)
    held_out = from_arrays(probs[split.calibrate], labels=labels[split.calibrate])
    rows = ScoredPredictions.of(held_out, Scorer.of(bundle).score(held_out.probs))
    found = certify(rows, Targets(alpha=_ALPHA, coverage=_COVERAGE, score="msp"), len(bundle.calibration))
    write_bundle(gated, bundle.with_gate(found.gate, found.certificate), overwrite=True)
    return gated, split.test


def _callers(unseen: NDArray[np.int64]) -> list[_Caller]:
    """One caller for each kind of traffic; the clean one sends only unseen rows."""
    callers = []
    for kind in KINDS:
        probs, labels, _ = digits_predictions(kind)
        if kind == "clean":
            callers.append(_Caller(kind, "digits", probs[unseen], labels[unseen]))
        else:
            callers.append(_Caller(kind, f"digits-{kind}", probs, None if kind == "letters" else labels))
    clean, truth = callers[0].probs, callers[0].labels
    assert truth is not None
    rng = np.random.default_rng(0)
    threes, others = np.flatnonzero(truth == 3), np.flatnonzero(truth != 3)
    mixed = rng.permutation(np.concatenate([rng.choice(threes, len(others)), others]))
    callers.append(_Caller(_THREES, f"digits-{_THREES}", clean[mixed], truth[mixed]))
    return callers


def _replay(service: DemoService, callers: list[_Caller]) -> None:
    """Send the rows of all callers in turn; then report the labels and wait for the store."""
    for kind, description in _KINDS.items():
        say(f"{kind:<9} {description}")
    rows = [((i + 0.5) / len(caller.probs), caller, row) for caller in callers for i, row in enumerate(caller.probs)]
    rows.sort(key=lambda entry: entry[0])
    with service.client() as client:
        for _, caller, row in tqdm(rows, desc=f"{'six callers':<15}", unit=" calls", file=sys.stderr):
            caller.answers.append(client.gate(caller.model, row))
        for caller in callers:
            if caller.labels is not None:
                ids = [answer.prediction_id for answer in caller.answers]
                client.report(caller.model, ids, caller.labels.tolist())
        # The database is about a second behind.
        for caller in callers:
            while sum(1 for _ in client.points(caller.model, page_size=1_000)) < len(caller.answers):
                time.sleep(0.2)


def _read_evidence(url: str) -> dict[str, float]:
    """Largest log evidence of drift, by model."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as page:
        text = page.read().decode()
    found = re.findall(r'^darksight_drift_log_evidence\{.*model="([^"]+)".*\} (\S+)$', text, re.M)
    return {model: max(float(value) for name, value in found if name == model) for model, _ in found}


def _print_drift(callers: list[_Caller], bundle: Path) -> None:
    """When the evidence found the drift of each traffic, its kind, and the accuracy without labels."""
    loaded = read_bundle(bundle)
    scorer, lines = Scorer.of(loaded), []
    for caller in callers:
        report = report_drift(loaded, caller.probs, scorer.score(caller.probs))
        row, accuracy = report.alarm_row, report.accuracy
        estimate = "withheld" if accuracy.value is None else f"{100 * accuracy.value:.1f}%"
        lines.append((caller.kind, "-" if row is None else f"{row:,}", report.verdict.kind, estimate))
    print(
        "\nWhat `darksight drift` says about the same rows in order: the row at which the evidence was enough (false"
        "\nalarms: 1 in 100, for ever), the kind of drift, and the accuracy without labels, unless it is withheld.\n"
    )
    print_table(lines, ("traffic", "drift at row", "kind", "estimated accuracy"))


def _print_evidence(callers: list[_Caller], evidence: Mapping[str, float], limit: float) -> None:
    """The drift evidence of the service for each traffic."""
    print(
        "\nThe evidence of the service (darksight_drift_log_evidence) that the traffic has changed, on which the alert"
        "\nDarkSightDrift of deploy/prometheus fires."
        f" It is an alarm from e^{limit:.1f} on: at most 1 of 100 services has a false alarm, however long it runs.\n"
    )
    print_table(
        [
            (caller.kind, f"e^{evidence[caller.model]:.1f}", "yes" if evidence[caller.model] >= limit else "no")
            for caller in callers
        ],
        ("traffic", "evidence", "alarm"),
    )
