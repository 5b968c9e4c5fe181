"""How classes lie on the map: confidence around their centres, and the distance of confused classes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from darksight_core.errors import ConfigError
from darksight_core.evaluation.checks import Indices, check_centres, check_labels, check_rows
from darksight_core.rows.json_record import JsonRecord
from darksight_core.rows.simplex import Floats, entropy

__all__ = [
    "ClusterMonotonicity",
    "GlobalFidelity",
    "class_medians",
    "cluster_monotonicity",
    "global_fidelity",
    "spearman",
]


@dataclass(frozen=True, slots=True)
class ClusterMonotonicity(JsonRecord):
    """Rank correlation of entropy with distance from the class centre; 1 is best.

    Parameters
    ----------
    mean
        Mean over the classes that have a value, each with equal weight; None if no class has one.
    per_class
        Value of each of the K classes; None for a class that was skipped.
    """

    mean: float | None
    per_class: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class GlobalFidelity(JsonRecord):
    """Rank correlation of the closeness of centres with the confusion of classes; 1 is best, 0 a random arrangement.

    Parameters
    ----------
    soft
        With confusion from the teacher's probabilities.
    ground
        With confusion from labels; None without labels.
    """

    soft: float | None
    ground: float | None


def cluster_monotonicity(
    log_pi: Floats, points: Floats, centres: Floats, *, min_points: int = 10
) -> ClusterMonotonicity:
    """Spearman correlation of the entropy H(π_i) with |y_i - μ_c| over the rows predicted as class c, for each class.

    Positive means that confidence falls with the distance from the centre, as it should. A class is skipped if it has
    fewer than `min_points` rows or no centre, or if all its entropies or all its distances are equal.

    Parameters
    ----------
    log_pi
        Log-probabilities of the teacher, (n, K).
    points
        Points on the map, (n, 2).
    centres
        Centre μ of each class, (K, 2): the student's means, or `class_medians`. A row of NaN means no centre.
    min_points
        Fewest rows of a class that is not skipped.
    """
    log_pi = check_rows("log_pi", log_pi)
    points = check_rows("points", points, (len(log_pi), 2))
    centres = check_centres(centres, log_pi.shape[1])
    predicted = log_pi.argmax(axis=1)
    uncertainty = entropy(log_pi)
    per_class: list[float | None] = []
    for label, centre in enumerate(centres):
        rows = np.flatnonzero(predicted == label)
        usable = len(rows) >= min_points and not np.isnan(centre).any()
        per_class.append(spearman(uncertainty[rows], np.hypot(*(points[rows] - centre).T)) if usable else None)
    known = [value for value in per_class if value is not None]
    return ClusterMonotonicity(float(np.mean(known)) if known else None, tuple(per_class))


def class_medians(log_pi: Floats, points: Floats) -> Floats:
    """Coordinate-wise median point of each predicted class, (K, 2): centres for a map that has no student.

    Parameters
    ----------
    log_pi
        Log-probabilities of the teacher, (n, K).
    points
        Points on the map, (n, 2).

    Returns
    -------
    The row of a class that is never predicted is NaN.
    """
    log_pi = check_rows("log_pi", log_pi)
    points = check_rows("points", points, (len(log_pi), 2))
    predicted = log_pi.argmax(axis=1)
    centres = np.full((log_pi.shape[1], 2), np.nan)
    for label in np.unique(predicted):
        centres[label] = np.median(points[predicted == label], axis=0)
    return centres


def global_fidelity(log_pi: Floats, centres: Floats, labels: ArrayLike | None = None) -> GlobalFidelity:
    """Minus the Spearman correlation of |μ_k - μ_l| with the confusion of k and l, over pairs of classes k < l.

    The sign makes a good map positive: closer centres, more confusion. Confusion is (R_kl + R_lk) / 2, where

        soft      R_kl = mean of π_l over the rows predicted as k,
        ground    R_kl = share of the rows with label k that are predicted as l.

    Pairs with a class that has no centre or no rows are left out. Pairs that are never confused are ties.

    Parameters
    ----------
    log_pi
        Log-probabilities of the teacher, (n, K).
    centres
        Centre μ of each class, (K, 2); a row of NaN means no centre.
    labels
        True classes in 0..K-1, (n,).
    """
    log_pi = check_rows("log_pi", log_pi)
    n, classes = log_pi.shape
    centres = check_centres(centres, classes)
    predicted = log_pi.argmax(axis=1)
    soft = _closeness(centres, _class_means(np.exp(log_pi), predicted))
    if labels is None:
        return GlobalFidelity(soft, None)
    truth = check_labels(labels, n, classes)
    return GlobalFidelity(soft, _closeness(centres, _class_means(np.eye(classes)[predicted], truth)))


def _class_means(rows: Floats, groups: Indices) -> Floats:
    """Mean row of each group, (K, K), with NaN for an empty group."""
    classes = rows.shape[1]
    means = np.full((classes, classes), np.nan)
    for group in np.unique(groups):
        means[group] = rows[groups == group].mean(axis=0)
    return means


def _closeness(centres: Floats, confusion: Floats) -> float | None:
    """Minus the rank correlation of centre distance with symmetrised confusion, over pairs where both are known."""
    first, second = np.triu_indices(len(centres), k=1)
    distance = np.hypot(*(centres[first] - centres[second]).T)
    confused = 0.5 * (confusion + confusion.T)[first, second]
    known = ~(np.isnan(distance) | np.isnan(confused))
    rho = spearman(distance[known], confused[known])
    return None if rho is None else -rho


def spearman(a: Floats, b: Floats) -> float | None:
    """Spearman rank correlation of a (n,) and b (n,), with average ranks for ties; None if either is constant.

    >>> spearman(np.array([1.0, 2.0, 3.0]), np.array([1.0, 8.0, 27.0]))
    1.0
    """
    if a.shape != b.shape or a.ndim != 1:
        raise ConfigError(f"a and b must have the same shape (n,), not {a.shape} and {b.shape}")
    if len(a) == 0 or (a == a[0]).all() or (b == b[0]).all():
        return None
    # Twice the average ranks are whole numbers, so sums are exact and a perfect order gives exactly 1.
    u, v = _doubled_ranks(a) - (len(a) + 1), _doubled_ranks(b) - (len(b) + 1)
    return float(u @ v / np.sqrt(float(u @ u) * float(v @ v)))


def _doubled_ranks(values: Floats) -> Floats:
    """Twice the average rank, counted from 1, of each value, (n,)."""
    _, group, size = np.unique(values, return_inverse=True, return_counts=True)
    doubled = (2 * np.cumsum(size) - size + 1).astype(np.float64)
    return doubled[group]
