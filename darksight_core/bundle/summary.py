"""What a bundle is and what it can do, as names and texts, and as HTML for notebooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from darksight_core.gate.gate import Gate
from darksight_core.map.verdict import map_verdict
from darksight_core.scores.registry import threshold_text

__all__ = ["Facts", "as_html", "class_list", "gate_facts", "map_facts", "p_value_fact"]

Facts = list[tuple[str, str]]
"""Names and texts; a name may be empty, if its text goes on with the one before."""


def class_list(names: Sequence[str]) -> str:
    """Number of classes, and the names of the first twelve."""
    return f"{len(names):,}: " + ", ".join(names[:12]) + (f", ... ({len(names) - 12} more)" if len(names) > 12 else "")


def map_facts(fidelity: Mapping[str, Any], *, held_out: int) -> Facts:
    """How faithful the map is, as far as the manifest says.

    Parameters
    ----------
    fidelity
        Part of the manifest.
    held_out
        Rows for calibration and test.
    """
    found = fidelity.get("served")
    if not isinstance(found, Mapping):
        return []
    text = f"KL_sym {found['kl_sym']:.4g} on {'rows that no step has fitted' if held_out else 'fit rows'}"
    if found["kl_sym_of_zeros"] >= 5e-4:
        text += f", {found['kl_sym_of_zeros']:.4g} of it from probabilities of zero"
    text += f"; it predicts the classifier's class for {found['acc_teacher']:.2%} of them"
    verdict = map_verdict(found["total_variation"], found.get("star_agreement"), found.get("on_border"))
    return [("map", verdict), ("", text)]


def p_value_fact(rows: int) -> tuple[str, str]:
    """What p-values of so many calibration rows can say."""
    if rows == 0:
        return "p-values", "all 1: not calibrated"
    return "p-values", f"ranks among {rows:,} calibration rows; the smallest is {1.0 / (rows + 1):.2g}"


def gate_facts(gate: Gate | None, certificate: Mapping[str, Any]) -> Facts:
    """The rules of the gate with their promises, and promises that could not be kept."""
    if gate is None:
        return [("gate", "none: the service flags p-values up to 0.01 and certifies nothing; see darksight calibrate")]
    rules = []
    if gate.outlier is not None:
        within = "" if gate.class_limits is None else " within its predicted class"
        rules.append(f"OUTLIER if p-value{within} <= {gate.outlier.p_value:.6g}, for alpha {gate.outlier.alpha:g}")
    if gate.reject_score is not None:
        accepts = f"{gate.reject_score} >= {threshold_text(gate.reject_score, gate.threshold)}"
        if gate.class_thresholds is not None:
            accepts = f"{gate.reject_score} >= the threshold of its predicted class"
        if gate.segments is not None:
            count = len(gate.segments.thresholds)
            accepts += f", or the own threshold of its {gate.segments.key}, which {count} segments have"
        rules.append(f"LOW_CONFIDENCE unless {accepts}")
    if gate.regions:
        rules.append(f"REGION if inside {', '.join(region.name for region in gate.regions)}")
    lines = [("gate", f"rejects a row as {rule}") for rule in rules] or [("gate", "accepts every valid row")]
    for part in (certificate.get(name) for name in ("outlier", "reject", "classes", "sets")):
        if isinstance(part, Mapping) and "promise" in part:
            lines.append(("promise", part["promise"] + ("" if part.get("feasible", True) else ": NOT FEASIBLE")))
            if part.get("worst_class"):
                worst = part["worst_class"]
                share = f"{worst['coverage']:.3f} of its {worst['rows']:,} rejected rows"
                lines.append(("worst class", f"number {worst['class']} is in the sets of {share}"))
    return lines


def as_html(title: str, facts: Facts, picture: str = "") -> str:
    """A heading, a picture (SVG) and a table of facts, in the colours of the notebook."""
    cell = "text-align:left;vertical-align:top;padding:1px 8px 1px 0;background:none"
    rows = "".join(
        f'<tr><th scope="row" style="{cell};font-weight:normal;opacity:.7">{escape(name)}</th>'
        f'<td style="{cell}{";color:#c05000" if name == "warning" else ""}">{escape(text)}</td></tr>'
        for name, text in facts
    )
    return (
        f'<div style="display:flex;flex-wrap:wrap;gap:16px;align-items:flex-start">{picture}'
        f'<div style="flex:1;min-width:20em"><b>{escape(title)}</b><table>{rows}</table></div></div>'
    )
