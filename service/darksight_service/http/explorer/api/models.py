"""Models and their versions, for the pickers of every page, and the colours of their classes."""

from __future__ import annotations

from typing import Any

from darksight_core.map.palette import GRADES, class_colours
from darksight_service.http.explorer.answers import Answer
from darksight_service.http.explorer.endpoint import Call, Endpoint, Sources
from darksight_service.http.inputs import Input

__all__ = ["endpoints"]

# Curves in figures have these colours too.
_CURVES = 16


def endpoints(sources: Sources) -> list[Endpoint[Any]]:
    """`/api/models`."""

    def models(call: Call[Input]) -> Answer:
        found = []
        known = {name: state for name, state in sources.control.models().items() if call.caller.may_use(name)}
        for name, state in sorted(known.items()):
            versions = sorted(state.versions.items(), key=lambda each: -each[1].deployed_ms)
            listed = [{"version": version} for version, _ in versions]
            found.append({"name": name, "active": state.active, "shadow": state.shadow, "versions": listed})
        active = sources.registry.models()
        classes = max([_CURVES, *(len(active[name].bundle.class_names) for name in known if name in active)])
        return {"models": found, "class_colours": class_colours(classes), "grades": GRADES}

    return [Endpoint("GET", "/api/models", "read", Input, models, lists_models=True)]
