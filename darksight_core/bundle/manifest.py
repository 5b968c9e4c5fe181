"""The schema of a manifest: what each entry is, and the bounds of each number.

A valid hash does not say who wrote a file. So the bounds below are checked before any part is built, and together they
bound the time and the memory that loading a bundle takes. Entries that are not listed, such as those of `fit_config`,
are for people: no computation reads them, and only their size is bounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from darksight_core.bundle.container import MAX_FILE
from darksight_core.bundle.defects import defect
from darksight_core.gate.segment_thresholds import MAX_THRESHOLDS
from darksight_core.map.regions import MAX_CORNERS, MAX_ENFORCED_CORNERS, MAX_NAME, MAX_REGIONS
from darksight_core.predictions.raw_rows import MAX_CLASSES
from darksight_core.rows.tags import MAX_KEY, MAX_VALUE
from darksight_core.scores.outlier import AXES

__all__ = ["MAX_CALIBRATION", "MAX_STEPS", "check_manifest"]

MAX_STEPS = 100
"""Most Newton steps of a bundle; more than ten change no point."""

MAX_CALIBRATION = MAX_FILE // 14
"""Most calibration rows: a score of 8 bytes, a class of 2 and a largest probability of 4 for each fill a file."""

_MAX_ROWS = 10**15
_MAX_TEXT = 100_000
_MAX_DEPTH = 16
_MAX_LEVELS = 16
_MAX_NUMBER = 1e300


class _Rule(Protocol):
    def problem(self, value: object) -> str:
        """What is wrong with a value, beginning with the name of the entry inside it; empty if nothing is."""


@dataclass(frozen=True, slots=True)
class _Number:
    low: float
    high: float
    kinds: tuple[type, ...] = (int, float)

    def problem(self, value: object) -> str:
        # type() and not isinstance, because True is an int.
        if type(value) in self.kinds and self.low <= value <= self.high:  # type: ignore[operator]  # kinds are numbers
            return ""
        kind = "a number" if float in self.kinds else "an integer"
        return f" must be {kind} from {self.low:.12g} to {self.high:.12g}"


def _integer(low: int, high: int) -> _Number:
    return _Number(low, high, (int,))


@dataclass(frozen=True, slots=True)
class _Threshold(_Number):
    """A number, or the text of minus infinity, which JSON has no number for."""

    def problem(self, value: object) -> str:
        return "" if value == "-inf" else _Number.problem(self, value)


@dataclass(frozen=True, slots=True)
class _Text:
    longest: int = _MAX_TEXT
    shortest: int = 0

    def problem(self, value: object) -> str:
        if isinstance(value, str) and self.shortest <= len(value) <= self.longest and "\0" not in value:
            return ""
        return f" must be a text of {self.shortest} to {self.longest} characters without NUL"


@dataclass(frozen=True, slots=True)
class _OneOf:
    values: tuple[object, ...]

    def problem(self, value: object) -> str:
        if any(type(value) is type(each) and value == each for each in self.values):
            return ""
        return f" must be one of {', '.join(map(str, self.values))}"


@dataclass(frozen=True, slots=True)
class _List:
    of: _Rule
    longest: int
    shortest: int = 0

    def problem(self, value: object) -> str:
        if not isinstance(value, list) or not self.shortest <= len(value) <= self.longest:
            return f" must be a list of {self.shortest} to {self.longest} entries"
        return next((f"[{k}]{text}" for k, each in enumerate(value) if (text := self.of.problem(each))), "")


@dataclass(frozen=True, slots=True)
class _Map:
    """Entries of one kind by any name."""

    of: _Rule
    longest: int

    def problem(self, value: object) -> str:
        if not isinstance(value, dict) or len(value) > self.longest:
            return f" must be an object of at most {self.longest} entries"
        return next((f".{name[:100]}{text}" for name, each in value.items() if (text := self.of.problem(each))), "")


@dataclass(frozen=True, slots=True)
class _OrNull:
    rule: _Rule

    def problem(self, value: object) -> str:
        return "" if value is None else self.rule.problem(value)


@dataclass(frozen=True, slots=True)
class _Section:
    """Entries by name; those of `optional` may be missing, and others may be there."""

    required: Mapping[str, _Rule]
    optional: Mapping[str, _Rule] = field(default_factory=dict)

    def problem(self, value: object) -> str:
        if not isinstance(value, dict):
            return " must be an object"
        for name in self.required:
            if name not in value:
                return f".{name} is missing"
        for name, rule in (*self.required.items(), *self.optional.items()):
            if name in value and (text := rule.problem(value[name])):
                return f".{name}{text}"
        return ""


_FLAG, _SHARE, _COUNT = _OneOf((True, False)), _Number(0.0, 1.0), _integer(0, _MAX_ROWS)
_SIZE, _REAL = _Number(0.0, _MAX_NUMBER), _Number(-_MAX_NUMBER, _MAX_NUMBER)
_SKETCH = _Section({"n": _COUNT, "n_distinct": _COUNT, "n_unique": _COUNT, "sha256": _Text(64, 64)})
_REGION = _Section(
    {"name": _Text(MAX_NAME, 1), "polygon": _List(_List(_Number(-3e38, 3e38), 2, 2), MAX_CORNERS + 1, 3)},
    {"expires_ms": _integer(0, 2**53)},
)
_LEVEL_GATE = _Section(
    {
        "outlier": _OrNull(
            _Section(
                {
                    "alpha": _SHARE,
                    "delta": _OrNull(_SHARE),
                    "rank": _integer(0, MAX_CALIBRATION),
                    "n": _integer(0, MAX_CALIBRATION),
                    "rows_needed": _COUNT,
                    "p_value": _SHARE,
                },
                {"class_limits": _List(_REAL, MAX_CLASSES, 2)},
            )
        ),
        "reject": _OrNull(
            _Section(
                {
                    "score": _Text(100),
                    "threshold": _Threshold(-_MAX_NUMBER, _MAX_NUMBER),
                    "rule": _Text(100),
                    "learned": _OrNull(
                        _Section({"features": _List(_Text(100), 100), "ridges": _List(_OrNull(_SIZE), 2, 2)})
                    ),
                },
                {
                    "segments": _Section(
                        {
                            "key": _Text(MAX_KEY, 1),
                            "thresholds": _List(
                                _Section(
                                    {
                                        "value": _Text(MAX_VALUE, 1),
                                        "threshold": _Threshold(-_MAX_NUMBER, _MAX_NUMBER),
                                    }
                                ),
                                MAX_THRESHOLDS,
                                1,
                            ),
                        }
                    ),
                    "class_thresholds": _List(_Threshold(-_MAX_NUMBER, _MAX_NUMBER), MAX_CLASSES, 2),
                },
            )
        ),
        "fail_open": _FLAG,
    },
    {
        "regions": _List(_REGION, MAX_REGIONS),
        "sets": _Section({"coverage": _SHARE, "limit": _SIZE, "penalty": _SIZE, "n": _COUNT}),
    },
)
_RESOLUTION = _Text(10, 4)
_GATE = _Section(
    _LEVEL_GATE.required,
    {**_LEVEL_GATE.optional, "resolution": _RESOLUTION, "levels": _Map(_LEVEL_GATE, _MAX_LEVELS)},
)
_OUTLIER_SCORE = _Section({f"{name}_slope": _SIZE for name in ("gen", "log_ratio", "direction")})
_PROMISE = _Section(
    {
        "promise": _Text(1_000),
        "kind": _OneOf(("accuracy", "coverage", "joint_risk", "false_alarms", "set_coverage")),
        "promised": _SHARE,
        "delta": _OrNull(_SHARE),
        "feasible": _FLAG,
    }
)
_CLASS_PROMISES = _Section({"promise": _Text(), "delta": _SHARE, "feasible": _FLAG})
_MANIFEST = _Section(
    {
        "created_by": _Text(),
        "created_at": _OrNull(_Text(100)),
        "class_names": _List(_Text(1_024, 1), MAX_CLASSES, 2),
        "fit_config": _Section({}),
        "fidelity": _Section(
            {},
            {
                "served": _Section(
                    dict.fromkeys(("total_variation", "kl_sym", "kl_sym_of_zeros", "acc_teacher"), _REAL),
                    dict.fromkeys(("star_agreement", "on_border"), _OrNull(_SHARE)),
                )
            },
        ),
        "embed": _Section(
            {
                "dof": _Number(1e-6, 1e6),
                "bound": _Number(1e-9, 1e9),
                "n_inputs": _integer(2, MAX_CLASSES),
                "refine_steps": _integer(0, MAX_STEPS),
                "temperature": _Number(1e-6, 1e6),
                "network_above": _SIZE,
            },
            {"columns": _OrNull(_List(_integer(0, MAX_CLASSES - 1), MAX_CLASSES, 2))},
        ),
        "outlier_score": _OUTLIER_SCORE,
        "resolutions": _Section(
            {
                "own": _RESOLUTION,
                "other_slope": _OrNull(_SIZE),
                "usual_coarser": _SHARE,
                "levels": _List(
                    _Section({"name": _RESOLUTION, "outlier_score": _OUTLIER_SCORE, "other_slope": _OrNull(_SIZE)}),
                    _MAX_LEVELS,
                ),
            }
        ),
        "calibration": _Section({"n": _integer(0, MAX_CALIBRATION)}),
        "splits": _Section(dict.fromkeys(("fit", "calibrate", "test"), _SKETCH)),
        "gate": _OrNull(_GATE),
        "certificate": _OrNull(
            _Section(
                {}, {**dict.fromkeys(("outlier", "reject", "sets"), _OrNull(_PROMISE)), "classes": _CLASS_PROMISES}
            )
        ),
        "accuracy_model": _OrNull(
            _Section(
                {
                    "accuracy": _SHARE,
                    "rows": _COUNT,
                    "curve": _List(_List(_SHARE, 10_000, 1), 2, 2),
                    "entropy_limit": _REAL,
                    "length": _SIZE,
                    "window": _COUNT,
                    "errors": _List(_Number(-1.0, 1.0), 10_000, 1),
                    "largest_gap": _SIZE,
                    "largest_outlier_share": _SHARE,
                }
            )
        ),
    },
    {"warnings": _List(_Text(), 100)},
)

_SHAPES: dict[str, tuple[int, ...]] = {
    "embed.anchors": (65_536,),
    "embed.network_second": (MAX_CLASSES, 4_096),
    "outlier_score.log_ratio_axes": (AXES,),
    "outlier_score.direction_axes": (AXES,),
    **{f"outlier_score.{name}_scores": (4_096,) for name in ("gen", "log_ratio", "direction")},
    "calibration.scores": (MAX_CALIBRATION,),
    **{f"split.{name}.hashes": (65_536,) for name in ("fit", "calibrate", "test")},
}
"""Largest dimensions of tensors on which the time of a load or of a row depends; others follow from these."""


def check_manifest(manifest: Mapping[str, Any], source: str) -> None:
    """Refuse an entry that is missing, of another kind or out of bounds."""
    problem = _MANIFEST.problem(manifest) or _size_problem(manifest, 0) or _tensor_problem(manifest["tensors"])
    problem = problem or _uniqueness_problem(manifest["class_names"]) or _promise_problem(manifest["certificate"])
    problem = problem or _corner_problem(manifest["gate"])
    if problem:
        raise defect(
            "bundle_manifest",
            source,
            f"the manifest has an invalid entry: {problem.lstrip('.')}. Fit the bundle again.",
        )


def _uniqueness_problem(names: list[str]) -> str:
    return "" if len(set(names)) == len(names) else "class_names must be unique"


def _promise_problem(certificate: Mapping[str, Any] | None) -> str:
    if certificate is None or any(certificate.get(name) for name in ("outlier", "reject", "classes", "sets")):
        return ""
    return "certificate must have a promise in outlier, reject, classes or sets"


def _corner_problem(gate: Mapping[str, Any] | None) -> str:
    corners = sum(len(region["polygon"]) for region in (gate or {}).get("regions", ()))
    if corners <= MAX_ENFORCED_CORNERS:
        return ""
    return f"gate.regions have {corners} corners; the limit is {MAX_ENFORCED_CORNERS}"


def _size_problem(value: object, depth: int) -> str:
    """What is too large or nested too deeply in any entry."""
    if depth > _MAX_DEPTH:
        return " is nested too deeply"
    if isinstance(value, dict):
        return next((f".{k[:100]}{text}" for k, each in value.items() if (text := _size_problem(each, depth + 1))), "")
    if isinstance(value, list):
        return next((f"[{k}]{text}" for k, each in enumerate(value) if (text := _size_problem(each, depth + 1))), "")
    if isinstance(value, str):
        return _Text().problem(value)
    return _REAL.problem(value) if type(value) in (int, float) else ""


def _tensor_problem(tensors: Mapping[str, Any]) -> str:
    """The first tensor that is too large; `container` has compared the shapes with the file."""
    for name, (_, shape) in tensors.items():
        limits = _SHAPES.get(name.split(".", 2)[2] if name.startswith("level.") else name, ())
        if any(length > limit for length, limit in zip(shape, limits, strict=False)):
            return f".tensors.{name} has shape {shape}; the limits are {list(limits)}"
    return ""
