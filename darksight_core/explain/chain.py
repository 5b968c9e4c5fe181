"""From an input to its place on the map, differentiable from end to end.

    x -> classifier -> log π -> y

Two places can be differentiated. They differ, and so do their gradients:

    refined     the optimum of the row's own problem, y = argmin L(y, π) with L = KL_sym(π, P_S(. | y)). Serving takes a
                few Newton steps towards it; here the same search goes on until it rests. By the implicit function
                theorem dy/d log π = -H⁻¹ ∂²L / ∂y ∂log π, H = ∂²L/∂y². It jumps where a search ends in another minimum.
    network     f_p(π), where that search starts and what the paper differentiates. Continuous in x, but less faithful.

The theorem holds where the gradient of L is zero. Rows for which it is not, because they are held inside the region of
their class or at the edge of the map, are found by `Chain.at_rest`; their gradient is a direction, not a derivative.
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
from darksight_core.fit.network.forward import forward
from darksight_core.map.placement import Embedder
from darksight_core.runtime.policy import ScoringPolicy
from darksight_core.scored import ScoredBatch
from darksight_core.simplex import FLOOR

__all__ = ["PLACES", "Chain", "ClassifierError"]

PLACES = ("refined", "network")
"""Which y is differentiated, the default first."""

_BATCH_ROWS = 64
# Enough for every row of the classifiers at hand to rest; serving takes 5.
_STEPS = 80
# Share of the bound by which the next Newton step may move a row that rests.
_AT_REST = 1e-5
# Curvature below which a direction counts as flat.
_FLAT = 1e-12


class ClassifierError(DarkSightError, ValueError):
    """The watched classifier cannot be loaded, or does not give what the map needs."""

    code = "classifier"


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
        What the classifier gives, "logits" or "probs".
    place
        Which y is differentiated, one of `PLACES`.
    """

    classifier: Callable[[Tensor], Tensor]
    embedder: Embedder
    outputs: str = "logits"
    place: str = PLACES[0]
    _search: Embedder = field(init=False, repr=False)
    _theta: Theta = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.outputs not in ("logits", "probs"):
            raise ConfigError(f"outputs must be logits or probs, not {self.outputs!r}")
        if self.place not in PLACES:
            raise ConfigError(f"place must be one of {', '.join(PLACES)}, not {self.place!r}")
        object.__setattr__(self, "_search", replace(self.embedder, refine_steps=_STEPS))
        object.__setattr__(self, "_theta", Theta.of(self.embedder.student, dtype=torch.float64))

    def tensor(self, inputs: NDArray[Any]) -> Tensor:
        """Inputs as the classifier wants them: of the type of its weights, or float32 if it has none."""
        if inputs.dtype.kind != "f" or inputs.ndim < 2 or len(inputs) == 0:
            raise ClassifierError(
                f"inputs must be rows of floats as the classifier takes them, not {inputs.dtype} of shape "
                f"{inputs.shape}; scale integers first"
            )
        if not np.isfinite(inputs).all():
            raise ClassifierError(
                f"input row {int(np.argwhere(~np.isfinite(inputs))[0][0])} has a value that is not finite"
            )
        kinds = [each.dtype for each in getattr(self.classifier, "parameters", list)() if each.is_floating_point()]
        return torch.tensor(inputs, dtype=kinds[0] if kinds else torch.float32)

    def log_probs(self, inputs: Tensor) -> Tensor:
        """log π of inputs, (n, n_inputs) in float64; ClassifierError if the classifier does not give such rows."""
        return self._log_probs(self._values(inputs))

    def scored(self, policy: ScoringPolicy, inputs: Tensor) -> ScoredBatch:
        """What the scorer and the gate that serve say about inputs.

        Parameters
        ----------
        policy
            Both of them. Logits are told too, if the classifier gives them: there are gates that need them.
        inputs
            (n, ...).
        """
        with torch.no_grad():
            values = torch.cat([self._values(part) for part in inputs.split(_BATCH_ROWS)])
            probs = self._log_probs(values).exp().numpy()
        return policy.score(probs, logits=values.numpy() if self.outputs == "logits" else None)

    def points(self, inputs: Tensor) -> Tensor:
        """Places of inputs on the map, (n, 2) in float64, differentiable in the inputs."""
        log_pi = self._prepared(self.log_probs(inputs))
        if self.place == "network":
            return self._network(log_pi)
        points, slope, inverse = self._optimum(log_pi)
        # The value is the optimum's, to the last bit; the derivative that of a Newton step, -H⁻¹ ∂(∂L/∂y).
        return points - (inverse @ (slope - slope.detach())[:, :, None])[:, :, 0]

    def at_rest(self, inputs: Tensor) -> NDArray[np.bool_]:
        """Whether the place of each input is one whose derivative exists, (n,)."""
        if self.place == "network":
            return np.ones(len(inputs), dtype=np.bool_)
        with torch.no_grad():
            log_pi = self._prepared(self.log_probs(inputs))
        _, slope, inverse = self._optimum(log_pi)
        step = torch.linalg.vector_norm((inverse @ slope.detach()[:, :, None])[:, :, 0], dim=1)
        resting: NDArray[np.bool_] = (step <= _AT_REST * self.embedder.bound).numpy()
        return resting

    def scores(self, points: Tensor) -> Tensor:
        """Class scores s of the student at points (n, 2), as (n, K)."""
        return self._theta.scores(points.T[None])[0].T

    def _values(self, inputs: Tensor) -> Tensor:
        """Outputs of the classifier in float64, checked to be what they are said to be."""
        values = self._run(inputs).double()
        if not bool(torch.isfinite(values).all()):
            row = int(torch.nonzero(~torch.isfinite(values))[0, 0])
            raise ClassifierError(f"the classifier gives a value that is not finite for input row {row}")
        # Rows of logits of which all are positive and sum to one do not happen by chance.
        like_probs = bool((values > -1e-6).all()) and bool(((values.sum(dim=1) - 1.0).abs() <= 1e-3).all())
        if self.outputs == "probs" and not like_probs:
            raise ClassifierError("the classifier's outputs are no probabilities; if they are logits, say so")
        if self.outputs == "logits" and like_probs:
            raise ClassifierError("the classifier's outputs sum to one, so they are probabilities; say so")
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
                f"the classifier must give {expected}, one output for each class of the bundle and row of inputs, "
                f"not {found}"
            )
        if inputs.requires_grad and not values.requires_grad:
            raise ClassifierError("the classifier's outputs have no gradient; export it without torch.no_grad")
        return values

    def _prepared(self, log_pi: Tensor) -> Tensor:
        """Rows of the student's classes, (n, K), as `Embedder.prepare` makes them."""
        if self.embedder.columns is not None:
            log_pi = torch.log_softmax(log_pi[:, list(self.embedder.columns)], dim=1)
        if self.embedder.temperature != 1.0:
            log_pi = torch.log_softmax(log_pi / self.embedder.temperature, dim=1)
        return log_pi

    def _network(self, log_pi: Tensor) -> Tensor:
        return forward(self.embedder.network, log_pi).clamp(-self.embedder.bound, self.embedder.bound)

    def _optimum(self, log_pi: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Places (n, 2), ∂L/∂y there (n, 2), which depends on log π alone, and |H|⁻¹ (n, 2, 2)."""
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
