"""Batching of one-row calls from many threads.

A web server scores one prediction per request, in many threads at a time. One Score call with 256 rows costs the server
a fraction of 256 calls with one row. A `Batcher` collects rows until a batch is full or the oldest row has waited long
enough. While calls are in flight the next rows collect, so that batches grow with the load.

The result of a row does not depend on the other rows. Rows of different lengths, and rows with and without an id, are
sent in separate calls. An invalid row gets the reason INVALID. If a call is rejected as invalid, its rows are sent one
by one. Timeout, circuit breaker and `on_failure` are those of `Client.gate`.
"""

from __future__ import annotations

import copy
import queue
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from darksight_client.client import Client
from darksight_client.errors import DarkSightClientError, InvalidRequest
from darksight_client.requests import as_one_row
from darksight_client.results.rows import Gated

__all__ = ["Batcher"]


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    """A row whose caller waits for the result."""

    row: NDArray[np.float32]
    prediction_id: str | None
    tags: Mapping[str, str]
    arrived: float
    result: Future[Gated] = field(default_factory=Future)


class Batcher:
    """Collects rows for one model and scores them in batches. Thread-safe.

    Parameters
    ----------
    client
        Client that sends the calls; it is not closed with the batcher.
    model
        Name of the watched classifier.
    max_rows
        Maximum rows of a call.
    max_wait_seconds
        Maximum time that a row waits for others.
    calls
        Maximum number of calls in flight; each has its own thread.
    logits
        Whether rows are logits.

    Examples
    --------
    >>> with Batcher(client, "digits") as batcher:  # doctest: +SKIP
    ...     batcher.gate(row).accepted  # in any thread
    """

    def __init__(
        self,
        client: Client,
        model: str,
        *,
        max_rows: int = 256,
        max_wait_seconds: float = 0.002,
        calls: int = 2,
        logits: bool = False,
    ) -> None:
        self._client = client
        self._model = model
        self._max_rows = max_rows
        self._max_wait_seconds = max_wait_seconds
        self._logits = logits
        self._rows: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._collecting = threading.Lock()
        self._closing = threading.Lock()
        self._is_closed = False
        self._threads = [
            threading.Thread(target=self._work, name="darksight-batcher", daemon=True) for _ in range(calls)
        ]
        for thread in self._threads:
            thread.start()

    def gate(self, row: ArrayLike, *, prediction_id: str | None = None, tags: Mapping[str, str] | None = None) -> Gated:
        """Score one prediction, as `Client.gate` does, and wait for the result."""
        return self.submit(row, prediction_id=prediction_id, tags=tags).result()

    def submit(
        self, row: ArrayLike, *, prediction_id: str | None = None, tags: Mapping[str, str] | None = None
    ) -> Future[Gated]:
        """Score one prediction without waiting."""
        waiting = _Waiting(as_one_row(row)[0], prediction_id, tags or {}, time.monotonic())
        with self._closing:
            if self._is_closed:
                raise DarkSightClientError("the batcher is closed.")
            self._rows.put(waiting)
        return waiting.result

    def close(self) -> None:
        """Score the waiting rows, then stop."""
        with self._closing:
            if not self._is_closed:
                self._is_closed = True
                self._rows.put(None)
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _work(self) -> None:
        while True:
            with self._collecting:
                rows, is_last = self._collect()
            for group in _groups(rows):
                self._send(group)
            if is_last:
                return

    def _collect(self) -> tuple[list[_Waiting], bool]:
        """Rows for a call, and whether they are the last ones."""
        rows: list[_Waiting] = []
        while len(rows) < self._max_rows:
            try:
                # A row that waited while calls were in flight is due at once, with the rows that are already queued.
                rest = rows[0].arrived + self._max_wait_seconds - time.monotonic() if rows else None
                waiting = self._rows.get(timeout=None if rest is None else max(rest, 0.0))
            except queue.Empty:
                break
            if waiting is None:
                self._rows.put(None)  # for the other threads
                return rows, True
            rows.append(waiting)
        return rows, False

    def _send(self, group: list[_Waiting]) -> None:
        """Score rows that can go in one call."""
        names = [waiting.prediction_id for waiting in group if waiting.prediction_id is not None]
        try:
            rows = np.stack([waiting.row for waiting in group])
            tags = [waiting.tags for waiting in group]
            gate = self._client._gate(
                self._model,
                rows,
                logits=self._logits,
                prediction_ids=names or None,
                tags=tags if any(tags) else (),
            )
            gated = self._client._run(gate)
        except InvalidRequest as error:
            if len(group) == 1:
                group[0].result.set_exception(error)
            for waiting in group if len(group) > 1 else ():
                self._send([waiting])
        except BaseException as error:
            # Raising an exception modifies it, so each thread gets its own copy.
            for waiting in group:
                waiting.result.set_exception(copy.copy(error))
        else:
            for waiting, each in zip(group, gated, strict=True):
                waiting.result.set_result(each)


def _groups(rows: Iterable[_Waiting]) -> Iterable[list[_Waiting]]:
    """Rows that can go in one call."""
    groups: dict[tuple[int, bool], list[_Waiting]] = {}
    for waiting in rows:
        groups.setdefault((len(waiting.row), waiting.prediction_id is None), []).append(waiting)
    return groups.values()
