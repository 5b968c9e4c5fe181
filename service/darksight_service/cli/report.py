"""`darksight report`: an HTML page about a bundle on labelled rows."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from cyclopts import Group, Parameter
from numpy.typing import NDArray

from darksight_core.bundle import Bundle, read_bundle
from darksight_core.errors import ConfigError, did_you_mean
from darksight_core.predictions import Predictions
from darksight_core.predictions.sketch import MAX_LEAK
from darksight_core.rows.simplex import Floats
from darksight_core.rows.tags import REFERENCE
from darksight_core.runtime.scorer import Scorer
from darksight_service.cli.console import Bars, on_interrupt, print_json, require, say
from darksight_service.cli.options import INPUT, OUTPUT, AsJson, Files, HeldOut, Logits, Overwrite, Quiet
from darksight_service.cli.rows import fit_share, held_out_rows, read_rows, values_of
from darksight_service.report import all_figures, build_page, find, write_pictures
from darksight_service.report.export import find_browser
from darksight_service.report.images import ImageArray, Inputs, ReferenceFiles, read_features, read_images
from darksight_service.report.methods import METHOD_ROWS
from darksight_service.scoring.files.tables import atomic, check_output

__all__ = ["report"]

_CONTENT = Group("Content", sort_key=2)


def report(
    bundle: Path,
    file: Path,
    /,
    *,
    ood: Annotated[Files, Parameter(group=INPUT)] = (),
    features: Annotated[Path | None, Parameter(group=INPUT)] = None,
    images: Annotated[Path | None, Parameter(group=INPUT)] = None,
    reference_dir: Annotated[Path | None, Parameter(group=INPUT)] = None,
    logits: Logits = False,
    held_out: HeldOut = False,
    compare: Annotated[Literal["none", "quick", "full"], Parameter(group=_CONTENT)] = "quick",
    compare_rows: Annotated[int, Parameter(group=_CONTENT)] = METHOD_ROWS,
    path: Annotated[tuple[tuple[str, str], ...], Parameter(group=_CONTENT, metavar="A B")] = (),
    path_points: Annotated[
        tuple[str, ...], Parameter(group=_CONTENT, metavar="'X,Y X,Y ...'", allow_leading_hyphen=True)
    ] = (),
    title: Annotated[str, Parameter(group=_CONTENT)] = "",
    seed: int = 0,
    cache: Path | None = None,
    out: Annotated[Path, Parameter(group=OUTPUT)],
    figures: Annotated[Path | None, Parameter(group=OUTPUT)] = None,
    overwrite: Overwrite = False,
    json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Write an HTML report about a bundle.

    Places the rows of FILE on the map and writes one HTML file: the map, how faithful it is, which score finds
    mistakes, t-SNE and other methods on the same rows, and cases worth a look. The page needs no server and no
    network.

    Parameters
    ----------
    bundle
        Bundle to report on.
    file
        Labelled predictions, .npz, .npy, .csv, .parquet or .jsonl.
    ood
        Predictions for out-of-distribution inputs, one or several files.
    features
        Features (n, d) of the rows, for --compare full.
    images
        Images (n, height, width[, 3]) of the rows, shown as thumbnails.
    reference_dir
        Folder of the files that the column tag_reference names: pictures are shown as thumbnails, and texts and sounds
        beside their rows.
    compare
        Other methods to run on the same rows. quick: PCA and t-SNE of the probabilities. full: t-SNE at three
        perplexities, UMAP and PCA of probabilities, logits and features.
    compare_rows
        Compare methods on at most this many rows, a random sample. t-SNE of 10,000 rows takes minutes.
    path
        Show the path from class A to class B, names or numbers. Repeatable. Default: the most confused pairs.
    path_points
        Show the path through these points of the map. Repeatable.
    title
        Heading of the page.
    seed
        Seed of samples and methods.
    cache
        Directory for results that are slow to compute. Default: the cache directory of the user.
    out
        HTML file to write.
    figures
        Directory to write each figure to as .png and .svg.
    """
    started = time.perf_counter()
    if compare_rows < 1:
        raise ConfigError(f"--compare-rows is {compare_rows}; it must be at least 1")
    check_output(out, overwrite=overwrite)
    if figures is not None:
        if figures.exists() and not figures.is_dir():
            raise ConfigError(f"--figures {figures} is not a directory")
        find_browser()
    if reference_dir is not None and not reference_dir.is_dir():
        raise ConfigError(f"--reference-dir {reference_dir} is not a directory")
    loaded = read_bundle(bundle, verify=False)
    predictions = read_rows(file, loaded, logits=logits)
    if reference_dir is not None:
        if images is not None:
            raise ConfigError("--images and --reference-dir exclude each other; give one of them")
        values_of(predictions, REFERENCE)
    foreign = {str(each): read_rows(each, loaded, logits=logits) for each in ood}
    row_features = None if features is None else read_features(features, len(predictions))
    row_images = None if images is None else read_images(images, len(predictions))
    pairs = [(_shown_class(loaded, first), _shown_class(loaded, second)) for first, second in path]
    curves = [_curve(points) for points in path_points]
    if held_out:
        kept = held_out_rows(loaded, predictions)
        rows = np.flatnonzero(np.isin(predictions.row_hashes(), kept.row_hashes()))
        if len(rows) != len(kept) and (row_features is not None or row_images is not None):
            raise ConfigError(f"{file} has equal rows; --held-out with --features or --images needs distinct rows")
        row_features = None if row_features is None else row_features[rows]
        row_images = None if row_images is None else row_images[rows]
        predictions = kept
    elif fit_share(loaded, predictions) > MAX_LEAK:
        say("some of these rows are fit rows, so the map's figures are better than on new rows; see --held-out")
    with on_interrupt(f"{out} was not written"):
        with Bars(quiet=quiet) as bars:
            found = find(
                loaded,
                Scorer.load(bundle),
                predictions,
                foreign,
                features=row_features,
                level=compare,
                method_rows=compare_rows,
                paths=pairs,
                curves=curves,
                cache=cache or _default_cache(compare),
                seed=seed,
                report=bars,
            )
        drawn = all_figures(found)
        page = build_page(found, drawn, _inputs(predictions, row_images, reference_dir), title=title)
        with atomic(out) as partial:
            partial.write_text(page, encoding="utf-8")
    if figures is not None:
        write_pictures(page, [figure.name for figure in drawn], figures)
        say(f"wrote {2 * len(drawn)} pictures to {figures}")
    if json:
        print_json(found.as_dict())
    size = out.stat().st_size / 1e6
    say(f"wrote {out} ({size:.1f} MB, {len(drawn)} figures, {time.perf_counter() - started:.1f} s)")


