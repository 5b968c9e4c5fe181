"""A browser on a page of the explorer, watched: nothing may go to its console, and no request to another host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.support.tools import find_tool

__all__ = ["running_browser", "watched_page"]

# Software WebGL, no sandbox (tests may run as root), and none of the requests that Chromium makes by itself.
FLAGS = (
    *("--headless=new", "--no-sandbox", "--no-first-run", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"),
    *("--disable-quic", "--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


# On a machine that does other things too, a software WebGL takes its time.
PATIENCE_MS = 60_000
expect.set_options(timeout=PATIENCE_MS)


@contextmanager
def running_browser() -> Iterator[Browser]:
    """The system's Chromium."""
    path = find_tool("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield browser
        browser.close()


@contextmanager
def watched_page(
    browser: Browser, url: str, *, width: int = 1280, height: int = 800, may_fail: bool = False
) -> Iterator[Page]:
    """A page for the explorer at `url`, with cookies of its own; what it must not do fails the test at the end.

    With `may_fail` requests may be refused, which Chromium notes in the console.
    """
    context = browser.new_context(base_url=url, viewport={"width": width, "height": height})
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    said: list[str] = []
    hosts: set[str] = set()
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(f"error: {error}"))
    page.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
    yield page
    context.close()

    # A script that is read ahead waits for the data that it draws, on a busy machine for longer than Chromium likes.
    allowed = ["was preloaded using link preload but not used", *(["Failed to load resource"] if may_fail else [])]
    unexpected = [line for line in said if not any(words in line for words in allowed)]
    assert unexpected == [], unexpected
    # Pictures that a page makes itself have an address without a host.
    assert hosts <= {urlsplit(url).netloc, ""}
