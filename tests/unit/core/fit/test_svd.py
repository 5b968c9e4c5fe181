from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from darksight_core.errors import ConfigError
from darksight_core.fit.map.svd import fit_svd
from darksight_core.map.student import SoftmaxStudent, centred_logits
from darksight_core.rows.simplex import Floats, log_softmax


def make_probs(*, n: int = 300, classes: int = 6, seed: int = 0) -> Floats:
    """Rows of a classifier whose logits form one cluster per class."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=n)
    centres = 3.0 * rng.normal(size=(classes, classes))
    probs: Floats = np.exp(log_softmax(centres[labels] + rng.normal(size=(n, classes))))
    return probs


@pytest.mark.parametrize("classes", [3, 6, 10])
@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_error_is_the_least_that_rank_two_allows(classes: int, temperature: float) -> None:
    """The mean squared error equals that of numpy's full decomposition, and of the student's own logits."""
    probs = make_probs(classes=classes)
    logits = np.log(probs) / temperature
    logits -= logits.mean(axis=1, keepdims=True)
    centred = logits - logits.mean(axis=0)
    left, sizes, right = np.linalg.svd(centred, full_matrices=False)
    best = left[:, :2] * sizes[:2] @ right[:2]

    student, points, (error,) = fit_svd(probs, temperature)

    assert error == pytest.approx(((centred - best) ** 2).mean(), abs=1e-9)
    assert np.allclose(points @ student.weights + student.offset, best + logits.mean(axis=0), atol=1e-9)


def test_points_are_the_papers_orthonormal_columns() -> None:
    """Y = Ṽ: both axes have length one and are at right angles; W has the singular values."""
    student, points, _ = fit_svd(make_probs())

    gram = student.weights @ student.weights.T
    assert np.allclose(points.T @ points, np.eye(2), atol=1e-9)
    assert gram[0, 1] == pytest.approx(0.0, abs=1e-6)
    assert gram[0, 0] > gram[1, 1]


def test_result_does_not_depend_on_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are read in pieces only to save memory."""
    probs = make_probs()
    whole, points, _ = fit_svd(probs)

    monkeypatch.setattr("darksight_core.fit.map.svd._CHUNK_ROWS", 37)
    monkeypatch.setattr("darksight_core.map.student._CHUNK_ROWS", 41)
    pieces, pieces_points, _ = fit_svd(probs)

    assert np.allclose(whole.weights, pieces.weights, atol=1e-9)
    assert np.allclose(points, pieces_points, atol=1e-12)


@pytest.mark.parametrize("temperature", [1.0, 3.0])
@pytest.mark.parametrize("classes", [2, 3, 10])
def test_place_gives_fitted_rows_their_points(temperature: float, classes: int) -> None:
    """The least-squares place of a row is where the fit put it, alone or with the others."""
    probs = make_probs(classes=classes)

    student, points, _ = fit_svd(probs, temperature)

    assert np.allclose(student.place(probs, temperature), points, atol=1e-8)
    assert np.allclose(student.place(probs[7:8], temperature), points[7:8], atol=1e-12)


def test_place_solves_least_squares_for_any_weights() -> None:
    """Weights and offset with a mean, which a softmax does not see, move no point."""
    rng = np.random.default_rng(1)
    probs, weights, offset = make_probs(classes=5), rng.normal(size=(2, 5)), rng.normal(size=5)

    placed = SoftmaxStudent(weights + 3.0, offset - 2.0).place(probs)

    sought = centred_logits(probs, 1.0) - (offset - offset.mean())
    expected = np.linalg.lstsq((weights - weights.mean(axis=1, keepdims=True)).T, sought.T)[0].T
    assert np.allclose(placed, expected, atol=1e-9)


def test_two_classes_lie_on_a_line() -> None:
    """Centred logits of two classes have rank one: the second coordinate is 0 and nothing is lost."""
    probs = make_probs(classes=2)

    student, points, (error,) = fit_svd(probs)

    assert (points[:, 1] == 0.0).all()
    assert (student.weights[1] == 0.0).all()
    assert error == pytest.approx(0.0, abs=1e-9)
    assert np.allclose(np.exp(student.log_posterior(points)), probs, atol=1e-9)


