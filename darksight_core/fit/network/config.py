"""Options of the distillation."""

from __future__ import annotations

from dataclasses import dataclass

from darksight_core.errors import ConfigError

__all__ = ["DistilConfig"]


@dataclass(frozen=True, slots=True)
class DistilConfig:
    """Options of the distillation; the defaults are what we recommend.

    Parameters
    ----------
    hidden
        Number of hidden units.
    epochs, tune_epochs, joint_epochs
        Epochs of distilling, of fine-tuning p, and of its last part with small steps, which is tried with θ free too.
    epoch_rows, batch_rows
        Rows in an epoch and in a mini-batch.
    pool_rows
        Largest number of rows to train on; more rows are sampled, half uniformly and half by entropy.
    lr, tune_lr, theta_lr
        Largest step of Adam when distilling, when fine-tuning p, and for θ as a share of the map's bound.
    tune_theta
        Whether to try a free θ at the end.
    seed
        Same rows, seed and machine give the same network.
    device
        `auto` takes a GPU when there is one.
    """

    hidden: int = 64
    epochs: int = 4
    tune_epochs: int = 56
    joint_epochs: int = 8
    epoch_rows: int = 4_096
    batch_rows: int = 128
    pool_rows: int = 20_000
    lr: float = 1e-2
    tune_lr: float = 1e-2
    theta_lr: float = 1e-4
    tune_theta: bool = True
    seed: int = 0
    device: str = "auto"

    def __post_init__(self) -> None:
        for name in ("epochs", "tune_epochs", "joint_epochs"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must not be negative")
        for name in ("hidden", "epoch_rows", "batch_rows", "pool_rows"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("lr", "tune_lr", "theta_lr"):
            if not 0.0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be positive and finite")
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed is {self.seed}; it must be between 0 and 2**63 - 1")
