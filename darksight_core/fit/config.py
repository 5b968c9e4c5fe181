"""Options of a fit, and where it runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Literal, TypeAlias

import torch

from darksight_core.errors import ConfigError

__all__ = ["FitConfig", "Method", "ScaleRule", "choose_device", "one_thread"]

Method: TypeAlias = Literal["fast", "paper", "paper-cd", "svd"]
ScaleRule: TypeAlias = Literal["fixed", "shared", "per-class"]

_METHODS = ("fast", "paper", "paper-cd", "svd")
_SCALES = ("fixed", "shared", "per-class")


@dataclass(frozen=True, slots=True)
class FitConfig:
    """Options of a map fit; the defaults are what we recommend.

    Parameters
    ----------
    method
        `fast` second-order fit; `paper` plain SGD and `paper-cd` coordinate descent, both with Adam; `svd` closed form
        of a softmax student.
    dof
        Degrees of freedom ν of the class densities; 1 to 3 keep clusters compact.
    scale
        `fixed` at the paper's √(log K), one `shared` learned scale, or one `per-class`.
    temperature
        T applied to the rows before fitting; above 1 spreads points apart.
    seed
        Same rows, seed and machine give the same map.
    device
        `auto` takes a GPU when there is one.
    spread_penalty
        Ridge on the class centres: larger values give a more compact map at a higher KL_sym.
    starts
        Random starts of `fast`, the best of which is kept; None chooses by the number of classes.
    theta_rows
        Rows that decide θ in `fast`, drawn half uniformly and half by entropy; others are placed on the finished map.
    tolerance
        `fast` stops when a step over them improves the objective by less than this share.
    faithful
        Keep every row where the student predicts the same class as the watched classifier.
    epochs, batch_rows, anneal, init
        Used by `paper`: epochs of Adam, rows in a mini-batch, whether to lower the temperature from 20 to 1, and where
        points start (`gauss` or at the `centre` of their predicted class).
    """

    method: Method = "fast"
    dof: float = 2.0
    scale: ScaleRule = "fixed"
    temperature: float = 1.0
    seed: int = 0
    device: str = "auto"
    spread_penalty: float = 4e-8
    starts: int | None = None
    theta_rows: int = 5_000
    tolerance: float = 5e-4
    faithful: bool = True
    epochs: int = 1_000
    batch_rows: int = 1_000
    anneal: bool = False
    init: Literal["gauss", "centre"] = "centre"

    def __post_init__(self) -> None:
        if self.method not in _METHODS:
            raise ConfigError(f"method is {self.method!r}; it must be one of {', '.join(_METHODS)}")
        if self.scale not in _SCALES:
            raise ConfigError(f"scale is {self.scale!r}; it must be one of {', '.join(_SCALES)}")
        if self.init not in ("gauss", "centre"):
            raise ConfigError(f"init is {self.init!r}; it must be gauss or centre")
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


def choose_device(name: str) -> torch.device:
    """`auto`, `cpu`, `cuda` or any torch device that is present; each process of torchrun takes a GPU of its own."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device is {name!r}; it must be auto, cpu or cuda") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device is cuda, but torch finds no GPU here; use --device auto or cpu")
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    return device


@contextmanager
def one_thread(device: torch.device) -> Iterator[None]:
    """One thread of torch on a CPU.

    The arrays fit the cache of one core, and more threads mostly wait for each other: on a busy machine two threads
    were five to ten times slower than one.
    """
    before = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
