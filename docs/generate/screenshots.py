"""Pictures of the pages: python -m docs.generate.screenshots FOLDER writes docs/images/*.png.

FOLDER is what `./dev demo --out FOLDER` has written. The demo's own picture of the map is copied; the pages of the
explorer, of a service on the demo's data, and a report are photographed by Chromium.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
from darksight_client import Client
from playwright.sync_api import Browser, Page

from tests.support.browser import running_browser
from tests.support.servers import running_server, wait_until, waiting

IMAGES = Path(__file__).parents[1] / "images"
# Name of the picture, address of the page, size of the window; without a height the whole page is shown.
PAGES = (
    ("explorer", "/map?model=digits", 1440, 900),
    ("gate", "/gate?model=digits", 1200, 0),
    ("drift", "/drift?model=digits-noisy", 1200, 0),
    ("review", "/review?model=digits", 1200, 0),
    ("points", "/points?model=digits-noisy", 1200, 760),
)
_HEIGHT = "document.querySelector('main').scrollHeight + document.querySelector('main').offsetTop"


def main(folder: Path) -> None:
    """Write all pictures."""
    shutil.copy(folder / "map.png", IMAGES)
    report = folder / "report.html"
    command = ["report", folder / "digits.safetensors", folder / "predictions.npz", "--out", report, "--overwrite"]
    subprocess.run([sys.executable, "-m", "darksight_service.cli", *map(str, command)], check=True)
    with (
        running_server({}, folder / "data", "--workers", "1", "--explorer-port", "0") as server,
        running_browser() as browser,
    ):
        wait_until(lambda: "explorer" in server.children(), what="the explorer")
        # The demo reports all outcomes; rows without one fill the queue of the review.
        with Client(server.grpc_target) as client, np.load(folder / "predictions.npz") as file:
            client.score("digits", file["probs"][:200])
        wait_until(lambda: not waiting(server.data_dir), what="the rows to be stored")
        for name, address, width, height in PAGES:
            take(browser, name, server.explorer_url + address, width, height)
        take(browser, "report", report.resolve().as_uri(), 1280, 1130)


def take(browser: Browser, name: str, address: str, width: int, height: int) -> None:
    """Photograph a page when it has all of its data; on the map, with a point selected."""
    page: Page = browser.new_page(viewport={"width": width, "height": height or 800})
    page.goto(address)
    page.wait_for_load_state("networkidle")
    # Plotly draws after its data have arrived.
    page.wait_for_timeout(3_000)
    if name == "explorer":
        page.locator("#plot").focus()
        page.keyboard.press("n")
    if not height:
        page.set_viewport_size({"width": width, "height": page.evaluate(_HEIGHT)})
    page.wait_for_timeout(1_000)
    page.screenshot(path=IMAGES / f"{name}.png")
    page.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
