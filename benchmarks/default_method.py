"""The time of kedge, the default method, beside StatA's, one call after the other: for docs/guide/speed.md.

    python benchmarks/default_method.py                       small and middle sizes, one thread: a minute
    python benchmarks/default_method.py --large --million     also 50,000 × 1,000, and a million × 100, on two threads

Simulated features of 512 dimensions with all classes. Small sizes: the best of some calls, both in one process; large
ones: a single call, each method in a process of its own, with the most memory that the process held.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from measuring import Result, alone, best_of, load, peak_memory_mb, say, seconds, simulated

import kedge

METHODS = ("kedge", "stata")
SMALL = ((64, 100), (64, 1000), (1000, 100), (1000, 1000))
LARGE, MILLION = (50_000, 1000), (1_000_000, 100)
CALLS = 10


def small(path: Path, n: int, k: int) -> dict[str, float]:
    """In a process of its own: seconds of each method, on one thread."""
    torch.set_num_threads(1)
    features = load(path, n, k)
    for method in METHODS:
        kedge.adapt(features, method=method)  # the kernels are loaded, or compiled
    return {method: best_of(CALLS, lambda method=method: kedge.adapt(features, method=method)) for method in METHODS}


def large(path: Path, n: int, k: int, method: str) -> Result:
    """In a process of its own: seconds and memory of one call, on two threads."""
    torch.set_num_threads(2)
    features = load(path, n, k)
    kedge.adapt(features.take(slice(64)), method=method)
    return {"seconds": seconds(lambda: kedge.adapt(features, method=method)), "peak_gb": peak_memory_mb() / 1e3}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--large", action="store_true", help="50,000 images, 1,000 classes")
    parser.add_argument("--million", action="store_true", help="a million images, 100 classes")
    given = parser.parse_args()
    for n, k in SMALL:
        took = alone(small, simulated(n, k), n, k)
        ratio = took["kedge"] / took["stata"]
        say(f"{n:,} × {k:,}: kedge {1e3 * took['kedge']:.1f} ms, StatA {1e3 * took['stata']:.1f} ms, ratio {ratio:.2f}")
    for wanted, (n, k) in ((given.large, LARGE), (given.million, MILLION)):
        for method in METHODS if wanted else ():
            found = alone(large, simulated(n, k), n, k, method)
            say(f"{n:,} × {k:,}: {method} {found['seconds']:.0f} s, {found['peak_gb']:.1f} GB")


if __name__ == "__main__":
    main()
