"""Who made a change, and what shows that somebody changed the record of it."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from darksight_client import Client, PermissionDenied, Policy, Unauthenticated
from darksight_service.control.changes import (
    Control,
    check_gates,
    deploy_at_start,
    record_deployments,
    restore_state,
    sync,
)
from darksight_service.control.registry import Registry
from darksight_service.control.state import Deployment, ModelState, PolicyOverride, State
from darksight_service.control.state_file import StateFile
from darksight_service.control.tokens import TokenFile, certificate_token, make_token
from darksight_service.errors import AuditError, SettingsError, UnauthenticatedError
from darksight_service.metrics.counts import Counts
from darksight_service.metrics.files import read
from darksight_service.metrics.processes import StorageCounts
from darksight_service.processes import storage_worker
from darksight_service.processes.storage_worker import StorageWorker
from darksight_service.settings import Settings, read_settings
from darksight_service.store.store import Store
from darksight_service.store.write.audit_trail import _hash

from darksight_core.bundle import write_bundle
from tests.support.builders import make_probs
from tests.support.bundles import make_bundle
from tests.support.certificates import Certificates
from tests.support.servers import Server, running_server, wait_until

K = 3
OPERATOR, OPERATOR_TOKEN = make_token("operator", ["admin", "read"])
REVOKED, REVOKED_TOKEN = make_token("revoked", ["score"])


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle to serve."""
    path = tmp_path_factory.mktemp("bundle") / "digits.safetensors"
    write_bundle(path, make_bundle(rows=400, classes=K))
    return path


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """The authority that signs all certificates."""
    return Certificates(tmp_path_factory.mktemp("ca") / "ca")


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A token file with two tokens and two certificate names."""
    path = tmp_path_factory.mktemp("tokens") / "tokens"
    path.write_text(token_lines() + REVOKED_TOKEN.line())
    return path


def token_lines() -> str:
    """Lines of the token file, without the token that is revoked."""
    certificates = (
        certificate_token("scorer", ["score"], models=["digits"]),
        certificate_token("narrow", ["score", "read"], models=["letters"]),
        certificate_token("deployer", ["admin", "read"]),
    )
    return OPERATOR_TOKEN.line() + "".join(each.line() for each in certificates)


@pytest.fixture(scope="module")
def server(
    bundle: Path, authority: Certificates, tokens: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A service with client certificates."""
    cert, key = authority.make("server")
    variables = {
        "DARKSIGHT_TLS_CERT": str(cert),
        "DARKSIGHT_TLS_KEY": str(key),
        "DARKSIGHT_TLS_CLIENT_CA": str(authority.ca),
        "DARKSIGHT_TOKENS_FILE": str(tokens),
    }
    data_dir = tmp_path_factory.mktemp("data")
    with running_server({"digits": bundle}, data_dir, "--workers", "1", environment=variables) as running:
        yield running


def connect(server: Server, authority: Certificates, name: str, token: str = "") -> Client:
    """A client with a certificate of this name."""
    cert, key = authority.folder / f"{name}.pem", authority.folder / f"{name}.key"
    if not cert.exists():
        authority.make(name)
    return Client(
        server.grpc_target,
        token=token or None,
        tls_ca=str(authority.ca),
        tls_cert=str(cert),
        tls_key=str(key),
        server_name="localhost",
        timeout_seconds=60.0,
    )


def test_a_certificate_has_the_scopes_of_its_name(server: Server, authority: Certificates) -> None:
    """Every signed certificate was an administrator."""
    with connect(server, authority, "scorer") as scorer:
        assert scorer.score("digits", make_probs(1, K)).recorded
        with pytest.raises(PermissionDenied, match="certificate 'scorer' lacks the scope 'admin'"):
            scorer.set_policy("digits", Policy(alpha=0.5))
        with pytest.raises(PermissionDenied, match="lacks the scope 'read'"):
            scorer.models()
    with connect(server, authority, "stranger") as stranger, pytest.raises(Unauthenticated, match="no line"):
        stranger.score("digits", make_probs(1, K))
    with connect(server, authority, "narrow") as narrow:
        assert narrow.models() == ()
        with pytest.raises(PermissionDenied, match="'narrow' may not use the model 'digits'"):
            narrow.score("digits", make_probs(1, K))
        with pytest.raises(PermissionDenied, match="'narrow' may not use the model 'digits'"):
            list(narrow.stream("digits", [make_probs(1, K)]))


