"""Milliseconds an image of the methods that go image by image, along one stream, on one thread: for their pages.

    python benchmarks/one_by_one.py                          all of them, 10,000 images, 100 classes: some minutes
    python benchmarks/one_by_one.py bca onlab --images 1000  some of them, a shorter stream

Simulated features of 512 dimensions; the views of a method that needs them are mixtures of two images. Each method is
in a process of its own; its processor time counts, so that other programs matter less. The stream comes in batches of
64; then 200 more images come in batches of one, where the copy of the state and what a step prepares are part of the
time of each image.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from measuring import Result, alone, load, peak_memory_mb, say, simulated
from torch import Tensor

import kedge
from kedge.arrays import unit
from kedge.methods.registry import build, list_methods

IMAGE_BY_IMAGE = (
    *("onlab", "bca", "adapt-nips25-online", "dota", "ecalp", "zero", "boostadapter"),
    *("tda:protocol=image", "dmn:protocol=image"),
)
BATCH, ALONE, VIEWS = 64, 200, 64


def views_of(x: Tensor, everyone: Tensor) -> Tensor:
    """Simulated views of some images, b×v×d: the image itself, then mixtures with other images."""
    others = torch.arange(VIEWS) % len(everyone)
    mixed = unit(x[:, None] + 0.35 * everyone[others])
    mixed[:, 0] = x
    return mixed


def measure(path: Path, n: int, k: int, method: str) -> Result:
    """In a process of its own: milliseconds an image, in batches and alone, and the memory it takes."""
    torch.set_num_threads(1)
    features = load(path, n + ALONE, k)
    x, stream = features.image_features, kedge.Stream(features.head, method)
    with_views = build(method).traits.needs == "views"
    before, total = peak_memory_mb(), {}
    for name, part, size in (("batches", x[:n], BATCH), ("alone", x[n:], 1)):
        total[name] = 0.0
        for batch in part.split(size):
            views = views_of(batch, x) if with_views else None
            start = time.process_time()
            stream.step(batch, views)
            total[name] += time.process_time() - start
    return {
        "batches": 1e3 * total["batches"] / n,
        "alone": 1e3 * total["alone"] / ALONE,
        "mb": peak_memory_mb() - before,
        "info": stream.step(x[:1], views_of(x[:1], x) if with_views else None).info,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("methods", nargs="*", help="names; default: all")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--classes", type=int, default=100)
    given = parser.parse_args()
    known = [text for text in IMAGE_BY_IMAGE if text.partition(":")[0] in list_methods()]
    path = simulated(given.images + ALONE, given.classes)
    for method in given.methods or known:
        found = alone(measure, path, given.images, given.classes, method)
        say(
            f"{method}: {found['batches']:.3g} ms an image in batches of {BATCH}, {found['alone']:.3g} ms alone, "
            f"{found['mb']:.0f} MB; {found['info']}"
        )


if __name__ == "__main__":
    main()
