"""`darksight report`: one page about a bundle on labelled rows."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

from darksight_core.bundle import Bundle, read_bundle
from darksight_core.errors import ConfigError
from darksight_core.predictions.split import MAX_LEAK
from darksight_core.runtime.scorer import Scorer
from darksight_core.simplex import Floats
from darksight_service.cli.console import Bars, print_json, require, say
from darksight_service.cli.labelled import fit_share, held_out, read_rows
from darksight_service.scoring.files.tables import atomic, check_place

__all__ = ["add_parser", "run"]


def add_parser(commands: Any) -> None:
    """Add `report` to the command line."""
    parser = commands.add_parser(
        "report",
        help="write a page about a bundle on labelled predictions",
        description="Places the rows of FILE on the map of BUNDLE and writes one HTML file: the map, how faithful it "
        "is, which score finds mistakes, what t-SNE and others make of the same rows, and the rows worth a look. The "
        "page needs no server and asks none for anything.",
    )
    parser.add_argument("bundle", type=Path, metavar="BUNDLE")
    parser.add_argument("predictions", type=Path, metavar="FILE", help=".npz, .npy, .csv or .parquet, with labels")
    parser.add_argument("--out", type=Path, required=True, metavar="HTML", help="page to write")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing page")
    parser.add_argument(
        "--ood", type=Path, nargs="+", default=[], action="extend", metavar="FILE", help="predictions for foreign input"
    )
    parser.add_argument("--features", type=Path, metavar="FILE", help="features (n, d) that --compare full may read")
    parser.add_argument("--images", type=Path, metavar="FILE", help="pictures (n, height, width[, 3]) for thumbnails")
    parser.add_argument(
        "--path", nargs=2, action="append", default=[], metavar=("A", "B"),
        help="walk from class A to class B (names or numbers); repeatable (default: the most confused pairs)",
    )  # fmt: skip
    parser.add_argument(
        "--path-points",
        nargs="+",
        action="append",
        default=[],
        metavar="X,Y",
        help="walk along these places of the map",
    )
    parser.add_argument(
        "--compare", choices=["none", "quick", "full"], default="quick",
        help="other methods on the same rows: none; quick: PCA and t-SNE of probabilities; full: t-SNE at three "
        "perplexities, UMAP and PCA on probabilities, logits and features (%(default)s)",
    )  # fmt: skip
    parser.add_argument("--cache", type=Path, metavar="FOLDER", help="where slow results are kept (user cache)")
    parser.add_argument("--figures", type=Path, metavar="FOLDER", help="write each figure as .png and .svg too")
    parser.add_argument("--held-out", action="store_true", help="FILE is the file of the fit: leave its rows out")
    parser.add_argument(
        "--logits", action="store_true", help="the values of the files are logits (.npy cannot say so itself)"
    )
    parser.add_argument("--title", default="", help="heading of the page")
    parser.add_argument("--seed", type=int, default=0, help="seed of draws and methods (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print all numbers as JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress bars")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Make the page."""
    require("plotly", "report")
    from darksight_service.report import all_figures, build_page, find, write_pictures
    from darksight_service.report.export import find_browser
    from darksight_service.report.images import read_features, read_images

    started = time.perf_counter()
    args.on_interrupt = f"{args.out} was not written"
    _refuse(args)
    if args.figures is not None:
        find_browser()
    bundle = read_bundle(args.bundle, verify=False)
    predictions = read_rows(args.predictions, bundle, logits=args.logits)
    foreign = {str(path): read_rows(path, bundle, logits=args.logits) for path in args.ood}
    features = None if args.features is None else read_features(args.features, len(predictions))
    images = None if args.images is None else read_images(args.images, len(predictions))
    pairs = [(_shown_class(bundle, first), _shown_class(bundle, second)) for first, second in args.path]
    curves = [_curve(places) for places in args.path_points]
    if args.held_out:
        kept = held_out(bundle, predictions)
        rows = np.flatnonzero(np.isin(predictions.row_hashes(), kept.row_hashes()))
        if len(rows) != len(kept) and (features is not None or images is not None):
            raise ConfigError("--held-out with --features or --images needs rows that differ from each other")
        features = None if features is None else features[rows]
        images = None if images is None else images[rows]
        predictions = kept
    elif fit_share(bundle, predictions) > MAX_LEAK:
        say("some of these rows were fitted, so figures of the map are better than on new rows; see --held-out")
    with Bars(quiet=args.quiet) as bars:
        found = find(
            bundle,
            Scorer.load(args.bundle),
            predictions,
            foreign,
            features=features,
            level=args.compare,
            paths=pairs,
            curves=curves,
            cache=args.cache or _cache(args.compare),
            seed=args.seed,
            report=bars,
        )
    figures = all_figures(found)
    page = build_page(found, figures, images, title=args.title)
    with atomic(args.out) as partial:
        partial.write_text(page, encoding="utf-8")
    if args.figures is not None:
        write_pictures(page, [figure.name for figure in figures], args.figures)
        say(f"wrote {2 * len(figures)} pictures to {args.figures}")
    if args.json:
        print_json(found.as_dict())
    size = args.out.stat().st_size / 1e6
    say(f"wrote {args.out} ({size:.1f} MB, {len(figures)} figures, {time.perf_counter() - started:.1f} s)")
    return 0


def _refuse(args: argparse.Namespace) -> None:
    """Complain about places to write to before any work."""
    check_place(args.out, overwrite=args.overwrite)
    if args.figures is not None and args.figures.exists() and not args.figures.is_dir():
        raise ConfigError(f"{args.figures} is no folder; --figures needs one")


def _cache(level: str) -> Path | None:
    if level == "none":
        return None
    require("sklearn", "fit")
    from darksight_core.evaluation.baselines.embeddings import cache_folder

    return cache_folder()


def _shown_class(bundle: Bundle, name: str) -> int:
    """A class that the map shows, by name or number."""
    columns = bundle.embedder.columns
    shown = list(range(bundle.embedder.n_inputs)) if columns is None else list(columns)
    names = list(bundle.class_names)
    column = names.index(name) if name in names else int(name) if name.isdigit() else -1
    if column not in shown:
        known = ", ".join(names[k] for k in shown[:12]) + (", ..." if len(shown) > 12 else "")
        raise ConfigError(f"--path names {name!r}, which is no class of the map; it has {known}")
    return shown.index(column)


def _curve(texts: list[str]) -> Floats:
    """Places from x,y texts."""
    try:
        places = np.array([[float(part) for part in text.split(",")] for text in texts], dtype=np.float64)
    except ValueError:
        places = np.empty((0, 0))
    if places.ndim != 2 or places.shape[1:] != (2,) or len(places) < 2 or not np.isfinite(places).all():
        raise ConfigError(f"--path-points {' '.join(texts)}: give two or more places as x,y, such as 0,1 2.5,-3")
    return places
