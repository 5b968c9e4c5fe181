"""Progress of long computations, for a progress bar or a log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["Progress", "Report", "silent"]


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a long computation: `done` of `total` units of `stage`, and the KL_sym reached so far."""

    stage: str
    done: int
    total: int
    loss: float


Report: TypeAlias = Callable[[Progress], None]


def silent(progress: Progress) -> None:
    """Ignore the progress."""
