"""The classifier that the demo monitors, and the traffic that it sends to it.

scikit-learn's digits are bitmaps of 32 × 32 pixels, reduced to 8 × 8 by counting the pixels of each 4 × 4 block, 0 to
16. Letters are drawn and reduced in the same way, so that only the class is new about them.
"""

from __future__ import annotations

import warnings
from functools import lru_cache
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from darksight_core.rows.simplex import Floats

__all__ = ["KINDS", "alter", "digits_predictions", "draw_letters"]

KINDS = {
    "clean": "digits that were used neither for training, nor for the map, nor for the gate",
    "noisy": "digits with pixel noise, as from a failing camera",
    "rotated": "digits rotated by 30 degrees, as from a camera that slipped",
    "sideways": "digits rotated by 90 degrees; the networks predict 4 for nearly all of them, with high confidence",
    "letters": "a new class: printed capital letters",
}
"""Kinds of traffic, with a description of each."""

_FOLDS = 5
_FACES = ("Sans", "Sans-Bold", "Sans-Oblique", "SansMono", "SansMono-Bold", "Serif", "Serif-Bold", "Serif-Italic")


def digits_predictions(kind: str = "clean") -> tuple[NDArray[np.float32], NDArray[np.int64], Floats]:
    """Predictions (1797, 10) for traffic of one of `KINDS`, labels of the digits, and the images.

    Each of five networks predicts the fifth of the images that it was not trained on.
    """
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    altered = alter(images / 16.0, kind)
    probs = np.empty((len(altered), 10), dtype=np.float32)
    for network, rest in _networks():
        probs[rest] = network.predict_proba(altered[rest])
    return probs, labels.astype(np.int64), altered


@lru_cache(maxsize=1)
def _networks() -> list[tuple[Any, NDArray[np.int64]]]:
    """Five networks, each with the images that it was not trained on."""
    from sklearn.datasets import load_digits
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.model_selection import StratifiedKFold
    from sklearn.neural_network import MLPClassifier

    images, labels = load_digits(return_X_y=True)
    found = []
    for train, rest in StratifiedKFold(_FOLDS, shuffle=True, random_state=0).split(images, labels):
        network = MLPClassifier((32,), alpha=1e-3, batch_size=64, max_iter=40, random_state=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            network.fit(images[train] / 16.0, labels[train])
        found.append((network, rest))
    return found


def alter(images: Floats, kind: str) -> Floats:
    """Images of digits (n, 64) in [0, 1] as traffic of a kind; for `letters`, as many letters instead."""
    if kind == "clean":
        return images
    if kind == "noisy":
        noise = np.random.default_rng(0).normal(scale=0.35, size=images.shape)
        noisy: Floats = np.clip(images + noise, 0.0, 1.0)
        return noisy
    if kind == "rotated":
        return _rotate(images, 30.0)
    if kind == "sideways":
        return np.rot90(images.reshape(-1, 8, 8), axes=(1, 2)).reshape(images.shape)
    return draw_letters(len(images))


def draw_letters(n: int) -> Floats:
    """Printed capital letters in eight faces, slightly rotated, (n, 64) in [0, 1]; the same in every call."""
    from matplotlib import get_data_path
    from PIL import Image, ImageDraw, ImageFont

    folder = Path(get_data_path(), "fonts", "ttf")
    faces = [ImageFont.truetype(folder / f"DejaVu{face}.ttf", 32) for face in _FACES]
    rng = np.random.default_rng(2)
    found = np.empty((n, 64))
    for row in found:
        picture = Image.new("L", (64, 64))
        letter = ascii_uppercase[rng.integers(26)]
        ImageDraw.Draw(picture).text((32, 32), letter, fill=255, font=faces[rng.integers(len(faces))], anchor="mm")
        rotated = picture.rotate(float(rng.uniform(-10.0, 10.0)), Image.Resampling.BILINEAR)
        # Digits fill the height and leave a margin left and right.
        bitmap = np.zeros((32, 32))
        bitmap[:, 4:28] = np.asarray(rotated.crop(rotated.getbbox()).resize((24, 32))) > 127
        row[:] = bitmap.reshape(8, 4, 8, 4).mean(axis=(1, 3)).ravel()
    return found


def _rotate(images: Floats, degrees: float) -> Floats:
    """Images rotated about their centre, at the resolution of the original bitmaps."""
    from PIL import Image

    found = np.empty_like(images)
    for row, image in zip(found, images, strict=True):
        picture = Image.fromarray((255.0 * image.reshape(8, 8)).astype(np.uint8)).resize((32, 32))
        rotated = np.asarray(picture.rotate(degrees, Image.Resampling.BILINEAR), dtype=np.float64) / 255.0
        row[:] = rotated.reshape(8, 4, 8, 4).mean(axis=(1, 3)).ravel()
    return found
