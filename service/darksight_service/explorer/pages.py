"""The pages of the explorer, in the order in which the navigation names them."""

from __future__ import annotations

import html
from dataclasses import dataclass
from pathlib import Path

__all__ = ["LOGIN", "PAGES", "STATIC", "Page"]

STATIC = Path(__file__).with_name("static")
_TEMPLATES = Path(__file__).with_name("templates")


@dataclass(frozen=True, slots=True)
class Page:
    """A page: `static/NAME.html` inside the shell, and `static/NAME.js`.

    Parameters
    ----------
    name
        Its path, and its files.
    title
        In navigation and window.
    has_plots
        Whether plotly.js is loaded.
    has_webgl
        Whether it draws with WebGL. plotly.js makes its WebGL programs from text, so that the policy of such a page
        must allow `unsafe-eval`; no other page's does.
    """

    name: str
    title: str
    has_plots: bool = False
    has_webgl: bool = False

    @property
    def policy(self) -> str:
        """Content security policy: nothing from elsewhere, no inline script, no frame around it."""
        # Styles may be inline, because plotly.js writes them.
        scripts = "'self' 'unsafe-eval'" if self.has_webgl else "'self'"
        return (
            f"default-src 'none'; script-src {scripts}; style-src 'self' 'unsafe-inline'; "
            "img-src 'self' data: blob:; connect-src 'self'; font-src 'self'; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )

    def render(self, pages: tuple[Page, ...]) -> str:
        """The whole page."""
        links = "".join(
            f'<a href="/{page.name}" data-page="{page.name}"{_current(page is self)}>{html.escape(page.title)}</a>'
            for page in pages
        )
        parts = {
            "title": html.escape(self.title),
            "name": self.name,
            "links": links,
            "plots": '<link rel="preload" as="script" href="/vendor/plotly.min.js">' if self.has_plots else "",
            "content": (_TEMPLATES / f"{self.name}.html").read_text(encoding="utf-8"),
        }
        page = (_TEMPLATES / ("bare.html" if self is LOGIN else "shell.html")).read_text(encoding="utf-8")
        for name, text in parts.items():
            page = page.replace(f"{{{{{name}}}}}", text)
        return page


def _current(is_current: bool) -> str:
    return ' aria-current="page"' if is_current else ""


PAGES = (
    Page("map", "Map", has_plots=True, has_webgl=True),
    Page("gate", "Gate", has_plots=True),
    Page("drift", "Drift", has_plots=True),
    Page("review", "Review"),
    Page("points", "Points"),
)

LOGIN = Page("login", "Log in")
