"""`darksight report`: an HTML page about a bundle on labelled rows."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

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
from darksight_service.report import all_figures, build_page, find
from darksight_service.report.images import ImageArray, Inputs, ReferenceFiles, read_features, read_images
from darksight_service.report.methods import METHOD_ROWS
from darksight_service.scoring.files.tables import atomic, check_output

__all__ = ["Content", "report"]

_CONTENT = Group("Content", sort_key=2)


@dataclass(frozen=True, slots=True)
class Content:
    """What the page shows.

    Parameters
    ----------
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
    """

    compare: Literal["none", "quick", "full"] = "quick"
    compare_rows: int = METHOD_ROWS
    path: Annotated[tuple[tuple[str, str], ...], Parameter(metavar="A B")] = ()
    path_points: Annotated[tuple[str, ...], Parameter(metavar="'X,Y X,Y ...'", allow_leading_hyphen=True)] = ()
    title: str = ""


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
    content: Annotated[Content, Parameter(name="*", group=_CONTENT)] = Content(),
    seed: int = 0,
    out: Annotated[Path, Parameter(group=OUTPUT)],
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
    seed
        Seed of samples and methods.
    out
        HTML file to write.
    """
    started = time.perf_counter()
    if content.compare_rows < 1:
        raise ConfigError(f"--compare-rows is {content.compare_rows}; it must be at least 1")
    if content.compare != "none":
        require("sklearn", "fit")
    _check_paths(out, images, reference_dir, overwrite=overwrite)
    loaded = read_bundle(bundle, verify=False)
    rows = _read(loaded, file, features, images, reference_dir, logits=logits, held_out=held_out)
    foreign = {str(each): read_rows(each, loaded, logits=logits) for each in ood}
    with on_interrupt(f"{out} was not written"):
        with Bars(quiet=quiet) as bars:
            found = find(
                loaded,
                Scorer.load(bundle),
                rows.predictions,
                foreign,
                features=rows.features,
                level=content.compare,
                method_rows=content.compare_rows,
                paths=[(_shown_class(loaded, first), _shown_class(loaded, second)) for first, second in content.path],
                curves=[_curve(points) for points in content.path_points],
                seed=seed,
                report=bars,
            )
        drawn = all_figures(found)
        page = build_page(found, drawn, rows.inputs, title=content.title)
        with atomic(out) as partial:
            partial.write_text(page, encoding="utf-8")
    if json:
        print_json(found.as_dict())
    size = out.stat().st_size / 1e6
    say(f"wrote {out} ({size:.1f} MB, {len(drawn)} figures, {time.perf_counter() - started:.1f} s)")


class _Rows(NamedTuple):
    """The rows of a report, with what belongs to each of them."""

    predictions: Predictions
    features: NDArray[np.floating] | None
    inputs: Inputs | None


def _check_paths(out: Path, images: Path | None, reference_dir: Path | None, *, overwrite: bool) -> None:
    """Refuse wrong paths before the long work."""
    check_output(out, overwrite=overwrite)
    if reference_dir is not None:
        if not reference_dir.is_dir():
            raise ConfigError(f"--reference-dir {reference_dir} is not a directory")
        if images is not None:
            raise ConfigError("--images and --reference-dir exclude each other; give one of them")


def _read(
    bundle: Bundle,
    file: Path,
    features: Path | None,
    images: Path | None,
    reference_dir: Path | None,
    *,
    logits: bool,
    held_out: bool,
) -> _Rows:
    predictions = read_rows(file, bundle, logits=logits)
    if reference_dir is not None:
        values_of(predictions, REFERENCE)
    row_features = None if features is None else read_features(features, len(predictions))
    row_images = None if images is None else read_images(images, len(predictions))
    if held_out:
        kept = held_out_rows(bundle, predictions)
        rows = np.flatnonzero(np.isin(predictions.row_hashes(), kept.row_hashes()))
        if len(rows) != len(kept) and (row_features is not None or row_images is not None):
            raise ConfigError(f"{file} has equal rows; --held-out with --features or --images needs distinct rows")
        row_features = None if row_features is None else row_features[rows]
        row_images = None if row_images is None else row_images[rows]
        predictions = kept
    elif fit_share(bundle, predictions) > MAX_LEAK:
        say("some of these rows are fit rows, so the map's figures are better than on new rows; see --held-out")
    if reference_dir is not None:
        return _Rows(predictions, row_features, ReferenceFiles(reference_dir, predictions.tags[REFERENCE]))
    return _Rows(predictions, row_features, None if row_images is None else ImageArray(row_images))


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
