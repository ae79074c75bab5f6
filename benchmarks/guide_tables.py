"""The small tables of docs/guide: what a list of classes is worth while it is being edited, and small batches.

    python benchmarks/guide_tables.py            real features in ../shared/features, and the README's pictures

Lists: a person goes through the classes found, those most in doubt first, and takes out those that are not there: none
of them, the first half, or all. `--present` keeps the others that were found; `--absent` only takes those out. Batches:
the README's pictures (simulated) as a stream in random order.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
from beyond import FEATURES
from corrections import DRAWINGS, KINDS, drawn
from torch import Tensor

import kedge

SEEDS = range(300, 304)  # of the sets
ORDERS = range(10)  # seeds of the stream's order
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 400)
LISTS = ("nothing said", "--present", "--present, half", "--present, all", "--absent, half", "--absent, all")


def lists(features: kedge.FeatureSet, truth: Tensor) -> list[float]:
    """Accuracy in % with each of LISTS."""

    def accuracy(present: list[int] | None = None) -> float:
        return 100 * float((kedge.adapt(features, present=present).labels == truth).double().mean())

    there = set(truth.tolist())
    found = [one.number for one in kedge.adapt(features).classes]
    wrong = [number for number in found if number not in there]
    half = wrong[: len(wrong) // 2]
    kept = [accuracy([c for c in found if c not in out]) for out in ([], half, wrong)]
    return [
        accuracy(),
        *kept,
        *(accuracy([c for c in range(features.head.k) if c not in out]) for out in (half, wrong)),
    ]


def batches(features: kedge.FeatureSet, truth: Tensor, size: int, seed: int) -> float:
    """Accuracy in % of a stream in batches of this size."""
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(truth)))
    stream = kedge.Stream(features.head)
    right = [stream.step(features.image_features[rows]).labels == truth[rows] for rows in order.split(size)]
    return 100 * float(torch.cat(right).double().mean())


def main() -> None:
    torch.set_num_threads(1)
    means = []
    for kind in KINDS:
        if kind.file != DRAWINGS:
            features = kedge.FeatureSet.load(FEATURES / f"{kind.file}.npz")
            means.append(np.mean([lists(*drawn(features, kind, seed)) for seed in SEEDS], axis=0))
    with tempfile.TemporaryDirectory() as folder:
        names = Path(folder) / "names.txt"
        photos = kedge.pictures(Path(folder) / "photos", names=names)
        pictures = kedge.classify(photos, names, encoder="tiny").features
    assert pictures.labels is not None
    for title, row in (("real features", np.mean(means, axis=0)), ("pictures", lists(pictures, pictures.labels))):
        print(title, {name: round(float(value), 1) for name, value in zip(LISTS, row, strict=True)})
    for size in SIZES:
        print(f"{size} images: {np.mean([batches(pictures, pictures.labels, size, seed) for seed in ORDERS]):.1f} %")


if __name__ == "__main__":
    main()
