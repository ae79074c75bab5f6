"""All figures of a group, in the order of the page; bars and time are drawn here."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from statistics import median, mode

from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from ..words import count
from .ablations import alpha, beta
from .batches import harm, reliability
from .drawing import INK, Look, Looks, Panel, Picture, Rows, canvas, look, shortened, source
from .score import Score
from .scores import ZERO_SHOT, Cell, Group, dataset_order, label_order, scenario_order
from .streams import along_streams, correlation
from .words import percent, points, rounded

KEYS = ("bars", "harm", "alpha", "beta", "stream", "correlation", "reliability", "time")  # in the order of the page


def all_figures(group: Group, colours: dict[str, int]) -> list[Picture]:
    """Every figure that the group has data for."""

    def looks(label: str) -> Look:
        return look(label, colours)

    drawn = (
        bars(group, looks),
        harm(group, looks),
        alpha(group),
        beta(group, looks),
        along_streams(group, looks),
        correlation(group),
        reliability(group, looks),
        time(group, looks),
    )
    return [picture for picture in drawn if picture is not None]


def bars(group: Group, looks: Looks) -> Picture | None:
    """As Fig. 1 of the paper: one panel per scenario, one bar per method, a line for zero-shot."""
    panels, rows = [], []
    best: tuple[float, str, str] | None = None
    for scenario in sorted({cell.scenario for cell in group.adapted}, key=scenario_order):
        table = {label: row for label, row in group.table(scenario).items() if label != ZERO_SHOT}
        methods, shared = _comparable(table)
        left_out = f", {count(len(table) - len(methods), 'method')} left out" if len(methods) < len(table) else ""
        scores = {label: Score.mean([table[label][d].score for d in shared]) for label in methods}
        own = [score.zero_shot for score in scores.values()]  # they differ between methods of different tasks
        zero_shot = mode(own)
        from_where = source(group, f"mean of {count(len(shared), 'dataset')}{left_out}")
        figure, axes = canvas(1.5 + 0.3 * len(methods), scenario, from_where)
        for at, (label, score) in enumerate(scores.items()):
            one = looks(label)
            axes.barh(at, 100 * score.accuracy, 0.72, color=one.colour, hatch=one.hatch, edgecolor="white", lw=0)
            axes.text(
                100 * max(score.accuracy, score.zero_shot) + 1.5,
                at,
                f"{percent(score.accuracy)}  ({points(score.gain)})",
                va="center",
                fontsize=8.5,
            )
            rows.append(
                {"scenario": scenario, "method": label, "accuracy": score.accuracy, "zero_shot": score.zero_shot}
                | {"gain": score.gain, "gain_low": score.low, "gain_high": score.high, "datasets": len(shared)}
            )
            best = max(best or (-math.inf, "", ""), (score.gain, label, scenario))
        edges = [edge for at in range(len(own)) for edge in (at - 0.5, at + 0.5)]
        axes.plot([100 * each for each in own for _ in (0, 1)], edges, color=INK, lw=1.2, ls=(0, (4, 2)))
        axes.text(100 * zero_shot, -0.58, f"zero-shot {percent(zero_shot)}", ha="center", fontsize=8.5)
        axes.set_yticks(range(len(methods)), [shortened(label, 26) for label in methods])
        axes.set_ylim(len(methods) - 0.45, -1.25)
        axes.set_xlim(0, 128)
        axes.set_xticks(range(0, 101, 25))
        axes.spines["bottom"].set_bounds(0, 100)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel("accuracy, %")
        said = ", ".join(f"{label} {percent(s.accuracy)} % ({points(s.gain)})" for label, s in scores.items())
        panels.append(Panel(f"bars-{scenario}", f"{scenario}: zero-shot {percent(zero_shot)} %; {said}", figure))
    if best is None:
        return None
    return Picture(
        "bars",
        f"The largest gain over zero-shot is {points(best[0])} points: {best[1]} in the scenario “{best[2]}”"
        if best[0] > 0
        else "No method beats zero-shot in any scenario",
        "Mean accuracy over the datasets that all methods of the panel ran on. The dashed line is zero-shot on each "
        "method’s images: it jumps at a method with other tasks. In parentheses, the gain over zero-shot in points.",
        panels,
        rows,
    )


def _comparable(table: dict[str, dict[str, Cell]]) -> tuple[list[str], list[str]]:
    """Methods that share datasets, and these datasets: all methods if possible, else as many as share one dataset."""
    runs = Counter(dataset for row in table.values() for dataset in row)
    common = min(runs, key=lambda dataset: (-runs[dataset], dataset_order(dataset)))
    methods = [label for label, row in table.items() if common in row]
    return methods, sorted(set.intersection(*(set(table[label]) for label in methods)), key=dataset_order)


def time(group: Group, looks: Looks) -> Picture | None:
    """Time per image of every method: one dot per cell, and the median."""
    found: dict[str, list[tuple[Cell, float]]] = defaultdict(list)
    for cell in group.main:
        for record in cell.records:
            if record.seconds_per_image and record.seconds_per_image > 0:
                found[cell.label].append((cell, 1000 * record.seconds_per_image))
    if not found:
        return None
    labels = sorted(found, key=label_order)
    figure, axes = canvas(1.5 + 0.32 * len(labels), "time per image", source(group, "dots: cells; line: median"))
    rows: Rows = []
    for at, label in enumerate(labels):
        one, values = looks(label), [value for _, value in found[label]]
        axes.plot(values, [at] * len(values), one.marker, color=one.colour, ms=4.5, alpha=0.45, mew=0)
        axes.plot([median(values)] * 2, [at - 0.32, at + 0.32], color=INK, lw=2)
        axes.text(
            1.02, at, f"{rounded(median(values))} ms", va="center", fontsize=8.5, transform=axes.get_yaxis_transform()
        )
        rows += [
            {"method": label, "scenario": cell.scenario, "dataset": cell.dataset, "ms_per_image": value}
            for cell, value in found[label]
        ]
    axes.set_xscale("log")
    everything = [row["ms_per_image"] for row in rows]
    low = math.floor(math.log10(min(everything)))
    high = max(math.ceil(math.log10(max(everything))), low + 1)
    step = math.ceil((high - low) / 4)  # at most five labels, which do not touch
    axes.set_xlim(10.0**low, 10.0**high)
    axes.xaxis.set_major_locator(FixedLocator([10.0**e for e in range(low, high + 1, step)]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(axis="x")
    axes.set_yticks(range(len(labels)), [shortened(label, 26) for label in labels])
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("milliseconds per image (log scale)")
    machines = sorted({record.machine for cell in group.main for record in cell.records if record.machine})
    slowest = max(labels, key=lambda label: median(value for _, value in found[label]))
    cost = median(value for _, value in found[slowest])
    said = ", ".join(f"{label} {rounded(median(v for _, v in found[label]))} ms" for label in labels)
    return Picture(
        "time",
        f"The slowest method, {slowest}, takes {rounded(cost)} ms per image",
        "Time spent in the method, without encoding images. Fixed costs per batch weigh less in larger batches. "
        + (f"Measured on: {'; '.join(machines)}." if machines else ""),
        [Panel("time", f"median time per image: {said}", figure)],
        rows,
    )
