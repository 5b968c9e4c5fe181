"""Results of benchmarks: figures/NAME.json has the tables of each benchmark, and README.md is written from them.

A section is a heading, the machine, and parts: paragraphs and tables. A run replaces the sections it measured and
leaves the others as they are. A quick run prints its sections and saves none.
"""

from __future__ import annotations

import json
import os
import platform
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

README = Path(__file__).with_name("README.md")
FIGURES = Path(__file__).with_name("figures")
DATA = Path(__file__).parents[3] / "shared" / "data"

is_quick = False
"""Whether this is a quick run, which saves nothing."""

_last_saved = time.monotonic()


@dataclass(frozen=True, slots=True)
class Table:
    """A table; every column has a different header."""

    header: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    def __post_init__(self) -> None:
        header, rows = tuple(self.header), tuple(tuple(map(_plain, row)) for row in self.rows)
        if len(set(header)) != len(header) or any(len(row) != len(header) for row in rows):
            raise ValueError(f"a table needs different headers and as many cells in each row: {header}")
        object.__setattr__(self, "header", header)
        object.__setattr__(self, "rows", rows)

    def __str__(self) -> str:
        """Markdown."""
        lines = [self.header, ["---"] * len(self.header), *([cell_text(value) for value in row] for row in self.rows)]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)

    def records(self) -> list[dict[str, Any]]:
        """Rows by header."""
        return [dict(zip(self.header, row, strict=True)) for row in self.rows]


Parts: TypeAlias = Sequence[str | Table]


@dataclass(frozen=True, slots=True)
class Section:
    """What one part of a benchmark found."""

    machine: str
    seconds: float | None
    parts: tuple[str | Table, ...]

    def __str__(self) -> str:
        """Markdown."""
        took = "" if self.seconds is None else f" Took {self.seconds:.0f} s."
        return "\n\n".join((f"Machine: {self.machine}.{took}", *map(str, self.parts)))

    def tables(self) -> list[Table]:
        """The tables among the parts."""
        return [part for part in self.parts if isinstance(part, Table)]


def cell_text(value: object) -> str:
    """A cell of a table; floats to four significant digits."""
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def machine() -> str:
    """The machine in a few words."""
    model = platform.processor() or platform.machine()
    try:
        info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        model = re.findall(r"model name\s*:\s*(.*)", info)[0]
    except (OSError, IndexError):
        pass
    return f"{os.cpu_count()} cores ({model}), Python {platform.python_version()}, {platform.system()}"


def save(name: str, parts: Parts | Table) -> None:
    """Print a section and replace it in its file and in the README.

    Parameters
    ----------
    name
        Heading, "BENCHMARK: WHAT".
    parts
        Paragraphs and tables, in order.
    """
    global _last_saved
    seconds, _last_saved = time.monotonic() - _last_saved, time.monotonic()
    section = Section(machine(), seconds, (parts,) if isinstance(parts, Table) else tuple(parts))
    print(f"\n## {name}{' (quick)' if is_quick else ''}\n\n{section}\n", flush=True)
    if not is_quick:
        write_sections({**read_sections(), name: section})


def read_sections(folder: Path | None = None) -> dict[str, Section]:
    """All saved sections by heading."""
    found = {}
    for path in sorted((folder or FIGURES).glob("*.json")):
        for name, data in json.loads(path.read_text(encoding="utf-8")).items():
            parts = tuple(part if isinstance(part, str) else Table(**part) for part in data["parts"])
            found[name] = Section(data["machine"], data["seconds"], parts)
    return found


def write_sections(sections: dict[str, Section]) -> None:
    """Write the files of all sections, and the README from them."""
    from tests.bench.summary import summarise

    FIGURES.mkdir(exist_ok=True)
    for bench in {name.partition(":")[0] for name in sections}:
        own = {name: asdict(section) for name, section in sections.items() if name.partition(":")[0] == bench}
        text = json.dumps(own, indent=1, ensure_ascii=False)
        (FIGURES / f"{bench}.json").write_text(text + "\n", encoding="utf-8")
    body = "".join(f"\n## {name}\n\n{section}\n" for name, section in sections.items())
    README.write_text(f"# Benchmarks\n\n{summarise(sections)}\n{body}", encoding="utf-8")


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
    from darksight_service.cli.demo.digits import digits_predictions

    probs, labels, _ = digits_predictions()
    return probs, labels


def _plain(value: object) -> object:
    """A cell as JSON stores it."""
    if isinstance(value, np.generic):
        return value.item()
    return value if value is None or isinstance(value, int | float | str) else str(value)
