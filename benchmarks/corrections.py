"""What corrections are worth: a simulated person labels sets of images with kedge, through `kedge.Session`.

    python benchmarks/corrections.py --seeds 0 1 2 --out rows.json    real features in ../shared/features, and drawings
    python benchmarks/corrections.py --seeds 100 --only dtd           some of the sets, by a part of their names

A set is what a person's folder may be: some images of some of the classes, drawn by seed; the list of names is whole.
The person gives the true label of one image at a time: the first in the review order, which is computed again after
each label, or one drawn at random. A true label may be the one that kedge has already; it counts as a correction too.
The last kind of sets, as the demo of the page, shows two classes that are not in the list: the person says kedge.NONE.

Before the corrections the person may go through the list of classes found, once. "unticked": those that are not there
cannot occur, as on the page. "only these": neither can any class that was not found, until the person names it.

Uses one thread. Seeds from 100 were used for development; docs/corrections.md has seeds 0 to 19, draw_corrections.py
draws them.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from beyond import FEATURES
from scipy.stats import t as student
from torch import Tensor

import kedge
from kedge.encoders.tiny import unpack

STEPS = (0, 5, 10, 20, 50)  # corrections
ORDERS = ("review", "random")
LISTS = ("all names", "unticked", "only these")
NO_CLASS = -1  # the label of an image that shows none of the classes
DRAWINGS, MEAN = "drawings", "mean of real features"
VALUES = {  # what is printed, and times what
    "left": ("accuracy in %, images not corrected", 100),
    "left_before": ("accuracy in %, the same images without any correction", 100),
    "total": ("accuracy in %, all images; those corrected are right", 100),
    "own": ("points of that by the corrected images themselves", 100),
    "spread": ("points of that by other images", 100),
    "fixed": ("images corrected whose label was wrong", 1),
    "changed": ("other images whose label changed", 1),
    "right": ("other images, right now", 1),
    "wrong": ("other images, wrong now", 1),
    "zero_shot": ("accuracy in %, zero-shot", 100),
    "shown": ("classes found without a person", 1),
    "unticked": ("of these, not there", 1),
}


class Kind(NamedTuple):
    """Sets of one kind: so many images of so many classes, of which some are missing from the list of names."""

    title: str
    file: str
    images: int
    classes: int
    missing: int = 0


KINDS = (
    Kind("CIFAR-10", "cifar10_500_vitb32", 250, 5),
    Kind("DTD", "dtd_test_vitb32", 500, 20),
    Kind("WHU-RS19", "whurs19_clip_vitb32", 500, 10),
    Kind("WHU-RS19 RN50", "whurs19_clip_rn50", 500, 10),
    Kind("SUN397, 20 classes", "sun397_val_vitb32", 200, 20),
    Kind("SUN397, 100 classes", "sun397_val_vitb32", 1000, 100),
    Kind("ImageNet", "imagenet_train2shot_vitb32", 200, 100),
    Kind("drawings", DRAWINGS, 800, 40),
    Kind("drawings, 2 names missing", DRAWINGS, 800, 40, 2),
)


@dataclass(frozen=True)
class Row:
    """One set after some corrections. Accuracies are shares; the last seven are numbers."""

    title: str
    seed: int
    names: str  # one of LISTS
    order: str  # one of ORDERS
    corrections: int
    left: float  # accuracy on the images that were not corrected
    left_before: float  # on the same images, without any correction
    total: float  # accuracy on all images; those corrected are right
    zero_shot: float  # on all images
    images: int
    shown: int  # classes found before any correction, with all names
    unticked: int  # of these, classes that are not there
    fixed: int  # images corrected whose label was wrong without any correction
    changed: int  # others whose label differs from the one without any correction
    right: int  # of these, right now
    wrong: int  # of these, right before

    @property
    def own(self) -> float:
        """What the corrected images themselves add to the accuracy on all images."""
        return self.fixed / self.images

    @property
    def spread(self) -> float:
        """What the others add to it, which follow from the corrections."""
        return (self.right - self.wrong) / self.images


def drawn(features: kedge.FeatureSet, kind: Kind, seed: int) -> tuple[kedge.FeatureSet, Tensor]:
    """A set by its seed, and its true labels: class numbers, or kedge.NONE where the name is missing from the list."""
    assert features.labels is not None
    random, labels, k = np.random.default_rng(seed), features.labels.numpy(), features.head.k
    shown = random.permutation(k)[: kind.classes]
    pool = random.permutation(np.flatnonzero(np.isin(labels, shown)))
    first = [int(pool[labels[pool] == number][0]) for number in shown]  # of each class at least one
    images = np.concatenate([first, pool[~np.isin(pool, first)]])[: kind.images]
    listed = torch.tensor([number for number in range(k) if number not in shown[: kind.missing]])
    place = torch.full((k,), kedge.NONE).index_copy(0, listed, torch.arange(len(listed)))
    chosen = features.take(images)
    assert chosen.labels is not None
    return replace(chosen, head=features.head.select(listed), labels=None), place[chosen.labels]


class Person:
    """Knows the true labels, and gives them one by one."""

    def __init__(self, session: kedge.Session, truth: Tensor, seed: int) -> None:
        self.session, self.truth, self.seed = session, truth, seed
        self.first = session.solve()
        self.found = {each.number for each in self.first.classes}
        self.there = set(truth.tolist()) - {kedge.NONE}

    def present(self, names: str) -> set[int]:
        """The classes that can occur, after the person went through those found. If none of them is there: all."""
        everything, confirmed = set(range(self.session.features.head.k)), self.found & self.there
        if names == "all names" or not confirmed:
            return everything
        return confirmed if names == "only these" else everything - (self.found - self.there)

    def corrected(self, names: str, order: str) -> Iterator[tuple[dict[int, int], kedge.Result[Tensor]]]:
        """The known labels and what follows from them, after each number of STEPS."""
        known: dict[int, int] = {}
        present = self.present(names)
        at_random = np.random.default_rng([self.seed, 1]).permutation(len(self.truth)).tolist()
        while True:
            if order == "review" or len(known) in STEPS:
                result = self.session.solve(known=known, present=present)
            if len(known) in STEPS:
                yield dict(known), result
            if len(known) == STEPS[-1]:
                return
            image = int(result.review[0]) if order == "review" else at_random[len(known)]
            known[image] = int(self.truth[image])
            present = present | {known[image]} - {kedge.NONE}

    def rows(self, title: str) -> Iterator[Row]:
        """One for each list of names, order and number of corrections."""
        true = self.truth.where(self.truth != kedge.NONE, torch.tensor(NO_CLASS))
        zero_shot = share(self.first.zero_shot.argmax(dim=1) == true)
        for names, order in product(LISTS, ORDERS):
            before: Tensor | None = None
            for known, result in self.corrected(names, order):
                before = result.labels if before is None else before
                other = torch.ones(len(true), dtype=torch.bool)
                other[list(known)] = False
                was, now = before == true, result.labels == true
                yield Row(
                    title, self.seed, names, order, len(known),
                    left=share(now[other]), left_before=share(was[other]), total=share(now), zero_shot=zero_shot,
                    images=len(true), shown=len(self.found), unticked=len(self.found - self.there),
                    fixed=int((~was & ~other).sum()), changed=int((result.labels != before)[other].sum()),
                    right=int((now & ~was)[other].sum()), wrong=int((was & ~now)[other].sum()),
                )  # fmt: skip


def share(right: Tensor) -> float:
    return float(right.double().mean())


def mean(values: Sequence[float]) -> tuple[float, float]:
    """The mean over seeds, and half the width of its 95 % interval (Student's t); nan of a single seed."""
    n = len(values)
    half = float(student.ppf(0.975, n - 1) * np.std(values, ddof=1) / n**0.5) if n > 1 else float("nan")
    return float(np.mean(values)), half


def by_seed(rows: Sequence[Row], value: str) -> list[float]:
    """A value for each seed, averaged over the kinds of sets."""
    seeds = sorted({row.seed for row in rows})
    return [float(np.mean([getattr(row, value) for row in rows if row.seed == seed])) for seed in seeds]


def groups(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of each kind of set, and those of all real features."""
    found = {title: [row for row in rows if row.title == title] for title in dict.fromkeys(row.title for row in rows)}
    real = [row for row in rows if DRAWINGS not in row.title]
    return {**found, MEAN: real} if real else found


def show(rows: Sequence[Row]) -> None:
    """A table for each of VALUES: mean over seeds ± half the 95 % interval."""
    for value, (about, times) in VALUES.items():
        print(f"\n{about}; after {', '.join(map(str, STEPS))} corrections")
        for (title, some), names, order in product(groups(rows).items(), LISTS, ORDERS):
            cells = [[r for r in some if (r.names, r.order, r.corrections) == (names, order, s)] for s in STEPS]
            found = [mean(by_seed(cell, value)) for cell in cells]
            text = " ".join(f"{times * middle:6.1f} ±{times * half:4.1f}" for middle, half in found)
            print(f"  {title:26} {names:10} {order:6} {text}")


def loaded(file: str, place: Path) -> kedge.FeatureSet:
    """Real features, or those of the bundled pictures, which are made in `place`."""
    if file != DRAWINGS:
        return kedge.FeatureSet.from_npz(FEATURES / f"{file}.npz", normalize=True)
    made = place / f"{DRAWINGS}.safetensors"
    if made.exists():
        return kedge.FeatureSet.load(made)
    return kedge.extract(unpack(place / DRAWINGS), encoder="tiny", out=made)


def main(arguments: Sequence[str] | None = None) -> None:
    """See the top of the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", required=True)
    parser.add_argument("--only", nargs="+", default=[""], help="sets with one of these texts in their names")
    parser.add_argument("--out", type=Path, help="write all rows as JSON")
    given = parser.parse_args(arguments)
    kinds = [kind for kind in KINDS if any(text.lower() in kind.title.lower() for text in given.only)]
    torch.set_num_threads(1)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as place:
        for kind in kinds:
            features, start = loaded(kind.file, Path(place)), time.perf_counter()
            for seed in given.seeds:
                chosen, truth = drawn(features, kind, seed)
                rows += Person(kedge.Session(chosen), truth, seed).rows(kind.title)
            print(f"# {kind.title}: {time.perf_counter() - start:.0f} s", flush=True)
    if given.out:
        given.out.write_text(json.dumps([asdict(row) for row in rows]))
    show(rows)


if __name__ == "__main__":
    main()
