"""Label a feature folder. Memory holds blocks of features; of each image some 1 kB, its candidates and neighbours.

    labels = kedge.adapt_folder("birds", "birds-labels")
    labels.write("labels.csv")

The images are solved jointly, by lists of candidates (`methods/solve/joint.py`), in one or more parts: here, or where
an engine makes them (`kedge.cluster`). First every image goes to the part that has its cell, and finds its neighbours
(`methods/solve/cells.py`). This takes longest, and is kept until the labels are complete (`label_work.py`): a run that
was interrupted goes on from there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..arrays import Stacked
from ..errors import FileError, InputError, SettingError
from ..features.folder import Entry, FeatureFolder
from ..features.text_head import TextHead
from ..methods.contract import UNKNOWN, Method, SolvesParts
from ..methods.given import NONE, Known, Present, known_labels, present_classes
from ..methods.registry import build
from ..methods.settings import settings_of
from ..methods.solve import joint
from ..methods.solve.cells import load
from ..methods.solve.lists import Answers, Rows
from ..methods.solve.parts import Engine, Parts, here
from ..progress import track
from ..ranges import MOST_IMAGES, whole
from .label_folder import LabelFolder, label_tensors, save_manifest, save_shard
from .label_work import arranged, check_new_labels, done_before, part_file, parts_begun, rows_file, rows_like, work_in


def adapt_folder(
    features: str | Path | FeatureFolder,
    out: str | Path,
    method: str | Method = "kedge",
    *,
    known: Known | None = None,
    present: Present | None = None,
    parts: int | None = None,
    engine: Engine = here,
    **settings: Any,
) -> LabelFolder:
    """Label the images of a feature folder jointly, and write the labels to a new folder.

    method: kedge or stata, with its **settings, or a method object.
    known: labels given by a person, as in `adapt`; images that show none of the classes should not be in the folder.
    present: the classes that can occur, as in `adapt`; None: all.
    parts: in how many parts the images are solved; by default one, or as an interrupted run has arranged them.
    engine: what makes the parts; by default this process.
    """
    chosen = build(method, settings)
    if not isinstance(chosen, SolvesParts):
        raise SettingError(f"method {chosen.name!r} cannot solve a feature folder in parts. Choose kedge or stata.")
    chosen.check_parts()
    folder = features if isinstance(features, FeatureFolder) else FeatureFolder.open(features)
    out = check_new_labels(out)
    can_occur = present_classes(present, folder.head)
    given = _known(known, folder, can_occur)
    job = {
        "method": chosen.name,
        "settings": settings_of(chosen),
        "features": folder.hash,
        "known labels": _digest(*given),
        "classes that can occur": _digest(can_occur),
    }
    if done := done_before(out, job):
        return done
    parts = whole("parts", (parts_begun(out) or 1) if parts is None else parts, 1, MOST_IMAGES)
    with work_in(out) as work:
        there = arranged(folder, work, chosen, parts, engine)
        places = [(folder.path, work, number, there.offsets, can_occur, *given) for number in range(parts)]
        with closing(engine(open_rows, places)) as rows:
            head = folder.head.like(rows_like(folder))
            info = {**chosen.solve(rows, head if can_occur is None else head.select(can_occur)), **there.info}
            entries, counts = [], Counts(folder)
            for entry in _written(folder, out, rows, given, counts):
                entries.append(entry)
            summary = {
                "method": chosen.name,
                "settings": job["settings"],
                **info,
                "parts": parts,
                "images": len(folder),
                "classes": folder.head.k,
                "known": len(given[0]),
                **counts.summary(),
            }
            mass = joint.mass(rows)
            if can_occur is not None:
                mass = mass.new_zeros(folder.head.k).index_copy_(0, can_occur, mass)
            return save_manifest(out, job, folder.head.class_names, summary, entries, mass)


def open_rows(
    path: Path,
    work: Path,
    number: int,
    offsets: Sequence[int],
    present: Tensor | None,
    images: Tensor,
    classes: Tensor,
) -> NumberedRows:
    """A part for the solve. images, classes: known labels, the numbers of their images ascending."""
    folder = FeatureFolder.open(path)
    head = folder.head.like(rows_like(folder))
    first, stop = [*offsets, len(folder)][number : number + 2]
    files = part_file(work, number), rows_file(work, number)
    x, numbers, nearest = load(*files, rows_like(folder), stop - first, len(folder))
    if present is not None:
        classes = torch.searchsorted(present, classes)
    said: dict[str, Any] = {"present": present, "known": _of(numbers, images, classes)}
    return NumberedRows(x, head, nearest, numbers, **said, number=number, offsets=offsets)


class NumberedRows(Rows):
    """A part whose images have numbers in the folder."""

    def __init__(self, x: Stacked, head: TextHead, nearest: Any, numbers: Tensor, **more: Any) -> None:
        super().__init__(x, head, nearest, **more)
        self.numbers, self.order = numbers.sort()

    def between(self, start: int, stop: int) -> tuple[Tensor, ...]:
        """Numbers of the images from `start` to `stop` − 1 that are here, and what was found of them."""
        first, last = torch.searchsorted(self.numbers, torch.tensor([start, stop])).tolist()
        return self.numbers[first:last].clone(), *self.answers(self.order[first:last])


def _of(numbers: Tensor, images: Tensor, classes: Tensor) -> Tensor | None:
    """Known labels of the images with these numbers, n; None if there are none at all."""
    if not len(images):
        return None
    at = torch.searchsorted(images, numbers).clamp_max_(len(images) - 1)
    return torch.where(images[at] == numbers, classes[at], UNKNOWN)


def _digest(*said: Tensor | None) -> str:
    """What a person said, as a hash."""
    return sha256(repr([each if each is None else each.tolist() for each in said]).encode()).hexdigest()


def _known(known: Known | None, folder: FeatureFolder, present: Tensor | None) -> tuple[Tensor, Tensor]:
    """The numbers of the images with a known label, ascending, and their classes."""
    if known is None:
        return torch.empty(0, dtype=torch.long), torch.empty(0, dtype=torch.long)
    found = known_labels(known, len(folder), folder.head, present)
    if bool((found == NONE).any()):
        raise InputError(
            f"image {int((found == NONE).nonzero()[0])} is known to show none of the classes, which a feature folder "
            "cannot have. Leave such images out of the folder."
        )
    images = (found >= 0).nonzero().squeeze(1)
    return images, found[images]


class Counts:
    """What the summary counts, shard by shard."""

    def __init__(self, folder: FeatureFolder) -> None:
        self.scored = folder.columns.labels
        self.changed = self.asked = self.right = self.right_before = 0
        self.classes = torch.zeros(folder.head.k, dtype=torch.long)

    def add(self, tensors: dict[str, Tensor], truth: Tensor | None) -> None:
        """Count a shard."""
        labels, first, asked = tensors["labels"], tensors["zero_shot_labels"], tensors["known"] == UNKNOWN
        self.changed += int((labels != first).sum())
        self.classes += torch.bincount(labels, minlength=len(self.classes))
        if truth is not None:
            self.asked += int(asked.sum())
            self.right += int((labels == truth)[asked].sum())
            self.right_before += int((first == truth)[asked].sum())

    def summary(self) -> dict[str, Any]:
        """As in `Predictions.summary`."""
        scored = self.scored and self.asked > 0
        return {
            "changed": self.changed,
            "zero_shot_accuracy": self.right_before / self.asked if scored else None,
            "accuracy": self.right / self.asked if scored else None,
            "label_counts": self.classes.tolist(),
        }


def _written(
    folder: FeatureFolder, out: Path, rows: Parts, given: tuple[Tensor, Tensor], counts: Counts
) -> Iterator[Entry]:
    """Write the labels, a shard for each shard of the features."""
    start = 0
    for shard in track(folder.shards, "labels"):
        features, stop = shard.open(), start + len(shard)
        numbers, *found = (torch.cat(each) for each in zip(*rows.each("between", start, stop), strict=True))
        order = numbers.argsort()
        if not torch.equal(numbers[order], torch.arange(start, stop)):
            raise FileError(f"{out} does not have every image once. Delete {out}, and run this again.")
        known = _of(numbers[order], *given)
        known = torch.full_like(numbers, UNKNOWN) if known is None else known
        tensors = label_tensors(Answers(*(each[order] for each in found)), known, features.paths)
        counts.add(tensors, features.labels)
        yield save_shard(out, start, tensors)
        start = stop
