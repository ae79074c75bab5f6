"""Figures over all batches of a method: how often it makes a batch worse, and how well it is calibrated."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from ..answers.calibration import Reliability
from ..words import count
from .drawing import GREY, INK, MUTED, Looks, Panel, Picture, canvas, source, tinted
from .scores import ZERO_SHOT, Cell, Group, calibration, label_order
from .words import percent

FEW = 10  # images: confidence bins with fewer are not drawn
STEPS = 64  # accuracy steps of the grid: the usual small batch has 64 images


def harm(group: Group, looks: Looks) -> Picture | None:
    """Zero-shot and adapted accuracy of every batch on a grid, one panel per method, with the share made worse."""
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
    most = ", more than any other method" if worst[0] > 0 and len(panels) > 1 else ""
    return Picture(
        "harm",
        f"How often does adaptation hurt? {answer}{most}",
        "All batches of all scenarios and datasets on a grid; a stronger colour means more batches. Batches below the "
        "diagonal became worse.",
        panels,
        rows,
    )


def reliability(group: Group, looks: Looks) -> Picture | None:
    """Accuracy by confidence, for zero-shot and the method: one panel per method, over all its cells."""
    panels, rows = [], []
    changes: list[tuple[float, float, float, str]] = []
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
            axes.plot(x, y, color=colour, lw=1.5, label=f"{name}: error {percent(error)}")
            axes.scatter(x, y, 6 + 200 * images[shown] / images.sum(), color=colour, clip_on=False)
        axes.set_xlim(0, 103)
        axes.set_ylim(0, 103)
        axes.set_aspect("equal")
        figure.legend(loc="outside lower left", ncols=2, fontsize=8.5)
        axes.set_xlabel("confidence, %")
        axes.set_ylabel("correct labels, %")
        before, after = errors
        changes.append((after - before, before, after, label))
        said = f"{label}: calibration error {percent(after)} points, {percent(before)} for zero-shot"
        panels.append(Panel(f"reliability-{label}", said, figure))
    if not panels:
        return None
    _, before, after, label = max(changes)
    return Picture(
        "reliability",
        f"Can the confidence be trusted? {label} has a calibration error of {percent(after)} points, zero-shot of "
        f"{percent(before)}",
        "On the dotted diagonal, confidence equals accuracy; below it, the method is overconfident. Larger dots stand "
        f"for more images, of all scenarios and datasets; bins with fewer than {FEW} images are left out. “Error” is "
        "the expected calibration error in points, computed per cell and averaged.",
        panels,
        rows,
    )


def _added(cells: list[Cell], which: str) -> Reliability:
    """The confidence bins of all records, summed."""
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
