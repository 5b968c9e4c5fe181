from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from darksight_core.errors import ConfigError, DarkSightError
from darksight_core.guarantees.calibration import Calibration
from darksight_core.map.density import Kde
from darksight_core.map.placement import Embedder
from darksight_core.rows.schema import SCHEMA, ScoredBatch
from darksight_core.rows.simplex import Floats, kl_sym, log_probs
from darksight_core.runtime import scorer as scorer_module
from darksight_core.runtime.arrays import model_of
from darksight_core.runtime.compilation import KERNEL, Kernel
from darksight_core.runtime.scorer import Scorer, ShapeError
from darksight_core.scores.outlier import OutlierScore
from tests.support.bundles import make_bundle
from tests.support.maps import (
    extreme_probs,
    map_probs,
    random_calibration,
    random_embedder,
    random_kde,
    random_outlier_score,
)

CLASSES = [2, 3, 10, 40, 100, 1000]
COLUMNS = [column.name for column in SCHEMA]
ENGINES = [False, pytest.param(True, marks=pytest.mark.skipif(not KERNEL.is_available, reason="needs numba"))]
engines = pytest.mark.parametrize("compiled", ENGINES, ids=["numpy", "compiled"])
needs_numba = pytest.mark.skipif(not KERNEL.is_available, reason="needs numba")


@cache
def make_scorer(classes: int = 10, *, compiled: bool | None = None, embedder: Embedder | None = None) -> Scorer:
    """A scorer of random parts; made once, because it never changes."""
    embedder = random_embedder(classes) if embedder is None else embedder
    outlier_score = random_outlier_score(embedder.n_inputs)
    return Scorer(embedder, random_kde(embedder), outlier_score, random_calibration(), compiled=compiled)


def make_rows(scorer: Scorer, n: int = 60) -> Floats:
    """Usual and extreme rows."""
    embedder = scorer.embedder
    rows = extreme_probs(scorer.n_inputs)[-10:]
    return np.concatenate([map_probs(embedder, n if scorer.n_inputs <= 100 else 12), rows])


def assert_same(actual: ScoredBatch, expected: ScoredBatch, tolerance: float = 1e-6) -> None:
    """All columns are equal to a tolerance, NaN to NaN."""
    for name in COLUMNS:
        np.testing.assert_allclose(getattr(actual, name), getattr(expected, name), atol=tolerance, err_msg=name)


@engines
@pytest.mark.parametrize("classes", CLASSES)
def test_columns_are_what_the_parts_say(classes: int, compiled: bool) -> None:
    """Densities, divergence and rank are those of the returned points, and finite for extreme rows."""
    scorer = make_scorer(classes, compiled=compiled)
    probs = make_rows(scorer)

    scores = scorer.score(probs)

    student = scorer.embedder.student
    assert scores.valid.all()
    assert len(scores) == len(probs)
    np.testing.assert_allclose(scores.points, scorer.embedder.embed(log_probs(probs))[0], atol=1e-6)
    np.testing.assert_allclose(scores.log_density, student.log_density(scores.points), atol=1e-9)
    np.testing.assert_allclose(scores.log_kde, scorer.kde.log_density(scores.points), atol=1e-6, rtol=1e-9)
    np.testing.assert_allclose(
        scores.fidelity, kl_sym(log_probs(probs), student.log_posterior(scores.points)), atol=1e-9
    )
    np.testing.assert_allclose(scores.outlier_score, scorer.outlier_score.score(log_probs(probs)), atol=1e-6)
    np.testing.assert_array_equal(scores.p_value, scorer.calibration.p_value(scores.outlier_score))


@engines
@pytest.mark.parametrize("classes", CLASSES)
def test_batch_equals_its_rows_and_follows_a_permutation(classes: int, compiled: bool) -> None:
    """A row's scores depend on no other row, in a batch of any size."""
    scorer = make_scorer(classes, compiled=compiled)
    probs = make_rows(scorer, 30)
    order = np.random.default_rng(3).permutation(len(probs))

    together = scorer.score(probs)

    assert_same(ScoredBatch.join([scorer.score(row[None]) for row in probs]), together)
    assert_same(
        ScoredBatch.join([scorer.score(probs[:7]), scorer.score(probs[7:25]), scorer.score(probs[25:])]), together
    )
    assert_same(scorer.score(probs[order]), together.take(order))


