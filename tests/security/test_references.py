"""References are what callers say: whatever one names, the explorer shows it harmlessly or not at all."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
from darksight_service.control.changes import deploy_at_start
from darksight_service.control.state_file import StateFile
from darksight_service.control.tokens import Caller
from darksight_service.errors import NotFoundError
from darksight_service.http.explorer.api.reference import endpoints
from darksight_service.http.explorer.endpoint import Call
from darksight_service.report.images import ReferenceFiles
from darksight_service.report.references.files import MAX_TEXT
from darksight_service.report.references.pictures import encode_png
from darksight_service.settings import Settings
from darksight_service.store.store import Store

from darksight_core.bundle import read_bundle, write_bundle
from tests.support.bundles import make_bundle
from tests.support.explorers import running_explorer
from tests.support.points import make_points

PNG = encode_png(np.zeros((4, 4), dtype=np.uint8))
SVG = "<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'><script>alert(1)</script></svg>"
ORIGIN = "https://images.example.com"
HOSTILE = (
    "javascript:alert(1)",
    "data:text/html,<script>alert(1)</script>",
    "../../etc/passwd",
    "../secret.txt",
    "/etc/passwd",
    "file:///etc/passwd",
    "\\\\host\\share\\x.png",
    "//evil.example/x.png",
    "https://evil.example/x.png",
    f"{ORIGIN}.evil.example/x.png",
    f"{ORIGIN}@evil.example/x.png",
    "\u202egnp.7",
    "link/secret.txt",
    "secret.txt",
    "program",
    "missing.png",
    '"><img src=x onerror=alert(1)>',
)
GOOD = ("7.png", "page.html", "drawing.svg", "long.txt", "bidi.txt", f"{ORIGIN}/7.png", f"{ORIGIN}/7.wav")


@dataclass(frozen=True, slots=True)
class Explored:
    """An explorer, and the id of the point of each reference."""

    client: httpx.Client
    ids: dict[str, str]
    folder: Path

    def get(self, path: str, reference: str, **params: str) -> httpx.Response:
        """Response of an endpoint about the point of a reference."""
        return self.client.get(path, params={"model": "digits", "id": self.ids[reference], **params})

    def about(self, reference: str) -> dict[str, Any]:
        """What is said about a reference."""
        found: dict[str, Any] = self.get("/api/reference/about", reference).json()
        return found


@pytest.fixture(scope="module")
def explored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Explored]:
    """An explorer with a folder, beside which is a secret, and one point for each reference."""
    root = tmp_path_factory.mktemp("references")
    folder = root / "folder"
    folder.mkdir()
    (root / "secret.txt").write_text("secret", encoding="utf-8")
    (folder / "link").symlink_to(root)
    (folder / "secret.txt").symlink_to(root / "secret.txt")
    (folder / "7.png").write_bytes(PNG)
    (folder / "drawing.svg").write_text(SVG, encoding="utf-8")
    (folder / "page.html").write_text(f"<!doctype html>{SVG}", encoding="utf-8")
    (folder / "long.txt").write_text("x" * 1_000_000, encoding="utf-8")
    (folder / "bidi.txt").write_text("a \u202ecba", encoding="utf-8")
    (folder / "program").write_bytes(b"\x7fELF\x00")
    settings = Settings(
        data_dir=root / "data", explorer_port=0, reference_dir=folder, reference_origins=(ORIGIN, "http://[::1]:9000")
    )
    settings.bundles.mkdir(parents=True)
    write_bundle(root / "digits.safetensors", make_bundle())
    store = Store.open(settings.store_url, auto_upgrade=True)
    deploy_at_start(
        StateFile(settings.data_dir / "registry.json"),
        store,
        settings.bundles,
        [("digits", root / "digits.safetensors")],
    )
    references = (*GOOD, *HOSTILE)
    batch = make_points(
        len(references),
        ms=time.time_ns() // 1_000_000,
        classes=3,
        version=read_bundle(root / "digits.safetensors").version,
        tags=[{"reference": each} for each in references],
    )
    store.insert([batch])
    ids = dict(zip(references, (each.hex() for each in batch.id_bytes()), strict=True))
    with running_explorer(settings) as url, httpx.Client(base_url=url, timeout=60.0) as client:
        yield Explored(client, ids, folder)
    store.close()


def test_a_picture_is_served_as_a_picture_and_nothing_else(explored: Explored) -> None:
    """In a sandbox, as an attachment, and of the type that its bytes have."""
    about = explored.about("7.png")
    response = explored.client.get(about["source"])

    assert (about["kind"], response.content) == ("image", PNG)
    assert response.headers["content-type"] == "image/png"
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["content-disposition"] == "attachment"
    assert response.headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'; sandbox"
    assert response.headers["cross-origin-resource-policy"] == "same-origin"


@pytest.mark.parametrize("reference", ["drawing.svg", "page.html", "bidi.txt"])
def test_documents_are_plain_text(explored: Explored, reference: str) -> None:
    """As JSON for the page, which sets it as text, and as plain text at their own address."""
    about, response = explored.about(reference), explored.get("/api/reference", reference)

    assert about["kind"] == "text"
    assert about["text"] == (explored.folder / reference).read_text(encoding="utf-8")
    assert response.headers["content-type"] == "text/plain; charset=utf-8"
    assert "sandbox" in response.headers["content-security-policy"]


def test_a_megabyte_of_text_is_cut(explored: Explored) -> None:
    """At 64 KiB."""
    assert explored.about("long.txt")["text"] == "x" * MAX_TEXT + "…"


@pytest.mark.parametrize("reference", HOSTILE)
def test_a_hostile_reference_is_not_shown(explored: Explored, reference: str) -> None:
    """The page says why; there is no address to load and no byte of a file."""
    about, response = explored.about(reference), explored.get("/api/reference", reference)

    assert (about["kind"], about["source"], about["text"]) == ("none", "", "")
    assert about["problem"]
    assert about["reference"] == reference
    assert response.status_code == 404
    assert "secret" not in response.text.replace("secret.txt", "")


@pytest.mark.parametrize(("reference", "kind"), [(f"{ORIGIN}/7.png", "image"), (f"{ORIGIN}/7.wav", "audio")])
def test_an_url_of_a_configured_origin_is_loaded_by_the_browser(explored: Explored, reference: str, kind: str) -> None:
    """Never by the server."""
    about = explored.about(reference)

    assert (about["kind"], about["source"]) == (kind, reference)
    assert explored.get("/api/reference", reference).status_code == 404


def test_the_policy_of_a_page_names_exactly_the_origins(explored: Explored) -> None:
    """Of pages that show references; others allow none."""
    policies = {name: explored.client.get(f"/{name}").headers["content-security-policy"] for name in ("map", "review")}
    bare = explored.client.get("/drift").headers["content-security-policy"]

    for policy in policies.values():
        rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
        assert rules["img-src"] == f"'self' data: blob: {ORIGIN} http://[::1]:9000"
        assert rules["media-src"] == f"'self' {ORIGIN} http://[::1]:9000"
        assert rules["connect-src"] == "'self'"
    assert "example.com" not in bare


def test_only_the_reference_of_a_point_can_be_read(explored: Explored) -> None:
    """A caller cannot name a file, and a point of another model is not there."""
    params = {"model": "digits", "id": "0" * 32, "reference": "7.png", "path": "7.png"}
    unknown = explored.client.get("/api/reference", params=params)
    other = explored.get("/api/reference", "7.png", model="letters")

    assert unknown.status_code == 404
    assert other.status_code == 404


def test_a_report_shows_them_harmlessly_too(explored: Explored) -> None:
    """Pictures are encoded again, texts are cut, and what is hostile is a sentence."""
    references = (*GOOD, *HOSTILE)
    shown = [ReferenceFiles(explored.folder, references).show(row) for row in range(len(references))]

    assert shown[0].image.startswith("data:image/png;base64,")
    assert shown[1].text.startswith("<!doctype html>")
    assert len(shown[3].text) == 401
    for each in shown[len(GOOD) - 2 :]:
        assert each.problem
        assert (each.image, each.audio, each.text) == ("", "", "")


def test_a_caller_of_some_models_reads_files_of_their_folders_alone(tmp_path: Path) -> None:
    """Who may add points to a model could refer to the files of another."""
    files = {"digits/7.png": PNG, "letters/7.png": PNG, "7.png": PNG}
    for name, data in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    found: list[str] = []
    points = SimpleNamespace(references=SimpleNamespace(tolist=lambda: found[-1:]))
    store = SimpleNamespace(points_by_id=lambda *_: points)
    sources: Any = SimpleNamespace(
        settings=SimpleNamespace(reference_dir=tmp_path, reference_origins=()), store=lambda: store
    )
    content, about = (endpoint.answer for endpoint in endpoints(sources))

    def shown(reference: str, models: frozenset[str] | None) -> bool:
        found.append(reference)
        call: Any = Call(SimpleNamespace(model="digits", id=bytes(16)), Caller("team", models))
        said: Any = about(call)
        try:
            sent: Any = content(call)
        except NotFoundError:
            assert "may use some models only" in said["problem"]
            return False
        return bool(said["source"]) and sent.data == PNG

    assert [shown(each, frozenset({"digits"})) for each in files] == [True, False, False]
    assert [shown(each, None) for each in files] == [True, True, True]
