"""Make docs/labels.png, the picture in the README: pictures with their labels before and after.

kedge demo --out build/demo
python tools/readme_picture.py build/demo
"""

from __future__ import annotations

import sys
from pathlib import Path

from PIL import Image

from kedge import FeatureSet
from kedge.labelling.classify import label
from kedge.labelling.contact_sheet import contact_sheet
from kedge.methods.registry import build

PICTURE = Path(__file__).parents[1] / "docs" / "labels.png"
TITLE = "kedge on 3,560 simulated photographs of 178 classes: labels before and after"
WIDTH, COLOURS = 1400, 256  # so that the file is below 300 kB


def main(demo: Path) -> None:
    """Label the demo's pictures together and draw a random sample of changed labels."""
    predictions = label(FeatureSet.load(demo / "features.safetensors"), build("kedge"))
    contact_sheet(predictions, PICTURE, TITLE, rows=1)
    with Image.open(PICTURE) as image:
        small = image.convert("RGB").resize((WIDTH, WIDTH * image.height // image.width), Image.Resampling.LANCZOS)
    small.quantize(palette=small.quantize(COLOURS)).save(PICTURE, optimize=True)  # with dithering


if __name__ == "__main__":
    main(Path(sys.argv[1]))
