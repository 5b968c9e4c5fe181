"""`darksight bundle`: show, sign, verify and compare bundles."""

from __future__ import annotations

from pathlib import Path

from darksight_core.bundle import diff, read_bundle
from darksight_service.cli.console import print_facts, print_json, print_result
from darksight_service.cli.options import AsJson, command_group
from darksight_service.control.bundle_files import read_signed
from darksight_service.control.changes import check_name
from darksight_service.control.signatures import required_key, sign_bundle

__all__ = ["bundle", "compare", "show", "sign", "verify"]

bundle = command_group("bundle", "Show, sign, verify or compare bundles.")


@bundle.command
def show(file: Path, /, *, json: AsJson = False) -> None:
    """Print what a bundle is and what it promises, even of one that fails verification.

    Parameters
    ----------
    file
        Bundle to show.
    """
    found = read_bundle(file, verify=False)
    if json:
        print_json({"version": found.version, **found.manifest})
    else:
        print_facts(found.title, found.facts())


@bundle.command
def sign(file: Path, /, *, key: Path, model: str, json: AsJson = False) -> None:
    """Sign a bundle for a model, for servers that require a signature.

    Verifies the bundle and writes FILE.MODEL.sig beside it, which must stay beside it. Create a key with
    openssl genpkey -algorithm ed25519 -out key.pem, and its public part with openssl pkey -in key.pem -pubout.

    Parameters
    ----------
    file
        Bundle to sign.
    key
        Private Ed25519 key, PEM.
    model
        Name of the model that it may serve.
    """
    check_name(model)
    version = read_bundle(file, verify=True).version
    signature = sign_bundle(file, key, version, model)
    found = {"bundle": str(file), "version": version, "model": model, "signature": str(signature)}
    print_result(found, f"{signature}: signature of version {version} for model {model}", json=json)


@bundle.command
def verify(file: Path, /, *, key: Path | None = None, model: str = "", json: AsJson = False) -> None:
    """Check every byte of a bundle and score its probe rows again.

    Loads the bundle as a server does: hashes, shapes, finite values, overlap of fit and calibration rows, and the
    scores of the probe rows. The exit status is 0 if it can be served, 2 with the reason if not.

    Parameters
    ----------
    file
        Bundle to verify.
    key
        Public Ed25519 key, PEM, that must have signed the bundle.
    model
        Name of the model that it must be signed for.
    """
    if key is not None:
        check_name(model)
    version = read_signed(file, str(file), required_key(key), model).version
    print_result({"bundle": str(file), "version": version}, f"{file}: valid, version {version}", json=json)


@bundle.command(name="diff")
def compare(old: Path, new: Path, /, *, json: AsJson = False) -> None:
    """Print the differences between two bundles.

    Parameters
    ----------
    old
        First bundle.
    new
        Second bundle.
    """
    lines = diff(read_bundle(old, verify=False), read_bundle(new, verify=False))
    print_result({"differences": lines}, "\n".join(lines) or "no difference", json=json)
