from __future__ import annotations

import hashlib
import os
from datetime import date
from pathlib import Path

import pytest
from darksight_service.control.tokens import TokenFile, make_token
from darksight_service.errors import ForbiddenError, SettingsError, UnauthenticatedError


class Clock:
    """A clock that is set by hand."""

    now = 1_800_000_000.0

    def __call__(self) -> float:
        """The time."""
        return self.now


def write(path: Path, *lines: str) -> None:
    """Write a token file."""
    path.write_text("".join(lines))
    # Two writes within the clock tick of the file system must differ.
    os.utime(path, ns=(0, path.stat().st_mtime_ns + len(lines)))


def test_a_token_permits_its_scopes_and_nothing_else(tmp_path: Path):
    """Scopes do not include each other, not even admin."""
    secret, token = make_token("gateway", ["score", "admin"])
    write(tmp_path / "tokens", token.line())
    tokens = TokenFile(tmp_path / "tokens")

    assert tokens.permit(f"Bearer {secret}", "score").name == "gateway"
    assert tokens.permit(f"bearer {secret}", "admin").name == "gateway"
    with pytest.raises(ForbiddenError, match="lacks the scope 'read'"):
        tokens.permit(f"Bearer {secret}", "read")


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Basic abc", "Bearer ds_wrong"])
def test_whatever_is_no_known_token_is_refused(tmp_path: Path, header: str | None):
    """Deny by default."""
    write(tmp_path / "tokens", make_token("gateway", ["score"])[1].line())

    with pytest.raises(UnauthenticatedError):
        TokenFile(tmp_path / "tokens").permit(header, "score")


def test_the_file_holds_the_hash_and_not_the_token(tmp_path: Path):
    """Whoever reads the file cannot call."""
    secret, token = make_token("gateway", ["score"])

    assert secret not in token.line()
    assert hashlib.sha256(secret.encode()).hexdigest() in token.line()


def test_a_token_ends_on_its_day(tmp_path: Path):
    """Its own time zone is UTC."""
    clock = Clock()
    secret, token = make_token("guest", ["score"], date(2027, 1, 20))
    write(tmp_path / "tokens", token.line())
    tokens = TokenFile(tmp_path / "tokens", clock)

    assert tokens.permit(f"Bearer {secret}", "score").name == "guest"
    clock.now += 86_400 * 30
    with pytest.raises(UnauthenticatedError, match="expired"):
        tokens.permit(f"Bearer {secret}", "score")


def test_a_deleted_line_is_a_revoked_token(tmp_path: Path):
    """The file is read again when it changes, within a second."""
    clock, path = Clock(), tmp_path / "tokens"
    (old, first), (new, second) = make_token("old", ["score"]), make_token("new", ["score"])
    write(path, first.line())
    tokens = TokenFile(path, clock)

    clock.now += 2.0
    write(path, "# rotated\n", "\n", second.line())
    assert tokens.permit(f"Bearer {new}", "score").name == "new"
    with pytest.raises(UnauthenticatedError):
        tokens.permit(f"Bearer {old}", "score")


def test_a_file_that_could_not_be_read_is_read_again_though_it_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """An error of the disk, or of permissions, refuses callers as long as it lasts."""
    clock, path = Clock(), tmp_path / "tokens"
    secret, token = make_token("gateway", ["score"])
    write(path, token.line())
    tokens = TokenFile(path, clock)

    def fail(*_: object, **__: object) -> str:
        raise OSError("input/output error")

    clock.now += 2.0
    with monkeypatch.context() as broken:
        write(path, token.line(), "\n")
        broken.setattr(Path, "read_text", fail)
        with pytest.raises(UnauthenticatedError):
            tokens.permit(f"Bearer {secret}", "score")
    clock.now += 2.0

    assert tokens.permit(f"Bearer {secret}", "score").name == "gateway"
    assert not tokens.errors


def test_a_change_that_keeps_time_and_size_is_noticed(tmp_path: Path):
    """As of a file that is copied with its time."""
    clock, path = Clock(), tmp_path / "tokens"
    (old, first), (_, second) = make_token("one", ["score"]), make_token("two", ["score"])
    path.write_text(first.line())
    tokens, status = TokenFile(path, clock), path.stat()

    clock.now += 2.0
    path.write_text(second.line())
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    with pytest.raises(UnauthenticatedError):
        tokens.permit(f"Bearer {old}", "score")


@pytest.mark.parametrize(
    "line",
    [
        "one",
        "one score",
        "one score xyz",
        f"one write {'0' * 64}",
        f"one score {'0' * 62}",
        f"one score {'0' * 64} never",
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str):
    """At start a server refuses a file that it does not understand."""
    write(tmp_path / "tokens", "# a comment\n", line + "\n")

    with pytest.raises(SettingsError, match="line 2"):
        TokenFile(tmp_path / "tokens").check()


def test_a_name_or_scope_that_cannot_work_is_refused():
    """Before anything is written."""
    with pytest.raises(SettingsError, match="not a valid token name"):
        make_token("two words", ["score"])
    with pytest.raises(SettingsError, match="unknown scope write"):
        make_token("one", ["score", "write"])


def test_a_token_can_be_restricted_to_models(tmp_path: Path):
    """Its caller may use them and no other; a token without models may use all."""
    (narrow, first), (wide, second) = (
        make_token(name, ["score"], models=names) for name, names in (("narrow", ["b", "a"]), ("wide", None))
    )
    write(tmp_path / "tokens", first.line(), second.line())
    tokens = TokenFile(tmp_path / "tokens")

    caller = tokens.permit(f"Bearer {narrow}", "score")

    assert first.line().endswith(" models=a,b\n")
    assert caller.models == {"a", "b"}
    caller.check_model("a")
    with pytest.raises(ForbiddenError, match="'narrow' may not use the model 'c'"):
        caller.check_model("c")
    with pytest.raises(ForbiddenError, match="some models only"):
        caller.check_all_models("the metrics are of")
    assert tokens.permit(f"Bearer {wide}", "score").models is None


@pytest.mark.parametrize("models", [[], [""], ["a", ""], ["two words"]])
def test_models_of_a_token_must_be_names(models: list[str]):
    """An empty list would permit nothing, and nobody means that."""
    with pytest.raises(SettingsError, match="models"):
        make_token("narrow", ["score"], models=models)


@pytest.mark.parametrize("rest", ["models=", "models=a, 2027-01-01", "models=a b", "2027-01-01 a", "models=a models=b"])
def test_a_line_with_wrong_models_is_refused(tmp_path: Path, rest: str):
    """It must not become a token for all models."""
    secret, token = make_token("one", ["score"])
    write(tmp_path / "tokens", f"{token.line().rstrip()} {rest}\n")
    tokens = TokenFile(tmp_path / "tokens")

    assert len(tokens.errors) == 1
    with pytest.raises(UnauthenticatedError):
        tokens.permit(f"Bearer {secret}", "score")
