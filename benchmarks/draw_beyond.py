"""Draw the figure of docs/methods/kedge.md from the output of beyond.py.

python benchmarks/beyond.py --seeds 0 --out cells.json
python benchmarks/draw_beyond.py cells.json docs/methods/kedge.png
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

SHOWN = {"stata": ("StatA", "#d1601f"), "moon": ("MOON", "#8b2c5f"), "kedge": ("kedge", "#1f6fb2")}
WIDTH = 0.27  # of a bar; three and a gap are 1


def main(cells: Path, picture: Path) -> None:
    """Bars: mean gain over zero-shot per scenario; dots: single feature sets."""
    found = json.loads(cells.read_text())
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    axes = figure.subplots()
    for place, (method, (name, colour)) in enumerate(SHOWN.items()):
        scores = np.array(found["cells"][method])
        gain = 100 * (scores[:, :, 0] - scores[:, :, 1])  # sets × scenarios
        x = np.arange(gain.shape[1]) + (place - 1) * WIDTH
        axes.bar(x, gain.mean(axis=0), WIDTH, color=colour, label=name)
        axes.plot(np.tile(x, (len(gain), 1)), gain, "o", color="#1b1f24", alpha=0.45, markersize=3, mec="none")
    axes.axhline(0, color="#1b1f24", linewidth=0.8)
    axes.set_xticks(
        range(len(found["scenarios"])), [name.replace("stream-", "stream\n") for name in found["scenarios"]]
    )
    axes.set_ylabel("gain over zero-shot, points")
    axes.set_title(f"Mean of {len(found['sets'])} real feature sets; a dot is one of them", loc="left", fontsize=11)
    axes.legend(frameon=False, ncols=3, loc="upper right")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(picture, dpi=110)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
