"""Bundles to files and back, with every check that a bundle must pass before it is used.

`container` promises that a file is the one that was written. This module promises that what was written can work: the
parts fit each other, calibration rows were not fit rows, and the probe rows, whose scores were computed where the map
was fitted, get the same scores here. What could not be read back is not written.
"""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from darksight_core.bundle.container import Container, Tensors, decode, encode, read_bytes, version_of, write_bytes
from darksight_core.bundle.defects import defect
from darksight_core.bundle.levels import Level, Resolutions
from darksight_core.bundle.manifest import check_manifest
from darksight_core.bundle.parts import Bundle, Probes, Reference, SplitSketches
from darksight_core.drift.estimate import AccuracyModel
from darksight_core.drift.row_features import RowFeatures
from darksight_core.drift.segment_cells import SegmentCounts
from darksight_core.errors import BundleError, ConfigError
from darksight_core.gate.gate import Gate
from darksight_core.guarantees.calibration import Calibration
from darksight_core.map.density import Kde
from darksight_core.map.placement import Embedder
from darksight_core.predictions.sketch import MAX_LEAK, RowSketch, leak, overlap
from darksight_core.rows.resolution import name_of, number_of
from darksight_core.rows.simplex import Floats, log_probs, on_simplex
from darksight_core.scores.outlier import OutlierScore
from darksight_core.scores.ranks import RankTransform

__all__ = ["TOLERANCE", "decode_bundle", "encode_bundle", "read_bundle", "refuse_existing", "write_bundle"]

TOLERANCE = 1e-5
"""Largest difference of a probe's score, absolute and relative."""

_AGAIN = "Fit the bundle again."


def encode_bundle(bundle: Bundle, source: str = "bundle") -> bytes:
    """Bytes of the file of a bundle, checked as they will be when they are read."""
    manifest = {
        **bundle.manifest,
        "embed": bundle.embedder.settings(),
        "outlier_score": bundle.outlier_score.settings(),
        "calibration": {"n": len(bundle.calibration)},
        "resolutions": _resolution_settings(bundle.resolutions),
        "splits": {field.name: getattr(bundle.splits, field.name).settings() for field in fields(SplitSketches)},
        "accuracy_model": None if bundle.accuracy_model is None else bundle.accuracy_model.settings(),
    }
    data = encode(_tensors(bundle), manifest, source)
    decode_bundle(data, source, verify=True)
    return data


def write_bundle(path: str | Path, bundle: Bundle, *, overwrite: bool = False) -> str:
    """Write a bundle, wholly or not at all, and return its version.

    Parameters
    ----------
    path
        Where to; the usual suffix is `.safetensors`.
    bundle
        What to write. `dataclasses.replace` gives a bundle with another calibration or gate.
    overwrite
        Whether a file that is there already may be replaced.
    """
    path = Path(path)
    data = encode_bundle(bundle, str(path))
    write_bytes(path, data, overwrite)
    return version_of(data)


def refuse_existing(path: Path, *, overwrite: bool) -> None:
    """Refuse an output path before the long work, not after it."""
    if path.is_dir():
        raise ConfigError(f"{path} is a directory; name a file to write")
    if path.exists() and not overwrite:
        raise defect("bundle_exists", str(path), "already exists; use --overwrite or another name")
    if not path.parent.is_dir():
        raise ConfigError(f"{path.parent} does not exist; create the directory first")


def read_bundle(path: str | Path, verify: bool = True, source: str | None = None) -> Bundle:
    """Read a bundle; a BundleError of its own for every reason not to trust it.

    Parameters
    ----------
    path
        The file.
    verify
        Whether to score the probes and to compare fit with calibration rows too. Without, a bundle that must not be
        used can still be looked at.
    source
        Name of the file in messages; its path by default.
    """
    path = Path(path)
    source = str(path) if source is None else source
    return replace(decode_bundle(read_bytes(path, source), source, verify=verify), path=path)


def decode_bundle(data: bytes, source: str = "bundle", *, verify: bool = True) -> Bundle:
    """Inverse of `encode_bundle`, with the checks of `read_bundle`."""
    container = decode(data, source)
    check_manifest(container.manifest, source)
    bundle = _build(container, source)
    _check_tensors(container.tensors, _tensors(bundle), source)
    _check_classes(bundle, source)
    if verify:
        _check_rows(bundle, source)
        _check_probes(bundle, source)
    return bundle


def _tensors(bundle: Bundle) -> dict[str, NDArray[Any]]:
    """All arrays of a bundle under the names that they have in the file."""
    parts: dict[str, Tensors] = {
        "embed": bundle.embedder.tensors(),
        "kde": bundle.kde.tensors(),
        "outlier_score": bundle.outlier_score.tensors(),
        "calibration": bundle.calibration.tensors(),
        "reference": {field.name: getattr(bundle.reference, field.name) for field in fields(Reference)},
        "probe": {field.name: getattr(bundle.probes, field.name) for field in fields(Probes)},
        "gate": {} if bundle.gate is None else bundle.gate.tensors(),
        "segments": {} if bundle.segments is None else bundle.segments.tensors(),
        "features": {} if bundle.features is None else bundle.features.tensors(),
        "completion": _completion(bundle.resolutions),
    }
    parts |= {f"level.{name_of(level.number)}": level.tensors() for level in bundle.resolutions.coarser}
    for field in fields(SplitSketches):
        parts[f"split.{field.name}"] = getattr(bundle.splits, field.name).tensors()
    return {f"{part}.{name}": array for part, tensors in parts.items() for name, array in tensors.items()}


