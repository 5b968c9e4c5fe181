"""The online scorer: rows of probabilities in, columns of scores out.

    probs -> check -> place on the map (`embed`) -> log P(y; θ), log KDE(y)
                   -> compare with known rows (`outlier_score`) -> p-value among the calibration scores

Rows that are known only in part are made rows of all classes first, and then compared with rows of the same resolution;
see `darksight_core.bundle.levels`. The resolution of a row is stated, or recognised: the kernel scores every row as it
is and marks the few that look rounded, and those that are get scored again at their level.

What is wrong with the shape fails the call; what is wrong with the values of a row is a result for that row, and no
other row notices. Results never change after a `Scorer` is made, so any number of threads may share it.

Rows are scored in numpy until the compiled kernel is loaded, which gives the same results up to rounding. It is loaded
in the background; see `darksight_core.runtime.compilation`. Unless that is asked for, it begins when numpy has taken a
few seconds: less work does not pay for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from operator import itemgetter
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from darksight_core.bundle import Bundle, read_bundle
from darksight_core.bundle.levels import Level, Resolutions
from darksight_core.errors import ConfigError, PredictionsError
from darksight_core.gate.gate import Gate
from darksight_core.gate.scored_predictions import ScoredPredictions
from darksight_core.guarantees.calibration import Calibration
from darksight_core.map.density import Kde
from darksight_core.map.placement import CHUNK, Embedder
from darksight_core.predictions import Predictions
from darksight_core.rows.frames import Frame, Table, read_frame
from darksight_core.rows.partial import TopRows
from darksight_core.rows.resolution import FULL, name_of, number_of, recognise
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
_MARKED = ("valid", "resolution")
_LATER = tuple(column for column in SCHEMA if column.name not in (*KERNEL_COLUMNS, *_MARKED))
_COMPUTED = (*KERNEL_COLUMNS, *_MARKED, *(column.name for column in _LATER))
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
    resolutions
        What the fit rows resolve, which the last two are for, and the coarser levels; by default full, and no others.
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
        resolutions: Resolutions | None = None,
        class_names: tuple[str, ...] | None = None,
        version: str = "",
        compiled: bool | None = None,
    ) -> None:
        self.embedder = embedder
        self.kde = kde
        self.outlier_score = outlier_score
        self.calibration = calibration
        self.resolutions = Resolutions() if resolutions is None else resolutions
        own = Level(self.resolutions.own, outlier_score, calibration, self.resolutions.own_other)
        self.levels = {level.number: level for level in (own, *self.resolutions.coarser)}
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
        self._models: dict[int, Model] = {}
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
            resolutions=bundle.resolutions,
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

    def model(self, number: int) -> Model:
        """What the compiled kernel reads for rows of a level, made when it is first needed."""
        found = self._models.get(number)
        if found is None:
            level = self.levels[number]
            found = model_of(self.embedder, self.kde, level.outlier_score, level.calibration.ranked)
            self._models[number] = found
        return found

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
            is recognised for each row. ConfigError if the bundle is not calibrated for it, nor for a coarser one.
        """
        table = None if isinstance(probs, TopRows) else read_frame(probs)
        if table is not None:
            return self._score_table(table, resolution)
        return self.by_level(self.read(probs), resolution, self.levels, self.score_level)

    def _score_table(self, table: Frame, resolution: str | None) -> Any:
        scored = self.score(table.in_order(self.class_names), resolution)
        columns: dict[str, Any] = scored.file_columns()
        names = [*self.class_names, None]  # of rows that are bad, whose class is -1
        columns["predicted"] = [names[number] for number in scored.predicted.tolist()]
        return table.like(columns)

    def by_resolution(
        self, predictions: Predictions, segments: NDArray[np.str_] | None = None
    ) -> dict[int, ScoredPredictions]:
        """Predictions of one source scored at their resolution and at each coarser level, by number.

        Rounded rows do not stand for rows of the most probable classes, which have all digits.

        Parameters
        ----------
        predictions
            The rows.
        segments
            Value of a tag for each of them, (n,).
        """
        rows = self.read(predictions.rows)
        number = self._stated(rows, None, self.levels) if isinstance(rows, TopRows) else predictions.resolution
        numbers = self.resolutions.numbers
        first = numbers.index(self.resolutions.choose(number, numbers, is_stated=False))
        found = {}
        for level in (each for each in numbers[first:] if each <= 0 or number >= 0 or each == numbers[first]):
            probs, other = self.resolutions.coarsen(rows, level)
            scores = self.score_level(level, probs, other)
            scores.resolution[:] = level
            found[level] = ScoredPredictions.of(predictions, scores, segments, probs=probs, other=other)
        return found

    def level_name(self, predictions: Predictions) -> str | None:
        """The resolution to state for predictions of one source; None if each row is to be recognised."""
        if predictions.top is not None or predictions.resolution == FULL:
            return None
        return name_of(self.resolutions.choose(predictions.resolution, self.levels, is_stated=False))

    def scored(self, predictions: Predictions, segments: NDArray[np.str_] | None = None) -> ScoredPredictions:
        """The same at their own resolution alone."""
        return next(iter(self.by_resolution(predictions, segments).values()))

    def by_level(
        self,
        rows: Floats | TopRows,
        resolution: str | None,
        among: Collection[int],
        score: Callable[[int, Floats, Floats | None, NDArray[np.intp] | slice], ScoredBatch],
    ) -> ScoredBatch:
        """Score rows at their levels.

        Parameters
        ----------
        rows
            As `read` returns them.
        resolution
            As in `score`.
        among
            Numbers of the levels that may be used.
        score
            Scores rows of one level: its number, the rows (n, K) at this level, their `other` (n,) or None, and which
            of all rows they are.
        """
        everything, batch = slice(None), None
        if resolution is not None or isinstance(rows, TopRows):
            stated = self._stated(rows, resolution, among)
            numbers = np.full(len(rows), self.resolutions.choose(stated, among, is_stated=True))
        elif self.kernel is not None and FULL in among:
            # The kernel has marked the rows that may not be full.
            batch = score(FULL, rows, None, everything)
            marked = np.flatnonzero(batch.resolution)
            if not len(marked):
                return batch
            batch.resolution[marked], numbers = FULL, np.full(len(rows), FULL)
            numbers[marked] = self._recognised(rows[marked], among)
        else:
            numbers = self._recognised(rows, among)
        found = [int(number) for number in np.unique(numbers) if batch is None or number != FULL]
        if batch is None and len(found) == 1:
            scored = score(found[0], *self.resolutions.coarsen(rows, found[0]), everything)
            scored.resolution[:] = found[0]
            return scored
        batch = ScoredBatch.unscored(len(rows)) if batch is None else batch
        for number in found:
            chosen = np.flatnonzero(numbers == number)
            part = rows.take(chosen) if isinstance(rows, TopRows) else rows[chosen]
            scored = score(number, *self.resolutions.coarsen(part, number), chosen)
            scored.resolution[:] = number
            batch.put(chosen, scored)
        return batch

    def _stated(self, rows: Floats | TopRows, resolution: str | None, among: Collection[int]) -> int:
        """The resolution that rows have by what they are or by what is stated; ConfigError if these differ."""
        if not isinstance(rows, TopRows):
            assert resolution is not None
            return number_of(resolution)
        stated = rows.resolution if resolution is None else number_of(resolution)
        if not 0 < stated <= rows.resolution:
            raise ConfigError(
                f"resolution is {resolution}, but the rows have {rows.resolution} known classes; state "
                f"top{rows.resolution} or nothing"
            )
        has_level = any(0 < number <= stated for number in among)
        # Rows that name every class are full, whatever they look like.
        return stated if has_level or stated < self.n_inputs or not rows.is_whole(self.n_inputs) else FULL

    def _recognised(self, rows: Floats, among: Collection[int]) -> NDArray[np.int64]:
        """Level of each row (n,) by its digits."""
        numbers, place = np.unique(recognise(rows), return_inverse=True)
        levels = [self.resolutions.choose(number, among, is_stated=False) for number in numbers.tolist()]
        return np.array(levels, dtype=np.int64)[place]

    def score_level(
        self, number: int, rows: Floats, other: Floats | None = None, _: NDArray[np.intp] | slice | None = None
    ) -> ScoredBatch:
        """Rows (n, K) that are at a level, scored there; no row is decided."""
        kernel, level = self.kernel, self.levels[number]
        if kernel is not None:
            batch = self.run(kernel, rows, _UNDECIDED, number)
        else:
            started = time.thread_time()
            batch = ScoredBatch.unscored(len(rows))
            for start in range(0, len(rows), CHUNK):
                part = slice(start, start + CHUNK)
                self._score_chunk(rows[part].copy(), level, batch.take(part))
            self._numpy_seconds += time.thread_time() - started
            if self._numpy_seconds > _PATIENCE_SECONDS:
                self.start_compiling()
        if other is not None and level.other_rank is not None:
            batch.outlier_score[:] += level.other_term(other)
            batch.p_value[batch.valid] = level.calibration.p_value(batch.outlier_score[batch.valid])
        return batch

    def run(self, kernel: Callable[..., None], rows: Floats, rule: Rule, number: int) -> ScoredBatch:
        """Rows of a level scored and decided by the compiled kernel; `resolution` is 1 of rows that look rounded."""
        results, predicted, outcomes = self.run_raw(kernel, rows, rule, number)
        later = (column.blank(len(rows)) for column in _LATER)
        marked = results[-1].astype(np.int16)
        found = (results[:2].T, *results[2:-1], predicted, *outcomes, predicted >= 0, marked, *later)
        return ScoredBatch(*_IN_ORDER(found))

    def run_raw(self, kernel: Callable[..., None], rows: Floats, rule: Rule, number: int) -> Results:
        """The same as arrays: float64 results (10, n), classes (n,), and decisions over reasons (2, n)."""
        mapped = _WHOLE
        if not self.embedder.is_whole:
            # Of rows that are not on the simplex the kernel makes nothing.
            with np.errstate(all="ignore"):
                mapped = np.ascontiguousarray(self.embedder.shown(log_probs(rows)))
        results = blank_results(len(rows))
        kernel(rows, mapped, *results, self.model(number), rule)
        return results

    @overload
    def read(self, probs: TopRows) -> TopRows: ...

    @overload
    def read(self, probs: ArrayLike) -> Floats: ...

    def read(self, probs: ArrayLike | TopRows) -> Floats | TopRows:
        """A private float64 copy of the rows, in C order; ShapeError or TopRowsError if they are none."""
        if isinstance(probs, TopRows):
            probs.check(self.n_inputs)
            return probs
        array = np.asarray(probs)
        if array.ndim != 2 or array.shape[1] != self.n_inputs or array.dtype.kind not in "fiub":
            raise ShapeError(
                f"expected an array of numbers of shape (n, {self.n_inputs}), not {array.dtype} of shape {array.shape}",
                expected=self.n_inputs,
                shape=array.shape,
            )
        return array.astype(np.float64, order="C")

    def _score_chunk(self, rows: Floats, level: Level, batch: ScoredBatch) -> None:
        """Score rows, which are changed, into a batch of as many rows."""
        bad = np.flatnonzero(~on_simplex(rows))
        rows[bad] = 1.0 / self.n_inputs
        log_pi = log_probs(rows)
        batch.points[:], batch.fidelity[:] = self.embedder.embed(log_pi)
        batch.log_density[:] = self.embedder.student.log_density(batch.points)
        batch.log_kde[:] = self.kde.log_density(batch.points)
        batch.outlier_score[:] = level.outlier_score.score(log_pi)
        batch.p_value[:] = level.calibration.p_value(batch.outlier_score)
        batch.top[:] = largest_probs(rows)
        batch.predicted[:] = rows.argmax(axis=1)
        for name in ("points", *_RESULTS, "top"):
            getattr(batch, name)[bad] = np.nan
        batch.predicted[bad], batch.valid[bad] = -1, False
