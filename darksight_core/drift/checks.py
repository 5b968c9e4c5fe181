"""Checks of arguments that several drift statistics share."""

from __future__ import annotations

from darksight_core.errors import ConfigError

__all__ = ["checked_level", "checked_share"]


def checked_share(name: str, value: float) -> float:
    """The value; ConfigError unless it is between 0 and 1."""
    if not 0.0 < value < 1.0:
        raise ConfigError(f"{name} must be between 0 and 1, not {value}")
    return value


def checked_level(level: float) -> float:
    """The level; ConfigError unless it is between 0 and 1."""
    return checked_share("level", level)
