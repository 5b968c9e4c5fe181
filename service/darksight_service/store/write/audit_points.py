"""Points that are drawn for the audit when they are stored, with the odds that `darksight_core.drift.audit` gives them.

The draw decides by a number of the point's id. The odds follow the traffic that this process has stored, so they are
kept with each drawn point; they need not be the same in every replica or after a restart. Points of shadow versions,
without a prediction or without a score are never drawn.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any

import numpy as np
from sqlalchemy import Connection

from darksight_core.drift.audit import audit_odds, error_chances
from darksight_core.drift.isotonic import Isotonic
from darksight_core.drift.urn import audit_numbers
from darksight_core.rows.schema import Reason
from darksight_core.rows.simplex import Floats
from darksight_service.store.points import PointTable

__all__ = ["AUDIT_RATE", "AuditDraw", "list_drawn"]

AUDIT_RATE = 0.03
"""Share of the points that are drawn, unless set otherwise."""

# Points over which the mean of √(f (1 - f)) is taken, about.
_MEMORY = 2_000.0
# A point that retention has deleted may come again before its row here is deleted too.
_INSERT = "INSERT INTO audit_point (bundle_id, point_id, key) {} ON CONFLICT DO NOTHING"
_SQLITE = _INSERT.format("VALUES (?, ?, ?)")
# One statement for all rows: to send them one by one took ten times as long.
_POSTGRESQL = _INSERT.format("SELECT %s, id, key FROM unnest(%s::uuid[], %s::float8[]) AS drawn (id, key)")

_log = logging.getLogger(__name__)


class AuditDraw:
    """Draws points.

    Parameters
    ----------
    rate
        Share of the points to draw, up to 1.
    curves
        The probability of being right by largest probability of a model and version; None if it is not known. Then all
        points have the same odds and count as right until they are labelled.
    """

    def __init__(self, rate: float = AUDIT_RATE, curves: Callable[[str, str], Isotonic | None] | None = None) -> None:
        self.rate = rate
        self.curves = curves
        # Mean of √(f (1 - f)) of a version, and of how many points, at most `_MEMORY`.
        self._spreads: dict[str, tuple[float, float]] = {}

    def draw(self, points: PointTable, version: str) -> Floats:
        """Set `error_chance` and `audit_odds` of the drawn ones among points of a version.

        Returns the probability of being wrong of all points that the audit covers, NaN for others, (n,).
        """
        covered = ~points.is_shadow & (points.predicted >= 0) & np.not_equal(points.reason, Reason.UNSCORED)
        covered &= np.isfinite(points.top)
        # As they are stored, so that the sums are those of the stored numbers.
        chances = error_chances(self._curve(points.model, version), points.top).astype(np.float32).astype(np.float64)
        chances[~covered] = np.nan
        odds = audit_odds(chances, self.rate, self._spread(version, chances[covered])).astype(np.float32)
        drawn = covered & (audit_numbers(points.ids) < odds)
        points.error_chance, points.audit_odds = np.where(drawn, chances, np.nan), np.where(drawn, odds, np.nan)
        return chances

    def _curve(self, model: str, version: str) -> Isotonic | None:
        try:
            return None if self.curves is None else self.curves(model, version)
        except Exception:
            # Rows must be stored, and drawn, even if nothing is known about them.
            _log.exception("errors_not_predicted", extra={"model": model, "version": version})
            return None

    def _spread(self, version: str, chances: Floats) -> float:
        """Mean of √(f (1 - f)) over the newest points, these included; it looks at no label and no draw."""
        mean, seen = self._spreads.get(version, (0.0, 0.0))
        if len(chances):
            added = len(chances)
            found = float(np.sqrt(chances * (1.0 - chances)).mean())
            mean = (mean * seen + found * added) / (seen + added)
            self._spreads[version] = mean, min(seen + added, _MEMORY)
        return mean


def list_drawn(connection: Connection, groups: Iterable[tuple[int, PointTable]]) -> None:
    """List the drawn ones of points that were inserted in this transaction, given with the numbers of their bundles."""
    driver: Any = connection.connection.driver_connection
    for bundle_id, points in groups:
        drawn = np.flatnonzero(np.isfinite(points.audit_odds))
        if not len(drawn):
            continue
        chosen = points.take(drawn)
        ids, keys = chosen.id_bytes(), (audit_numbers(chosen.ids) / chosen.audit_odds).tolist()
        if connection.dialect.name == "postgresql":
            driver.execute(_POSTGRESQL, (bundle_id, [each.hex() for each in ids], keys))
        else:
            driver.executemany(_SQLITE, zip(repeat(bundle_id, len(ids)), ids, keys, strict=True))
