"""The work of a label folder: a feature folder's images, arranged for a joint solve.

    labels/.kedge-work/lock                    locked as long as a command uses the folder
    labels/.kedge-work/part-00000.rows         the features of a part, cell after cell
    labels/.kedge-work/part-00000.safetensors  the numbers of its images, and their neighbours
    labels/.kedge-work/arranged.safetensors    written last: what the images are arranged for

To arrange the images takes longest, so their work stays until the labels are complete.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..arrays import Stacked
from ..errors import FileError, SettingError
from ..features.folder import FeatureFolder
from ..features.shard import load_shard, shard_range
from ..features.unfinished import difference
from ..files import check_usable, check_writable, is_temporary, lock_file, remove_temporary, writing
from ..memory import check_memory
from ..methods.contract import SolvesParts
from ..methods.solve.cells import Cells, arrange
from ..methods.solve.lists import bytes_of_image
from ..methods.solve.neighbours import EXACT_UP_TO
from ..methods.solve.parts import Engine, PartLost
from ..progress import notice, track
from ..schema import Whole
from ..tensor_files import check_path, load_tensors, save_tensors
from ..words import count
from .label_folder import MANIFEST, LabelFolder

KIND, VERSION = "arranged folder", 1
ATTEMPTS = 3  # to arrange the images, if parts are lost
WORK, LOCK, ARRANGED = ".kedge-work", "lock", "arranged.safetensors"


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


def check_new_labels(path: str | Path) -> Path:
    """The path, if a label folder can be made there: nothing is there, or what a run of the same job left."""
    path = check_path(path)
    check_usable(path)
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise FileError(f"cannot write {path}: it is a link or a file. Name another folder.")
    names = os.listdir(path) if path.is_dir() and not (path / MANIFEST).exists() else []
    foreign = [name for name in names if name != WORK and not is_temporary(name) and not shard_range(name)]
    if foreign or (names and WORK not in names):
        raise FileError(f"{path} has other files, like {[*foreign, *names][0]}. Name an empty or a new folder.")
    check_writable(path / MANIFEST if path.is_dir() else path)
    return path


def done_before(path: Path, job: Mapping[str, Any]) -> LabelFolder | None:
    """The labels, if this job is complete; raises FileError if they are of another."""
    if not (path / MANIFEST).exists():
        return None
    labels = LabelFolder.open(path)
    if other := difference(labels.job, job):
        raise FileError(f"{path} is a label folder already, which differs in {other}. Name another, or delete it.")
    _clear(path)  # the run may have been stopped at its very end
    notice(f"already done: {path}")
    return labels


@contextmanager
def work_in(labels: Path) -> Iterator[Path]:
    """The work of a label folder, for this process alone. It is deleted at the end.

    After an error it stays if images are arranged: a later run goes on from there.
    """
    work = labels / WORK
    with writing(work):
        work.mkdir(parents=True, exist_ok=True)
        lock = lock_file(work / LOCK)
    if lock is None:
        raise FileError(f"another process uses {labels}. Wait until it is done, or name another folder.")
    with lock:
        try:
            yield work
        except BaseException:
            if not (work / ARRANGED).exists():  # nothing to go on from
                shutil.rmtree(work, ignore_errors=True)
                with suppress(OSError):
                    labels.rmdir()
            raise
        _clear(labels)  # while locked: later another process may use it


def _clear(labels: Path) -> None:
    """Remove what a complete label folder does not need."""
    shutil.rmtree(labels / WORK, ignore_errors=True)
    remove_temporary(labels)


def parts_begun(labels: str | Path) -> int | None:
    """In how many parts an interrupted run has arranged the images; None if there is none."""
    file = Path(labels) / WORK / ARRANGED
    return load_tensors(file, KIND, VERSION, Header)[1].task.parts if file.exists() else None


def arranged(folder: FeatureFolder, work: Path, method: SolvesParts, parts: int, engine: Engine) -> Header:
    """Arrange the images, unless an interrupted run has."""
    if method.search == "exact" and len(folder) > EXACT_UP_TO:
        raise SettingError(
            f"exact neighbours in a feature folder are for up to {EXACT_UP_TO:,} images. Leave search out."
        )
    exact = method.search != "approximate" and len(folder) <= EXACT_UP_TO
    task = Task(folder.hash, method.neighbours, exact, parts)
    file = work / ARRANGED
    if file.exists():
        header = load_tensors(file, KIND, VERSION, Header)[1]
        if other := difference(asdict(header.task), asdict(task)):
            raise FileError(
                f"{work.parent} has the beginning of a run that differs in {other}. Name another folder, or delete it."
            )
        _check_offsets(file, header.offsets, parts, len(folder))
        return header
    cuts = [len(folder.shards) * number // parts for number in range(parts + 1)]
    places = [(folder.path, work, number, *cuts[number : number + 2], task.neighbours) for number in range(parts)]
    for attempt in range(ATTEMPTS):
        with closing(engine(open_cells, places)) as cells:
            try:
                found = arrange(cells, method.neighbours, exact)
                cells.each("save", own=[part_file(work, number) for number in range(parts)])
                break
            except PartLost:
                if attempt == ATTEMPTS - 1:
                    raise
                notice("a part was lost while images were arranged; this begins again")
    save_tensors(file, KIND, VERSION, {}, {"task": asdict(task), "offsets": found.offsets, "info": found.info})
    return load_tensors(file, KIND, VERSION, Header)[1]


def open_cells(path: Path, work: Path, number: int, start: int, stop: int, neighbours: int) -> Cells:
    """A part before the images are arranged: the shards `start` to `stop` − 1. They are checked, and memory is."""
    folder = FeatureFolder.open(path)
    shards = folder.shards[start:stop]
    images = sum(len(shard) for shard in shards)
    memory = images * bytes_of_image(folder.head.k, neighbours)
    check_memory(memory, f"the solve of {count(images, 'image')} on one machine")
    for shard in track(shards, "checking features"):
        shard.open()
    first = sum(len(shard) for shard in folder.shards[:start])
    opening = [lambda path=shard.path: load_shard(path, verified=True)[0]["image_features"] for shard in shards]
    x = Stacked(opening, [len(shard) for shard in shards], rows_like(folder))
    return Cells(x, getattr(torch, folder.columns.dtype), first, rows_file(work, number), number)


def rows_like(folder: FeatureFolder) -> Tensor:
    """No rows, of the type that is computed in."""
    return torch.empty(0, folder.head.d, dtype=torch.float64 if folder.columns.dtype == "float64" else torch.float32)


def rows_file(work: Path, number: int) -> Path:
    """Where the features of a part are."""
    return work / f"part-{number:05d}.rows"


def part_file(work: Path, number: int) -> Path:
    """Where the numbers and the neighbours of a part are."""
    return work / f"part-{number:05d}.safetensors"


def _check_offsets(file: Path, offsets: list[int], parts: int, images: int) -> None:
    """Raise FileError unless every part begins where the one before it ends."""
    ascending = all(one <= two for one, two in pairwise([0, *offsets, images]))
    if len(offsets) != parts or offsets[0] != 0 or not ascending:
        raise FileError(f"{file} does not fit the {images} images. Delete its folder, and run this again.")
