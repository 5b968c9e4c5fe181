"""The maths of DarkSight: a 2D map of a classifier's predictions, and a gate that accepts or rejects each of them.

    from darksight_core import Scorer

    scores = Scorer.load("model.safetensors").score(probs)

DarkSight       fits a map, as a scikit-learn estimator; needs torch
Scorer          scores rows of probabilities
Gate            accepts or rejects scored rows, with a reason
Bundle          what a fit writes to one file; `read_bundle` and `write_bundle`
DarkSightError  root of all errors

Names are imported when they are first used: `import darksight_core` loads neither numpy nor torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from darksight_core.errors import DarkSightError
from darksight_core.rows.version import __version__

if TYPE_CHECKING:
    from darksight_core.bundle import Bundle, read_bundle, write_bundle
    from darksight_core.fit.estimator import DarkSight
    from darksight_core.gate.gate import Gate
    from darksight_core.runtime.scorer import Scorer

__all__ = [
    "Bundle",
    "DarkSight",
    "DarkSightError",
    "Gate",
    "Scorer",
    "__version__",
    "read_bundle",
    "write_bundle",
]

_MODULES = {
    "Bundle": "darksight_core.bundle",
    "DarkSight": "darksight_core.fit.estimator",
    "Gate": "darksight_core.gate.gate",
    "Scorer": "darksight_core.runtime.scorer",
    "read_bundle": "darksight_core.bundle",
    "write_bundle": "darksight_core.bundle",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
