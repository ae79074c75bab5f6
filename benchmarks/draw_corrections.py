"""Draw the figure of docs/corrections.md from the output of corrections.py.

python benchmarks/corrections.py --seeds 0 1 2 --out rows.json
python benchmarks/draw_corrections.py rows.json docs/corrections.png
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from corrections import KINDS, STEPS, Kind, Row, by_seed, mean
from matplotlib.axes import Axes
from matplotlib.figure import Figure

RANGE = 40, 101.5  # %
INK, GREY = "#1b1f24", "#6b7280"
LISTS = {"unticked": ("wrong classes unticked", "#d55e00"), "all names": ("no class unticked", "#0072b2")}
ORDERS = {"review": ("review order", "-", "o"), "random": ("at random", (0, (3, 1.6)), "s")}


def panel(axes: Axes, kind: Kind, rows: list[Row]) -> None:
    """One kind of sets: a line for each list and order, with its 95 % interval, and zero-shot."""
    about = f"{kind.images:,} images of {kind.classes} classes"
    if kind.missing:
        about += f", {kind.missing} without name"
    axes.set_title(f"{kind.title.partition(',')[0]}\n", loc="left", fontsize=11, color=INK, fontweight="bold")
    axes.text(0, 1.04, about, transform=axes.transAxes, fontsize=9.5, color=GREY)
    for names, (listed, colour) in LISTS.items():
        for order, (ordered, line, marker) in ORDERS.items():
            cells = [[r for r in rows if (r.names, r.order, r.corrections) == (names, order, s)] for s in STEPS]
            middle, half = 100 * np.array([mean(by_seed(cell, "left")) for cell in cells]).T
            axes.fill_between(STEPS, middle - half, middle + half, color=colour, alpha=0.13, linewidth=0)
            axes.plot(
                STEPS, middle, color=colour, linestyle=line, marker=marker, markersize=4, linewidth=1.8,
                markerfacecolor=colour if order == "review" else "white", label=f"{ordered}, {listed}",
            )  # fmt: skip
    axes.axhline(100 * mean(by_seed(rows, "zero_shot"))[0], color=GREY, linewidth=1.4, linestyle=":", label="zero-shot")
    axes.set_xticks(STEPS)
    axes.set_ylim(*RANGE)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e5e7eb", linewidth=0.8)
    axes.set_axisbelow(True)


def main(found: Path, picture: Path) -> None:
    """A panel for each kind of sets."""
    rows = [Row(**row) for row in json.loads(found.read_text())]
    kinds = [kind for kind in KINDS if any(row.title == kind.title for row in rows)]
    figure = Figure(figsize=(9, 2.75 * -(-len(kinds) // 3) + 0.7), layout="constrained", facecolor="white")
    grid = figure.subplots(-(-len(kinds) // 3), 3, sharex=True, sharey=True, squeeze=False)
    for axes, kind in zip(grid.flat, kinds, strict=False):
        panel(axes, kind, [row for row in rows if row.title == kind.title])
    for axes in grid.flat[len(kinds) :]:
        axes.set_visible(False)
    figure.supxlabel("corrections", fontsize=12)
    figure.supylabel("accuracy on the images not corrected, %", fontsize=12)
    lines, labels = grid.flat[0].get_legend_handles_labels()
    figure.legend(lines, labels, loc="outside upper center", ncols=3, frameon=False, fontsize=10)
    figure.savefig(picture, dpi=150)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
