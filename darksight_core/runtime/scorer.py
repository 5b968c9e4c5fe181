"""The online scorer: rows of probabilities in, columns of scores out.

    probs -> check -> place on the map (`embed`) -> log P(y; θ), log KDE(y) -> p-value among the calibration scores
                   -> compare with known rows (`outlier_score`) ------------------^

What is wrong with the shape fails the call; what is wrong with the values of a row is a result for that row, and no
other row notices. A `Scorer` never changes after it is made, so any number of threads may share it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from darksight_core.bundle import Bundle, read_bundle
from darksight_core.errors import ConfigError, PredictionsError
from darksight_core.guarantees.calibration import Calibration
from darksight_core.map.density import Kde
from darksight_core.map.placement import CHUNK, Embedder
from darksight_core.runtime.compiled.lock import one_compiles
from darksight_core.scored import ScoredBatch
from darksight_core.scores.outlier import OutlierScore
from darksight_core.simplex import FLOOR, Floats, log_probs, on_simplex

if TYPE_CHECKING:
    from darksight_core.runtime.compiled.kernel import Kernel

__all__ = ["Scorer", "ShapeError"]

_RESULTS = ("log_density", "log_kde", "fidelity", "outlier_score", "p_value")


class ShapeError(PredictionsError):
    """The rows to score are not an array of numbers of the right shape."""

    code = "shape"


class Scorer:
    """Scores rows of probabilities.

    Parameters
    ----------
    embedder, kde, outlier_score, calibration
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
        outlier_score: OutlierScore,
        calibration: Calibration,
        *,
        class_names: tuple[str, ...] | None = None,
        version: str = "",
        compiled: bool | None = None,
    ) -> None:
        self.embedder = embedder
        self.kde = kde
        self.outlier_score = outlier_score
        self.calibration = calibration
        self.class_names = tuple(str(k) for k in range(embedder.n_inputs)) if class_names is None else class_names
        self.version = version
        if len(self.class_names) != embedder.n_inputs:
            raise ConfigError(f"{len(self.class_names)} class names for rows of {embedder.n_inputs} probabilities")
        if outlier_score.n_classes != embedder.n_inputs:
            raise ConfigError(f"known rows of {outlier_score.n_classes} probabilities for rows of {embedder.n_inputs}")
        self.kernel = None if compiled is False else _make_kernel(embedder, kde, outlier_score, calibration)
        if compiled and self.kernel is None:
            raise ConfigError("the compiled scorer needs numba, which is not installed")
        if self.kernel is not None:
            self._warm_up()

    @classmethod
    def load(cls, path: str | Path) -> Scorer:
        """The scorer of a bundle file, ready for its first call."""
        return cls.of(read_bundle(path, verify=True))

    @classmethod
    def of(cls, bundle: Bundle, *, compiled: bool | None = None) -> Scorer:
        """The scorer of a bundle."""
        return cls(
            bundle.embedder,
            bundle.kde,
            bundle.outlier_score,
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

    def score(self, probs: ArrayLike) -> ScoredBatch:
        """Score rows; no row is decided, which `Gate.decide` does.

        Parameters
        ----------
        probs
            Probabilities, (n, n_inputs), of any real dtype. A row is bad if it has a value that is not finite or below
            -1e-6, or if its sum is off one by more than 1e-3; a smaller error is scaled away.
        """
        rows = self.read(probs)
        if self.kernel is not None:
            return self.kernel.score(rows)[0]
        batch = ScoredBatch.unscored(len(rows))
        for start in range(0, len(rows), CHUNK):
            part = slice(start, start + CHUNK)
            self._score_chunk(rows[part], batch.take(part))
        return batch

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

    def _score_chunk(self, rows: Floats, batch: ScoredBatch) -> None:
        """Score rows, which are changed, into a batch of as many rows."""
        bad = np.flatnonzero(~on_simplex(rows))
        rows[bad] = 1.0 / self.n_inputs
        log_pi = log_probs(rows)
        batch.points[:], batch.fidelity[:] = self.embedder.embed(log_pi)
        batch.log_density[:] = self.embedder.student.log_density(batch.points)
        batch.log_kde[:] = self.kde.log_density(batch.points)
        batch.outlier_score[:] = self.outlier_score.score(log_pi)
        batch.p_value[:] = self.calibration.p_value(getattr(batch, self.calibration.outlier_score))
        lifted = np.maximum(rows, FLOOR)
        batch.top[:] = lifted.max(axis=1) / lifted.sum(axis=1)
        batch.predicted[:] = rows.argmax(axis=1)
        for name in ("points", *_RESULTS, "top"):
            getattr(batch, name)[bad] = np.nan
        batch.predicted[bad], batch.valid[bad] = -1, False


def _make_kernel(embedder: Embedder, kde: Kde, outlier_score: OutlierScore, calibration: Calibration) -> Kernel | None:
    """The compiled kernel, or nothing without numba; imported here because numba takes long to import."""
    from darksight_core.runtime.compiled.kernel import Kernel
    from darksight_core.runtime.compiled.loops import COMPILED

    if not COMPILED:
        return None
    score = calibration.outlier_score
    return Kernel(embedder, kde, outlier_score, calibration.ranked, _RESULTS.index(score))
