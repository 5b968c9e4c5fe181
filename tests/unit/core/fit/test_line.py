"""The map of two classes is a line whose first coordinate rises with the log-odds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from darksight_core.bundle import read_bundle
from darksight_core.fit.config import FitConfig, Method
from darksight_core.fit.map.fitting import fit_map, place_rows
from darksight_core.fit.map.line import line_end, line_student, place_on_line
from darksight_core.fit.network.config import DistilConfig
from darksight_core.fit.pipeline import fit_bundle
from darksight_core.fit.probes import place_served
from darksight_core.map.student import Student
from darksight_core.predictions import from_arrays
from darksight_core.rows.simplex import Floats, kl_sym, log_probs, log_softmax
from darksight_core.runtime.compilation import KERNEL
from darksight_core.runtime.scorer import Scorer
from tests.support.builders import make_probs

QUICK = DistilConfig(epochs=1, tune_epochs=1, joint_epochs=1, device="cpu")


def sweep() -> Floats:
    """Log-odds from certain to certain, close together near even odds."""
    parts = np.linspace(-70.0, 70.0, 1_401), np.linspace(-17.0, 17.0, 6_001), np.linspace(-4e-4, 4e-4, 401)
    return np.unique(np.concatenate(parts).round(9))


def rows_of(log_odds: Floats) -> Floats:
    """Rows of two classes with these log-odds of the second."""
    return np.exp(log_softmax(np.column_stack([np.zeros_like(log_odds), log_odds])))


@pytest.mark.parametrize("dof", [1.0, 2.0, 5.0])
def test_each_row_has_its_own_point(dof: float) -> None:
    """The student has the row's log-odds at its point, up to 16; beyond, the point is at the end of the line."""
    student, log_odds = line_student(dof), sweep()

    points = place_on_line(student, log_odds)

    log_q = student.log_posterior(points)
    np.testing.assert_allclose(log_q[:, 1] - log_q[:, 0], np.clip(log_odds, -16.0, 16.0), atol=1e-6)
    assert (np.diff(points[:, 0]) >= 0.0).all()
    assert (np.diff(points[np.abs(log_odds) < 16.0, 0]) > 0.0).all()
    assert points[0, 0] == pytest.approx(-line_end(student))
    assert not points[:, 1].any()


@pytest.mark.parametrize("method", ["fast", "paper"])
def test_every_method_gives_the_line(method: Method) -> None:
    """Two classes leave nothing to fit: centres are on the first axis, and rows are reproduced."""
    probs = make_probs(300, 2)
    config = FitConfig(method=method, epochs=2, device="cpu")

    fitted = fit_map(probs, config)

    assert isinstance(fitted.student, Student)
    assert not fitted.student.means[:, 1].any()
    assert kl_sym(log_probs(probs), fitted.student.log_posterior(fitted.points)).max() < 1e-9
    np.testing.assert_array_equal(place_rows(probs, fitted, config), fitted.points)


@pytest.mark.parametrize("columns", [None, (2, 0)], ids=["two classes", "two of three"])
def test_served_points_rise_with_the_log_odds(tmp_path: Path, columns: tuple[int, int] | None) -> None:
    """Numpy, torch and compiled code place rows of a fitted bundle on the line, in the order of their log-odds."""
    classes, log_odds = 2 if columns is None else 3, sweep()
    path = tmp_path / "two.safetensors"
    fit_bundle(from_arrays(make_probs(300, classes)), path, distil_config=QUICK, columns=columns)
    bundle = read_bundle(path)
    rows = np.zeros((len(log_odds), classes))
    rows[:, list(columns or (0, 1))] = rows_of(log_odds)

    engines = [
        Scorer.of(bundle, compiled=False).score(rows, resolution="full").points,
        place_served(bundle.embedder, log_probs(rows)),
    ]
    if KERNEL.is_available:
        engines.append(Scorer.of(bundle, compiled=True).score(rows, resolution="full").points)

    # Rows within the margin of even odds are placed where their class is preferred by it, which ends in a bisection.
    for points in engines:
        assert not points[:, 1].any()
        assert np.diff(points[:, 0]).min() > -1e-6
        np.testing.assert_allclose(points, engines[0], atol=1e-6)
    solved = place_on_line(bundle.embedder.student, log_odds)
    usual = (np.abs(log_odds) > 1e-3) & (np.abs(log_odds) < 6.0)
    np.testing.assert_allclose(engines[0][usual], solved[usual], atol=1e-4)
    np.testing.assert_allclose(engines[0], solved, atol=0.01 * line_end(bundle.embedder.student))


def test_f_p_stays_on_the_line(tmp_path: Path) -> None:
    """Training never moves the second coordinate of f_p."""
    fit_bundle(from_arrays(make_probs(300, 2)), tmp_path / "two.safetensors", distil_config=QUICK)
    network = read_bundle(tmp_path / "two.safetensors").embedder.network

    assert not network(rows_of(np.linspace(-9.0, 9.0, 99)))[:, 1].any()