def test_client_certificates_need_a_token_file(tmp_path: Path) -> None:
    """Without one, every certificate would have every scope."""
    files = {name: tmp_path / f"{name}.pem" for name in ("tls_cert", "tls_key", "tls_client_ca")}

    with pytest.raises(SettingsError, match="tls_client_ca needs tokens_file"):
        read_settings(**files)


def test_the_author_is_the_caller_and_not_who_it_claims_to_be(server: Server, authority: Certificates) -> None:
    """The name of the token or certificate; the claimed author stands beside it."""
    square = [(0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0)]
    with connect(server, authority, "scorer", OPERATOR) as operator, connect(server, authority, "deployer") as deployer:
        operator.set_policy("digits", Policy(alpha=0.2), author="chief")
        deployer.set_policy("digits", Policy(alpha=0.3))
        saved = operator.save_region("digits", "corner", square, author="chief")
        authors = [change.author for change in deployer.policy("digits").history]
        (change,) = operator.region_history("digits")

    assert authors == ["deployer", "operator (claimed: chief)"]
    assert (saved.author, change.author) == ("operator", "operator (claimed: chief)")


def test_a_bad_line_does_not_keep_a_revoked_token(server: Server, authority: Certificates, tokens: Path) -> None:
    """Good lines apply, the bad one is refused and reported; without the file nobody is permitted."""
    draft = tokens.with_suffix(".new")

    def errors() -> float:
        return server.counted("darksight_token_file_errors")

    with connect(server, authority, "scorer", REVOKED) as revoked, connect(server, authority, "scorer") as client:
        assert not is_refused(revoked)
        draft.write_text(token_lines() + "a line that is not valid\n")
        os.replace(draft, tokens)
        wait_until(lambda: is_refused(revoked), what="the revoked token to be refused")
        wait_until(lambda: errors() == 1.0, what="the bad line to be reported")
        assert not is_refused(client)

        tokens.unlink()
        wait_until(lambda: is_refused(client), what="the missing file to refuse everybody")
        assert errors() == 1.0
        draft.write_text(token_lines())
        os.replace(draft, tokens)
        wait_until(lambda: errors() == 0.0 and not is_refused(client), what="the file to be valid again")


def is_refused(client: Client) -> bool:
    """Whether a caller is refused."""
    try:
        client.score("digits", make_probs(1, K))
    except Unauthenticated:
        return True
    return False


