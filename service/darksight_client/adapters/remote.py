"""The gate for handlers of servers written in Python, such as those of BentoML and Ray Serve.

Such servers start processes by themselves and send them objects, so a connection must not be made before its process
runs. A `RemoteGate` can be pickled, and connects when it is first called.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import numpy as np
from numpy.typing import ArrayLike

from darksight_client import AsyncClient, Gated

__all__ = ["Decided", "RemoteGate"]


class Decided(TypedDict):
    """A prediction and its decision, of types that JSON has.

    Parameters
    ----------
    predicted
        The most probable class: its name, or its number if names were not given.
    accepted
        Whether it may be acted on.
    reason
        Why not, in lower case; "none" if it may.
    p_value
        None if the row was not scored.
    prediction_id
        For `Client.report`.
    """

    predicted: str | int
    accepted: bool
    reason: str
    p_value: float | None
    prediction_id: str


class RemoteGate:
    """Decides on the predictions of one model by calling the service.

    Rows are sent one by one, at the same time, so that the timeout, the circuit breaker and `on_failure` of the client
    apply to each. It is meant for requests of a few rows; `Client.score` sends many at once.

    Parameters
    ----------
    target
        Address of the service, or several.
    model
        Name of the watched classifier.
    class_names
        Names of the classes, for `Decided.predicted`.
    options
        Those of `AsyncClient`, such as `token_file` and `on_failure`.
    """

    def __init__(
        self, target: str | Sequence[str], model: str, *, class_names: Sequence[str] = (), **options: Any
    ) -> None:
        self._target = target
        self._model = model
        self._class_names = tuple(class_names)
        self._options = options
        self._client: AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_client": None, "_loop": None}

    async def __call__(self, probs: ArrayLike, *, tags: Mapping[str, str] | None = None) -> list[Decided]:
        """Decisions on rows of probabilities, (n, K), or (K,) for one; `tags` are those of all rows."""
        rows = np.atleast_2d(np.asarray(probs))
        client = self._connected()
        gated = await asyncio.gather(*(client.gate(self._model, row, tags=tags) for row in rows))
        return [self._decided(row, each) for row, each in zip(rows, gated, strict=True)]

    async def close(self) -> None:
        """Close the connection; the next call opens another."""
        if self._client is not None:
            await self._client.close()
            self._client = None

    def _connected(self) -> AsyncClient:
        # A client belongs to one event loop, and a server may use several.
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            self._client, self._loop = AsyncClient(self._target, **self._options), loop
        return self._client

    def _decided(self, row: Any, gated: Gated) -> Decided:
        number = int(row.argmax())
        return Decided(
            predicted=self._class_names[number] if self._class_names else number,
            accepted=gated.accepted,
            reason=gated.reason.name.lower(),
            p_value=None if np.isnan(gated.p_value) else gated.p_value,
            prediction_id=gated.prediction_id,
        )
