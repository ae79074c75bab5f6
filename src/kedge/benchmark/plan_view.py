"""A plan in numbers, and as a picture of the classes in each batch."""

from __future__ import annotations

import colorsys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import FileError
from ..files import check_writable, written_by_rename
from .plan import Plan

SHOWN_BATCHES = 400  # maximum number of batches in the picture
HEIGHT = 240  # rows of the picture
GOLDEN = 0.618034  # hue step from one class to the next, so that neighbours differ


def plan_facts(plan: Plan, labels: NDArray[Any]) -> dict[str, Any]:
    """A plan in numbers, with the labels (n) from which it was drawn."""
    plan.check_fits(labels)
    batches = list(plan.batches())
    sizes = [len(batch) for batch in batches]
    classes = [len(np.unique(labels[batch])) for batch in batches]
    return {
        "scenario": plan.scenario,
        "seed": plan.seed,
        "tasks": len(plan.episodes),
        "batches": len(batches),
        "images": int(sum(sizes)),
        "different_images": len(np.unique(np.concatenate(batches))),
        "smallest_batch": min(sizes),
        "largest_batch": max(sizes),
        "fewest_classes": min(classes),
        "mean_classes": round(float(np.mean(classes)), 2),
        "most_classes": max(classes),
        "sha256": plan.hash,
    }


def ribbon(plan: Plan, labels: NDArray[Any]) -> NDArray[np.float64]:
    """A column per batch, in which each class is as high as its fraction of images: HEIGHT × batches × 3, RGB.

    Shows the first task of a stream, or the first tasks of batches. Colours follow the order of appearance.
    """
    plan.check_fits(labels)
    streams = len(plan.episodes[0]) > 1
    batches = (plan.episodes[0] if streams else [episode[0] for episode in plan.episodes])[:SHOWN_BATCHES]
    seen, first = np.unique(labels[np.concatenate(batches)], return_index=True)
    rank = np.empty(int(labels.max()) + 1, np.int64)
    rank[seen] = first.argsort().argsort()
    colours = np.array([_colour(number) for number in range(len(seen))])
    rows = (np.arange(HEIGHT) + 0.5) / HEIGHT
    columns = [np.sort(rank[labels[batch]])[(rows * len(batch)).astype(int)] for batch in batches]
    return np.asarray(colours[np.stack(columns, axis=1)])


def _colour(number: int) -> tuple[float, float, float]:
    """The colour of the class that appears as this number."""
    return colorsys.hls_to_rgb(number * GOLDEN % 1, (0.42, 0.56, 0.70)[number % 3], 0.55)


def draw_plan(plan: Plan, labels: NDArray[Any], path: str | Path, dataset: str) -> None:
    """Write the picture as a .png file. Without pyplot, so that figures of the caller do not change."""
    from matplotlib.figure import Figure

    path = check_writable(path)
    if path.suffix.lower() != ".png":
        raise FileError(f"cannot draw {path}: the file name must end in .png. Rename it.")
    picture, facts = ribbon(plan, labels), plan_facts(plan, labels)
    shown = picture.shape[1]
    figure = Figure(figsize=(10, 3.4), facecolor="white")
    axes = figure.add_axes((0.06, 0.17, 0.92, 0.62))
    axes.imshow(picture, aspect="auto", interpolation="nearest", extent=(0, shown, 0, 1), origin="lower")
    axes.set_yticks([0, 1], ["0", "100 %"])
    axes.set_ylabel("share of the batch", labelpad=-22)
    axes.set_xlabel(f"batches of up to {facts['largest_batch']} images, in order")
    axes.spines[:].set_visible(False)
    figure.text(0.06, 0.9, f"{plan.scenario} on {dataset}: the classes of each batch", fontsize=14, fontweight="bold")
    part = f"the first {shown} of {facts['batches']}" if shown < facts["batches"] else f"all {shown}"
    text = f"A colour is a class; {facts['mean_classes']:.1f} per batch on average. Shown: {part}, seed {plan.seed}."
    figure.text(0.06, 0.83, text, fontsize=10)
    with written_by_rename(path) as temporary:
        figure.savefig(temporary, format="png", dpi=140)