@needs_numba
@pytest.mark.parametrize("dof", [1.0, 2.0])
def test_compiled_equals_numpy_with_every_option(dof: float) -> None:
    """Chosen columns, temperature and degrees of freedom mean the same to the compiled kernel."""
    embedder = random_embedder(4, dof=dof, temperature=1.7, columns=(5, 0, 3, 1), n_inputs=6, refine_steps=4)
    probs = map_probs(random_embedder(6), 40)
    compiled, plain = (make_scorer(embedder=embedder, compiled=c) for c in (True, False))

    expected = plain.score(probs)

    assert compiled.kernel is not None
    assert plain.kernel is None
    assert_same(compiled.score(probs), expected)
    assert_same(ScoredBatch.join([compiled.score(row[None]) for row in probs]), expected)


@needs_numba
def test_compiled_density_equals_numpy_everywhere() -> None:
    """The kernel reads the density as `Kde` does, inside and outside of its grid."""
    import numba

    from darksight_core.runtime.compiled.densities import log_kde

    rng = np.random.default_rng(4)
    kde = Kde.fit(np.concatenate([rng.normal(size=(3000, 2)), rng.normal(size=(50, 2)) * 0.1 + 8.0]))
    points = np.concatenate([rng.normal(size=(300, 2)) * scale for scale in (1.0, 5.0, 40.0, 1e4)])
    density = model_of(random_embedder(3), kde, random_outlier_score(3), np.empty(0)).density

    call = numba.njit(lambda x, y, density: log_kde(x, y, density))
    found = [call(x, y, density) for x, y in points]

    np.testing.assert_allclose(found, kde.log_density(points), rtol=1e-9, atol=1e-6)


def test_p_value_is_the_rank_among_calibration_scores() -> None:
    """The p-value counts the calibration scores that are not above, itself among them."""
    scores = np.array([0.5, -1.0, 0.5, 3.0])
    calibration = Calibration(scores)
    asked = np.array([-2.0, -1.0, 0.0, 0.5, 9.0])

    found = calibration.p_value(asked)

    expected = [(1 + sum(bool(score <= value) for score in scores)) / (len(scores) + 1) for value in asked]
    np.testing.assert_array_equal(found, expected)


def test_calibration_comes_back_from_its_tensors() -> None:
    """Scores are sorted, and the arrays make the same calibration."""
    scores = np.random.default_rng(0).normal(size=20)

    copy = Calibration.from_tensors(Calibration(scores).tensors())

    np.testing.assert_array_equal(copy.scores, np.sort(scores))
    with pytest.raises(ConfigError, match="scores"):
        Calibration.from_tensors({})


@pytest.mark.parametrize("scores", [np.array([1.0, np.nan]), np.zeros((2, 2))], ids=["not finite", "shape"])
def test_calibration_that_cannot_work_is_refused(scores: Floats) -> None:
    """Every row has one finite score."""
    with pytest.raises(ConfigError):
        Calibration(scores)


@engines
@pytest.mark.parametrize("filler", [0, 20], ids=["few rows", "many rows"])
def test_bad_row_is_a_result_of_its_own(compiled: bool, filler: int) -> None:
    """A bad row is NaN throughout and no other row notices."""
    scorer = make_scorer(3, compiled=compiled)
    good = np.array([[0.7, 0.2, 0.1], [0.7, 0.2, 0.1005], [1.0, 5e-7, -5e-7]] + [[0.5, 0.3, 0.2]] * filler)
    bad = np.array(
        [
            [np.nan, 0.5, 0.5],
            [np.inf, 0.0, 0.0],
            [np.inf, -np.inf, 1.0],
            [1.1, -0.1, 0.0],
            [0.5, 0.3, 0.1],
            [0.5, 0.5, 0.01],
            [1e308, 1e308, 1e308],
            [0.0, 0.0, 0.0],
        ]
    )

    scores = scorer.score(np.concatenate([bad, good]))

    assert scores.valid.tolist() == [False] * len(bad) + [True] * len(good)
    floats = [column.name for column in SCHEMA if column.dtype == "<f8" and np.isnan(column.missing)]
    assert all(np.isnan(getattr(scores, name)[: len(bad)]).all() for name in floats)
    assert (scores.predicted[: len(bad)] == -1).all()
    assert_same(scores.take(slice(len(bad), None)), scorer.score(good))
    assert_same(scorer.score(good[1:2]), scorer.score(good[1:2] / good[1].sum()))


