"""The differences of two bundles, as text for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from darksight_core.bundle.parts import Bundle
from darksight_core.rows.simplex import Floats

__all__ = ["diff"]

_SETTINGS = ("fit_config", "embed", "outlier_score", "calibration", "gate", "certificate", "fidelity")
_ALPHAS = (0.01, 0.05)


def diff(a: Bundle, b: Bundle) -> list[str]:
    """What differs from bundle a to bundle b, one line for each difference; empty if nothing does."""
    if a.version and a.version == b.version:
        return []
    lines = []
    if a.class_names != b.class_names:
        lines.append(f"class_names: {', '.join(a.class_names)} -> {', '.join(b.class_names)}")
    for name in ("created_by", "created_at"):
        if a.manifest[name] != b.manifest[name]:
            lines.append(f"{name}: {_text(a.manifest[name])} -> {_text(b.manifest[name])}")
    for part in ("fit", "calibrate", "test"):
        old, new = getattr(a.splits, part), getattr(b.splits, part)
        if old.sha256 != new.sha256:
            lines.append(f"rows.{part}: {old.n} -> {new.n}" + (", others" if old.n == new.n else ""))
    for section in _SETTINGS:
        before, after = (dict(_flatten(section, bundle.manifest.get(section))) for bundle in (a, b))
        for name in before | after:
            old, new = before.get(name, "none"), after.get(name, "none")
            if old != new:
                lines.append(f"{name}: {old} -> {new}")
    return lines + _diff_centres(a, b) + _diff_numbers(a, b)


def _threshold(bundle: Bundle, alpha: float) -> float | None:
    """Score below which p <= alpha, or nothing when the smallest p-value is larger."""
    scores = bundle.calibration.scores
    rank = int(np.floor(alpha * (len(scores) + 1) + 1e-9))
    return float(scores[rank - 1]) if 1 <= rank <= len(scores) else None


def _diff_centres(a: Bundle, b: Bundle) -> list[str]:
    """How far class centres moved, as they are and after the best turn, since a map may be turned at will."""
    old, new = a.embedder.student.means, b.embedder.student.means
    if a.class_names != b.class_names or old.shape != new.shape or np.array_equal(old, new):
        return []
    radius = float(np.hypot(*(old - old.mean(axis=0)).T).max())
    moved = np.hypot(*(new - old).T)
    turned = np.hypot(*(_align(old, new) - old).T)
    return [
        f"centres: moved by {moved.mean():.4g} on average and {moved.max():.4g} at most, by {turned.mean():.4g} and "
        f"{turned.max():.4g} after the best shift and turn, on a map of radius {radius:.4g}"
    ]


def _align(old: Floats, new: Floats) -> Floats:
    """Points `new`, shifted, turned and mirrored to be as near to `old` as they can."""
    centre_old, centre_new = old.mean(axis=0), new.mean(axis=0)
    left, _, right = np.linalg.svd((new - centre_new).T @ (old - centre_old))
    aligned: Floats = (new - centre_new) @ (left @ right) + centre_old
    return aligned


def _diff_numbers(a: Bundle, b: Bundle) -> list[str]:
    """Bandwidth and outlier thresholds, which are in no manifest."""
    pairs: list[tuple[str, float | None, float | None]] = [("kde.bandwidth", a.kde.bandwidth, b.kde.bandwidth)]
    pairs += [(f"threshold at p <= {alpha:g}", _threshold(a, alpha), _threshold(b, alpha)) for alpha in _ALPHAS]
    return [f"{name}: {_text(old)} -> {_text(new)}" for name, old, new in pairs if old != new]


def _flatten(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Leaves of a nested value, under names with dots."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flatten(f"{name}.{key}", inner)
    elif isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
        for number, item in enumerate(value):
            rest = {key: inner for key, inner in item.items() if key != "name"}
            yield from _flatten(f"{name}.{item.get('name', number)}", rest)
    else:
        yield name, _text(value)


def _text(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:.6g}"
    return ", ".join(_text(item) for item in value) if isinstance(value, list | tuple) else str(value)
