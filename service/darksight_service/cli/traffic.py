"""What the demo shows its classifier: handwritten digits as they are, damaged, and letters instead of digits.

scikit-learn's digits are bitmaps of 32 × 32 pixels of which each 4 × 4 block was counted, 0 to 16. Letters are drawn
and counted alike, so that what is new about them is the class and not the camera.
"""

from __future__ import annotations

from pathlib import Path
from string import ascii_uppercase

import numpy as np

from darksight_core.simplex import Floats

__all__ = ["KINDS", "draw_letters", "show"]

KINDS = {
    "clean": "digits that neither the networks, nor the map, nor the gate have seen",
    "noisy": "digits with pixel noise, as of a failing camera",
    "rotated": "digits turned by 30 degrees, as of a camera that slipped",
    "sideways": "digits turned by 90 degrees; the networks take nearly all for a 4, and are sure of it",
    "letters": "a new class, printed capital letters, of which the networks know nothing",
}
"""Kinds of traffic, and what they are."""

_FACES = ("Sans", "Sans-Bold", "Sans-Oblique", "SansMono", "SansMono-Bold", "Serif", "Serif-Bold", "Serif-Italic")


def show(images: Floats, kind: str) -> Floats:
    """Images of digits (n, 64) in [0, 1], as traffic of some kind would show them; as many letters for `letters`."""
    if kind == "clean":
        return images
    if kind == "noisy":
        noise = np.random.default_rng(0).normal(scale=0.35, size=images.shape)
        noisy: Floats = np.clip(images + noise, 0.0, 1.0)
        return noisy
    if kind == "rotated":
        return _turn(images, 30.0)
    if kind == "sideways":
        return np.rot90(images.reshape(-1, 8, 8), axes=(1, 2)).reshape(images.shape)
    return draw_letters(len(images))


def draw_letters(n: int) -> Floats:
    """Printed capital letters in eight faces, each a little turned, (n, 64) in [0, 1]; the same every time."""
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
        turned = picture.rotate(float(rng.uniform(-10.0, 10.0)), Image.Resampling.BILINEAR)
        # Digits fill the height and leave a margin left and right.
        bitmap = np.zeros((32, 32))
        bitmap[:, 4:28] = np.asarray(turned.crop(turned.getbbox()).resize((24, 32))) > 127
        row[:] = bitmap.reshape(8, 4, 8, 4).mean(axis=(1, 3)).ravel()
    return found


def _turn(images: Floats, degrees: float) -> Floats:
    """Images turned about their centre, at the resolution of the bitmaps they were counted from."""
    from PIL import Image

    found = np.empty_like(images)
    for row, image in zip(found, images, strict=True):
        picture = Image.fromarray((255.0 * image.reshape(8, 8)).astype(np.uint8)).resize((32, 32))
        turned = np.asarray(picture.rotate(degrees, Image.Resampling.BILINEAR), dtype=np.float64) / 255.0
        row[:] = turned.reshape(8, 4, 8, 4).mean(axis=(1, 3)).ravel()
    return found
