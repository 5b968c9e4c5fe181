"""f_p, the parametric map: a small network from a row of probabilities to its point.

With a the most probable class of a row π, b the second most probable one, and W_0 the last row of the input weights,

    y = c_a + V_a' max(Σ_k φ(π_k) W_k + g W_0 + S_b, 0),
    φ(p) = max(p^(1/4) - 1/10, 0),      g = min(log(π_a / π_b) / 16, 1).

The best point of a row jumps where its most probable classes change. A network that uses the same weights for all rows
needs many units for these jumps; here class a selects the output weights and class b the biases, which costs nothing.
The fourth root separates probabilities that differ by orders of magnitude, as KL_sym does. It is cut at 1e-4, so that
of many classes only a few are read, and the noise of the others is not learned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from darksight_core.errors import ConfigError
from darksight_core.rows.simplex import FLOOR, Floats

__all__ = ["LARGEST_LOG_ODDS", "LEAST_ROOT", "Network"]

LEAST_ROOT = 0.1
"""Fourth root of a probability up to which it is not read."""

LARGEST_LOG_ODDS = 16.0
"""Log-odds of the two most probable classes are clipped here."""


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """f_p with H hidden units for K classes.

    Weights are stored in float32 and applied in float64: the point is the start of a search, and rounding that depends
    on the size of the batch would reach its end.

    Parameters
    ----------
    inputs
        Input weights W of the K classes and of the log-odds, (K + 1, H).
    second
        Biases S of the hidden units for each second most probable class, (K, H).
    heads
        Output weights V for each most probable class, (K, H, 2).
    centres
        Output biases c for each most probable class, (K, 2).
    """

    inputs: NDArray[np.float32]
    second: NDArray[np.float32]
    heads: NDArray[np.float32]
    centres: NDArray[np.float32]
    _inputs: Floats = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name, array in self.tensors().items():
            array = np.array(array, dtype=np.float32)
            if not np.isfinite(array).all():
                raise ConfigError("the network's weights must be finite")
            array.flags.writeable = False
            object.__setattr__(self, name, array)
        classes, units = self.second.shape if self.second.ndim == 2 else (0, 0)
        shapes = [array.shape for array in self.tensors().values()]
        if classes < 2 or shapes != [(classes + 1, units), (classes, units), (classes, units, 2), (classes, 2)]:
            raise ConfigError(f"weights of shapes {shapes} do not make a network with two outputs")
        object.__setattr__(self, "_inputs", self.inputs.astype(np.float64))

    @property
    def n_classes(self) -> int:
        """Number of probabilities in a row."""
        return len(self.second)

    def __call__(self, probs: Floats) -> Floats:
        """Points (n, 2) of rows (n, K)."""
        rows = np.arange(len(probs))
        first = probs.argmax(axis=1)
        others = probs.copy()
        others[rows, first] = -1.0
        second = others.argmax(axis=1)
        log_odds = np.log(probs[rows, first] / np.maximum(probs[rows, second], FLOOR))
        values = np.empty((len(probs), self.n_classes + 1))
        values[:, :-1] = np.maximum(np.sqrt(np.sqrt(probs)) - LEAST_ROOT, 0.0)
        values[:, -1] = np.minimum(log_odds / LARGEST_LOG_ODDS, 1.0)
        hidden = np.maximum(values @ self._inputs + self.second[second], 0.0)
        points: Floats = (hidden[:, None] @ self.heads[first].astype(np.float64))[:, 0] + self.centres[first]
        return points

    def tensors(self, prefix: str = "") -> dict[str, NDArray[np.float32]]:
        """The arrays by name."""
        return {prefix + each.name: getattr(self, each.name) for each in fields(self) if each.init}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, NDArray[Any]], prefix: str = "") -> Network:
        """Inverse of `tensors`; KeyError if one is missing, ConfigError if they do not fit together."""
        return cls(**{each.name: tensors[prefix + each.name] for each in fields(cls) if each.init})