@pytest.mark.parametrize(
    "row", [[0.2, 0.3, 0.5], [1.0, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3]], ids=["plain", "one-hot", "uniform"]
)
@pytest.mark.parametrize("n", [1, 50])
def test_equal_rows_share_the_origin(row: list[float], n: int) -> None:
    """Without any variation there is no axis: every point is 0 and the offset says it all."""
    student, points, (error,) = fit_svd(np.tile(row, (n, 1)))

    assert (points == 0.0).all()
    assert error == pytest.approx(0.0, abs=1e-9)
    assert np.allclose(np.exp(student.log_posterior(points)), row, atol=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_exact_zeros_stay_finite(dtype: type[np.floating]) -> None:
    """One-hot rows stand for the floor, and the student still tells three classes apart."""
    probs: NDArray[np.floating] = np.eye(3, dtype=dtype)[np.arange(90) % 3]

    student, points, _ = fit_svd(probs)

    assert np.isfinite(points).all()
    assert (student.log_posterior(points).argmax(axis=1) == np.arange(90) % 3).all()


@pytest.mark.parametrize("classes", [2, 4, 10])
def test_signs_do_not_depend_on_the_order_of_rows(classes: int) -> None:
    """The largest weight of each axis is positive, so a shuffle of the rows does not mirror the map."""
    probs = make_probs(classes=classes)
    order = np.random.default_rng(0).permutation(len(probs))

    student, points, _ = fit_svd(probs)
    _, shuffled, _ = fit_svd(probs[order])

    largest = student.weights[np.arange(2), np.abs(student.weights).argmax(axis=1)]
    assert (largest >= -1e-9).all()
    assert np.allclose(shuffled, points[order], atol=1e-8)


def test_first_of_two_equal_weights_is_the_positive_one() -> None:
    """With two classes both weights are equally large: rounding must not choose the sign."""
    student, _, _ = fit_svd(make_probs(classes=2, seed=4))

    assert student.weights[0, 0] > 0.0


def test_two_calls_agree_and_leave_the_rows_alone() -> None:
    """There is no randomness, and the input is not written to."""
    probs = make_probs()
    before = probs.copy()

    first, second = fit_svd(probs), fit_svd(probs)

    assert np.array_equal(first[1], second[1])
    assert np.array_equal(first[0].weights, second[0].weights)
    assert np.array_equal(probs, before)


def test_softmax_student_owns_arrays_that_cannot_change() -> None:
    """Later changes to the caller's arrays do not reach the student, and its own refuse writing."""
    weights = np.ones((2, 3))
    student = SoftmaxStudent(weights, np.zeros(3))

    weights[:] = 7.0

    assert (student.weights == 1.0).all()
    assert student.n_classes == 3
    with pytest.raises(ValueError, match="read-only"):
        student.weights[0, 0] = 2.0
    with pytest.raises(ValueError, match="read-only"):
        student.offset[0] = 2.0


@pytest.mark.parametrize(
    ("weights", "offset", "message"),
    [
        (np.zeros(3), np.zeros(3), r"weights must have shape \(2, K\) with K >= 2, not \(3,\)"),
        (np.zeros((3, 3)), np.zeros(3), r"weights must have shape \(2, K\) with K >= 2, not \(3, 3\)"),
        (np.zeros((2, 1)), np.zeros(1), r"weights must have shape \(2, K\) with K >= 2, not \(2, 1\)"),
        (np.zeros((2, 3)), np.zeros(2), r"offset must have shape \(3,\), not \(2,\)"),
        (np.full((2, 3), np.nan), np.zeros(3), "weights and offset must be finite"),
        (np.zeros((2, 3)), np.array([0.0, np.inf, 0.0]), "weights and offset must be finite"),
    ],
    ids=["flat", "three-rows", "one-class", "short-offset", "nan", "infinite"],
)
def test_softmax_student_refuses_what_cannot_work(weights: Floats, offset: Floats, message: str) -> None:
    """Each defect is named."""
    with pytest.raises(ConfigError, match=message):
        SoftmaxStudent(weights, offset)
