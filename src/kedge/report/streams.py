"""Figures of streams: accuracy over time, which classes arrive when, and how similar the batches are."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..benchmark.record import Record
from .drawing import (
    MUTED,
    PALETTE,
    WIDTH,
    Looks,
    Panel,
    Picture,
    canvas,
    coarser,
    headline,
    label_lines,
    shortened,
    source,
    tinted,
)
from .scores import ZERO_SHOT, Cell, Group, label_order, scenario_order

BLUE = PALETTE[0][0]


def along_streams(group: Group, looks: Looks) -> Picture | None:
    """Running accuracy and class composition of the first stream, for the dataset with the longest stream."""
    streams = _longest_streams(group)
    panels, rows = [], []
    for scenario in sorted(streams, key=scenario_order):
        cells = streams[scenario]
        first = cells[0].records[0]
        figure = Figure(figsize=(WIDTH, 4.4), layout="constrained")
        axes, ribbon = figure.subplots(2, 1, sharex=True, height_ratios=[2.4, 1])
        batches = first.series.episode.count(0)
        seen = np.cumsum(first.series.images[:batches])
        headline(figure, scenario, source(group, f"{shortened(cells[0].dataset, 30)}, one stream"))
        lines = {ZERO_SHOT: (first.series.zero_shot[:batches], first.series.images[:batches])}
        for cell in cells:
            if cell.label != ZERO_SHOT:
                series = cell.records[0].series
                lines[cell.label] = series.accuracy[:batches], series.images[:batches]
        ends: list[tuple[float, str, str]] = []
        settled: list[float] = []  # sets the axis limits: the first few batches vary too much
        for label, (values, scored) in lines.items():
            one = looks(label)
            running = 100 * np.cumsum(np.multiply(values, scored)) / np.cumsum(scored)
            axes.plot(seen, running, color=one.colour, ls=one.dash, lw=1.8)
            ends.append((float(running[-1]), f"{label} {running[-1]:.1f}", MUTED if label == ZERO_SHOT else one.colour))
            settled += [float(running[batches // 12 :].min()), float(running[batches // 12 :].max())]
            rows += [
                {"scenario": scenario, "dataset": cells[0].dataset, "method": label, "batch": batch}
                | {"images": int(images), "batch_accuracy": value, "accuracy_so_far": so_far / 100}
                for batch, (images, value, so_far) in enumerate(zip(seen, values, running, strict=True))
            ]
        room = 0.1 * (max(settled) - min(settled)) + 0.5
        axes.set_ylim(min(settled) - room, min(max(settled) + room, 100.5))
        axes.set_xlim(0, seen[-1])
        axes.grid(axis="y")
        axes.set_ylabel("accuracy so far, %")
        label_lines(axes, ends, 0.085)
        _composition(ribbon, first, float(seen[len(first.series.composition) - 1]))
        gains = ", ".join(text for _, text, _ in ends)
        panels.append(Panel(f"stream-{scenario}", f"{scenario}, accuracy after the whole stream: {gains}", figure))
    if not panels:
        return None
    return Picture(
        "stream",
        "Along a stream, does adaptation help from the first image to the last?",
        "Accuracy on all images so far, in the first stream of the dataset with the most batches. (The tables show the "
        "mean over batches, in which a short last batch counts as much as any other.) Below: classes per batch, "
        "one row per class in order of arrival (rows are merged if there are many).",
        panels,
        rows,
    )


def _composition(axes: Axes, record: Record, images: float) -> None:
    """Class shares per batch: one row per class, one column per batch, darker for a larger share."""
    shares = np.array(record.series.composition).T  # classes × batches
    present = shares[shares.sum(axis=1) > 0]
    order = np.argsort(present @ np.arange(present.shape[1]) / present.sum(axis=1))
    image = coarser(coarser(present[order], 0, np.max), 1)
    axes.imshow(
        tinted((image / image.max()) ** 0.4, BLUE),  # the exponent makes rare classes visible
        aspect="auto",
        extent=(0, images, len(present), 0),
        interpolation="none",
    )
    axes.set_yticks([])
    axes.set_ylabel(f"{len(present)} classes")
    axes.set_xlabel("images seen")


def correlation(group: Group) -> Picture | None:
    """Cosine similarity of class proportions for all pairs of batches of a stream."""
    panels, rows = [], []
    streams = _longest_streams(group)
    nearest: list[tuple[str, float]] = []
    for scenario in sorted(streams, key=scenario_order):
        cell = streams[scenario][0]
        shares = np.array(cell.records[0].series.composition)
        unit = shares / np.linalg.norm(shares, axis=1, keepdims=True)
        cosine = unit @ unit.T
        n = len(cosine)
        next_one = float(np.diag(cosine, 1).mean())
        any_two = float((cosine.sum() - n) / (n * (n - 1)))
        figure, axes = canvas(3.9, scenario, source(group, f"{shortened(cell.dataset, 30)}, batches of one stream"))
        drawn = coarser(coarser(cosine, 0), 1)
        axes.imshow(tinted(drawn, BLUE), extent=(0.5, n + 0.5, n + 0.5, 0.5), interpolation="none")
        axes.set_xlabel(f"batch   (mean: next {next_one:.2f}, any two {any_two:.2f})")
        axes.set_ylabel("batch")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(6, integer=True))
        for side in ("top", "right"):
            axes.spines[side].set_visible(True)
        _scale(axes)
        said = f"{scenario}: mean cosine {next_one:.2f} between a batch and the next, {any_two:.2f} between any two"
        panels.append(Panel(f"correlation-{scenario}", said, figure))
        nearest.append((scenario, next_one))
        starts = [int(part[0]) for part in np.array_split(np.arange(n), len(drawn))]
        rows += [
            {
                "scenario": scenario,
                "dataset": cell.dataset,
                "batch": i + 1,
                "other": j + 1,
                "cosine": drawn[row, column],
            }
            for row, i in enumerate(starts)
            for column, j in enumerate(starts[: row + 1])
        ]
    if not panels:
        return None
    lowest, highest = min(nearest, key=lambda pair: pair[1]), max(nearest, key=lambda pair: pair[1])
    return Picture(
        "correlation",
        "How similar are the batches of a stream? Mean cosine of consecutive batches: "
        + (f"{lowest[1]:.2f} in {lowest[0]} to " if len(nearest) > 1 else "")
        + f"{highest[1]:.2f} in {highest[0]}",
        "Cosine of the class proportions for all pairs of batches of one stream, in order of arrival. A dark block is "
        "a part of the stream with the same classes.",
        panels,
        rows,
    )


def _scale(axes: Axes) -> None:
    """The colour scale, 0 to 1."""
    bar = axes.inset_axes((1.05, 0.0, 0.05, 1.0))
    bar.imshow(tinted(np.linspace(0, 1, 64)[:, None], BLUE), origin="lower", aspect="auto", extent=(0, 1, 0, 1))
    bar.set_xticks([])
    bar.set_yticks([0, 0.5, 1], ["0", "0.5", "1"])
    bar.yaxis.tick_right()
    bar.yaxis.set_label_position("right")
    bar.set_ylabel("cosine")


def _longest_streams(group: Group) -> dict[str, list[Cell]]:
    """scenario → cells scored on the same stream, for the dataset with the longest streams."""
    by_dataset: dict[str, dict[str, list[Cell]]] = defaultdict(lambda: defaultdict(list))
    for cell in sorted(group.main, key=lambda cell: label_order(cell.label)):
        if len(cell.records[0].series.composition) > 1:
            by_dataset[cell.dataset][cell.scenario].append(cell)
    if not by_dataset:
        return {}

    def length(dataset: str) -> tuple[int, int, str]:
        cells = [cell for found in by_dataset[dataset].values() for cell in found]
        return len(by_dataset[dataset]), max(len(cell.records[0].series.composition) for cell in cells), dataset

    streams = by_dataset[max(by_dataset, key=length)]
    return {
        scenario: [cell for cell in cells if cell.records[0].plan_hash == cells[0].records[0].plan_hash]
        for scenario, cells in streams.items()
    }
