"""One HTML file with figures, tables, cases and numbers; plotly.js is in the file, so the page makes no request.

plotly.js is most of the file and of the time to open it. It is compressed, so that a browser shows text and tables
first; then it draws the figures in view before the others.

Names from files are escaped: in HTML by jinja2, in JSON by its `tojson`, so that no `</script>` can end a block. The
Content-Security-Policy of the page forbids requests in any case.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from darksight_core import __version__
from darksight_core.evaluation.cases import Case
from darksight_core.evaluation.segment_figures import SegmentFigures
from darksight_core.scores.registry import SCORES
from darksight_service.report.figures.chart import Figure, packed
from darksight_service.report.findings import Findings
from darksight_service.report.images import Inputs, Shown
from darksight_service.report.plotly_js import packed_plotly

__all__ = ["build_page"]

_HERE = Path(__file__).parent
_RANKS = 3
_PATH_ROWS = 10

_KINDS = {
    "typical": (
        "Typical rows",
        "One row for each class: of the fifth of its rows around the median confidence, the one in the densest place.",
    ),
    "unusual": ("Most unusual rows", "The rows with the lowest outlier score. Look at these first."),
    "midway": ("Ambiguous rows", "Rows between two classes; on the map they connect two clusters."),
    "wrong_alike": ("Similar errors", "The most frequent confusions, with the rows in the middle of each on the map."),
    "confident_wrong": (
        "Confident errors",
        "The errors with the highest confidence. No score of this page finds them: they look like usual predictions. "
        "Check their labels.",
    ),
}


def _cell(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:.4f}" if isinstance(value, float) else str(value)


_templates = Environment(
    loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
)
_templates.filters["cell"] = _cell
_templates.policies["json.dumps_kwargs"] = {"allow_nan": False, "ensure_ascii": False, "separators": (",", ":")}


def build_page(found: Findings, figures: Sequence[Figure], inputs: Inputs | None = None, *, title: str = "") -> str:
    """The HTML page.

    Parameters
    ----------
    found
        All numbers.
    figures
        Figures to draw.
    inputs
        The input of each row, shown beside its probabilities.
    title
        Title; by default the name of the predictions file.
    """
    return _templates.get_template("page.html").render(
        title=title or f"DarkSight report: {found.source.rpartition('/')[2]}",
        style=Markup((_HERE / "page.css").read_text(encoding="utf-8")),
        script=Markup((_HERE / "page.js").read_text(encoding="utf-8")),
        plotly=base64.b64encode(packed_plotly()).decode("ascii"),
        version=__version__,
        found=found,
        notes=found.notes + (() if found.comparison is None else tuple(found.comparison.notes)),
        figures=figures,
        classes=_classes(found),
        segments=[(key, _segments(values)) for key, values in found.segments.items()],
        fidelity=_fidelity(found),
        scores=_scores(found),
        cases=_case_groups(found, inputs),
        paths=_path_rows(found, inputs),
        figure_data={figure.name: figure.as_plotly() for figure in figures},
        row_data=_row_data(found),
    )


def _percent(value: float | None) -> str | None:
    return None if value is None else f"{value:.2%}"


def _classes(found: Findings) -> list[tuple[object, ...]]:
    return [
        (each.name, each.rows, _percent(each.recall), each.predicted, _percent(each.precision),
         _percent(each.confidence), each.mistaken_for)
        for each in found.classes
    ]  # fmt: skip


def _segments(values: Iterable[SegmentFigures]) -> list[tuple[object, ...]]:
    def interval(low: float | None, high: float | None) -> str | None:
        return None if low is None or high is None else f"{low:.2%} to {high:.2%}"

    return [
        (each.value, each.rows, _percent(each.outliers), _percent(each.accepted),
         _percent(each.accuracy), interval(each.accuracy_low, each.accuracy_high),
         _percent(each.accepted_accuracy), interval(each.accepted_low, each.accepted_high),
         None if each.augrc is None else f"{1000 * each.augrc:.2f}")
        for each in values
    ]  # fmt: skip


def _fidelity(found: Findings) -> list[tuple[object, ...]]:
    """How faithful the map is, as one line of a table."""
    m = found.measures
    local: dict[int, float] = {}
    if m.local_fidelity is not None:
        local = dict(zip(m.local_fidelity.neighbours, m.local_fidelity.teacher, strict=True))
    fidelity: tuple[object, ...] = (None,) * 3
    if m.fidelity is not None:
        fidelity = (m.fidelity.kl_sym, _percent(m.fidelity.acc_ground), _percent(m.fidelity.acc_teacher))
    trust = None if m.trustworthiness is None else m.trustworthiness.value
    return [
        (*fidelity, local.get(10), local.get(100), trust, m.cluster_monotonicity.mean, m.global_fidelity.soft,
         m.global_fidelity.ground, f"{found.place_seconds:.2f}")
    ]  # fmt: skip


def _scores(found: Findings) -> list[tuple[object, ...]]:
    compared = found.comparison
    if compared is None or compared.failure is None:
        return []
    rows: list[tuple[object, ...]] = []
    for name, figures in sorted(compared.failure.items(), key=lambda each: each[1].augrc):
        low, high = figures.intervals.get("augrc", (None, None))
        interval = "" if low is None or high is None else f"{1000 * low:.2f} to {1000 * high:.2f}"
        auroc = None if figures.auroc is None else f"{figures.auroc:.3f}"
        rows.append((SCORES[name].label, f"{1000 * figures.augrc:.2f}", interval, f"{1000 * figures.aurc:.2f}", auroc))
    return rows


def _case_groups(found: Findings, inputs: Inputs | None) -> list[dict[str, Any]]:
    groups = []
    for kind, several in groupby(found.cases, key=lambda case: case.kind):
        title, text = _KINDS[kind]
        parts = [
            (about, _cards(found, [row for case in alike for row in case.rows], inputs))
            for about, alike in groupby(several, key=lambda case: _about(found, case))
        ]
        groups.append({"title": title, "text": text, "parts": parts})
    return groups


def _about(found: Findings, case: Case) -> str:
    names = [found.class_names[k] for k in case.about]
    if case.kind == "midway":
        return f"{names[0]} or {names[1]}"
    return f"{names[0]} predicted as {names[1]}" if case.kind == "wrong_alike" else ""


def _path_rows(found: Findings, inputs: Inputs | None) -> list[tuple[str, list[dict[str, Any]]]]:
    chosen = []
    for name, path in found.paths:
        if len(path.rows):
            some = path.rows[np.unique(np.linspace(0, len(path.rows) - 1, _PATH_ROWS).astype(int))]
            chosen.append((name, _cards(found, some.tolist(), inputs)))
    return chosen


def _cards(found: Findings, rows: Iterable[int], inputs: Inputs | None) -> list[dict[str, Any]]:
    cards = []
    for row in rows:
        order = np.argsort(-found.log_pi[row], kind="stable")[:_RANKS]
        probs = np.exp(found.log_pi[row, order]).tolist()
        cards.append({
            "row": row,
            "input": Shown() if inputs is None else inputs.show(row),
            "name": f"row {row}" if found.ids is None else f"row {row}: {found.ids[row]}",
            "label": "" if found.labels is None else found.class_names[found.labels[row]],
            "is_wrong": found.labels is not None and found.labels[row] != found.predicted[row],
            "bars": list(zip((found.class_names[k] for k in order), probs, strict=True)),
        })  # fmt: skip
    return cards


def _row_data(found: Findings) -> dict[str, Any]:
    """What the page shows about the row under the pointer."""
    ranks = min(_RANKS, found.n_classes)
    top = np.argsort(-found.log_pi, axis=1, kind="stable")[:, :ranks]
    share = np.round(65_535 * np.exp(np.take_along_axis(found.log_pi, top, axis=1))).astype(np.uint16)
    columns: dict[str, Any] = {
        "class_names": list(found.class_names),
        "ids": None if found.ids is None else list(found.ids),
        "ranks": ranks,
        "predicted": packed(found.predicted),
        "top": packed(top.reshape(-1)),
        "share": packed(share.reshape(-1)),
        "p_value": packed(found.scores.p_value),
        "entropy": packed(found.entropy),
    }
    if found.labels is not None:
        columns["label"] = packed(found.labels)
    return columns
