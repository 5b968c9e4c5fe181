"""Figures as PNG and SVG files, exported from the HTML page by headless Chromium.

A script asks plotly.js for every figure in both formats and adds them to the document, which Chromium dumps.
"""

from __future__ import annotations

import base64
import html
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote

from darksight_core.errors import ConfigError

__all__ = ["find_browser", "write_pictures"]

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_TIMEOUT_SECONDS = 300
_SCRIPT = """<script>
(async () => {
  await darksight.drawAll();
  for (const plot of document.querySelectorAll(".plot")) {
    for (const format of ["png", "svg"]) {
      const size = { format, width: 1080, height: plot.offsetHeight, scale: format === "png" ? 2 : 1 };
      const made = document.createElement("pre");
      made.className = "picture";
      made.id = plot.dataset.figure + "." + format;
      made.textContent = await Plotly.toImage(plot, size);
      document.body.append(made);
    }
  }
})();
</script></body>"""
_PICTURE = re.compile(r'<pre class="picture" id="([^"]+)">([^<]*)</pre>')


def find_browser() -> str:
    """Path of Chromium; ConfigError if it is not installed."""
    named = os.environ.get("CHROMIUM")
    for name in (named,) if named else _BROWSERS:
        found = shutil.which(name)
        if found is not None:
            return found
    raise ConfigError(
        "the export of figures needs Chromium, which was not found; install it, set the variable CHROMIUM to its path, "
        "or save the figures from the page"
    )


def write_pictures(page: str, names: Sequence[str], folder: Path) -> list[Path]:
    """Write NAME.png and NAME.svg of every figure of a page; returns their paths.

    Parameters
    ----------
    page
        The HTML.
    names
        Names of the figures.
    folder
        Directory to write to; created if it does not exist.
    """
    browser = find_browser()
    with tempfile.TemporaryDirectory(prefix="darksight-") as scratch:
        source = Path(scratch, "page.html")
        head, _, tail = page.rpartition("</body>")
        source.write_text(head + _SCRIPT + tail, encoding="utf-8")
        command = [
            browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
            "--window-size=1160,900", f"--user-data-dir={scratch}/profile", "--virtual-time-budget=120000",
            "--dump-dom", source.as_uri(),
        ]  # fmt: skip
        try:
            done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise ConfigError(f"{browser} did not export the figures within {_TIMEOUT_SECONDS} seconds") from None
    drawn = {name: _decode(html.unescape(uri)) for name, uri in _PICTURE.findall(done.stdout.decode("utf-8"))}
    wanted = [f"{name}.{ending}" for name in names for ending in ("png", "svg")]
    missing = [name for name in wanted if name not in drawn]
    if missing:
        raise ConfigError(f"{browser} did not export {missing[0]}; save it from the page instead")
    folder.mkdir(parents=True, exist_ok=True)
    for name in wanted:
        (folder / name).write_bytes(drawn[name])
    return [folder / name for name in wanted]


def _decode(uri: str) -> bytes:
    head, _, data = uri.partition(",")
    return base64.b64decode(data) if head.endswith(";base64") else unquote(data).encode("utf-8")
