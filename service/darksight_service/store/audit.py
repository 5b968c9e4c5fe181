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
        Name of the caller's token or certificate, and the comment of the operator. Without tokens the author is the one
        that the caller claimed; with tokens `payload` has the claimed one as `claimed_author`.
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

    @property
    def authors(self) -> str:
        """The author, and the claimed one beside it if it is another."""
        claimed = self.payload.get("claimed_author", "")
        return f"{self.author} (claimed: {claimed})" if claimed not in ("", self.author) else self.author
