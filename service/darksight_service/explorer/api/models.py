"""Models and their versions, for the pickers of every page."""

from __future__ import annotations

from typing import Any

from darksight_service.explorer.endpoint import Answer, Call, Endpoint, Sources

__all__ = ["endpoints"]


def endpoints(sources: Sources) -> list[Endpoint]:
    """`/api/models`."""

    def models(call: Call) -> Answer:
        found: list[dict[str, Any]] = []
        for name, state in sorted(sources.control.models().items()):
            versions = [
                {"version": version, "deployed_ms": deployment.deployed_ms}
                for version, deployment in sorted(state.versions.items(), key=lambda each: -each[1].deployed_ms)
            ]
            found.append({"name": name, "active": state.active, "shadow": state.shadow, "versions": versions})
        return {"models": found}

    return [Endpoint("GET", "/api/models", "read", models)]
