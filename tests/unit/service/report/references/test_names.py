"""What a reference names."""

from __future__ import annotations

import pytest
from darksight_service.report.references.names import resolve
from darksight_service.settings.validation import parse_origin

ORIGINS = ("https://images.example.com", "http://[::1]:8000")


@pytest.mark.parametrize(
    ("reference", "parts"),
    [("7.png", ("7.png",)), ("a/b c/ü.jpg", ("a", "b c", "ü.jpg")), ("javascript", ("javascript",)), ("...", ("...",))],
)
def test_a_path_below_the_folder(reference: str, parts: tuple[str, ...]) -> None:
    """Folders and a name; no folder, no file."""
    found = resolve(reference, ORIGINS, has_folder=True)

    assert (found.kind, found.parts) == ("file", parts)
    assert resolve(reference, ORIGINS, has_folder=False).kind == "none"


@pytest.mark.parametrize("reference", ["https://images.example.com/7.png", "http://[::1]:8000/a?b=c#d"])
def test_an_url_of_a_configured_origin(reference: str) -> None:
    """It is used as it is."""
    found = resolve(reference, ORIGINS, has_folder=True)

    assert (found.kind, found.url) == ("url", reference)
    assert resolve(reference, (), has_folder=True).kind == "none"


@pytest.mark.parametrize(
    "reference",
    [
        *("", "/etc/passwd", "../../etc/passwd", "a/../b", "a//b", "a/", "./a", "..", "C:/boot.ini", "C:\\boot.ini"),
        *("\\\\host\\share\\x.png", "//host/x.png", "file:///etc/passwd", "javascript:alert(1)", "JaVaScRiPt:alert(1)"),
        *("data:text/html,<script>alert(1)</script>", "blob:x", "vbscript:x", " javascript:alert(1)\x00", "a\nb"),
        *("https://images.example.com", "https://images.example.com.evil.example/x", "a\x00b", "https://evil/x"),
        *("https://images.example.com@evil/x", "https://images.example.com%40evil", "https:/images.example.com/x"),
        *("https://images.example.com:444/x", "https://IMAGES.example.com/x", "http://images.example.com/x"),
        *("https:\\images.example.com\\x", "\u202egnp.7", "a\u2028b", "https://images.example.com\\@evil/x"),
        *("a\u200b/b", "https://images.example.com/\tx", "x\r\nSet: 1"),
    ],
)
def test_everything_else_is_not_shown(reference: str) -> None:
    """With a reason in words."""
    found = resolve(reference, ORIGINS, has_folder=True)

    assert found.kind == "none"
    assert found.problem
    assert not found.url


@pytest.mark.parametrize(
    "text",
    [
        *("", "*", "https://*", "https://a b", "https://a/b", "ftp://a", "https://A.example", "https://a;script-src *"),
        *("'self'", "https://a.example:99999", "https://u@a.example", "https://a.example,https://b.example"),
        "https://-a",
    ],
)
def test_an_origin_is_a_scheme_a_host_and_a_port(text: str) -> None:
    """It becomes part of a content security policy, so nothing else may be in it."""
    with pytest.raises(ValueError, match="must be origins"):
        parse_origin(text)


def test_origins_have_no_slash_at_the_end() -> None:
    """As browsers write them."""
    assert parse_origin(" https://a.example:8443/ ") == "https://a.example:8443"
    assert parse_origin("http://[::1]") == "http://[::1]"
