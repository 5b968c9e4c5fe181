"""`darksight fit`: from a predictions file to a bundle."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
from cyclopts import Group, Parameter

from darksight_core.bundle import refuse_existing
from darksight_core.errors import ConfigError
from darksight_core.evaluation.fidelity import fidelity
from darksight_core.fit.config import FitConfig
from darksight_core.fit.options import BundleOptions, FitOptions, RowOptions
from darksight_core.predictions import find_files, read_predictions
from darksight_core.rows.simplex import log_probs, temper
from darksight_service.cli.console import Bars, on_interrupt, print_json, print_table, require, say
from darksight_service.cli.options import INPUT, OUTPUT, AsJson, Quiet
from darksight_service.scoring.files.tables import atomic, check_output

if TYPE_CHECKING:
    from darksight_core.fit.figures import FitReport

__all__ = ["draw_report", "fit", "fit_table"]

_MAP = Group("Map", sort_key=2)


def fit(
    files: list[str],
    /,
    *,
    rows: Annotated[RowOptions, Parameter(name="*", group=INPUT)] = RowOptions(),
    config: Annotated[FitConfig, Parameter(name="*", group=_MAP, negative_bool="no-")] = FitConfig(),
    bundle: Annotated[BundleOptions, Parameter(name="*", group=OUTPUT)] = BundleOptions(),
    nproc: int = 1,
    plot: Annotated[Path | None, Parameter(group=OUTPUT)] = None,
    json: AsJson = False,
    quiet: Quiet = False,
) -> int:
    """Fit a map to predictions and write a bundle.

    Fits the map to a part of the rows, trains the network f_p that places new rows, calibrates p-values on rows that no
    other step has used, and writes everything to one file, the bundle.

    Parameters
    ----------
    files
        Predictions: one .npz, .npy, .csv, .parquet or .jsonl file, several .parquet files, or a quoted pattern such as
        'day/*.parquet'.
    nproc
        Processes on this machine. Use torchrun for several machines.
    plot
        PNG file for a picture of the map.
    """
    options = FitOptions(tuple(files), rows, config, bundle)
    # Refuse what can be refused before torch is imported, which takes seconds.
    found = find_files(files)
    if nproc < 1:
        raise ConfigError(f"--nproc is {nproc}; it must be at least 1")
    rows.shares()
    is_svd = config.method == "svd"
    out = options.out(".points.npz" if is_svd else ".safetensors")
    if is_svd:
        _check_svd(options, found, nproc, out)
    refuse_existing(out, overwrite=bundle.overwrite)
    if plot is not None:
        check_output(plot, overwrite=True)
        require("matplotlib", "report")
    require("torch", "fit")
    effect = f"{out} was not " + ("changed" if out.exists() else "written")
    with on_interrupt(effect):
        if is_svd:
            _fit_svd(options, found[0], out, json=json)
            return 0
        # torchrun runs this same command in each process, and tells it so by WORLD_SIZE.
        if nproc > 1 and "WORLD_SIZE" not in os.environ:
            return _launch(nproc, out, effect)
        _fit_bundle(options, plot, json=json, quiet=quiet)
    return 0


def _launch(nproc: int, out: Path, effect: str) -> int:
    from darksight_core.fit.job import checkpoint_folder, launch

    with on_interrupt(f"{effect}; its checkpoints are in {checkpoint_folder(out)}, rerun with --resume to continue"):
        return launch(["darksight_service.cli", *sys.argv[1:]], nproc, out)


def _fit_bundle(options: FitOptions, plot: Path | None, *, json: bool, quiet: bool) -> None:
    from darksight_core.fit.job import run_fit

    with Bars(quiet=quiet) as bars:
        report = run_fit(options, bars)
    if report is None:
        return
    if plot is not None:
        draw_report(report, plot)
    for warning in report.warnings:
        say(f"warning: {warning}")
    if json:
        print_json(report.as_dict())
    else:
        print_table(*fit_table(report))
        print(f"The rows have resolution {report.resolution}; p-values are calibrated for {report.levels}.")
        say(f"wrote {report.bundle} (version {report.version[:12]})")


def _check_svd(options: FitOptions, files: tuple[Path, ...], nproc: int, out: Path) -> None:
    if len(files) > 1 or nproc > 1 or options.rows.sample is not None:
        raise ConfigError("--method svd fits one file in one process; use --method fast")
    if out.suffix != ".npz":
        raise ConfigError(f"--method svd has no density and writes points, not a bundle; end --out {out.name} in .npz")


def _fit_svd(options: FitOptions, file: Path, out: Path, *, json: bool) -> None:
    """Write the points of the closed form to a .npz file: without a density there is nothing to serve."""
    from darksight_core.fit import fit_map

    predictions = read_predictions(file, kind="logits" if options.rows.logits else None)
    fitted = fit_map(predictions.probs, options.config)
    log_pi = temper(log_probs(predictions.probs), options.config.temperature)
    figures = fidelity(log_pi, fitted.student.log_posterior(fitted.points), predictions.labels).as_dict()
    with atomic(out) as partial:
        np.savez(partial, points=fitted.points)
    if json:
        print_json({**figures, "seconds": fitted.seconds, "bundle": None, "version": None, "points": str(out)})
    else:
        print_table(list(figures.items()), ("measure", "value"))
        say(f"wrote {out}")


def fit_table(report: FitReport) -> tuple[list[tuple[object, ...]], tuple[str, ...]]:
    """Rows and header of the table of figures."""
    rows: list[tuple[object, ...]] = [
        (stage.name, stage.fit_kl_sym, stage.heldout_kl_sym, _percent(stage.fit_agree), _percent(stage.heldout_agree))
        for stage in report.stages
    ]
    return rows, ("stage", "KL_sym, fit rows", "held-out rows", "agreement, fit rows", "held-out rows")


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{100 * share:.2f}%"


def draw_report(report: FitReport, path: Path) -> None:
    """Draw the map of a finished fit to a PNG file."""
    from darksight_core.pictures.map_picture import draw_map, save_map

    reference = report.reference
    title = f"{len(reference.points):,} predictions on the map; KL_sym {report.kl_sym:.4f}"
    figure = draw_map(
        report.student,
        reference.points,
        reference.predicted,
        reference.labels,
        report.class_names,
        columns=report.columns,
        bound=report.bound,
        title=title,
    )
    save_map(figure, path)
