"""All measures of one map.

    compression           does the student reproduce the teacher's rows?                   `fidelity`
    local fidelity        do neighbours on the map have similar rows?                      `neighbourhoods`
                          are neighbours on the map neighbours among the rows?
    cluster preservation  does confidence fall with the distance from the class centre?    `classes`
    global fidelity       are classes that are confused close to each other?               `classes`

Only `fidelity` and half of the local fidelity need a student, so maps of other methods are measured by the same code,
without `log_q` and with `class_medians` as centres.

Rows are logarithms (`simplex.log_probs` handles exact zeros). The predicted class is the most probable one, and the one
with the lowest index among equals. A value that the data do not determine, such as a correlation with a constant, is
None, never 0 or NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from numpy.typing import ArrayLike

from darksight_core.evaluation.checks import check_rows
from darksight_core.evaluation.classes import ClusterMonotonicity, GlobalFidelity, cluster_monotonicity, global_fidelity
from darksight_core.evaluation.fidelity import Fidelity, fidelity
from darksight_core.evaluation.neighbourhoods import LocalFidelity, Trustworthiness, local_fidelity, trustworthiness
from darksight_core.map.verdict import is_on_border, nearest_stars
from darksight_core.rows.json_record import JsonRecord
from darksight_core.rows.simplex import Floats

__all__ = ["MapMeasures", "measure_map"]


@dataclass(frozen=True, slots=True)
class MapMeasures(JsonRecord):
    """All measures of one map.

    Parameters
    ----------
    rows, classes
        n and K.
    fidelity
        None for a map without a student.
    local_fidelity, trustworthiness
        None if the map has too few points.
    cluster_monotonicity, global_fidelity
        Always present; their values may be None.
    notes
        What was left out or reduced, for people.
    """

    rows: int
    classes: int
    fidelity: Fidelity | None
    local_fidelity: LocalFidelity | None
    trustworthiness: Trustworthiness | None
    cluster_monotonicity: ClusterMonotonicity
    global_fidelity: GlobalFidelity
    notes: tuple[str, ...]


def measure_map(
    log_pi: Floats,
    log_q: Floats | None,
    points: Floats,
    centres: Floats,
    labels: ArrayLike | None = None,
    *,
    neighbours: Sequence[int] = (5, 10, 50, 100),
    seed: int = 0,
    max_rows: int | None = 10_000,
    bound: float | None = None,
) -> MapMeasures:
    """All measures of one map; those that a small map cannot have are left out with a note.

    Parameters
    ----------
    log_pi
        Log-probabilities of the teacher, (n, K).
    log_q
        Log-probabilities of the student, (n, K); None for a map of another method.
    points
        Points on the map, (n, 2).
    centres
        Centre of each class, (K, 2): the student's means, or `class_medians`.
    labels
        True classes in 0..K-1, (n,).
    neighbours
        Values of k for local fidelity; those not below n are dropped with a note.
    seed
        Seed of subsamples and of the order among tied points.
    max_rows
        Most rows over which local fidelity is averaged, None for no limit; trustworthiness uses at most 2,000.
    bound
        Largest coordinate of a point, if the map has a border.
    """
    log_pi = check_rows("log_pi", log_pi)
    n, classes = log_pi.shape
    points = check_rows("points", points, (n, 2))
    notes = []

    ks = [k for k in neighbours if k < n]
    if len(ks) < len(neighbours):
        dropped = ", ".join(str(k) for k in neighbours if k >= n)
        notes.append(f"local fidelity for k = {dropped} dropped: the map has {n} points")
    local = None
    if ks:
        local = local_fidelity(log_pi, log_q, points, neighbours=ks, max_rows=max_rows, seed=seed)

    rows = 2_000 if max_rows is None else min(max_rows, 2_000)
    k = min(5, (min(rows, n) - 1) // 2)
    trust = None
    if k >= 1:
        trust = trustworthiness(log_pi, points, neighbours=k, max_rows=rows, seed=seed)
    if k < 5:
        reduced = f"computed with k = {k} instead of 5" if k >= 1 else "dropped"
        notes.append(f"trustworthiness {reduced}: it uses {min(rows, n)} points")

    figures = None
    if log_q is not None:
        figures = replace(
            fidelity(log_pi, log_q, labels),
            star_agreement=float((nearest_stars(points, centres) == log_pi.argmax(axis=1)).mean()),
            on_border=None if bound is None else float(is_on_border(points, bound).mean()),
        )
    return MapMeasures(
        rows=n,
        classes=classes,
        fidelity=figures,
        local_fidelity=local,
        trustworthiness=trust,
        cluster_monotonicity=cluster_monotonicity(log_pi, points, centres),
        global_fidelity=global_fidelity(log_pi, centres, labels),
        notes=tuple(notes),
    )
