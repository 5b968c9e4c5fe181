"""The tree of everything that DarkSight refuses, with a stable code for each kind.

    DarkSightError
    ├── PredictionsError     a predictions file or array is defective (see predictions/)
    ├── ConfigError          an option has a value that cannot work
    ├── FitError             a fit failed or was interrupted
    ├── BundleError          a bundle file cannot be trusted (see bundle/)
    └── ClassifierError      a watched classifier that is to be explained cannot be (see explain/)

Every error has one shape: a `code` that programs may rely on, a message made for people that names what is wrong,
where, and what to do, and `details`, a flat dictionary of the same facts.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = ["BundleError", "ConfigError", "DarkSightError", "FitError", "PredictionsError"]


class DarkSightError(Exception):
    """Root of the tree; raise a subclass."""

    code: ClassVar[str] = "darksight"

    def __init__(self, message: str, **details: object) -> None:
        super().__init__(message)
        self.message = message
        self.details = details


class PredictionsError(DarkSightError, ValueError):
    """A predictions file or array is defective; its subclasses live in predictions/defects.py."""

    code = "predictions"


class ConfigError(DarkSightError, ValueError):
    """An option has a value that cannot work."""

    code = "config"


class FitError(DarkSightError):
    """A fit failed or was interrupted."""

    code = "fit"


class BundleError(DarkSightError):
    """A bundle file cannot be trusted; its subclasses live in bundle/defects.py."""

    code = "bundle"
