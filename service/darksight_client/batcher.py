"""One-row calls of many threads, sent together.

A web server asks about one prediction per request, in many threads at a time. One Score with 256 rows costs the server
a fraction of 256 with one. A `Batcher` gathers rows until there are enough or the oldest has waited long enough; while
calls are under way the next rows gather, so that batches grow with the load by themselves.

The fate of a row does not depend on its company: rows with another number of values, with or without a name, go in a
call of their own; a bad row gets the reason INVALID; and if a call is refused all the same, its rows are sent one by
one.
"""

from __future__ import annotations

import copy
import queue
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from darksight_client.client import Client
from darksight_client.errors import DarkSightClientError, InvalidRequest
from darksight_client.requests import as_rows
from darksight_client.results import Gated

__all__ = ["Batcher"]


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    """A row whose caller waits."""

    row: NDArray[np.float32]
    prediction_id: str | None
    arrived: float
    answer: Future[Gated] = field(default_factory=Future)


class Batcher:
    """Gathers rows for one model; may be shared by all threads of a program.

    Parameters
    ----------
    client
        What sends them; stays open when the batcher is closed.
    model
        Name of the watched classifier.
    max_rows
        Rows of a call at most.
    max_wait_seconds
        How long a row waits for others.
    calls
        How many calls may be under way at a time, each in a thread of its own.
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
        self._gathering = threading.Lock()
        self._closing = threading.Lock()
        self._is_closed = False
        self._threads = [
            threading.Thread(target=self._work, name="darksight-batcher", daemon=True) for _ in range(calls)
        ]
        for thread in self._threads:
            thread.start()

    def gate(self, row: ArrayLike, *, prediction_id: str | None = None) -> Gated:
        """`Client.gate`, together with the rows of other threads; waits for the answer."""
        return self.submit(row, prediction_id=prediction_id).result()

    def submit(self, row: ArrayLike, *, prediction_id: str | None = None) -> Future[Gated]:
        """The same without waiting."""
        rows = as_rows(row)
        if len(rows) != 1:
            raise InvalidRequest(f"{len(rows)} rows; a batcher takes one at a time.")
        waiting = _Waiting(rows[0], prediction_id, time.monotonic())
        with self._closing:
            if self._is_closed:
                raise DarkSightClientError("the batcher is closed.")
            self._rows.put(waiting)
        return waiting.answer

    def close(self) -> None:
        """Answer what waits, then end."""
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
            with self._gathering:
                rows, is_last = self._gather()
            for group in _groups(rows):
                self._send(group)
            if is_last:
                return

    def _gather(self) -> tuple[list[_Waiting], bool]:
        """Rows for a call, and whether they are the last ones."""
        rows: list[_Waiting] = []
        while len(rows) < self._max_rows:
            try:
                # What waited while calls were under way is due already: it takes along what is there and goes.
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
        """Get the answers for rows of one kind."""
        names = [waiting.prediction_id for waiting in group if waiting.prediction_id is not None]
        try:
            scored = self._client.score(
                self._model,
                np.stack([waiting.row for waiting in group]),
                logits=self._logits,
                prediction_ids=names or None,
                partial_ok=True,
            )
        except InvalidRequest as error:
            if len(group) == 1:
                group[0].answer.set_exception(error)
            for waiting in group if len(group) > 1 else ():
                self._send([waiting])
        except BaseException as error:
            # Raising changes an exception, so each thread gets one of its own.
            for waiting in group:
                waiting.answer.set_exception(copy.copy(error))
        else:
            for waiting, gated in zip(group, scored, strict=True):
                waiting.answer.set_result(gated)


def _groups(rows: Iterable[_Waiting]) -> Iterable[list[_Waiting]]:
    """Rows that can go in one call."""
    groups: dict[tuple[int, bool], list[_Waiting]] = {}
    for waiting in rows:
        groups.setdefault((len(waiting.row), waiting.prediction_id is None), []).append(waiting)
    return groups.values()
