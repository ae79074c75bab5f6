"""The pictures over all batches of a method: how often it hurts, and whether its confidence can be trusted."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from ..benchmark.metrics import Reliability
from ..words import count
from .drawing import GREY, INK, MUTED, Looks, Panel, Picture, canvas, source, tinted
from .scores import ZERO_SHOT, Cell, Group, calibration, label_order
from .words import percent, points

FEW = 10  # images in a confidence bin that say nothing
STEPS = 64  # of accuracy in the picture of batches: one per image of the usual small batch


def harm(group: Group, looks: Looks) -> Picture | None:
    """Zero-shot against adapted accuracy of every batch: a panel per method, binned, the share made worse in words."""
    panels, rows = [], []
    worst: tuple[float, str] = (-1.0, "")
    for label, cells in _by_label(group).items():
        before = np.array([value for cell in cells for r in cell.records for value in r.series.zero_shot])
        after = np.array([value for cell in cells for r in cell.records for value in r.series.accuracy])
        if len(before) == 0 or len(before) != len(after):
            continue
        worse, better = float((after < before).mean()), float((after > before).mean())
        edges = (np.arange(STEPS + 2) - 0.5) / STEPS
        counts, _, _ = np.histogram2d(after, before, bins=[edges, edges])  # rows: after, columns: before
        figure, axes = canvas(3.6, label, source(group, count(len(before), "batch")))
        shade = np.where(counts > 0, 0.3 + 0.7 * np.log1p(counts) / np.log1p(counts.max()), 0)
        half = 50 / STEPS
        axes.imshow(
            tinted(shade, looks(label).colour),
            origin="lower",
            extent=(-half, 100 + half, -half, 100 + half),
            interpolation="none",
        )
        axes.plot([0, 100], [0, 100], color=INK, lw=1)
        axes.text(0.03, 0.97, f"better: {percent(better)} %", va="top", transform=axes.transAxes)
        axes.text(0.97, 0.03, f"worse: {percent(worse)} %", ha="right", weight="bold", transform=axes.transAxes)
        low = max(0.0, 100 * float(min(before.min(), after.min())) - 5)
        axes.set_xlim(low - half, 100 + half)
        axes.set_ylim(low - half, 100 + half)
        axes.set_xlabel("zero-shot accuracy of the batch, %")
        axes.set_ylabel("after adaptation, %")
        panels.append(
            Panel(f"harm-{label}", f"{label}: {percent(worse)} % of batches worse, {percent(better)} % better", figure)
        )
        worst = max(worst, (worse, label))
        for row, column in np.argwhere(counts > 0):
            where = {"zero_shot": column / STEPS, "accuracy": row / STEPS}
            rows.append({"method": label} | where | {"batches": int(counts[row, column])})
    if not panels:
        return None
    answer = f"{worst[1]} makes {percent(worst[0])} % of batches worse" if worst[0] > 0 else "No batch is made worse"
    most = ", the most of all methods" if worst[0] > 0 and len(panels) > 1 else ""
    return Picture(
        "harm",
        f"How often does it hurt? {answer}{most}",
        "Every batch of every scenario and dataset, counted on a grid (stronger colour: more batches). Below the "
        "diagonal, adaptation made the batch worse.",
        panels,
        rows,
    )


def reliability(group: Group, looks: Looks) -> Picture | None:
    """How often labels of a given confidence are right, before and after: a panel per method, its cells added up."""
    panels, rows = [], []
    changes: list[tuple[float, float, str]] = []
    for label, cells in _by_label(group).items():
        both = [_added(cells, "zero_shot_reliability"), _added(cells, "reliability")]
        errors = calibration(record for cell in cells for record in cell.records)
        if errors is None or any(bins.count.sum() == 0 for bins in both):
            continue
        figure, axes = canvas(3.8, label, source(group, f"{int(both[1].count.sum()):,} labels"))
        axes.plot([0, 100], [0, 100], color=MUTED, lw=1, ls=":")
        kinds = ((ZERO_SHOT, GREY), ("adapted", looks(label).colour))
        for bins, error, (name, colour) in zip(both, errors, kinds, strict=True):
            used = bins.count > 0
            images = bins.count[used]
            confidence, right = bins.confidence[used] / images, bins.correct[used] / images
            rows += [
                {"method": label, "labels": name, "confidence": c, "accuracy": a, "images": int(n)}
                for c, a, n in zip(confidence, right, images, strict=True)
            ]
            shown = images >= min(FEW, images.max())
            x, y = 100 * confidence[shown], 100 * right[shown]
            axes.plot(x, y, color=colour, lw=1.5, label=f"{name}: {percent(error)} off")
            axes.scatter(x, y, 6 + 200 * images[shown] / images.sum(), color=colour, clip_on=False)
        axes.set_xlim(0, 103)
        axes.set_ylim(0, 103)
        axes.set_aspect("equal")
        figure.legend(loc="outside lower left", ncols=2, fontsize=8.5)
        axes.set_xlabel("confidence, %")
        axes.set_ylabel("labels that are right, %")
        before, after = errors
        changes.append((after - before, after, label))
        said = f"{label}: calibration error {percent(before)} points before, {percent(after)} after"
        panels.append(Panel(f"reliability-{label}", said, figure))
    if not panels:
        return None
    change, after, label = max(changes)
    return Picture(
        "reliability",
        f"Can the confidence be trusted? That of {label} is off by {percent(after)} points ({points(change)} against "
        "zero-shot)",
        "On the dotted diagonal, confidence says how often a label is right; below it, labels are too sure of "
        "themselves. Larger dots hold more images, of all scenarios and datasets; "
        f"bins with fewer than {FEW} are left out. “Off” is the expected calibration error in points, per cell and "
        "then on average.",
        panels,
        rows,
    )


def _added(cells: list[Cell], which: str) -> Reliability:
    """The bins of all records, summed."""
    bins = Reliability.empty()
    for record in (record for cell in cells for record in cell.records):
        found: dict[str, Any] = dict(getattr(record.series, which))
        if all(len(found.get(name, ())) == len(bins.count) for name in ("count", "confidence", "correct")):
            bins.count += found["count"]
            bins.confidence += found["confidence"]
            bins.correct += found["correct"]
    return bins


def _by_label(group: Group) -> dict[str, list[Cell]]:
    found: dict[str, list[Cell]] = defaultdict(list)
    for cell in group.adapted:
        found[cell.label].append(cell)
    return {label: found[label] for label in sorted(found, key=label_order)}
