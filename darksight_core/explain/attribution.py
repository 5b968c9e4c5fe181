"""Heat maps: how much each part of an input contributes to an objective of its point, F(x) = f(y(x)).

    gradient      ∇_x F(x): where a small change moves F most
    integrated    (x - x0) ∫ ∇F(x0 + t (x - x0)) dt, t from 0 to 1: contributions that sum to F(x) - F(x0)
    smooth        mean of ∇F(x + noise): the gradient with less noise

(Sundararajan et al. 2017 for the second, Smilkov et al. 2017 for the third.) `gap` is the difference between the sum of
`integrated` and F(x) - F(x0): a jump of y from one minimum to another on the way is missing from the integral.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from darksight_core.errors import ConfigError
from darksight_core.evaluation.progress import Progress, Report, silent
from darksight_core.explain.chain import Chain, ClassifierError
from darksight_core.explain.objectives import Objective, batches, differentiate, evaluate
from darksight_core.rows.simplex import Floats

__all__ = ["Attribution", "gradient", "integrated", "smooth"]


@dataclass(frozen=True, slots=True, eq=False)
class Attribution:
    """Heat maps of n inputs.

    Parameters
    ----------
    heat
        Contribution of each part of the inputs, (n, ...).
    value
        F of the inputs, (n,).
    stationary
        Whether the derivative exists, see `Chain.is_stationary`, (n,).
    change
        F(x) - F(x0), (n,); None for other methods than `integrated`.
    gap
        Sum of the heat minus `change`, (n,): 0 if the explanation is complete; None like `change`.
    """

    heat: Floats
    value: Floats
    stationary: NDArray[np.bool_]
    change: Floats | None = None
    gap: Floats | None = None


def gradient(chain: Chain, objective: Objective, inputs: NDArray[Any], *, report: Report = silent) -> Attribution:
    """∇_x F.

    Parameters
    ----------
    chain
        Classifier and map.
    objective
        f.
    inputs
        (n, ...), floats.
    report
        Called with the progress.
    """
    heat = np.empty(inputs.shape)
    value, stationary = _values(chain, objective, inputs)
    for part in batches(len(inputs)):
        heat[part] = _slope(chain, objective, inputs[part])
        report(Progress("explain", part.stop, len(inputs), math.nan))
    return Attribution(heat, value, stationary)


def integrated(
    chain: Chain,
    objective: Objective,
    inputs: NDArray[Any],
    *,
    baseline: ArrayLike = 0.0,
    steps: int = 64,
    report: Report = silent,
) -> Attribution:
    """Integrated gradients by the midpoint rule.

    Parameters
    ----------
    chain, objective, inputs, report
        As for `gradient`.
    baseline
        x0, broadcast to the shape of an input; by default zeros.
    steps
        Number of points between x0 and x.
    """
    _at_least_one(steps=steps)
    start = _baseline(baseline, inputs)
    heat = np.zeros(inputs.shape)
    value, stationary = _values(chain, objective, inputs)
    change = value - _values(chain, objective, start)[0]
    for part in batches(len(inputs)):
        for step in range(steps):
            between = start[part] + (step + 0.5) / steps * (inputs[part] - start[part])
            heat[part] += _slope(chain, objective, between) / steps
            report(Progress("explain", part.start * steps + len(between) * (step + 1), len(inputs) * steps, math.nan))
    heat *= inputs - start
    return Attribution(heat, value, stationary, change, heat.reshape(len(heat), -1).sum(axis=1) - change)


def smooth(
    chain: Chain,
    objective: Objective,
    inputs: NDArray[Any],
    *,
    noise: float = 0.1,
    samples: int = 32,
    seed: int = 0,
    report: Report = silent,
) -> Attribution:
    """Mean gradient over noisy copies of the inputs.

    Parameters
    ----------
    chain, objective, inputs, report
        As for `gradient`.
    noise
        Standard deviation of the noise, as a share of the range of an input.
    samples
        Number of noisy copies of each input.
    seed
        Seed of the noise, which depends on the number of an input but not on the other inputs.
    """
    _at_least_one(samples=samples)
    if not noise >= 0.0:
        raise ConfigError(f"noise must be 0 or more, not {noise}")
    heat = np.zeros(inputs.shape)
    value, stationary = _values(chain, objective, inputs)
    for row, original in enumerate(inputs):
        rng = np.random.default_rng((seed, row))
        copies = original + noise * np.ptp(original) * rng.standard_normal((samples, *original.shape))
        for part in batches(samples):
            heat[row] += _slope(chain, objective, copies[part]).sum(axis=0) / samples
        report(Progress("explain", row + 1, len(inputs), math.nan))
    return Attribution(heat, value, stationary)


def _slope(chain: Chain, objective: Objective, inputs: NDArray[Any]) -> Floats:
    """∇F at inputs (n, ...)."""
    _, slope = differentiate(chain, objective, chain.tensor(inputs))
    found: Floats = slope.double().numpy()
    return found


def _values(chain: Chain, objective: Objective, inputs: NDArray[Any]) -> tuple[Floats, NDArray[np.bool_]]:
    """F of inputs, and whether their points are stationary, (n,) each."""
    value, stationary = np.empty(len(inputs)), np.empty(len(inputs), dtype=np.bool_)
    for part in batches(len(inputs)):
        rows = chain.tensor(inputs[part])
        value[part] = evaluate(chain, objective, rows).numpy()
        stationary[part] = chain.is_stationary(rows)
    return value, stationary


def _baseline(baseline: ArrayLike, inputs: NDArray[Any]) -> NDArray[Any]:
    try:
        return np.broadcast_to(np.asarray(baseline, dtype=inputs.dtype), inputs.shape)
    except (TypeError, ValueError) as error:
        raise ClassifierError(
            f"a baseline of shape {np.shape(baseline)} cannot be broadcast to inputs of shape {inputs.shape[1:]}"
        ) from error


def _at_least_one(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise ConfigError(f"{name} must be at least 1, not {count}")
