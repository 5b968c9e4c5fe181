"""`darksight calibrate`: give a bundle a gate whose promises are certified on labelled rows."""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from darksight_core.bundle import BundleOverlapError, read_bundle, refuse_existing, write_bundle
from darksight_core.gate.certify import CHOICE_ROWS, Certification, Rules, ScoredRows, certify
from darksight_core.gate.gate import REJECT_SCORES
from darksight_core.predictions.split import MAX_LEAK
from darksight_core.runtime.scorer import Scorer
from darksight_service.cli.console import print_json, print_table, say
from darksight_service.cli.labelled import fit_share, held_out, read_rows

__all__ = ["add_parser", "run"]


def add_parser(commands: Any) -> None:
    """Add `calibrate` to the command line."""
    parser = commands.add_parser(
        "calibrate",
        help="give a bundle a gate with a certified threshold",
        description="Finds thresholds that keep a promise, certified on labelled rows which the fit has not seen, and "
        "writes a new bundle with that gate and its certificate. An outlier rule (--alpha) and one of the other rules "
        "may be combined; the promise is then about rows that pass both. A gate that the bundle has already is "
        "replaced. A promise that the rows cannot carry is not made: the result says so, with the number of labels it "
        "would take, and the gate lacks that rule.",
    )
    parser.add_argument("bundle", type=Path, metavar="BUNDLE")
    parser.add_argument("labelled", type=Path, metavar="LABELLED", help=".npz, .npy, .csv or .parquet with labels")
    parser.add_argument("--alpha", type=float, help="call at most this share of usual rows outliers")
    rules = parser.add_mutually_exclusive_group()
    rules.add_argument("--coverage", type=float, help="accept at least this share of rows, on average")
    rules.add_argument(
        "--target-accuracy", type=float, help="at least this share of accepted rows is right, with confidence 1 - delta"
    )
    rules.add_argument(
        "--max-undetected", type=float, help="at most this share of all rows is accepted and wrong, on average"
    )
    parser.add_argument(
        "--delta",
        type=float,
        help="chance that a promise is broken: of --target-accuracy (default 0.05) and, if given, of --alpha, which "
        "else holds on average",
    )
    parser.add_argument(
        "--score",
        default="auto",
        choices=["auto", *REJECT_SCORES],
        metavar="NAME",
        help=f"reject score: auto chooses by cross-validated AUGRC on a third of the rows; {', '.join(REJECT_SCORES)}",
    )
    parser.add_argument("--held-out", action="store_true", help="LABELLED is the file of the fit: leave its rows out")
    parser.add_argument("--out", type=Path, required=True, metavar="NEWBUNDLE", help="bundle to write")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing file")
    parser.add_argument(
        "--logits", action="store_true", help="the values of LABELLED are logits (.npy cannot say so itself)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the split of LABELLED (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Certify a gate and write it."""
    args.on_interrupt = f"{args.out} was not written" + (" and is as it was" if args.out.exists() else "")
    rules = Rules(
        alpha=args.alpha,
        coverage=args.coverage,
        accuracy=args.target_accuracy,
        undetected=args.max_undetected,
        delta=args.delta,
        score=args.score,
        seed=args.seed,
    )
    refuse_existing(args.out, overwrite=args.overwrite)
    bundle = read_bundle(args.bundle, verify=False)
    predictions = read_rows(args.labelled, bundle, logits=args.logits)
    if args.held_out:
        predictions = held_out(bundle, predictions)
    shared = fit_share(bundle, predictions)
    if shared > MAX_LEAK:
        raise BundleOverlapError(
            f"{args.labelled}: {shared:.1%} or more of the rows are fit rows of {args.bundle}, so what they promise "
            "would not hold for new rows. Use rows that the fit has not seen; if this is the file of the fit, "
            "--held-out takes only those.",
            source=str(args.labelled),
            leak=shared,
        )
    rows = ScoredRows.of(predictions, Scorer.load(args.bundle).score(predictions.probs))
    found = certify(rows, rules, len(bundle.calibration))
    if found.certificate["outlier"] is not None:
        found.certificate["outlier"]["score"] = "outlier_score"
        found.certificate["outlier"]["sha256"] = bundle.splits.calibrate.sha256
    # The map is the same, and so are the parts of it where an analyst refuses.
    regions = () if bundle.gate is None else bundle.gate.regions
    gate = replace(found.gate, regions=regions)
    version = write_bundle(args.out, bundle.with_gate(gate, found.certificate), overwrite=args.overwrite)
    if bundle.gate is not None:
        kept = f" except for its {len(regions)} regions, of which the certificate knows nothing" if regions else ""
        say(f"the gate of {args.bundle} was replaced, not extended{kept}")
    if args.json:
        print_json({**found.as_dict(), "bundle": str(args.out), "version": version})
    else:
        _print(found)
    say(f"wrote {args.out} (version {version[:12]})")
    return 0


def _print(found: Certification) -> None:
    certificate = found.certificate
    rows = certificate["rows"]
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
        print(f"* chosen; {found.choice.baseline} unless another is better by more than a standard error.\n")
    elif certificate["reject"] is not None and certificate["reject"]["score"] == "msp" and rows["n"] < CHOICE_ROWS:
        print(f"{rows['n']} rows are too few to choose a score; msp is used.\n")
    for name, title in (("outlier", "OUTLIER"), ("reject", "LOW_CONFIDENCE")):
        if certificate[name] is not None:
            print("\n".join(_describe(title, certificate[name])))
    seen = certificate["observed"]
    right = "" if seen["accuracy"] is None else f", {seen['accuracy']:.2%} of them right"
    print(f"On the {rows['certifying']:,} certifying rows the gate accepts {seen['coverage']:.2%}{right}.")
    print("All this holds while traffic is like these rows. It says nothing about a single row, and nothing at all")
    print("after a drift: watch the p-values, and calibrate again.")


def _describe(title: str, part: dict[str, Any]) -> list[str]:
    """A rule in words: what it does and promises, or why there is none."""
    if part["feasible"]:
        if title == "OUTLIER":
            rule = f"p-value of {part['score']} <= {part['p_value']:.6g}, {part['n']:,} calibration rows"
        else:
            threshold = float(part["threshold"])
            rule = f"{part['score']} <= {threshold:.6g}, {part['n']:,} rows"
            if part["score"] == "msp":
                # The score is the log-odds of what people know as the largest probability.
                rule += f"; that is a largest probability of {0.5 * (1.0 + math.tanh(0.5 * threshold)):.6g}"
        return [f"{title}: reject if {rule}.", f"  Promise: {part['promise']}."]
    if title == "OUTLIER":
        needed = f"it takes {part['rows_needed']:,} calibration rows, and the bundle has {part['n']:,}"
    elif part["labels_needed"] is None:
        needed = "no part of the rows comes near it, so more labels would not help; ask for less, or improve the score"
    else:
        needed = f"it would take about {part['labels_needed']:,} rows or more, if they are like these {part['n']:,}"
    return [
        f"{title}: NOT FEASIBLE, the gate has no such rule and rejects no row for this reason.",
        f"  Cannot promise that {part['promise']}: {needed}.",
    ]
