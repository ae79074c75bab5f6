"""Draw the speed of extraction: bars for the forward pass alone and for files of two sizes, by library and precision.

python benchmarks/draw_extraction.py benchmarks/results/extraction.json docs/extraction.png
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

INK = "#1b1f24"
BARS = {
    "alone": ("forward pass alone", "#a9c4dd"),
    "small": ("from files of 500×375", "#1f6fb2"),
    "large": ("from files of 2,000×1,500", "#d1601f"),
}
WIDTH = 0.27


def draw(result: Mapping[str, Any], picture: Path) -> None:
    """One group of bars per row."""
    rows = sorted(result["rows"], key=lambda row: row["name"] != "before")  # that one first
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    axes = figure.subplots()
    places = np.arange(len(rows))
    for shift, (what, (label, colour)) in enumerate(BARS.items()):
        speeds = [row[what] for row in rows]
        x = places + (shift - 1) * WIDTH
        axes.bar(x, speeds, WIDTH, color=colour, label=label)
        for place, speed in zip(x, speeds, strict=True):
            axes.annotate(f"{speed:.1f}", (place, speed), (0, 2), textcoords="offset points", ha="center", fontsize=7)
    axes.set_xticks(places, [row["name"].replace(" ", "\n") for row in rows], fontsize=8)
    axes.set_ylabel("images per second", fontsize=8)
    axes.set_title("Encoding with a model of the size of ViT-B/16, two threads", loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    about = f"random weights, simulated files; {result['machine']['cpu']}"
    figure.supxlabel(about, fontsize=8, color=INK, x=0.01, ha="left")
    figure.savefig(picture, dpi=110)


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), Path(sys.argv[2]))
