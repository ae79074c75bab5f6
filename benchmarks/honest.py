"""How honest the answers are: the score `none`, the expected accuracy and the level of the verdict, on real features.

    python benchmarks/honest.py --seeds 10 11 --files F   real features in ../shared/features
    python benchmarks/honest.py --seeds 100 --quick       a fraction of the tasks, for development

Uses one thread; every table compares methods on the same batches. F: more labelled feature files. docs/honest.md has
the figures of seeds 10 to 19 with the features of `kedge demo`. Seeds 0 to 2, and from 1000, were used for development.

1. Strangers: a fifth of the classes is left out of the list. How well `none` tells their images (AUROC); which share of
   them is above the threshold; and which share of the images is above it if no class is left out.
2. 250 textures among 500 CIFAR-10 images: the same, each image alone, and what taking them out is worth.
3. Verdicts: how far the expected accuracy is from the truth, in the mean of a cell (set and scenario) and in a batch;
   the accuracy at each level; the levels if the list of classes belongs to another set; and for each set how many
   labels with a probability above 0.95 are right.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from beyond import FEATURES, QUICK, real
from scipy.stats import rankdata
from torch import Tensor

from kedge.answers.answer import Answer
from kedge.answers.strangers import THRESHOLD, none_scores
from kedge.answers.verdict import verdict
from kedge.arrays import unit
from kedge.benchmark.plan import draw
from kedge.features.feature_set import FeatureSet
from kedge.features.text_head import TextHead
from kedge.methods.contract import Batch
from kedge.methods.registry import build

METHODS = "zero-shot", "kedge"
TASKS = {"low": 20, "medium": 20, "medium-1000": 4, "all": 1}
VERDICT_TASKS = {"very-low": 20, **TASKS, "high": 3}
LEFT_OUT = 0.2  # of the classes
NOBODY = -1  # the true class of a stranger
SURE = 0.95
Task = tuple[Tensor, TextHead, Tensor]  # features, head, true classes


def answered(method: str, x: Tensor, head: TextHead) -> Answer:
    batch, chosen = Batch(x, head), build(method)
    step = chosen.step(chosen.init(head), batch)
    return Answer(x, head, batch.log_zero_shot.exp(), step.z, tempered="heat" in step.info)


def tasks(
    features: FeatureSet, scenario: str, seed: int, number: int, left_out: float, head: TextHead | None = None
) -> Iterator[Task]:
    """Batches of a scenario, with some classes left out of the list; or with another list."""
    assert features.labels is not None
    for j, (images, *_) in enumerate(draw(scenario, features.labels.numpy(), seed, number).episodes):
        x, k = unit(features.image_features[images].float()), features.head.k
        order = np.random.default_rng([seed, j]).permutation(k)
        listed = torch.from_numpy(np.sort(order[round(left_out * k) :]))
        place = torch.full((k,), NOBODY).index_copy(0, listed, torch.arange(len(listed)))
        truth = place[features.labels[images]]
        yield x, (head or features.head.select(listed)).like(x), torch.full_like(truth, NOBODY) if head else truth


def auroc(scores: Tensor, positive: Tensor) -> float:
    """How often a positive has the higher score; nan if there are none, or only such."""
    ranks, n = rankdata(scores.numpy()), int(positive.sum())
    if n in (0, len(positive)):
        return float("nan")
    return float((ranks[positive.numpy()].sum() - n * (n + 1) / 2) / (n * (len(positive) - n)))


def accuracy(answer: Answer, truth: Tensor) -> float:
    return float((answer.labels == truth)[truth != NOBODY].double().mean())


def strangers(sets: dict[str, FeatureSet], seeds: list[int], divide: int) -> None:
    print(f"1. {LEFT_OUT:.0%} of the classes left out: AUROC of `none`, caught; with all classes: above the threshold")
    for method in METHODS:
        aurocs = []
        for name, features in sets.items():
            found, caught, wrongly = [], [], []
            for scenario, number in TASKS.items():
                scores, by_class = [], []
                for seed in seeds:
                    for x, head, truth in tasks(features, scenario, seed, max(1, number // divide), LEFT_OUT):
                        none, strange = none_scores(answered(method, x, head)), truth == NOBODY
                        scores.append(auroc(none, strange))
                        by_class.append(float((none[strange] > THRESHOLD).double().mean()))
                found.append(np.nanmean(scores))
                caught.append(np.nanmean(by_class))
                for seed in seeds:
                    for x, head, _ in tasks(features, scenario, seed, max(1, number // divide), 0.0):
                        none = none_scores(answered(method, x, head))
                        wrongly.append((scenario, float((none > THRESHOLD).double().mean())))
            above = np.mean([np.mean([v for s, v in wrongly if s == scenario]) for scenario in TASKS])
            aurocs.append(np.mean(found))
            values = " ".join(f"{100 * value:5.1f}" for value in found)
            print(
                f"   {method:10} {name:28} AUROC {values}  mean {100 * aurocs[-1]:5.1f}   "
                f"caught {100 * np.mean(caught):5.1f} %   without strangers {100 * above:4.1f} %",
                flush=True,
            )
        print(f"   {method:10} mean AUROC {100 * np.mean(aurocs):.1f}")


def textures(sets: dict[str, FeatureSet], seeds: list[int]) -> None:
    print("2. 250 textures among 500 CIFAR-10 images")
    cifar, dtd = sets["cifar10_500_vitb32"], sets["dtd_test_vitb32"]
    assert cifar.labels is not None
    known = unit(cifar.image_features.float())
    head = cifar.head.like(known)
    for method in METHODS:
        rows = []
        for seed in seeds:
            chosen = torch.from_numpy(np.random.default_rng(seed).permutation(len(dtd))[:250])
            x = torch.cat([known, unit(dtd.image_features[chosen].float())])
            truth = torch.cat([cifar.labels, torch.full((250,), NOBODY)])
            answer, strange = answered(method, x, head), truth == NOBODY
            none = none_scores(answer)
            kept = (none <= THRESHOLD).nonzero().squeeze(1)
            labels = torch.full_like(truth, NOBODY).index_copy(0, kept, answered(method, x[kept], head).labels)
            alone = torch.cat([none_scores(answered("zero-shot", row, head)) for row in x.split(1)])
            rows.append(
                {
                    "AUROC": auroc(none, strange),
                    "AUROC, each alone": auroc(alone, strange),
                    "probability of strangers": float(answer.z[strange].amax(dim=1).mean()),
                    "caught": float((none[strange] > THRESHOLD).double().mean()),
                    "wrongly": float((none[~strange] > THRESHOLD).double().mean()),
                    "accuracy without strangers": accuracy(answered(method, known, head), cifar.labels),
                    "with": accuracy(answer, truth),
                    "taken out": float((labels == truth)[~strange].double().mean()),
                }
            )
        means = {what: np.mean([row[what] for row in rows]) for what in rows[0]}
        print(f"   {method:10} " + ", ".join(f"{what} {100 * value:.1f}" for what, value in means.items()), flush=True)


def verdicts(sets: dict[str, FeatureSet], seeds: list[int], divide: int) -> None:
    print("3. verdicts")
    for method in METHODS:
        cells, batches, levels, wrong, above = [], [], defaultdict(list), Counter[str](), []
        for name, features in sets.items():
            sure: list[Tensor] = []
            for scenario, number in VERDICT_TASKS.items():
                pairs = []
                for seed in seeds:
                    for x, head, truth in tasks(features, scenario, seed, max(1, number // divide), 0.0):
                        answer = answered(method, x, head)
                        found, true = verdict(answer), accuracy(answer, truth)
                        pairs.append((found.accuracy, true))
                        levels[found.level].append(true)
                        sure.append((answer.labels == truth)[answer.z.amax(dim=1) > SURE])
                cells.append(abs(np.subtract(*np.mean(pairs, axis=0))))
                batches.append(np.mean([abs(expected - true) for expected, true in pairs]))
            above.append(float(torch.cat(sure).double().mean()))
            for other, foreign in sets.items():
                if foreign.head.d == features.head.d and other.split("_")[0] != name.split("_")[0]:
                    for x, head, _ in tasks(features, "low", seeds[0], 5, 0.0, foreign.head):
                        wrong[verdict(answered(method, x, head)).level] += 1
        by_level = ", ".join(
            f"{level} {len(found)} batches {100 * np.mean(found):.1f}" for level, found in sorted(levels.items())
        )
        print(
            f"   {method:10} error of the expected accuracy {100 * np.mean(cells):.1f} in a cell, "
            f"{100 * np.mean(batches):.1f} in a batch; accuracy: {by_level}; another set's classes: {dict(wrong)}",
            flush=True,
        )
        by_set = ", ".join(f"{name} {100 * share:.1f}" for name, share in zip(sets, above, strict=True))
        print(
            f"   {method:10} right above {SURE}: {100 * np.mean(above):.1f} in the mean of the sets; {by_set}",
            flush=True,
        )


def main() -> None:
    """See the top of the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", required=True)
    parser.add_argument("--quick", action="store_true", help=f"1/{QUICK} of the tasks")
    parser.add_argument("--files", type=Path, nargs="*", default=[], help="more labelled feature files")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    sets = {**dict(real()), **{path.stem: FeatureSet.load(path) for path in arguments.files}}
    if not sets:
        parser.error(f"no feature files (.npz) in {FEATURES}")
    divide = QUICK if arguments.quick else 1
    strangers(sets, arguments.seeds, divide)
    if {"cifar10_500_vitb32", "dtd_test_vitb32"} <= sets.keys():
        textures(sets, arguments.seeds)
    verdicts(sets, arguments.seeds, divide)


if __name__ == "__main__":
    main()
