"""The picture of speed.py's results: how many times faster than the plain form, and how the time grows.

python benchmarks/draw_speed.py benchmarks/results/speed.json speed.png
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

INK, KEDGE, TORCH = "#1b1f24", "#1f6fb2", "#a9c4dd"
GROWTH = {"n": "#1f6fb2", "k": "#d1601f", "k_all": "#8b2c5f"}
BAR = 0.38


def draw(parts: Mapping[str, Mapping[str, Any]], picture: Path) -> None:
    """Whatever of the two panels was measured; nothing if neither was."""
    panels = [(name, panel) for name, panel in PANELS.items() if name in parts]
    if not panels:
        return
    figure = Figure(figsize=(5 * len(panels), 3.6), layout="constrained")
    for axes, (name, panel) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        panel(axes, parts[name]["result"])
        axes.spines[["top", "right"]].set_visible(False)
    machine = parts[panels[0][0]]["machine"]
    figure.supxlabel(f"simulated features, d = 512; {machine['cpu']}", fontsize=8, color=INK, x=0.01, ha="left")
    figure.savefig(picture, dpi=110)


def _ratios(axes: Axes, result: Any) -> None:
    """Bars: times faster than the plain form, compiled and not; a line is the aim."""
    sizes = result["sizes"]
    x = np.arange(len(sizes))
    for name, label, shift, colour, ink in (
        ("torch", "kedge, not compiled", -BAR / 2, TORCH, INK),
        ("kedge", "kedge", BAR / 2, KEDGE, "white"),
    ):
        ratios = [row["ratio"][name] for row in sizes]
        axes.bar(x + shift, ratios, BAR, color=colour, label=label)
        for place, ratio in zip(x + shift, ratios, strict=True):  # at the bar's foot, clear of the aim's line
            axes.annotate(f"{ratio:,.0f}×", (place, 1), (0, 4), textcoords="offset points", ha="center", va="bottom",
                          fontsize=8, color=ink)  # fmt: skip
    aims = [(i, row["aim"]) for i, row in enumerate(sizes) if row["aim"]]
    for i, aim in aims:
        axes.plot([i - BAR, i + BAR], [aim, aim], color=INK, linewidth=1.2, label="aim" if i == aims[0][0] else None)
    axes.set_yscale("log")
    axes.set_ylim(1, axes.get_ylim()[1] * 3)  # from the plain form itself; and room for the legend
    axes.set_xticks(x, [f"{row['n']:,} images\n{row['k']:,} classes" for row in sizes], fontsize=8)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}×"))
    axes.set_title("Times faster than the plain form, one thread", loc="left", fontsize=10)
    axes.legend(frameon=False, fontsize=8, ncols=3, loc="upper left")


def _growth(axes: Axes, result: Any) -> None:
    """Seconds of a solve against n and against k, with their slopes."""
    at_k, at_n, present = result["n"]["k"], result["k"]["n"], result["k"]["present"]
    labels = {
        "n": f"n images, k={at_k:,}: n",
        "k": f"k classes, {present} of them present, n={at_n:,}: k",
        "k_all": f"k classes, all present, n={at_n:,}: k",
    }
    for name, label in labels.items():
        row = result[name]
        label = f"{label}$^{{{row['slope']:.2f}}}$"
        axes.plot(row["sizes"], row["seconds"], "o-", color=GROWTH[name], markersize=4, linewidth=1.2, label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(top=axes.get_ylim()[1] * 2)  # room for the legend
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} s"))
    axes.set_title("Growth of a solve, graph apart, one thread", loc="left", fontsize=10)
    axes.tick_params(labelsize=8)
    axes.legend(frameon=False, fontsize=8, loc="upper left")


PANELS = {"throughput": _ratios, "growth": _growth}

if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["parts"], Path(sys.argv[2]))
