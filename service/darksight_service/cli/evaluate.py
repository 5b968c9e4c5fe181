"""`darksight evaluate`: how faithful a map is, and which score finds errors and foreign rows best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from cyclopts import Parameter
from numpy.typing import NDArray

from darksight_core.bundle import Bundle, read_bundle
from darksight_core.evaluation.compare import Comparison, compare
from darksight_core.evaluation.failure import FailureFigures, OodFigures
from darksight_core.evaluation.measures import MapMeasures, measure_map
from darksight_core.evaluation.segment_figures import SegmentFigures, measure_segments
from darksight_core.evaluation.set_coverage import SetCoverage, set_coverage
from darksight_core.gate.scored_predictions import ScoredPredictions
from darksight_core.map.verdict import map_verdict
from darksight_core.predictions import labels_among
from darksight_core.predictions.sketch import MAX_LEAK
from darksight_core.runtime.scorer import Scorer
from darksight_service.cli.console import print_json, print_table, say
from darksight_service.cli.options import DEFAULT_ALPHA, INPUT, AsJson, Files, HeldOut, Logits
from darksight_service.cli.rows import fit_share, held_out_rows, read_rows, values_of

__all__ = ["evaluate"]


def evaluate(
    bundle: Path,
    file: Path,
    /,
    *,
    ood: Annotated[Files, Parameter(group=INPUT)] = (),
    logits: Logits = False,
    held_out: HeldOut = False,
    by: Annotated[str | None, Parameter(group=INPUT)] = None,
    resamples: int = 200,
    max_rows: int = 10_000,
    seed: int = 0,
    json: AsJson = False,
) -> None:
    """Measure how faithful a map is and compare scores.

    Places the rows of FILE as the service does and measures the map: KL_sym, agreement with the classifier and with the
    labels, neighbours, clusters and their arrangement. Then compares all scores: which one finds the wrong predictions,
    and which one finds the rows of each --ood file. If the bundle has prediction sets, their coverage and size on
    rejected rows are measured. Scores that need stored rows get a random quarter of FILE, at most
    2,500 rows; all scores are measured on the rest.

    Parameters
    ----------
    bundle
        Bundle to evaluate.
    file
        Predictions, .npz, .npy, .csv, .parquet or .jsonl. Labels are needed for accuracy and errors.
    ood
        Predictions for out-of-distribution inputs, one or several files.
    by
        Key of a tag, column tag_KEY of FILE: figures of each of its values too.
    resamples
        Bootstrap samples for the confidence intervals.
    max_rows
        Rows used to compare neighbours.
    seed
        Seed of samples and splits.
    """
    loaded = read_bundle(bundle, verify=False)
    predictions = read_rows(file, loaded, logits=logits)
    foreign = {str(path): read_rows(path, loaded, logits=logits) for path in ood}
    if held_out:
        predictions = held_out_rows(loaded, predictions)
    shared = fit_share(loaded, predictions)
    warning = None
    if shared > MAX_LEAK:
        warning = (
            f"at least {shared:.1%} of the rows of {file} are fit rows of {bundle}, so the map's densities score "
            "better on them than on new rows; use --held-out to exclude them"
        )
        say(warning)
    scorer = Scorer.load(bundle)
    segments = None if by is None else values_of(predictions, by)
    known = scorer.scored(predictions, segments)
    unknown = {name: scorer.scored(rows) for name, rows in foreign.items()}
    found = _Evaluation(
        _measure(loaded, known, predictions.labels, max_rows=max_rows, seed=seed),
        compare(loaded, known, unknown, resamples=resamples, seed=seed),
        None if loaded.gate is None else set_coverage(loaded.gate, known, predictions.tags),
        None if by is None else (by, measure_segments(known, loaded.gate)),
        _flagged(loaded, known, unknown),
    )
    source = {"bundle": str(bundle), "version": loaded.version}
    result = {**source, **found.as_dict(), "fit_share": shared, "warning": warning}
    if json:
        print_json(result)
    else:
        found.print()


@dataclass(frozen=True, slots=True)
class _Evaluation:
    """All that was measured.

    `segments` are the key of a tag and the figures of its values; `flagged` is the alpha of the outlier rule, and the
    share of rows with a p-value up to it, of FILE and of each --ood file.
    """

    measures: MapMeasures
    comparison: Comparison
    sets: SetCoverage | None
    segments: tuple[str, Sequence[SegmentFigures]] | None
    flagged: tuple[float, float, dict[str, float]]

    def as_dict(self) -> dict[str, Any]:
        sets = None if self.sets is None else self.sets.as_dict()
        alpha, known, foreign = self.flagged
        flagged = {"alpha": alpha, "known": known, "ood": foreign}
        result = {**self.measures.as_dict(), **self.comparison.as_dict(), "flagged": flagged, "sets": sets}
        if self.segments is not None:
            key, values = self.segments
            result["segments"] = {"key": key, "values": [each.as_dict() for each in values]}
        return result

    def print(self) -> None:
        _print_measures(self.measures)
        _print_comparison(self.comparison, self.flagged)
        if self.segments is not None:
            _print_segments(*self.segments)
        if self.sets is not None:
            print(f"\n{self.sets.summary}")


def _flagged(
    bundle: Bundle, known: ScoredPredictions, foreign: Mapping[str, ScoredPredictions]
) -> tuple[float, float, dict[str, float]]:
    rule = None if bundle.gate is None else bundle.gate.outlier
    alpha, limit = (DEFAULT_ALPHA, DEFAULT_ALPHA) if rule is None else (rule.alpha, rule.p_value)
    shares = {name: float((rows.scores.p_value <= limit).mean()) for name, rows in {"": known, **foreign}.items()}
    return alpha, shares.pop(""), shares


def _measure(
    bundle: Bundle, rows: ScoredPredictions, labels: NDArray[np.int64] | None, *, max_rows: int, seed: int
) -> MapMeasures:
    embedder, points = bundle.embedder, rows.scores.points
    return measure_map(
        np.ascontiguousarray(embedder.shown(rows.log_pi)),
        embedder.student.log_posterior(points),
        points,
        embedder.student.means,
        labels_among(labels, embedder.columns),
        max_rows=max_rows,
        seed=seed,
        bound=embedder.bound,
    )


def _print_segments(key: str, found: Sequence[SegmentFigures]) -> None:
    print(f"\nSegments by {key}; intervals of 95% for each:")
    print_table(
        [
            (
                "(none)" if each.value is None else each.value,
                each.rows,
                f"{each.outliers:.2%}",
                f"{each.accepted:.2%}",
                _share(each.accuracy, each.accuracy_low, each.accuracy_high),
                _share(each.accepted_accuracy, each.accepted_low, each.accepted_high),
                None if each.augrc is None else f"{1000 * each.augrc:.3f}",
            )
            for each in found
        ],
        (key, "rows", "outliers", "accepted", "accuracy", "accuracy of accepted", "AUGRC x1000"),
    )


def _share(value: float | None, low: float | None, high: float | None) -> str | None:
    if value is None or low is None or high is None:
        return None
    return f"{value:.2%} [{low:.2%}, {high:.2%}]"


def _print_measures(found: MapMeasures) -> None:
    figures, local = found.fidelity, found.local_fidelity
    rows: list[tuple[object, ...]] = [("rows", found.rows)]
    if figures is not None:
        rows += [
            ("KL_sym", figures.kl_sym),
            ("KL_sym from zeros, read as 1e-30", figures.kl_sym_of_zeros),
            ("total variation", figures.total_variation),
            ("KL(classifier, map)", figures.kl_teacher_student),
            ("KL(map, classifier)", figures.kl_student_teacher),
            ("nearest star is the predicted class", figures.star_agreement),
            ("on the border of the map", figures.on_border),
            ("Acc#teacher", figures.acc_teacher),
            ("Acc#ground", figures.acc_ground),
            ("classifier accuracy", figures.teacher_acc_ground),
        ]
    if local is not None:
        for i, k in enumerate(local.neighbours):
            rows.append((f"M_{k}, p of classifier", local.teacher[i]))
            if local.student is not None:
                rows.append((f"M_{k}, p of map", local.student[i]))
    if found.trustworthiness is not None:
        rows.append(("trustworthiness", found.trustworthiness.value))
    rows += [
        ("cluster monotonicity", found.cluster_monotonicity.mean),
        ("global fidelity, soft", found.global_fidelity.soft),
        ("global fidelity, labels", found.global_fidelity.ground),
    ]
    print_table(rows, ("measure", "value"))
    if figures is not None:
        print(f"The map is {map_verdict(figures.total_variation, figures.star_agreement, figures.on_border)}.")
    for note in found.notes:
        print(note)


def _print_comparison(found: Comparison, flagged: tuple[float, float, dict[str, float]]) -> None:
    alpha, known, foreign = flagged
    if found.failure is not None and found.choice is not None:
        first = next(iter(found.failure.values()))
        print(f"\nWhich score finds wrong predictions? {first.errors:,} errors among {first.n:,} rows.")
        print_table(
            _lines(found.failure, ("augrc", "aurc", "e_aurc"), ("auroc", "fpr95"), best="augrc"),
            ("score", "AUGRC x1000", "AURC x1000", "E-AURC x1000", "AUROC", "FPR95"),
        )
        print(
            f"* best AUGRC. Chosen reject score: {found.choice.chosen}. It has the best AUGRC of the scores that a gate"
        )
        print("  can use, and is msp unless another is better by more than one standard error. Brackets are 95%")
        print("  intervals: where they overlap, the order of two scores is uncertain.")
    for file, figures in found.ood.items():
        first_out = next(iter(figures.values()))
        print(f"\nWhich score finds the rows of {file}? {first_out.n_out:,} foreign and {first_out.n_in:,} known rows.")
        print_table(_lines(figures, (), ("auroc", "fpr95"), best="auroc"), ("score", "AUROC", "FPR95"))
        print(
            f"* best AUROC. The p-values of the bundle are computed from {found.outlier}. At alpha {alpha:g} they flag"
        )
        print(f"  {foreign[file]:.2%} of these rows, and {known:.2%} of the known ones.")
    print("\nThese figures are about these files. A score that finds errors may not find foreign rows, and other")
    print("foreign rows may rank the scores differently. No figure here is a threshold; see darksight calibrate.")
    for note in found.notes:
        print(f"note: {note}")


def _lines(
    figures: Mapping[str, FailureFigures] | Mapping[str, OodFigures],
    small: tuple[str, ...],
    shares: tuple[str, ...],
    *,
    best: str,
) -> list[tuple[object, ...]]:
    """Rows of a table, best first; `small` figures are multiplied by 1,000."""
    known = {name: getattr(found, best) for name, found in figures.items()}
    sign = -1.0 if best == "auroc" else 1.0
    order = sorted(figures, key=lambda name: sign * known[name] if known[name] is not None else 0.0)
    lines: list[tuple[object, ...]] = []
    for name in order:
        cells = [_cell(figures[name], figure, 1000.0, 2) for figure in small]
        cells += [_cell(figures[name], figure, 1.0, 3) for figure in shares]
        lines.append((name + (" *" if known[name] == known[order[0]] else ""), *cells))
    return lines


def _cell(found: FailureFigures | OodFigures, figure: str, scale: float, digits: int) -> str | None:
    value = getattr(found, figure)
    if value is None:
        return None
    text = f"{scale * value:.{digits}f}"
    if figure not in found.intervals:
        return text
    low, high = found.intervals[figure]
    return f"{text} [{scale * low:.{digits}f}, {scale * high:.{digits}f}]"
