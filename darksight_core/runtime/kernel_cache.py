"""Where machine code of the kernel is kept, and whether it is that of these sources.

numba's own cache looks at one source file and is used only where it can be written to. The kernel has a file for each
stage, takes constants from others, and may be compiled into an image that is read-only.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import numba
from llvmlite.binding import add_symbol  # type: ignore[import-untyped]
from numba.core import caching
from numba.core.runtime._nrt_python import c_helpers  # type: ignore[import-not-found]  # a C module

from darksight_core.runtime.compiled.kernel import score_rows
from darksight_core.runtime.cpus import cache_folder

__all__ = ["KernelCache"]

# All that the kernel is compiled from: a change anywhere here makes machine code stale.
_SOURCES = ("map", "rows/resolution.py", "rows/simplex.py", "runtime", "scores")


def _digest() -> str:
    root = Path(__file__).parents[1]
    found = hashlib.sha256()
    for source in _SOURCES:
        for path in sorted((root / source).rglob("*.py")) or [root / source]:
            found.update(path.read_bytes())
    return found.hexdigest()


class _Locator(caching._CacheLocator):  # numba has no public one
    def get_cache_path(self) -> str:
        return str(cache_folder())

    def get_source_stamp(self) -> str:
        return _digest()

    def get_disambiguator(self) -> str:
        return "darksight"

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> _Locator:
        return cls()


class _Implementation(caching.CompileResultCacheImpl):
    _locator_classes: list[type[object]] = [_Locator]  # noqa: RUF012  # declared so by numba


class KernelCache(caching.FunctionCache):
    """The cache of `score_rows`, for arguments of one kind."""

    _impl_class = _Implementation

    def __init__(self, arguments: tuple[Any, ...]) -> None:
        super().__init__(score_rows.py_func)  # type: ignore[no-untyped-call]  # numba has no types
        type_of: Any = numba.typeof
        self._types = tuple(map(type_of, arguments))
        score_rows._cache = self

    @property
    def is_filled(self) -> bool:
        """Whether there is machine code of these sources for this machine."""
        cache: Any = self
        key = cache._index_key(self._types, score_rows.targetctx.codegen())
        return key in cache._cache_file._load_index()

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The machine code for these arguments, or nothing.

        numba would set up all that it needs to compile, which takes 80 MB; the code needs its allocator alone.
        """
        for name, address in c_helpers.items():
            add_symbol(name if name.startswith("_") else f"NRT_{name}", address)
        cache: Any = self
        return cache._load_overload(sig, target_context)

    def load(self) -> Any:
        """The compiled function, from the cache or compiled now.

        It must be called with arguments of this kind, which nothing checks: that would take numba as long as a row.
        """
        if self._types not in score_rows.overloads:
            # OSError: the cache cannot be written to, but the code is there.
            with suppress(OSError):
                score_rows.compile(self._types)
        return score_rows.overloads[self._types].entry_point