def _inputs(predictions: Predictions, images: NDArray[np.uint8] | None, folder: Path | None) -> Inputs | None:
    """The inputs of the rows, if they are given."""
    if folder is not None:
        return ReferenceFiles(folder, predictions.tags[REFERENCE])
    return None if images is None else ImageArray(images)


def _default_cache(level: str) -> Path | None:
    if level == "none":
        return None
    require("sklearn", "fit")
    from darksight_core.evaluation.baselines.embeddings import cache_folder

    return cache_folder()


def _shown_class(bundle: Bundle, name: str) -> int:
    """Position on the map of a class given by name or number."""
    columns = bundle.embedder.columns
    shown = list(range(bundle.embedder.n_inputs)) if columns is None else list(columns)
    names = list(bundle.class_names)
    column = names.index(name) if name in names else int(name) if name.isdigit() else -1
    if column not in shown:
        hint = did_you_mean(name, [names[k] for k in shown])
        raise ConfigError(f"--path: the map has no class {name!r}; {hint}")
    return shown.index(column)


def _curve(text: str) -> Floats:
    """Points (n, 2) from `x,y x,y ...`."""
    try:
        points = np.array([[float(part) for part in pair.split(",")] for pair in text.split()], dtype=np.float64)
    except ValueError:
        points = np.empty((0, 0))
    if points.ndim != 2 or points.shape[1:] != (2,) or len(points) < 2 or not np.isfinite(points).all():
        raise ConfigError(f"--path-points {text!r}: give two or more points in quotes, such as '0,1 2.5,-3'")
    return points
