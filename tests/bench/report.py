"""Reports: seconds to make one, its size, and the time that Chromium takes to open it, on 10,000 real rows.

A page is open when its first figure is drawn; beside it are the CPU seconds of its process until then, which other load
does not change much, and the time until all figures are drawn. Every request that a page
makes beyond itself, and every word on its console, is counted.
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
from pathlib import Path

from playwright.sync_api import Browser

from tests.bench import results
from tests.e2e.browser import running_browser

_SETS = {
    "mnist_paper": ("--images", "images.npz"),
    "cifar10_resnet56": ("--features", "test_features.npz", "--ood", "ood_cifar100.npz"),
    "cifar100_resnet56": (),
}


def darksight(*arguments: object) -> tuple[str, float, float]:
    """Run a command: what it said, wall seconds and CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    command = [sys.executable, "-m", "darksight_service", *(str(argument) for argument in arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return done.stderr, time.perf_counter() - started, cpu


def opened(browser: Browser, path: Path) -> tuple[float, float, float, int, int]:
    """Seconds to the map, CPU seconds of the page's process until then, seconds to all figures, requests, words."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    asked: list[str] = []
    said: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    tools = page.context.new_cdp_session(page)
    tools.send("Performance.enable")
    started = time.perf_counter()
    page.goto(path.as_uri(), wait_until="commit")
    page.wait_for_selector("#plot-map[data-drawn=yes]", timeout=120_000)
    first = time.perf_counter() - started
    cpu = {metric["name"]: metric["value"] for metric in tools.send("Performance.getMetrics")["metrics"]}["ProcessTime"]
    page.evaluate("darksight.drawAll()")
    whole = time.perf_counter() - started
    page.close()
    beyond = sum(not url.startswith(("data:", "blob:", path.as_uri())) for url in asked)
    return first, cpu, whole, beyond, len(said)


def main(argv: list[str]) -> int:
    """Make and open a page for every data set that is there."""
    parser = argparse.ArgumentParser(prog="./dev bench report", description=__doc__)
    parser.add_argument("--compare", default="quick", choices=["none", "quick", "full"], help="as in darksight report")
    parser.add_argument("--cache", type=Path, help="folder of the embeddings (default: one that is thrown away)")
    args = parser.parse_args(argv)
    rows = []
    with tempfile.TemporaryDirectory() as scratch, running_browser() as browser:
        for name, options in _SETS.items():
            folder = results.DATA / name
            if not folder.is_dir():
                continue
            bundle, out = Path(scratch, f"{name}.safetensors"), Path(scratch, f"{name}.html")
            darksight("fit", folder / "test.npz", "--out", bundle, "--quiet")
            given = [folder / part if part.endswith(".npz") else part for part in options]
            cache = args.cache or Path(scratch, "cache")
            _, wall, cpu = darksight(
                "report", bundle, folder / "test.npz", *given, "--out", out, "--compare", args.compare, "--quiet",
                "--cache", cache,
            )  # fmt: skip
            page = out.read_text(encoding="utf-8")
            found = re.search(r'<script type="application/json" id="numbers">(.*?)</script>', page)
            numbers = json.loads(found[1]) if found else {}
            times = [opened(browser, out) for _ in range(3)]
            first, busy, whole, asked, said = min(times)
            rows.append((
                name, numbers["rows"], numbers["classes"], page.count('class="plot"'), f"{wall:.1f}", f"{cpu:.1f}",
                f"{out.stat().st_size / 1e6:.2f}", f"{first:.2f}", f"{busy:.2f}", f"{whole:.2f}",
                asked, said,
            ))  # fmt: skip
            print(rows[-1], file=sys.stderr)
    if not rows:
        print("no real predictions here: nothing to measure", file=sys.stderr)
        return 1
    header = (
        "rows of", "n", "K", "figures", "made in s", "CPU s", "MB", "open in s (best of 3)", "CPU s",
        "all figures drawn in s", "requests", "console",
    )  # fmt: skip
    results.save(f"report: making and opening a page (--compare {args.compare})", results.markdown(header, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
