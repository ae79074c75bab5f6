"""Approximate neighbours of more images than memory holds: the search of neighbours.py, its images in parts.

A cell is the images of one list of the inverted file: those with the same nearest centre. At first each part has some
consecutive images. Then every cell is given to a part, cells near to each other to the same part, and the images move
to where their cell is: into a file for each part, cell after cell. An image looks into its p nearest cells; it asks
other parts for those that are there.

So most neighbours are in the same part, and a part's cells are read one after the other. Memory holds the numbers of
the cells that each image looks into, its neighbours, and blocks of features. A slice that leaves for another part is
cloned: what is sent of a tensor is all of its memory.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ...arrays import Stacked, check_unit_rows, unit_rows
from ...errors import FileError, InputError
from ...files import reserve, writing
from ...progress import track
from ...tensor_files import check_names, load_tensors, save_tensors
from .neighbours import (
    BLOCK_COLUMNS,
    BLOCK_ROWS,
    LOWEST,
    SAMPLE,
    SEED,
    Neighbours,
    best_keeper,
    empty_lists,
    k_means,
    lists_to_visit,
    nearest_centres,
    recall,
    training_images,
)
from .parts import Parts

KIND, VERSION = "arranged part", 1
PER_PART = 8  # cells, if every image looks into all of them: enough for parts of about one size
MOST_CELLS = 128  # that an image looks into, unless all images look into all: with more the memory is not bounded
ASKING = 1 << 19  # images that ask at one time
MOST_SIMILAR = 1.1  # two rows, after rounding
Query = tuple[Tensor, Tensor, Tensor]  # features as they are stored (r×d), positions (r), and cells, −1 for none (r×p)


@dataclass(frozen=True)
class Header:
    """What the file of a part says beside its tensors."""

    dtype: Literal["float16", "bfloat16", "float32", "float64"]  # of its rows
    sha256: str


class Arranged(NamedTuple):
    """Where the images are after a search."""

    offsets: list[int]  # the position of the first image of each part
    info: dict[str, Any]  # `recall`


@torch.no_grad()
def arrange(parts: Parts, m: int, exact: bool) -> Arranged:
    """Move the images to the parts of their cells, and find the m nearest others of each, which its part keeps.

    exact: every image looks into all cells.
    """
    sizes = parts.each("size")
    n = sum(sizes)
    m = min(m, n - 1)
    draw = torch.Generator().manual_seed(SEED)
    sample = torch.randperm(n, generator=draw)[: 2 * SAMPLE].clone()
    x, half = _rows(parts, sample), len(sample) // 2
    cells = max(math.ceil(n / BLOCK_COLUMNS), PER_PART * len(parts)) if exact else round(math.sqrt(n))
    centres = k_means(_rows(parts, training_images(n, draw)), min(cells, n), draw)
    p = len(centres)
    if m and not exact:
        true, true_values = _among(parts, x, sample, m)
        p = min(lists_to_visit(x[:half], _rows(parts, true[:half].clone().flatten()), centres), MOST_CELLS)
    counts = sum(parts.each("visit_centres", centres, p))
    owner = owners(centres, counts, len(parts))
    offsets = [0, *accumulate(int(counts[owner == part].sum()) for part in range(len(parts)))]
    parts.each("make_room", owner, counts, offsets, m)
    for turn in track(range(max(parts.each("arrays"))), "images to their cells"):
        parts.exchange("leaving", "arrive", giving=(turn,))
    parts.each("settle")
    if m == 0:
        return Arranged(offsets[:-1], {})
    most = max(stop - start for start, stop in pairwise(offsets))
    for start in track(range(0, most, ASKING), "neighbours"):
        parts.exchange("ask", "look", start, giving=(start,))
        parts.exchange("answer", "merge", start)
    _complete(parts, m)
    if exact:
        return Arranged(offsets[:-1], {})
    judged = parts.each("similarities", sample[half:].clone())
    which, found = (torch.cat(each) for each in zip(*judged, strict=True))
    return Arranged(offsets[:-1], {"recall": recall(found, true_values[half:][which])})


def owners(centres: Tensor, sizes: Tensor, parts: int) -> Tensor:
    """Which part gets each cell, l: the cells are halved again and again, across their longest axis."""
    owner = torch.zeros(len(centres), dtype=torch.long)

    def divide(cells: Tensor, first: int, count: int) -> None:
        owner[cells] = first
        if count == 1 or len(cells) == 0:
            return
        away = centres[cells] - centres[cells].mean(dim=0)
        axis = torch.linalg.svd(away.double(), full_matrices=False).Vh[0]
        axis = axis * axis[axis.abs().argmax()].sign()  # the same on every machine
        cells = cells[(away.double() @ axis).argsort(stable=True)]
        reached = sizes[cells].cumsum(0)
        left = count // 2
        cut = int((reached <= reached[-1] * left / count).sum())
        divide(cells[:cut], first, left)
        divide(cells[cut:], first + left, count - left)

    divide(torch.arange(len(centres)), 0, parts)
    return owner


class Cells:
    """Some of the images, and what they look for."""

    def __init__(self, x: Stacked, dtype: torch.dtype, first: int, file: Path, number: int) -> None:
        """x: consecutive images, stored in this type; the first of them has the number `first`.

        file: for the rows of this part's own cells. number: of the part.
        """
        self.x, self.dtype, self.first, self.file, self.number = x, dtype, first, file, number
        self.keep_best = best_keeper(x.like)

    def size(self) -> int:
        """How many images are here."""
        return len(self.x)

    def arrays(self) -> int:
        """How many arrays they are in."""
        return len(self.x.opening)

    def rows_of(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Which of these images are here, and their features."""
        here = ((numbers >= self.first) & (numbers < self.first + len(self.x))).nonzero().squeeze(1)
        return here, self.x[numbers[here] - self.first]

    def among(self, x: Tensor, numbers: Tensor, m: int) -> tuple[Tensor, Tensor]:
        """The nearest images here of some others (r×d), exactly: positions and similarities, r×m."""
        indices, values = empty_lists(len(x), m, x)
        for rows in self.x.blocks(max(self.x.like.shape[-1], BLOCK_ROWS)):
            columns, block = torch.arange(rows.start, rows.stop) + self.first, self.x[rows].T
            for start in range(0, len(x), BLOCK_ROWS):
                part = slice(start, start + BLOCK_ROWS)
                self.keep_best(x[part] @ block, numbers[part], columns, indices[part], values[part])
        return indices, values

    # Images move to their cells

    def visit_centres(self, centres: Tensor, p: int) -> Tensor:
        """Find the p nearest cells of every image; how many images each cell has, l."""
        self.near = torch.empty(len(self.x), min(p, len(centres)), dtype=torch.int32)
        for rows in self.x.blocks(self.x.like.shape[-1] + len(centres)):
            self.near[rows] = nearest_centres(self.x[rows], centres, self.near.shape[1]).int()
        return torch.bincount(self.near[:, 0], minlength=len(centres))

    def make_room(self, owner: Tensor, sizes: Tensor, offsets: Sequence[int], m: int) -> None:
        """Prepare for the images of this part's own cells."""
        self.owner, self.m, self.parts = owner, m, len(offsets) - 1
        mine = torch.where(owner == self.number, sizes, 0)
        self.stops = mine.cumsum(0)
        self.filled = self.stops - mine
        self.n, self.offset = int(mine.sum()), offsets[self.number]
        self.numbers, self.cells = (
            torch.empty(self.n, dtype=torch.long),
            self.near.new_empty(self.n, self.near.shape[1]),
        )
        with writing(self.file), self.file.open("wb") as file:
            reserve(file, self.n * self.x.like.shape[-1] * self.dtype.itemsize)

    def leaving(self, turn: int) -> list[Query]:
        """The rows of one array, for each part those of its cells."""
        if turn >= len(self.x.opening):
            return [(self._no_rows(), torch.empty(0, dtype=torch.long), self.near[:0].clone())] * self.parts
        raw, start = self.x.opening[turn](), self.x.starts[turn]
        near = self.near[start : start + len(raw)]
        home = self.owner[near[:, 0].long()]
        return [
            (raw[rows], rows + (self.first + start), near[rows])
            for rows in ((home == part).nonzero().squeeze(1) for part in range(self.parts))
        ]

    def arrive(self, given: Sequence[Query]) -> None:
        """Put rows into their places."""
        stored = stored_rows(self.file, self.n, self.x.like.shape[-1], self.dtype)
        for raw, numbers, near in given:
            if not len(raw):
                continue
            home = near[:, 0].long()
            order = home.argsort(stable=True)
            counts = torch.bincount(home, minlength=len(self.filled))
            rank = torch.arange(len(home)) - (counts.cumsum(0) - counts)[home[order]]
            at = self.filled[home[order]] + rank
            stored[at], self.numbers[at], self.cells[at] = raw[order], numbers[order], near[order]
            self.filled += counts

    def settle(self) -> None:
        """All rows have arrived: from now on these are the images of this part, at the positions from `offset` on."""
        like, n, dtype = self.x.like, self.n, self.dtype
        self.x = Stacked([lambda: stored_rows(self.file, n, like.shape[-1], dtype)], [n], like)
        self.first = self.offset
        self.indices, self.values = empty_lists(n, self.m, like)
        del self.near  # `cells` has it for the images that are here now

    # The search

    def ask(self, start: int) -> list[Query]:
        """Some images, for each other part those that look into its cells."""
        found: list[Query] = []
        self.asked = []
        for part in range(self.parts):
            cells = self._cells_of(part, start)
            rows = (cells >= 0).any(dim=1).nonzero().squeeze(1) if part != self.number else torch.empty(0).long()
            self.asked.append(rows)
            found.append((self._raw(rows + start), rows + (start + self.first), cells[rows]))
        return found

    def look(self, given: Sequence[Query], start: int) -> None:
        """Look for the neighbours of one's own images, and of those that ask."""
        cells = self._cells_of(self.number, start)
        own = slice(start, start + len(cells))
        positions = torch.arange(self.first + start, self.first + start + len(cells))
        self._scan(lambda rows: self.x[rows + start], positions, cells, self.indices[own], self.values[own])
        raw, positions, cells = (torch.cat(each) for each in zip(*given, strict=True))
        answers = empty_lists(len(raw), self.m, self.x.like)  # all that ask at once: each cell is read once
        self._scan(partial(_converted, raw, self.x.like), positions, cells, *answers)
        each = [len(positions) for _, positions, _ in given]
        split = ([part.clone() for part in torch.split(found, each)] for found in answers)
        self.answers = list(zip(*split, strict=True))

    def answer(self) -> list[tuple[Tensor, Tensor]]:
        """What was found for each part."""
        return self.answers

    def merge(self, given: Sequence[tuple[Tensor, Tensor]], start: int) -> None:
        """Let the answers into the lists."""
        for rows, (indices, values) in zip(self.asked, given, strict=True):
            at = rows + start
            best, place = torch.cat([self.values[at], values], dim=1).topk(self.m, dim=1)
            self.indices[at] = torch.cat([self.indices[at], indices], dim=1).gather(1, place)
            self.values[at] = best

    def short(self) -> Tensor:
        """Positions of images whose cells had too few others."""
        return (self.values[:, -1:] <= LOWEST).nonzero()[:, 0] + self.first

    def complete(self, positions: Tensor, indices: Tensor, values: Tensor) -> None:
        """Lists of images (r) that were looked for among all, r×m; those that are here are taken."""
        here = ((positions >= self.first) & (positions < self.first + self.n)).nonzero().squeeze(1)
        self.indices[positions[here] - self.first], self.values[positions[here] - self.first] = (
            indices[here],
            values[here],
        )

    def similarities(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Which of these images are here, and how near their neighbours are."""
        ascending, order = numbers.sort()
        at = torch.searchsorted(ascending, self.numbers).clamp_max_(len(numbers) - 1)
        rows = (ascending[at] == self.numbers).nonzero().squeeze(1)
        return order[at[rows]], self.values[rows]

    def save(self, file: Path) -> None:
        """Write the numbers of the images here and their neighbours; their rows are in a file already."""
        with writing(self.file), self.file.open("rb+") as rows:
            os.fsync(rows.fileno())
        tensors = {"numbers": self.numbers, "indices": self.indices, "similarity": self.values}
        save_tensors(file, KIND, VERSION, tensors, {"dtype": str(self.dtype).removeprefix("torch.")})

    def _cells_of(self, part: int, start: int) -> Tensor:
        """Which cells of a part some images look into, r×p; −1 for cells of other parts."""
        cells = self.cells[start : start + ASKING]
        return torch.where(self.owner[cells.long()] == part, cells, -1)

    def _raw(self, rows: Tensor) -> Tensor:
        return self.x.opening[0]()[rows] if self.n else self._no_rows()

    def _no_rows(self) -> Tensor:
        return self.x.like[:0].to(self.dtype)

    def _scan(
        self, x: Callable[[Tensor], Tensor], positions: Tensor, cells: Tensor, indices: Tensor, values: Tensor
    ) -> None:
        """Let the images of these cells (r×p) into the lists (r×m) of images at these positions (r)."""
        looking = cells.flatten().argsort(stable=True) // max(1, cells.shape[1])
        counts = torch.bincount(cells.flatten() + 1, minlength=len(self.stops) + 1)
        _, *by_cell = torch.split(looking, counts.tolist())  # the first are those that look into cells of other parts
        for start, stop, rows in zip([0, *self.stops.tolist()], self.stops.tolist(), by_cell, strict=False):
            for left in range(start, stop, BLOCK_COLUMNS) if len(rows) else ():
                columns = slice(left, min(left + BLOCK_COLUMNS, stop))
                listed, numbers = self.x[columns].T, torch.arange(columns.start, columns.stop) + self.first
                for some in torch.split(rows, BLOCK_ROWS):
                    at, best = indices[some], values[some]
                    self.keep_best(x(some) @ listed, positions[some], numbers, at, best)
                    indices[some], values[some] = at, best


def _converted(raw: Tensor, like: Tensor, rows: Tensor) -> Tensor:
    """Some of these rows in working precision."""
    return unit_rows(raw[rows], like=like)


def stored_rows(file: Path, n: int, d: int, dtype: torch.dtype) -> Tensor:
    """The rows of a part (n×d), memory-mapped."""
    if n == 0:
        return torch.empty(0, d, dtype=dtype)
    return torch.from_file(str(file), shared=True, size=n * d, dtype=dtype).view(n, d)


def load(file: Path, rows: Path, like: Tensor, size: int, images: int) -> tuple[Stacked, Tensor, Neighbours]:
    """What `Cells.save` wrote of a part with so many of all images: their features, numbers and neighbours."""
    tensors, header = load_tensors(file, KIND, VERSION, Header)
    check_names(file, tensors, ("numbers", "indices", "similarity"))
    numbers, nearest = tensors["numbers"], Neighbours(tensors["indices"], tensors["similarity"])
    d, dtype = like.shape[-1], getattr(torch, header.dtype)
    stored = rows.stat().st_size if rows.is_file() else -1
    if not _fit(numbers, nearest, size, images, like) or stored != size * d * dtype.itemsize:
        raise _damaged(rows.parent, f"{size} of {images} images and their neighbours")
    x = Stacked([lambda: stored_rows(rows, size, d, dtype)], [size], like)
    try:
        for block in x.blocks(d):  # each maps the file anew, so that its pages do not add up in memory
            check_unit_rows(x.opening[0]()[block], "it")
    except InputError as error:
        raise _damaged(rows.parent, "unit rows") from error
    return x, numbers, nearest


def _fit(numbers: Tensor, nearest: Neighbours, size: int, images: int, like: Tensor) -> bool:
    """Are these numbers (size) and neighbours (size×m) of images?"""
    indices, similarity = nearest.indices, nearest.similarity
    return (
        numbers.dtype == indices.dtype == torch.long
        and similarity.dtype == like.dtype
        and numbers.shape == (size,)
        and indices.shape == similarity.shape == (size, *indices.shape[1:])
        and indices.dim() == 2
        and all(bool(((each >= 0) & (each < images)).all()) for each in (numbers, indices))
        and bool((similarity.abs() < MOST_SIMILAR).all())  # NaN is not
    )


def _damaged(folder: Path, wanted: str) -> FileError:
    return FileError(f"{folder} is damaged: a part of it does not have {wanted}. Delete it, and run this again.")


def _rows(parts: Parts, numbers: Tensor) -> Tensor:
    """The features of some images, wherever they are."""
    found: list[tuple[Tensor, Tensor]] = parts.each("rows_of", numbers)
    out = found[0][1].new_empty(len(numbers), found[0][1].shape[1])
    for here, x in found:
        out[here] = x
    return out


def _among(parts: Parts, x: Tensor, numbers: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """The nearest of all images, exactly: indices and similarities, r×m."""
    indices, values = (torch.cat(found, dim=1) for found in zip(*parts.each("among", x, numbers, m), strict=True))
    values, place = values.topk(m, dim=1)
    return indices.gather(1, place), values


def _complete(parts: Parts, m: int) -> None:
    """Search exactly for images whose cells had too few others."""
    for some in torch.split(torch.cat(parts.each("short")), BLOCK_ROWS):
        if len(some):
            positions = some.clone()
            parts.each("complete", positions, *_among(parts, _rows(parts, positions), positions, m))
