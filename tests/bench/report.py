"""Reports: seconds to make one, its size, and the time that Chromium takes to open it, on 10,000 real rows.

A page is open when all figures in view are drawn, that frame is on the screen and the page answers again; the others
are drawn after that, while nobody waits. Times are the page's own, from the beginning of its navigation; CPU seconds
are those of its process until all is drawn, which other load does not change much. Every request that a page makes
beyond itself, and every word on its console, is counted. The first page has the comparison that a report has by
itself, with a t-SNE, the others none, which makes little difference to them once they are made.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Browser

from tests.bench import results
from tests.support.browser import running_browser

_OPENINGS = 3
_SETS = {
    "mnist_paper": ("--compare", "quick", "--images", "images.npz"),
    "cifar10_resnet56": ("--compare", "none", "--ood", "ood_cifar100.npz"),
    "cifar100_resnet56": ("--compare", "none"),
}


def darksight(*arguments: object) -> tuple[str, float, float]:
    """Run a command: what it said, wall seconds and CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    command = [sys.executable, "-m", "darksight_service.cli", *(str(argument) for argument in arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return done.stderr, time.perf_counter() - started, cpu


@dataclass(frozen=True, slots=True)
class Opening:
    """One opening of a page: seconds to the first text, to an open page and to all figures, CPU seconds, and noise."""

    text: float
    opened: float
    drawn: float
    cpu: float
    requests: int
    words: int


def open_page(browser: Browser, path: Path) -> Opening:
    """Open a page until all of it is drawn."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    asked: list[str] = []
    said: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    tools = page.context.new_cdp_session(page)
    tools.send("Performance.enable")
    page.goto(path.as_uri(), wait_until="commit")
    page.wait_for_selector("html[data-drawn=yes]", timeout=120_000)
    cpu = {metric["name"]: metric["value"] for metric in tools.send("Performance.getMetrics")["metrics"]}["ProcessTime"]
    script = "name => performance.getEntriesByName(name)[0].startTime / 1000"
    times = [float(page.evaluate(script, name)) for name in ("first-contentful-paint", "opened", "drawn")]
    page.close()
    beyond = sum(not url.startswith(("data:", "blob:", path.as_uri())) for url in asked)
    return Opening(*times, cpu, beyond, len(said))


def main(argv: list[str]) -> int:
    """Make and open a page for every data set that is there."""
    parser = argparse.ArgumentParser(prog="./dev bench report", description=__doc__)
    parser.add_argument("--sets", nargs="+", default=[*_SETS], choices=[*_SETS], help="folders of predictions")
    parser.add_argument("--cache", type=Path, help="folder of the embeddings (default: one that is thrown away)")
    args = parser.parse_args(argv)
    rows = []
    with tempfile.TemporaryDirectory() as scratch, running_browser() as browser:
        for name in args.sets:
            folder, options = results.DATA / name, _SETS[name]
            if not folder.is_dir():
                continue
            bundle, out = Path(scratch, f"{name}.safetensors"), Path(scratch, f"{name}.html")
            darksight("fit", folder / "test.npz", "--out", bundle, "--quiet")
            given = [folder / part if part.endswith(".npz") else part for part in options]
            cache = args.cache or Path(scratch, "cache")
            _, wall, cpu = darksight(
                "report", bundle, folder / "test.npz", *given, "--out", out, "--cache", cache, "--quiet",
            )  # fmt: skip
            page = out.read_text(encoding="utf-8")
            found = re.search(r'<script type="application/json" id="numbers">(.*?)</script>', page)
            numbers = json.loads(found[1]) if found else {}
            openings = [open_page(browser, out) for _ in range(_OPENINGS)]
            best = min(openings, key=lambda each: each.opened)
            rows.append((
                name, options[1], numbers["rows"], numbers["classes"], page.count('class="plot"'), f"{wall:.1f}",
                f"{cpu:.1f}", f"{out.stat().st_size / 1e6:.2f}", f"{best.text:.2f}", f"{best.opened:.2f}",
                f"{best.drawn:.2f}", f"{min(each.cpu for each in openings):.2f}",
                sum(each.requests for each in openings), sum(each.words for each in openings),
            ))  # fmt: skip
            print(rows[-1], file=sys.stderr)
    if not rows:
        print("no real predictions here: nothing to measure", file=sys.stderr)
        return 1
    header = (
        "rows of", "--compare", "n", "K", "figures", "made in s", "making, CPU s", "MB", "first text, s",
        "open in s (best of 3)", "all drawn, s", "all drawn, CPU s", "external requests", "console",
    )  # fmt: skip
    results.save("report: making and opening a page", results.Table(header, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
