"""All scores side by side, on rows that none of them was fitted on.

    failure   does the score separate wrong predictions from right ones?    labelled rows
    ood       does it separate foreign rows from known ones?                known rows and files of foreign rows

A bundle keeps points on the map, but not the probabilities of its fit rows. A score that needs whole rows, the class
templates of KL matching, is therefore fitted on a part of the given rows, the memory, drawn by seed, and all scores are
measured on the others. The learned score is that of the bundle's gate, if it has one, beside one that is cross-fitted
to these labels, `refitted`. Else it is cross-fitted to find errors, and fitted on the memory to find foreign rows.

The reject score is chosen from those that a gate can serve; the outlier score is that of the bundle. Foreign rows
choose nothing, because future foreign rows will be different.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from darksight_core.bundle import Bundle
from darksight_core.errors import ConfigError
from darksight_core.evaluation.failure import FailureFigures, OodFigures, failure_figures, ood_figures
from darksight_core.evaluation.kl_matching import KlMatching
from darksight_core.gate.certify import candidates
from darksight_core.gate.scored_predictions import ScoredPredictions
from darksight_core.rows.simplex import Floats
from darksight_core.scores.choice import ScoreChoice, choose_score
from darksight_core.scores.learned import MIN_ROWS, Learned, densities_of
from darksight_core.scores.registry import logit_scores, map_scores, row_scores

__all__ = ["MEMORY_ROWS", "MEMORY_SHARE", "Comparison", "compare"]

MEMORY_SHARE = 0.25
"""Share of the rows that scores are fitted on."""

MEMORY_ROWS = 2_500
"""Most rows that scores are fitted on."""

_LEAST_ROWS = 40


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """Figures of all scores.

    Parameters
    ----------
    failure
        Figures by score; None without labels.
    ood
        Figures by file and score.
    choice
        How the reject score was chosen; None without labels.
    outlier
        The score that the bundle's p-values are made from.
    memory, measured
        Number of rows that scores were fitted on, and number of measured rows.
    scores
        Scores of the measured rows by name, (measured,).
    errors
        Whether each measured row is wrong, (measured,); None without labels.
    notes
        What is missing and why.
    """

    failure: dict[str, FailureFigures] | None
    ood: dict[str, dict[str, OodFigures]]
    choice: ScoreChoice | None
    outlier: str
    memory: int
    measured: int
    scores: dict[str, Floats]
    errors: NDArray[np.bool_] | None
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        failure = self.failure
        return {
            "failure": None if failure is None else {name: found.as_dict() for name, found in failure.items()},
            "ood": {
                file: {name: found.as_dict() for name, found in figures.items()} for file, figures in self.ood.items()
            },
            "chosen": {"reject": None if self.choice is None else self.choice.chosen, "outlier": self.outlier},
            "choice": None if self.choice is None else self.choice.as_dict(),
            "compared_on": {"memory": self.memory, "measured": self.measured},
            "comparison_notes": list(self.notes),
        }


def compare(
    bundle: Bundle,
    known: ScoredPredictions,
    foreign: Mapping[str, ScoredPredictions] | None = None,
    *,
    resamples: int = 200,
    seed: int = 0,
) -> Comparison:
    """Measure every score that the rows support.

    Parameters
    ----------
    bundle
        May provide a learned score.
    known
        Known rows that are not fit rows; with labels, failure is measured too.
    foreign
        Rows of unknown kinds, by name.
    resamples
        Bootstrap resamples; 0 for no intervals.
    seed
        Seed of the split, the fits and the bootstrap.
    """
    if len(known) < _LEAST_ROWS:
        raise ConfigError(f"a comparison of scores needs at least {_LEAST_ROWS} rows, not {len(known)}")
    order = np.random.default_rng(seed).permutation(len(known))
    kept = min(MEMORY_ROWS, math.floor(MEMORY_SHARE * len(known)))
    memory, measured = known.take(np.sort(order[:kept])), known.take(np.sort(order[kept:]))
    notes: list[str] = []
    matching = KlMatching.fit(memory.log_pi)
    own = learned = None if bundle.gate is None else bundle.gate.learned
    if learned is None and memory.errors is not None and len(memory) >= MIN_ROWS:
        learned = Learned.fit(memory.log_pi, ~memory.errors, seed=seed, **densities_of(memory.scores))
    scores = _scores(measured, matching, learned)
    merged = dict(scores)
    failure, choice = None, None
    if measured.errors is None:
        notes.append("without labels failure is not measured and no reject score is chosen")
    else:
        servable = candidates(measured, seed=seed)
        choice = choose_score(servable, measured.errors)
        if "learned" in servable:
            merged["learned" if own is None else "refitted"] = servable["learned"]
        failure = {
            name: failure_figures(values, measured.errors, resamples=resamples, seed=seed)
            for name, values in merged.items()
        }
    ood = {}
    for name, rows in (foreign or {}).items():
        other = _scores(rows, matching, learned)
        ood[name] = {
            score: ood_figures(scores[score], other[score], resamples=resamples, seed=seed)
            for score in scores
            if score in other
        }
    counts = (len(memory), len(measured))
    return Comparison(failure, ood, choice, "outlier_score", *counts, merged, measured.errors, tuple(notes))


def _scores(rows: ScoredPredictions, matching: KlMatching, learned: Learned | None) -> dict[str, Floats]:
    """All scores of rows, by name, (n,) each."""
    found = row_scores(rows.log_pi) | map_scores(rows.scores)
    found["kl_matching"] = matching.score(rows.log_pi)
    if rows.logits is not None:
        found |= logit_scores(rows.logits)
    if learned is not None:
        found["learned"] = learned.log_odds(rows.log_pi, **densities_of(rows.scores))
    return found
