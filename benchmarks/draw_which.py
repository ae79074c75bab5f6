"""Which method when: the figure and the numbers of docs/which_method.md, from records of `kedge bench`.

    F=../shared/features; SMALL="$F/cifar10*.npz $F/dtd*.npz $F/whurs19*.npz"; BENCH="kedge bench --seed 22 --out which"
    FAST="--method kedge --method stata --method moon --method transclip --method zlap"
    FAST="$FAST --method tda --method dmn --method oga"
    ONE=batches:size=1,k_min=1,k_max=1; FEW=batches:size=16,k_min=1,k_max=4; MIXED=batches:size=64,k_min=1000,k_max=1000
    BATCHES="--scenario $ONE --scenario $FEW --scenario very-low --scenario medium --scenario $MIXED"
    LARGE="--scenario medium-1000 --scenario high --scenario all"
    STREAMS="--scenario stream-low --scenario stream-high --scenario stream-separate"
    $BENCH $F/*.npz $FAST --tasks 40 $BATCHES && $BENCH $F/*.npz $FAST --tasks 5 $LARGE
    $BENCH $F/*.npz $FAST --tasks 1 $STREAMS
    $BENCH $SMALL --method em-dirichlet --tasks 10 $BATCHES
    $BENCH $SMALL --method em-dirichlet --tasks 1 $LARGE $STREAMS
    python benchmarks/draw_which.py which benchmarks/results/which_method.csv docs/which_method.png

A cell of the figure is the mean over the feature sets of its method.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure

from kedge import Record, load_records

SITUATIONS = {
    "batches:size=1,k_min=1,k_max=1": "one\nimage",
    "batches:size=16,k_min=1,k_max=4": "16 of\n1–4",
    "very-low": "64 of\n1–4",
    "medium": "64 of\n5–25",
    "batches:size=64,k_min=1000,k_max=1000": "64 of\nall",
    "medium-1000": "1,000 of\n5–25",
    "high": "1,000 of\n25–50",
    "all": "whole\nset",
    "stream-low": "stream,\nmixed",
    "stream-high": "stream,\nin runs",
    "stream-separate": "stream,\nby class",
}
METHODS = ("kedge", "stata", "moon", "transclip", "zlap", "em-dirichlet", "tda", "dmn", "oga")
GROUPS = (5, 8)  # the first column of the large batches, and of the streams
INK = "#1b1f24"


def summed(records: Iterable[Record]) -> list[dict[str, Any]]:
    """A row per method and situation: means over the sets, in percent, and the lowest gain of a set."""
    cells: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        cells[record.method, record.scenario].append(record)
    rows = []
    for method in METHODS:
        for scenario, title in SITUATIONS.items():
            if found := cells.get((method, scenario)):
                values = {name: [100 * getattr(r, name) for r in found] for name in ("zero_shot", "gain", "harmed")}
                row = {"method": method, "scenario": scenario, "situation": title.replace("\n", " ")}
                row |= {"sets": len({r.dataset for r in found}), "tasks": min(r.tasks for r in found)}
                row |= {name: round(float(np.mean(value)), 2) for name, value in values.items()}
                rows.append({**row, "lowest_gain": round(min(values["gain"]), 2)})
    return rows


def panel(axes: Axes, rows: list[dict[str, Any]], value: str, title: str, colours: str, norm: Any, spec: str) -> None:
    """A table of methods × situations, coloured by its numbers."""
    grid = np.full((len(METHODS), len(SITUATIONS)), np.nan)
    for row in rows:
        grid[METHODS.index(row["method"]), list(SITUATIONS).index(row["scenario"])] = row[value]
    axes.imshow(grid, cmap=colours, norm=norm, aspect="auto")
    for (y, x), number in np.ndenumerate(grid):
        if not np.isnan(number):
            text = format(number, spec).replace("-", "−")
            text = text.lstrip("+−") if not float(text.replace("−", "-")) else text
            axes.text(x, y, text, ha="center", va="center", fontsize=9.5, color=INK)
    axes.set_title(title, loc="left", fontsize=11.5, color=INK, fontweight="bold")
    axes.set_xticks(range(len(SITUATIONS)), SITUATIONS.values(), fontsize=9)
    axes.set_yticks(range(len(METHODS)), [f"{m} †" if m == "em-dirichlet" else m for m in METHODS], fontsize=10)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    for edge in GROUPS:
        axes.axvline(edge - 0.5, color="white", linewidth=5)


def main(folder: Path, table: Path, picture: Path) -> None:
    """Write the numbers as CSV, and draw them."""
    rows = summed(load_records([folder]))
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    figure = Figure(figsize=(9.6, 7.6), layout="constrained", facecolor="white")
    above, below = figure.subplots(2, 1)
    gains = TwoSlopeNorm(0, vmin=-50, vmax=24)
    panel(above, rows, "gain", "Gain over zero-shot, points", "PuOr", gains, "+.1f")
    panel(below, rows, "harmed", "Batches made worse than zero-shot, %", "Oranges", TwoSlopeNorm(60, 0, 300), ".0f")
    figure.supxlabel("images of so many classes · † sets of up to 47 classes only", fontsize=9.5, color=INK)
    figure.savefig(picture, dpi=125)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
