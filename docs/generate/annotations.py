"""An extension of griffe: parameters that share a line of a docstring get their own types and defaults.

For `embedder, kde` griffe takes those of the first name for both. And operations of the client return what their
methods return, not the steps.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

from griffe import Alias, AliasResolutionError, DocstringSectionKind, Extension, Object

__all__ = ["OwnAnnotations"]

_SHARED = re.compile(r"^\w+(, \w+)+$", re.M)


class OwnAnnotations(Extension):
    """Runs once per package, before its pages are written."""

    def on_package(self, *, pkg: Any, **_: Any) -> None:
        """Mend the docstrings of a package."""
        _mend(pkg)
        if pkg.name == "darksight_client":
            for function in pkg["operations.Operations"].functions.values():
                returned = str(function.returns)
                if returned.startswith("Steps["):
                    function.returns = function.returns.slice
                elif returned.startswith("Pages["):
                    function.returns.left = "Iterator"
                elif returned == "Stream":
                    function.returns = "Iterator[Scored]"


def _mend(thing: Object) -> None:
    for member in thing.members.values():
        if not isinstance(member, Alias):
            with suppress(AliasResolutionError):
                _mend(member)
    if thing.docstring is None or not _SHARED.search(thing.docstring.value):
        return
    for section in thing.docstring.parsed:
        if section.kind is DocstringSectionKind.parameters:
            for parameter in section.value:
                with suppress(AttributeError, KeyError):
                    own = thing.parameters[parameter.name]  # type: ignore[attr-defined]  # of functions and classes
                    parameter.annotation, parameter.value = own.annotation, own.default
