"""The tree of errors, with a stable code for each kind.

    DarkSightError
    ├── PredictionsError     a predictions file or array is invalid (subclasses in predictions/defects.py)
    ├── ConfigError          an option or argument has an invalid value
    ├── FitError             a fit failed or was interrupted
    ├── BundleError          a bundle file is invalid (subclasses in bundle/defects.py)
    ├── ShapeError           rows to score have the wrong shape or type (runtime/)
    └── ClassifierError      a watched classifier cannot be explained (explain/)

Every error has a `code` for programs, a message for people that says what is wrong, where, and what to do, and
`details`, a flat dictionary of the same facts.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = ["BundleError", "ConfigError", "DarkSightError", "FitError", "PredictionsError"]


class DarkSightError(Exception):
    """Root of all errors; raise a subclass."""

    code: ClassVar[str] = "darksight"

    def __init__(self, message: str, **details: object) -> None:
        super().__init__(message)
        self.message = message
        self.details = details


class PredictionsError(DarkSightError, ValueError):
    """A predictions file or array is invalid; subclasses in predictions/defects.py."""

    code = "predictions"


class ConfigError(DarkSightError, ValueError):
    """An option or argument has an invalid value."""

    code = "config"


class FitError(DarkSightError):
    """A fit failed or was interrupted."""

    code = "fit"


class BundleError(DarkSightError):
    """A bundle file is invalid; subclasses in bundle/defects.py."""

    code = "bundle"
