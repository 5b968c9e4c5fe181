"""`darksight demo`: the main job end to end, on the handwritten digits that scikit-learn ships."""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from darksight_core.simplex import Floats
from darksight_service.cli.console import Bars, print_table, require, say

__all__ = ["add_parser", "digits_predictions", "run"]

_FOLDS = 5
_ALPHA = 0.01


def add_parser(commands: Any) -> None:
    """Add `demo` to the command line."""
    parser = commands.add_parser(
        "demo",
        help="train a small classifier on digits, fit its map, and score clean and corrupted traffic",
        description="Trains a small classifier on scikit-learn's digits, fits the map of its predictions, draws it, "
        "and scores clean, noisy and overlaid images. Takes about half a minute.",
    )
    parser.add_argument("--out", type=Path, default=Path("darksight-demo"), help="folder for its files (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the fit (%(default)s)")
    parser.set_defaults(run=run)


def digits_predictions(corruption: str = "clean") -> tuple[NDArray[np.float32], NDArray[np.int64], Floats]:
    """Predictions (1797, 10) for digits by networks that were not trained on them, labels, and the images shown.

    Each of five networks predicts the fifth of the images that it has not seen: `clean`, with `noise`, or `overlaid`
    by another digit.
    """
    from sklearn.datasets import load_digits
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.model_selection import StratifiedKFold
    from sklearn.neural_network import MLPClassifier

    images, labels = load_digits(return_X_y=True)
    images = images / 16.0
    shown = _corrupt(images, corruption)
    probs = np.empty((len(images), 10), dtype=np.float32)
    for train, rest in StratifiedKFold(_FOLDS, shuffle=True, random_state=0).split(images, labels):
        network = MLPClassifier((32,), alpha=1e-3, batch_size=64, max_iter=40, random_state=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            network.fit(images[train], labels[train])
        probs[rest] = network.predict_proba(shown[rest])
    return probs, labels.astype(np.int64), shown


def _corrupt(images: Floats, corruption: str) -> Floats:
    """Images as a broken camera or a new kind of input would show them."""
    if corruption == "clean":
        return images
    if corruption == "noise":
        return np.clip(images + np.random.default_rng(0).normal(scale=0.35, size=images.shape), 0.0, 1.0)
    overlaid: Floats = 0.5 * (images + np.random.default_rng(1).permutation(images))
    return overlaid


def run(args: argparse.Namespace) -> int:
    """Run the demonstration."""
    require("torch", "fit")
    require("matplotlib", "report")
    from darksight_core.fit import FitConfig
    from darksight_core.fit.pipeline import fit_bundle
    from darksight_core.predictions import from_arrays
    from darksight_core.scorer import Scorer
    from darksight_core.split import make_split
    from darksight_service.cli.fit import picture, summary

    args.out.mkdir(parents=True, exist_ok=True)
    say("training five small networks on digits; each predicts the images it has not seen")
    probs, labels, _ = digits_predictions()
    np.savez(args.out / "predictions.npz", probs=probs, labels=labels)
    bundle = args.out / "digits.safetensors"
    predictions = from_arrays(probs, labels=labels, source=str(args.out / "predictions.npz"))
    with Bars() as bars:
        report = fit_bundle(predictions, bundle, config=FitConfig(seed=args.seed), overwrite=True, report=bars)
    print_table(*summary(report))
    picture(report, args.out / "map.png")

    say("scoring traffic: images as they were, with noise, and two digits over each other")
    scorer = Scorer.load(bundle)
    test = make_split(len(labels), args.seed).test
    rows = []
    for corruption in ("clean", "noise", "overlaid"):
        probs, labels, _ = digits_predictions(corruption)
        where = test if corruption == "clean" else slice(None)
        right = probs[where].argmax(axis=1) == labels[where]
        usual = scorer.score(probs[where]).p_value > _ALPHA
        rows.append((corruption, len(right), 1.0 - usual.mean(), right.mean(), right[usual].mean()))
    print()
    print_table(
        [(name, n, *(f"{100 * share:.1f}%" for share in shares)) for name, n, *shares in rows],
        ("traffic", "rows", f"outliers (p <= {_ALPHA})", "accuracy", "accuracy of the rest"),
    )
    say(f"wrote {bundle}, {args.out / 'map.png'} and {args.out / 'predictions.npz'}")
    return 0
