"""Tables in and out: pandas, polars, Arrow, and whatever else has the Arrow or the dataframe interface.

A table has one column for each class, `prob_<class>` or `logit_<class>` beside any others, or columns that are named
like the classes and no others. narwhals reads and writes them; it is imported when a table comes, so that arrays do not
need it. The service's client uses this module too, which therefore imports nothing but numpy and the errors.

>>> import pyarrow
>>> table = read_frame(pyarrow.table({"prob_dog": [0.1], "prob_cat": [0.9], "id": ["a"]}))
>>> table.class_names, table.in_order(["cat", "dog"])
(('dog', 'cat'), array([[0.9, 0.1]]))
>>> table.like({"p_value": [0.5]}).to_pydict()
{'p_value': [0.5]}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from darksight_core.errors import PredictionsError, did_you_mean

__all__ = ["Frame", "FrameError", "Table", "column_order", "read_frame"]

_INTERFACES = ("__arrow_c_stream__", "__dataframe__", "__narwhals_dataframe__")
_ARRAYS = (np.ndarray, list, tuple, int, float)
_PREFIXES = {False: "prob_", True: "logit_"}


class _ArrowTable(Protocol):
    """An object with the Arrow PyCapsule interface."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any: ...


Table = TypeVar("Table", bound=_ArrowTable)
"""A table; what comes out is of the same kind."""


class FrameError(PredictionsError):
    """A table does not have the columns that are needed."""


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """Predictions of a table; made by `read_frame`.

    Parameters
    ----------
    class_names
        Classes in the order of the columns, K.
    values
        Their probabilities or logits, (n, K) float64; a missing value is NaN.
    selected
        The same columns as a table of the kind that was given.
    source
        The table as narwhals has it.
    """

    class_names: tuple[str, ...]
    values: NDArray[np.float64]
    selected: Any
    source: Any

    def in_order(self, class_names: Sequence[str]) -> NDArray[np.float64]:
        """The values with columns in this order of classes; FrameError if one is missing or unknown."""
        if self.class_names == tuple(class_names):
            return self.values
        return np.ascontiguousarray(self.values[:, column_order(self.class_names, class_names)])

    def like(self, columns: Mapping[str, Any]) -> Any:
        """A table of the same kind and, of pandas, with the same index."""
        import narwhals as nw

        lists = {name: values.tolist() if _is_text(values) else values for name, values in columns.items()}
        made = nw.from_dict(lists, backend=self.source.implementation).to_native()
        index = nw.maybe_get_index(self.source)
        if index is not None:
            made.index = index
        return made


def read_frame(values: object, *, logits: bool = False) -> Frame | None:
    """The predictions of a table; None if the object is not one.

    Parameters
    ----------
    values
        Any object.
    logits
        Whether columns of logits are wanted.
    """
    if isinstance(values, _ARRAYS) or not any(hasattr(values, name) for name in _INTERFACES):
        return None
    source = _narwhals(values)
    if source is None:
        return None
    columns = _class_columns(source.columns, logits=logits)
    schema = source.schema
    for name in columns.values():
        if not schema[name].is_numeric():
            raise FrameError(f"column {name}: has type {schema[name]}; predictions must be numbers", column=str(name))
    chosen = source.select(list(columns.values()))
    import narwhals as nw

    matrix = np.asarray(chosen.select(nw.all().cast(nw.Float64())).to_numpy(), dtype=np.float64)
    return Frame(tuple(columns), matrix.reshape(len(source), len(columns)), chosen.to_native(), source)


def column_order(given: Sequence[str], wanted: Sequence[str]) -> list[int]:
    """Where each wanted class is among the given ones.

    >>> column_order(["dog", "cat"], ["cat", "dog"])
    [1, 0]

    Raises
    ------
    FrameError
        If a class is missing, unknown or given twice.
    """
    places = {name: place for place, name in enumerate(given)}
    if len(places) < len(given):
        twice = next(name for place, name in enumerate(given) if places[name] != place)
        raise FrameError(f"class_names: class {twice!r} is given twice", column=twice)
    known = set(wanted)
    unknown = next((name for name in given if name not in known), None)
    if unknown is not None:
        hint = did_you_mean(unknown, wanted)
        raise FrameError(f"class_names: {unknown!r} is not a class of the bundle; {hint}", column=unknown)
    missing = next((name for name in wanted if name not in places), None)
    if missing is not None:
        raise FrameError(f"class_names: class {missing!r} of the bundle is missing", column=missing)
    return [places[name] for name in wanted]


def _narwhals(values: Any) -> Any:
    """The table as narwhals has it, or None for a series."""
    try:
        import narwhals as nw
    except ImportError as error:
        text = "tables need narwhals; install it (pip install 'darksight[frames]'), or give an array"
        raise FrameError(text) from error
    try:
        return nw.from_native(values, eager_only=True)
    except TypeError:
        pass  # a series, or a kind that narwhals does not know
    except Exception as error:
        raise FrameError(f"the table cannot be read: {error}") from error
    if nw.dependencies.is_into_series(values):
        return None
    try:
        if hasattr(values, "__arrow_c_stream__"):
            return nw.from_arrow(values, backend="pyarrow")
        from pyarrow.interchange import from_dataframe

        return nw.from_native(from_dataframe(values), eager_only=True)
    except Exception as error:
        raise FrameError(f"a {type(values).__name__} cannot be read as a table: {error}") from error


def _class_columns(names: Sequence[Any], *, logits: bool) -> dict[str, Any]:
    """Columns by class, in their order."""
    for is_logits in (logits, not logits):
        prefix = _PREFIXES[is_logits]
        found = {name.removeprefix(prefix): name for name in names if isinstance(name, str) and name.startswith(prefix)}
        if found and is_logits is not logits:
            wanted = "logits" if is_logits else "probabilities"
            raise FrameError(f"the columns {prefix}... are {wanted}, and the call says that they are not")
        if found:
            return found
    if not names:
        raise FrameError("the table has no columns; give one for each class")
    return {str(name): name for name in names}


def _is_text(values: Any) -> bool:
    return isinstance(values, np.ndarray) and values.dtype.kind in "US"
