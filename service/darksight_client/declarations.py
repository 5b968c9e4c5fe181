"""How an operation is declared: once, for the client for threads and for the one for asyncio.

An operation is a method of `darksight_client.operations.Operations`. Its decorator says of which kind it is, and
`add_methods` makes a method of each client from it:

    decorator    what the function returns             method of Client        method of AsyncClient
    unary        nothing: it is a signature            returns the result      coroutine
    operation    the steps of one or more calls        returns their result    coroutine
    scoring      the same, for an array or a table     the same                the same
    listing      the steps of one page after another   iterator of items       asynchronous iterator
    streaming    a `Stream`                            iterator of results     asynchronous iterator

For type checkers the class of the client decides what a method returns: see `Declared.__get__`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeAlias, TypeVar, get_type_hints, overload

from google.protobuf import message_factory
from google.protobuf.message import DecodeError, Message
from numpy.typing import ArrayLike

from darksight_client.errors import ServerError
from darksight_client.requests import make_request
from darksight_client.results.messages import read
from darksight_client.results.rows import Scored
from darksight_client.transport.retries import Steps
from darksight_client.transport.transport import Transport
from darksight_core.rows.frames import Table
from darksight_core.rows.partial import TopRows

__all__ = [
    "Asynchronous",
    "Blocking",
    "Declared",
    "Kind",
    "Pages",
    "Rpc",
    "add_methods",
    "listing",
    "operation",
    "scoring",
    "streaming",
    "unary",
]

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", covariant=True)
A = TypeVar("A", covariant=True)
Class = TypeVar("Class", bound=type)

Pages: TypeAlias = Iterator[Steps[tuple[T, ...]]]
"""The steps of one page after another."""


class Blocking:
    """A client whose methods block."""


class Asynchronous:
    """A client whose methods are coroutines."""


class Kind(Enum):
    """What an operation is made of, and the method of a client that executes it."""

    STEPS = "_run"
    PAGES = "_items"
    STREAM = "_results"


@dataclass(frozen=True, slots=True)
class Declared(Generic[S, A]):
    """A declared operation: a method of type S of a client that blocks, and of type A of an asynchronous one.

    Parameters
    ----------
    kind
        What `function` returns.
    function
        Takes the client and the arguments of the method.
    result
        Type of the result, or of the items of an iterator, for the signature.
    """

    kind: Kind
    function: Callable[..., Any]
    result: str

    @overload
    def __get__(self, client: Blocking, owner: Any) -> S: ...
    @overload
    def __get__(self, client: Asynchronous, owner: Any) -> A: ...
    @overload
    def __get__(self, client: None, owner: Any) -> Callable[..., Any]: ...
    def __get__(self, client: Any, owner: Any) -> Any:
        return self


class _Score(Protocol[P]):
    @overload
    def __call__(self, model: str, probs: Table, *args: P.args, **options: P.kwargs) -> Table: ...
    @overload
    def __call__(self, model: str, probs: ArrayLike | TopRows, *args: P.args, **options: P.kwargs) -> Scored: ...


class _AsyncScore(Protocol[P]):
    @overload
    async def __call__(self, model: str, probs: Table, *args: P.args, **options: P.kwargs) -> Table: ...
    @overload
    async def __call__(self, model: str, probs: ArrayLike | TopRows, *args: P.args, **options: P.kwargs) -> Scored: ...


class _Stream(Protocol[P]):
    def __call__(
        self, model: str, batches: Iterable[ArrayLike | TopRows], *args: P.args, **options: P.kwargs
    ) -> Iterator[Scored]: ...


class _AsyncStream(Protocol[P]):
    def __call__(
        self,
        model: str,
        batches: Iterable[ArrayLike | TopRows] | AsyncIterable[ArrayLike | TopRows],
        *args: P.args,
        **options: P.kwargs,
    ) -> AsyncIterator[Scored]: ...


_Call: TypeAlias = Declared[Callable[P, T], Callable[P, Coroutine[Any, Any, T]]]


def operation(function: Callable[Concatenate[Any, P], Steps[T]]) -> _Call[P, T]:
    """Declare an operation of one or more calls."""
    return Declared(Kind.STEPS, function, _item(function))


def scoring(function: Callable[Concatenate[Any, str, Any, P], Steps[Any]]) -> Declared[_Score[P], _AsyncScore[P]]:
    """Declare an operation that returns a table for a table and `Scored` for an array."""
    return Declared(Kind.STEPS, function, _item(function))


def listing(
    function: Callable[Concatenate[Any, P], Pages[T]],
) -> Declared[Callable[P, Iterator[T]], Callable[P, AsyncIterator[T]]]:
    """Declare an operation that returns items; a page of them is fetched when it is needed."""
    return Declared(Kind.PAGES, function, _item(function))


def streaming(function: Callable[Concatenate[Any, str, Any, P], Any]) -> Declared[_Stream[P], _AsyncStream[P]]:
    """Declare an operation that scores many batches on one call."""
    return Declared(Kind.STREAM, function, "Scored")


def _item(function: Callable[..., Any]) -> str:
    """T of the return annotation Steps[T] or Pages[T]."""
    return str(inspect.signature(function).return_annotation).partition("[")[2].removesuffix("]")


@dataclass(frozen=True, slots=True)
class Rpc(Generic[T]):
    """A unary method of the service.

    Parameters
    ----------
    service
        Descriptor of the service.
    name
        Name of the method.
    convert
        Makes the result from the response.
    is_idempotent
        Whether it is retried. Changes are not: if the response is lost, the server may have made them, and a second
        roll-back would undo the first.
    """

    service: Any
    name: str
    convert: Callable[[Any], T]
    is_idempotent: bool = True

    def steps(self, client: Transport, request: Message) -> Steps[T]:
        """Send a request with retries, and read the response."""
        path = f"/{self.service.full_name}/{self.name}"
        data = yield from client._call(path, request.SerializeToString(), is_idempotent=self.is_idempotent)
        response = message_factory.GetMessageClass(self.service.methods_by_name[self.name].output_type)
        try:
            return self.convert(response.FromString(data))
        except DecodeError:
            raise ServerError(f"invalid response to {path}; is the server a DarkSight server?") from None


def unary(
    service: Any, name: str, field: str = "", *, is_idempotent: bool = True, **constants: Any
) -> Callable[[Callable[Concatenate[Any, P], T]], _Call[P, T]]:
    """Declare an operation that is one call. The parameters of the function are fields of the request.

    Parameters
    ----------
    service, name, is_idempotent
        See `Rpc`.
    field
        Field of the response that is the result. Default: the whole response.
    constants
        Other fields of the request.
    """

    def declare(function: Callable[Concatenate[Any, P], T]) -> _Call[P, T]:
        signature = inspect.signature(function)
        request = message_factory.GetMessageClass(service.methods_by_name[name].input_type)
        unknown = {*signature.parameters, *constants} - {"self", *request.DESCRIPTOR.fields_by_name}
        if unknown:
            raise TypeError(f"{function.__name__}: {request.DESCRIPTOR.name} has no {sorted(unknown)}")

        def convert(response: Any) -> T:
            result: T = read(get_type_hints(function)["return"], getattr(response, field) if field else response)
            return result

        @functools.wraps(function)
        def steps(client: Any, /, *args: Any, **options: Any) -> Steps[T]:
            bound = signature.bind(client, *args, **options)
            bound.apply_defaults()
            values = {key: value for key, value in bound.arguments.items() if key != "self"}
            return Rpc(service, name, convert, is_idempotent).steps(client, make_request(request, values | constants))

        return Declared(Kind.STEPS, steps, str(signature.return_annotation))

    return declare


def add_methods(client: Class) -> Class:
    """Give a class of clients a method for each operation that it inherits, with its signature and docstring."""
    iterator = "AsyncIterator" if issubclass(client, Asynchronous) else "Iterator"
    for name, declared in inspect.getmembers(client, lambda member: isinstance(member, Declared)):
        method = functools.wraps(declared.function)(_method(getattr(client, declared.kind.value), declared.function))
        method.__module__, method.__qualname__ = client.__module__, f"{client.__qualname__}.{name}"
        result = declared.result if declared.kind is Kind.STEPS else f"{iterator}[{declared.result}]"
        signature = inspect.signature(declared.function).replace(return_annotation=result)
        method.__signature__ = signature  # type: ignore[attr-defined]  # what inspect and help show
        setattr(client, name, method)
    return client


def _method(execute: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, /, *args: Any, **options: Any) -> Any:
        return execute(self, function(self, *args, **options))

    async def coroutine(self: Any, /, *args: Any, **options: Any) -> Any:
        return await execute(self, function(self, *args, **options))

    return coroutine if inspect.iscoroutinefunction(execute) else method
