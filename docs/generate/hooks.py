"""Events of MkDocs: pages that are generated from code, and pages that lie beside what they describe.

A link in a page names a file of the repository, so that it also works where the repository is read. Here it becomes a
link within the site; a link to a file that the site does not have becomes plain text.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from docs.generate import protos, reference
from tests.bench import results

ROOT = Path(__file__).parents[2]
ELSEWHERE = {
    "changelog.md": "CHANGELOG.md",
    "concepts/decisions.md": "DECISIONS.md",
    "concepts/threat-model.md": "SECURITY.md",
    "contributing.md": "CONTRIBUTING.md",
    "how-to/deploy.md": "deploy/README.md",
    "how-to/examples.md": "examples/README.md",
    "how-to/runbook.md": "deploy/RUNBOOK.md",
    "reference/benchmarks.md": "tests/bench/README.md",
    "reference/service.md": "service/README.md",
}
"""Pages outside docs/, by their place in the site."""

GENERATED = {
    "reference/cli.md": reference.command_line,
    "reference/columns.md": reference.columns,
    "reference/errors.md": reference.errors,
    "reference/http.md": reference.http,
    "reference/metrics.md": reference.metrics,
    "reference/protos.md": protos.page,
    "reference/python.md": reference.python,
    "reference/settings.md": reference.settings,
}
"""Functions that write pages, by their place in the site."""

_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
_CODE = re.compile(r"(^```.*?^```|`[^`\n]*`)", re.M | re.S)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are not in docs/."""
    for place, path in ELSEWHERE.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / path)))
    for place, write in GENERATED.items():
        files.append(File.generated(config, place, content=write()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turn links to files of the repository into links within the site."""
    place = page.file.src_uri
    if place in GENERATED:
        return markdown
    if place == "reference/benchmarks.md":
        # Whether a table is older than its code is evaluated for this commit.
        markdown = results.page(results.read_sections())
    folder = (ROOT / ELSEWHERE.get(place, f"docs/{place}")).parent

    def replace(match: re.Match[str]) -> str:
        mark, text, (path, _, anchor) = match[1], match[2], match[3].partition("#")
        if not path or "://" in path or path.startswith("mailto:"):
            return match[0]
        target = _place_of(Path(os.path.normpath(folder / path)))
        if target is None:
            return text if (folder / path).exists() else match[0]
        address = os.path.relpath(target, Path(place).parent)
        return f"{mark}[{text}]({address}{'#' if anchor else ''}{anchor})"

    parts = _CODE.split(markdown)
    return "".join(part if index % 2 else _LINK.sub(replace, part) for index, part in enumerate(parts))


def _place_of(path: Path) -> str | None:
    """Place in the site of a file of the repository; None if the site does not have it."""
    inside = {path: place for place, path in ELSEWHERE.items()}
    name = path.relative_to(ROOT).as_posix()
    if name.startswith("docs/") and (path.is_file() or name.removeprefix("docs/") in GENERATED):
        return name.removeprefix("docs/")
    return inside.get(name)
