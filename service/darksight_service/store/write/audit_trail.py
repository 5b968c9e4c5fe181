"""The audit trail: every change of models, policies and regions, in a hash chain that reveals tampering.

Each entry holds the sha256 of its content and of the previous hash. An entry that is altered, removed or inserted
breaks the chain from there on. Entries missing at the end show in a comparison with a hash noted earlier, which
`darksight db check` prints. The database refuses to update or delete entries, so they cannot change by accident.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Engine, func, select, text

from darksight_core.errors import ConfigError
from darksight_service.errors import AuditError
from darksight_service.store.audit import Change
from darksight_service.store.engine import reading
from darksight_service.store.tables import policy_change

__all__ = ["KINDS", "append_change", "changes_since", "count", "history", "verify_chain"]

KINDS = ("deploy", "activate", "rollback", "shadow", "policy", "region", "evidence")

_LOCK = 0x61756469


def append_change(
    connection: Connection, kind: str, model: str, payload: Mapping[str, Any], author: str, comment: str, *, now_ms: int
) -> int:
    """Add an entry and return its number: the next one, without gaps."""
    if kind not in KINDS:
        raise ConfigError(f"a change is one of {', '.join(KINDS)}, not {kind!r}")
    content = json.dumps(payload, sort_keys=True, ensure_ascii=True, allow_nan=False)
    last = select(policy_change.c.id, policy_change.c.hash).order_by(policy_change.c.id.desc()).limit(1)
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    number, before = connection.execute(last).one_or_none() or (0, b"")
    values = {
        "id": number + 1,
        "kind": kind,
        "model": model,
        "payload": content,
        "author": author,
        "comment": comment,
        "changed_at": now_ms,
    }
    connection.execute(policy_change.insert().values(**values, hash=_hash(bytes(before), values)))
    return int(number) + 1


def changes_since(engine: Engine, number: int, *, limit: int = 1000) -> list[Change]:
    """Entries after that number, oldest first."""
    query = select(policy_change).where(policy_change.c.id > number).order_by(policy_change.c.id).limit(limit)
    with reading(engine) as connection:
        return [_change(row) for row in connection.execute(query)]


def history(engine: Engine, model: str, *, kinds: tuple[str, ...] = (), limit: int = 100) -> list[Change]:
    """The latest entries about a model, newest first."""
    query = select(policy_change).where(policy_change.c.model == model)
    if kinds:
        query = query.where(policy_change.c.kind.in_(kinds))
    with reading(engine) as connection:
        return [_change(row) for row in connection.execute(query.order_by(policy_change.c.id.desc()).limit(limit))]


def verify_chain(engine: Engine) -> tuple[int, str]:
    """Number of entries and the last hash; AuditError at the first entry that does not match its predecessor."""
    before, number = b"", 0
    with reading(engine) as connection:
        for row in connection.execute(select(policy_change).order_by(policy_change.c.id)):
            values = {name: value for name, value in row._mapping.items() if name != "hash"}
            if row.id != number + 1 or bytes(row.hash) != _hash(before, values):
                raise AuditError(f"the audit trail was altered at or before entry {row.id}", id=row.id)
            before, number = bytes(row.hash), row.id
    return number, before.hex()


def count(engine: Engine) -> int:
    """Number of entries."""
    with reading(engine) as connection:
        return connection.scalar(select(func.max(policy_change.c.id))) or 0


def _hash(before: bytes, values: Mapping[str, Any]) -> bytes:
    content = json.dumps(dict(values), sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(before + content.encode()).digest()


def _change(row: Any) -> Change:
    payload = json.loads(row.payload)
    return Change(row.kind, row.model, payload, row.author, row.comment, row.id, row.changed_at, bytes(row.hash).hex())
