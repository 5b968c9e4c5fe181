"""Maps of the same rows by other methods, with their measures and times."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from darksight_core.errors import ConfigError
from darksight_core.evaluation.classes import class_medians
from darksight_core.evaluation.measures import MapMeasures, measure_map
from darksight_core.evaluation.progress import Report
from darksight_core.rows.simplex import Floats

__all__ = ["METHOD_ROWS", "NEIGHBOURS", "Baseline", "Level", "fit_same_rows", "other_methods"]

METHOD_ROWS = 2_000
"""Default number of rows that methods are compared on; of more rows a sample is drawn."""

NEIGHBOURS: Mapping[str, Any] = {"neighbours": (2, 5, 10, 20, 50, 100, 200), "max_rows": 2_000}
"""How local fidelity is measured, for all maps alike."""

Level = Literal["none", "quick", "full"]


@dataclass(frozen=True, slots=True, eq=False)
class Baseline:
    """A map of the compared rows by another method.

    `key` is its name in JSON and `label` its name on the page; `points` are (n, 2); `seconds` and `cpu_seconds` are the
    time of its computation.
    """

    key: str
    label: str
    points: Floats
    measures: MapMeasures
    seconds: float
    cpu_seconds: float
    library: str

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "label": self.label,
            "library": self.library,
            "seconds": self.seconds,
            "cpu_seconds": self.cpu_seconds,
            **self.measures.as_dict(),
        }


def fit_same_rows(log_pi: Floats, labels: NDArray[np.int64] | None, *, seed: int, report: Report) -> Baseline:
    """DarkSight fitted to the compared rows (n, K), as the other methods are; labels (n,) may be None."""
    from darksight_core.fit.map.fitting import fit_map

    cpu = time.process_time()
    fitted = fit_map(np.exp(log_pi), report=report)
    cpu = time.process_time() - cpu
    student: Any = fitted.student
    log_q = student.log_posterior(fitted.points)
    figures = measure_map(log_pi, log_q, fitted.points, student.means, labels, seed=seed, **NEIGHBOURS)
    label = "DarkSight, fitted to these rows"
    return Baseline("fitted_here", label, fitted.points, figures, fitted.seconds, cpu, "darksight")


def other_methods(
    log_pi: Floats,
    labels: NDArray[np.int64] | None,
    sources: Mapping[str, Floats],
    *,
    level: Level,
    seed: int,
    report: Report,
) -> tuple[list[Baseline], list[str]]:
    """Maps by other methods, and a note for each method that failed.

    Parameters
    ----------
    log_pi, labels
        The compared rows, (n, K), and their classes, (n,).
    sources
        What the methods read, by name: probabilities, logits, features.
    level, seed, report
        As for `findings.find`.
    """
    from darksight_core.evaluation.baselines.embeddings import embed, recipes

    found, notes = [], []
    for recipe in recipes(level, sources):
        try:
            made = embed(recipe, sources[recipe.source], seed=seed, report=report)
        except ConfigError as error:
            notes.append(f"{recipe.label} is omitted: {error.message}")
            continue
        centres = class_medians(log_pi, made.points)
        figures = measure_map(log_pi, None, made.points, centres, labels, seed=seed, **NEIGHBOURS)
        times = (made.seconds, made.cpu_seconds)
        found.append(Baseline(made.recipe.key, made.recipe.label, made.points, figures, *times, made.library))
    return found, notes
