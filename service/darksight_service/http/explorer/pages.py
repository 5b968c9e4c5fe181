"""The pages of the explorer, in the order of the navigation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

__all__ = ["LOGIN", "PAGES", "STATIC", "Page"]

STATIC = Path(__file__).with_name("static")

_templates = Environment(
    loader=FileSystemLoader(Path(__file__).with_name("templates")),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


@dataclass(frozen=True, slots=True)
class Page:
    """A page: `templates/NAME.html` and `static/NAME.js`.

    Parameters
    ----------
    name
        Path of the page, and name of its files.
    title
        Title in the navigation and of the window.
    has_plots
        Whether it draws with plotly.js.
    has_webgl
        Whether it draws with WebGL. plotly.js compiles its WebGL programs from text, so only the CSP of these pages
        allows `unsafe-eval`.
    has_references
        Whether it shows the inputs of predictions, so that its CSP allows the origins of references.
    """

    name: str
    title: str
    has_plots: bool = False
    has_webgl: bool = False
    has_references: bool = False

    def policy(self, origins: Sequence[str] = ()) -> str:
        """Content security policy: nothing from other hosts, no inline script, no framing.

        Pictures and sounds may come from `origins` if the page shows references.
        """
        others = "".join(f" {origin}" for origin in origins) if self.has_references else ""
        sounds = f"media-src 'self'{others}; " if self.has_references else ""
        # plotly.js writes inline styles.
        scripts = "'self' 'unsafe-eval'" if self.has_webgl else "'self'"
        return (
            f"default-src 'none'; script-src {scripts}; style-src 'self' 'unsafe-inline'; "
            f"img-src 'self' data: blob:{others}; {sounds}connect-src 'self'; font-src 'self'; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )

    def render(self, *, has_provider: bool = False, problem: str = "") -> str:
        """The HTML of the page; the login page offers an OpenID provider, if there is one, and says what failed."""
        values = {"page": self, "pages": PAGES, "has_provider": has_provider, "problem": problem}
        return _templates.get_template(f"{self.name}.html").render(values)


PAGES = (
    Page("map", "Map", has_plots=True, has_webgl=True, has_references=True),
    Page("gate", "Gate", has_plots=True),
    Page("drift", "Drift"),
    Page("review", "Review", has_references=True),
    Page("points", "Points", has_references=True),
)

LOGIN = Page("login", "Log in")