def test_a_clock_that_was_set_back_does_not_stop_revocation(tmp_path: Path) -> None:
    """The file was not read again until the clock had caught up."""
    path, now = tmp_path / "tokens", [2e9]
    path.write_text(REVOKED_TOKEN.line())
    tokens = TokenFile(path, lambda: now[0])
    now[0] -= 86_400.0
    path.write_text("")

    with pytest.raises(UnauthenticatedError):
        tokens.permit(f"Bearer {REVOKED}", "score")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store with a deployed bundle and two changes of its policy; its triggers are gone."""
    (tmp_path / "bundles").mkdir()
    write_bundle(tmp_path / "bundles" / "m.safetensors", make_bundle(rows=400))
    with Store.open(f"sqlite:///{tmp_path / 'darksight.db'}", auto_upgrade=True) as opened:
        state_file = StateFile(tmp_path / "registry.json")
        deploy_at_start(state_file, opened, tmp_path / "bundles", [("m", tmp_path / "bundles" / "m.safetensors")])
        control = Control(
            Registry(state_file, tmp_path / "bundles", Counts(tmp_path / "counts", 0)), state_file, lambda: opened
        )
        for alpha in (0.1, 0.2):
            control.set_policy("m", PolicyOverride(alpha=alpha), author="ann", comment="")
        run(tmp_path, "DROP TRIGGER policy_change_no_update", "DROP TRIGGER policy_change_no_delete")
        yield opened


def run(folder: Path, *statements: str) -> None:
    """Change the database past the service."""
    with sqlite3.connect(folder / "darksight.db") as connection:
        for statement in statements:
            connection.execute(statement)


def rehash(folder: Path) -> None:
    """Compute the hashes of all entries anew, as somebody does who can write to the database."""
    with sqlite3.connect(folder / "darksight.db") as connection:
        connection.row_factory = sqlite3.Row
        before = b""
        for row in connection.execute("SELECT * FROM policy_change ORDER BY id").fetchall():
            before = _hash(before, {name: row[name] for name in row.keys() if name != "hash"})  # noqa: SIM118
            connection.execute("UPDATE policy_change SET hash = ? WHERE id = ?", (before, row["id"]))


def test_an_altered_entry_is_not_served(store: Store, tmp_path: Path) -> None:
    """Neither as history, nor to a replica that would apply it."""
    run(tmp_path, "UPDATE policy_change SET author = 'bob' WHERE id = 2")

    with pytest.raises(AuditError, match="altered at or before entry 2"):
        store.history("m")
    with pytest.raises(AuditError, match="altered at or before entry 2"):
        sync(StateFile(tmp_path / "elsewhere" / "registry.json"), store)
    assert [change.id for change in store.changes_since(2)] == [3]


def test_an_anchor_reveals_a_trail_that_was_computed_anew(store: Store, tmp_path: Path) -> None:
    """The chain alone is valid then; and it is valid without its last entries."""
    changes, last_hash = store.check()
    anchor = {changes: last_hash}
    assert store.check(anchor) == (changes, last_hash)

    run(tmp_path, "UPDATE policy_change SET author = 'bob' WHERE id = 2")
    rehash(tmp_path)
    store.check()
    with pytest.raises(AuditError, match="entry 3 of the audit trail is not the one of the anchor"):
        store.check(anchor)

    run(tmp_path, "DELETE FROM policy_change WHERE id = 3")
    store.check()
    with pytest.raises(AuditError, match="ends at entry 2, before the anchor 3"):
        store.check(anchor)


def test_an_edited_state_file_is_restored_from_the_trail(store: Store, tmp_path: Path) -> None:
    """It was served as it was; now it counts as a rebuild, which pages."""
    state_file = StateFile(tmp_path / "registry.json")
    before = state_file.read()
    text = state_file.path.read_text()
    edited = re.sub(r'"alpha": 0\.2', '"alpha": 0.0', text)
    assert edited != text
    state_file.path.write_text(edited)

    restore_state(state_file, store)

    after = state_file.read()
    assert after.models == before.models
    assert after.rebuilds == before.rebuilds + 1
    restore_state(state_file, store)
    assert state_file.read() == after


def test_a_trail_that_lost_its_last_entry_opens_no_gate(store: Store, tmp_path: Path) -> None:
    """The rest of it is valid; the state file knows the stricter gate, which stays until it is set again."""
    state_file = StateFile(tmp_path / "registry.json")
    before = state_file.read().models["m"]
    registry = Registry(state_file, tmp_path / "bundles", Counts(tmp_path / "counts", 0))
    control = Control(registry, state_file, lambda: store)
    run(tmp_path, "DELETE FROM policy_change WHERE id = 3")
    command = [sys.executable, "-m", "darksight_service.cli", "db", "check", "--data-dir", str(tmp_path)]

    def check() -> str:
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False).stderr

    found = check()
    rebuilt = sync(state_file, store)
    restore_state(state_file, store)

    assert "ends at entry 2, before the anchor 3" in found
    assert (rebuilt.last_change, rebuilt.rebuilds) == (2, 1)
    after = state_file.read().models["m"]
    assert [after.versions[after.active].policy.alpha, before.versions[before.active].policy.alpha] == [0.2, 0.2]
    assert "the gate of model m is stricter than the audit trail says" in check()
    control.set_policy("m", PolicyOverride(alpha=0.05), author="ann", comment="")
    check_gates(state_file, store)
    assert state_file.read().models["m"].versions[after.active].policy.alpha == 0.05

    # An enforced region stays, too.
    control.regions.save("m", "", "all", [(-9.0, -9.0), (9.0, -9.0), (9.0, 9.0)])
    control.regions.set_mode("m", "", "all", enforce=True)
    run(tmp_path, "DELETE FROM policy_change WHERE id = (SELECT max(id) FROM policy_change)")
    sync(state_file, store)
    assert state_file.read().models["m"].versions[after.active].regions["all"].is_enforced
    with pytest.raises(AuditError, match="stricter"):
        check_gates(state_file, store)


def test_a_version_written_into_the_state_file_is_not_recorded(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in a known model nor as another model; it was recorded as deployed by `serve` for all replicas."""
    monkeypatch.setattr(storage_worker, "_VERIFY_SECONDS", 0.0)
    monkeypatch.setattr(storage_worker, "_SYNC_SECONDS", 0.02)
    state_file, entries = StateFile(tmp_path / "registry.json"), store.check()
    version = write_bundle(tmp_path / "bundles" / "other.safetensors", make_bundle(rows=400, seed=1))
    before = state_file.read()
    planted = Deployment("other.safetensors")

    def edit(state: State) -> State:
        known = state.models["m"]
        edited = replace(known, active=version, versions={**known.versions, version: planted})
        return replace(state, models={"m": edited, "n": ModelState(version, versions={version: planted})})

    settings, counts = Settings(data_dir=tmp_path), StorageCounts(tmp_path / "counts")
    worker = StorageWorker(settings, store, counts)
    try:
        state_file.update(edit)
        wait_until(lambda: read(counts.file.path).number("state_rebuilds") == 1.0, what="the restored state")
    finally:
        worker.finish()
    assert (state_file.read().models, store.check()) == (before.models, entries)

    state_file.update(edit)
    after = deploy_at_start(state_file, store, tmp_path / "bundles", [])
    assert (after.models, after.rebuilds, store.check()) == (before.models, 2, entries)


