"""Figures about the watched classifier: its confusion matrix beside the map, and its calibration."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from darksight_core.rows.simplex import Floats
from darksight_service.report.figures.chart import GREY, LINE_COLOURS, Figure, axis, escape, layout, packed
from darksight_service.report.figures.panels import class_groups
from darksight_service.report.findings import Findings

__all__ = ["calibration_figure", "confusion_figure"]

_FEW = 20
_ROOMY = 10
_MATRIX_CLASSES = 50
_MAX_PAIRS = 2_000
_SHORT = 3


def confusion_figure(found: Findings) -> Figure | None:
    """Confusion matrix, and confusion of class pairs by distance of their centres; None without labels."""
    counts = found.confusion()
    if counts is None:
        return None
    few, two = found.n_classes <= _FEW, found.n_classes == 2
    order = _matrix_order(found, counts)
    names = [escape(found.class_names[k], 18) for k in order]
    data = [_matrix(counts, order, names, with_text=few)]
    if not two:
        data.append(_pairs(found, counts))
    rho = found.measures.global_fidelity.ground
    ticks: dict[str, Any] = {"type": "category", "tickfont": {"size": 12 if few else 8}, "dtick": 1, "showgrid": False}
    turn = -90 if not few else -60 if max(map(len, names)) > _SHORT else 0
    part = "" if len(order) == found.n_classes else f" of the {len(order)} classes with the most errors"
    left = (
        f"Rows by true class (columns) and predicted class (rows){part}. The colour is the square root of the share of "
        "the true class."
    )
    value = "is not defined here" if rho is None else f"is {rho:.2f}"
    right = (
        " Confused classes are next to each other. Right: each dot is a pair of classes, by the distance of their "
        f"centres on the map and the share of rows confused; grey pairs, of which at most {_MAX_PAIRS:,} are drawn, "
        "are never confused. On a good map the share decreases with the distance. The rank correlation of closeness "
        f"and confusion {value} (1 is best, 0 chance)."
    )
    return Figure(
        "global-fidelity",
        "Confusion matrix" if two else "Global fidelity: are confused classes close to each other?",
        left if two else f"Left: {left}{right}",
        "The shares of few rows vary by chance."
        if two
        else "Most pairs are never confused, and their distance is arbitrary: clusters can be neighbours without "
        "confusion. Only clusters that touch indicate confusion.",
        data,
        layout(
            520 if few else 640,
            margin={"l": 60, "r": 20, "t": 20, "b": 60},
            xaxis=axis("true class", domain=[0.0, 0.6 if two else 0.52], tickangle=turn, **ticks),
            yaxis=axis("predicted class", autorange="reversed", **ticks),
            **({} if two else {
                "xaxis2": axis("distance of centres", domain=[0.64, 1.0], anchor="y2"),
                "yaxis2": axis("share confused", type="log", anchor="x2", dtick="D2", tickformat="~%"),
            }),
        ),
    )  # fmt: skip


def _matrix_order(found: Findings, counts: NDArray[np.int64]) -> list[int]:
    """Classes in the order of the matrix: confused ones together; of many classes those with the most errors."""
    order = [k for group in class_groups(found.log_pi) for k in group]
    errors = counts.sum(axis=0) + counts.sum(axis=1) - 2 * np.diagonal(counts)
    kept = set(np.argsort(-errors, kind="stable")[:_MATRIX_CLASSES].tolist())
    return [k for k in order if k in kept]


def _matrix(counts: NDArray[np.int64], order: list[int], names: list[str], *, with_text: bool) -> dict[str, Any]:
    table = counts[np.ix_(order, order)]
    share = table / np.maximum(counts.sum(axis=0)[order], 1)
    text = np.char.mod("%d", table)
    if len(order) <= _ROOMY:
        text = np.char.add(text, np.char.mod("<br>%.1f%%", 100.0 * share))
    return {
        "type": "heatmap", "x": names, "y": names, "showscale": False, "xgap": int(with_text), "ygap": int(with_text),
        # The square root shows rare confusions; from zero to one, so that a colour means the same in every report.
        "z": packed(np.sqrt(share)), "zmin": 0.0, "zmax": 1.0,
        "colorscale": [[0, "#f4f7fb"], [0.5, "#7fadd8"], [1, "#08306b"]],
        "text": text.tolist(), "hovertemplate": "predicted %{y}, true %{x}: %{text}<extra></extra>",
        **({"texttemplate": "%{text}", "textfont": {"size": 14 if len(order) <= 5 else 10}} if with_text else {}),
    }  # fmt: skip


def _pairs(found: Findings, counts: NDArray[np.int64]) -> dict[str, Any]:
    """A dot for each confused pair of classes, and for some of the others."""
    means = found.bundle.embedder.student.means
    first, second = np.triu_indices(found.n_classes, k=1)
    rows = np.maximum(counts.sum(axis=0), 1)
    share: Floats = 0.5 * (counts[second, first] / rows[first] + counts[first, second] / rows[second])
    never = share <= 0.0
    grey = np.random.default_rng(0).permutation(np.flatnonzero(never))[:_MAX_PAIRS]
    kept = np.concatenate([np.sort(grey), np.flatnonzero(~never)])
    first, second, share, never = first[kept], second[kept], share[kept], never[kept]
    floor = float(share[~never].min()) / 2.0 if (~never).any() else 1e-4
    names = [escape(name) for name in found.class_names]
    return {
        "type": "scatter", "mode": "markers", "xaxis": "x2", "yaxis": "y2", "showlegend": False,
        "x": packed(np.hypot(*(means[first] - means[second]).T)), "y": packed(np.where(never, floor, share)),
        "text": [f"{names[a]} / {names[b]}" for a, b in zip(first, second, strict=True)],
        "marker": {"size": 7 if found.n_classes <= _FEW else 4, "opacity": 0.7,
                   "color": np.where(never, GREY, LINE_COLOURS[0]).tolist()},
        "hovertemplate": "%{text}: distance %{x:.1f}, confusion %{y:.4f}<extra></extra>",
    }  # fmt: skip


def calibration_figure(found: Findings) -> Figure | None:
    """Accuracy of the classifier by its confidence; None without labels."""
    bins = found.reliability
    if bins is None:
        return None
    low = min(*bins.confidence, *bins.low)
    bars = {
        "type": "data", "symmetric": False, "thickness": 1.2,
        "array": [high - value for high, value in zip(bins.high, bins.accuracy, strict=True)],
        "arrayminus": [value - low for low, value in zip(bins.low, bins.accuracy, strict=True)],
    }  # fmt: skip
    data: list[dict[str, Any]] = [
        {"type": "scatter", "mode": "lines", "x": [low, 1.0], "y": [low, 1.0], "name": "confidence = accuracy",
         "line": {"color": GREY, "dash": "dash"}, "hoverinfo": "skip"},
        {"type": "scatter", "mode": "lines+markers", "x": list(bins.confidence), "y": list(bins.accuracy),
         "name": "classifier", "error_y": bars, "customdata": list(bins.rows),
         "line": {"color": LINE_COLOURS[0], "width": 2}, "marker": {"size": 7},
         "hovertemplate": "%{customdata} rows: confidence %{x:.2%}, accuracy %{y:.2%}<extra></extra>"},
    ]  # fmt: skip
    return Figure(
        "calibration",
        "Calibration: is the confidence the accuracy?",
        f"Rows are sorted by confidence, the largest probability, into {len(bins.rows)} bins of equal size. Each dot "
        "is the mean confidence and the accuracy of a bin with its exact 95% interval; below the dashed line the "
        "classifier is overconfident. The expected calibration error (ECE), the mean distance from the line, is "
        f"{bins.ece:.4f}; an exactly calibrated classifier would have about {bins.chance:.4f} on these rows.",
        "Only the largest probability is shown. A classifier can be calibrated on average and not for each class; the "
        "table of classes compares precision and confidence.",
        data,
        layout(
            430,
            xaxis=axis("confidence", tickformat=".0%", range=[low - 0.02, 1.01]),
            yaxis=axis("accuracy", tickformat=".0%", range=[low - 0.02, 1.02]),
            legend={"x": 0.02, "y": 0.98, "xanchor": "left", "yanchor": "top"},
        ),
    )  # fmt: skip
