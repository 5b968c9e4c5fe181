"""The online scorer: rows of probabilities in, columns of scores out.

    probs -> check -> place on the map (`embed`) -> log P(y; θ), log KDE(y) -> p-value among the calibration scores
                   -> compare with known rows (`combined`) ------------------^

What is wrong with the shape fails the call; what is wrong with the values of a row is a result for that row, and no
other row notices. A `Scorer` never changes after it is made, so any number of threads may share it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from darksight_core.errors import ConfigError, PredictionsError
from darksight_core.guarantees.conformal import p_values
from darksight_core.map.density import Kde
from darksight_core.map.placement import CHUNK, Embedder
from darksight_core.runtime.compiled.lock import one_compiles
from darksight_core.scores.outlier import OutlierScore
from darksight_core.simplex import Floats, log_probs

if TYPE_CHECKING:
    from darksight_core.bundle import Bundle
    from darksight_core.runtime.compiled.kernel import Kernel

__all__ = ["OUTLIER_SCORES", "Calibration", "Scorer", "Scores", "ShapeError"]

OUTLIER_SCORES = ("combined", "log_density", "log_kde")
"""Scores that a p-value can be made from, the default first."""

# Rows of one plateau have one score but for rounding, which differs between numpy, numba and versions of this code, and
# must not change places for it. No p-value gets smaller by that, so what they promise is kept.
_TIE = 1e-9
_RESULTS = ("log_density", "log_kde", "fidelity", "combined", "p_value")


class ShapeError(PredictionsError):
    """The rows to score are not an array of numbers of the right shape."""

    code = "shape"


# Not frozen: that takes a microsecond more to make, in the request path.
@dataclass(slots=True, eq=False)
class Scores:
    """Results for n rows, as columns.

    Parameters
    ----------
    points
        Place on the map, (n, 2).
    log_density
        log P(y; θ), the student's density, (n,).
    log_kde
        log density of the reference points, (n,).
    fidelity
        KL_sym between the row and the student's classes at its place, (n,).
    combined
        How usual the row is among known rows, off the map; see `OutlierScore`, (n,).
    p_value
        Conformal rank of the chosen score, (n,).
    valid
        Whether the row could be scored, (n,); where not, all else is NaN.
    """

    points: Floats
    log_density: Floats
    log_kde: Floats
    fidelity: Floats
    combined: Floats
    p_value: Floats
    valid: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.points)


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """Scores of rows that no other step has seen, which give a new score its rank.

    p_value = (1 + #{calibration score <= score}) / (n + 1)

    Parameters
    ----------
    scores
        Scores of the n calibration rows under each name in `OUTLIER_SCORES`, (n,); sorted here.
    outlier_score
        Which of them p-values are made from.

    Scores that differ by less than 1e-9, of one or of themselves, count as equal. `ranked` are the chosen scores, lower
    by that much, (n,).

    >>> scores = np.array([2.0, 1.0])
    >>> Calibration(dict.fromkeys(OUTLIER_SCORES, scores)).p_value(np.array([0.0, 2.0]))
    array([0.33333333, 1.        ])
    """

    scores: dict[str, Floats]
    outlier_score: str = OUTLIER_SCORES[0]
    ranked: Floats = field(init=False, repr=False)

    def __post_init__(self) -> None:
        scores = {name: np.sort(np.array(score, dtype=np.float64)) for name, score in self.scores.items()}
        if set(scores) != set(OUTLIER_SCORES) or self.outlier_score not in OUTLIER_SCORES:
            raise ConfigError(f"calibration needs {', '.join(OUTLIER_SCORES)}, and one of them as outlier score")
        shapes = {score.shape for score in scores.values()}
        if len(shapes) != 1 or len(shapes.pop()) != 1 or not all(np.isfinite(score).all() for score in scores.values()):
            raise ConfigError("calibration scores must be finite, one of each kind for every row")
        for score in scores.values():
            score.flags.writeable = False
        chosen = scores[self.outlier_score]
        ranked = chosen - _TIE * np.maximum(np.abs(chosen), 1.0)
        ranked.flags.writeable = False
        object.__setattr__(self, "scores", scores)
        object.__setattr__(self, "ranked", ranked)

    def __len__(self) -> int:
        return len(self.scores[self.outlier_score])

    def p_value(self, scores: Floats) -> Floats:
        """p-values of scores of the chosen kind, (n,)."""
        return p_values(scores, self.ranked)

    def tensors(self) -> dict[str, NDArray[Any]]:
        """The arrays by name."""
        return dict(self.scores)

    def settings(self) -> dict[str, Any]:
        """All that is not an array, as JSON knows it."""
        return {"outlier_score": self.outlier_score}

    @classmethod
    def empty(cls) -> Calibration:
        """A calibration of no row, with which every p-value is 1."""
        return cls({name: np.empty(0) for name in OUTLIER_SCORES})

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, NDArray[Any]], settings: Mapping[str, Any]) -> Calibration:
        """Inverse of `tensors` and `settings`; ConfigError if something is missing."""
        try:
            return cls({name: tensors[name] for name in OUTLIER_SCORES}, settings["outlier_score"])
        except KeyError as missing:
            raise ConfigError(f"the calibration lacks {missing}") from None


class Scorer:
    """Scores rows of probabilities.

    Parameters
    ----------
    embedder, kde, combined, calibration
        The parts of a bundle.
    class_names
        Names of the n_inputs classes; by default their numbers.
    version
        Version of the bundle.
    compiled
        Whether to use the compiled kernel. By default, if numba is installed; it is compiled or fetched from its cache
        here, not in the first call, and compiled by one process if several start together.
    """

    def __init__(
        self,
        embedder: Embedder,
        kde: Kde,
        combined: OutlierScore,
        calibration: Calibration,
        *,
        class_names: tuple[str, ...] | None = None,
        version: str = "",
        compiled: bool | None = None,
    ) -> None:
        self.embedder = embedder
        self.kde = kde
        self.combined = combined
        self.calibration = calibration
        self.class_names = tuple(str(k) for k in range(embedder.n_inputs)) if class_names is None else class_names
        self.version = version
        if len(self.class_names) != embedder.n_inputs:
            raise ConfigError(f"{len(self.class_names)} class names for rows of {embedder.n_inputs} probabilities")
        if combined.n_classes != embedder.n_inputs:
            raise ConfigError(f"known rows of {combined.n_classes} probabilities for rows of {embedder.n_inputs}")
        self.kernel = None if compiled is False else _make_kernel(embedder, kde, combined, calibration)
        if compiled and self.kernel is None:
            raise ConfigError("the compiled scorer needs numba, which is not installed")
        if self.kernel is not None:
            self._warm_up()

    @classmethod
    def load(cls, path: str | Path) -> Scorer:
        """The scorer of a bundle file, ready for its first call."""
        from darksight_core.bundle import read_bundle

        return cls.of(read_bundle(path, verify=True))

    @classmethod
    def of(cls, bundle: Bundle, *, compiled: bool | None = None) -> Scorer:
        """The scorer of a bundle."""
        return cls(
            bundle.embedder,
            bundle.kde,
            bundle.combined,
            bundle.calibration,
            class_names=bundle.class_names,
            version=bundle.version,
            compiled=compiled,
        )

    @property
    def n_inputs(self) -> int:
        """Number of probabilities in a row."""
        return self.embedder.n_inputs

    @property
    def is_compiled(self) -> bool:
        """Whether the compiled kernel is in use."""
        return self.kernel is not None

    def score(self, probs: ArrayLike) -> Scores:
        """Score rows.

        Parameters
        ----------
        probs
            Probabilities, (n, n_inputs), of any real dtype. A row is bad if it has a value that is not finite or below
            -1e-6, or if its sum is off one by more than 1e-3; a smaller error is scaled away.
        """
        rows = self.read(probs)
        if self.kernel is not None:
            points, columns, _, predicted, _ = self.kernel.score(rows)
            log_density, log_kde, fidelity, combined, p_value, _, _ = columns
            return Scores(points, log_density, log_kde, fidelity, combined, p_value, predicted >= 0)
        points, results = np.empty((len(rows), 2)), np.empty((len(_RESULTS), len(rows)))
        for start in range(0, len(rows), CHUNK):
            part = slice(start, start + CHUNK)
            self._score_batch(rows[part], points[part], results[:, part])
        log_density, log_kde, fidelity, combined, p_value = results
        return Scores(points, log_density, log_kde, fidelity, combined, p_value, np.isfinite(log_density))

    def read(self, probs: ArrayLike) -> Floats:
        """A private float64 copy of the rows, in C order; ShapeError if they are none."""
        array = np.asarray(probs)
        if array.ndim != 2 or array.shape[1] != self.n_inputs or array.dtype.kind not in "fiub":
            raise ShapeError(
                f"expected an array of numbers of shape (n, {self.n_inputs}), not {array.dtype} of shape {array.shape}",
                expected=self.n_inputs,
                shape=array.shape,
            )
        return array.astype(np.float64, order="C")

    def _warm_up(self) -> None:
        """Have everything compiled, or fetched from numba's cache."""
        from darksight_core.runtime.compiled.loops import score_rows, sheet_writer

        dispatcher: Any = score_rows
        with one_compiles(dispatcher.stats.cache_path):
            for rows in (1, CHUNK):
                self.score(np.full((rows, self.n_inputs), 1.0 / self.n_inputs))
            # Last: what several loops call is taken from the one that was loaded first, and rounds as it does there.
            sheet_writer()

    def _score_batch(self, rows: Floats, points: Floats, results: Floats) -> None:
        """Score rows, which are changed, into points (n, 2) and `_RESULTS` (5, n)."""
        with np.errstate(invalid="ignore", over="ignore"):
            bad = np.flatnonzero(~(np.abs(rows.sum(axis=1) - 1.0) <= 1e-3) | (rows < -1e-6).any(axis=1))
        rows[bad] = 1.0 / self.n_inputs
        log_pi = log_probs(rows)
        points[:], results[2] = self.embedder.embed(log_pi)
        results[0] = self.embedder.student.log_density(points)
        results[1] = self.kde.log_density(points)
        results[3] = self.combined.score(log_pi)
        results[4] = self.calibration.p_value(results[_RESULTS.index(self.calibration.outlier_score)])
        points[bad] = np.nan
        results[:, bad] = np.nan


def _make_kernel(embedder: Embedder, kde: Kde, combined: OutlierScore, calibration: Calibration) -> Kernel | None:
    """The compiled kernel, or nothing without numba; imported here because numba takes long to import."""
    from darksight_core.runtime.compiled.kernel import Kernel
    from darksight_core.runtime.compiled.loops import COMPILED

    if not COMPILED:
        return None
    score = calibration.outlier_score
    return Kernel(embedder, kde, combined, calibration.ranked, _RESULTS.index(score))
