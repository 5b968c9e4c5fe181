"""The notebooks run from top to bottom, and the widget works in JupyterLab in a real browser."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from playwright.sync_api import Browser, expect

from tests.support.browser import running_browser
from tests.support.commands import QUICK_FIT
from tests.support.servers import wait_until

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))

# A square of 9 x 9 points of three classes, the last one wrong.
WIDGET = """
from pathlib import Path
import numpy as np
from darksight_core.map.regions import Region
from darksight_core.pictures.notebook import MapWidget

grid = np.stack(np.meshgrid(np.arange(9.0), np.arange(9.0)), axis=-1).reshape(-1, 2)
classes = np.arange(81) // 27
labels = np.where(np.arange(81) == 80, 0, classes)
widget = MapWidget(grid, classes, labels, class_names=["cat", "dog", "owl"], probs=np.eye(3)[classes],
                   regions=[Region("top", ((5, 5), (8.5, 5), (8.5, 8.5)))])
widget.observe(lambda change: Path("selected.txt").write_text(str(widget.selected.tolist())), "inside")
widget
"""


@pytest.fixture(autouse=True)
def _jupyter(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jupyter keeps its files in a folder of its own, and kernels import this tree; their fits are short."""
    folder = tmp_path_factory.mktemp("jupyter")
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(folder / name.lower()))
    for name in ("JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR"):
        monkeypatch.setenv(name, str(folder / name.lower()))
    monkeypatch.setenv("PYTHONPATH", QUICK_FIT["PYTHONPATH"])


@pytest.mark.filterwarnings("default")
def test_the_notebooks_run_in_their_order(tmp_path: Path) -> None:
    """Each runs without an error, leaves the files that the next one reads, and prints what its text says."""
    said = {}
    for path in NOTEBOOKS:
        notebook = nbformat.read(path, as_version=4)
        assert not any(cell.get("outputs") for cell in notebook.cells), f"{path.name}: clear its outputs"
        NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
        outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
        said[path.name] = "".join(output.get("text", "") for output in outputs)

    assert len(said) == 3
    assert "accuracy: 9" in said["1_fit_a_map.ipynb"]
    assert "feasible: True" in said["2_choose_a_threshold.ipynb"]
    assert "REGION" in said["3_regions_and_drift.ipynb"]
    assert "drift at row" in said["3_regions_and_drift.ipynb"]
    assert "drift at row None" not in said["3_regions_and_drift.ipynb"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The system's Chromium."""
    with running_browser() as browser:
        yield browser


@pytest.fixture
def lab(tmp_path: Path, browser: Browser) -> Iterator[str]:
    """Address of a JupyterLab over a folder with one notebook, which shows the widget."""
    cell = nbformat.v4.new_code_cell(WIDGET)
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(nbformat.v4.new_notebook(cells=[cell], metadata={"kernelspec": kernel}), tmp_path / "map.ipynb")
    options = {
        "ServerApp.ip": "127.0.0.1",
        "ServerApp.port": 0,
        "IdentityProvider.token": "",
        "ServerApp.allow_root": True,
        "LabApp.extension_manager": "readonly",
        "LabApp.news_url": None,
        "LabApp.check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
    }
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", *(f"--{name}={v}" for name, v in options.items())]
    runtime = Path(os.environ["JUPYTER_RUNTIME_DIR"])
    with (tmp_path / "lab.log").open("wb") as log, subprocess.Popen(command, cwd=tmp_path, stderr=log) as process:
        try:
            wait_until(lambda: any(runtime.glob("jpserver-*.json")), what="JupyterLab")
            time.sleep(0.1)
            yield json.loads(next(runtime.glob("jpserver-*.json")).read_text(encoding="utf-8"))["url"]
        finally:
            process.terminate()


def test_the_widget_in_jupyterlab(lab: str, browser: Browser, tmp_path: Path) -> None:
    """Hover shows a row, and a lasso drawn in the browser gives the rows inside to Python."""
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.set_default_timeout(60_000)
    page.goto(f"{lab}lab/tree/map.ipynb?reset")
    # Cells that are run before the kernel is there open a dialog.
    page.get_by_text("| Idle").wait_for()
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_text("Run All Cells", exact=True).click()
    canvas = page.locator(".darksight-map canvas")
    canvas.wait_for()
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box is not None
    # The first view has the square of the grid, of side 8, in the middle.
    middle, step = (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2), 0.92 * box["height"] / 8

    page.mouse.move(*middle)
    expect(page.locator(".darksight-tip")).to_contain_text("row 40: dog")
    expect(page.locator(".darksight-tip")).to_contain_text("100.0 %  dog")
    corners = [(-1.5, -1.5), (1.5, -1.5), (1.5, 1.5), (-1.5, 1.5), (-1.5, -1.5)]
    page.keyboard.down("Shift")
    for number, (x, y) in enumerate(corners):
        page.mouse.move(middle[0] + x * step, middle[1] + y * step, steps=5)
        if number == 0:
            page.mouse.down()
    page.mouse.up()
    page.keyboard.up("Shift")

    expect(page.locator(".darksight-note")).to_contain_text("9 of 81 rows selected")
    assert json.loads((tmp_path / "selected.txt").read_text(encoding="utf-8")) == [30, 31, 32, 39, 40, 41, 48, 49, 50]
    page.close()
