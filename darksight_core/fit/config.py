"""The options of a map fit. Needs no torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal, TypeAlias

from darksight_core.errors import ConfigError

__all__ = ["FitConfig", "Method", "ScaleRule"]

Method: TypeAlias = Literal["fast", "paper", "svd"]
ScaleRule: TypeAlias = Literal["fixed", "shared", "per-class"]

_METHODS = ("fast", "paper", "svd")
_SCALES = ("fixed", "shared", "per-class")


@dataclass(frozen=True, slots=True)
class FitConfig:
    """Options of a map fit. The defaults are recommended.

    `darksight fit` and `python -m darksight_core.fit` have one option for each, described by the text below.

    Parameters
    ----------
    method
        How to fit: `fast` is a second-order method, `paper` gradient descent with Adam, and `svd` a closed form without
        a density.
    dof
        Degrees of freedom of the class densities. Values from 1 to 3 keep clusters compact.
    scale
        Scale of the class densities: `fixed` at √(log K) as in the paper, one `shared` learned scale, or one
        learned scale `per-class`.
    temperature
        Temperature applied to the rows before the fit. Values above 1 spread the points.
    seed
        Random seed. The same rows, seed and machine give the same map.
    device
        `cpu`, `cuda`, or `auto` for a GPU if there is one.
    spread_penalty
        Ridge penalty on the class centres, averaged over the classes. Larger values give a more compact map with a
        higher KL_sym.
    starts
        Random starts of `fast`, of which the best is kept. The default depends on the number of classes.
    theta_rows
        Rows that `fast` fits the class densities to, half of them sampled uniformly and half by entropy. The other rows
        are placed on the finished map.
    tolerance
        `fast` stops when the objective improves by less than this fraction.
    faithful
        Keep every point where the map predicts the class that the classifier predicts.
    epochs
        Epochs of `paper`.
    batch_rows
        Rows in a mini-batch of `paper`.
    """

    method: Method = "fast"
    dof: float = 2.0
    scale: ScaleRule = "fixed"
    temperature: float = 1.0
    seed: int = 0
    device: str = "auto"
    spread_penalty: float = 4e-7
    starts: int | None = None
    theta_rows: int = 5_000
    tolerance: float = 5e-4
    faithful: bool = True
    epochs: int = 1_000
    batch_rows: int = 1_000

    def __post_init__(self) -> None:
        if self.method not in _METHODS:
            raise ConfigError(f"method is {self.method!r}; it must be one of {', '.join(_METHODS)}")
        if self.scale not in _SCALES:
            raise ConfigError(f"scale is {self.scale!r}; it must be one of {', '.join(_SCALES)}")
        for name in ("dof", "temperature"):
            if not 0.0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be positive and finite")
        for name in ("theta_rows", "epochs", "batch_rows"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.starts is not None and self.starts < 1:
            raise ConfigError(f"starts is {self.starts}; it must be at least 1")
        if self.spread_penalty < 0 or self.tolerance < 0:
            raise ConfigError("spread_penalty and tolerance must not be negative")
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed is {self.seed}; it must be between 0 and 2**63 - 1")

    def as_dict(self) -> dict[str, object]:
        """Plain values for a manifest."""
        return asdict(self)
