"""What the page shows of a solve: columns with a number per image, classes, the verdict, and what changed.

Classes are named by their ids everywhere (`said.SaidClass`); rows of the text head have other numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..features.feature_set import FeatureSet
from ..features.text_head import TextHead
from ..images.image_set import same_name
from ..labelling.result import NO_CLASS, NO_CLASS_NAME, Result
from ..methods.contract import UNKNOWN
from ..methods.given import NONE
from ..words import count, first_few
from .said import AddClass, Change, DropClass, EditClass, Label, Present, Said

Numbers: TypeAlias = NDArray[np.int64]

NOT_YET = -3  # in labels: the image is not encoded yet
DIGITS = 4  # of probabilities
TOP = 9  # classes that are shown of one image: those with a key


@dataclass(frozen=True, eq=False)
class Solved:
    """What a person said, and the labels that follow from it."""

    said: Said
    paths: Sequence[str]
    head: TextHead
    result: Result[Tensor]
    seconds: float  # that the solve took

    @cached_property
    def ids(self) -> Numbers:
        """The id of each row of the head; the last entry is for the row −1."""
        return np.array([*(each.id for each in self.said.classes), NO_CLASS])

    @cached_property
    def labels(self) -> Numbers:
        """The label of each image: an id, or −1."""
        found: Numbers = self.ids[self.result.labels.cpu().numpy()]
        return found

    @cached_property
    def known(self) -> Numbers:
        """What the person said of each image: an id, NONE, or UNKNOWN."""
        return known_labels(self.said, self.paths)

    @cached_property
    def columns(self) -> dict[str, list[Any]]:
        """A list for each column, with an entry per image."""
        result = self.result
        zero_shot, classes = result.zero_shot.max(dim=1)
        rank = np.zeros(len(self.paths), dtype=np.int64)
        review = result.review.cpu().numpy()
        rank[review] = np.arange(1, len(review) + 1)
        return {
            "label": self.labels.tolist(),
            "probability": _rounded(result.probs.amax(dim=1)),
            "runner_up": self.ids[result.runner_up.cpu().numpy()].tolist(),
            "none": _rounded(result.none),
            "zero_shot": self.ids[classes.cpu().numpy()].tolist(),
            "zero_shot_probability": _rounded(zero_shot),
            "known": self.known.tolist(),
            "rank": rank.tolist(),
        }

    def classes(self) -> list[dict[str, Any]]:
        """All classes, in the order of their ids."""
        found = {int(self.ids[each.number]): each for each in self.result.classes}
        given, labelled = _counts(self.known), _counts(self.labels)
        return [
            {
                "id": each.id,
                "name": each.name,
                "prompt": each.prompt,
                "present": each.id not in self.said.absent,
                "known": given.get(each.id, 0),
                "count": labelled.get(each.id, 0),
                "expected": round(found[each.id].count, 1) if each.id in found else None,
                "evidence": round(found[each.id].evidence, DIGITS) if each.id in found else None,
                "example": found[each.id].example if each.id in found else None,
            }
            for each in self.said.classes
        ]

    def shown(self) -> dict[str, Any]:
        """All but what depends on earlier solves."""
        verdict = self.result.verdict
        return {
            "classes": self.classes(),
            "found": [int(self.ids[each.number]) for each in self.result.classes],
            "columns": self.columns,
            "verdict": {
                "level": verdict.level,
                "sentence": verdict.sentence,
                "accuracy": round(verdict.accuracy, DIGITS),
            },
            "reject": self.said.reject,
            "corrections": int((self.known != UNKNOWN).sum()),
            "seconds": round(self.seconds, DIGITS),
        }

    def differing(self, labels: Numbers) -> Numbers:
        """The images whose label is another than in this list; those that a person gave do not count."""
        return np.flatnonzero((self.labels != labels) & (self.known == UNKNOWN))

    def accuracy(self, truth: Numbers | None) -> dict[str, float] | None:
        """Share of right labels among the images whose label the person did not give; truth: ids, or −1."""
        asked = self.known == UNKNOWN
        if truth is None or not asked.any():
            return None
        zero_shot = np.array(self.columns["zero_shot"])
        now, before = ((labels == truth)[asked].mean() for labels in (self.labels, zero_shot))
        return {"now": round(float(now), DIGITS), "zero_shot": round(float(before), DIGITS)}

    def top(self, image: int) -> list[dict[str, Any]]:
        """The most probable classes of one image."""
        probs, zero_shot = self.result.probs[image], self.result.zero_shot[image]
        best = probs.topk(min(TOP, len(probs)))
        return [
            {"id": int(self.ids[row]), "probability": _round(value), "zero_shot": _round(float(zero_shot[row]))}
            for row, value in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]


def known_labels(said: Said, paths: Sequence[str]) -> Numbers:
    """What was said of each image: an id, NONE, or UNKNOWN."""
    return np.array([said.known.get(path, UNKNOWN) for path in paths], dtype=np.int64)


def as_rows(known: Numbers, said: Said) -> Numbers:
    """Ids as rows of the head; UNKNOWN and NONE stay."""
    row = {each.id: number for number, each in enumerate(said.classes)} | {UNKNOWN: UNKNOWN, NONE: NONE}
    return np.array([row[each] for each in known.tolist()], dtype=np.int64)


def true_names(features: FeatureSet) -> list[str] | None:
    """What the true class of each image is called, if it is known: its label in the features, or its folder."""
    if features.labels is not None:
        names = [same_name(name) for name in features.head.class_names]
        return [names[label] for label in features.labels.tolist()]
    folders = [path.split("/", 1) for path in features.paths or ()]
    return None if any(len(parts) == 1 for parts in folders) else [same_name(parts[0]) for parts in folders]


def true_labels(names: Sequence[str] | None, said: Said, strangers: bool) -> Numbers | None:
    """The id of the class with each of these names (as `same_name` has them); None if they are not all classes.

    strangers: names of no class are none of these, −1.
    """
    if names is None:
        return None
    number = {same_name(each.name): each.id for each in said.classes}
    found = np.array([number.get(name, NO_CLASS) for name in names], dtype=np.int64)
    return found if strangers or NO_CLASS not in found else None


def waiting(names: Sequence[str], labels: Numbers, probabilities: NDArray[np.float32]) -> dict[str, Any]:
    """What is shown before the first solve: zero-shot of the images that are encoded."""
    n, given = len(labels), _counts(labels)
    nothing: dict[str, Any] = {"prompt": None, "present": True, "known": 0}
    empty = dict.fromkeys(("expected", "evidence", "example"))
    said = [{"id": i, "name": name, **nothing, "count": given.get(i, 0), **empty} for i, name in enumerate(names)]
    rounded = _rounded(probabilities)
    return {
        "phase": "encoding",
        "classes": said,
        "found": [],
        "columns": {
            "label": labels.tolist(),
            "probability": rounded,
            "runner_up": [NO_CLASS] * n,
            "none": [0.0] * n,
            "zero_shot": labels.tolist(),
            "zero_shot_probability": rounded,
            "known": [UNKNOWN] * n,
            "rank": list(range(1, n + 1)),
        },
        "verdict": None,
        "reject": None,
        "corrections": 0,
        "seconds": 0.0,
        "accuracy": None,
        "others": 0,
        "last": None,
        "can_undo": False,
        "can_redo": False,
    }


def in_words(change: Change, said: Mapping[int, str]) -> str:
    """`3 images are heron`; said: the names of the classes."""
    if isinstance(change, Label):
        images = count(len(change.images), "image")
        if change.label is None:
            return f"forgotten: the label of {images}"
        name = NO_CLASS_NAME if change.label == NONE else said.get(change.label, "")
        return f"{images} {'is' if len(change.images) == 1 else 'are'} {name}"
    if isinstance(change, Present):
        names = first_few([said.get(each, "") for each in change.classes])
        return f"{'here' if change.present else 'not here'}: {names}"
    if isinstance(change, AddClass):
        return f"new class: {change.name}"
    if isinstance(change, EditClass):
        return f"changed class: {change.name}"
    if isinstance(change, DropClass):
        return f"dropped class: {said.get(change.id, '')}"
    return "nothing is rejected" if change.threshold is None else f"rejected above {change.threshold:g}"


def _counts(values: Numbers) -> dict[int, int]:
    found, times = np.unique(values, return_counts=True)
    return dict(zip(found.tolist(), times.tolist(), strict=True))


def _rounded(values: Tensor | NDArray[Any]) -> list[float]:
    """With few digits, which JSON then has too."""
    plain: list[float] = np.asarray(values, dtype=np.float64).round(DIGITS).tolist()
    return plain


def _round(value: float) -> float:
    return round(value, DIGITS)
