"""The compiled solver against torch in float64, on real batches: labels and the largest difference in z.

    python benchmarks/accuracy.py [--batches 20]

Batches are drawn as `kedge bench` draws them, from the files in ../shared/features; torch's float32 is beside it.
Where a batch holds the same image twice, neighbours are ties and the forms may choose different ones. Such batches are
counted apart: their difference says nothing about the solver.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import kedge
from kedge.benchmark.plan import draw
from kedge.methods.contract import Batch
from kedge.methods.solve.neighbours import nearest_neighbours

FEATURES = Path(__file__).resolve().parents[2] / "shared" / "features"
SCENARIOS = ("very-low", "low", "medium", "medium-1000", "batches:size=200,k_min=5,k_max=25", "stream-low")
METHODS = {"stata": kedge.StatA, "kedge": kedge.Kedge}


def main() -> None:
    """Print a row per method: batches, labels that differ, the largest |Δz| of both forms."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=20, help="at most, per file, scenario and method")
    most = parser.parse_args().batches
    files = sorted(FEATURES.glob("*.npz"))
    if not files:
        sys.exit(f"skipped: there are no feature files in {FEATURES}")
    torch.set_num_threads(1)
    for name, method in METHODS.items():
        found: list[Compared] = []
        for path in files:
            features = kedge.FeatureSet.load(path)
            for scenario in SCENARIOS:
                plan = draw(scenario, features.labels.numpy(), seed=0, tasks=most)
                for indices in list(plan.batches())[:most]:
                    found.append(compared(method, features, torch.from_numpy(indices)))
        apart = sum(batch.tied for batch in found)
        print(f"{name}: {len(found)} batches, {sum(batch.images for batch in found):,} images, {apart} with ties")
        for form, label in enumerate(("compiled", "torch")):
            labels = sum(batch.other_labels[form] for batch in found)
            off = [batch.off[form] for batch in found if not batch.tied]
            tied = max((batch.off[form] for batch in found if batch.tied), default=0.0)
            print(
                f"  {label:8} float32: {labels} other labels; |Δz| at most {max(off):.1e}, "
                f"median {np.median(off):.0e}; with ties {tied:.1e}"
            )


class Compared(NamedTuple):
    """One batch: the compiled solver and torch's, both in float32, against float64."""

    images: int
    other_labels: tuple[int, int]
    off: tuple[float, float]
    tied: bool


def compared(method: type[Any], features: kedge.FeatureSet, rows: Tensor) -> Compared:
    """Solve one batch three times."""
    x, head = features.image_features[rows].float(), features.head
    wide = head.like(torch.empty(0, dtype=torch.float64))
    exact = method().step(method().init(wide), Batch(x.double(), wide)).z
    found = [method(compiled=on).step(method().init(head), Batch(x, head)).z for on in (True, False)]
    labels, off = zip(
        *((int((z.argmax(dim=1) != exact.argmax(dim=1)).sum()), float((z - exact).abs().max())) for z in found),
        strict=True,
    )
    near = [nearest_neighbours(table, method().neighbours).indices for table in (x, x.double())]
    return Compared(len(x), labels, off, not torch.equal(*near))


if __name__ == "__main__":
    main()
