"""The options of a fit on a command line, for `darksight fit` and for `torchrun -m darksight_core.fit` alike.

Apart from `fit`, so that a command line can be shown where torch is not installed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from darksight_core.errors import ConfigError

__all__ = ["add_fit_options", "class_columns", "out_path", "shares"]


def add_fit_options(parser: argparse.ArgumentParser) -> None:
    """Add what a fit may be told."""
    parser.add_argument(
        "predictions",
        nargs="+",
        metavar="FILE",
        help=".npz, .npy, .csv or .parquet; of .parquet also several, or a quoted pattern such as 'day/*.parquet'",
    )
    parser.add_argument(
        "--out", type=Path, metavar="BUNDLE", help="bundle to write (default: FILE's name with .safetensors)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an existing bundle")
    parser.add_argument(
        "--logits", action="store_true", help="the values of FILE are logits (.npy cannot say so itself)"
    )
    parser.add_argument("--method", choices=["fast", "paper", "paper-cd", "svd"], default="fast", help="how to fit")
    parser.add_argument("--dof", type=float, default=2.0, help="degrees of freedom of the class densities")
    parser.add_argument("--scale", choices=["fixed", "shared", "per-class"], default="fixed", help="class scales")
    parser.add_argument("--temperature", type=float, default=1.0, help="soften rows; above 1 spreads points apart")
    parser.add_argument("--classes", metavar="A,B,...", help="map these classes only (names or numbers)")
    parser.add_argument("--spread-penalty", type=float, default=4e-8, help="larger gives a more compact map")
    parser.add_argument("--starts", type=int, help="random starts of fast (default: by the number of classes)")
    parser.add_argument("--epochs", type=int, default=1_000, help="epochs of the paper methods")
    parser.add_argument("--anneal", action="store_true", help="lower the temperature from 20 to 1 (paper methods)")
    parser.add_argument(
        "--init", choices=["gauss", "centre"], default="centre", help="where points start (paper methods)"
    )
    parser.add_argument(
        "--split", type=shares, default=(0.6, 0.3, 0.1), help="share of rows to fit, calibrate and test"
    )
    parser.add_argument(
        "--sample",
        type=int,
        metavar="N",
        help="draw N rows in one pass and fit these: rows to calibrate and test alike from all, rows to fit half alike "
        "and half by entropy",
    )
    parser.add_argument("--refine-steps", type=int, default=5, help="Newton steps when new rows are placed")
    parser.add_argument("--seed", type=int, default=0, help="same rows, seed and machine give the same bundle")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument(
        "--resume", action="store_true", help="continue from the checkpoints of a killed fit in BUNDLE.checkpoints"
    )


def shares(text: str) -> tuple[float, float, float]:
    """Parse `0.6,0.3,0.1`."""
    try:
        fit, calibrate, test = (float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not three numbers such as 0.6,0.3,0.1") from None
    return fit, calibrate, test


def out_path(args: argparse.Namespace, ending: str = ".safetensors") -> Path:
    """The file to write."""
    if args.out is None and len(args.predictions) > 1:
        raise ConfigError("--out is needed to name the bundle of several files")
    return Path(args.out or Path(args.predictions[0].replace("*", "all")).with_suffix(ending))


def class_columns(text: str | None, class_names: tuple[str, ...], source: str) -> tuple[int, ...] | None:
    """Class names or numbers, separated by commas, as column numbers; None, for all, of None."""
    if text is None:
        return None
    found = []
    for name in (part.strip() for part in text.split(",")):
        if name in class_names:
            found.append(class_names.index(name))
        elif name.isdigit() and int(name) < len(class_names):
            found.append(int(name))
        else:
            raise ConfigError(f"--classes names {name!r}, which is no class of {source}")
    if len(set(found)) < max(2, len(found)):
        raise ConfigError(f"--classes {text} must name at least two different classes, each once")
    return tuple(found)
