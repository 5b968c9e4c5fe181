"""`darksight report`: an HTML page about a bundle on labelled rows."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from cyclopts import Group, Parameter

from darksight_core.bundle import Bundle, read_bundle
from darksight_core.errors import ConfigError, did_you_mean
from darksight_core.predictions import Predictions
from darksight_core.predictions.sketch import MAX_LEAK
from darksight_core.rows.simplex import Floats
from darksight_core.rows.tags import REFERENCE
from darksight_core.runtime.scorer import Scorer
from darksight_service.cli.console import on_interrupt, print_json, say
from darksight_service.cli.options import INPUT, OUTPUT, AsJson, Files, HeldOut, Logits, Overwrite
from darksight_service.cli.rows import fit_share, held_out_rows, read_rows, values_of
from darksight_service.report import all_figures, build_page, find
from darksight_service.report.images import ImageArray, Inputs, ReferenceFiles, read_images
from darksight_service.scoring.files.tables import atomic, check_output

__all__ = ["Content", "report"]

_CONTENT = Group("Content", sort_key=2)


@dataclass(frozen=True, slots=True)
class Content:
    """What the page shows.

    Parameters
    ----------
    path
        Show the path from class A to class B, names or numbers. Repeatable. Default: the most confused pairs.
    path_points
        Show the path through these points of the map. Repeatable.
    title
        Heading of the page.
    """

    path: Annotated[tuple[tuple[str, str], ...], Parameter(metavar="A B")] = ()
    path_points: Annotated[tuple[str, ...], Parameter(metavar="'X,Y X,Y ...'", allow_leading_hyphen=True)] = ()
    title: str = ""


def report(
    bundle: Path,
    file: Path,
    /,
    *,
    ood: Annotated[Files, Parameter(group=INPUT)] = (),
    images: Annotated[Path | None, Parameter(group=INPUT)] = None,
    reference_dir: Annotated[Path | None, Parameter(group=INPUT)] = None,
    logits: Logits = False,
    held_out: HeldOut = False,
    content: Annotated[Content, Parameter(name="*", group=_CONTENT)] = Content(),
    seed: int = 0,
    out: Annotated[Path, Parameter(group=OUTPUT)],
    overwrite: Overwrite = False,
    json: AsJson = False,
) -> None:
    """Write an HTML report about a bundle.

    Places the rows of FILE on the map and writes one HTML file: the map, how faithful it is, which score finds
    mistakes, and cases worth a look. The page needs no server and no network.

    Parameters
    ----------
    bundle
        Bundle to report on.
    file
        Labelled predictions, .npz, .npy, .csv, .parquet or .jsonl.
    ood
        Predictions for out-of-distribution inputs, one or several files.
    images
        Images (n, height, width[, 3]) of the rows, shown as thumbnails.
    reference_dir
        Folder of the files that the column tag_reference names: pictures are shown as thumbnails, and texts and sounds
        beside their rows.
    seed
        Seed of samples.
    out
        HTML file to write.
    """
    started = time.perf_counter()
    _check_paths(out, images, reference_dir, overwrite=overwrite)
    loaded = read_bundle(bundle, verify=False)
    predictions, inputs = _read(loaded, file, images, reference_dir, logits=logits, held_out=held_out)
    foreign = {str(each): read_rows(each, loaded, logits=logits) for each in ood}
    with on_interrupt(f"{out} was not written"):
        found = find(
            loaded,
            Scorer.load(bundle),
            predictions,
            foreign,
            paths=[(_shown_class(loaded, first), _shown_class(loaded, second)) for first, second in content.path],
            curves=[_curve(points) for points in content.path_points],
            seed=seed,
        )
        drawn = all_figures(found)
        page = build_page(found, drawn, inputs, title=content.title)
        with atomic(out) as partial:
            partial.write_text(page, encoding="utf-8")
    if json:
        print_json(found.as_dict())
    size = out.stat().st_size / 1e6
    say(f"wrote {out} ({size:.1f} MB, {len(drawn)} figures, {time.perf_counter() - started:.1f} s)")


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
    images: Path | None,
    reference_dir: Path | None,
    *,
    logits: bool,
    held_out: bool,
) -> tuple[Predictions, Inputs | None]:
    """The rows of a report, and the input of each of them."""
    predictions = read_rows(file, bundle, logits=logits)
    if reference_dir is not None:
        values_of(predictions, REFERENCE)
    row_images = None if images is None else read_images(images, len(predictions))
    if held_out:
        kept = held_out_rows(bundle, predictions)
        rows = np.flatnonzero(np.isin(predictions.row_hashes(), kept.row_hashes()))
        if len(rows) != len(kept) and row_images is not None:
            raise ConfigError(f"{file} has equal rows; --held-out with --images needs distinct rows")
        row_images = None if row_images is None else row_images[rows]
        predictions = kept
    elif fit_share(bundle, predictions) > MAX_LEAK:
        say("some of these rows are fit rows, so the map's figures are better than on new rows; see --held-out")
    if reference_dir is not None:
        return predictions, ReferenceFiles(reference_dir, predictions.tags[REFERENCE])
    return predictions, None if row_images is None else ImageArray(row_images)


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