def _completion(resolutions: Resolutions) -> dict[str, NDArray[Any]]:
    other, weights = resolutions.own_other, resolutions.log_weights
    found: dict[str, NDArray[Any]] = {} if weights is None else {"log_weights": weights}
    return found if other is None else {**found, "other_scores": other.scores, "other_log_ranks": other.log_ranks}


def _resolution_settings(resolutions: Resolutions) -> dict[str, Any]:
    slope = None if resolutions.own_other is None else resolutions.own_other.slope
    levels = [{"name": name_of(level.number), **level.settings()} for level in resolutions.coarser]
    share = resolutions.usual_coarser
    return {"own": name_of(resolutions.own), "other_slope": slope, "levels": levels, "usual_coarser": share}


def _build(container: Container, source: str) -> Bundle:
    """The parts, as far as each can tell by itself that it is whole."""
    manifest = container.manifest
    estimate = manifest["accuracy_model"]

    def part(prefix: str) -> dict[str, NDArray[Any]]:
        start = f"{prefix}."
        return {name.removeprefix(start): a for name, a in container.tensors.items() if name.startswith(start)}

    def resolutions(settings: dict[str, Any]) -> Resolutions:
        coarser = (
            Level.from_tensors(number_of(each["name"]), part(f"level.{each['name']}"), each)
            for each in settings["levels"]
        )
        slope, arrays = settings["other_slope"], part("completion")
        other = None
        if slope is not None:
            other = RankTransform(arrays["other_scores"], arrays["other_log_ranks"], float(slope))
        own, share = number_of(settings["own"]), float(settings["usual_coarser"])
        return Resolutions(own, tuple(coarser), arrays.get("log_weights"), other, share)

    def sketch(name: str) -> RowSketch:
        return RowSketch.from_tensors(part(f"split.{name}"), manifest["splits"][name])

    try:
        outlier_score = OutlierScore.from_tensors(part("outlier_score"), manifest["outlier_score"])
        features = part("features")
        return Bundle(
            embedder=Embedder.from_tensors(part("embed"), manifest["embed"]),
            kde=Kde.from_tensors(part("kde")),
            outlier_score=outlier_score,
            calibration=Calibration.from_tensors(part("calibration")),
            reference=Reference(**part("reference")),
            probes=Probes(**part("probe")),
            splits=SplitSketches(**{field.name: sketch(field.name) for field in fields(SplitSketches)}),
            manifest=manifest,
            gate=None if manifest["gate"] is None else Gate.from_tensors(part("gate"), manifest["gate"]),
            resolutions=resolutions(manifest["resolutions"]),
            accuracy_model=None if estimate is None else AccuracyModel.from_settings(estimate),
            segments=SegmentCounts(**part("segments")) if part("segments") else None,
            features=RowFeatures(outlier_score.log_ratios.means, **features) if features else None,
            version=container.version,
        )
    except Exception as error:
        # A valid hash does not say who wrote the file, and invented values fail in ways that no list covers.
        reason = error if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"
        raise defect("bundle_parts", source, f"the bundle has an invalid part: {reason}. {_AGAIN}") from error


def _check_tensors(found: Tensors, needed: Tensors, source: str) -> None:
    """The tensors in the file must be those that its parts are made of, no more and of the same kind."""
    for name in sorted(needed.keys() - found.keys()):
        raise defect("bundle_tensor_missing", source, f"tensor {name} is missing. {_AGAIN}", tensor=name)
    for name in sorted(found.keys() - needed.keys()):
        raise defect("bundle_tensor_extra", source, f"tensor {name} belongs to no part. {_AGAIN}", tensor=name)
    for name, array in needed.items():
        if (array.dtype, array.shape) != (found[name].dtype, found[name].shape):
            raise defect(
                "bundle_tensor_spec",
                source,
                f"tensor {name} is {found[name].dtype} {found[name].shape} where {array.dtype} {array.shape} "
                f"is needed. {_AGAIN}",
                tensor=name,
            )