@engines
@pytest.mark.parametrize(
    "probs",
    [
        np.zeros(3),
        np.zeros((2, 4)),
        np.zeros((0, 2)),
        np.zeros((1, 1, 3)),
        np.array([["a", "b", "c"]]),
        0.5,
        [[1j] * 3],
    ],
    ids=["row", "columns", "empty", "cube", "text", "number", "complex"],
)
def test_wrong_shape_fails_the_call(compiled: bool, probs: NDArray[np.generic]) -> None:
    """What is not (n, K) of numbers is refused with what was expected and what came."""
    with pytest.raises(ShapeError, match=r"\(n, 3\)") as caught:
        make_scorer(3, compiled=compiled).score(probs)

    assert isinstance(caught.value, DarkSightError)
    assert caught.value.code == "shape"
    assert caught.value.details["expected"] == 3


@engines
@pytest.mark.parametrize("rows", [1, 7, 8, 600])
@pytest.mark.parametrize("kind", ["float16", "float32", ">f4", "float64", "longdouble", "wire", "fortran", "strided"])
def test_any_real_dtype_and_layout_is_read(kind: str, rows: int, compiled: bool) -> None:
    """Layout does not matter, a dtype only by its rounding; the input stays as it is and is not part of the result."""
    scorer = make_scorer(3, compiled=compiled)
    probs: NDArray[np.floating] = map_probs(scorer.embedder, rows)
    if kind == "wire":
        given: NDArray[np.floating] = np.frombuffer(probs.tobytes(), dtype="<f4").reshape(probs.shape)
    elif kind == "fortran":
        given = np.asfortranarray(probs)
    elif kind == "strided":
        given = np.repeat(np.repeat(probs, 2, axis=0), 2, axis=1)[::2, ::2]
    else:
        given = probs.astype(kind)
    before = given.copy()

    scores = scorer.score(given)

    np.testing.assert_array_equal(given, before)
    assert_same(scores, scorer.score(given.astype(np.float64)))
    assert not any(np.shares_memory(getattr(scores, name), given) for name in COLUMNS)


@engines
def test_two_calls_give_equal_results_that_share_nothing(compiled: bool) -> None:
    """Scoring leaves no trace in the scorer, and a caller may write into what it got."""
    scorer = make_scorer(compiled=compiled)
    probs = make_rows(scorer)

    first, second = scorer.score(probs), scorer.score(probs)

    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
        assert not np.shares_memory(getattr(first, name), getattr(second, name))


@engines
def test_empty_batch_gives_empty_columns(compiled: bool) -> None:
    """No rows are a valid call."""
    scores = make_scorer(3, compiled=compiled).score(np.empty((0, 3), dtype=np.float32))

    assert scores.points.shape == (0, 2)
    assert all(getattr(scores, name).shape == (0,) for name in COLUMNS if name != "points")
    assert scores.valid.dtype == np.bool_


@engines
def test_threads_share_a_scorer(compiled: bool) -> None:
    """Eight threads at once get what one thread gets, for rows and for batches."""
    scorer = make_scorer(compiled=compiled)
    probs = make_rows(scorer)
    batches = [probs[:1], probs[:5], probs, np.tile(probs, (4, 1))] * (16 if compiled else 4)
    expected = [scorer.score(batch) for batch in batches]

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(scorer.score, batches))

    for actual, wanted in zip(found, expected, strict=True):
        assert_same(actual, wanted, tolerance=0.0)


