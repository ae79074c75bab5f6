"""A picture of images whose label the adaptation corrected, and of images whose label it made wrong.

    contact_sheet(predictions, Path("contact.png"), title="StatA on …")

The images are a random sample of both groups; the headings have the total counts.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..features.image_source import find_images
from ..files import written_by_rename
from ..images.pixels import open_image
from .predictions import Predictions
from .result import NO_CLASS_NAME

COLUMNS, ROWS = 8, 2  # of images, per group, unless given
DPI = 150
SIDE, GAP = 192 / DPI, 0.22  # inches: side of an image (a picture of 96 pixels is doubled), and gap between images
TEXT = 0.78  # inches: the three lines of text below an image
TOP, LINE, BAND = 0.74, 0.26, 0.5  # inches: title, a line below it, and heading of a group
LONGEST = 16  # letters of a class name that are shown
INK, MUTED, GOOD, BAD = "#1b1f24", "#5b646e", "#1a7f4b", "#b3261e"


def contact_sheet(
    predictions: Predictions, path: str | Path, title: str, seed: int = 0, columns: int = COLUMNS, rows: int = ROWS
) -> Path:
    """Write the picture as PNG; columns, rows: of images, in each group. These must be on disk and have true labels."""
    from matplotlib.figure import Figure

    features = predictions.features
    if features.labels is None:
        raise InputError(
            "a contact sheet needs true labels, and these features have none. "
            "Extract them from a folder with one sub-folder per class."
        )
    files = find_images(features, predictions.root)
    truth, before, after = (
        labels.numpy() for labels in (features.labels, predictions.zero_shot_labels, predictions.labels)
    )
    corrected = np.flatnonzero((before != truth) & (after == truth))
    broken = np.flatnonzero((before == truth) & (after != truth))
    stayed = int((before == after).sum())

    width = columns * (SIDE + GAP) + GAP
    wrong = len(truth) - stayed - len(corrected) - len(broken)
    counts = f"{stayed:,} of {len(truth):,} labels did not change; {wrong:,} changed from wrong to wrong"
    about = textwrap.wrap(f"{counts}. The true label is in bold.", round(10 * width))
    top = TOP + LINE * len(about)
    height = top + 2 * (BAND + rows * (SIDE + TEXT)) + GAP
    figure = Figure(figsize=(width, height), facecolor="white")

    def write(x: float, y: float, text: str, size: float, colour: str = INK, weight: str = "normal") -> None:
        """Write text at (x, y), in inches from the left and from the top."""
        figure.text(x / width, 1 - y / height, text, size=size, color=colour, weight=weight, parse_math=False)

    def name(classes: NDArray[np.int64], index: int) -> str:
        found = (*features.head.class_names, NO_CLASS_NAME)[int(classes[index])]  # the last one for −1
        return found if len(found) <= LONGEST else found[: LONGEST - 1] + "…"

    write(GAP, 0.42, title, 17, weight="bold")
    for at, line in enumerate(about):
        write(GAP, 0.74 + LINE * at, line, 12, MUTED)
    random = np.random.default_rng(seed)
    for kind, found, colour in (("corrected", corrected, GOOD), ("broken", broken, BAD)):
        shown = sorted(random.permutation(found)[: columns * rows].tolist())
        how = f", a random sample of {len(shown)}" if len(shown) < len(found) else ""
        write(GAP, top + 0.25, f"{len(found):,} {kind}{how}", 14, colour, "bold")
        for at, index in enumerate(shown):
            x, y = GAP + at % columns * (SIDE + GAP), top + BAND + at // columns * (SIDE + TEXT)
            axes = figure.add_axes((x / width, 1 - (y + SIDE) / height, SIDE / width, SIDE / height))
            axes.imshow(np.asarray(open_image(files[index])), interpolation="bicubic")
            axes.set_axis_off()
            write(x, y + SIDE + 0.2, name(truth, index), 9.5, weight="bold")
            write(x, y + SIDE + 0.4, f"was {name(before, index)}", 9, MUTED)
            write(x, y + SIDE + 0.59, f"now {name(after, index)}", 9, colour)
        top += BAND + rows * (SIDE + TEXT)
    with written_by_rename(path) as temporary:
        figure.savefig(temporary, format="png", dpi=DPI)
    return Path(path)
