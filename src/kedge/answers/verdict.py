"""A verdict on the labels of a batch: good, weak or do not use, in one sentence, with the numbers behind it.

| number     | of the images whose label is not known                                                                |
|------------|-------------------------------------------------------------------------------------------------------|
| images     | how many                                                                                              |
| confidence | mean probability of the labels, after adaptation                                                      |
| zero_shot  | mean probability of the most probable class, by the encoder alone                                     |
| support    | mean probability of the labels, by the encoder alone                                                  |
| decided    | 1 − mean entropy of zero-shot, divided by the largest possible: 0 is a guess                          |
| agreement  | how often neighbours have the same zero-shot label, above chance, as a share of what is attainable    |
| one_label  | share of the most frequent label                                                                      |
| none       | share of images that look like none of the classes: `strangers.THRESHOLD`                             |
| distance   | from the images that the encoder knows, 1 is usual; only if the encoder says which it knows           |
| rejected   | share of images that were taken out by `reject`, of these and those left; only if there are any       |
| listed     | mean zero-shot probability, among all classes, of those that can occur; only if not all can           |

The expected accuracy is ½ (confidence + zero_shot): a solver that sees the whole batch is too sure, zero-shot is not
sure enough. A method with a temperature has done the same, so there it is the confidence. A batch differs from it by
ERROR in the mean (`benchmarks/honest.py`).

*Agreement* is κ = (A − 1/K)/(1 − 1/K), A the share of neighbours with the same label, divided by what κ could be with
so few images of a class: min(1, (n/K̂ − 1)/m), K̂ the effective number of labels. With n < 2 K̂ it is not judged.

If one class alone can occur, its probability is 1 whatever the images show: then no accuracy is promised.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from ..arrays import effective_classes
from ..encoders.familiar import UNFAMILIAR
from ..methods.solve.neighbours import KeptNeighbours, agreement
from ..words import percent, shown
from .answer import Answer
from .strangers import THRESHOLD, none_scores

Level: TypeAlias = Literal["good", "weak", "do not use"]

ERROR = 0.11  # of the expected accuracy of one batch
NEIGHBOURS, SAMPLE = (
    3,
    5_000,
)  # m; at most so many images are compared with each other, unless their neighbours are there already

NOTHING, LITTLE = 0.03, 0.125  # `decided`: below, zero-shot is a guess; undecided
CHANCE, SELDOM = 0.1, 0.3  # `agreement`: below, neighbours agree by chance; seldom
UNSURE = 0.6  # expected accuracy: below, neighbours that agree by chance are a reason not to use the labels
SOME, MOST = 0.15, 0.5  # `none`: above, weak; do not use
ONE_LABEL, SEVERAL = 0.9, 10  # `one_label`: above, weak; among so many images
LISTED = 0.25  # `listed`: below, weak. Right lists of 2 to 20 classes have 0.3 to 0.8, wrong ones 0 to 0.2
SUPPORTED, GOOD = 0.45, 0.65  # least support and least expected accuracy of good labels


@dataclass(frozen=True)
class Verdict:
    """What to think of the labels of a batch."""

    level: Level
    sentence: str
    accuracy: float  # expected share of right labels, of the images whose label is not known
    numbers: dict[str, float]

    def __str__(self) -> str:
        return self.sentence


def verdict(answer: Answer, none: Tensor | None = None, rejected: int = 0) -> Verdict:
    """Judge the labels of a batch.

    none: its scores, if they are there already. rejected: how many images were taken out; they are NONE in the answer.
    """
    rows = answer.unknown.nonzero().squeeze(1)
    if len(rows) == 0 and rejected:
        return Verdict("do not use", f"Do not use: {_taken_out(1.0)}.", 0.0, {"images": 0, "rejected": 1.0})
    if len(rows) == 0:
        return Verdict("good", "Good: every label is known.", 1.0, {"images": 0})
    numbers = _numbers(answer, rows, none_scores(answer) if none is None else none)
    if rejected:
        numbers["rejected"] = rejected / (rejected + len(rows))
    accuracy = numbers["confidence"]
    if not answer.tempered:
        accuracy = (accuracy + numbers["zero_shot"]) / 2
    if reasons := _against_use(numbers, accuracy):
        return Verdict("do not use", f"Do not use: {'; '.join(reasons)}.", accuracy, numbers)
    reasons = _doubts(answer, rows, numbers)
    if answer.classes > 1:
        reasons.insert(0, likely := _likely(numbers, accuracy))
        if len(reasons) == 1 and accuracy >= GOOD:
            out = f"; {_taken_out(numbers['rejected'])}" if rejected else ""
            return Verdict("good", f"Good: {likely}, and no warning sign was found{out}.", accuracy, numbers)
    return Verdict("weak", f"Weak: {'; '.join(reasons)}.", accuracy, numbers)


def _taken_out(share: float) -> str:
    """How many images were rejected, in words."""
    return f"{percent(share)} of the images were taken out, since they look like none of the classes"


def _likely(numbers: dict[str, float], accuracy: float) -> str:
    """The expected accuracy in words."""
    error = f"(± {100 * ERROR:.0f} points)"
    if numbers["images"] == 1:
        return f"the label is right with a probability of about {100 * accuracy:.0f} % {error}"
    return f"about {100 * accuracy:.0f} % of the labels are likely to be right {error}"


def _numbers(answer: Answer, rows: Tensor, none: Tensor) -> dict[str, float]:
    """The table at the top, for these images."""
    labels, y = answer.labels[rows], answer.among[rows]
    best, zero_shot_labels = y.max(dim=1)
    found = {
        "images": len(rows),
        "confidence": _mean(answer.z[rows].amax(dim=1)),
        "zero_shot": _mean(best),
        "support": _mean(y.gather(1, labels[:, None])),
        "decided": 1 - _mean(answer.entropy[rows]),
        "one_label": int(torch.bincount(labels).max()) / len(rows),
        "none": _mean(none[rows] > THRESHOLD),
    }
    agree = _agreement(answer, rows, zero_shot_labels)
    if agree is not None:
        found["agreement"] = agree
    if answer.familiar is not None:
        found["distance"] = answer.familiar.distance_ratio(answer.features[rows])
    if answer.present is not None:
        found["listed"] = _mean(answer.zero_shot[rows].index_select(1, answer.present).sum(dim=1))
    return found


def _agreement(answer: Answer, rows: Tensor, labels: Tensor) -> float | None:
    """Agreement of neighbours among these images; None if there are too few images or classes to tell."""
    k, kept = answer.classes, answer.kept
    if kept is None and len(rows) > SAMPLE:
        some = torch.arange(0, len(rows), -(-len(rows) // SAMPLE), device=rows.device)
        rows, labels = rows[some], labels[some]
    each = len(rows) / effective_classes(torch.bincount(labels).to(answer.z.dtype))
    if k == 1 or each < 2:
        return None
    kept = KeptNeighbours(answer.features[rows]) if kept is None else kept.among(rows)
    nearest = kept.nearest(NEIGHBOURS).indices
    return agreement(labels, nearest, k) / min(1.0, (each - 1) / NEIGHBOURS)


def _against_use(numbers: dict[str, float], accuracy: float) -> list[str]:
    """Reasons not to use the labels."""
    found = []
    if numbers.get("distance", 1.0) > UNFAMILIAR:
        found.append(
            f"the encoder does not know such images (they are {numbers['distance']:.1f} times as far from those it "
            "knows as usual)"
        )
    if numbers["decided"] < NOTHING:
        found.append(
            "the encoder finds all classes equally likely, so check the encoder, the class names and the logit scale"
        )
    if numbers.get("agreement", 1.0) < CHANCE and accuracy < UNSURE:
        found.append(
            f"similar images have the same label no more often than by chance (agreement {numbers['agreement']:.2f})"
        )
    if numbers["none"] > MOST:
        found.append(f"{percent(numbers['none'])} of the images look like none of the classes")
    return found


def _doubts(answer: Answer, rows: Tensor, numbers: dict[str, float]) -> list[str]:
    """Reasons to look at the labels before using them."""
    found = []
    if numbers["images"] == 1:
        found.append("a single image can be compared with no other")
    if answer.classes == 1:
        found.append("only one class can occur, so all images get its label, whatever they show")
        return found
    if numbers.get("listed", 1.0) < LISTED:
        found.append(
            f"the encoder alone gives {percent(1 - numbers['listed'])} of the probability to classes that cannot "
            "occur, so check the list of those that can"
        )
    if numbers["decided"] < LITTLE:
        found.append("the encoder is undecided about most images")
    elif numbers["support"] < SUPPORTED:
        found.append(f"the encoder alone gives these labels a probability of only {percent(numbers['support'])}")
    if numbers.get("agreement", 1.0) < SELDOM:
        found.append(f"similar images often have different labels (agreement {numbers['agreement']:.2f})")
    if numbers["one_label"] > ONE_LABEL and numbers["images"] >= SEVERAL:
        label = int(answer.labels[rows].mode().values)
        name = answer.head.class_names[label] if answer.head.class_names else f"class {label}"
        found.append(f"{percent(numbers['one_label'])} of the images have the label {shown(name)}")
    if numbers["none"] > SOME:
        found.append(f"{percent(numbers['none'])} of the images look like none of the classes")
    if numbers.get("rejected", 0.0) > MOST:
        found.append(_taken_out(numbers["rejected"]))
    return found


def _mean(values: Tensor) -> float:
    return float(values.to(torch.float32).mean())
