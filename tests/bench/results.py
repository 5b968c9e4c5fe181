"""Results of benchmarks: figures/NAME.json has the tables of each benchmark, and README.md is written from them.

A section is a heading, the machine, the commit, a hash of the code that it measures, and parts: paragraphs and tables.
A run replaces the sections it measured and leaves the others as they are. A quick run prints its sections and saves
none. A section whose code has another hash now says so on the page: `python -m tests.bench.results` writes README.md
again, and the site evaluates it when it is built.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

README = Path(__file__).with_name("README.md")
FIGURES = Path(__file__).with_name("figures")
DATA = Path(__file__).parents[3] / "shared" / "data"

_ROOT = Path(__file__).parents[2]
_SERVICE = ("darksight_core/runtime", "service/darksight_service")
MEASURED = {
    "accuracy": ("darksight_core/drift",),
    "audit": ("darksight_core/drift",),
    "capacity": _SERVICE,
    "confidence": ("darksight_core/scores", "darksight_core/evaluation"),
    "drift": ("darksight_core/drift",),
    "explorer": ("service/darksight_service/http", "service/darksight_service/store/read"),
    "faults": _SERVICE,
    "fit": ("darksight_core/fit", "darksight_core/map"),
    "resolution": ("darksight_core/bundle", "darksight_core/rows", "darksight_core/scores"),
    "scale": ("darksight_core/fit", "service/darksight_service/scoring/files"),
    "score": ("darksight_core/runtime", "darksight_core/map"),
    "serve": _SERVICE,
    "sets": ("darksight_core/guarantees", "darksight_core/gate"),
    "soak": _SERVICE,
    "store": ("service/darksight_service/store",),
    "upgrade": ("service/darksight_service/metrics",),
    "witnesses": ("darksight_core/drift",),
}
"""Folders whose code each benchmark measures."""

is_quick = False
"""Whether this is a quick run, which saves nothing."""

CHANGED = "the code has changed since"

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
    commit: str
    code: str

    def __str__(self) -> str:
        """Markdown."""
        took = "" if self.seconds is None else f" Took {self.seconds:.0f} s."
        about = f"Machine: {self.machine}.{took} Measured at {self.commit}."
        return "\n\n".join((about, *map(str, self.parts)))

    def verdicts(self) -> list[str]:
        """Whether each target is met, of all tables with a column `target`."""
        rows = [row for table in self.tables() for row in table.records() if row.get("target")]
        return [row.get("", "") for row in rows]

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
    measured = commit(), fingerprint(name.partition(":")[0])
    section = Section(machine(), seconds, (parts,) if isinstance(parts, Table) else tuple(parts), *measured)
    print(f"\n## {name}{' (quick)' if is_quick else ''}\n\n{section}\n", flush=True)
    if not is_quick:
        write_sections({**read_sections(), name: section})


def read_sections(folder: Path | None = None) -> dict[str, Section]:
    """All saved sections by heading."""
    found = {}
    for path in sorted((folder or FIGURES).glob("*.json")):
        for name, data in json.loads(path.read_text(encoding="utf-8")).items():
            parts = tuple(part if isinstance(part, str) else Table(**part) for part in data["parts"])
            found[name] = Section(**{**data, "parts": parts})
    return found


def write_sections(sections: dict[str, Section]) -> None:
    """Write the files of all sections, and the README from them."""
    FIGURES.mkdir(exist_ok=True)
    for bench in {name.partition(":")[0] for name in sections}:
        own = {name: asdict(section) for name, section in sections.items() if name.partition(":")[0] == bench}
        text = json.dumps(own, indent=1, ensure_ascii=False)
        (FIGURES / f"{bench}.json").write_text(text + "\n", encoding="utf-8")
    README.write_text(page(sections), encoding="utf-8")


def page(sections: Mapping[str, Section]) -> str:
    """README.md: a table of all sections, and the sections."""
    code = {bench: fingerprint(bench) for bench in MEASURED}
    rows, body = [], ""
    for name, section in sections.items():
        text, verdicts = str(section), section.verdicts()
        is_old = code.get(name.partition(":")[0]) != section.code
        if is_old:
            text = text.replace(f"Measured at {section.commit}.", f"Measured at {section.commit}; {CHANGED}.", 1)
        anchor = re.sub(r"[^\w\- ]", "", name.lower()).replace(" ", "-")
        met = f"{verdicts.count('met')} of {len(verdicts)}" if verdicts else ""
        rows.append((f"[{name}](#{anchor})", met, section.commit, CHANGED if is_old else ""))
        body += f"\n## {name}\n\n{text}\n"
    about = (
        "`./dev bench NAME` runs one benchmark, `./dev bench all` runs all; `--quick` runs a short version that is "
        "printed and not saved. Ratios are within one run."
    )
    return f"# Benchmarks\n\n{about}\n\n{Table(('section', 'targets met', 'measured at', ''), tuple(rows))}\n{body}"


def fingerprint(bench: str, root: Path = _ROOT) -> str:
    """A hash of the code that a benchmark measures."""
    digest = hashlib.sha256()
    for folder in MEASURED[bench]:
        for path in sorted((root / folder).rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def commit() -> str:
    """The commit that is checked out, with `+` if files have been changed since."""
    command = ["git", "describe", "--always", "--exclude=*", "--dirty=+"]
    return subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=True).stdout.strip()


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


if __name__ == "__main__":
    write_sections(read_sections())
