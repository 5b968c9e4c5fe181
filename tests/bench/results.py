"""Where benchmark tables go: tests/bench/README.md, one section per benchmark, rewritten by each run."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

README = Path(__file__).with_name("README.md")
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
    print(f"\n## {section}\n\n{text}\n")
    old = README.read_text(encoding="utf-8") if README.exists() else "# Benchmarks\n"
    head, *parts = re.split(r"(?m)^## ", old)
    sections = {part.partition("\n")[0].strip(): part.partition("\n")[2].strip() for part in parts}
    sections[section] = f"Machine: {machine()}.\n\n{text}"
    body = "".join(f"\n## {name}\n\n{sections[name]}\n" for name in sections)
    README.write_text(head.rstrip() + "\n" + body, encoding="utf-8")


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
