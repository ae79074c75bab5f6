"""Fashion-MNIST as Debian's package dataset-fashion-mnist installs it: gzipped IDX files."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

DIRECTORY = Path("/usr/share/datasets/fashion-mnist")
CLASSES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
HELD_OUT = 5_000  # the last training images: never trained on, the logit scale is calibrated on them


def read(directory: Path, part: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images (n×28×28, 0 to 255) and labels (n) of `part`, "train" or "t10k"."""
    images = _idx(directory / f"{part}-images-idx3-ubyte.gz", header=16).reshape(-1, 28, 28)
    labels = _idx(directory / f"{part}-labels-idx1-ubyte.gz", header=8).astype(np.int64)
    return images, labels


def _idx(path: Path, header: int) -> NDArray[np.uint8]:
    if not path.exists():
        sys.exit(
            f"{path} is missing. Install Debian's package dataset-fashion-mnist, or pass --data with the "
            "directory of the four .gz files of Fashion-MNIST."
        )
    with gzip.open(path) as file:
        return np.frombuffer(file.read(), dtype=np.uint8, offset=header)
