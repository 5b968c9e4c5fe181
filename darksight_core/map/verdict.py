"""How far a map can be read, in words.

KL_sym says how faithful a map is, but not what that means to a reader: it is unbounded, and a probability of zero where
the map has a thousandth adds 0.03 to it. The total variation between a row and the map's classes at its point is the
probability that is in the wrong place, so the words follow it.
"""

from __future__ import annotations

__all__ = ["FAIR", "GOOD", "map_verdict"]

GOOD = 0.05
"""Mean total variation up to which a map is good."""

FAIR = 0.15
"""Mean total variation up to which it is fair; above, it is poor."""


def map_verdict(total_variation: float) -> str:
    """What the mean total variation between rows and the map's classes at their points means for reading the map.

    >>> map_verdict(0.01)
    'good: 1.0% of the probability is in the wrong place on average; clusters, bridges and neighbours can be read'
    """
    wrong = f"{100.0 * total_variation:.1f}% of the probability is in the wrong place on average"
    if total_variation <= GOOD:
        return f"good: {wrong}; clusters, bridges and neighbours can be read"
    if total_variation <= FAIR:
        return f"fair: {wrong}; clusters and bridges can be read, small distances cannot"
    return f"poor: {wrong}; read the cluster of a point and nothing finer. p-values do not use the map"
