"""A bundle, and the difference of two, as text for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from darksight_core.bundle.parts import Bundle
from darksight_core.bundle.summary import class_list
from darksight_core.rows.simplex import Floats

__all__ = ["describe", "describe_raw", "diff"]

_SETTINGS = ("fit_config", "embed", "outlier_score", "calibration", "gate", "certificate", "fidelity")
_ALPHAS = (0.01, 0.05)


def describe(bundle: Bundle) -> str:
    """What a bundle is and what it can do, in a few lines."""
    return "\n".join([bundle.title, *(f"  {name:<12} {text}" for name, text in bundle.facts())])


def describe_raw(bundle: Bundle) -> str:
    """All settings and figures of a bundle under the names that they have in its manifest."""
    manifest, splits, embedder = bundle.manifest, bundle.splits, bundle.embedder
    names = bundle.class_names
    created = f" at {manifest['created_at']}" if manifest["created_at"] else ""
    lines = [
        bundle.title,
        *([f"  file         {bundle.path}"] if bundle.path else []),
        *([f"  version      {bundle.version}"] if bundle.version else []),
        f"  written by   {manifest['created_by']}{created}",
        f"  classes      {class_list(names)}",
    ]
    if embedder.columns is not None:
        lines.append(f"  on the map   {', '.join(names[column] for column in embedder.columns)}")
    lines += [
        f"  rows         fit {splits.fit.n}, calibrate {splits.calibrate.n}, test {splits.test.n}",
        f"  network      {embedder.network.second.shape[1]} hidden units, "
        f"then {embedder.refine_steps} Newton steps from it or one of {len(embedder.anchors)} anchors",
        f"  density      bandwidth {bundle.kde.bandwidth:.4g}, {len(bundle.reference.points)} points to look at",
        f"  probes       {len(bundle.probes.inputs)}",
        *_section("fit", manifest["fit_config"]),
        *_section("fidelity", manifest["fidelity"]),
        *_section("warnings", {str(k): text for k, text in enumerate(bundle.warnings)} or None),
        *_describe_calibration(bundle),
        *_section("gate", manifest["gate"]),
        *_section("certificate", manifest["certificate"]),
        *_describe_estimate(bundle),
    ]
    return "\n".join(lines)


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


def _describe_calibration(bundle: Bundle) -> list[str]:
    calibration = bundle.calibration
    if len(calibration) == 0:
        return ["calibration", "  none: every p-value is 1"]
    lines = ["calibration", f"  p-values     rank of outlier_score among {len(calibration)}"]
    for alpha in _ALPHAS:
        threshold = _threshold(bundle, alpha)
        text = "too few rows" if threshold is None else f"outlier_score < {threshold:.4g}"
        lines.append(f"  p <= {alpha:<7g} {text}")
    return lines


def _describe_estimate(bundle: Bundle) -> list[str]:
    model = bundle.accuracy_model
    if model is None:
        return ["accuracy without labels", "  none: the fit had too few labels"]
    return [
        "accuracy without labels",
        f"  reference    {model.accuracy:.4f} on {model.rows} labelled rows",
        f"  back-test    mean absolute error {model.error:.4f} on {len(model.errors)} windows, with up to "
        f"{model.largest_outlier_share:.1%} outliers",
    ]


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


def _section(title: str, values: Mapping[str, Any] | None) -> list[str]:
    if values is None:
        return [title, "  none"]
    pairs = [(name.partition(".")[2], value) for name, value in _flatten(title, values)]
    width = max([12, *(len(name) for name, _ in pairs)])
    return [title, *(f"  {name:<{width}} {value}" for name, value in pairs)]


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
