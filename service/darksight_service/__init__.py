"""The running system: the server, its store and metrics, and the `darksight` command."""

from __future__ import annotations

__all__: list[str] = []
