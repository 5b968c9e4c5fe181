"""Regions of the map in which rows are rejected: saved, previewed, enforced, removed, and carried over to another map.

A region belongs to one bundle, since another map has other points. It starts as a shadow, which changes no decision;
its effect can be previewed on stored points at any time. An enforced region turns accepted rows into rejected ones, and
nothing else. All changes are in the audit trail. On the map of two classes, a line, a region is an interval.

A region that was drawn around known errors looks better on the same labels than on others. So a preview reports the
accuracy of points that were received after it was saved separately.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from darksight_core.errors import ConfigError, DarkSightError
from darksight_core.map.regions import MAX_ENFORCED_CORNERS, MAX_REGIONS, Region, hull
from darksight_core.map.strip import region_on_strip
from darksight_core.rows.schema import Reason
from darksight_core.rows.simplex import Floats, log_softmax
from darksight_service.control.registry import Registry, Version, find_version
from darksight_service.control.state import ModelState, SavedRegion
from darksight_service.errors import NotFoundError, RefusedError, RequestError
from darksight_service.store.audit import Change
from darksight_service.store.ids import LATEST_MS
from darksight_service.store.points import PointFilter, PointTable
from darksight_service.store.read.share import Share

if TYPE_CHECKING:
    # Loaded when a call needs it: SQLAlchemy takes 27 MB of a worker.
    from darksight_service.store.store import Store

__all__ = ["MAX_EXAMINED", "CarryOver", "ListedRegion", "Preview", "Regions"]

MAX_EXAMINED = 50_000
"""Newest stored points that a preview examines."""

# A preview stops after this time and reports how many points it has examined, and since when.
_PREVIEW_SECONDS = 3.0
_EXAMPLES = 100
_CARRIED = 5_000
_FEWEST = 10
# The most remote rows are left out: a single outlier would stretch the new polygon over the map.
_KEPT = 0.95
# Margin of the new polygon around the rows, as a share of the map's width.
_MARGIN = 0.005


@dataclass(frozen=True, slots=True)
class ListedRegion:
    """A region with its version; a region of the bundle itself cannot be changed."""

    version: str
    saved: SavedRegion
    is_from_bundle: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Preview:
    """Points inside a region.

    Parameters
    ----------
    region
        The region.
    reference_points, reference_inside
        Reference points of the bundle, and those inside.
    reference_accuracy
        Accuracy of the reference points inside that have a label.
    examined, since_ms
        The rows that the newest stored points stand for, at most `MAX_EXAMINED` points, and when the oldest of them was
        received.
    accepted
        Those of them that were accepted.
    inside, inside_accepted, inside_rejected
        Those inside, those of them that were accepted and would be rejected, and those that a region rejected.
    accuracy, accepted_accuracy
        Accuracy of those inside, and of those that would be rejected, where there are labels. Biased if the region was
        drawn by these labels.
    new_accuracy
        Accuracy of those inside that were received after the region was saved, so by which it was not drawn.
    examples
        Some of those inside: wrong ones first, then accepted ones, then the newest.
    """

    region: Region
    reference_points: int
    reference_inside: int
    reference_accuracy: Share
    examined: int
    since_ms: int
    accepted: int
    inside: int
    inside_accepted: int
    inside_rejected: int
    accuracy: Share
    accepted_accuracy: Share
    new_accuracy: Share
    examples: PointTable

    @property
    def accepted_share(self) -> float | None:
        """Share of accepted points that would be rejected; None if none was accepted."""
        return self.inside_accepted / self.accepted if self.accepted else None

    def counts(self) -> dict[str, Any]:
        """Numbers of points by name."""
        names = ("reference_points", "reference_inside", "examined", "accepted", "inside", "inside_accepted")
        return {name: getattr(self, name) for name in (*names, "inside_rejected")}

    def shares(self) -> dict[str, Share]:
        """Accuracies by name."""
        names = ("reference_accuracy", "accuracy", "accepted_accuracy", "new_accuracy")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True)
class CarryOver:
    """A region on the map of another version.

    Parameters
    ----------
    version, region
        The other version, and the polygon on its map.
    is_same_map
        Whether both versions have the same map, so that the polygon is the same.
    stored_rows, reference_rows
        Rows inside the old polygon that were placed on the new map: stored rows, and rows made from reference points.
    rows_inside
        Those of both that are inside the new polygon.
    other_rows, other_rows_inside
        Rows from outside the old polygon that were placed too, and those of them inside the new one.
    saved
        The region as it was saved; None if it was not.
    """

    version: str
    region: Region
    is_same_map: bool
    stored_rows: int
    reference_rows: int
    rows_inside: int
    other_rows: int
    other_rows_inside: int
    saved: ListedRegion | None = None

    def counts(self) -> dict[str, Any]:
        """Numbers of rows by name, and whether the maps are the same."""
        names = ("is_same_map", "stored_rows", "reference_rows", "rows_inside", "other_rows", "other_rows_inside")
        return {name: getattr(self, name) for name in names}


class Regions:
    """Operations on regions; a part of `Control`.

    Parameters
    ----------
    registry
        Of this worker.
    store
        Returns the store with the audit trail.
    record
        Writes a change: kind, model, payload, author, comment.
    sync
        Applies changes of other processes.
    """

    def __init__(
        self,
        registry: Registry,
        store: Callable[[], Store],
        record: Callable[[str, str, dict[str, Any], str, str], None],
        sync: Callable[[], None],
    ) -> None:
        self._registry = registry
        self._store = store
        self._record = record
        self._sync = sync

    def listed(self, model: str, version: str = "") -> list[ListedRegion]:
        """Regions that have not expired, of one version or, if none is named, of all."""
        self._registry.refresh()
        now_ms = self._now_ms()
        state = self._state(model)
        wanted = [self._version(model, version)] if version else list(state.versions)
        found = []
        for each in wanted:
            found += [
                ListedRegion(each, saved)
                for saved in state.versions[each].regions.values()
                if not saved.has_expired(now_ms)
            ]
            found += [
                ListedRegion(each, SavedRegion(region, is_enforced=True), is_from_bundle=True)
                for region in self._of_bundle(model, each)
            ]
        return found

    def history(self, model: str) -> Sequence[Change]:
        """Changes of regions, newest first."""
        self._state(model)
        return self._store().history(model, kinds=("region",))

    def save(
        self,
        model: str,
        version: str,
        name: str,
        polygon: Sequence[tuple[float, float]],
        *,
        expires_ms: int = 0,
        author: str = "",
        comment: str = "",
    ) -> ListedRegion:
        """Save a region as a shadow on the map of a version, by default the active one."""
        self._sync()
        version = self._version(model, version)
        region = self._region(model, version, name, polygon, expires_ms)
        if 0 < expires_ms <= self._now_ms():
            raise RequestError("expires_at: must be in the future", field="expires_at")
        if expires_ms > LATEST_MS:
            raise RequestError("expires_at: must be before the year 10000", field="expires_at")
        taken = [each.saved.region.name for each in self.listed(model, version)]
        if name in taken:
            raise RefusedError(f"region {name!r} already exists; remove it, or choose another name")
        if len(taken) >= MAX_REGIONS:
            raise RefusedError(f"the version has {len(taken)} regions, which is the limit; remove some")
        what = {"polygon": region.settings()["polygon"], "expires_ms": expires_ms}
        self._change(model, version, name, "save", author, comment, **what)
        found = self._find(model, version, name)
        if found.saved.region != region:
            raise RefusedError(f"region {name!r} was saved by another operator at the same time; choose another name")
        return found

    def set_mode(
        self, model: str, version: str, name: str, *, enforce: bool, author: str = "", comment: str = ""
    ) -> ListedRegion:
        """Enforce a region, or make it a shadow."""
        found = self._changeable(model, version, name)
        if enforce and not found.saved.is_enforced:
            self._check_corners(model, found)
        looser = {"loosened": [f"region {name}"]} if found.saved.is_enforced and not enforce else {}
        self._change(model, found.version, name, "enforce" if enforce else "shadow", author, comment, **looser)
        return self._find(model, found.version, name)

    def remove(self, model: str, version: str, name: str, *, author: str = "", comment: str = "") -> ListedRegion:
        """Remove a region; returns it."""
        found = self._changeable(model, version, name)
        looser = {"loosened": [f"region {name}"]} if found.saved.is_enforced else {}
        self._change(model, found.version, name, "remove", author, comment, **looser)
        return found

    def preview(
        self,
        model: str,
        version: str = "",
        *,
        name: str = "",
        polygon: Sequence[tuple[float, float]] = (),
        since_ms: int = 0,
        until_ms: int = 0,
        examples: int = 10,
    ) -> Preview:
        """Points inside a saved region, given by its name, or inside any polygon.

        Parameters
        ----------
        model, version
            Of the map; an empty version for the active one.
        name, polygon
            One of the two.
        since_ms, until_ms
            Examine points received in this time, in Unix milliseconds; 0 for no bound.
        examples
            Number of examples, at most 100.
        """
        self._sync()
        version = self._version(model, version)
        if bool(name) == bool(len(polygon)):
            raise RequestError("polygon: give either a polygon or the name of a saved region", field="polygon")
        if not 0 <= examples <= _EXAMPLES:
            raise RequestError(f"examples: must be from 0 to {_EXAMPLES}, not {examples}", field="examples")
        found = self._find(model, version, name) if name else None
        region = self._region(model, version, "preview", polygon) if found is None else found.saved.region
        saved_ms = LATEST_MS if found is None else found.saved.saved_ms
        store = self._store()
        found_points = store.newest_inside(
            model,
            version,
            region,
            since_ms=since_ms,
            until_ms=until_ms or LATEST_MS,
            limit=MAX_EXAMINED,
            seconds=_PREVIEW_SECONDS,
        )
        inside = found_points.inside
        is_known, is_right, is_accepted = inside.is_labelled, inside.label == inside.predicted, inside.accepted
        rows = 1.0 / inside.odds
        ids = inside.take(np.lexsort((~is_accepted, ~(is_known & ~is_right)))[:examples]).id_bytes()
        reference = self._registry.version(model, version).reference
        held = region.inside(reference.points)
        labelled = held & (reference.labels >= 0)
        return Preview(
            region=region,
            reference_points=len(held),
            reference_inside=int(held.sum()),
            reference_accuracy=Share.of(np.equal(reference.labels, reference.predicted)[labelled]),
            examined=found_points.examined,
            since_ms=found_points.oldest_ms,
            accepted=found_points.accepted,
            inside=round(rows.sum()),
            inside_accepted=round(rows[is_accepted].sum()),
            inside_rejected=round(rows[inside.reason == Reason.REGION].sum()),
            accuracy=Share.of(is_right[is_known]),
            accepted_accuracy=Share.of(is_right[is_known & is_accepted]),
            new_accuracy=Share.of(is_right[is_known & (inside.received_ms > saved_ms)]),
            examples=store.points_by_id(model, version, ids),
        )

    def carry_over(
        self,
        model: str,
        name: str,
        version: str,
        to_version: str = "",
        *,
        save: bool = False,
        author: str = "",
        comment: str = "",
    ) -> CarryOver:
        """Find a region on the map of another version: around the points of its rows there.

        Parameters
        ----------
        model, name, version
            Of the region.
        to_version
            The other version; empty for the active one.
        save
            Whether to save the region found, as a shadow.
        author, comment
            For the audit trail.
        """
        self._sync()
        source, target = self._version(model, version), self._version(model, to_version)
        if source == target:
            raise RefusedError(f"region {name!r} belongs to this version already")
        old, new = self._registry.version(model, source), self._registry.version(model, target)
        region = self._find(model, source, name).saved.region
        if _has_same_map(old, new):
            found = CarryOver(target, region, True, 0, 0, 0, 0, 0)
        else:
            found = self._place(model, region, old, new)
        if save:
            saved = self.save(
                model,
                target,
                name,
                found.region.polygon,
                expires_ms=region.expires_ms,
                author=author,
                comment=comment or f"carried over from version {source[:12]}",
            )
            found = replace(found, saved=saved)
        return found

    def _place(self, model: str, region: Region, old: Version, new: Version) -> CarryOver:
        """The region on another map, from stored rows and from the old map at its reference points."""
        store = self._store()
        inside = store.newest_inside(
            model, old.version, region, since_ms=0, until_ms=LATEST_MS, limit=MAX_EXAMINED, seconds=_PREVIEW_SECONDS
        ).inside
        stored = store.points_by_id(model, old.version, inside.take(slice(_CARRIED)).id_bytes())
        newest = store.newest_points(PointFilter(model, old.version), limit=_CARRIED)
        outside = newest.take(~region.inside(newest.points))
        held = region.inside(old.reference.points)
        reference = _rows_at(old, old.reference.points)
        inside_rows = [_rows(stored, old), reference[held[: len(reference)]]]
        other_rows = [_rows(outside, old), reference[~held[: len(reference)]]]
        inside_points, other_points = (
            new.scorer.score(np.concatenate(rows)).points if sum(map(len, rows)) else np.empty((0, 2))
            for rows in (inside_rows, other_rows)
        )
        if len(inside_points) < _FEWEST:
            raise RefusedError(
                f"only {len(inside_points)} rows inside region {region.name!r} have probabilities, and {_FEWEST} are "
                "needed to find it on the other map; draw it again"
            )
        corners = _around(inside_points, new).tolist()
        found = self._region(model, new.version, region.name, corners, region.expires_ms)
        return CarryOver(
            version=new.version,
            region=found,
            is_same_map=False,
            stored_rows=len(inside_rows[0]),
            reference_rows=len(inside_rows[1]),
            rows_inside=int(found.inside(inside_points).sum()),
            other_rows=len(other_points),
            other_rows_inside=int(found.inside(other_points).sum()),
        )

    def _region(self, model: str, version: str, name: str, polygon: Sequence[Any], expires_ms: int = 0) -> Region:
        """A polygon on the map of a version."""
        try:
            region = Region(name, tuple(polygon), expires_ms)
        except ConfigError as error:
            raise RequestError(f"polygon: {error.message}", field="polygon") from None
        return region_on_strip(self._registry.version(model, version).embedder.student, region)

    def _change(self, model: str, version: str, name: str, action: str, author: str, comment: str, **what: Any) -> None:
        payload = {"version": version, "region": name, "action": action, **what}
        self._record("region", model, payload, author, comment)

    def _find(self, model: str, version: str, name: str) -> ListedRegion:
        """A region of a version, by default of the active one."""
        version = self._version(model, version)
        for each in self.listed(model, version):
            if each.saved.region.name == name:
                return each
        raise NotFoundError(f"version {version[:12]} of model {model!r} has no region {name[:100]!r}", field="name")

    def _changeable(self, model: str, version: str, name: str) -> ListedRegion:
        self._sync()
        found = self._find(model, version, name)
        if found.is_from_bundle:
            raise RefusedError(f"region {name!r} is part of its bundle; deploy a bundle without it")
        return found

    def _check_corners(self, model: str, added: ListedRegion) -> None:
        """Refuse to enforce a region if scoring would have to compare points with too many sides."""
        enforced = [each.saved.region for each in self.listed(model, added.version) if each.saved.is_enforced]
        corners = sum(len(region.polygon) for region in (*enforced, added.saved.region))
        if corners > MAX_ENFORCED_CORNERS:
            raise RefusedError(
                f"enforced regions would have {corners:,} corners; the limit is {MAX_ENFORCED_CORNERS:,}: draw them "
                "with fewer corners, or make another one a shadow"
            )

    def _of_bundle(self, model: str, version: str) -> Sequence[Region]:
        try:
            return self._registry.version(model, version).gate.at(self._now_ms()).regions
        except DarkSightError:
            # Its file is missing or damaged; saved regions can still be listed.
            return ()

    def _state(self, model: str) -> ModelState:
        found = self._registry.state.models.get(model)
        if found is None:
            raise NotFoundError(f"model {model[:100]!r} does not exist", field="model")
        return found

    def _version(self, model: str, version: str) -> str:
        state = self._state(model)
        return find_version(model, state, version) if version else state.active

    def _now_ms(self) -> int:
        return int(self._registry.clock() * 1000.0)


def _has_same_map(old: Version, new: Version) -> bool:
    """Whether two versions have the same map, and differ in calibration or gate alone."""
    before, after = old.embedder, new.embedder
    mine, others = before.tensors(), after.tensors()
    return (
        before.settings() == after.settings()
        and mine.keys() == others.keys()
        and all(np.array_equal(mine[name], others[name]) for name in mine)
    )


def _rows(points: PointTable, version: Version) -> Floats:
    """Stored probabilities of points, scaled to a sum of one, (n, K)."""
    if points.probs.shape[1] != version.embedder.n_inputs:
        return np.empty((0, version.embedder.n_inputs))
    rows = points.probs.astype(np.float64)
    sums = rows.sum(axis=1, keepdims=True)
    is_whole = np.isfinite(sums[:, 0]) & (sums[:, 0] > 0.5)
    found: Floats = rows[is_whole] / sums[is_whole]
    return found


def _rows_at(version: Version, points: NDArray[np.float32]) -> Floats:
    """Probabilities that the map gives these points, (m, K); no rows if it shows a part of the classes only."""
    embedder = version.embedder
    if embedder.columns is not None:
        return np.empty((0, embedder.n_inputs))
    # The temperature softened rows before they were placed.
    return np.exp(log_softmax(embedder.temperature * embedder.student.log_posterior(points.astype(np.float64))))


def _around(points: Floats, version: Version) -> Floats:
    """Corners of a polygon around most points."""
    centre = np.median(points, axis=0)
    spread = np.median(np.abs(points - centre), axis=0)
    distance = np.hypot(*((points - centre) / np.where(spread > 0.0, spread, 1.0)).T)
    near = points[distance <= np.quantile(distance, _KEPT)]
    margin = _MARGIN * float(np.ptp(version.reference.points, axis=0).max())
    steps = margin * np.array([(-1.0, -1.0), (1.0, -1.0), (1.0, 1.0), (-1.0, 1.0)])
    return hull((hull(near)[:, None] + steps).reshape(-1, 2))
