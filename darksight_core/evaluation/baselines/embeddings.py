"""Maps of the same rows by other methods, to be compared with ours: t-SNE, UMAP, PCA.

    source     prob, logit or features: what the method reads
    t-SNE      openTSNE where it is installed, else scikit-learn's; the paper's rival, at one or several perplexities
    UMAP       umap-learn
    PCA        the two axes of largest variance, in closed form

None of them is needed to fit or to serve. A result is kept on disk under a hash of its rows, method, settings and
library, with the time that it took, because a t-SNE of 10,000 rows takes a minute where ours takes a second.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import tempfile
import time
import warnings
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from darksight_core.errors import ConfigError
from darksight_core.progress import Progress, Report, silent
from darksight_core.simplex import Floats

__all__ = ["LEAST_ROWS", "Embedding", "Recipe", "cache_folder", "embed", "recipes"]

Method: TypeAlias = Literal["tsne", "umap", "pca"]
Level: TypeAlias = Literal["none", "quick", "full"]

LEAST_ROWS = 20
"""Rows below which neighbours mean nothing."""

_NAMES: Mapping[Method, str] = {"tsne": "t-SNE", "umap": "UMAP", "pca": "PCA"}
_SWEEP = (5.0, 30.0, 80.0)
_ITERATIONS = 750  # of openTSNE: 250 exaggerated, 500 not


@dataclass(frozen=True, slots=True)
class Recipe:
    """One way to make a map.

    Parameters
    ----------
    method
        tsne, umap or pca.
    source
        What it reads: prob, logit or features.
    perplexity
        Of t-SNE; lowered for few rows.
    """

    method: Method
    source: str
    perplexity: float = 30.0

    @property
    def key(self) -> str:
        """Name for programs, such as tsne_prob_30."""
        tail = f"_{self.perplexity:g}" if self.method == "tsne" else ""
        return f"{self.method}_{self.source}{tail}"

    @property
    def label(self) -> str:
        """Name for people, such as t-SNE prob (30)."""
        tail = f" ({self.perplexity:g})" if self.method == "tsne" else ""
        return f"{_NAMES[self.method]} {self.source}{tail}"


@dataclass(frozen=True, slots=True, eq=False)
class Embedding:
    """A finished map.

    `recipe` and `library` say how it was made, `points` (n, 2) where the rows are, `seconds` and `cpu_seconds` how long
    it took when it was made, `cached` whether that was in an earlier run.
    """

    recipe: Recipe
    library: str
    points: Floats
    seconds: float
    cpu_seconds: float
    cached: bool


def recipes(level: Level, sources: Iterable[str]) -> list[Recipe]:
    """What to compare with.

    Parameters
    ----------
    level
        quick: PCA and one t-SNE on probabilities. full: three perplexities on every source, UMAP and PCA.
    sources
        Those that there are, of prob, logit, features.
    """
    given = list(sources)
    if level == "none":
        return []
    if level == "quick":
        return [Recipe("pca", "prob"), Recipe("tsne", "prob")]
    found = [Recipe("tsne", source, perplexity) for source in given for perplexity in _SWEEP]
    return [*(Recipe("pca", source) for source in given), *(Recipe("umap", source) for source in given), *found]


def cache_folder() -> Path:
    """Where embeddings are kept unless another folder is named."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base, "darksight", "embeddings")


def embed(
    recipe: Recipe,
    rows: NDArray[np.floating],
    *,
    seed: int = 0,
    cache: Path | None = None,
    report: Report = silent,
) -> Embedding:
    """Make a map, or fetch it from the cache; ConfigError if the method's library is not installed.

    Parameters
    ----------
    recipe
        How.
    rows
        What the recipe's source says, (n, d) with n >= `LEAST_ROWS`, finite.
    seed
        Of the method.
    cache
        Folder to keep results in; None keeps nothing.
    report
        Called with a `Progress` now and then.
    """
    values = np.ascontiguousarray(rows, dtype=np.float64)
    if values.ndim != 2 or len(values) < LEAST_ROWS or not np.isfinite(values).all():
        raise ConfigError(
            f"{recipe.label} needs {LEAST_ROWS} or more finite rows, not an array of shape {values.shape}"
        )
    recipe = replace(recipe, perplexity=min(recipe.perplexity, (len(values) - 1) / 3.0))
    library = _library(recipe.method)
    path = None if cache is None else cache / f"{_key(recipe, library, values, seed)}.npz"
    kept = None if path is None else _read(path, len(values))
    if kept is not None:
        return Embedding(recipe, library, *kept, cached=True)
    makers = {"tsne": _tsne, "umap": _umap, "pca": _pca}
    wall, cpu = time.perf_counter(), time.process_time()
    with warnings.catch_warnings():
        # Of libraries, about each other's versions and their own random states; nothing that a user could change.
        warnings.simplefilter("ignore")
        points = makers[recipe.method](recipe, values, seed, report)
    made = (points, time.perf_counter() - wall, time.process_time() - cpu)
    if not np.isfinite(points).all():
        raise ConfigError(f"{recipe.label} of these rows is not finite; leave it out")
    if path is not None:
        _write(path, *made)
    return Embedding(recipe, library, *made, cached=False)


