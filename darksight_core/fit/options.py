"""The options of a fit on a command line, for `darksight fit` and for `torchrun -m darksight_core.fit`.

Both read them from the dataclasses below and from `FitConfig`: a field is an option, its docstring entry the help text.
Needs no torch, so that bad options are refused before torch is imported.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from darksight_core.errors import ConfigError, did_you_mean
from darksight_core.fit.config import FitConfig

__all__ = ["BundleOptions", "FitOptions", "RowOptions"]


@dataclass(frozen=True, slots=True)
class RowOptions:
    """Which rows to fit, and how to read them.

    Parameters
    ----------
    logits
        The values in FILE are logits. Only .npy files need this option.
    classes
        Fit a map of these classes only: names or numbers, separated by commas. If FILE has tokens of a language model
        and does not name their classes, these are all of them.
    split
        Shares of the rows for fit, calibration and test.
    sample
        Fit a sample of this many rows, drawn in one pass. Calibration and test rows are sampled uniformly, fit rows
        half uniformly and half by entropy.
    """

    logits: bool = False
    classes: str | None = None
    split: str = "0.6,0.3,0.1"
    sample: int | None = None

    def shares(self) -> tuple[float, float, float]:
        """Shares of the rows for fit, calibration and test."""
        try:
            fit, calibrate, test = (float(part) for part in self.split.split(","))
        except ValueError:
            raise ConfigError(f"--split is {self.split!r}; it must be three numbers such as 0.6,0.3,0.1") from None
        return fit, calibrate, test

    def class_names(self) -> tuple[str, ...]:
        """The names or numbers of `classes`."""
        return () if self.classes is None else tuple(part.strip() for part in self.classes.split(","))

    def columns(self, class_names: tuple[str, ...], source: str) -> tuple[int, ...] | None:
        """Column numbers of the classes to map; None for all classes."""
        if self.classes is None or self.class_names() == class_names:
            return None
        found = []
        for name in self.class_names():
            if name in class_names:
                found.append(class_names.index(name))
            elif name.isdigit() and int(name) < len(class_names):
                found.append(int(name))
            else:
                raise ConfigError(f"--classes: {source} has no class {name!r}; {did_you_mean(name, class_names)}")
        if len(set(found)) < max(2, len(found)):
            raise ConfigError(f"--classes {self.classes}: name at least two different classes, each once")
        return tuple(found)


@dataclass(frozen=True, slots=True)
class BundleOptions:
    """The bundle that a fit writes.

    Parameters
    ----------
    out
        Bundle to write. Default: the name of FILE with the suffix .safetensors.
    overwrite
        Replace an existing file.
    refine_steps
        Newton steps that the bundle uses to place new rows.
    top_k
        Numbers of most probable classes, separated by commas, by which rows to score may be known. Rows of FILE that
        are known so need no such option.
    resume
        Continue an interrupted fit from its last checkpoint.
    """

    out: Path | None = None
    overwrite: bool = False
    refine_steps: int = 5
    top_k: str | None = None
    resume: bool = False

    def tops(self) -> tuple[int, ...]:
        """Numbers of most probable classes."""
        try:
            return tuple(int(part) for part in (self.top_k or "").split(",") if part)
        except ValueError:
            raise ConfigError(f"--top-k is {self.top_k!r}; it must be numbers such as 5 or 5,20") from None


@dataclass(frozen=True, slots=True)
class FitOptions:
    """All options of a fit.

    Parameters
    ----------
    predictions
        Names of files, or patterns such as `day/*.parquet`.
    rows, config, bundle
        Options of the rows, of the map and of the bundle.
    """

    predictions: tuple[str, ...]
    rows: RowOptions
    config: FitConfig
    bundle: BundleOptions

    def out(self, suffix: str = ".safetensors") -> Path:
        """The file to write."""
        if self.bundle.out is not None:
            return self.bundle.out
        if len(self.predictions) > 1:
            raise ConfigError("several files need --out to name the bundle")
        return Path(self.predictions[0].replace("*", "all")).with_suffix(suffix)