def test_a_version_deployed_without_the_store_is_kept_and_recorded(store: Store, tmp_path: Path) -> None:
    """It is pending: not taken for an edit before its bundle could be read, and recorded once."""
    state_file, bundles = StateFile(tmp_path / "registry.json"), tmp_path / "bundles"
    path = bundles / "other.safetensors"
    version = write_bundle(path, make_bundle(rows=400, seed=1))
    pending = deploy_at_start(state_file, None, bundles, [("m", path), ("n", path)])

    restore_state(state_file, store)
    assert state_file.read() == pending
    for _ in range(2):
        record_deployments(state_file, store, bundles)
        state = sync(state_file, store)
    restore_state(state_file, store)

    assert state_file.read() == state
    assert [state.models[name].active for name in ("m", "n")] == [version, version]
    assert (state.last_change, state.rebuilds) == (5, 0)
    assert not any(each.is_pending for model in state.models.values() for each in model.versions.values())


def test_the_storage_worker_verifies_the_trail_and_logs_its_anchor(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At its start and later; a broken trail is reported once in the log, and as a metric for the alert."""
    caplog.set_level("INFO", logger="darksight.storage")
    monkeypatch.setattr(storage_worker, "_VERIFY_SECONDS", 0.0)
    monkeypatch.setattr(storage_worker, "_SYNC_SECONDS", 0.02)
    settings, counts = Settings(data_dir=tmp_path), StorageCounts(tmp_path / "counts")
    worker = StorageWorker(settings, store, counts)
    try:
        wait_until(lambda: "audit_anchor" in caplog.messages, what="the anchor")
        assert read(counts.file.path).number("audit_trail_broken") == 0.0
        (anchor,) = [record for record in caplog.records if record.message == "audit_anchor"]
        assert anchor.anchor == "{}:{}".format(*store.check())

        run(tmp_path, "UPDATE policy_change SET author = 'bob' WHERE id = 2")
        wait_until(lambda: read(counts.file.path).number("audit_trail_broken") == 1.0, what="the broken trail")
        time.sleep(0.2)
        assert caplog.messages.count("audit_trail_broken") == 1
    finally:
        worker.finish()
