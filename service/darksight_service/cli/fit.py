"""`darksight fit`: from a predictions file to a bundle."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from darksight_core.errors import ConfigError
from darksight_core.predictions import Predictions, read_predictions
from darksight_service.cli.console import Bars, HelpFormatter, print_json, print_table, require, say, shares
from darksight_service.tables import atomic

if TYPE_CHECKING:
    from darksight_core.fit import FitConfig
    from darksight_core.fit.pipeline import FitReport

__all__ = ["add_parser", "picture", "run", "summary"]


def add_parser(commands: Any) -> None:
    """Add `fit` to the command line."""
    parser = commands.add_parser(
        "fit",
        help="fit a map to predictions and write a bundle",
        description="Fits the map to part of the rows, distils it into f_p, fine-tunes, calibrates on rows no other "
        "step has seen, and writes one file, the bundle.",
        formatter_class=HelpFormatter,
    )
    parser.add_argument("predictions", type=Path, metavar="FILE", help=".npz, .npy, .csv or .parquet")
    parser.add_argument(
        "--out", type=Path, metavar="BUNDLE", help="bundle to write (default: FILE's name with .safetensors)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an existing bundle")
    parser.add_argument(
        "--logits", action="store_true", help="the values of FILE are logits (.npy cannot say so itself)"
    )
    parser.add_argument("--method", choices=["fast", "paper", "paper-cd", "svd"], default="fast", help="how to fit")
    parser.add_argument("--dof", type=float, default=2.0, help="degrees of freedom of the class densities")
    parser.add_argument("--scale", choices=["fixed", "shared", "per-class"], default="fixed", help="class scales")
    parser.add_argument("--temperature", type=float, default=1.0, help="soften rows; above 1 spreads points apart")
    parser.add_argument("--classes", metavar="A,B,...", help="map these classes only (names or numbers)")
    parser.add_argument("--spread-penalty", type=float, default=4e-8, help="larger gives a more compact map")
    parser.add_argument("--starts", type=int, help="random starts of fast (default: by the number of classes)")
    parser.add_argument("--epochs", type=int, default=1_000, help="epochs of the paper methods")
    parser.add_argument("--anneal", action="store_true", help="lower the temperature from 20 to 1 (paper methods)")
    parser.add_argument(
        "--init", choices=["gauss", "centre"], default="centre", help="where points start (paper methods)"
    )
    parser.add_argument(
        "--split", type=shares, default=(0.6, 0.3, 0.1), help="share of rows to fit, calibrate and test"
    )
    parser.add_argument("--refine-steps", type=int, default=5, help="Newton steps when new rows are placed")
    parser.add_argument("--seed", type=int, default=0, help="same rows, seed and machine give the same bundle")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw the map of the fitted rows")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress bars")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Fit and write a bundle."""
    require("torch", "fit")
    if args.plot is not None:
        require("matplotlib", "report")
    from darksight_core.fit import FitConfig
    from darksight_core.fit.pipeline import fit_bundle, refuse_existing

    out = args.out or args.predictions.with_suffix(".safetensors")
    args.on_interrupt = f"{out} was not written" + (" and is as it was" if out.exists() else "")
    config = FitConfig(
        method=args.method,
        dof=args.dof,
        scale=args.scale,
        temperature=args.temperature,
        seed=args.seed,
        device=args.device,
        spread_penalty=args.spread_penalty,
        starts=args.starts,
        epochs=args.epochs,
        anneal=args.anneal,
        init=args.init,
    )
    if args.method == "svd":
        return _run_svd(args, config)
    refuse_existing(out, overwrite=args.overwrite)
    predictions = read_predictions(args.predictions, kind="logits" if args.logits else None)
    columns = None if args.classes is None else _columns(args.classes, predictions)
    with Bars(quiet=args.quiet) as bars:
        report = fit_bundle(
            predictions,
            out,
            config=config,
            columns=columns,
            shares=args.split,
            refine_steps=args.refine_steps,
            overwrite=args.overwrite,
            report=bars,
        )
    if args.plot is not None:
        picture(report, args.plot)
    if args.json:
        print_json(report.as_dict())
    else:
        print_table(*summary(report))
        say(f"wrote {report.bundle} (version {report.version[:12]})")
    return 0


def _run_svd(args: argparse.Namespace, config: FitConfig) -> int:
    """The closed form: points in a .npz, because without a density there is nothing to serve."""
    import numpy as np

    from darksight_core.fit import fit_map
    from darksight_core.fit.pipeline import refuse_existing
    from darksight_core.measures import fidelity
    from darksight_core.simplex import log_probs, temper

    out = args.out or args.predictions.with_suffix(".points.npz")
    if out.suffix != ".npz":
        raise ConfigError(f"method svd has no density, so it makes no bundle; let --out end in .npz, not {out.name}")
    refuse_existing(out, overwrite=args.overwrite)
    predictions = read_predictions(args.predictions, kind="logits" if args.logits else None)
    fitted = fit_map(predictions.probs, config)
    log_pi = temper(log_probs(predictions.probs), config.temperature)
    figures = fidelity(log_pi, fitted.student.log_posterior(fitted.points), predictions.labels)
    with atomic(out) as partial:
        np.savez(partial, points=fitted.points)
    if args.json:
        print_json(
            {**figures.as_dict(), "seconds": fitted.seconds, "bundle": None, "version": None, "points": str(out)}
        )
    else:
        print_table(list(figures.as_dict().items()), ("measure", "value"))
        say(f"wrote {out}")
    return 0


def _columns(text: str, predictions: Predictions) -> tuple[int, ...]:
    """Class names or numbers, separated by commas, as column numbers."""
    found = []
    for name in (part.strip() for part in text.split(",")):
        if name in predictions.class_names:
            found.append(predictions.class_names.index(name))
        elif name.isdigit() and int(name) < predictions.n_classes:
            found.append(int(name))
        else:
            raise ConfigError(f"--classes names {name!r}, which is no class of {predictions.source}")
    if len(set(found)) < max(2, len(found)):
        raise ConfigError(f"--classes {text} must name at least two different classes, each once")
    return tuple(found)


def summary(report: FitReport) -> tuple[list[tuple[object, ...]], tuple[str, ...]]:
    """Rows and header of the table of figures."""
    rows: list[tuple[object, ...]] = [
        (stage.name, stage.fit_kl_sym, stage.heldout_kl_sym, _percent(stage.fit_agree), _percent(stage.heldout_agree))
        for stage in report.stages
    ]
    return rows, ("stage", "KL_sym, fit rows", "held-out rows", "agree, fit rows", "held-out rows")


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{100 * share:.2f}%"


def picture(report: FitReport, path: Path) -> None:
    """Draw the map of a finished fit."""
    from darksight_service.plot import draw_map, save_map

    reference = report.reference
    title = f"{len(reference.points):,} predictions on the map; KL_sym {report.kl_sym:.4f}"
    figure = draw_map(
        report.student,
        reference.points,
        reference.predicted,
        reference.labels,
        report.class_names,
        columns=report.columns,
        title=title,
    )
    save_map(figure, path)
