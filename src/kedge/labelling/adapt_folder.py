"""Label a feature folder: any number of images, of which blocks are in memory.

    labels = kedge.adapt_folder("birds", "birds-labels")
    labels.write("labels.csv")

The images are solved jointly, by lists of candidates (`methods/solve/joint.py`), in one or more parts: here, or where
an engine makes them (`kedge.cluster`). First every image goes to the part that has its cell, and finds its neighbours
(`methods/solve/cells.py`). This takes longest, and is kept in the label folder until the labels are complete: a run
that was interrupted goes on from there.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..arrays import Stacked
from ..errors import FileError, InputError, SettingError
from ..features.folder import Entry, FeatureFolder
from ..features.shard import load_shard
from ..features.text_head import TextHead
from ..files import check_writable, writing
from ..methods.contract import UNKNOWN, Method, SolvesParts
from ..methods.given import NONE, Known, Present, known_labels, present_classes
from ..methods.registry import build
from ..methods.settings import settings_of
from ..methods.solve import joint
from ..methods.solve.cells import Cells, arrange, load
from ..methods.solve.lists import Answers, Rows
from ..methods.solve.neighbours import EXACT_UP_TO
from ..methods.solve.parts import Engine, PartLost, Parts, here
from ..progress import notice, track
from ..ranges import MOST_IMAGES, whole
from ..schema import Whole
from ..tensor_files import check_path, load_tensors, save_tensors
from .label_folder import MANIFEST, LabelFolder, label_tensors, save_manifest, save_shard

KIND, VERSION = "arranged folder", 1
ATTEMPTS = 3  # to arrange the images, if parts are lost
WORK = "work"  # in the label folder, until it is complete


@dataclass(frozen=True)
class Task:
    """What images are arranged for."""

    features: str  # the hash of the feature folder
    neighbours: Whole
    exact: bool
    parts: Whole


@dataclass(frozen=True)
class Header:
    """What is known of images that are arranged."""

    task: Task
    offsets: list[Whole]
    info: dict[str, float]
    sha256: str


def adapt_folder(
    features: str | Path | FeatureFolder,
    out: str | Path,
    method: str | Method = "kedge",
    *,
    known: Known | None = None,
    present: Present | None = None,
    parts: int = 1,
    engine: Engine = here,
    **settings: Any,
) -> LabelFolder:
    """Label the images of a feature folder jointly, and write the labels to a new folder.

    method: kedge or stata, with its **settings, or a method object.
    known: labels given by a person, as in `adapt`; images that show none of the classes should not be in the folder.
    present: the classes that can occur, as in `adapt`; None: all.
    parts: in how many parts the images are solved.
    engine: what makes the parts; by default this process.
    """
    chosen = build(method, settings)
    if not isinstance(chosen, SolvesParts):
        raise SettingError(f"method {chosen.name!r} cannot solve a feature folder in parts. Choose kedge or stata.")
    parts = whole("parts", parts, 1, MOST_IMAGES)
    folder = features if isinstance(features, FeatureFolder) else FeatureFolder.open(features)
    out = check_new_labels(out)
    can_occur = present_classes(present, folder.head)
    given = _known(known, folder, can_occur)
    work = out / WORK
    with writing(work):
        work.mkdir(parents=True, exist_ok=True)
    arranged = _arranged(folder, work, chosen, parts, engine)
    places = [(folder.path, work, number, arranged.offsets, can_occur, *given) for number in range(parts)]
    with closing(engine(open_rows, places)) as rows:
        head = folder.head.like(_like(folder))
        info = {**chosen.solve(rows, head if can_occur is None else head.select(can_occur)), **arranged.info}
        entries, counts = [], Counts(folder)
        for entry in _written(folder, out, rows, given, counts):
            entries.append(entry)
        summary = {
            "method": chosen.name,
            "settings": settings_of(chosen),
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
        found = save_manifest(out, folder.hash, folder.head.class_names, summary, entries, mass)
    shutil.rmtree(work, ignore_errors=True)
    return found


def check_new_labels(path: str | Path) -> Path:
    """The path, if a label folder can be made there: nothing is there, or what an interrupted run left."""
    path = check_path(path)
    if (path / MANIFEST).exists():
        raise FileError(f"{path} is a label folder already. Name another, or delete it.")
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise FileError(f"cannot write {path}: it is a link or a file. Name another folder.")
    if path.is_dir() and any(path.iterdir()) and not (path / WORK).is_dir():
        raise FileError(f"{path} has other files. Name an empty or a new folder.")
    check_writable(path / MANIFEST if path.is_dir() else path)
    return path


# Where the parts are made


def open_cells(path: Path, work: Path, number: int, start: int, stop: int) -> Cells:
    """A part before the images are arranged: the shards `start` to `stop` − 1. They are checked."""
    folder = FeatureFolder.open(path)
    shards = folder.shards[start:stop]
    for shard in track(shards, "checking features"):
        shard.open()
    first = sum(len(shard) for shard in folder.shards[:start])
    opening = [lambda path=shard.path: load_shard(path, verified=True)[0]["image_features"] for shard in shards]
    x = Stacked(opening, [len(shard) for shard in shards], _like(folder))
    return Cells(x, getattr(torch, folder.columns.dtype), first, rows_file(work, number), number)


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
    head = folder.head.like(_like(folder))
    first, stop = [*offsets, len(folder)][number : number + 2]
    files = part_file(work, number), rows_file(work, number)
    x, numbers, nearest = load(*files, _like(folder), stop - first, len(folder))
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
        return self.numbers[first:last], *self.answers(self.order[first:last])


def rows_file(work: Path, number: int) -> Path:
    """Where the features of a part are."""
    return work / f"part-{number:05d}.rows"


def part_file(work: Path, number: int) -> Path:
    """Where the numbers and the neighbours of a part are."""
    return work / f"part-{number:05d}.safetensors"


def _like(folder: FeatureFolder) -> Tensor:
    """No rows, of the type that is computed in."""
    return torch.empty(0, folder.head.d, dtype=torch.float64 if folder.columns.dtype == "float64" else torch.float32)


def _of(numbers: Tensor, images: Tensor, classes: Tensor) -> Tensor | None:
    """Known labels of the images with these numbers, n; None if there are none at all."""
    if not len(images):
        return None
    at = torch.searchsorted(images, numbers).clamp_max_(len(images) - 1)
    return torch.where(images[at] == numbers, classes[at], UNKNOWN)


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


def _arranged(folder: FeatureFolder, work: Path, method: SolvesParts, parts: int, engine: Engine) -> Header:
    """Arrange the images, unless an interrupted run has."""
    if method.search == "exact" and len(folder) > EXACT_UP_TO:
        raise SettingError(
            f"exact neighbours in a feature folder are for up to {EXACT_UP_TO:,} images. Leave search out."
        )
    exact = method.search != "approximate" and len(folder) <= EXACT_UP_TO
    task = Task(folder.hash, method.neighbours, exact, parts)
    file = work / "arranged.safetensors"
    if file.exists():
        header = load_tensors(file, KIND, VERSION, Header)[1]
        if header.task == task:
            _check_offsets(file, header.offsets, parts, len(folder))
            return header
        raise FileError(f"{work.parent} has the beginning of another run. Delete it, or name another folder.")
    cuts = [len(folder.shards) * number // parts for number in range(parts + 1)]
    places = [(folder.path, work, number, cuts[number], cuts[number + 1]) for number in range(parts)]
    for attempt in range(ATTEMPTS):
        with closing(engine(open_cells, places)) as cells:
            try:
                arranged = arrange(cells, method.neighbours, exact)
                cells.each("save", own=[part_file(work, number) for number in range(parts)])
                break
            except PartLost:
                if attempt == ATTEMPTS - 1:
                    raise
                notice("a part was lost while images were arranged; this begins again")
    meta = {"task": asdict(task), "offsets": arranged.offsets, "info": arranged.info}
    save_tensors(file, KIND, VERSION, {}, meta)
    return load_tensors(file, KIND, VERSION, Header)[1]


def _check_offsets(file: Path, offsets: Sequence[int], parts: int, images: int) -> None:
    """Raise FileError unless every part begins where the one before it ends."""
    ascending = all(one <= two for one, two in pairwise([0, *offsets, images]))
    if len(offsets) != parts or offsets[0] != 0 or not ascending:
        raise FileError(f"{file} does not fit the {images} images. Delete its folder, and run this again.")


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
            raise FileError(f"{out / WORK} does not have every image once. Delete {out}, and run this again.")
        known = _of(numbers[order], *given)
        known = torch.full_like(numbers, UNKNOWN) if known is None else known
        tensors = label_tensors(Answers(*(each[order] for each in found)), known, features.paths)
        counts.add(tensors, features.labels)
        yield save_shard(out, start, tensors)
        start = stop
