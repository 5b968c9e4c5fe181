"""What a report of drift takes as usual."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from darksight_core.bundle import Bundle, Reference
from darksight_core.evaluation.drift import DriftReport, report_drift
from darksight_core.runtime.scorer import Scorer
from tests.support.bundles import make_bundle

CLASSES = 12


def draw(rows: int, seed: int) -> NDArray[np.float32]:
    """Rows of an unsure classifier: the class of the largest mean is predicted far more often than it is probable."""
    weights = np.random.default_rng(seed).gamma(4.0, size=(rows, CLASSES)) * np.linspace(1.0, 2.0, CLASSES)
    return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    """A bundle without labels whose reference keeps ten of twelve probabilities."""
    known = draw(4_000, 1)
    return replace(
        make_bundle(400, CLASSES, labelled=False),
        reference=Reference.of(np.zeros((4_000, 2)), known),
    )


def report(bundle: Bundle) -> DriftReport:
    """Of rows like the reference rows."""
    probs = draw(1_000, 2)
    return report_drift(bundle, probs, Scorer.of(bundle).score(probs))


def test_without_labels_class_shares_start_from_the_mean_probabilities(bundle: Bundle) -> None:
    """Rows like the reference rows have the same shares, though predicted classes have quite other ones."""
    shares = report(bundle).class_shares

    assert shares is not None
    assert shares.method == "mlls"
    assert shares.reference == pytest.approx(draw(4_000, 1).mean(axis=0), abs=0.003)
    assert not shares.is_changed.any()


def test_the_usual_confidence_is_that_of_the_calibration_rows(bundle: Bundle) -> None:
    """Reference points keep their probabilities in half precision, which is too coarse near one."""
    top = bundle.calibration.top
    found = re.search(r"largest probability is [\d.]+, ([\d.]+) in calibration", report(bundle).verdict.reason)

    assert top is not None
    assert found is not None
    assert float(found[1]) == pytest.approx(float(top.mean()), abs=1e-3)
