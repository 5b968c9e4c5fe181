from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from darksight_client import Client, DarkSightClientError
from darksight_client.transport.credentials import Token


def test_a_token_travels_as_bearer() -> None:
    """In the header that everybody reads."""
    assert Token("secret").metadata() == (("authorization", "Bearer secret"),)
    assert Token().metadata() is None


def test_a_token_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    """At most a second later; a file that is gone or empty for a moment does not matter."""
    now = [0.0]
    file = tmp_path / "token"
    file.write_text("one\n")
    token = Token("", file, clock=lambda: now[0])
    assert token.metadata() == (("authorization", "Bearer one"),)

    file.write_text("two\n")
    os.utime(file, ns=(1, 1))
    assert token.metadata() == (("authorization", "Bearer one"),)
    now[0] = 1.0
    assert token.metadata() == (("authorization", "Bearer two"),)

    file.write_text("")
    now[0] = 2.0
    assert token.metadata() == (("authorization", "Bearer two"),)
    file.unlink()
    now[0] = 3.0
    assert token.metadata() == (("authorization", "Bearer two"),)


def test_a_token_file_that_was_never_there_is_an_error(tmp_path: Path) -> None:
    """Without a token the server would refuse with a less helpful text."""
    with pytest.raises(DarkSightClientError, match="token_file"):
        Token("", tmp_path / "none").metadata()
    (tmp_path / "empty").touch()
    with pytest.raises(DarkSightClientError, match="is empty"):
        Token("", tmp_path / "empty").metadata()


@pytest.mark.parametrize(
    ("target", "options", "text"),
    [
        ([], {}, "no address"),
        ("", {}, "no address"),
        ("a:1", {"token": "x", "token_file": "y"}, "mutually exclusive"),
        ("a:1", {"tls_cert": "c"}, "given together"),
        ("a:1", {"tls_ca": "/nowhere/ca.pem"}, "cannot read"),
        ("a:1", {"compression": "zip"}, "compression"),
    ],
)
def test_options_that_cannot_work_are_refused(target: Any, options: dict[str, Any], text: str) -> None:
    """When the client is made, not at the first call."""
    with pytest.raises(DarkSightClientError, match=text):
        Client(target, **options)


def test_a_closed_client_says_so() -> None:
    """Instead of an error of gRPC's."""
    client = Client("127.0.0.1:1")
    client.close()
    client.close()

    with pytest.raises(DarkSightClientError, match="closed"):
        client.score("m", [0.5, 0.5])
