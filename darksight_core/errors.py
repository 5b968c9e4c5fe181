"""The tree of errors, with a stable code for each kind.

    DarkSightError
    ├── PredictionsError     a predictions file or array is invalid (codes in predictions/defects.py)
    ├── ConfigError          an option or argument has an invalid value
    ├── FitError             a fit failed or was interrupted
    ├── BundleError          a bundle file is invalid (codes in bundle/defects.py)
    ├── ShapeError           rows to score have the wrong shape or type (runtime/)
    └── ClassifierError      a watched classifier cannot be explained (explain/)

Every error has a `code` for programs, of its class or of the single defect; a message for people that says what is
wrong, where, and what to do; and `details`, a flat dictionary of the same facts.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

__all__ = ["BundleError", "ConfigError", "DarkSightError", "FitError", "PredictionsError", "did_you_mean"]


class DarkSightError(Exception):
    """Root of all errors; raise a subclass.

    The code of a subclass is its name: that of `NotFoundError` is `not_found`, unless it states another.
    """

    code: str = "darksight"

    def __init_subclass__(cls) -> None:
        if "code" not in vars(cls):
            cls.code = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__.removesuffix("Error")).lower()

    def __init__(self, message: str, **details: object) -> None:
        super().__init__(message)
        self.message = message
        self.details = details


class PredictionsError(DarkSightError, ValueError):
    """A predictions file or array is invalid; `predictions.defects` has the codes."""


class ConfigError(DarkSightError, ValueError):
    """An option or argument has an invalid value."""


class FitError(DarkSightError):
    """A fit failed or was interrupted."""


class BundleError(DarkSightError):
    """A bundle file is invalid; `bundle.defects` has the codes."""


def did_you_mean(given: str, known: Iterable[str], otherwise: str = "") -> str:
    """A hint for a word that is not known: the closest known one, else `otherwise` or the first dozen of all.

    >>> did_you_mean("Cta", ["cat", "dog"])
    'did you mean cat?'
    >>> did_you_mean("zebra", ["cat", "dog"])
    'known are cat, dog'
    """
    words = {word.lower(): word for word in known}
    close = difflib.get_close_matches(given.lower(), words, n=1)
    if close:
        return f"did you mean {words[close[0]]}?"
    names = list(words.values())
    return otherwise or f"known are {', '.join(names[:12])}" + (", ..." if len(names) > 12 else "")
