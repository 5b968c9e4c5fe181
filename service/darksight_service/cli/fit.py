"""`darksight fit`: from a predictions file to a bundle."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from darksight_core.bundle import refuse_existing
from darksight_core.errors import ConfigError
from darksight_core.fit.options import add_fit_options, out_path
from darksight_core.predictions import find_files, read_predictions
from darksight_service.cli.console import Bars, HelpFormatter, print_json, print_table, require, say
from darksight_service.scoring.files.tables import atomic, check_place

if TYPE_CHECKING:
    from darksight_core.fit import FitConfig
    from darksight_core.fit.figures import FitReport

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
    add_fit_options(parser)
    parser.add_argument(
        "--nproc", type=int, default=1, metavar="N", help="processes on this machine; torchrun starts them on several"
    )
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw the map of the fitted rows")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress bars")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Fit and write a bundle."""
    # Whatever can be refused without torch is: it takes seconds to import.
    files = find_files(args.predictions)
    if args.nproc < 1:
        raise ConfigError(f"--nproc is {args.nproc}; it must be at least 1")
    is_svd = args.method == "svd"
    out = out_path(args, ".points.npz" if is_svd else ".safetensors")
    if is_svd:
        _refuse_svd(args, files, out)
    refuse_existing(out, overwrite=args.overwrite)
    if args.plot is not None:
        check_place(args.plot, overwrite=True)
    require("torch", "fit")
    if args.plot is not None:
        require("matplotlib", "report")
    from darksight_core.fit.distributed.job import checkpoint_folder, config_of, launch, run_fit

    if is_svd:
        return _run_svd(args, config_of(args), files[0], out)
    args.on_interrupt = f"{out} was not written" + (" and is as it was" if out.exists() else "")
    # The processes are given the same command; torchrun has told them that they are a team.
    if args.nproc > 1 and "WORLD_SIZE" not in os.environ:
        args.on_interrupt += f"; finished steps are in {checkpoint_folder(out)}, --resume goes on with them"
        return launch(["darksight_service", *sys.argv[1:]], args.nproc, out)
    with Bars(quiet=args.quiet) as bars:
        report = run_fit(args, bars)
    if report is None:
        return 0
    if args.plot is not None:
        picture(report, args.plot)
    if args.json:
        print_json(report.as_dict())
    else:
        print_table(*summary(report))
        say(f"wrote {report.bundle} (version {report.version[:12]})")
    return 0


def _refuse_svd(args: argparse.Namespace, files: tuple[Path, ...], out: Path) -> None:
    """What the closed form cannot do."""
    if len(files) > 1 or args.nproc > 1 or args.sample is not None:
        raise ConfigError("method svd takes one file, in one process; use method fast for more")
    if out.suffix != ".npz":
        raise ConfigError(f"method svd has no density, so it makes no bundle; let --out end in .npz, not {out.name}")


def _run_svd(args: argparse.Namespace, config: FitConfig, file: Path, out: Path) -> int:
    """The closed form: points in a .npz, because without a density there is nothing to serve."""
    import numpy as np

    from darksight_core.evaluation.measures import fidelity
    from darksight_core.fit import fit_map
    from darksight_core.simplex import log_probs, temper

    predictions = read_predictions(file, kind="logits" if args.logits else None)
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
    from darksight_service.report.map_picture import draw_map, save_map

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
