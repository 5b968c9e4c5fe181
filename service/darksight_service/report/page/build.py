"""One HTML file with figures, tables, cases and numbers, and with plotly's JavaScript: it asks nobody for anything.

plotly is most of its weight and of the time that it takes to open. It is packed, so that a browser shows text and
tables before it has unpacked and read it; then what is in view is drawn before the rest.

What comes from files, such as class names, is escaped wherever it stands: as text in HTML, and in JSON so that no
`</script>` can end its block. A Content-Security-Policy in the page forbids every request all the same.
"""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Iterable, Sequence
from importlib import resources
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from darksight_core import __version__
from darksight_core.evaluation.cases import Case
from darksight_service.report.figures.plotly import Figure, packed
from darksight_service.report.figures.scores import score_label
from darksight_service.report.findings import Findings
from darksight_service.report.images import as_data_uri
from darksight_service.report.plotly_js import packed_plotly

__all__ = ["build_page"]

_RANKS = 3
_POLICY = "default-src 'none'; script-src 'unsafe-inline' blob:; style-src 'unsafe-inline'; img-src data: blob:"

_KINDS = {
    "typical": ("Typical rows", "The row of highest density of each class: what the classifier usually says."),
    "unusual": ("Most unusual vectors", "The lowest scores of usualness. Look at these first."),
    "midway": (
        "Midway between two classes",
        "Rows that the classifier is torn about; on the map they stand on bridges.",
    ),
    "wrong_alike": (
        "Mistakes of a kind",
        "The most frequent kinds of mistake, with the rows in the middle of where they stand on the map.",
    ),
    "confident_wrong": (
        "Confident and wrong",
        "The surest mistakes. No score of this page finds them: they look like usual predictions. Are "
        "their labels right?",
    ),
}


def build_page(
    found: Findings, figures: Sequence[Figure], images: NDArray[np.uint8] | None = None, *, title: str = ""
) -> str:
    """The whole page.

    Parameters
    ----------
    found
        All numbers.
    figures
        What to draw.
    images
        A picture for each row, (n, height, width) or (n, height, width, 3).
    title
        Heading; by default the name of the rows' file.
    """
    title = title or f"DarkSight report: {found.source.rpartition('/')[2]}"
    own = resources.files("darksight_service.report.page")
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">',
        f"<title>{_text(title)}</title><style>{own.joinpath('page.css').read_text(encoding='utf-8')}</style></head><body>",
        f"<h1>{_text(title)}</h1>",
        *_summary(found),
        "<nav>" + "".join(f'<a href="#{figure.name}">{_text(_short(figure))}</a>' for figure in figures),
        '<a href="#compression">Model compression</a><a href="#time">Time</a><a href="#cases">Cases</a></nav>',
        *(_figure(figure) for figure in figures),
        *_tables(found),
        *_cases(found, images),
        *_path_rows(found, images),
        '<div id="row" aria-live="polite"></div>',
        _json("figures", {figure.name: figure.as_plotly() for figure in figures}),
        _json("rows", _rows(found)),
        _json("numbers", found.as_dict()),
        f'<script type="text/plain" id="plotly">{base64.b64encode(packed_plotly()).decode("ascii")}</script>',
        f"<script>{own.joinpath('page.js').read_text(encoding='utf-8')}</script></body></html>",
    ]
    return "\n".join(parts) + "\n"


def _text(value: object) -> str:
    return html.escape(str(value))


def _short(figure: Figure) -> str:
    """A title without its question; a path keeps its ends, of which there may be several."""
    return figure.title if figure.name.startswith("path-") else figure.title.partition(":")[0]


def _json(name: str, value: object) -> str:
    text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json" id="{name}">{text}</script>'


def _summary(found: Findings) -> Iterable[str]:
    """What the page is about, in a few sentences."""
    fidelity = found.measures.fidelity
    yield f"<p>{len(found):,} predictions of {found.n_classes} classes, placed by bundle "
    yield f"<code>{_text(found.bundle.version[:12])}</code>. "
    if found.wrong is not None:
        yield f"The classifier is right on {1.0 - float(found.wrong.mean()):.2%} of them. "
    if fidelity is not None:
        yield f"Reading the map alone gives the classifier's class on {fidelity.acc_teacher:.2%} of rows and its "
        yield f"probabilities with a symmetric divergence of {fidelity.kl_sym:.4f} nats on average.</p>"
    yield '<p class="small">Every figure has a sentence on how to read it and one on what it does not '
    yield "say. The camera in "
    yield "a figure's corner saves it as PNG, the disk as SVG; drag to zoom, double-click to go back. "
    yield f"Made by darksight {__version__}.</p>"
    yield '<p><button id="download">numbers as JSON</button></p>'
    for note in found.notes + (() if found.comparison is None else found.comparison.notes):
        yield f'<p class="small">Note: {_text(note)}.</p>'


