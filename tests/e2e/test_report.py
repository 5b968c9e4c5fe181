"""`darksight report` as people use it: the command, and the page in a browser."""

from __future__ import annotations

import json
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page

from darksight_core.bundle import write_bundle
from tests.e2e.conftest import Refusal
from tests.support.browser import watched_page
from tests.support.bundles import make_bundle
from tests.support.commands import run_command

FIGURES = [
    "map",
    "global-fidelity",
    "calibration",
    "accuracy-data",
    "foreign",
    "local-fidelity",
    "path-1",
    "path-2",
]

MARKS = ("opened", "drawn")


@dataclass(frozen=True, slots=True)
class Made:
    """A folder with a finished page, what the command printed, and its numbers."""

    folder: Path
    heard: str
    numbers: dict[str, Any]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A page with everything that a page can have, except many classes."""
    folder = tmp_path_factory.mktemp("report")
    write_bundle(folder / "model.safetensors", make_bundle(400, 4))
    rng = np.random.default_rng(1)
    probs = rng.dirichlet(np.full(4, 0.4), 240)
    labels = (np.cumsum(probs, axis=1) < rng.random(240)[:, None]).sum(axis=1).clip(max=3)
    np.savez(folder / "rows.npz", probs=probs, labels=labels)
    np.savez(folder / "foreign.npz", probs=rng.dirichlet(np.full(4, 9.0), 50))
    np.savez(folder / "images.npz", images=rng.integers(0, 256, (240, 8, 8), dtype=np.uint8))
    with chdir(folder):
        done = run_command(
            "report", "model.safetensors", "rows.npz", "--out", "page.html", "--ood", "foreign.npz",
            "--images", "images.npz", "--json", "--path", "class 0", "1", "--path-points", "0,0 1,1.5",
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return Made(folder, done.stderr, json.loads(done.stdout))


def test_numbers_are_printed_and_progress_goes_to_stderr(made: Made) -> None:
    """The JSON has what other commands call by the same name."""
    assert made.numbers["rows"] == 240
    assert {"fidelity", "local_fidelity", "failure", "ood", "chosen", "cases", "paths"} <= made.numbers.keys()
    assert {"msp", "entropy", "learned", "log_kde", "kl_matching"} <= made.numbers["failure"].keys()
    assert [path["name"] for path in made.numbers["paths"]] == ["class 0 to class 1", "drawn line 1"]
    assert "wrote page.html" in made.heard


def count_marks(page: Page) -> dict[str, int]:
    """Drawn marks of each figure."""
    script = "plots => Object.fromEntries(plots.map(p => [p.dataset.figure, p.querySelectorAll('path').length]))"
    return dict(page.locator(".plot").evaluate_all(script))


def test_the_page_draws_all_figures_and_asks_nobody(made: Made, browser: Browser) -> None:
    """No request, no word on the console, every figure drawn, colours switch, a dot tells its row, numbers download."""
    address = (made.folder / "page.html").as_uri()
    with watched_page(browser, "file://") as page:
        page.goto(address)
        page.wait_for_selector("html[data-opened=yes]")
        page.wait_for_selector("html[data-drawn=yes]")
        opened, drawn = (page.evaluate(f"performance.getEntriesByName('{name}')[0].startTime") for name in MARKS)
        marks = count_marks(page)
        page.evaluate("document.getElementById('plot-map').emit('plotly_hover', {points: [{customdata: 7}]})")
        panel = page.locator("#row").inner_text()
        page.locator("#plot-map .updatemenu-button", has_text="entropy").click()
        page.wait_for_function(
            "document.getElementById('plot-map').data.some(t => t.marker?.coloraxis && t.visible === true)"
        )
        with page.expect_download() as download:
            page.get_by_role("button", name="Numbers as JSON").click()
        saved = json.loads(Path(download.value.path()).read_text(encoding="utf-8"))
        thumbnails = page.locator("img[data-row]").count()
        offers = page.locator("#plot-map .modebar-btn").evaluate_all("all => all.map(button => button.dataset.title)")

    assert opened < drawn
    assert list(marks) == FIGURES
    assert min(marks.values()) > 5
    assert "row 7" in panel
    assert saved == made.numbers
    assert thumbnails > 10
    assert {"Download plot as a PNG", "Download as SVG"} <= set(offers)
    assert not [offer for offer in offers if "Share" in offer]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--out", "page.html"), "--overwrite"),
        (("--out", "nowhere/page.html"), "directory does not exist"),
        (("--out", "x.html", "--images", "foreign.npz"), "50 images, but the predictions have 240 rows"),
        (("--out", "x.html", "--images", "none.npz"), "none.npz does not exist"),
        (("--out", "x.html", "--path", "class 0", "zebra"), "the map has no class 'zebra'; known are class 0, class 1"),
        (("--out", "x.html", "--path", "class 0", "clss 1"), "has no class 'clss 1'; did you mean class 1?"),
        (("--out", "x.html", "--path-points", "0,0"), "two or more points"),
    ],
    ids=["exists", "no folder", "images", "no images", "class", "misspelt class", "points"],
)
def test_bad_usage_exits_2_with_a_sentence(
    made: Made, arguments: tuple[str, ...], words: str, refusal: Refusal
) -> None:
    """Nothing is computed or written, and the sentence names what to do."""
    said = refusal(made.folder, ["report", "model.safetensors", "rows.npz", *arguments])

    assert words in said
    assert len(said.strip().splitlines()) == 1
    assert not (made.folder / "x.html").exists()
