"""Figures that compare: scores, foreign rows, and neighbourhoods on the map."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from darksight_core.guarantees.risk_curve import risk_curve
from darksight_core.scores.registry import SCORES
from darksight_service.report.figures.chart import LINE_COLOURS, Figure, axis, escape, layout, packed
from darksight_service.report.findings import Findings

__all__ = ["accuracy_figure", "foreign_figure", "local_figure"]

_CURVE_POINTS = 250
_SEEN = 0.1  # coverage from which the accuracy axis is scaled; curves are noisy below it


def _thinned(count: int) -> np.ndarray[Any, np.dtype[np.intp]]:
    """Indices of at most `_CURVE_POINTS` points of a curve, with both ends."""
    return np.unique(np.linspace(0, count - 1, min(count, _CURVE_POINTS)).astype(np.intp))


def accuracy_figure(found: Findings) -> Figure | None:
    """Accuracy of accepted rows by coverage, for every score; None without labels or errors."""
    compared = found.comparison
    if compared is None or compared.errors is None or compared.failure is None or not compared.errors.any():
        return None
    order = sorted(compared.scores, key=lambda name: compared.failure[name].augrc if compared.failure else 0.0)
    data: list[dict[str, Any]] = []
    lowest = 1.0
    colours = {dash: itertools.cycle(LINE_COLOURS) for dash in ("solid", "dot")}
    for name in order:
        curve = risk_curve(compared.scores[name], compared.errors)
        kept = np.flatnonzero(curve.coverage >= 0.02)
        kept = kept[_thinned(len(kept))]
        label, shown = SCORES[name].label, SCORES[name].is_prominent
        dash = "solid" if shown else "dot"
        if shown:
            lowest = min(lowest, float(curve.accuracy[curve.coverage >= _SEEN].min()))
        data.append({
            "type": "scatter", "mode": "lines", "name": label, "visible": True if shown else "legendonly",
            "x": packed(curve.coverage[kept]), "y": packed(curve.accuracy[kept]),
            "line": {"color": next(colours[dash]), "width": 2, "dash": dash},
            "hovertemplate": f"{label}: %{{x:.0%}} accepted, %{{y:.2%}} correct<extra></extra>",
        })  # fmt: skip
    accuracy = 1.0 - float(compared.errors.mean())
    return Figure(
        "accuracy-data",
        "Error detection: accuracy when low scores are rejected",
        "Rows with the lowest scores are rejected first; each curve is the accuracy of the accepted rows. All curves "
        f"end at {accuracy:.2%} on the right, where all rows are accepted; a higher curve is better. Scores that need "
        f"reference rows use {compared.memory:,} rows; all scores are measured on the other {compared.measured:,}. The "
        "legend is sorted by AUGRC, best first; click to show or hide a score. Dotted scores are hidden at first.",
        "This figure is about errors, not about outliers: densities on the map measure how unusual a prediction is and "
        "are seldom the best score here. A point on a curve is no guarantee for new rows; darksight calibrate "
        "gives one.",
        data,
        layout(
            max(480, 20 * len(order) + 100),
            legend={"itemsizing": "constant", "font": {"size": 11}},
            xaxis=axis("share of rows accepted (coverage)", range=[0.0, 1.0], tickformat=".0%"),
            yaxis=axis("accuracy of accepted rows", range=[lowest - 0.1 * (1.0 - lowest), 1.0 + 0.03 * (1.0 - lowest)],
                       tickformat=".1%" if lowest > 0.9 else ".0%"),
        ),
    )  # fmt: skip


def foreign_figure(found: Findings) -> Figure | None:
    """How well each score separates foreign rows from known ones; None without foreign files."""
    compared = found.comparison
    if compared is None or not compared.ood:
        return None
    files = list(compared.ood)
    means = {
        name: float(np.mean([compared.ood[file][name].auroc for file in files if name in compared.ood[file]]))
        for name in {name for figures in compared.ood.values() for name in figures}
    }
    order = sorted(means, key=lambda name: (means[name], name))
    labels = [SCORES[name].label for name in order]
    data = [
        {
            "type": "scatter", "mode": "markers", "name": escape(file.rpartition("/")[2]),
            "x": [round(compared.ood[file][name].auroc, 4) if name in compared.ood[file] else None for name in order],
            "y": labels, "marker": {"size": 9, "color": LINE_COLOURS[number % len(LINE_COLOURS)]},
        }
        for number, file in enumerate(files)
    ]  # fmt: skip
    return Figure(
        "foreign",
        "Foreign rows: which score detects them?",
        "AUROC of each score for each file of foreign rows: the probability that a known row scores higher than a "
        "foreign one. 0.5 is chance, 1 is perfect. Scores are sorted by their mean, best on top.",
        "Foreign rows of another kind may rank the scores differently.",
        data,
        layout(
            max(340, 24 * len(order) + 110),
            margin={"l": 230, "r": 20, "t": 20, "b": 55},
            xaxis=axis("AUROC, known against foreign rows"),
            yaxis=axis("", type="category", automargin=True),
            legend={"orientation": "h", "y": 1.02, "yanchor": "bottom"},
        ),
    )


def local_figure(found: Findings) -> Figure | None:
    """M_k by number of neighbours k; None with too few rows."""
    ours = found.measures.local_fidelity
    if ours is None:
        return None
    lines = [("probabilities of the classifier", ours.teacher, "solid")]
    if ours.student is not None:
        lines.append(("probabilities of the map", ours.student, "dot"))
    data = [
        {
            "type": "scatter", "mode": "lines+markers", "name": name,
            "x": list(ours.neighbours), "y": [round(m, 6) for m in values],
            "line": {"color": LINE_COLOURS[number], "width": 1.8 + (number == 0), "dash": dash},
            "hovertemplate": f"{name}: M_%{{x}} = %{{y:.4f}}<extra></extra>",
        }
        for number, (name, values, dash) in enumerate(lines)
    ]  # fmt: skip
    return Figure(
        "local-fidelity",
        "Local fidelity: do neighbours have similar predictions?",
        "M_k is the mean Jensen-Shannon distance between the probabilities of a row and those of its k nearest "
        f"neighbours on the map; lower is better. Averaged over {ours.queries:,} rows, with neighbours among "
        f"{ours.points:,} rows. Dotted: the same with the probabilities of the map, as the paper defines it.",
        "A low M_k says nothing about the position of clusters.",
        data,
        layout(
            430,
            xaxis=axis("number of neighbours k", type="log", tickvals=list(ours.neighbours)),
            yaxis=axis("M_k", rangemode="tozero"),
        ),
    )
