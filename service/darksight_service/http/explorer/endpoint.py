"""An API path of the explorer: its input model, its scope, and the function that answers it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from darksight_service.control.changes import Control
from darksight_service.control.registry import ActiveModel, Registry
from darksight_service.control.tokens import ANYBODY, Caller
from darksight_service.http.explorer.answers import Answer
from darksight_service.http.explorer.inputs import ModelInput, VersionInput
from darksight_service.http.inputs import Input, read_body_input, read_query_input
from darksight_service.metrics.processes import ProcessCounts
from darksight_service.settings import Settings
from darksight_service.store.store import Store

__all__ = ["Call", "Endpoint", "Sources"]

T = TypeVar("T", bound=Input)


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the explorer reads from.

    Parameters
    ----------
    settings
        Settings of the service.
    registry
        Models and versions; refreshed before every request.
    control
        Policies and regions.
    store
        Returns the store, or raises StoreUnavailableError.
    counts
        Counters of the process.
    """

    settings: Settings
    registry: Registry
    control: Control
    store: Callable[[], Store]
    counts: ProcessCounts

    def active_model(self, given: VersionInput) -> ActiveModel:
        """The version that an input names, by default the active one."""
        return self.registry.get(given.model, given.version)


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A permitted request.

    Parameters
    ----------
    input
        The validated input.
    caller
        Who calls, and the models that this caller may use.
    """

    input: T
    caller: Caller = ANYBODY


@dataclass(frozen=True, slots=True)
class Endpoint(Generic[T]):
    """A path of the API.

    Parameters
    ----------
    method
        `GET`, which changes nothing, or `POST`.
    path
        Path below `/api/`.
    scope
        Scope that the caller's token needs: `read`, `report` or `admin`.
    input
        Model of the query (GET) or of the JSON body (POST).
    answer
        The function; it runs in a thread.
    lists_models
        Whether it shows the models that the caller may use, and those alone. Without it, a caller who may use some
        models only may call no path whose input names no model.
    """

    method: Literal["GET", "POST"]
    path: str
    scope: str
    input: type[T]
    answer: Callable[[Call[T]], Answer]
    lists_models: bool = False

    def read(self, query: Mapping[str, str], body: bytes) -> T:
        """The validated input of a request; RequestError names the first field that is wrong."""
        return read_query_input(self.input, query) if self.method == "GET" else read_body_input(self.input, body)

    def check_model(self, caller: Caller, given: T) -> None:
        """ForbiddenError if a caller may not use the model of an input."""
        if isinstance(given, ModelInput):
            caller.check_model(given.model)
        elif not self.lists_models:
            caller.check_all_models("this page shows")
