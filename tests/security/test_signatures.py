"""Signed bundles: with a required key, nothing is served that it has not signed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from darksight_service.control.bundle_files import copy_path
from darksight_service.control.changes import Control, copy_deployed, deploy_at_start
from darksight_service.control.registry import Registry
from darksight_service.control.signatures import SignatureKey, sign_bundle, signature_path
from darksight_service.control.state_file import StateFile
from darksight_service.metrics.counts import Counts
from darksight_service.store.store import Store

from darksight_core.bundle import encode_bundle, version_of
from darksight_core.errors import ConfigError
from tests.support.bundles import make_bundle
from tests.support.errors import raises_code

PEM, PLAIN = serialization.Encoding.PEM, serialization.NoEncryption()


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with two pairs of keys, `own` and `other`, and a key of another kind."""
    folder = tmp_path_factory.mktemp("keys")
    for name in ("own", "other"):
        key = Ed25519PrivateKey.generate()
        private = key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, PLAIN)
        public = key.public_key().public_bytes(PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        (folder / f"{name}.pem").write_bytes(private)
        (folder / f"{name}.pub").write_bytes(public)
    other = generate_private_key(SECP256R1()).public_key()
    (folder / "curve.pub").write_bytes(other.public_bytes(PEM, serialization.PublicFormat.SubjectPublicKeyInfo))
    return folder


@pytest.fixture(scope="module")
def data() -> bytes:
    """The file of a bundle."""
    return encode_bundle(make_bundle())


@pytest.fixture
def bundle(tmp_path: Path, data: bytes) -> Path:
    """A bundle in a bundle directory."""
    path = tmp_path / "bundles" / "model.safetensors"
    path.parent.mkdir()
    path.write_bytes(data)
    return path


@contextmanager
def control_of(folder: Path, key: SignatureKey | None) -> Iterator[Control]:
    """Operations on a data directory whose bundles must be signed with a key."""
    state_file, counts = StateFile(folder / "data" / "registry.json"), Counts(folder / "data" / "counts", 0)
    with Store.open(f"sqlite:///{folder / 'data' / 'store.db'}", auto_upgrade=True) as store:
        yield Control(Registry(state_file, folder / "bundles", counts, key=key), state_file, lambda: store)
    counts.close()


def test_a_signed_bundle_is_deployed_and_keeps_its_signature(keys: Path, bundle: Path, tmp_path: Path) -> None:
    """The signature travels with the copy, so the version is loaded after its original is gone."""
    key, version = SignatureKey(keys / "own.pub"), version_of(bundle.read_bytes())
    sign_bundle(bundle, keys / "own.pem", version, "m")
    with control_of(tmp_path, key) as control:
        assert control.deploy("m", "model.safetensors", activate=True, author="a") == version
    bundle.unlink()
    signature_path(bundle, "m").unlink()

    registry = Registry(
        StateFile(tmp_path / "data" / "registry.json"), bundle.parent, Counts(tmp_path / "data" / "counts", 1), key=key
    )
    registry.refresh()

    assert registry.get("m").version == version


def test_a_new_signature_replaces_the_one_of_the_copy(keys: Path, bundle: Path, tmp_path: Path) -> None:
    """A bundle is signed after it was copied, or again with another key."""
    version, state_file = version_of(bundle.read_bytes()), StateFile(tmp_path / "data" / "registry.json")
    state = deploy_at_start(state_file, None, bundle.parent, [("m", bundle)])
    copied = signature_path(copy_path(state_file.bundle_copies, version), "m")
    sign_bundle(bundle, keys / "other.pem", version, "m")
    assert copy_deployed(state_file, bundle.parent, state) == {}
    assert copied.read_bytes() == signature_path(bundle, "m").read_bytes()

    sign_bundle(bundle, keys / "own.pem", version, "m")
    deploy_at_start(state_file, None, bundle.parent, [("m", bundle)], SignatureKey(keys / "own.pub"))

    assert copied.read_bytes() == signature_path(bundle, "m").read_bytes()


def test_a_copy_does_not_get_the_signature_of_another_version(keys: Path, bundle: Path, tmp_path: Path) -> None:
    """The file that it was copied from has been replaced."""
    version, state_file = version_of(bundle.read_bytes()), StateFile(tmp_path / "data" / "registry.json")
    state = deploy_at_start(state_file, None, bundle.parent, [("m", bundle)])
    bundle.write_bytes(encode_bundle(make_bundle(rows=400)))
    sign_bundle(bundle, keys / "own.pem", version_of(bundle.read_bytes()), "m")

    copy_deployed(state_file, bundle.parent, state)

    assert not signature_path(copy_path(state_file.bundle_copies, version), "m").exists()


def test_what_the_key_has_not_signed_is_refused(keys: Path, bundle: Path, tmp_path: Path) -> None:
    """No signature, one for another model, of another key or of other bytes, and a damaged one are refused by name."""
    signature, version = signature_path(bundle, "m"), version_of(bundle.read_bytes())
    with control_of(tmp_path, SignatureKey(keys / "own.pub")) as control:
        for make, message in [
            (lambda: None, "is not signed for model m"),
            (lambda: sign_bundle(bundle, keys / "own.pem", version, "n"), "is not signed for model m"),
            (lambda: signature_path(bundle, "n").rename(signature), "not one of the required"),
            (lambda: sign_bundle(bundle, keys / "other.pem", version, "m"), "not one of the required"),
            (lambda: sign_bundle(bundle, keys / "own.pem", "0" * 64, "m"), "not one of the required"),
            (lambda: signature.write_text("not base64!"), "not one of the required"),
            (lambda: signature.write_bytes(b"A" * 100_000), "not one of the required"),
        ]:
            make()
            with raises_code("bundle_signature", match=message):
                control.deploy("m", "model.safetensors", activate=True, author="a")


def test_a_version_without_signature_is_not_loaded_from_the_data_directory(
    keys: Path, bundle: Path, tmp_path: Path
) -> None:
    """A copy and a state file that were written past the service do not help."""
    state_file = StateFile(tmp_path / "data" / "registry.json")
    deploy_at_start(state_file, None, bundle.parent, [("m", bundle)])
    assert copy_path(state_file.bundle_copies, version_of(bundle.read_bytes())).exists()
    counts = Counts(tmp_path / "data" / "counts", 0)
    registry = Registry(state_file, bundle.parent, counts, key=SignatureKey(keys / "own.pub"))

    registry.refresh()

    assert registry.missing == ("m",)
    with raises_code("bundle_signature"):
        deploy_at_start(state_file, None, bundle.parent, [("n", bundle)], SignatureKey(keys / "own.pub"))


def test_a_version_in_memory_is_not_served_for_another_model(keys: Path, bundle: Path, tmp_path: Path) -> None:
    """Its signature for the other model is looked at, although it was loaded for the first."""
    sign_bundle(bundle, keys / "own.pem", version_of(bundle.read_bytes()), "m")
    state_file = StateFile(tmp_path / "data" / "registry.json")
    deploy_at_start(state_file, None, bundle.parent, [("m", bundle), ("n", bundle)])
    registry = Registry(
        state_file, bundle.parent, Counts(tmp_path / "data" / "counts", 0), key=SignatureKey(keys / "own.pub")
    )

    registry.refresh()

    assert registry.missing == ("n",)


def test_a_signature_that_is_no_file_does_not_hold_the_loader(keys: Path, bundle: Path, tmp_path: Path) -> None:
    """Of a FIFO without a writer it waited for ever."""
    os.mkfifo(signature_path(bundle, "m"))
    with (
        control_of(tmp_path, SignatureKey(keys / "own.pub")) as control,
        raises_code("bundle_signature", match="not signed"),
    ):
        control.deploy("m", "model.safetensors", activate=True, author="a")


@pytest.mark.parametrize("name", ["own.pem", "curve.pub", "none.pub"])
def test_a_key_of_another_kind_is_refused(keys: Path, name: str) -> None:
    """A private key, another curve and a missing file are no public Ed25519 keys."""
    with pytest.raises(ConfigError, match=name):
        SignatureKey(keys / name)


def test_bundles_are_signed_and_verified_by_command(keys: Path, bundle: Path) -> None:
    """`bundle sign` writes the signature that `bundle verify --key` accepts; another key is refused with exit 2."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "darksight_service.cli", "bundle", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    signed = run("sign", str(bundle), "--key", str(keys / "own.pem"), "--model", "m")
    found = [
        run("verify", str(bundle), "--key", str(keys / name), "--model", model)
        for name, model in (("own.pub", "m"), ("other.pub", "m"), ("own.pub", "n"))
    ]

    assert signed.returncode == 0, signed.stderr
    assert [each.returncode for each in found] == [0, 2, 2]
    assert "signature" in found[1].stderr