def _library(method: Method) -> str:
    """Name and version of the library that will be used."""
    choices = {"tsne": (("openTSNE", "openTSNE"), ("sklearn", "scikit-learn")), "umap": (("umap", "umap-learn"),)}
    if method == "pca":
        return f"numpy {np.__version__}"
    for module, package in choices[method]:
        if importlib.util.find_spec(module) is not None:
            return f"{package} {version(package)}"
    wanted = choices[method][0][1]
    raise ConfigError(f"{_NAMES[method]} needs {wanted}, which is not installed; run: pip install 'darksight[compare]'")


def _tsne(recipe: Recipe, rows: Floats, seed: int, report: Report) -> Floats:
    # Few rows are done before threads have found each other, and on a busy machine they wait for each other.
    jobs = 1 if len(rows) < 2_000 else os.cpu_count() or 1
    if importlib.util.find_spec("openTSNE") is None:
        from sklearn.manifold import TSNE as SlowTSNE

        report(Progress(recipe.label, 0, 1, float("nan")))
        slow = SlowTSNE(perplexity=recipe.perplexity, random_state=seed, n_jobs=jobs)
        points = np.asarray(slow.fit_transform(rows), dtype=np.float64)
        report(Progress(recipe.label, 1, 1, float("nan")))
        return points
    from openTSNE import TSNE

    done = 0

    def tell(iteration: int, error: float, embedding: Any) -> None:
        # Counted here: the iterations of the second phase begin at one again.
        nonlocal done
        done = min(done + 50, _ITERATIONS)
        report(Progress(recipe.label, done, _ITERATIONS, float("nan")))

    report(Progress(recipe.label, 0, _ITERATIONS, float("nan")))
    method = TSNE(
        perplexity=recipe.perplexity, random_state=seed, n_jobs=jobs, callbacks=tell, callbacks_every_iters=50
    )
    return np.asarray(method.fit(rows), dtype=np.float64)


def _umap(recipe: Recipe, rows: Floats, seed: int, report: Report) -> Floats:
    from umap import UMAP

    report(Progress(recipe.label, 0, 1, float("nan")))
    points = UMAP(n_neighbors=min(15, len(rows) - 1), random_state=seed).fit_transform(rows)
    report(Progress(recipe.label, 1, 1, float("nan")))
    return np.asarray(points, dtype=np.float64)


def _pca(recipe: Recipe, rows: Floats, seed: int, report: Report) -> Floats:
    centred = rows - rows.mean(axis=0)
    _, axes = np.linalg.eigh(centred.T @ centred)
    axes = axes[:, ::-1][:, :2]
    # The sign of an axis is arbitrary; the same rows must give the same picture on every machine.
    axes = axes * np.sign(axes[np.abs(axes).argmax(axis=0), range(axes.shape[1])])
    points: Floats = centred @ axes
    return points


def _key(recipe: Recipe, library: str, rows: Floats, seed: int) -> str:
    """Hash of everything that the result depends on."""
    facts = json.dumps([recipe.method, recipe.perplexity, library, seed, rows.shape])
    return hashlib.sha256(facts.encode() + rows.tobytes()).hexdigest()


def _read(path: Path, rows: int) -> tuple[Floats, float, float] | None:
    """What the cache has, or nothing; a file that cannot be read is as good as none."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as found:
            points, seconds = np.asarray(found["points"], dtype=np.float64), found["seconds"]
            wall, cpu = (float(value) for value in seconds)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    return (points, wall, cpu) if points.shape == (rows, 2) else None


def _write(path: Path, points: Floats, seconds: float, cpu_seconds: float) -> None:
    """Keep a result, wholly or not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".partial.") as folder:
            partial = Path(folder, path.name)
            np.savez(partial, points=points.astype(np.float32), seconds=np.array([seconds, cpu_seconds]))
            os.replace(partial, path)
    except OSError as error:
        raise ConfigError(f"{path.parent} cannot keep embeddings ({error}); name another folder with --cache") from None