def _check_classes(bundle: Bundle, source: str) -> None:
    """All parts must be of one number of classes, and the calibration of its split."""
    classes = bundle.embedder.n_inputs
    reference = bundle.reference
    named = (reference.predicted, reference.labels, reference.top_classes, bundle.calibration.predicted)
    highest = max(int(each.max(initial=0)) for each in named if each is not None)
    rows, scores = bundle.splits.calibrate.n, len(bundle.calibration)
    if len(bundle.class_names) != classes:
        problem = f"there are {len(bundle.class_names)} class names for rows of {classes} probabilities"
    elif bundle.outlier_score.n_classes != classes:
        problem = f"known rows have {bundle.outlier_score.n_classes} probabilities, rows that come in {classes}"
    elif bundle.probes.inputs.shape[1] != classes:
        problem = f"probe rows have {bundle.probes.inputs.shape[1]} probabilities, rows that come in {classes}"
    elif highest >= classes:
        problem = f"a stored row has class {highest}, but there are {classes} classes"
    elif rows != scores or bundle.manifest["calibration"].get("n") != scores:
        problem = f"there are {scores} calibration scores of {rows} calibration rows"
    elif any(level.outlier_score.n_classes != classes or len(level.calibration) != scores for level in bundle.levels):
        problem = "a resolution has an outlier score of other classes, or a calibration of other rows"
    elif bundle.resolutions.log_weights is not None and bundle.resolutions.log_weights.shape != (classes, classes):
        problem = f"rows are completed by weights of shape {bundle.resolutions.log_weights.shape}"
    elif bundle.splits.fit.n == 0:
        problem = "there is no fit row"
    else:
        gates = () if bundle.gate is None else (bundle.gate, *bundle.gate.levels.values())
        problem = next((text for gate in gates if (text := _gate_problem(gate, classes, scores))), "")
    if problem:
        raise defect("bundle_parts", source, f"{problem}. {_AGAIN}")


def _gate_problem(gate: Gate, classes: int, scores: int) -> str:
    """Why a gate cannot be one of rows of so many classes and of so many calibration scores; empty if it can."""
    if gate.outlier is not None and gate.outlier.n != scores:
        return f"the gate's outlier rule is for {gate.outlier.n} calibration scores, not for {scores}"
    if gate.class_limits is not None and len(gate.class_limits) != classes:
        return f"the gate has limits of {len(gate.class_limits)} classes, not of {classes}"
    if len(gate.lowest_by_class) not in (1, classes):
        return f"the gate has thresholds of {len(gate.lowest_by_class)} classes, not of {classes}"
    if gate.learned is not None and len(gate.learned.offsets) != classes:
        return f"the gate's learned score is for {len(gate.learned.offsets)} classes, not for {classes}"
    return ""


def _check_rows(bundle: Bundle, source: str) -> None:
    leaked = leak(bundle.splits.fit, bundle.splits.calibrate)
    if leaked > MAX_LEAK:
        raise defect(
            "bundle_overlap",
            source,
            f"{leaked:.1%} or more of the calibration rows are fit rows, so p-values would be wrong. "
            "Calibrate on rows that the fit has not seen.",
            leak=leaked,
            overlap=overlap(bundle.splits.fit, bundle.splits.calibrate),
        )


def _check_probes(bundle: Bundle, source: str) -> None:
    """Score the probes in numpy and compare.

    A p-value is a rank, and a score that differs in its last digit may pass a calibration score. So what must hold is
    that the expected p-value belongs to a score within the tolerance.
    """
    probes, calibration = bundle.probes, bundle.calibration
    valid = on_simplex(probes.inputs.astype(np.float64))
    if not valid.all():
        row = int(np.argmin(valid))
        raise defect("bundle_probe", source, f"probe row {row} is not on the simplex. {_AGAIN}", row=row)
    try:
        with np.errstate(all="ignore"):
            found = _score_probes(bundle)
    except Exception as error:
        # As in _build: parts of values made up at will.
        reason = f"{type(error).__name__}: {error}"
        raise defect("bundle_probe", source, f"probes cannot be scored ({reason}). {_AGAIN}") from error
    for name in ("points", "log_density", "log_kde", "outlier_score"):
        expected, actual = getattr(probes, name), found[name]
        # NaN, from a row that is not on the simplex, is not near either.
        near = np.abs(actual - expected) <= TOLERANCE * (1.0 + np.abs(expected))
        if not near.all():
            raise _probe_error(source, name, int(np.argmin(near.reshape(len(expected), -1).all(axis=1))))
    score = found["outlier_score"]
    slack = TOLERANCE * (1.0 + np.abs(score))
    low, high = calibration.p_value(score - slack), calibration.p_value(score + slack)
    inside = (low - 1e-12 <= probes.p_value) & (probes.p_value <= high + 1e-12)
    if not inside.all():
        raise _probe_error(source, "p_value", int(np.argmin(inside)))


def _score_probes(bundle: Bundle) -> dict[str, Floats]:
    """Scores of the probe rows by name."""
    log_pi = log_probs(bundle.probes.inputs)
    points, _ = bundle.embedder.embed(log_pi)
    return {
        "points": points,
        "log_density": bundle.embedder.student.log_density(points),
        "log_kde": bundle.kde.log_density(points),
        "outlier_score": bundle.outlier_score.score(log_pi),
    }


def _probe_error(source: str, name: str, row: int) -> BundleError:
    return defect(
        "bundle_probe",
        source,
        f"{name} of probe row {row} is not what was computed at fit time, so scores here cannot be trusted. "
        "Fit the bundle again with this version, or install the one that wrote it.",
        score=name,
        row=row,
    )