def test_scorer_knows_its_classes() -> None:
    """Names default to numbers, and there must be one for each probability."""
    parts = random_embedder(3), random_kde(random_embedder(3)), random_outlier_score(3), random_calibration()

    assert Scorer(*parts, compiled=False).class_names == ("0", "1", "2")
    assert Scorer(*parts, compiled=False, class_names=("a", "b", "c"), version="v").version == "v"
    with pytest.raises(ConfigError, match="2 class names"):
        Scorer(*parts, compiled=False, class_names=("a", "b"))


PROGRAM = """
import sys
from darksight_core.runtime.scorer import Scorer
assert "numba" not in sys.modules
sys.modules["numba"] = None
from tests.support.maps import map_probs, random_calibration, random_outlier_score, random_embedder, random_kde
embedder = random_embedder(3)
scorer = Scorer(embedder, random_kde(embedder), random_outlier_score(3), random_calibration())
print(scorer.kernel is not None, *scorer.score(map_probs(embedder, 1)).points[0])
"""


def test_scorer_works_without_numba() -> None:
    """Where numba is not installed the scorer falls back to numpy by itself, and importing it never loads numba."""
    root = Path(__file__).parents[4]
    embedder = random_embedder(3)

    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=root, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    engine, *point = done.stdout.split()
    assert engine == "False"
    expected = embedder.embed(log_probs(map_probs(embedder, 1)))[0][0]
    np.testing.assert_allclose([float(value) for value in point], expected, atol=1e-6)


def test_compiled_scorer_needs_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking for the compiled kernel without numba is an error."""
    monkeypatch.setattr(Kernel, "problem", "numba is not installed")
    monkeypatch.setattr(scorer_module, "KERNEL", Kernel())

    with pytest.raises(ConfigError, match="numba"):
        Scorer.of(make_bundle(), compiled=True)


@needs_numba
def test_work_that_pays_for_it_loads_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scorer answers in numpy, starts to load the kernel once that has taken long enough, and then uses it."""
    kernel = Kernel()
    monkeypatch.setattr(scorer_module, "KERNEL", kernel)
    monkeypatch.setattr(scorer_module, "_PATIENCE_SECONDS", 0.05)
    scorer = Scorer.of(make_bundle())
    rows = np.random.default_rng(0).dirichlet(np.ones(3), 3_000)

    first = scorer.score(rows[:10])
    started: list[str] = []
    monkeypatch.setattr(kernel, "on_event", started.append)
    was_loaded = scorer.kernel is not None
    while not started:
        scorer.score(rows)
    is_compiled = scorer.wait_until_compiled()

    assert not was_loaded
    assert is_compiled
    assert scorer.kernel is not None
    assert_same(scorer.score(rows[:10]), first)


def test_false_alarm_rate_is_what_was_asked_for() -> None:
    """Over splits of rows that are alike, p <= 0.1 comes up in a tenth of new rows."""
    pool = log_probs(map_probs(random_embedder(5), 2_400, noise=1.0))
    rates = []
    for seed in range(20):
        known, held_out, new = np.split(np.random.default_rng(seed).permutation(pool), [400, 799])
        outlier_score = OutlierScore.fit(known)
        p_values = Calibration(outlier_score.score(held_out)).p_value(outlier_score.score(new))
        rates.append(float((p_values <= 0.1).mean()))

    # k = 40 of 399 rows: the rate of one split is Beta(40, 360), plus the draw of the new rows.
    error = np.sqrt(0.1 * 0.9 * (1 / 400 + 1 / 1_601) / len(rates))
    assert np.mean(rates) == pytest.approx(0.1, abs=4.0 * error)


def test_scorer_refuses_known_rows_of_other_classes() -> None:
    """The outlier score must be of as many classes as the rows that come in."""
    embedder = random_embedder(3)

    with pytest.raises(ConfigError, match="outlier score has 4 classes"):
        Scorer(embedder, random_kde(embedder), random_outlier_score(4), random_calibration(), compiled=False)
