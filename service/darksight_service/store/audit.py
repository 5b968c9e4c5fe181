"""An entry of the audit trail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Change"]


@dataclass(frozen=True, slots=True)
class Change:
    """One entry of the audit trail.

    Parameters
    ----------
    kind
        `deploy`, `activate`, `rollback`, `shadow`, `policy` or `region`.
    model
        Name of the model.
    payload
        `version`, and with it `path` and `activate`, or the fields of a `PolicyOverride`, or the name of a `region` and
        an `action`: `save` with `polygon` and `expires_ms`, `enforce`, `shadow` or `remove`.
    author, comment
        As the operator gave them.
    id, changed_ms, hash
        Set by the store; the hash, in hex, covers this entry and all before it.
    """

    kind: str
    model: str
    payload: Mapping[str, Any]
    author: str = ""
    comment: str = ""
    id: int = 0
    changed_ms: int = 0
    hash: str = ""
