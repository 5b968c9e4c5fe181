"""Degenerate rows are named at the fit."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from darksight_core.bundle import read_bundle
from darksight_core.errors import ConfigError
from darksight_core.evaluation.fidelity import Fidelity
from darksight_core.fit.pipeline import fit_bundle
from darksight_core.fit.warnings import RowFacts, fit_warnings
from darksight_core.guarantees.calibration import Calibration
from darksight_core.predictions import from_arrays
from tests.support.builders import make_probs

NAMES = ("cat", "dog", "emu")


def warnings(
    probs: NDArray[np.floating] | None = None,
    scores: NDArray[np.floating] | None = None,
    *,
    total_variation: float = 0.01,
    star_agreement: float = 0.99,
    acc_teacher: float = 1.0,
    has_place: tuple[bool, ...] = (True, True, True),
) -> tuple[str, ...]:
    """Warnings about rows that are sound except for what is given."""
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.ones(3), 300) if probs is None else probs
    served = Fidelity(0.6, 0.5, 0.5, acc_teacher, None, None, total_variation, 0.5, star_agreement)
    calibration = Calibration(rng.normal(size=199) if scores is None else scores)
    facts = RowFacts.of(probs, len(np.unique(probs, axis=0)))
    return fit_warnings(facts, calibration, served, NAMES, np.array(has_place))


def test_sound_rows_have_no_warning() -> None:
    """Nothing is said where nothing is wrong."""
    assert warnings() == ()


HARD = np.eye(3)[np.arange(300) % 3]


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (warnings(HARD), "hard probabilities: 100% of the rows .* p-values cannot tell such rows of one class apart"),
        (warnings(np.tile([0.2, 0.5, 0.3], (300, 1))), "constant rows: all 300 fit rows are equal"),
        (warnings(np.repeat(np.random.default_rng(1).dirichlet(np.ones(3), 30), 10, axis=0)), "only 30 different"),
        (warnings(np.concatenate([np.full((100, 3), 1 / 3), make_probs(200, 3)])), "undecided rows: 33%"),
        (warnings(scores=np.zeros(199)), "tied p-values: 100% .* never get a p-value below 1"),
        (warnings(scores=np.arange(12.0)), r"few calibration rows: with 12 of them no p-value is below 0.077"),
        (warnings(scores=np.empty(0)), "no calibration rows: every p-value is 1"),
        (
            warnings(make_probs(300, 3) * [1, 1, 0]),
            r"1 of 3 classes are predicted for no fit row \(emu\)",
        ),
        (warnings(total_variation=0.2), "poor map: KL_sym 0.6, 0.5 of it from probabilities of zero.* Poor: 20.0%"),
        (warnings(star_agreement=0.67), "poor map: .* another class than the predicted one for 33.0% of the points"),
        (warnings(acc_teacher=0.99, has_place=(True, True, False)), "where it predicts 1 of 3 classes.* for 1.00% of"),
    ],
    ids=["hard", "constant", "duplicated", "undecided", "tied", "few", "none", "absent", "poor", "stars", "no place"],
)
def test_each_case_is_named(found: tuple[str, ...], words: str) -> None:
    """With its size and what it means."""
    assert any(re.search(words, text) for text in found)


def test_a_bundle_keeps_the_warnings_of_its_fit(tmp_path: Path) -> None:
    """As text, and the report has them too; the path may be a text."""
    out = tmp_path / "hard.safetensors"

    report = fit_bundle(from_arrays(np.eye(4)[np.arange(400) % 4]), str(out))

    assert [text.partition(":")[0] for text in report.warnings] == [
        "duplicated rows",
        "hard probabilities",
        "tied p-values",
    ]
    assert read_bundle(out).warnings == report.warnings
    assert report.as_dict()["warnings"] == list(report.warnings)


def test_more_calibration_rows_than_a_bundle_can_hold_are_refused_before_the_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not at its end, where the whole fit would be lost."""
    monkeypatch.setattr("darksight_core.fit.pipeline.MAX_CALIBRATION", 100)
    steps: list[object] = []
    monkeypatch.setattr("darksight_core.fit.pipeline._Fit.map", steps.append)

    with pytest.raises(ConfigError, match="120 calibration rows are more than the 100"):
        fit_bundle(from_arrays(np.eye(4)[np.arange(400) % 4]), tmp_path / "m.safetensors")

    assert not steps


def test_the_map_of_an_undecided_classifier_is_poor(tmp_path: Path) -> None:
    """Total variation alone called it fair, although stars are far from their points and points lie on the border."""
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.full(8, 6.0), 700)

    report = fit_bundle(from_arrays(probs), tmp_path / "undecided.safetensors")

    served = read_bundle(report.bundle).manifest["fidelity"]["served"]
    assert served["total_variation"] < 0.15
    assert served["star_agreement"] < 0.8 or served["on_border"] > 0.02
    assert any(text.startswith("poor map") for text in report.warnings)
