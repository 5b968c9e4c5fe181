"""Endpoints of references: the picture, text or sound that a stored point was predicted from.

A caller names a point and not a file, so only what a point of a permitted model refers to can be read. A caller who may
use some models only, and perhaps add points to them, reads files of the folder with the name of the model, and so not
those of other models. Files are sent as attachments in a sandbox: a page shows them, and a browser that is led to their
address runs nothing.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode, urlsplit

from darksight_service.errors import NotFoundError
from darksight_service.http.explorer.answers import Answer, FileAnswer
from darksight_service.http.explorer.endpoint import Call, Endpoint, Sources
from darksight_service.http.explorer.inputs import ModelInput, PointId
from darksight_service.report.references.files import ReferenceFile, read_file
from darksight_service.report.references.names import Target, resolve

__all__ = ["endpoints"]

_SOUNDS = (".wav", ".mp3", ".ogg", ".oga")


class _PointInput(ModelInput):
    id: PointId


def endpoints(sources: Sources) -> list[Endpoint[Any]]:
    """`/api/reference` and `/api/reference/about`."""
    folder, origins = sources.settings.reference_dir, sources.settings.reference_origins

    def read(target: Target, call: Call[_PointInput]) -> ReferenceFile:
        if folder is None or target.kind != "file":
            raise NotFoundError(f"reference: {target.problem or 'is not a file'}", field="reference")
        if call.caller.models is not None and target.parts[0] != call.input.model:
            raise NotFoundError(
                f"reference: {call.caller.name!r} may use some models only, and read files of the folder "
                f"{call.input.model!r} only",
                field="reference",
            )
        return read_file(folder, target.parts)

    def about(call: Call[_PointInput]) -> Answer:
        reference = _reference(sources, call.input)
        target = resolve(reference, origins, has_folder=folder is not None)
        found: dict[str, Any] = {"reference": reference, "kind": "none", "source": "", "text": "", "problem": ""}
        if target.kind == "none":
            return {**found, "problem": target.problem}
        if target.kind == "url":
            is_sound = urlsplit(target.url).path.lower().endswith(_SOUNDS)
            return {**found, "kind": "audio" if is_sound else "image", "source": target.url}
        try:
            file = read(target, call)
        except NotFoundError as error:
            return {**found, "problem": error.message.removeprefix("reference: ")}
        if file.kind == "text":
            return {**found, "kind": "text", "text": file.text + ("…" if file.is_cut else "")}
        query = urlencode({"model": call.input.model, "id": call.input.id.hex()})
        return {**found, "kind": file.kind, "source": f"/api/reference?{query}"}

    def content(call: Call[_PointInput]) -> Answer:
        target = resolve(_reference(sources, call.input), origins, has_folder=folder is not None)
        file = read(target, call)
        return FileAnswer(file.media_type, file.data)

    return [
        Endpoint("GET", "/api/reference", "read", _PointInput, content),
        Endpoint("GET", "/api/reference/about", "read", _PointInput, about),
    ]


def _reference(sources: Sources, given: _PointInput) -> str:
    points = sources.store().points_by_id(given.model, None, [given.id])
    found = [each for each in points.references.tolist() if each]
    if not found:
        raise NotFoundError("id: there is no such point, or it has no reference", field="id")
    return found[0]
