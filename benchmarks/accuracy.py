"""The compiled solver against torch in float64, on real batches: labels and the largest difference in z.

    python benchmarks/accuracy.py [--batches 20]

Batches are drawn as `kedge bench` draws them, from the feature files in ../shared/features; torch's float32 is beside it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch

import kedge
from kedge.benchmark.plan import draw
from kedge.methods.contract import Batch

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
        batches, images, other_labels, off = 0, 0, [0, 0], [[0.0], [0.0]]
        for path in files:
            features = kedge.FeatureSet.load(path)
            assert features.labels is not None
            wide = features.head.like(torch.empty(0, dtype=torch.float64))
            for scenario in SCENARIOS:
                plan = draw(scenario, features.labels.numpy(), seed=0, tasks=most)
                for indices in list(plan.batches())[:most]:
                    x = features.image_features[torch.from_numpy(indices)].float()
                    exact = method().step(method().init(wide), Batch(x.double(), wide)).z
                    for form, compiled in enumerate((True, False)):
                        solver = method(compiled=compiled)
                        z = solver.step(solver.init(features.head), Batch(x, features.head)).z
                        other_labels[form] += int((z.argmax(dim=1) != exact.argmax(dim=1)).sum())
                        off[form].append(float((z - exact).abs().max()))
                    batches, images = batches + 1, images + len(indices)
        print(f"{name}: {batches} batches, {images:,} images")
        for form, label in enumerate(("compiled", "torch")):
            worst, usual = max(off[form]), float(np.median(off[form]))
            print(f"  {label:8} float32: {other_labels[form]} other labels; |Δz| at most {worst:.1e}, mostly {usual:.0e}")


if __name__ == "__main__":
    main()
