"""Twelve shifts, planted in the traffic of classifiers of four kinds, with the verdicts that are right for each.

Inputs are Gaussian clusters in eight dimensions, one for each class, and the classifier is the exact posterior of them.
Where a feature is raised, classes are ranges of one feature instead. An over-confident classifier multiplies its logits
by 3, an under-confident one by 0.4.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from darksight_core.drift.detector import RowBatch
from darksight_core.drift.stream import DriftTest
from darksight_core.drift.verdict import Verdict, Window, classify
from darksight_core.guarantees.calibration import Calibration
from darksight_core.rows.simplex import Floats, log_probs, log_softmax
from darksight_core.scores.outlier import OutlierScore

__all__ = ["CLASSIFIERS", "SHIFTS", "Traffic", "verdict_of"]

CLASSES, DIMENSIONS, SPREAD = 8, 8, 2.1
# Centres of classes that are ranges of one feature.
ORDER = 4.0 * np.array([-1.53, -0.89, -0.49, -0.16, 0.16, 0.49, 0.89, 1.53])

CLASSIFIERS = {"calibrated": 1.0, "over-confident": 3.0, "under-confident": 0.4, "unbalanced": 1.0}
"""Factor of the logits."""

SHIFTS: dict[str, tuple[str, ...]] = {
    "one class at half of the rows": ("class_mix",),
    "the first class gone": ("class_mix",),
    "shares in reverse": ("class_mix",),
    "a feature raised": ("class_mix", "mixed"),
    "a quarter foreign": ("new_content",),
    "all foreign": ("new_content",),
    "a new class": ("new_content",),
    "contrast lost": ("less_sure",),
    "softer logits": ("less_sure",),
    "contrast raised": ("surer",),
    "one class at half, contrast lost": ("mixed",),
    "one class at half, a quarter foreign": ("mixed",),
}
"""Verdicts that are right for each shift."""


@dataclass(frozen=True, slots=True, eq=False)
class Traffic:
    """Inputs of classes and the classifier of them."""

    rng: np.random.Generator
    centres: Floats
    shares: Floats
    factor: float
    is_ordered: bool

    @classmethod
    def of(cls, classifier: str, seed: int, *, is_ordered: bool = False) -> Traffic:
        """The traffic of a kind of classifier."""
        rng = np.random.default_rng(seed)
        centres = np.linalg.qr(rng.normal(size=(DIMENSIONS, DIMENSIONS)))[0][:CLASSES] * SPREAD * np.sqrt(2.0)
        if is_ordered:
            centres = np.outer(ORDER, np.eye(DIMENSIONS)[0])
        weights = 0.7 ** np.arange(CLASSES) if classifier == "unbalanced" else np.ones(CLASSES)
        return cls(rng, centres, weights / weights.sum(), CLASSIFIERS[classifier], is_ordered)

    def inputs(self, rows: int, shares: Floats | None = None) -> Floats:
        """Inputs (n, d) of classes with these shares."""
        if self.is_ordered:
            return np.outer(self.rng.normal(0.0, 4.0, rows), np.eye(DIMENSIONS)[0])
        labels = self.rng.choice(CLASSES, rows, p=self.shares if shares is None else shares)
        return self.centres[labels] + self.rng.normal(size=(rows, DIMENSIONS))

    def probs(self, inputs: Floats, factor: float = 1.0) -> Floats:
        """Predictions (n, K)."""
        logits = inputs @ self.centres.T - 0.5 * np.square(self.centres).sum(axis=1) + np.log(self.shares)
        return np.exp(log_softmax(self.factor * factor * logits))

    def half(self) -> Floats:
        """Shares with half of the rows in the fourth class."""
        shares = self.shares.copy()
        shares[3] = 0.0
        shares *= 0.5 / shares.sum()
        shares[3] = 0.5
        return shares

    def foreign(self, rows: int) -> Floats:
        """Inputs halfway between two classes, or near the middle of all."""
        first, second = self.rng.integers(0, CLASSES, (2, rows))
        between = 0.5 * (self.centres[first] + self.centres[second])
        middle = self.centres.mean(axis=0)
        return np.where(self.rng.random(rows)[:, None] < 0.5, between, middle) + 0.5 * self.rng.normal(
            size=(rows, DIMENSIONS)
        )

    def shifted(self, shift: str, rows: int) -> Floats:
        """Predictions after a shift."""
        gone = self.shares * (np.arange(CLASSES) > 0)
        if shift == "softer logits":
            return self.probs(self.inputs(rows), 0.6)
        mix = {"the first class gone": gone / gone.sum(), "shares in reverse": self.reversed()}
        inputs = self.inputs(rows, self.half() if shift.startswith("one class") else mix.get(shift))
        if shift == "a feature raised":
            inputs[:, 0] += 4.0
        if shift.endswith("contrast lost"):
            inputs = 0.7 * inputs
        if shift == "contrast raised":
            inputs = 1.4 * inputs
        share = {"all foreign": 1.0, "a new class": 0.3}.get(shift, 0.25 * shift.endswith("a quarter foreign"))
        is_foreign = self.rng.random(rows) < share
        foreign = self.foreign(rows)
        if shift == "a new class":
            foreign = self.centres.mean(axis=0) + self.rng.normal(size=(rows, DIMENSIONS))
        return self.probs(np.where(is_foreign[:, None], foreign, inputs))

    def reversed(self) -> Floats:
        """Shares in reverse order; of even ones, each half of the one before."""
        if np.ptp(self.shares) > 0.0:
            return self.shares[::-1]
        weights = 0.6 ** np.arange(CLASSES)
        return weights / weights.sum()


def verdict_of(classifier: str, shift: str, seed: int, rows: int = 600) -> Verdict:
    """The verdict about traffic that is quiet for 200 rows and then shifted; "none" is no shift."""
    traffic = Traffic.of(classifier, seed, is_ordered=shift == "a feature raised")
    known, held = (log_probs(traffic.probs(traffic.inputs(size))) for size in (3_000, 1_999))
    score = OutlierScore.fit(known)
    top = np.exp(held).max(axis=1)
    calibration = Calibration(score.score(held), held.argmax(axis=1).astype(np.int16), top.astype(np.float32))
    counts = np.bincount(known.argmax(axis=1), minlength=CLASSES)
    after = traffic.probs(traffic.inputs(rows)) if shift == "none" else traffic.shifted(shift, rows)
    probs = log_probs(np.concatenate([traffic.probs(traffic.inputs(200)), after]).astype(np.float32))
    scores, classes, top = score.score(probs), probs.argmax(axis=1), np.exp(probs).max(axis=1)

    test = DriftTest(calibration, counts)
    state = test.update(test.start(), RowBatch(scores, top, classes, traffic.rng.random((len(probs), 3))))
    alarms = {kind for kind, each in state.kinds.items() if each.alarm_row is not None}
    since = slice(200, None)
    window = Window(calibration.p_value(scores[since]), scores[since], classes[since], top[since])
    return classify(window, calibration, counts, alarms=alarms)
