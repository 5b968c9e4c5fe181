"""The OpenAPI document and the page to try calls; both need no token, and the page loads nothing of other hosts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files

from darksight_service.http.api.calls import Reply
from darksight_service.http.api.openapi import openapi_document

__all__ = ["page_routes"]

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css"}


def page_routes(scopes: Mapping[str, str]) -> dict[str, Reply]:
    """Replies by path.

    Parameters
    ----------
    scopes
        The scope that each gRPC method needs, by full name.
    """
    document = json.dumps(openapi_document(scopes)).encode()
    return {
        "/": Reply(307, [(b"location", b"/docs")], b""),
        "/openapi.json": Reply.of_json(document),
        "/docs": _file("try.html"),
        "/docs/try.js": _file("try.js"),
        "/docs/try.css": _file("try.css"),
    }


def _file(name: str) -> Reply:
    body = files("darksight_service.http.api").joinpath("static", name).read_bytes()
    kind = f"{_TYPES[name.rpartition('.')[2]]}; charset=utf-8"
    return Reply(200, [(b"content-type", kind.encode()), (b"content-security-policy", _POLICY.encode())], body)
