"""`darksight calibrate`: give a bundle a gate whose thresholds are certified on labelled rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter

from darksight_core.bundle import Bundle, read_bundle, refuse_existing, write_bundle
from darksight_core.bundle.defects import defect
from darksight_core.errors import ConfigError
from darksight_core.gate.certify import Certification, Targets, certify_levels
from darksight_core.gate.certify_sets import in_segments, sets_for_gate
from darksight_core.gate.class_targets import ClassTarget
from darksight_core.gate.scored_predictions import ScoredPredictions
from darksight_core.gate.segment_certificate import PREDICTED_CLASS
from darksight_core.predictions import Predictions
from darksight_core.predictions.sketch import MAX_LEAK
from darksight_core.rows.resolution import name_of
from darksight_core.rows.tags import REFERENCE
from darksight_core.runtime.scorer import Scorer
from darksight_core.scores.registry import REJECT_SCORES, threshold_text
from darksight_service.cli.console import on_interrupt, print_json, print_table, say
from darksight_service.cli.options import OUTPUT, AsJson, HeldOut, Logits, Overwrite
from darksight_service.cli.rows import fit_share, held_out_rows, read_rows, values_of

__all__ = ["Rules", "calibrate"]

_RULES = Group("Rules", sort_key=2)
# Exit status; 2 is bad usage or input.
_INFEASIBLE = 3
_MOST_SEGMENTS = 40
_MOST_CLASSES = 20
# A class is hardly ever accepted if this share of its rows is, while most rows of all classes are.
_HARDLY, _MOSTLY = 0.1, 0.5


@dataclass(frozen=True, slots=True)
class Rules:
    """What the gate promises.

    Parameters
    ----------
    alpha
        Flag at most this share of usual rows as outliers.
    coverage
        Accept at least this share of the rows, on average.
    target_accuracy
        At least this share of the accepted rows is right, with confidence 1 - delta.
    max_undetected
        At most this share of all rows is accepted and wrong, on average.
    target_precision
        CLASS=SHARE: at least this share of the accepted rows predicted as CLASS is right, with confidence 1 - delta.
        May be repeated for other classes; rows predicted as classes without a target are not rejected.
    target_recall
        CLASS=SHARE: at least this share of the rows of CLASS is predicted as CLASS and accepted, with confidence
        1 - delta. Beside a precision of the same class both hold, or the result says what is attainable.
    per_class
        With --target-accuracy: each predicted class with enough labels gets a threshold and keeps the promise by
        itself, all classes together with confidence 1 - delta; the other classes share one threshold.
    delta
        Probability that a promise fails. Applies to --target-accuracy, --target-precision and --target-recall (0.05 by
        default) and, if given, to --alpha, which otherwise holds on average.
    sets
        The true class of at least this share of the rejected rows is in a set of classes that comes with each.
    score
        Score that rejects rows. auto is msp, the largest probability, if FILE has fewer than 3,000 rows. Otherwise it
        is the best score on a third of them; with --target-accuracy only if that score accepts more rows than msp.
    by
        Key of a tag, column tag_KEY of FILE. Each value with enough labels gets a threshold and a promise of its own,
        with confidence 1 - delta for each; all others share one.
    by_class
        With --alpha: rank rows within their predicted class, so that each class with enough calibration rows keeps
        alpha by itself.
    """

    alpha: float | None = None
    coverage: float | None = None
    target_accuracy: float | None = None
    max_undetected: float | None = None
    target_precision: tuple[str, ...] = ()
    target_recall: tuple[str, ...] = ()
    per_class: bool = False
    delta: float | None = None
    sets: float | None = None
    score: Annotated[str, Parameter(choices=("auto", *REJECT_SCORES))] = "auto"
    by: str | None = None
    by_class: bool = False

    def targets(self, seed: int, names: Sequence[str]) -> Targets | None:
        """The targets of a new gate; None if only prediction sets are added to the gate that the bundle has.

        Parameters
        ----------
        seed
            Seed of the split of the rows.
        names
            Names of the classes.
        """
        on_confidence = (self.coverage, self.target_accuracy, self.max_undetected)
        if sum(rule is not None for rule in on_confidence) > 1:
            raise ConfigError("--coverage, --target-accuracy and --max-undetected exclude each other; give one of them")
        if self.by == REFERENCE:
            raise ConfigError(f"--by {REFERENCE}: a reference names the input of one row; give a tag of many rows")
        classes = _class_targets(self.target_precision, self.target_recall, names)
        if (
            self.sets is not None
            and not classes
            and all(rule is None for rule in (self.alpha, *on_confidence, self.by))
        ):
            return None
        return Targets(
            alpha=self.alpha,
            coverage=self.coverage,
            accuracy=self.target_accuracy,
            undetected=self.max_undetected,
            delta=self.delta,
            score=self.score,
            seed=seed,
            by=self.by,
            sets=self.sets,
            per_class=self.per_class,
            classes=classes,
        )


def _class_targets(precision: Sequence[str], recall: Sequence[str], names: Sequence[str]) -> tuple[ClassTarget, ...]:
    """Targets of classes, of texts CLASS=SHARE."""
    shares: dict[str, dict[str, float]] = {}
    for kind, text in (*(("precision", text) for text in precision), *(("recall", text) for text in recall)):
        name, _, share = text.rpartition("=")
        if name not in names or not re.fullmatch(r"0?\.\d+", share):
            known = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
            raise ConfigError(f"--target-{kind} {text}: give CLASS=SHARE, as {names[0]}=0.9; classes are {known}")
        of_class = shares.setdefault(name, {})
        if kind in of_class:
            raise ConfigError(f"--target-{kind} is given twice for the class {name!r}")
        of_class[kind] = float(share)
    return tuple(ClassTarget(list(names).index(name), name, **each) for name, each in shares.items())


def calibrate(
    bundle: Path,
    file: Path,
    /,
    *,
    rules: Annotated[Rules, Parameter(name="*", group=_RULES)] = Rules(),
    logits: Logits = False,
    held_out: HeldOut = False,
    seed: int = 0,
    allow_infeasible: bool = False,
    out: Annotated[Path, Parameter(group=OUTPUT)],
    overwrite: Overwrite = False,
    json: AsJson = False,
) -> int:
    """Give a bundle a gate with certified thresholds.

    Finds thresholds that keep a promise, certifies them on labelled rows that the fit has not seen, and writes a new
    bundle with that gate and its certificate. --alpha can be combined with one of --coverage, --target-accuracy and
    --max-undetected, or with --target-precision and --target-recall of classes; the promise is then about rows that
    pass both rules. An existing gate is replaced.

    A table says which share of the rows predicted as each class is accepted and right. A warning follows if a class is
    hardly ever accepted, or if always answering the most frequent class would keep the promise, too.

    --sets adds prediction sets for rejected rows, calibrated on a third of FILE that certifies nothing else. Alone it
    adds sets to the gate that the bundle has and keeps its certificate; FILE must then have new rows.

    If the labels do not support a promise, the result says how many labels it needs and which promise these labels
    support. Then no bundle is written and the exit status is 3, unless --allow-infeasible is given.

    Parameters
    ----------
    bundle
        Bundle to read.
    file
        Labelled predictions, .npz, .npy, .csv, .parquet or .jsonl.
    seed
        Seed of the split of FILE.
    allow_infeasible
        Write the bundle even if its gate lacks a rule that is not feasible.
    out
        Bundle to write.
    """
    refuse_existing(out, overwrite=overwrite)
    with on_interrupt(f"{out} was not {'changed' if out.exists() else 'written'}"):
        loaded = read_bundle(bundle, verify=False)
        targets = rules.targets(seed, loaded.class_names)
        predictions = read_rows(file, loaded, logits=logits)
        if held_out:
            predictions = held_out_rows(loaded, predictions)
        _refuse_fit_rows(loaded, predictions, str(file))
        found = _certify(loaded, predictions, rules, targets, seed)
        # The map is the same, so the regions where analysts reject are too.
        regions = () if loaded.gate is None else loaded.gate.regions
        version = None
        if found.feasible or allow_infeasible:
            gated = loaded.with_gate(replace(found.gate, regions=regions), found.certificate)
            version = write_bundle(out, gated, overwrite=overwrite)
    if json:
        print_json({**found.as_dict(), "bundle": None if version is None else str(out), "version": version})
    else:
        _print_certification(found, loaded.class_names)
        if version is not None and targets is not None:
            _print_by_class(found.effect["by_class"], loaded.class_names)
            _print_effect(found.certificate)
    if version is not None and found.effect:
        for text in _warnings(found, loaded.class_names):
            say(f"warning: {text}")
    if version is None:
        say(f"{out} was not written: a promise is not feasible; --allow-infeasible writes a gate without it")
        return _INFEASIBLE
    if loaded.gate is not None and targets is not None:
        kept = f"; its {len(regions)} regions were kept and are not part of the certificate" if regions else ""
        say(f"replaced the gate of {bundle}{kept}")
    say(f"wrote {out} (version {version[:12]})" + ("" if found.feasible else "; its gate lacks what is not feasible"))
    return 0


def _refuse_fit_rows(bundle: Bundle, predictions: Predictions, source: str) -> None:
    shared = fit_share(bundle, predictions)
    if shared > MAX_LEAK:
        text = (
            f"at least {shared:.1%} of the rows are fit rows of {bundle.path}, so a promise certified on them would "
            "not hold for new rows. Use rows that the fit has not seen; if this is the file of the fit, --held-out "
            "selects them."
        )
        raise defect("bundle_overlap", source, text, leak=shared)


def _certify(
    bundle: Bundle, predictions: Predictions, rules: Rules, targets: Targets | None, seed: int
) -> Certification:
    """The gate that the rules ask for, with its certificate."""
    segments = None if rules.by is None else values_of(predictions, rules.by)
    assert bundle.path is not None
    rows = Scorer.load(bundle.path).by_resolution(predictions, segments)
    if targets is None:
        assert rules.sets is not None
        own = None if bundle.gate is None else bundle.gate.resolution
        finest = next(iter(rows)) if own is None else own
        if finest not in rows:
            raise ConfigError(f"the gate is for rows of resolution {name_of(finest)}, which these rows do not have")
        return _only_sets(bundle, rows[finest], predictions, rules.sets, seed)
    calibrations = {level.number: level.calibration for level in bundle.levels}
    found = certify_levels(rows, targets, calibrations, by_class=rules.by_class)
    if found.certificate["outlier"] is not None:
        found.certificate["outlier"] |= {"score": "outlier_score", "sha256": bundle.splits.calibrate.sha256}
    return found


def _only_sets(
    bundle: Bundle, rows: ScoredPredictions, predictions: Predictions, coverage: float, seed: int
) -> Certification:
    """The gate of a bundle with prediction sets; ConfigError if these rows certified it."""
    if bundle.gate is None:
        raise ConfigError(
            "the bundle has no gate, so no row is rejected; give a rule, such as --target-accuracy, beside --sets"
        )
    certificate = bundle.manifest["certificate"] or {}
    if certificate.get("rows", {}).get("sha256") == rows.fingerprint()["sha256"]:
        raise ConfigError(
            "these rows certified the gate of the bundle, so they cannot calibrate its prediction sets; use other "
            "rows, or give --sets together with the rules"
        )
    if bundle.gate.segments is not None:
        # Without it the rows that segments reject would not be those that calibrate.
        values_of(predictions, bundle.gate.segments.key)
    gate, part = sets_for_gate(bundle.gate, in_segments(bundle.gate, rows, predictions.tags), coverage, seed=seed)
    return Certification(gate, {**certificate, "sets": part}, None)


def _print_certification(found: Certification, names: Sequence[str]) -> None:
    certificate = found.certificate
    if "resolution" in certificate:
        coarser = ", ".join(certificate["levels"])
        print(f"The rows have resolution {certificate['resolution']}." + (coarser and f" Certified too: {coarser}."))
    if found.choice is not None:
        print(f"Reject scores on {found.choice.n:,} rows with {found.choice.errors:,} errors, best first:")
        print_table(
            [
                (
                    row.name + (" *" if row.name == found.choice.chosen else ""),
                    *(f"{1000 * value:.3f}" for value in (row.augrc, row.gain, row.standard_error)),
                )
                for row in found.choice.rows
            ],
            ("score", "AUGRC x1000", f"better than {found.choice.baseline}", "standard error"),
        )
        print(f"* in use: {found.choice.baseline}, unless another is better by more than one standard error and,")
        print("  for an accuracy, its certificate accepts more rows.\n")
    for name, reason in (("outlier", "OUTLIER"), ("reject", "LOW_CONFIDENCE")):
        if certificate.get(name) is not None:
            print("\n".join(_describe_rule(reason, certificate[name])))
    if certificate.get("classes") is not None:
        by_class = certificate["classes"]
        print("\n".join(line for each in by_class["values"] for line in _describe_class(each, by_class["score"])))
        if by_class["feasible"]:
            print(f"  Promise: {by_class['promise']}.")
    reject = certificate.get("reject") or {}
    if reject.get("segments") is not None:
        _print_segments(reject["score"], reject["segments"])
    if reject.get("classes") is not None:
        part = reject["classes"]
        named = [{**each, "value": names[int(each["value"])]} for each in part["values"]]
        _print_segments(reject["score"], {**part, "values": named})
    if certificate.get("sets") is not None:
        print("\n".join(_describe_sets(certificate["sets"], names)))


def _print_segments(score: str, part: dict[str, Any]) -> None:
    """The thresholds of the largest segments."""
    together = "for all of them together" if part["key"] == PREDICTED_CLASS else "for each of them"
    sure = "on average" if part["confidence"] is None else f"with confidence {part['confidence']:.6g} {together}"
    shown = part["values"][:_MOST_SEGMENTS]
    print_table(
        [
            (
                each["value"],
                each["rows"],
                "pooled" if each["threshold"] is None else threshold_text(score, float(each["threshold"])),
                "" if each["coverage"] is None else f"{each['coverage']:.2%}",
                "" if each["labels_needed"] is None else f"{each['labels_needed']:,}",
            )
            for each in shown
        ],
        (part["key"], "rows", "threshold", "accepted", "labels needed"),
    )
    left = len(part["values"]) - len(shown)
    if left:
        print(f"... and {left:,} more, which the certificate lists.")
    print(f"Own thresholds hold {sure}. The pooled one is certified on {part['pooled']['certified_on']}.")


def _print_by_class(found: list[dict[str, Any]], names: Sequence[str]) -> None:
    """What the gate does to each predicted class, those accepted least first."""
    ranked = sorted(found, key=lambda each: each["coverage"])
    print_table(
        [
            (
                names[each["class"]],
                each["rows"],
                f"{each['coverage']:.1%}",
                "" if each["accuracy"] is None else f"{each['accuracy']:.2%}",
                each["outliers"],
                each["low_confidence"],
            )
            for each in ranked[:_MOST_CLASSES]
        ],
        ("predicted", "rows", "accepted", "right", "OUTLIER", "LOW_CONFIDENCE"),
    )
    if len(ranked) > _MOST_CLASSES:
        print(f"... and {len(ranked) - _MOST_CLASSES:,} more, which are accepted more often; --json lists them.")


def _warnings(found: Certification, names: Sequence[str]) -> list[str]:
    """Classes that are hardly ever accepted, and a promise that needs no classifier."""
    coverage, reject = found.certificate["observed"]["coverage"], found.certificate["reject"] or {}
    texts = [
        f"{each['coverage']:.1%} of {each['rows']:,} rows predicted as {names[each['class']]} are accepted, and "
        f"{coverage:.1%} of all rows; --by-class, --per-class or --target-recall may help"
        for each in found.effect["by_class"]
        if each["coverage"] < _HARDLY and coverage > _MOSTLY
    ]
    most = found.effect["majority"]
    is_accuracy = reject.get("kind") == "accuracy" and "classes" not in reject
    if is_accuracy and most is not None and most["share"] >= reject["promised"]:
        texts.append(
            f"{most['share']:.2%} of the accepted rows have the label {names[most['class']]}, so always answering that "
            f"keeps the promised {reject['promised']:.6g}, too; --per-class promises it for each predicted class"
        )
    return texts


def _print_effect(certificate: dict[str, Any]) -> None:
    """What the gate does on the rows that certified it."""
    rows, observed = certificate["rows"], certificate["observed"]
    accuracy = "" if observed["accuracy"] is None else f", {observed['accuracy']:.2%} of them right"
    print(f"The gate accepts {observed['coverage']:.2%} of the {rows['certifying']:,} certifying rows{accuracy}.")
    print("These promises hold while traffic is like these rows. They say nothing about a single row, and do not hold")
    print("after a drift: monitor the p-values and calibrate again.")


def _describe_class(part: dict[str, Any], score: str) -> list[str]:
    """Precision and recall of a class, or what these rows support instead."""
    promise = " and ".join(part["promises"])
    if part["feasible"]:
        low, high = (threshold_text(score, float(part["range"][k])) for k in (0, -1))
        reach = "" if low == high else f", up to {high} keeps both"
        return [f"LOW_CONFIDENCE: reject rows predicted as {part['name']} if {score} < {low}{reach}."]
    lines = [f"LOW_CONFIDENCE: NOT FEASIBLE for {part['name']}.", f"  Cannot promise that {promise}."]
    for name in ("precision", "recall"):
        each = part.get(name)
        if each is not None and not each["feasible"]:
            text = f"  {name} {each['promised']:.6g}: these {each['n']:,} rows support {each['attainable'] or 'none'}"
            needed = each["labels_needed"]
            lines.append(text + ("." if needed is None else f", {needed:,} like them would support it 4 times in 5."))
    if "recall_at_precision" in part:
        lines.append(
            f"  precision {part['precision']['promised']:.6g} leaves a recall of {part['recall_at_precision']:.3f}, "
            f"recall {part['recall']['promised']:.6g} a precision of {part['precision_at_recall']:.3f}."
        )
    return [*lines, "  What rows support was found by looking at them, so certify it on others."]


def _describe_sets(part: dict[str, Any], names: Sequence[str]) -> list[str]:
    """Prediction sets and their promise, or why there are none."""
    rejected = f"{part['n']:,} of {part['rows']:,} rows, drawn by seed, are rejected and calibrate the sets"
    if not part["feasible"]:
        needed = f"this needs {part['rejected_needed']:,} rejected rows that certify nothing else"
        if part["labels_needed"] is not None:
            needed += f", so about {part['labels_needed']:,} rows like these in place of {part['rows']:,}"
        return ["SETS: NOT FEASIBLE.", f"  Cannot promise that {part['promise']}:", f"  {rejected}; {needed}."]
    low, high = part["range"]
    return [
        f"SETS: {rejected}; they have {part['mean_size']:.2f} classes on average.",
        f"  Promise: {part['promise']}.",
        f"  One calibration on {part['n']:,} rows has a coverage from {low:.3f} to {high:.3f} in 9 of 10 cases.",
        *_describe_worst(part["worst_class"], names),
    ]


def _describe_worst(worst: dict[str, Any] | None, names: Sequence[str]) -> list[str]:
    """The class that the sets cover least, if a class has rows enough."""
    if worst is None:
        return []
    share = f"{worst['coverage']:.3f} of its {worst['rows']:,} rejected rows"
    return [f"  The promise is about all classes together; the worst, {names[worst['class']]}, is covered in {share}."]


def _describe_rule(reason: str, part: dict[str, Any]) -> list[str]:
    """A rule and its promise, or why there is none."""
    if part["feasible"]:
        if reason == "OUTLIER":
            rule = f"p-value of {part['score']} <= {part['p_value']:.6g}, {part['n']:,} calibration rows"
        else:
            rule = f"{part['score']} < {threshold_text(part['score'], float(part['threshold']))}, {part['n']:,} rows"
        return [f"{reason}: reject if {rule}.", f"  Promise: {part['promise']}."]
    if reason == "OUTLIER":
        needed = f"this needs {part['rows_needed']:,} calibration rows, and the bundle has {part['n']:,}"
    elif part["labels_needed"] is None:
        needed = "not attainable with this score, however many labels like these there are"
    else:
        needed = f"with {part['labels_needed']:,} labels like these {part['n']:,} it would be feasible 4 times in 5"
    lines = [f"{reason}: NOT FEASIBLE.", f"  Cannot promise that {part['promise']}: {needed}."]
    if reason == "OUTLIER" and part["attainable"] is not None:
        lines.append(f"  The smallest alpha that this bundle supports is {part['attainable']:.6g}.")
    elif part["attainable"] is not None:
        bound = "at least" if part["kind"] in ("accuracy", "coverage") else "at most"
        lines.append(f"  These rows support {bound} {part['attainable']:.6g} instead. It was found by looking at them,")
        lines.append("  so certify it on other rows.")
    return lines
