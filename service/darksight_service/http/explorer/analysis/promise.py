"""The promise of a bundle's certificate beside what its gate does on labelled points."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from darksight_service.store.read.share import Share

__all__ = ["MeasuredPromise", "measure_promise"]

Bools: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class MeasuredPromise:
    """A promise about accepted rows.

    Parameters
    ----------
    kind
        `accuracy`, `coverage` or `joint_risk`; see `darksight_core.guarantees.thresholds`.
    promised, delta
        The promised share, and the probability that the promise fails; None if it holds on average.
    words
        The promise as a sentence.
    measured
        The same share on labelled points, with its exact 95% interval.
    verdict
        `kept` or `broken` if the whole interval is on one side of the promise, else `open`.
    """

    kind: str
    promised: float
    delta: float | None
    words: str
    measured: Share
    verdict: Literal["kept", "broken", "open"]


def measure_promise(certificate: Mapping[str, Any] | None, accepted: Bools, errors: Bools) -> MeasuredPromise | None:
    """Compare the promise about accepted rows with labelled points; None if the certificate has no such promise.

    Parameters
    ----------
    certificate
        That of the bundle.
    accepted
        Which labelled points the gate in force accepts, (n,).
    errors
        Which of their predictions are wrong, (n,).
    """
    part = (certificate or {}).get("reject")
    if part is None or not part["feasible"]:
        return None
    kind, promised = str(part["kind"]), float(part["promised"])
    rows = {"accuracy": ~errors[accepted], "coverage": accepted, "joint_risk": accepted & errors}[kind]
    measured = Share.of(rows)
    is_above, is_below = measured.low >= promised, measured.high < promised
    if kind == "joint_risk":
        is_above, is_below = measured.high <= promised, measured.low > promised
    verdict: Literal["kept", "broken", "open"] = "kept" if is_above else "broken" if is_below else "open"
    return MeasuredPromise(kind, promised, part["delta"], str(part["promise"]), measured, verdict)
