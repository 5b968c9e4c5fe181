"""Maps of the same rows by other methods, for comparison: t-SNE, UMAP, PCA.

    source     prob, logit or features: what the method reads
    t-SNE      openTSNE if it is installed, else scikit-learn's; at one or several perplexities
    UMAP       umap-learn
    PCA        the two axes of largest variance

None of them is needed to fit or to serve. A t-SNE of 10,000 rows takes a minute.
"""

from __future__ import annotations

import importlib.util
import time
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from darksight_core.errors import ConfigError
from darksight_core.evaluation.progress import Progress, Report, silent
from darksight_core.rows.simplex import Floats

__all__ = ["LEAST_ROWS", "Embedding", "Recipe", "embed", "recipes"]

Method: TypeAlias = Literal["tsne", "umap", "pca"]
Level: TypeAlias = Literal["none", "quick", "full"]

LEAST_ROWS = 20
"""Fewest rows of a map."""

_NAMES: Mapping[Method, str] = {"tsne": "t-SNE", "umap": "UMAP", "pca": "PCA"}
_SWEEP = (5.0, 30.0, 80.0)
_ITERATIONS = 750  # of openTSNE: 250 exaggerated, 500 not


@dataclass(frozen=True, slots=True)
class Recipe:
    """A method with its settings.

    Parameters
    ----------
    method
        tsne, umap or pca.
    source
        What it reads: prob, logit or features.
    perplexity
        Perplexity of t-SNE; lowered for few rows.
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
    """A map: points (n, 2), how it was made and how long that took."""

    recipe: Recipe
    library: str
    points: Floats
    seconds: float
    cpu_seconds: float


def recipes(level: Level, sources: Iterable[str]) -> list[Recipe]:
    """The methods to compare with.

    Parameters
    ----------
    level
        quick: PCA and one t-SNE on probabilities. full: three perplexities on every source, UMAP and PCA.
    sources
        The available sources, of prob, logit and features.
    """
    given = list(sources)
    if level == "none":
        return []
    if level == "quick":
        return [Recipe("pca", "prob"), Recipe("tsne", "prob")]
    found = [Recipe("tsne", source, perplexity) for source in given for perplexity in _SWEEP]
    return [*(Recipe("pca", source) for source in given), *(Recipe("umap", source) for source in given), *found]


def embed(
    recipe: Recipe,
    rows: NDArray[np.floating],
    *,
    seed: int = 0,
    report: Report = silent,
) -> Embedding:
    """Make a map; ConfigError if the library of the method is not installed.

    Parameters
    ----------
    recipe
        Method and settings.
    rows
        The rows of the source, (n, d) with n >= `LEAST_ROWS`, finite.
    seed
        Seed of the method.
    report
        Called with the progress.
    """
    values = np.ascontiguousarray(rows, dtype=np.float64)
    if values.ndim != 2 or len(values) < LEAST_ROWS or not np.isfinite(values).all():
        raise ConfigError(
            f"{recipe.label} needs at least {LEAST_ROWS} finite rows, not an array of shape {values.shape}"
        )
    recipe = replace(recipe, perplexity=min(recipe.perplexity, (len(values) - 1) / 3.0))
    library = _library(recipe.method)
    makers = {"tsne": _tsne, "umap": _umap, "pca": _pca}
    # One thread each: a report computes its other numbers at the same time.
    wall, cpu = time.perf_counter(), time.thread_time()
    with warnings.catch_warnings():
        # Libraries warn about each other's versions and their own random states; users cannot change that.
        warnings.simplefilter("ignore")
        points = makers[recipe.method](recipe, values, seed, report)
    seconds, cpu_seconds = time.perf_counter() - wall, time.thread_time() - cpu
    if not np.isfinite(points).all():
        raise ConfigError(f"{recipe.label} of these rows is not finite; omit it")
    return Embedding(recipe, library, points, seconds, cpu_seconds)


def _library(method: Method) -> str:
    """Name and version of the library of a method."""
    choices = {"tsne": (("openTSNE", "openTSNE"), ("sklearn", "scikit-learn")), "umap": (("umap", "umap-learn"),)}
    if method == "pca":
        return f"numpy {np.__version__}"
    for module, package in choices[method]:
        if importlib.util.find_spec(module) is not None:
            return f"{package} {version(package)}"
    wanted = choices[method][0][1]
    raise ConfigError(f"{_NAMES[method]} needs {wanted}, which is not installed; run: pip install 'darksight[compare]'")


def _tsne(recipe: Recipe, rows: Floats, seed: int, report: Report) -> Floats:
    if importlib.util.find_spec("openTSNE") is None:
        from sklearn.manifold import TSNE as SlowTSNE

        report(Progress(recipe.label, 0, 1, float("nan")))
        slow = SlowTSNE(perplexity=recipe.perplexity, random_state=seed, n_jobs=1)
        points = np.asarray(slow.fit_transform(rows), dtype=np.float64)
        report(Progress(recipe.label, 1, 1, float("nan")))
        return points
    from openTSNE import TSNE

    done = 0

    def tell(iteration: int, error: float, embedding: Any) -> None:
        # Counted here, because the iterations of the second phase start at one again.
        nonlocal done
        done = min(done + 50, _ITERATIONS)
        report(Progress(recipe.label, done, _ITERATIONS, float("nan")))

    report(Progress(recipe.label, 0, _ITERATIONS, float("nan")))
    method = TSNE(perplexity=recipe.perplexity, random_state=seed, n_jobs=1, callbacks=tell, callbacks_every_iters=50)
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
    # The sign of an axis is arbitrary; the same rows must give the same map on every machine.
    axes = axes * np.sign(axes[np.abs(axes).argmax(axis=0), range(axes.shape[1])])
    points: Floats = centred @ axes
    return points
