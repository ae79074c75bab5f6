"""Draw the pictures of the README and of the guide: labels before and after, on simulated pictures.

python benchmarks/draw_readme.py  # docs/before_after.png: the default draw of `kedge pictures`
kedge demo --out build/demo
python benchmarks/draw_readme.py --demo build/demo  # docs/labels.png: all pictures of the demo
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

import kedge
from kedge.encoders.tiny import bundled_classes
from kedge.images.image_set import readable
from kedge.images.pixels import open_image
from kedge.labelling.classify import label
from kedge.labelling.contact_sheet import BAD, GOOD, INK, MUTED, contact_sheet
from kedge.methods.registry import build
from kedge.words import percent

DOCS = Path(__file__).parents[1] / "docs"
COLOURS = 256  # of the file, so that it is small
COLUMNS, ROWS, SEED = 6, 2, 0
DPI, SIDE, GAP, TEXT, TOP = 184, 1.1, 0.2, 0.46, 0.88  # dots per inch; inches: image, gap, text below it, title


def before_after(folder: Path, picture: Path) -> None:
    """Twelve pictures, drawn at random from those whose label changed: the encoder's label, and kedge's below it."""
    found = kedge.classify(folder, [readable(name) for name in bundled_classes()], encoder="tiny")
    assert found.features.labels is not None
    assert found.paths is not None
    names = found.features.head.class_names
    truth, before, after = (x.numpy() for x in (found.features.labels, found.zero_shot_labels, found.labels))
    changed = np.flatnonzero(before != after)
    right = {kind: int((labels[changed] == truth[changed]).sum()) for kind, labels in (("old", before), ("new", after))}
    neither = len(changed) - right["old"] - right["new"]

    width = COLUMNS * (SIDE + GAP) + GAP
    height = TOP + ROWS * (SIDE + TEXT + GAP)
    figure = Figure(figsize=(width, height), facecolor="white")

    def write(x: float, y: float, text: str, size: float, colour: str, weight: str = "normal") -> None:
        figure.text(x / width, 1 - y / height, text, size=size, color=colour, weight=weight, parse_math=False)

    accuracy = (float((labels == truth).mean()) for labels in (before, after))
    title = "{} of the labels are right with the encoder alone, {} with kedge".format(*map(percent, accuracy))
    write(GAP, 0.26, title, 12.5, INK, "bold")
    counts = f"{right['new']} became right, {right['old']} wrong, {neither} stayed wrong"
    set_ = f"{len(truth)} simulated pictures of {len(set(truth))} classes, {len(names)} names to choose from"
    write(GAP, 0.48, f"{set_}. {len(changed)} labels changed: {counts}.", 7.8, MUTED)
    shown = f"Here are {COLUMNS * ROWS} of the {len(changed)}, drawn at random"
    write(GAP, 0.66, f"{shown}. Above: the encoder's label. Below, in bold: kedge's label.", 7.8, MUTED)
    for at, i in enumerate(np.random.default_rng(SEED).permutation(changed)[: COLUMNS * ROWS].tolist()):
        x, y = GAP + at % COLUMNS * (SIDE + GAP), TOP + at // COLUMNS * (SIDE + TEXT + GAP)
        axes = figure.add_axes((x / width, 1 - (y + SIDE) / height, SIDE / width, SIDE / height))
        axes.imshow(np.asarray(open_image(folder / found.paths[i])), interpolation="bicubic")
        axes.set_axis_off()
        for line, labels in enumerate((before, after)):
            mark, colour = ("✓", GOOD) if labels[i] == truth[i] else ("✗", BAD)
            text = f"{mark} {names[labels[i]]}"
            write(x, y + SIDE + 0.18 + 0.2 * line, text, 8.8, colour, "bold" if line else "normal")
    figure.savefig(picture, dpi=DPI)
    shrink(picture)


def labels(demo: Path, picture: Path) -> None:
    """A random sample of the labels that kedge corrected and broke on all pictures of the demo."""
    predictions = label(kedge.FeatureSet.load(demo / "features.safetensors"), build("kedge"))
    title = "kedge on 3,560 simulated photographs"
    contact_sheet(predictions, picture, title, columns=4, rows=1)  # narrow: its words can be read on a phone
    shrink(picture)


def shrink(picture: Path) -> None:
    """Make the file smaller: few colours, with dithering."""
    with Image.open(picture) as image:
        small = image.convert("RGB")
    small.quantize(palette=small.quantize(COLOURS)).save(picture, optimize=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--demo", type=Path, help="draw docs/labels.png instead, from the folder of `kedge demo`")
    if demo := parser.parse_args().demo:
        labels(demo, DOCS / "labels.png")
    else:
        with tempfile.TemporaryDirectory() as temporary:
            before_after(kedge.pictures(Path(temporary) / "photos"), DOCS / "before_after.png")
