"""Signatures of bundles. The hashes in a bundle show that it is complete; a signature shows who has approved it.

A signature is Ed25519 over the sha256 of the file and the name of the model that it may serve, base64 in a text file
beside it: `gated.safetensors.digits.sig` for the model `digits`. Keys are PEM files, as `openssl genpkey -algorithm
ed25519` and `openssl pkey -pubout` write them.
"""

from __future__ import annotations

import base64
import binascii
import os
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from darksight_core.bundle.defects import defect
from darksight_core.errors import ConfigError

__all__ = ["SignatureKey", "required_key", "sign_bundle", "signature_path"]

# What is signed begins with its purpose, so that no other signature of the same key fits.
_PURPOSE = "darksight bundle sha256 "
_MAX_BYTES = 1_000


def signature_path(bundle: Path, model: str) -> Path:
    """The file of the signature of a bundle for a model."""
    return bundle.with_name(f"{bundle.name}.{model}.sig")


def sign_bundle(bundle: Path, key: Path, version: str, model: str) -> Path:
    """Sign a version with a private key; returns the file of the signature, which is replaced if it exists.

    Parameters
    ----------
    bundle
        The file.
    key
        The key, PEM.
    version
        sha256 of the file.
    model
        Name of the model.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    private = _read_key(key, partial(load_pem_private_key, password=None), Ed25519PrivateKey, "private")
    signature: bytes = private.sign(_signed_text(version, model))
    target = signature_path(bundle, model)
    try:
        target.write_bytes(base64.b64encode(signature) + b"\n")
    except OSError as error:
        raise ConfigError(f"{target} cannot be written: {error.strerror}") from error
    return target


class SignatureKey:
    """A public key with which bundles must be signed.

    Parameters
    ----------
    file
        The key, PEM.
    """

    def __init__(self, file: Path) -> None:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key

        self._key = _read_key(file, load_pem_public_key, Ed25519PublicKey, "public")

    def check(self, bundle: Path, version: str, model: str, source: str) -> None:
        """Refuse a bundle unless it has a valid signature for the model beside it.

        Parameters
        ----------
        bundle
            The file.
        version
            sha256 of the bytes that were read.
        model
            Name of the model.
        source
            Name of the file for messages.
        """
        from cryptography.exceptions import InvalidSignature

        try:
            signature = base64.b64decode(_read_file(signature_path(bundle, model)).strip(), validate=True)
            self._key.verify(signature, _signed_text(version, model))
        except OSError:
            text = f"the bundle is not signed for model {model}; run darksight bundle sign"
            raise defect("bundle_signature", source, text) from None
        except (InvalidSignature, binascii.Error):
            text = "the signature is not one of the required key"
            raise defect("bundle_signature", source, text) from None


def required_key(file: Path | None) -> SignatureKey | None:
    """The key of the setting `require_signature`; None if it is not set."""
    return None if file is None else SignatureKey(file)


def _signed_text(version: str, model: str) -> bytes:
    return f"{_PURPOSE}{version} {model}".encode()


def _read_file(path: Path) -> bytes:
    """The start of a regular file; of a FIFO nobody may ever write the other end."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{path.name} is not a file")
        return file.read(_MAX_BYTES)


def _read_key(file: Path, load: Callable[[bytes], Any], kind: type, name: str) -> Any:
    """The key of a file, if it is of this kind."""
    try:
        found = load(file.read_bytes())
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from error
    except Exception:
        # The package raises errors of several kinds, and their texts may quote the key.
        found = None
    if not isinstance(found, kind):
        raise ConfigError(f"{file} is not a {name} Ed25519 key in PEM, without a password")
    return found
