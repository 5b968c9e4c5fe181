"""The map as an anywidget: arrays go to the browser once, and the polygon of a lasso comes back.

Which rows are inside is decided here, by the rule of the gate (`Region.inside`), not in the browser.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from darksight_core.bundle import Bundle
from darksight_core.errors import ConfigError
from darksight_core.map.palette import class_colours
from darksight_core.map.regions import Region
from darksight_core.map.strip import region_on_strip, spread_over_strip
from darksight_core.map.student import Student
from darksight_core.runtime.scorer import Scorer

try:
    import anywidget
    import traitlets
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"the interactive map needs {error.name}; run: pip install 'darksight[notebook]'", name=error.name
    ) from error

__all__ = ["MapWidget"]

_SHOWN_CLASSES = 3


class MapWidget(anywidget.AnyWidget):
    """An interactive map: hover shows a row, a lasso selects rows, regions are outlined.

    Drag to move, turn the wheel to zoom, double-click to see everything; hold Shift and drag to draw a lasso.

    Parameters
    ----------
    points
        Places on the map, (n, 2).
    predicted
        Predicted class, (n,).
    labels
        True class, (n,); -1 or None where it is not known. Wrong predictions are crosses.
    class_names
        Names of all classes; by default their numbers.
    probs
        Rows on the simplex, (n, K): hover shows the largest of each.
    student
        θ of the map, for class centres and for the strip of two classes; without it there are no stars.
    regions
        Regions to outline.
    height
        Height in pixels.

    Attributes
    ----------
    selected
        Rows inside the last lasso, (m,); `observe(function, "lasso")` follows it.
    """

    _esm = Path(__file__).parent / "map.js"

    # Float32 and int32, little endian, as the browser's typed arrays read them.
    points = traitlets.Bytes().tag(sync=True)
    predicted = traitlets.Bytes().tag(sync=True)
    labels = traitlets.Bytes().tag(sync=True)
    top_classes = traitlets.Bytes().tag(sync=True)
    top_probs = traitlets.Bytes().tag(sync=True)
    inside = traitlets.Bytes().tag(sync=True)
    class_names = traitlets.List(traitlets.Unicode()).tag(sync=True)
    colours = traitlets.List(traitlets.Unicode()).tag(sync=True)
    centres: traitlets.List[Any] = traitlets.List().tag(sync=True)
    shapes: traitlets.List[Any] = traitlets.List().tag(sync=True)
    lasso: traitlets.List[Any] = traitlets.List().tag(sync=True)
    height = traitlets.Int(460).tag(sync=True)

    def __init__(
        self,
        points: ArrayLike,
        predicted: ArrayLike,
        labels: ArrayLike | None = None,
        *,
        class_names: Sequence[str] = (),
        probs: ArrayLike | None = None,
        student: Student | None = None,
        regions: Iterable[Region] = (),
        height: int = 460,
    ) -> None:
        places, classes = np.asarray(points, dtype=np.float32), np.asarray(predicted, dtype=np.int32)
        truth = np.full(len(places), -1) if labels is None else np.asarray(labels)
        if places.shape != (len(places), 2) or classes.shape != (len(places),) or truth.shape != classes.shape:
            raise ConfigError(f"a map needs points (n, 2) with n classes and labels, not {places.shape} points, "
                              f"{classes.shape} classes and {truth.shape} labels")  # fmt: skip
        self._student = student
        self._places = places if student is None else spread_over_strip(student, places)
        count = max(len(class_names), int(max(classes.max(initial=0), truth.max(initial=0))) + 1)
        top_classes, top_probs = _largest(probs)
        super().__init__(
            points=self._places.astype("<f4").tobytes(),
            predicted=classes.astype("<i4").tobytes(),
            labels=truth.astype("<i4").tobytes(),
            top_classes=top_classes.astype("<i4").tobytes(),
            top_probs=top_probs.astype("<f4").tobytes(),
            class_names=[*class_names, *map(str, range(len(class_names), count))],
            colours=class_colours(count),
            centres=[] if student is None else student.means.tolist(),
            shapes=[{"name": region.name, "polygon": region.polygon} for region in regions],
            height=height,
        )

    @classmethod
    def of_bundle(cls, bundle: Bundle, probs: ArrayLike | None = None, labels: ArrayLike | None = None) -> MapWidget:
        """The map of a bundle, with its reference points or with other rows, and the regions of its gate.

        Parameters
        ----------
        bundle
            A bundle.
        probs
            Rows to place on the map, (n, K); by default the reference points of the bundle.
        labels
            True classes of these rows, (n,).
        """
        regions = () if bundle.gate is None else bundle.gate.regions
        options: dict[str, Any] = {
            "class_names": bundle.class_names, "student": bundle.embedder.student, "regions": regions,
        }  # fmt: skip
        if probs is None:
            reference = bundle.reference
            widget = cls(reference.points, reference.predicted, reference.labels, **options)
            widget.top_classes = reference.top_classes[:, :_SHOWN_CLASSES].astype("<i4").tobytes()
            widget.top_probs = reference.top_probs[:, :_SHOWN_CLASSES].astype("<f4").tobytes()
            return widget
        rows = np.asarray(probs)
        return cls(Scorer.of(bundle).score(rows).points, rows.argmax(axis=1), labels, probs=rows, **options)

    @property
    def selected(self) -> NDArray[np.intp]:
        """Rows inside the last lasso, (m,)."""
        return np.flatnonzero(np.frombuffer(self.inside, dtype=np.uint8))

    def region(self, name: str) -> Region:
        """The last lasso as a region, for `Gate(regions=...)` and `darksight region add`; ConfigError without one."""
        if not self.lasso:
            raise ConfigError("draw a lasso first: hold Shift and drag")
        drawn = Region(name, tuple((x, y) for x, y in self.lasso))
        return drawn if self._student is None else region_on_strip(self._student, drawn)

    @traitlets.observe("lasso")
    def _select(self, change: Any) -> None:
        try:
            found = Region("lasso", tuple((x, y) for x, y in self.lasso)).inside(self._places)
        except ConfigError:
            # A click, or a line: it encloses nothing.
            found = np.zeros(len(self._places), dtype=np.bool_)
        self.inside = found.astype(np.uint8).tobytes()


def _largest(probs: ArrayLike | None) -> tuple[NDArray[np.intp], NDArray[np.floating]]:
    """The most probable classes of each row with their probabilities; empty without rows."""
    if probs is None:
        return np.empty(0, dtype=np.intp), np.empty(0)
    rows = np.asarray(probs)
    classes = np.argsort(-rows, axis=1, kind="stable")[:, :_SHOWN_CLASSES]
    return classes, np.take_along_axis(rows, classes, axis=1)
