"""The online scorer: rows of probabilities in, columns of scores out.

    probs -> check -> place on the map (`embed`) -> log P(y; θ), log KDE(y)
                   -> compare with known rows (`outlier_score`) -> p-value among the calibration scores

What is wrong with the shape fails the call; what is wrong with the values of a row is a result for that row, and no
other row notices. Results never change after a `Scorer` is made, so any number of threads may share it.

Rows are scored in numpy until the compiled kernel is loaded, which gives the same results up to rounding. It is loaded
in the background; see `darksight_core.runtime.compilation`. Unless that is asked for, it begins when numpy has taken a
few seconds: less work does not pay for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike

from darksight_core.bundle import Bundle, read_bundle
from darksight_core.errors import ConfigError, PredictionsError
from darksight_core.gate.gate import Gate
from darksight_core.guarantees.calibration import Calibration
from darksight_core.map.density import Kde
from darksight_core.map.placement import CHUNK, Embedder
from darksight_core.rows.frames import Frame, Table, read_frame
from darksight_core.rows.partial import TopRows
from darksight_core.rows.resolution import FULL, name_of, number_of
from darksight_core.rows.schema import SCHEMA, ScoredBatch
from darksight_core.rows.simplex import Floats, largest_probs, log_probs, on_simplex
from darksight_core.runtime.arrays import Model, Results, Rule, blank_results, model_of, rule_of
from darksight_core.runtime.compilation import KERNEL
from darksight_core.runtime.result_block import KERNEL_COLUMNS
from darksight_core.scores.outlier import OutlierScore

__all__ = ["Scorer", "ShapeError"]

_RESULTS = ("log_density", "log_kde", "fidelity", "outlier_score", "p_value")
# CPU seconds of numpy after which the kernel is loaded: it takes 12 of them to compile and half of one to load.
_PATIENCE_SECONDS = 3.0
# Columns that are computed after the kernel, and a function that brings all columns into the order of the schema.
_LATER = tuple(column for column in SCHEMA if column.name not in (*KERNEL_COLUMNS, "valid"))
_COMPUTED = (*KERNEL_COLUMNS, "valid", *(column.name for column in _LATER))
_IN_ORDER = itemgetter(*(_COMPUTED.index(column.name) for column in SCHEMA))
_UNDECIDED = rule_of(Gate(), is_decided=False)
_WHOLE = np.empty((0, 0))


class ShapeError(PredictionsError):
    """The rows to score are not an array of numbers of the right shape."""


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
        True loads the compiled kernel here and waits for it; ConfigError without numba. False never uses it. By default
        it is loaded in the background when there is enough work for it, if numba is installed.
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
            raise ConfigError(
                f"the outlier score has {outlier_score.n_classes} classes, but rows have {embedder.n_inputs}"
            )
        self._numpy_seconds = 0.0
        self._may_compile = compiled is not False
        self._model: Model | None = None
        if compiled and not self.wait_until_compiled():
            raise ConfigError(f"the compiled scorer cannot be used: {KERNEL.problem}")

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
    def kernel(self) -> Callable[..., None] | None:
        """The compiled kernel once it is loaded, unless it is not to be used."""
        return KERNEL.score_rows if self._may_compile else None

    @property
    def model(self) -> Model:
        """What the compiled kernel reads, made when it is first needed."""
        if self._model is None:
            self._model = model_of(self.embedder, self.kde, self.outlier_score, self.calibration.ranked)
        return self._model

    def start_compiling(self) -> None:
        """Begin to load the compiled kernel in the background, and compile it if need be; rows are scored meanwhile."""
        if self._may_compile:
            KERNEL.start()

    def wait_until_compiled(self, timeout: float | None = None) -> bool:
        """Wait until the compiled kernel is in use, at most for some seconds; whether it is."""
        return self._may_compile and KERNEL.wait(timeout)

    @overload
    def score(self, probs: ArrayLike | TopRows, resolution: str | None = None) -> ScoredBatch: ...

    @overload
    def score(self, probs: Table, resolution: str | None = None) -> Table: ...

    def score(self, probs: Any, resolution: str | None = None) -> Any:
        """Score rows; no row is decided, which `Gate.decide` does.

        Parameters
        ----------
        probs
            Probabilities, (n, n_inputs), of any real dtype. A row is bad if it has a value that is not finite or below
            -1e-6, or if its sum is off one by more than 1e-3; a smaller error is scaled away. Or a table with a column
            for each class, in any order: then the scores are a table of the same kind, with the columns of score files.
            Or `TopRows`, of which only the most probable classes are known.
        resolution
            What the rows resolve, such as "full", "1e-4" or "top5"; see `darksight_core.rows.resolution`. By default it
            is recognised for each row. ConfigError if the bundle is not calibrated for it.
        """
        self.levels(probs, resolution)
        table = read_frame(probs)
        if table is not None:
            return self._score_table(table)
        return self._score_rows(self.read(probs))

    def levels(self, rows: object, resolution: str | None) -> None:
        """Refuse rows of a resolution that the bundle is not calibrated for."""
        stated = FULL if resolution is None else number_of(resolution)
        if isinstance(rows, TopRows):
            rows.check(self.n_inputs)
            stated = rows.resolution
        if stated != FULL:
            raise ConfigError(
                f"the bundle is not calibrated for rows of resolution {name_of(stated)}, only for full; give all "
                "classes with all digits, or fit the bundle again on rows of this resolution"
            )

    def _score_table(self, table: Frame) -> Any:
        scored = self._score_rows(self.read(table.in_order(self.class_names)))
        columns: dict[str, Any] = scored.file_columns()
        names = [*self.class_names, None]  # of rows that are bad, whose class is -1
        columns["predicted"] = [names[number] for number in scored.predicted.tolist()]
        return table.like(columns)

    def _score_rows(self, rows: Floats) -> ScoredBatch:
        kernel = self.kernel
        if kernel is not None:
            return self.run(kernel, rows, _UNDECIDED)
        started = time.thread_time()
        batch = ScoredBatch.unscored(len(rows))
        for start in range(0, len(rows), CHUNK):
            part = slice(start, start + CHUNK)
            self._score_chunk(rows[part], batch.take(part))
        self._numpy_seconds += time.thread_time() - started
        if self._numpy_seconds > _PATIENCE_SECONDS:
            self.start_compiling()
        return batch

    def run(self, kernel: Callable[..., None], rows: Floats, rule: Rule) -> ScoredBatch:
        """Rows scored and decided by the compiled kernel."""
        results, predicted, outcomes = self.run_raw(kernel, rows, rule)
        later = (column.blank(len(rows)) for column in _LATER)
        return ScoredBatch(*_IN_ORDER((results[:2].T, *results[2:], predicted, *outcomes, predicted >= 0, *later)))

    def run_raw(self, kernel: Callable[..., None], rows: Floats, rule: Rule) -> Results:
        """The same as arrays: float64 results (9, n), classes (n,), and decisions over reasons (2, n)."""
        mapped = _WHOLE
        if not self.embedder.is_whole:
            # Of rows that are not on the simplex the kernel makes nothing.
            with np.errstate(all="ignore"):
                mapped = np.ascontiguousarray(self.embedder.shown(log_probs(rows)))
        results = blank_results(len(rows))
        kernel(rows, mapped, *results, self.model, rule)
        return results

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

    def _score_chunk(self, rows: Floats, batch: ScoredBatch) -> None:
        """Score rows, which are changed, into a batch of as many rows."""
        bad = np.flatnonzero(~on_simplex(rows))
        rows[bad] = 1.0 / self.n_inputs
        log_pi = log_probs(rows)
        batch.points[:], batch.fidelity[:] = self.embedder.embed(log_pi)
        batch.log_density[:] = self.embedder.student.log_density(batch.points)
        batch.log_kde[:] = self.kde.log_density(batch.points)
        batch.outlier_score[:] = self.outlier_score.score(log_pi)
        batch.p_value[:] = self.calibration.p_value(batch.outlier_score)
        batch.top[:] = largest_probs(rows)
        batch.predicted[:] = rows.argmax(axis=1)
        for name in ("points", *_RESULTS, "top"):
            getattr(batch, name)[bad] = np.nan
        batch.predicted[bad], batch.valid[bad] = -1, False
