"""Render the drawings.

    python tools/tiny/render.py WORK

Each drawing is cropped to its outline and put into a square. Writes WORK/drawings.npy, n×4×128×128 bytes in the order
of drawings.json: red, green and blue multiplied by the opacity, and the opacity.
"""

from __future__ import annotations

import argparse
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import resvg_py
from collect import package_folder
from concepts import read_drawings
from numpy.typing import NDArray
from PIL import Image
from styles import STYLES

SIDE, CANVAS = 128, 256
LINES = "#222"  # the colour of drawings that have none of their own


def svg(package: dict[str, Any], icon: str) -> str:
    """A drawing of a package as a file of its own."""
    found = {"left": 0, "top": 0, "width": 16, "height": 16, **package, **package["icons"][icon]}
    box = " ".join(str(found[key]) for key in ("left", "top", "width", "height"))
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="{box}" width="{CANVAS}" height="{CANVAS}" color="{LINES}">{found["body"]}</svg>'
    )


def render(text: str) -> NDArray[np.uint8]:
    """An SVG file as 4×128×128 bytes, cropped to what is visible."""
    image = Image.open(io.BytesIO(resvg_py.svg_to_bytes(svg_string=text, skip_system_fonts=True))).convert("RGBA")
    box = image.getchannel("A").point(lambda opacity: 255 * (opacity > 8)).getbbox()
    if box is None:
        raise ValueError("nothing is visible")
    image = image.crop(box)
    side = max(image.size)
    square = Image.new("RGBA", (side, side))
    square.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
    pixels = np.asarray(square, dtype=np.float32) / 255
    pixels[..., :3] *= pixels[..., 3:]
    channels = [
        Image.fromarray(channel).resize((SIDE, SIDE), Image.Resampling.LANCZOS) for channel in pixels.transpose(2, 0, 1)
    ]
    small = np.stack([np.asarray(channel) for channel in channels]).clip(0, 1)
    small[:3] = np.minimum(small[:3], small[3])
    return np.rint(255 * small).astype(np.uint8)


def main() -> None:
    """Render all drawings."""
    parser = argparse.ArgumentParser(description="Render the drawings.")
    parser.add_argument("work", type=Path)
    work = parser.parse_args().work
    packages = {
        style.name: json.loads(
            (package_folder(work, style.package, style.version) / "package" / "icons.json").read_text()
        )
        for style in STYLES
    }
    drawings = read_drawings(work)
    pixels = np.zeros((len(drawings), 4, SIDE, SIDE), dtype=np.uint8)
    for i, drawing in enumerate(drawings):
        try:
            pixels[i] = render(svg(packages[drawing.style], drawing.icon))
        except ValueError as error:
            raise SystemExit(f"{drawing.style}: {drawing.icon}: {error}") from error
    np.save(work / "drawings.npy", pixels)
    print(f"{len(drawings):,} drawings")


if __name__ == "__main__":
    main()
