"""The demo of the page: bundled pictures as a folder that somebody might have, with realistic trouble.

Of 178 classes 40 are shown, drawn at random, with all their pictures: 800. The person names 176 classes: two of those
shown are forgotten, so 40 pictures are "none of these" until somebody adds the class that is missing.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..encoders.tiny import bundled_classes, unpack
from ..images.image_set import readable
from ..ranges import seed_number

SHOWN, FORGOTTEN = 40, 2  # classes
SEED = 0


def demo_images(place: Path, seed: int = SEED) -> tuple[Path, tuple[str, ...]]:
    """Unpack the pictures into `place`, by class, and return it with the class names to use."""
    folders = bundled_classes()
    drawn = np.random.default_rng(seed_number(seed)).permutation(len(folders))[:SHOWN]
    forgotten = {folders[number] for number in drawn[:FORGOTTEN]}
    unpack(place, {folders[number] for number in drawn})
    return place, tuple(readable(name) for name in folders if name not in forgotten)
