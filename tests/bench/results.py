"""Where benchmark tables go: tests/bench/README.md, one section per benchmark, rewritten by each run.

Above the sections stands a summary, made from them (`tests.bench.summary`) whenever one is saved. A quick run prints
its tables and saves none.
"""

from __future__ import annotations

import itertools
import os
import platform
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

README = Path(__file__).with_name("README.md")
is_quick = False
"""Whether this is a short look, whose tables are printed and not saved."""

_last_saved = time.monotonic()
DATA = Path(__file__).parents[3] / "shared" / "data"


def machine() -> str:
    """The machine in a few words."""
    model = platform.processor() or platform.machine()
    try:
        info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        model = re.findall(r"model name\s*:\s*(.*)", info)[0]
    except (OSError, IndexError):
        pass
    return f"{os.cpu_count()} cores ({model}), Python {platform.python_version()}, {platform.system()}"


def markdown(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table; numbers to four significant digits."""

    def cell(value: object) -> str:
        if value is None:
            return "-"
        return f"{value:.4g}" if isinstance(value, float | np.floating) else str(value)

    lines = [header, ["---"] * len(header), *([cell(value) for value in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def save(section: str, text: str) -> None:
    """Put `text` under the heading `section`, leaving the other sections as they are, and print it."""
    global _last_saved
    seconds, _last_saved = time.monotonic() - _last_saved, time.monotonic()
    if is_quick:
        print(f"\n## {section} (quick, {seconds:.0f} s)\n\n{text}\n", flush=True)
        return
    print(f"\n## {section}\n\n{text}\n", flush=True)
    sections = read_sections()
    sections[section] = f"Machine: {machine()}. Took {seconds:.0f} s.\n\n{text}"
    write_readme(sections)


def write_readme(sections: Mapping[str, str]) -> None:
    """All sections, and their summary above them."""
    from tests.bench.summary import summarise

    body = "".join(f"\n## {name}\n\n{sections[name]}\n" for name in sections)
    README.write_text(f"# Benchmarks\n\n{summarise(sections)}\n{body}", encoding="utf-8")


def read_sections(path: Path = README) -> dict[str, str]:
    """What stands under each heading of the README, the summary left out."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    parts = re.split(r"(?m)^## ", text)[1:]
    return {part.partition("\n")[0].strip(): part.partition("\n")[2].strip() for part in parts}


def read_table(text: str, header: str) -> list[dict[str, str]]:
    """Rows of the table in a section whose first column has this header, each by its headers.

    Of columns with the same header the second is called "header (2)", and so on.
    """
    lines = text.splitlines()
    start = next((at for at, line in enumerate(lines) if line.startswith(f"| {header} |")), len(lines))
    if start == len(lines):
        return []
    rows = [_cells(line) for line in itertools.takewhile(lambda line: line.startswith("|"), lines[start:])]
    names = [name if (n := rows[0][:at].count(name)) == 0 else f"{name} ({n + 1})" for at, name in enumerate(rows[0])]
    return [dict(zip(names, row, strict=True)) for row in rows[2:]]


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]


def put_between(path: Path, name: str, text: str) -> None:
    """Replace what stands between the markers of this name in a file."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, _, rest = path.read_text(encoding="utf-8").partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise ValueError(f"{path.name} has no markers {begin} and {end}")
    path.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")


def real_probs(name: str) -> tuple[NDArray[np.float32], NDArray[np.int64] | None] | None:
    """Rows of ../shared/data/NAME/test.npz as probabilities, or None where the folder is absent."""
    from darksight_core.predictions import read_predictions

    path = DATA / name / "test.npz"
    if not path.exists():
        return None
    predictions = read_predictions(path)
    return predictions.probs, predictions.labels


def digits_probs() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Out-of-fold predictions of a small network on scikit-learn's digits."""
    from darksight_service.cli.demo import digits_predictions

    probs, labels, _ = digits_predictions()
    return probs, labels
