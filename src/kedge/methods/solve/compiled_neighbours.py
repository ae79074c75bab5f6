"""Nearest neighbours with compiled kernels: as neighbours.py finds them (but among equals), for float32 on CPUs.

The product of two sets of rows is torch's. A kernel then reads it in strips and asks of 64 entries at once whether any
is better than the worst of the list it would go into. Nearly always none is, so that reading takes a tenth of the
product's time.

Symmetry. s_ij = s_ji, so only blocks on and above the diagonal are computed, and each is read twice: along its rows for
the images of its rows, along its columns for those of its columns. It pays: for n = 20,000 and d = 512 on one thread it
is 1.9 times as fast as all blocks, and takes 0.7 to 0.8 of the time that x xᵀ alone would at the machine's best speed.

Few images are multiplied by a kernel too, four rows at a time: it computes half of the product, and in so small a one
torch is far from its best speed.

Ties go to the smaller index: every image meets all others in rising order, and only a better one takes a place.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...progress import track
from .compiling import kernel, part
from .neighbours import LOWEST

Rows = NDArray[Any]

FEW = 100  # images: up to here a kernel's product is faster than torch's
SIDE, MANY = 256, 4096  # of a block: small batches gain from symmetry too. Of so many images, twice that is faster
SHARED_SIDE = 2048  # of a block that threads share: larger, as they have to wait for each other
STRIP = 64  # entries compared at once
THREADED_ENTRIES = 1 << 19  # of a block: with fewer, a second thread costs more than it brings


def exact(x: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """The m nearest other rows of x (n×d): indices and similarities, n×m."""
    n = len(x)
    if n <= FEW:
        indices, values = _among_few(x.contiguous().numpy(), m, LOWEST)
        return torch.from_numpy(indices), torch.from_numpy(values)
    images, indices, values = np.arange(n), np.zeros((n, m), np.int64), np.full((n, m), LOWEST, np.float32)
    side = SHARED_SIDE if torch.get_num_threads() > 1 else SIDE if n < MANY else 2 * SIDE
    for top in track(range(0, n, side), "neighbours"):
        rows = slice(top, top + side)
        for left in range(top, n, side):
            columns = slice(left, left + side)
            block = (x[rows] @ x[columns].T).numpy()
            by_rows(_along_rows, block, block, images[rows], images[columns], indices[rows], values[rows])
            if left > top:
                by_rows(_along_columns, block.T, block, images[rows], indices[columns], values[columns])
    return torch.from_numpy(indices), torch.from_numpy(values)


def keep_best(similarity: Tensor, rows: Tensor, columns: Tensor, indices: Tensor, values: Tensor) -> None:
    """Let near images `columns` (c) into the lists (r×m, in place) of images `rows` (r), by their similarity (r×c)."""
    # By one thread: blocks are small here, and others would have to be woken for a twentieth of the product's time.
    tables = (table.numpy() for table in (similarity, rows, columns, indices, values))
    _along_rows(0, len(rows), *tables)


def by_rows(work: Callable[..., None], table: Rows, *arguments: Any) -> None:
    """work(begin, end, *arguments) for the rows of a table, by as many threads as torch has if that is much work."""
    threads = torch.get_num_threads() if table.size >= THREADED_ENTRIES else 1
    if threads == 1:
        return work(0, len(table), *arguments)
    cuts = np.linspace(0, len(table), 4 * threads + 1).astype(int)  # more parts than threads: they differ in work
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda begin, end: work(begin, end, *arguments), cuts[:-1], cuts[1:]))


def warm_up() -> None:
    """Compile the kernels, or load them from the disk."""
    x = torch.eye(4)
    exact(x, 1)
    rows, indices, values = np.arange(4), np.zeros((4, 1), np.int64), np.zeros((4, 1), np.float32)
    keep_best(x, *map(torch.from_numpy, (rows, rows, indices, values)))
    _along_columns(0, 4, x.numpy(), rows, indices, values)


@kernel
def _among_few(x: Rows, m: int, lowest: float) -> tuple[Rows, Rows]:
    """`exact` in one call: four rows of x xᵀ at a time, up to the diagonal, each similarity for both of its images."""
    n, d, zero = len(x), np.uint64(x.shape[1]), np.float32(0)
    indices, values = np.zeros((n, m), np.int64), np.full((n, m), np.float32(lowest))
    strip = np.empty((4, n + 1), np.float32)
    for first in range(0, n, 4):
        i, i2, i3, i4 = first, min(first + 1, n - 1), min(first + 2, n - 1), min(first + 3, n - 1)
        for j in range(0, min(first + 3, n - 1), 2):
            q = min(j + 1, n - 1)
            s = s2 = s3 = s4 = r = r2 = r3 = r4 = zero
            for c in range(d):
                v, v2, v3, v4, left, right = x[i, c], x[i2, c], x[i3, c], x[i4, c], x[j, c], x[q, c]
                s += v * left
                s2 += v2 * left
                s3 += v3 * left
                s4 += v4 * left
                r += v * right
                r2 += v2 * right
                r3 += v3 * right
                r4 += v4 * right
            strip[0, j], strip[1, j], strip[2, j], strip[3, j] = s, s2, s3, s4
            strip[0, j + 1], strip[1, j + 1], strip[2, j + 1], strip[3, j + 1] = r, r2, r3, r4
        for i in range(first, min(first + 4, n)):
            for j in range(i):
                value = strip[i - first, j]
                if value > values[i, m - 1]:
                    _insert(i, value, j, indices, values)
                if value > values[j, m - 1]:
                    _insert(j, value, i, indices, values)
    return indices, values


@kernel
def _along_rows(begin: int, end: int, block: Rows, rows: Rows, columns: Rows, indices: Rows, values: Rows) -> None:
    """Let `columns` into the lists of these `rows`. Slices, not ranges of an index, are what becomes vectors."""
    last = indices.shape[1] - 1
    for i in range(begin, end):
        for left in range(0, block.shape[1], STRIP):
            strip, worst, any_better = block[i, left : left + STRIP], values[i, last], False
            for c in range(len(strip)):
                any_better |= strip[c] > worst
            if any_better:
                for c in range(len(strip)):
                    if strip[c] > worst and columns[left + c] != rows[i]:
                        _insert(i, strip[c], columns[left + c], indices, values)
                        worst = values[i, last]


@kernel
def _along_columns(begin: int, end: int, block: Rows, rows: Rows, indices: Rows, values: Rows) -> None:
    """Let `rows` into the lists of these columns, none of which is a row."""
    last = indices.shape[1] - 1
    worst = values[:, last].copy()
    for i in range(len(rows)):
        for left in range(begin, end, STRIP):
            right = min(left + STRIP, end)
            strip, least, any_better = block[i, left:right], worst[left:right], False
            for c in range(len(strip)):
                any_better |= strip[c] > least[c]
            if any_better:
                for c in range(len(strip)):
                    if strip[c] > least[c]:
                        _insert(left + c, strip[c], rows[i], indices, values)
                        least[c] = values[left + c, last]


@part
def _insert(i: int, value: np.float32, image: int, indices: Rows, values: Rows) -> None:
    """Put an image into its place in list i, which is in falling order; the last one drops out."""
    place = values.shape[1] - 1
    while place > 0 and values[i, place - 1] < value:
        values[i, place], indices[i, place] = values[i, place - 1], indices[i, place - 1]
        place -= 1
    values[i, place], indices[i, place] = value, image