def _figure(figure: Figure) -> str:
    height = figure.layout["height"]
    return (
        f'<h2 id="{figure.name}">{_text(figure.title)}</h2><figure>'
        f'<div class="wide"><div class="plot" id="plot-{figure.name}" data-figure="{figure.name}" '
        f'style="height:{height}px"></div></div>'
        f'<figcaption><p>{_text(figure.caption)}</p><p class="limits">{_text(figure.limits)}</p></figcaption></figure>'
    )


def _table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    head = "".join(f"<th>{_text(name)}</th>" for name in header)
    body = "".join("<tr>" + "".join(f"<td>{_cell(value)}</td>" for value in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'


def _cell(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:.4f}" if isinstance(value, float) else _text(value)


def _percent(value: float | None) -> str | None:
    return None if value is None else f"{value:.2%}"


def _tables(found: Findings) -> Iterable[str]:
    yield '<h2 id="compression">Model compression: how much of the classifier is on the map</h2>'
    maps = [("these rows, as served", found.measures)]
    maps += [(rival.label, rival.measures) for rival in found.rivals if rival.measures.fidelity is not None]
    lines = [
        (name, m.fidelity.kl_sym, _percent(m.fidelity.acc_ground), _percent(m.fidelity.acc_teacher), m.rows)
        for name, m in maps
        if m.fidelity is not None
    ]
    yield _table(("map", "KL_sym", "Acc#ground", "Acc#teacher", "rows"), lines)
    yield '<p class="small">KL_sym is the mean symmetric divergence between the classifier’s '
    yield "probabilities and those that "
    yield "the map gives, in nats; Acc#teacher the share of rows where both name the same class, "
    yield "Acc#ground where the map "
    yield "names the label. Served rows were placed on a finished map.</p>"
    yield '<p class="small limits">A faithful map repeats the classifier, with its mistakes.</p>'
    yield from _method_table(found)
    yield from _score_table(found)


def _method_table(found: Findings) -> Iterable[str]:
    yield '<h2 id="time">Methods side by side, and the time they take</h2>'
    rows: list[tuple[object, ...]] = []
    served = ("DarkSight, rows placed on the finished map", found.measures_compared, found.place_seconds, None, "")
    others = [(r.label, r.measures, r.seconds, r.cpu_seconds, r.library) for r in found.rivals]
    for name, m, wall, cpu, library in (served, *others):
        local = (
            dict(zip(m.local_fidelity.neighbours, m.local_fidelity.teacher, strict=True)) if m.local_fidelity else {}
        )
        trust = None if m.trustworthiness is None else m.trustworthiness.value
        rows.append((
            name, f"{wall:.2f}", None if cpu is None else f"{cpu:.2f}", local.get(10), local.get(100), trust,
            m.cluster_monotonicity.mean, m.global_fidelity.soft, m.global_fidelity.ground, library,
        ))  # fmt: skip
    yield _table(
        ("method", "seconds", "CPU s", "M_10", "M_100", "trust", "clusters ρ", "global, soft", "global, labels", "by"),
        rows,
    )
    cached = [rival.label for rival in found.rivals if rival.cached]
    yield f'<p class="small">All on the same {len(found.compared):,} rows. Seconds are those of this '
    yield "machine when the map was "
    yield (
        "made"
        + (f"; an earlier run made {_text(', '.join(cached))}" if cached else "")
        + ". M_k: low is good; trust: neighbours on "
    )
    yield "the map are neighbours among the rows, 1 is best; clusters and global as in the figures above, "
    yield "1 is best.</p>"
    yield '<p class="small limits">Times on a busy machine are longer, CPU seconds less so, and the first map of a '
    yield "method may pay for compiling its code. Each method has settings that would change its row.</p>"


def _score_table(found: Findings) -> Iterable[str]:
    compared = found.comparison
    if compared is None or compared.failure is None:
        return
    yield '<h2 id="scores">Scores side by side: which finds mistakes?</h2>'
    order = sorted(compared.failure, key=lambda name: compared.failure[name].augrc if compared.failure else 0.0)
    rows = []
    for name in order:
        figures = compared.failure[name]
        low, high = figures.intervals.get("augrc", (None, None))
        interval = "" if low is None or high is None else f"{1000 * low:.2f} to {1000 * high:.2f}"
        rows.append((
            score_label(name, found.rivals), f"{1000 * figures.augrc:.2f}", interval, f"{1000 * figures.aurc:.2f}",
            None if figures.auroc is None else f"{figures.auroc:.3f}",
        ))  # fmt: skip
    yield _table(("score", "AUGRC ×1000", "95% interval", "AURC ×1000", "AUROC"), rows)
    yield '<p class="small">AUGRC is the share of rows accepted and wrong, averaged over all thresholds; '
    yield "AURC the error rate of "
    yield "accepted rows, likewise; lower is better. AUROC is the chance that a right row scores above a wrong one.</p>"
    yield '<p class="small limits">Where intervals overlap, the order of two scores says little.</p>'


def _cases(found: Findings, images: NDArray[np.uint8] | None) -> Iterable[str]:
    yield '<h2 id="cases">Cases worth a look</h2>'
    if found.alike is not None:
        yield f"<p>Of {found.alike.mistakes:,} mistakes {found.alike.same:.0%} have a mistake of the same kind "
        yield "as their nearest "
        yield f"wrong neighbour on the map; anywhere on the map it would be {found.alike.chance:.0%}.</p>"
    elif found.labels is not None:
        yield "<p>There are too few mistakes to look for kinds of them.</p>"
    for kind, several in groupby(found.cases, key=lambda case: case.kind):
        title, text = _KINDS[kind]
        yield f'<h3>{_text(title)}</h3><p class="small">{_text(text)}</p>'
        for about, alike in groupby(several, key=lambda case: _about(found, case)):
            yield about + _cards(found, [row for case in alike for row in case.rows], images)


def _about(found: Findings, case: Case) -> str:
    names = [_text(found.class_names[k]) for k in case.about]
    if case.kind == "midway":
        return f'<p class="small">{names[0]} or {names[1]}:</p>'
    if case.kind == "wrong_alike":
        return f'<p class="small">{names[0]} taken for {names[1]}:</p>'
    return ""


def _path_rows(found: Findings, images: NDArray[np.uint8] | None) -> Iterable[str]:
    for name, path in found.paths:
        if len(path.rows):
            some = path.rows[np.unique(np.linspace(0, len(path.rows) - 1, 10).astype(int))]
            yield f"<h3>Rows along the path {_text(name)}</h3>" + _cards(found, some.tolist(), images)


def _cards(found: Findings, rows: Iterable[int], images: NDArray[np.uint8] | None) -> str:
    cards = []
    for row in rows:
        image = ""
        if images is not None:
            image = f'<img alt="input of row {row}" data-row="{row}" src="{as_data_uri(images[row])}">'
        name = f"row {row}" if found.ids is None else f"row {row}: {_text(found.ids[row])}"
        truth = ""
        if found.labels is not None:
            wrong = found.labels[row] != found.predicted[row]
            kind = ' class="wrong"' if wrong else ""
            truth = f"<div{kind}>true {_text(found.class_names[found.labels[row]])}</div>"
        order = np.argsort(-found.log_pi[row], kind="stable")[:_RANKS]
        bars = "".join(
            f'<div class="bar"><span>{_text(found.class_names[k])}</span><span>{p:.2f}</span><i '
            f'style="width:{100 * p:.0f}%"></i></div>'
            for k, p in zip(order, np.exp(found.log_pi[row, order]), strict=True)
        )
        cards.append(f'<div class="case">{image}<b>{name}</b>{truth}{bars}</div>')
    return f'<div class="cases">{"".join(cards)}</div>'


def _rows(found: Findings) -> dict[str, Any]:
    """What the panel says about a row that is pointed at."""
    ranks = min(_RANKS, found.n_classes)
    top = np.argsort(-found.log_pi, axis=1, kind="stable")[:, :ranks]
    share = np.round(65_535 * np.exp(np.take_along_axis(found.log_pi, top, axis=1))).astype(np.uint16)
    named: dict[str, Any] = {
        "class_names": list(found.class_names),
        "ids": None if found.ids is None else list(found.ids),
        "ranks": ranks,
        "predicted": packed(found.predicted),
        "top": packed(top.reshape(-1)),
        "share": packed(share.reshape(-1)),
        "p_value": packed(found.scores.p_value),
        "entropy": packed(found.unsure),
    }
    if found.labels is not None:
        named["label"] = packed(found.labels)
    return named
