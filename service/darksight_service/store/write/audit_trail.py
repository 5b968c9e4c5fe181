"""The audit trail: every change of models, policies and regions, in a hash chain that reveals tampering.

Each entry holds the sha256 of its content and of the previous hash. An entry that is altered, removed or inserted
breaks the chain from there on, and is not returned: a reader gets AuditError. Whoever can write to the database can
also compute all hashes anew, or remove entries at the end. Both show in a comparison with an anchor, the number and
hash of an entry noted elsewhere, which `darksight db check` prints and the log has every day. The database refuses to
update or delete entries, so they cannot change by accident.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Engine, func, select, text

from darksight_core.errors import ConfigError
from darksight_service.errors import AuditError
from darksight_service.store.audit import Change
from darksight_service.store.database import Database
from darksight_service.store.engine import reading
from darksight_service.store.tables import policy_change

__all__ = ["KINDS", "TrailQueries", "append_change", "count"]

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


class TrailQueries(Database):
    """The audit trail; see the module."""

    def changes_since(self, number: int, *, limit: int = 1000) -> list[Change]:
        """Up to `limit` entries of the audit trail after a number, oldest first."""
        query = select(policy_change).where(policy_change.c.id > number).order_by(policy_change.c.id).limit(limit)
        with reading(self._engine) as connection:
            return _changes(connection, connection.execute(query).all())

    def history(self, model: str, *, kinds: tuple[str, ...] = (), limit: int = 100) -> list[Change]:
        """The latest entries about a model, newest first."""
        query = select(policy_change).where(policy_change.c.model == model)
        if kinds:
            query = query.where(policy_change.c.kind.in_(kinds))
        with reading(self._engine) as connection:
            return _changes(
                connection, connection.execute(query.order_by(policy_change.c.id.desc()).limit(limit)).all()
            )

    def verify_trail(self, anchors: Mapping[int, str] | None = None) -> tuple[int, str]:
        """Number of entries of the audit trail and its last hash.

        Parameters
        ----------
        anchors
            Hashes, in hex, that entries had earlier, by number.

        Raises
        ------
        AuditError
            At the first entry that does not match its predecessor or its anchor, and if an anchored entry is missing.
        """
        before, number, expected = b"", 0, {each: digest for each, digest in (anchors or {}).items() if each}
        with reading(self._engine) as connection:
            for row in connection.execute(select(policy_change).order_by(policy_change.c.id)):
                if row.id != number + 1 or not _follows(row, before):
                    raise _altered(row.id)
                before, number = bytes(row.hash), row.id
                if expected.pop(number, before.hex()) != before.hex():
                    raise AuditError(f"entry {number} of the audit trail is not the one of the anchor", id=number)
        if expected:
            raise AuditError(
                f"the audit trail ends at entry {number}, before the anchor {max(expected)}", id=max(expected)
            )
        return number, before.hex()


def count(engine: Engine) -> int:
    """Number of entries."""
    with reading(engine) as connection:
        return connection.scalar(select(func.max(policy_change.c.id))) or 0


def _changes(connection: Connection, rows: Sequence[Any]) -> list[Change]:
    """Entries whose hashes are valid; AuditError if one is not."""
    if not rows:
        return []
    hashes = {row.id: bytes(row.hash) for row in rows} | {0: b""}
    missing = {row.id - 1 for row in rows} - hashes.keys()
    query = select(policy_change.c.id, policy_change.c.hash).where(policy_change.c.id.in_(missing))
    hashes |= {number: bytes(found) for number, found in connection.execute(query)}
    for row in rows:
        if not _follows(row, hashes.get(row.id - 1)):
            raise _altered(row.id)
    return [_change(row) for row in rows]


def _follows(row: Any, before: bytes | None) -> bool:
    """Whether the hash of an entry covers its content and the hash of the previous entry."""
    values = {name: value for name, value in row._mapping.items() if name != "hash"}
    return before is not None and bytes(row.hash) == _hash(before, values)


def _altered(number: int) -> AuditError:
    return AuditError(f"the audit trail was altered at or before entry {number}", id=number)


def _hash(before: bytes, values: Mapping[str, Any]) -> bytes:
    content = json.dumps(dict(values), sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(before + content.encode()).digest()


def _change(row: Any) -> Change:
    payload = json.loads(row.payload)
    return Change(row.kind, row.model, payload, row.author, row.comment, row.id, row.changed_at, bytes(row.hash).hex())
