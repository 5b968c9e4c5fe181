"""An inference logger that delivers every event at least once, and some of them again."""

from __future__ import annotations

import http.client
import json
import random
import sqlite3
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

__all__ = ["Delivered", "Logger", "count_stored"]

_PAUSE_SECONDS = 0.02
_GIVE_UP_SECONDS = 120.0
# The share of events that is delivered once more, although the first delivery was acknowledged.
_AGAIN = 0.2


@dataclass(slots=True)
class Delivered:
    """What became of the events.

    Parameters
    ----------
    statuses
        Of all deliveries; 0 for a connection that failed.
    seconds
        Of each delivery that was acknowledged.
    """

    statuses: Counter[int] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)


class Logger:
    """Sends events of one row each, the row with the number of the event modulo the rows.

    Parameters
    ----------
    url
        Of the endpoint.
    rows
        Predictions.
    service
        The inference service that the events are of.
    """

    def __init__(self, url: str, rows: NDArray[Any], service: str) -> None:
        self._host, _, path = url.partition("://")[2].partition("/")
        self._path = f"/{path}"
        self._rows = rows
        self._service = service
        self._lock = threading.Lock()
        self.delivered = Delivered()

    def send(self, events: range, threads: int = 4) -> Delivered:
        """Deliver each event until it is acknowledged."""
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(self._deliver, events))
        return self.delivered

    def _deliver(self, number: int) -> None:
        headers = {
            "ce-specversion": "1.0",
            "ce-id": f"event-{number}",
            "ce-source": "http://localhost:9081/",
            "ce-type": "org.kubeflow.serving.inference.response",
            "ce-time": datetime.now(UTC).isoformat(),
            "ce-inferenceservicename": self._service,
            "content-type": "application/json",
        }
        body = json.dumps({"predictions": [self._rows[number % len(self._rows)].tolist()]}).encode()
        left, end = 1 + (random.Random(number).random() < _AGAIN), time.monotonic() + _GIVE_UP_SECONDS
        while left:
            started = time.perf_counter()
            status = self._post(headers, body)
            with self._lock:
                self.delivered.statuses[status] += 1
                if status == 202:
                    self.delivered.seconds.append(time.perf_counter() - started)
            if status == 202:
                left -= 1
            elif time.monotonic() > end or (400 <= status < 500 and status != 429):
                raise AssertionError(f"event {number} got status {status}")
            else:
                time.sleep(_PAUSE_SECONDS)

    def _post(self, headers: dict[str, str], body: bytes) -> int:
        # A connection of its own for every event, as KServe's agent has.
        connection = http.client.HTTPConnection(self._host, timeout=20)
        try:
            connection.request("POST", self._path, body, headers)
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return 0
        finally:
            connection.close()


def count_stored(database: Path) -> Counter[str]:
    """How often each prediction id is in the points of an SQLite store; also that the counts per minute agree."""
    with closing(sqlite3.connect(database)) as store:
        # Both queries see the same state.
        store.execute("BEGIN")
        found = Counter(name for (name,) in store.execute("SELECT prediction_id FROM point WHERE NOT is_shadow"))
        (counted,) = store.execute("SELECT sum(points) FROM rollup WHERE NOT is_shadow").fetchone()
    assert (counted or 0) == found.total(), (counted, found.total())
    return found
