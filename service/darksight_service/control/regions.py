"""Regions of a map where an analyst refuses: saved, tried, enforced, removed, and carried over to the next map.

A region belongs to one bundle: on another map the same polygon is another place. It begins as a shadow, which changes
no decision, and what it would refuse can be previewed on stored points at any time. Enforced, it turns accepted rows
into rejected ones, and nothing else. All of it is in the audit trail.

Labels that a region was drawn by flatter it: whoever encloses the mistakes that can be seen finds few right predictions
inside. A preview therefore tells the accuracy of points that came after it was saved apart.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from darksight_core.errors import ConfigError, DarkSightError
from darksight_core.map.regions import MAX_REGIONS, Region, hull
from darksight_core.scored import Reason
from darksight_core.simplex import Floats, log_softmax
from darksight_service.control.registry import Registry, Version, find_version
from darksight_service.control.state import Change, ModelState, SavedRegion
from darksight_service.errors import NotFoundError, RefusedError, RequestError
from darksight_service.store.read.live_accuracy import Share

if TYPE_CHECKING:
    from darksight_service.store import Store, StoredPoint

__all__ = ["LATEST_MS", "MAX_LOOKED_AT", "CarryOver", "ListedRegion", "Preview", "Regions"]

LATEST_MS = 253_402_300_799_999
"""The end of the year 9999: later times are invalid in protobuf and in the database."""

MAX_LOOKED_AT = 50_000
"""Newest stored points that a preview looks at."""

_EXAMPLES = 100
_CARRIED = 5_000
_FEWEST = 10
# Of the rows inside the most remote are left out: one row that strayed would stretch the new polygon over the map.
_KEPT = 0.95
# How far the new polygon goes beyond the rows, as a part of the map's width.
_MARGIN = 0.005


@dataclass(frozen=True, slots=True)
class ListedRegion:
    """A region with the version it belongs to; one that came with its bundle cannot be changed."""

    version: str
    saved: SavedRegion
    is_from_bundle: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Preview:
    """What a region holds.

    Parameters
    ----------
    region
        Of a name that may stand for nothing yet.
    reference_points, reference_inside
        Points that the map was fitted on and the bundle kept, and those of them inside.
    reference_accuracy
        How often the classifier was right about those inside, where that is known.
    looked_at, since_ms
        The newest stored points that were compared with the region, at most `MAX_LOOKED_AT`, and when the oldest of
        them was received.
    accepted
        Those of them that were accepted.
    inside, inside_accepted, inside_refused
        Those inside, those of them that were accepted and would be rejected, and those that a region refused already.
    accuracy, accepted_accuracy
        How often the classifier was right about those inside and those that would be rejected, where that is known.
        Optimistic about the region if it was drawn by these labels.
    fresh_accuracy
        The same for those inside that were received after the region was saved, so by which it was not drawn.
    examples
        Some of those inside: wrong ones first, then accepted ones, then the newest.
    """

    region: Region
    reference_points: int
    reference_inside: int
    reference_accuracy: Share
    looked_at: int
    since_ms: int
    accepted: int
    inside: int
    inside_accepted: int
    inside_refused: int
    accuracy: Share
    accepted_accuracy: Share
    fresh_accuracy: Share
    examples: Sequence[StoredPoint]

    @property
    def accepted_share(self) -> float | None:
        """The part of accepted traffic that would be rejected; None if none was accepted."""
        return self.inside_accepted / self.accepted if self.accepted else None

    def counts(self) -> dict[str, Any]:
        """Its numbers of points by name, as every answer has them."""
        names = ("reference_points", "reference_inside", "looked_at", "accepted", "inside", "inside_accepted")
        return {name: getattr(self, name) for name in (*names, "inside_refused")}

    def shares(self) -> dict[str, Share]:
        """Its accuracies by name."""
        names = ("reference_accuracy", "accuracy", "accepted_accuracy", "fresh_accuracy")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True)
class CarryOver:
    """A region as it would be on another version's map.

    Parameters
    ----------
    version
        That version.
    region
        The polygon there.
    is_same_map
        Whether both versions have one map, so that the polygon is the same.
    stored_rows, reference_rows
        Rows inside the old polygon that were placed on the new map: stored ones, and such as the map says stand at the
        places of reference points.
    held
        Those of both that the new polygon holds.
    others, taken_in
        Rows from outside the old polygon that were placed too, and those of them that the new one takes in.
    saved
        The region as it was saved; None if that was not asked for.
    """

    version: str
    region: Region
    is_same_map: bool
    stored_rows: int
    reference_rows: int
    held: int
    others: int
    taken_in: int
    saved: ListedRegion | None = None

    def counts(self) -> dict[str, Any]:
        """Its numbers of rows by name, and whether none had to be placed."""
        names = ("is_same_map", "stored_rows", "reference_rows", "held", "others", "taken_in")
        return {name: getattr(self, name) for name in names}


class Regions:
    """What an analyst can do; a part of `Control`.

    Parameters
    ----------
    registry
        Of this worker.
    store
        Gives the store, with the audit trail.
    record
        Writes a change: kind, model, payload, author, comment.
    catch_up
        Takes over what others changed.
    clock
        Unix time in seconds.
    """

    def __init__(
        self,
        registry: Registry,
        store: Callable[[], Store],
        record: Callable[[str, str, dict[str, Any], str, str], None],
        catch_up: Callable[[], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._registry = registry
        self._store = store
        self._record = record
        self._catch_up = catch_up
        self._clock = clock

    def listed(self, model: str, version: str = "") -> list[ListedRegion]:
        """Regions that have not ended, of one version or, if none is named, of all."""
        self._registry.refresh()
        now_ms = self._now_ms()
        state = self._state(model)
        wanted = [self._version(model, version)] if version else list(state.versions)
        found = []
        for each in wanted:
            found += [
                ListedRegion(each, saved)
                for saved in state.versions[each].regions.values()
                if not saved.is_over(now_ms)
            ]
            found += [
                ListedRegion(each, SavedRegion(region, is_enforced=True), is_from_bundle=True)
                for region in self._of_bundle(model, each)
            ]
        return found

    def history(self, model: str) -> Sequence[Change]:
        """Changes of regions, the latest first."""
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
        """Add a region to the map of a version, or of the active one if none is named, as a shadow."""
        self._catch_up()
        version = self._version(model, version)
        region = _region(name, polygon, expires_ms)
        if 0 < expires_ms <= self._now_ms():
            raise RequestError("expires_at: is in the past", field="expires_at")
        if expires_ms > LATEST_MS:
            raise RequestError("expires_at: is after the year 9999", field="expires_at")
        taken = [each.saved.region.name for each in self.listed(model, version)]
        if name in taken:
            raise RefusedError(f"the version has a region {name!r}; remove that one, or choose another name")
        if len(taken) >= MAX_REGIONS:
            raise RefusedError(f"the version has {len(taken)} regions, and more are not kept; remove some")
        what = {"polygon": region.settings()["polygon"], "expires_ms": expires_ms}
        self._change(model, version, name, "save", author, comment, **what)
        found = self._find(model, version, name)
        if found.saved.region != region:
            raise RefusedError(f"somebody else saved a region {name!r} at the same moment; choose another name")
        return found

    def set_mode(
        self, model: str, version: str, name: str, *, enforce: bool, author: str = "", comment: str = ""
    ) -> ListedRegion:
        """Let the gate refuse inside a region, or no longer."""
        found = self._changeable(model, version, name)
        self._change(model, found.version, name, "enforce" if enforce else "shadow", author, comment)
        return self._find(model, found.version, name)

    def remove(self, model: str, version: str, name: str, *, author: str = "", comment: str = "") -> ListedRegion:
        """End a region; what it was."""
        found = self._changeable(model, version, name)
        self._change(model, found.version, name, "remove", author, comment)
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
        """What a region would reject: a saved one by its name, or any polygon.

        Parameters
        ----------
        model, version
            Whose map; an empty version for the active one.
        name, polygon
            One of the two.
        since_ms, until_ms
            Look at points received in this time, in Unix milliseconds; 0 for no bound.
        examples
            Points to show, at most 100.
        """
        self._catch_up()
        version = self._version(model, version)
        if bool(name) == bool(len(polygon)):
            raise RequestError("polygon: give a polygon, or the name of a saved region", field="polygon")
        if not 0 <= examples <= _EXAMPLES:
            raise RequestError(f"examples: up to {_EXAMPLES} are shown, not {examples}", field="examples")
        found = self._find(model, version, name) if name else None
        region = _region("preview", polygon, 0) if found is None else found.saved.region
        saved_ms = self._now_ms() if found is None else found.saved.saved_ms
        store = self._store()
        inside = store.newest_inside(
            model, version, region, since_ms=since_ms, until_ms=until_ms or self._now_ms() + 1, limit=MAX_LOOKED_AT
        )
        is_known, is_right = inside.label >= 0, inside.label == inside.predicted
        order = np.lexsort((~inside.is_accepted, ~(is_known & ~is_right)))[:examples]
        reference = self._registry.version(model, version).reference
        held = region.inside(reference.points)
        labelled = held & (reference.labels >= 0)
        return Preview(
            region=region,
            reference_points=len(held),
            reference_inside=int(held.sum()),
            reference_accuracy=Share.of(np.equal(reference.labels, reference.predicted)[labelled]),
            looked_at=inside.looked_at,
            since_ms=inside.oldest_ms,
            accepted=inside.accepted_in_all,
            inside=len(inside),
            inside_accepted=int(inside.is_accepted.sum()),
            inside_refused=int((inside.reason == Reason.REGION).sum()),
            accuracy=Share.of(is_right[is_known]),
            accepted_accuracy=Share.of(is_right[is_known & inside.is_accepted]),
            fresh_accuracy=Share.of(is_right[is_known & (inside.received_ms > saved_ms)]),
            examples=store.points_by_id(model, version, [inside.ids[number] for number in order.tolist()]),
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
        """Propose a region for another version's map: around where the rows inside it are there.

        Parameters
        ----------
        model, name, version
            Of the region.
        to_version
            Whose map; empty for the active one.
        save
            Whether to save what was found, as a shadow.
        author, comment
            For the audit trail.
        """
        self._catch_up()
        source, target = self._version(model, version), self._version(model, to_version)
        if source == target:
            raise RefusedError(f"region {name!r} is on this version's map already")
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
        """The region on another map, by stored rows and by what the old map says about reference points."""
        store = self._store()
        until_ms = self._now_ms() + 1
        ids = store.newest_inside(model, old.version, region, since_ms=0, until_ms=until_ms, limit=MAX_LOOKED_AT).ids[
            :_CARRIED
        ]
        from darksight_service.store import PointFilter

        stored = store.points_by_id(model, old.version, ids)
        around = store.list_points(PointFilter(model, old.version), page_size=_CARRIED).points
        places = np.array([(point.x, point.y) for point in around], dtype=np.float64).reshape(-1, 2)
        outside = [point for point, is_held in zip(around, region.inside(places).tolist(), strict=True) if not is_held]
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
                f"only {len(inside_points)} rows inside region {region.name!r} are known with their probabilities, and "
                f"{_FEWEST} are needed to find the place again; draw it anew"
            )
        found = _region(region.name, _around(inside_points, new).tolist(), region.expires_ms)
        return CarryOver(
            version=new.version,
            region=found,
            is_same_map=False,
            stored_rows=len(inside_rows[0]),
            reference_rows=len(inside_rows[1]),
            held=int(found.inside(inside_points).sum()),
            others=len(other_points),
            taken_in=int(found.inside(other_points).sum()),
        )

    def _change(self, model: str, version: str, name: str, action: str, author: str, comment: str, **what: Any) -> None:
        payload = {"version": version, "region": name, "action": action, **what}
        self._record("region", model, payload, author, comment)

    def _find(self, model: str, version: str, name: str) -> ListedRegion:
        """A region of a version, or of the active one if none is named."""
        version = self._version(model, version)
        for each in self.listed(model, version):
            if each.saved.region.name == name:
                return each
        raise NotFoundError(f"version {version[:12]} of model {model!r} has no region {name[:100]!r}", field="name")

    def _changeable(self, model: str, version: str, name: str) -> ListedRegion:
        self._catch_up()
        found = self._find(model, version, name)
        if found.is_from_bundle:
            raise RefusedError(f"region {name!r} is a part of its bundle; deploy a bundle without it")
        return found

    def _of_bundle(self, model: str, version: str) -> Sequence[Region]:
        try:
            return self._registry.version(model, version).gate.at(self._now_ms()).regions
        except DarkSightError:
            # Its file is gone or damaged; what is saved for it can still be listed.
            return ()

    def _state(self, model: str) -> ModelState:
        found = self._registry.state.models.get(model)
        if found is None:
            raise NotFoundError(f"there is no model {model[:100]!r}", field="model")
        return found

    def _version(self, model: str, version: str) -> str:
        state = self._state(model)
        return find_version(model, state, version) if version else state.active

    def _now_ms(self) -> int:
        return int(self._clock() * 1000.0)


def _region(name: str, polygon: Sequence[Any], expires_ms: int) -> Region:
    try:
        return Region(name, tuple(polygon), expires_ms)
    except ConfigError as error:
        raise RequestError(f"polygon: {error.message}", field="polygon") from None


def _has_same_map(old: Version, new: Version) -> bool:
    """Whether two versions place every row at the same point: they differ in calibration or gate alone."""
    before, after = old.embedder, new.embedder
    mine, others = before.tensors(), after.tensors()
    return (
        before.settings() == after.settings()
        and mine.keys() == others.keys()
        and all(np.array_equal(mine[name], others[name]) for name in mine)
    )


def _rows(points: Sequence[StoredPoint], version: Version) -> Floats:
    """Probabilities of stored points as far as they were kept, with a sum of one again, (n, K)."""
    kept = [point.probs for point in points if len(point.probs) == version.embedder.n_inputs]
    rows = np.array(kept, dtype=np.float64).reshape(-1, version.embedder.n_inputs)
    sums = rows.sum(axis=1, keepdims=True)
    is_whole = np.isfinite(sums[:, 0]) & (sums[:, 0] > 0.5)
    found: Floats = rows[is_whole] / sums[is_whole]
    return found


def _rows_at(version: Version, points: NDArray[np.float32]) -> Floats:
    """What the map says stands at these points, (m, K); no rows if it shows a part of the classes only."""
    embedder = version.embedder
    if embedder.columns is not None:
        return np.empty((0, embedder.n_inputs))
    # Rows were softened by the temperature before they were placed.
    return np.exp(log_softmax(embedder.temperature * embedder.student.log_posterior(points.astype(np.float64))))


def _around(points: Floats, version: Version) -> Floats:
    """Corners of a polygon around nearly all points."""
    centre = np.median(points, axis=0)
    spread = np.median(np.abs(points - centre), axis=0)
    distance = np.hypot(*((points - centre) / np.where(spread > 0.0, spread, 1.0)).T)
    near = points[distance <= np.quantile(distance, _KEPT)]
    margin = _MARGIN * float(np.ptp(version.reference.points, axis=0).max())
    steps = margin * np.array([(-1.0, -1.0), (1.0, -1.0), (1.0, 1.0), (-1.0, 1.0)])
    return hull((hull(near)[:, None] + steps).reshape(-1, 2))
