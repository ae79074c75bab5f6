"""The method `kedge` compared with StatA and MOON in every scenario, on the same plans.

    python benchmarks/beyond.py --seeds 0                         real features in ../shared/features
    python benchmarks/beyond.py --seeds 0 --weak                  weak encoders: noise, wrong logit scales
    python benchmarks/beyond.py --seeds 0 --uneven                whole sets: two images per class, and long tails
    python benchmarks/beyond.py --seeds 100 --quick               a fraction of the tasks, for development
    python benchmarks/beyond.py --seeds 100 --set guard=false     another setting; may be repeated

Uses one thread. Rows are methods; columns are accuracies per scenario in percent, averaged over feature sets and seeds,
then the mean over scenarios, the mean calibration error, the seconds, and the cell with the lowest gain over zero-shot.
Seeds below 100 are for final measurements; seeds 100 to 199 were used during development.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kedge.arrays import unit
from kedge.benchmark.evaluate import evaluate
from kedge.benchmark.plan import draw
from kedge.features.feature_set import FeatureSet
from kedge.features.text_head import TextHead
from kedge.methods.contract import Method
from kedge.methods.registry import build, find_method
from kedge.methods.settings import parse

HERE = Path(__file__).resolve().parent
FEATURES = HERE.parents[1] / "shared" / "features"
TASKS = {
    "very-low": 200, "low": 200, "medium": 200, "medium-1000": 30, "high": 30, "all": 1,
    "stream-low": 5, "stream-medium": 5, "stream-high": 5, "stream-separate": 5,
}  # fmt: skip
QUICK = 5  # tasks are divided by this
NOISE, SCALES, TAILS = (1, 2, 4), (30.0, 300.0), (3, 10, 50)


def real() -> Iterator[tuple[str, FeatureSet]]:
    """The real feature sets, by file name."""
    for path in sorted(FEATURES.glob("*.npz")):
        yield path.stem, FeatureSet.from_npz(path, normalize=True)


def weak() -> Iterator[tuple[str, FeatureSet]]:
    """Weak encoders: each real set with noise of so many times the features' length, or with a wrong logit scale."""
    for name, features in real():
        random = torch.Generator().manual_seed(0)
        noise = unit(torch.randn(features.image_features.shape, generator=random))
        for strength in NOISE:
            noisy = unit(features.image_features.float() + strength * noise)
            yield f"{name} noise {strength}", replace(features, image_features=noisy)
        for scale in SCALES:
            head = TextHead(features.head.features, scale, features.head.class_names)
            yield f"{name} scale {scale:g}", replace(features, head=head)


def uneven(seeds: list[int]) -> Iterator[tuple[str, FeatureSet]]:
    """Each real set with two images per class, and with long tails: the largest class has so many times the smallest.

    Class sizes fall geometrically, in a random order of the classes.
    """
    for name, features in real():
        assert features.labels is not None, name
        largest = int(features.labels.bincount().max())
        for seed in seeds:
            random = torch.Generator().manual_seed(seed)
            order = torch.randperm(len(features), generator=random)
            rank = torch.randperm(features.head.k, generator=random) / max(features.head.k - 1, 1)
            sizes = {f"{ratio}:1": largest * ratio**-rank for ratio in TAILS} | {"two each": torch.full_like(rank, 2.0)}
            for title, size in sizes.items():
                taken, seen = [], torch.zeros(features.head.k)
                for image in order.tolist():
                    label = features.labels[image]
                    if seen[label] < size[label].round().clamp_min(1):
                        seen[label] += 1
                        taken.append(image)
                yield f"{name} {title} seed {seed}", features.take(taken)


def measure(
    methods: dict[str, Method], sets: list[tuple[str, FeatureSet]], seeds: list[int], divide: int
) -> dict[str, Any]:
    """method → sets × scenarios × (accuracy, zero-shot, calibration error, seconds), averaged over seeds."""
    scores = {title: np.zeros((len(sets), len(TASKS), 4)) for title in methods}
    for row, (name, features) in enumerate(sets):
        assert features.labels is not None, name
        for column, (scenario, tasks) in enumerate(TASKS.items()):
            for seed in seeds:
                plan = draw(scenario, features.labels.numpy(), seed, max(1, tasks // divide))
                for title, method in methods.items():
                    r = evaluate(method, features, plan)
                    cell = (r.accuracy, r.zero_shot, r.calibration_error, r.seconds)
                    scores[title][row, column] += np.array(cell) / len(seeds)
        print(f"# {name}", flush=True)
    first = next(iter(methods))
    scores["zero-shot"] = scores[first][:, :, [1, 1, 2, 3]] * [1, 1, np.nan, np.nan]
    return scores


def show(scores: dict[str, Any], names: list[str], details: bool) -> None:
    """Print the table; with details, also the gain over zero-shot per feature set."""
    scenarios = list(TASKS)
    head = " ".join(f"{name.replace('stream', 's').replace('medium', 'med')[:8]:>8}" for name in scenarios)
    print(f"{'':34} {head} {'mean':>8} {'ECE':>6} {'seconds':>8}  least gain")
    for title, cells in scores.items():
        accuracy, gain = 100 * cells[:, :, 0], 100 * (cells[:, :, 0] - cells[:, :, 1])
        row, column = np.unravel_index(gain.argmin(), gain.shape)
        values = " ".join(f"{value:8.2f}" for value in accuracy.mean(axis=0))
        least = f"{gain.min():+.2f} {names[row]}, {scenarios[column]}"
        error, seconds = 100 * cells[:, :, 2].mean(), cells[:, :, 3].sum()
        print(f"{title:34} {values} {accuracy.mean():8.2f} {error:6.1f} {seconds:8.1f}  {least}")
        for name, gains, errors in zip(names, gain, 100 * cells[:, :, 2], strict=True):
            if details and title != "zero-shot":
                values = " ".join(f"{value:+8.2f}" for value in gains)
                print(f"  {name:32} {values} {gains.mean():+8.2f} {errors.mean():6.1f}")


def main() -> None:
    """See the top of the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", required=True)
    parser.add_argument("--weak", action="store_true", help="weak encoders instead of the real feature sets")
    parser.add_argument(
        "--uneven", action="store_true", help="whole sets with long tails, and with two images per class"
    )
    parser.add_argument("--quick", action="store_true", help=f"1/{QUICK} of the tasks")
    parser.add_argument("--details", action="store_true", help="also show the gain over zero-shot per feature set")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="run only kedge, with this setting"
    )
    parser.add_argument("--out", type=Path, help="write the cells as JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    changed = parse(find_method("kedge"), arguments.set, "kedge")
    methods = {"kedge " + " ".join(arguments.set): build("kedge", changed)} if changed else {
        "stata": build("stata"), "moon": build("moon"), "kedge": build("kedge"),
    }  # fmt: skip
    sets = list(weak() if arguments.weak else uneven(arguments.seeds) if arguments.uneven else real())
    if arguments.uneven:
        for scenario in set(TASKS) - {"all"}:
            del TASKS[scenario]
    if not sets:
        parser.error(f"no feature files (.npz) in {FEATURES}")
    names = [name for name, _ in sets]
    scores = measure(methods, sets, arguments.seeds, QUICK if arguments.quick else 1)
    show(scores, names, arguments.details)
    if arguments.out:
        cells = {title: np.nan_to_num(cell).tolist() for title, cell in scores.items()}
        arguments.out.write_text(json.dumps({"sets": names, "scenarios": list(TASKS), "cells": cells}))


if __name__ == "__main__":
    main()
