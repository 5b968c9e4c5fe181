"""Endpoints of the map page."""

from __future__ import annotations

from darksight_service.explorer.endpoint import Answer, Call, Endpoint, Sources

__all__ = ["endpoints"]


def endpoints(sources: Sources) -> list[Endpoint]:
    """`/api/map`."""

    def describe(call: Call) -> Answer:
        serving = sources.registry.get(call.text("model"), call.text("version", ""))
        student = serving.bundle.scorer.embedder.student
        return {
            "model": serving.model,
            "version": serving.version,
            "class_names": list(serving.bundle.class_names),
            "means": student.means.tolist(),
        }

    return [Endpoint("GET", "/api/map", "read", describe)]
