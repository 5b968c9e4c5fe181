"""Heat maps: how much each part of an input has to do with what is asked about its place.

    gradient      ∇_x F(x): where a small change moves F most
    integrated    (x - x0) ∫ ∇F(x0 + t (x - x0)) dt, t from 0 to 1: shares of F(x) - F(x0), which they sum to
    smooth        mean of ∇F(x + noise): the gradient without its grain

(Sundararajan et al. 2017 for the second, Smilkov et al. 2017 for the third.) How far `integrated` is from its sum is
part of the result. It adds slopes, so a jump of y on the way, from one minimum to another, is missing from it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from darksight_core.errors import ConfigError
from darksight_core.explain.chain import Chain, ClassifierError
from darksight_core.explain.objectives import Objective
from darksight_core.explain.question import Question, batches
from darksight_core.progress import Progress, Report, silent
from darksight_core.simplex import Floats

__all__ = ["Attribution", "gradient", "integrated", "smooth"]


@dataclass(frozen=True, slots=True, eq=False)
class Attribution:
    """Heat maps of n inputs.

    Parameters
    ----------
    heat
        As the inputs, (n, ...).
    value
        F of the inputs, (n,).
    at_rest
        Whether the derivative exists, see `Chain.at_rest`, (n,).
    change
        F(x) - F(x0), which `integrated` explains, (n,); None for the others.
    gap
        Sum of the heat less `change`, (n,): 0 if the explanation is complete; None for the others.
    """

    heat: Floats
    value: Floats
    at_rest: NDArray[np.bool_]
    change: Floats | None = None
    gap: Floats | None = None


def gradient(chain: Chain, objective: Objective, inputs: NDArray[Any], *, report: Report = silent) -> Attribution:
    """∇_x F.

    Parameters
    ----------
    chain
        Classifier and map.
    objective
        F, of the place.
    inputs
        (n, ...), floats.
    report
        Told about progress.
    """
    heat, question = np.empty(inputs.shape), Question(chain, objective)
    value, at_rest = _values(question, inputs)
    for part in batches(len(inputs)):
        heat[part] = _slope(question, inputs[part])
        report(Progress("explain", part.stop, len(inputs), math.nan))
    return Attribution(heat, value, at_rest)


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
        x0, of a shape that goes with a row of inputs; by default zeros.
    steps
        Places on the way from x0 to x.
    """
    _at_least_one(steps=steps)
    start = _baseline(baseline, inputs)
    heat, question = np.zeros(inputs.shape), Question(chain, objective)
    value, at_rest = _values(question, inputs)
    change = value - _values(question, start)[0]
    for part in batches(len(inputs)):
        for step in range(steps):
            way = start[part] + (step + 0.5) / steps * (inputs[part] - start[part])
            heat[part] += _slope(question, way) / steps
            report(Progress("explain", part.start * steps + len(way) * (step + 1), len(inputs) * steps, math.nan))
    heat *= inputs - start
    return Attribution(heat, value, at_rest, change, heat.reshape(len(heat), -1).sum(axis=1) - change)


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
        Standard deviation of the noise, as a share of the range of each input's values.
    samples
        Copies of each input.
    seed
        Seed of the noise. An input gets its noise by its number, whatever comes with it.
    """
    _at_least_one(samples=samples)
    if not noise >= 0.0:
        raise ConfigError(f"noise must not be negative, not {noise}")
    heat, question = np.zeros(inputs.shape), Question(chain, objective)
    value, at_rest = _values(question, inputs)
    for row, original in enumerate(inputs):
        rng = np.random.default_rng((seed, row))
        copies = original + noise * np.ptp(original) * rng.standard_normal((samples, *original.shape))
        for part in batches(samples):
            heat[row] += _slope(question, copies[part]).sum(axis=0) / samples
        report(Progress("explain", row + 1, len(inputs), math.nan))
    return Attribution(heat, value, at_rest)


def _slope(question: Question, inputs: NDArray[Any]) -> Floats:
    """∇F at inputs (n, ...)."""
    _, slope = question.value_and_slope(question.chain.tensor(inputs))
    found: Floats = slope.double().numpy()
    return found


def _values(question: Question, inputs: NDArray[Any]) -> tuple[Floats, NDArray[np.bool_]]:
    """F of inputs, and whether they are at rest, (n,) each."""
    value, at_rest = np.empty(len(inputs)), np.empty(len(inputs), dtype=np.bool_)
    for part in batches(len(inputs)):
        rows = question.chain.tensor(inputs[part])
        value[part] = question.value(rows).numpy()
        at_rest[part] = question.chain.at_rest(rows)
    return value, at_rest


def _baseline(baseline: ArrayLike, inputs: NDArray[Any]) -> NDArray[Any]:
    try:
        return np.broadcast_to(np.asarray(baseline, dtype=inputs.dtype), inputs.shape)
    except (TypeError, ValueError) as error:
        raise ClassifierError(
            f"a baseline of shape {np.shape(baseline)} does not go with inputs of shape {inputs.shape[1:]}"
        ) from error


def _at_least_one(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise ConfigError(f"{name} must be at least 1, not {count}")
