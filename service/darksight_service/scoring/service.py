"""Scoring without a transport: validate a batch, score it, record it, count it.

    request -> active model (registry) -> score and decide (core) -> spool -> counts -> reply

gRPC and HTTP convert and call. Nothing here waits for SQL: points and outcomes are on disk when a call returns, and the
storage worker moves them to SQL. If the spool fails, the reply is sent all the same and says so (`recorded`).
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from darksight_core.errors import ConfigError
from darksight_core.guarantees.prediction_sets import set_classes
from darksight_core.rows.frames import FrameError, column_order
from darksight_core.rows.partial import TopRows
from darksight_core.rows.schema import Reason, ScoredBatch
from darksight_core.rows.simplex import Floats, log_softmax
from darksight_core.runtime.result_block import ResultBlock
from darksight_service.control.registry import ActiveModel, Registry
from darksight_service.errors import AbandonedError, RequestError
from darksight_service.ingest.records import encode_outcomes, encode_points
from darksight_service.scoring.tags import NO_TAGS, RowTags, Tags, read_tags
from darksight_service.scoring.top_rows import check_top, complete_top, raise_top_error, score_top
from darksight_service.settings.validation import check_text
from darksight_service.store.ids import DAY_MS, MAX_ROWS, id_ms, is_batch_id, is_uuid7, make_batch_id, prediction_id
from darksight_service.store.points import OutcomeBatch

__all__ = ["Recorder", "ScoreReply", "ScoringService", "Tensor"]

_MAX_ID = 200
_MAX_KEY = 64
# Rows scored between two checks whether the caller still waits: a few milliseconds.
_PIECE = 1024
# A batch id made by a caller contains the time of the batch. A time outside of these bounds is a mistake, or an attack
# on retention. A retry may be days late, and a clock may be ahead by an hour.
_PAST_MS, _FUTURE_MS = 7 * DAY_MS, 3_600_000
# If they differ by less, the time of the id stands for the server's clock: a delay takes 8 bytes of a stored row.
_SAME_TIME_MS = 1000

_log = logging.getLogger("darksight.scoring")


class Recorder(Protocol):
    """Where records go, such as a `Spool`."""

    def append(self, payload: bytes) -> bool:
        """Whether the record is on disk."""
        ...


class Tensor(NamedTuple):
    """Rows of a request: little-endian float32 of a shape (n, K), n >= 1; an array is made when it is needed."""

    data: bytes
    shape: tuple[int, int]

    def array(self) -> NDArray[np.float32]:
        """The rows, (n, K)."""
        return np.frombuffer(self.data, "<f4").reshape(self.shape)


Values: TypeAlias = NDArray[Any] | Tensor | TopRows
"""Rows of a request."""


class ScoreReply(NamedTuple):
    """The reply to one call; `block` has the columns, and `recorded` says whether the points are on disk.

    `set_classes` has the classes of all prediction sets, one set after the other; None without sets.
    """

    model: str
    version: str
    batch_id: bytes
    block: ResultBlock
    recorded: bool
    set_classes: NDArray[np.int32] | None = None


class ScoringService:
    """Scores batches and records outcomes.

    Parameters
    ----------
    registry
        The active models.
    recorder
        Where points and outcomes are written.
    clock
        Unix time in seconds.
    secret
        Secret of the installation; see `control.installation`. It may be replaced.
    """

    def __init__(
        self, registry: Registry, recorder: Recorder, clock: Callable[[], float] = time.time, secret: bytes = b""
    ) -> None:
        self.registry = registry
        self._recorder = recorder
        self._clock = clock
        self.secret = secret

    def models(self) -> Mapping[str, ActiveModel]:
        """The active models by name."""
        return self.registry.models()

    def model(self, name: str, version: str = "") -> ActiveModel:
        """The active model of a name, or another version of it."""
        return self.registry.get(name, version)

    def score(
        self,
        model: str,
        version: str,
        values: Values,
        *,
        logits: bool = False,
        prediction_ids: Sequence[str] = (),
        event_ms: int = 0,
        partial_ok: bool = False,
        batch_id: bytes = b"",
        idempotency_key: str = "",
        tags: Tags = (),
        trace: bytes = b"",
        is_wanted: Callable[[], bool] = lambda: True,
        class_names: Sequence[str] = (),
        is_probe: bool = False,
        resolution: str = "",
    ) -> ScoreReply:
        """Score a batch of predictions.

        Parameters
        ----------
        model, version
            Name of the model; an empty version for the active one.
        values
            Probabilities, or logits, (n, K), float32 or float64, or a tensor of them; or the most probable classes of
            each row.
        logits
            Whether `values` are logits.
        prediction_ids
            Of the rows, or none.
        event_ms
            When the predictions were made, in Unix milliseconds; 0 for now.
        partial_ok
            Whether a row that is not valid gets the reason INVALID; if not, it fails the call.
        batch_id, idempotency_key
            16 bytes or a text made by the caller, the same for every attempt of a call; empty to make an id.
        tags
            Values by key: one mapping for all rows, one for each row, or none.
        trace
            Trace id of the call, 16 bytes, or empty.
        is_wanted
            Whether the caller still waits; asked from time to time while a large batch is scored.
        class_names
            Classes in the order of the values of a row, if it may differ from that of the bundle; of the most probable
            classes, what their numbers stand for.
        is_probe
            Whether the rows are neither recorded nor counted.
        resolution
            What the rows resolve, such as "1e-4"; empty to recognise it.
        """
        started = time.perf_counter()
        active = self.registry.get(model, version)
        if isinstance(values, np.ndarray) and values.shape == (0, 0):
            # Without rows the number of classes is not known.
            values = values.reshape(0, active.bundle.scorer.n_inputs)
        if isinstance(values, TopRows):
            values = check_top(active, values, class_names)
        elif class_names:
            values = _in_order(active, values, class_names)
        rows = _check_shape(active, values)
        if prediction_ids:
            self._check_ids(prediction_ids, rows)
        row_tags = read_tags(tags, rows) if tags else NO_TAGS
        delay_ms = 0
        if batch_id or idempotency_key:
            batch_id, delay_ms = self._stored_id(model, _read_key(batch_id, idempotency_key), event_ms)
        else:
            batch_id = make_batch_id(int(self._clock() * 1000.0))
        raw, given = None, values
        if logits and not isinstance(values, TopRows):
            array = _array(values)
            given, raw = _softmax(array), array.astype(np.float64)
        block = self._score(active, given, raw, is_wanted, row_tags, trace, resolution)
        if not (partial_ok or block.are_valid):
            if isinstance(values, TopRows):
                raise_top_error(values, active.bundle.scorer.n_inputs)
            _raise_row_error(_array(values), block, logits)
        recorded = not is_probe
        if block.rows and not is_probe:
            call = _Call(batch_id, event_ms, delay_ms, prediction_ids, row_tags, trace, resolution)
            recorded = self._recorder.append(_record(active, call, given, block))
            _count(active, call, block, time.perf_counter() - started)
            if active.shadow is not None:
                self._score_shadow(active.shadow, call, given, raw)
        classes = None if active.gate.sets is None else _set_classes(active, given, block)
        return ScoreReply(model, active.version, batch_id, block, recorded, classes)

    def report(
        self, model: str, prediction_ids: Sequence[str], labels: Sequence[int | str], observed_ms: Sequence[int]
    ) -> int:
        """Record true labels; returns how many of them are on disk.

        Parameters
        ----------
        model
            Name of the model.
        prediction_ids
            Of the predictions, which may be scored later.
        labels
            True classes, by number or by name.
        observed_ms
            When they became known, in Unix milliseconds; 0 for now.
        """
        active = self.registry.get(model)
        numbers, classes = active.bundle.numbers, len(active.bundle.class_names)
        codes = np.empty(len(labels), dtype=np.int32)
        for row, (name, label) in enumerate(zip(prediction_ids, labels, strict=True)):
            _check_id(name, row, "outcomes")
            code = numbers.get(label, -1) if isinstance(label, str) else label
            if not 0 <= code < classes:
                raise RequestError(
                    f"outcomes[{row}]: model {model!r} has no class {str(label)[:50]!r}; it has {classes} classes",
                    field="label",
                    row=row,
                )
            codes[row] = code
        now = int(self._clock() * 1000.0)
        observed = np.array([ms or now for ms in observed_ms], dtype=np.int64)
        if not len(codes):
            return 0
        batch = OutcomeBatch(model, now, tuple(prediction_ids), codes, observed)
        return len(codes) if self._recorder.append(encode_outcomes(batch)) else 0

    def _check_ids(self, ids: Sequence[str], rows: int) -> None:
        if len(ids) != rows:
            raise RequestError(f"prediction_ids: got {len(ids)} ids for {rows} rows", field="prediction_ids")
        for row, name in enumerate(ids):
            _check_id(name, row, "prediction_ids")
        if len(set(ids)) != rows:
            seen: set[str] = set()
            row = next(row for row, name in enumerate(ids) if name in seen or seen.add(name))  # type: ignore[func-returns-value]  # add returns None, so this finds the first repeated id
            raise RequestError(
                f"prediction_ids[{row}]: {ids[row]!r} is not unique in its batch",
                field="prediction_ids",
                row=row,
            )

    def _stored_id(self, model: str, key: bytes, event_ms: int) -> tuple[bytes, int]:
        """The id under which a batch is stored, and how much older than the call its time is, in milliseconds.

        It is a hash of the key, so that every attempt has the same, of the model, whose ids no call for another model
        can have, and of the secret, without which nobody can compute it. Its time is that of a UUIDv7, or of the event.
        A batch without one has the start of a day that starts, for each key, at another time of the day: an attempt
        one minute after the first falls into another day in 1 of 1,440 cases.
        """
        now = int(self._clock() * 1000.0)
        digest = hashlib.blake2b(model.encode() + b"\0" + key, key=self.secret, digest_size=16).digest()
        own_ms = id_ms(key) if is_uuid7(key) else -1
        ms = next((each for each in (own_ms, event_ms) if now - _PAST_MS <= each <= now + _FUTURE_MS), None)
        if own_ms not in (-1, ms) and is_batch_id(key):
            raise RequestError("batch_id: its time is more than an hour ahead or seven days ago", field="batch_id")
        if ms is None:
            start = int.from_bytes(digest[8:14], "big") % DAY_MS
            ms = now - (now - start) % DAY_MS
        age = now - ms
        return make_batch_id(ms, digest[:7]), 0 if abs(age) < _SAME_TIME_MS else age

    def _score(
        self,
        active: ActiveModel,
        values: Values,
        logits: Floats | None,
        is_wanted: Callable[[], bool],
        row_tags: RowTags,
        trace: bytes,
        resolution: str,
    ) -> ResultBlock:
        if logits is None and active.gate.needs_logits:
            raise RequestError(
                f"is_logits: the reject score {active.gate.reject_score} of model {active.model!r} needs logits",
                field="is_logits",
            )
        policy = active.policy
        # Only thresholds of segments depend on tags.
        tags: Tags = () if active.gate.segments is None else row_tags.dicts()
        try:
            if isinstance(values, Tensor) and values.shape[0] <= _PIECE:
                return policy.score_block(values.data, values.shape[0], tags, resolution or None)
            pieces = []
            for start in range(0, max(_rows_of(values), 1), _PIECE):
                if start and not is_wanted():
                    raise AbandonedError("the caller has cancelled the call")
                part = slice(start, start + _PIECE)
                some = tags if isinstance(tags, Mapping) else tags[part]
                if isinstance(values, TopRows):
                    pieces.append(score_top(policy, values.take(part), some))
                    continue
                raw = None if logits is None else logits[part]
                pieces.append(policy.score(_array(values)[part], logits=raw, tags=some, resolution=resolution or None))
            return ResultBlock.of(pieces[0] if len(pieces) == 1 else ScoredBatch.join(pieces))
        except AbandonedError:
            raise
        except ConfigError as error:
            # The bundle is not calibrated for such rows.
            raise RequestError(f"resolution: {error.message}", field="resolution") from None
        except Exception:
            # The caller gets the decision for unscored rows and not an error.
            _log.exception("scoring_failed", extra=_log_fields(active, trace))
            return ResultBlock.of(policy.unscored(_rows_of(values)))

    def _score_shadow(
        self,
        shadow: ActiveModel,
        call: _Call,
        values: Values,
        logits: Floats | None,
    ) -> None:
        """Score with the shadow version too; the caller does not see its results or failures."""
        started = time.perf_counter()
        try:
            block = self._score(shadow, values, logits, lambda: True, call.tags, call.trace, call.resolution)
            # With the prediction ids of the reply, so that outcomes match the shadow's points too.
            ids = call.prediction_ids or [prediction_id(call.batch_id, row) for row in range(block.rows)]
            shadow_id = make_batch_id(id_ms(call.batch_id), call.batch_id[9:])
            call = call._replace(batch_id=shadow_id, prediction_ids=ids)
            self._recorder.append(_record(shadow, call, values, block, is_shadow=True))
            _count(shadow, call, block, time.perf_counter() - started, is_shadow=True)
        except Exception:
            _log.exception("shadow_failed", extra=_log_fields(shadow, call.trace))


class _Call(NamedTuple):
    """What a call says about its rows; it is recorded with them."""

    batch_id: bytes
    event_ms: int
    delay_ms: int
    prediction_ids: Sequence[str]
    tags: RowTags
    trace: bytes
    resolution: str


def _record(
    active: ActiveModel,
    call: _Call,
    values: Values,
    block: ResultBlock,
    *,
    is_shadow: bool = False,
) -> bytes:
    return encode_points(
        call.batch_id,
        active.model,
        active.version,
        is_shadow,
        call.event_ms,
        call.prediction_ids,
        block,
        values.data if isinstance(values, Tensor) else _float32(_whole(active, values, block)),
        call.delay_ms,
        (call.tags.encoded, call.tags.references),
        call.trace,
    )


def _log_fields(active: ActiveModel, trace: bytes) -> dict[str, str]:
    """Model, version and trace of a call, for the log."""
    fields = {"model": active.model, "version": active.version}
    return {**fields, "trace_id": trace.hex()} if trace else fields


def _count(active: ActiveModel, call: _Call, block: ResultBlock, seconds: float, *, is_shadow: bool = False) -> None:
    counts = active.counts
    if block.rows == 1 and not is_shadow:
        log_density, p_value, predicted, decision, reason = block.metric_values()
        wants_outlier = counts.observe_one(p_value, log_density, predicted, decision, reason, seconds)
    else:
        wants_outlier = counts.observe(
            block.column("decision"),
            block.column("reason"),
            block.column("p_value"),
            block.column("predicted"),
            block.column("log_density"),
            seconds,
            is_shadow=is_shadow,
        )
    if wants_outlier:
        row = int(np.flatnonzero(block.column("reason") == Reason.OUTLIER)[0])
        ids = call.prediction_ids
        name = ids[row] if ids else prediction_id(call.batch_id, row)
        counts.remember_outlier(name, float(block.column("p_value")[row]), call.trace)


def _in_order(active: ActiveModel, values: NDArray[Any] | Tensor, names: Sequence[str]) -> NDArray[Any] | Tensor:
    """The values with classes in the order of the bundle."""
    wanted = active.bundle.class_names
    if len(values.shape) != 2 or values.shape[1] != len(names):
        shape = "x".join(map(str, values.shape))
        raise RequestError(f"class_names: {len(names)} names for a tensor of the shape {shape}", field="class_names")
    if tuple(names) == tuple(wanted):
        return values
    try:
        return np.ascontiguousarray(_array(values)[:, column_order(names, wanted)])
    except FrameError as error:
        raise RequestError(error.message, field="class_names") from None


def _check_shape(active: ActiveModel, values: Values) -> int:
    """Number of rows; RequestError if they are too many, or not of the classes of the model."""
    rows, classes = _rows_of(values), active.bundle.scorer.n_inputs
    if not isinstance(values, TopRows) and (len(values.shape) != 2 or values.shape[1] != classes):
        raise RequestError(
            f"predictions: model {active.model!r} has {classes} classes, but the tensor has the shape "
            f"{'x'.join(map(str, values.shape))}",
            field="predictions",
        )
    if rows > MAX_ROWS:
        raise RequestError(f"predictions: {rows:,} rows are more than {MAX_ROWS:,}", field="predictions")
    return rows


def _rows_of(values: Values) -> int:
    return values.shape[0] if isinstance(values, Tensor) else len(values)


def _whole(active: ActiveModel, values: Values, block: ResultBlock) -> NDArray[Any]:
    """The rows of all classes, (n, K)."""
    return complete_top(active.bundle.scorer, values, block) if isinstance(values, TopRows) else _array(values)


def _set_classes(active: ActiveModel, values: Values, block: ResultBlock) -> NDArray[np.int32] | None:
    sizes = block.column("set_size")
    return set_classes(_whole(active, values, block), sizes) if sizes.any() else None


def _array(values: NDArray[Any] | Tensor) -> NDArray[Any]:
    return values.array() if isinstance(values, Tensor) else values


def _float32(values: NDArray[Any]) -> bytes:
    # A value that is too large for a float32 becomes infinite.
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype("<f4").tobytes()


def _softmax(logits: NDArray[Any]) -> Floats:
    with np.errstate(invalid="ignore", over="ignore"):
        return np.exp(log_softmax(logits.astype(np.float64)))


def _read_key(batch_id: bytes, idempotency_key: str) -> bytes:
    """What identifies a batch to its caller."""
    if batch_id and (idempotency_key or len(batch_id) != 16):
        what = "is given beside an idempotency_key" if idempotency_key else f"has {len(batch_id)} bytes, and not 16"
        raise RequestError(f"batch_id: {what}", field="batch_id")
    check_text("idempotency_key", idempotency_key, _MAX_KEY)
    return batch_id or idempotency_key.encode()


def _check_id(name: str, row: int, field: str) -> None:
    if not name or len(name) > _MAX_ID or "\0" in name:
        raise RequestError(
            f"{field}[{row}]: a prediction id has 1 to {_MAX_ID} characters, none of them NUL", field=field, row=row
        )


def _raise_row_error(values: NDArray[Any], block: ResultBlock, logits: bool) -> NoReturn:
    """Raise an error that describes the first row that is not valid."""
    row = int(np.flatnonzero(block.column("predicted") < 0)[0])
    what = "a value that is not finite"
    finite = np.isfinite(values[row])
    if not finite.all():
        column = int(np.flatnonzero(~finite)[0])
        what = f"{values[row, column]} at class {column}"
    elif not logits and (values[row] < -1e-6).any():
        column = int(values[row].argmin())
        what = f"{values[row, column]} at class {column}, which is negative"
    elif not logits:
        what = f"a sum of {math.fsum(values[row].tolist()):.6g} instead of 1"
    raise RequestError(
        f"predictions: row {row} has {what}; set partial_ok to have the other rows scored", field="predictions", row=row
    )
