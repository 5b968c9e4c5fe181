"""From an input to its point on the map, differentiable from end to end.

    x -> classifier -> log π -> y

Two points can be differentiated. They differ, and so do their gradients:

    refined     the optimum of the row's own problem, y = argmin L(y, π) with L = KL_sym(π, P_S(. | y)). Serving takes a
                few Newton steps towards it; here the same search runs until it converges. By the implicit function
                theorem dy/d log π = -H⁻¹ ∂²L / ∂y ∂log π, H = ∂²L/∂y². It jumps where the search ends in another
                minimum.
    network     f_p(π), where that search starts and what the paper differentiates. It jumps where the most
                probable classes change, and is less faithful.

The theorem needs a point where the gradient of L is zero. `Chain.is_stationary` tells for which rows it is not, because
they are kept inside the region of their class or at the edge of the map; their gradient is a direction, not a
derivative.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from darksight_core.errors import ConfigError, DarkSightError
from darksight_core.fit.map.placement import Theta
from darksight_core.fit.network.forward import Weights, forward
from darksight_core.map.placement import Embedder
from darksight_core.rows.schema import ScoredBatch
from darksight_core.rows.simplex import FLOOR
from darksight_core.runtime.policy import ScoringPolicy

__all__ = ["BATCH_ROWS", "POINTS", "Chain", "ClassifierError"]

POINTS = ("refined", "network")
"""Points that can be differentiated, the default first."""

BATCH_ROWS = 64
"""Inputs that are run through the classifier at a time."""

# Enough for every row of the classifiers at hand to converge; serving takes 5.
_STEPS = 80
# Share of the bound by which the next Newton step may move a stationary point.
_STATIONARY = 1e-5
# Curvature below which a direction counts as flat.
_FLAT = 1e-12


class ClassifierError(DarkSightError, ValueError):
    """The watched classifier cannot be loaded, or its outputs do not match the map."""


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """A classifier and the map of its predictions.

    Parameters
    ----------
    classifier
        A function or module from inputs (n, ...) to outputs (n, K).
    embedder
        The map.
    outputs
        What the classifier returns, "logits" or "probs".
    point
        Which point is differentiated, one of `POINTS`.
    """

    classifier: Callable[[Tensor], Tensor]
    embedder: Embedder
    outputs: str = "logits"
    point: str = POINTS[0]
    _search: Embedder = field(init=False, repr=False)
    _theta: Theta = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.outputs not in ("logits", "probs"):
            raise ConfigError(f"outputs must be logits or probs, not {self.outputs!r}")
        if self.point not in POINTS:
            raise ConfigError(f"point must be one of {', '.join(POINTS)}, not {self.point!r}")
        object.__setattr__(self, "_search", self.embedder.with_steps(_STEPS))
        object.__setattr__(self, "_theta", Theta.of(self.embedder.student, dtype=torch.float64))

    def tensor(self, inputs: NDArray[Any]) -> Tensor:
        """Inputs as a tensor of the type of the classifier's weights, or float32 without weights."""
        if inputs.dtype.kind != "f" or inputs.ndim < 2 or len(inputs) == 0:
            raise ClassifierError(
                f"inputs must be floats of shape (n, ...), as the classifier takes them, not {inputs.dtype} of shape "
                f"{inputs.shape}; scale integers first"
            )
        if not np.isfinite(inputs).all():
            raise ClassifierError(
                f"input row {int(np.argwhere(~np.isfinite(inputs))[0][0])} has a value that is not finite"
            )
        kinds = [each.dtype for each in getattr(self.classifier, "parameters", list)() if each.is_floating_point()]
        return torch.tensor(inputs, dtype=kinds[0] if kinds else torch.float32)

    def log_probs(self, inputs: Tensor) -> Tensor:
        """log π of inputs, (n, n_inputs) in float64; ClassifierError if the classifier does not return such rows."""
        return self._log_probs(self._values(inputs))

    def scored(self, policy: ScoringPolicy, inputs: Tensor) -> ScoredBatch:
        """Scores and decisions of the serving scorer and gate.

        Parameters
        ----------
        policy
            Scorer and gate. They get the logits too, if the classifier returns logits.
        inputs
            (n, ...).
        """
        with torch.no_grad():
            values = torch.cat([self._values(part) for part in inputs.split(BATCH_ROWS)])
            probs = self._log_probs(values).exp().numpy()
        return policy.score(probs, logits=values.numpy() if self.outputs == "logits" else None)

    def points(self, inputs: Tensor) -> Tensor:
        """Points of inputs on the map, (n, 2) in float64, differentiable in the inputs."""
        log_pi = self._prepared(self.log_probs(inputs))
        if self.point == "network":
            return self._network(log_pi)
        points, slope, inverse = self._optimum(log_pi)
        # The value is the optimum to the last bit, the derivative that of a Newton step, -H⁻¹ ∂(∂L/∂y).
        return points - (inverse @ (slope - slope.detach())[:, :, None])[:, :, 0]

    def is_stationary(self, inputs: Tensor) -> NDArray[np.bool_]:
        """Whether the gradient of L is zero at the point of each input, so that the derivative exists, (n,)."""
        if self.point == "network":
            return np.ones(len(inputs), dtype=np.bool_)
        with torch.no_grad():
            log_pi = self._prepared(self.log_probs(inputs))
        _, slope, inverse = self._optimum(log_pi)
        step = torch.linalg.vector_norm((inverse @ slope.detach()[:, :, None])[:, :, 0], dim=1)
        stationary: NDArray[np.bool_] = (step <= _STATIONARY * self.embedder.bound).numpy()
        return stationary

    def scores(self, points: Tensor) -> Tensor:
        """Class scores s of the student at points (n, 2), as (n, K)."""
        return self._theta.scores(points.T[None])[0].T

    def _values(self, inputs: Tensor) -> Tensor:
        """Outputs of the classifier in float64, checked to be logits or probabilities."""
        values = self._run(inputs).double()
        if not bool(torch.isfinite(values).all()):
            row = int(torch.nonzero(~torch.isfinite(values))[0, 0])
            raise ClassifierError(f"the classifier returns a value that is not finite for input row {row}")
        # Logits that are all positive with sums of one do not happen by chance.
        like_probs = bool((values > -1e-6).all()) and bool(((values.sum(dim=1) - 1.0).abs() <= 1e-3).all())
        if self.outputs == "probs" and not like_probs:
            raise ClassifierError(
                'the outputs of the classifier are not probabilities; if they are logits, use outputs "logits"'
            )
        if self.outputs == "logits" and like_probs:
            raise ClassifierError(
                'the outputs of the classifier sum to one, so they are probabilities; use outputs "probs"'
            )
        return values

    def _log_probs(self, values: Tensor) -> Tensor:
        return torch.log_softmax(values if self.outputs == "logits" else values.clamp_min(FLOOR).log(), dim=1)

    def _run(self, inputs: Tensor) -> Tensor:
        """Outputs of the classifier, checked for their shape."""
        try:
            values = self.classifier(inputs)
        except (AssertionError, RuntimeError, TypeError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
            raise ClassifierError(
                f"the classifier fails on inputs of shape {tuple(inputs.shape)} and type {inputs.dtype}: {reason}"
            ) from error
        expected = (len(inputs), self.embedder.n_inputs)
        if not isinstance(values, Tensor) or not values.is_floating_point() or tuple(values.shape) != expected:
            found = f"shape {tuple(values.shape)}" if isinstance(values, Tensor) else f"a {type(values).__name__}"
            raise ClassifierError(
                f"the classifier must return shape {expected}, one output for each row and class of the bundle, "
                f"not {found}"
            )
        if inputs.requires_grad and not values.requires_grad:
            raise ClassifierError("the outputs of the classifier have no gradient; export it without torch.no_grad")
        return values

    def _prepared(self, log_pi: Tensor) -> Tensor:
        """Rows of the student's classes, (n, K), as `Embedder.prepare` makes them."""
        if self.embedder.columns is not None:
            log_pi = torch.log_softmax(log_pi[:, list(self.embedder.columns)], dim=1)
        if self.embedder.temperature != 1.0:
            log_pi = torch.log_softmax(log_pi / self.embedder.temperature, dim=1)
        return log_pi

    def _network(self, log_pi: Tensor) -> Tensor:
        return forward(Weights.of(self.embedder.network), log_pi).clamp(-self.embedder.bound, self.embedder.bound)

    def _optimum(self, log_pi: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Points (n, 2), ∂L/∂y there (n, 2) as a function of log π, and |H|⁻¹ (n, 2, 2)."""
        rows = replace(self._search, columns=None, temperature=1.0, n_inputs=log_pi.shape[1])
        points = torch.tensor(rows.embed(log_pi.detach().numpy())[0])
        with torch.enable_grad():
            free = points.clone().requires_grad_()
            log_q = torch.log_softmax(self.scores(free), dim=1)
            loss = 0.5 * ((log_pi.exp() - log_q.exp()) * (log_pi - log_q)).sum()
            (slope,) = torch.autograd.grad(loss, free, create_graph=True)
            hessian = torch.stack(
                [torch.autograd.grad(slope[:, i].sum(), free, retain_graph=True)[0] for i in range(2)], dim=1
            )
        values, vectors = torch.linalg.eigh(hessian)
        inverse = vectors @ torch.diag_embed(values.abs().clamp_min(_FLAT).reciprocal()) @ vectors.mT
        return points, slope, inverse
