"""The nearest other images of every image, by cosine. Never an n×n array: x xᵀ is computed in blocks of at most 64 MB.

*Exact*, by default up to 100,000 images: every pair is compared.

*Approximate*, above. About √n centres are found by k-means on a sample, and every image is put into the list of its
nearest centre. An image's neighbours are then looked for in the lists of its p nearest centres only (an inverted file).
All images that look into a list are multiplied with it together, so nearly all of the work is matrix products, and x
itself is all they need: no second copy. (Libraries with such an index search image by image. With the same
lists and the same recall, on 100,000 simulated images, faiss took 6 to 9 times as long.)

Nothing about the answer's quality is assumed. The true neighbours of some sampled images are found first. With half of
these images p is chosen: the smallest for which 98 % of their true neighbours are in the lists looked at. The other
half measures the outcome, and that is the `recall` reported.

All draws are seeded: the same x gives the same neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ...arrays import unit
from ...errors import SettingError
from ...memory import check_memory
from ...progress import track
from .compiling import compiled_form

Search = Literal["auto", "exact", "approximate"]
Keep = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], None]

EXACT_UP_TO = 100_000  # images: with more, search="auto" is approximate
BLOCK_ROWS, BLOCK_COLUMNS = 2048, 8192  # of x xᵀ, at most: 64 MB in float32
AIM = 0.98  # share of the true neighbours that p is chosen for
SAMPLE = 512  # images with which p is chosen, and as many that measure the recall
TRAINING, ROUNDS = 64, 8  # images per centre that k-means sees, and how often it improves the centres
SEED = 0
LOWEST = -3e38  # as a similarity: there is no neighbour yet. Not −∞, which compiled kernels rule out
INDEX_ENTRIES = 1 << 27  # of the lists each image looks into, n×p, at most: 1 GB
LARGE_GRAPH = 1 << 22  # edges from which memory is checked
GRAPH_BYTES = 64  # per edge: its index and similarity, and the graph both ways with what sorting it takes
ROUNDING = 1e-6  # of a similarity, between two ways to compute it


class Neighbours(NamedTuple):
    """For each image the nearest others, the nearest first."""

    indices: Tensor  # n×m, int64
    similarity: Tensor  # n×m, cosines
    recall: float = 1.0  # share of the true neighbours found, measured on a sample
    exact: bool = True

    @property
    def info(self) -> dict[str, float]:
        """For a method's `info`: the recall of an approximate search."""
        return {} if self.exact else {"recall": self.recall}


def agreement(labels: Tensor, nearest: Tensor, k: int) -> float:
    """κ: how often neighbours (n×m) have the same one of k labels (n); 0 by chance, 1 always."""
    return (float((labels[nearest] == labels[:, None]).double().mean()) - 1 / k) / (1 - 1 / k)


def nearest_neighbours(x: Tensor, m: int, *, search: Search = "auto", compiled: bool = True) -> Neighbours:
    """The min(m, n−1) nearest other rows of x (n×d, unit rows). No image is its own neighbour; a duplicate is one."""
    x = x.detach() if x.requires_grad else x  # in a small batch even this call is felt
    n = len(x)
    m = min(m, n - 1)
    if m == 0:
        return Neighbours(torch.empty(n, 0, dtype=torch.long, device=x.device), x.new_empty(n, 0))
    if n * m > LARGE_GRAPH:
        check_memory(n * m * GRAPH_BYTES, f"{m:,} neighbours of each of {n:,} images", SettingError)
    fast = compiled_form("compiled_neighbours", x) if compiled else None
    if search == "approximate" or (search == "auto" and n > EXACT_UP_TO):
        return _approximate(x, m, best_keeper(x, compiled))
    return Neighbours(*(fast.exact(x, m) if fast else _among_all(x, torch.arange(n, device=x.device), m, _keep_best)))


class KeptNeighbours:
    """The neighbours of the same images for several solves: each kind of search happens once.

    kept = KeptNeighbours(x)
    kept.nearest(3)                  # searches
    kept.nearest(3)                  # the same
    kept.among(rows).nearest(3)      # of part of the images: only those that lost a neighbour are searched for
    """

    def __init__(self, x: Tensor) -> None:
        self.x = x
        self._found: dict[tuple[int, Search, bool], Neighbours] = {}

    def nearest(self, m: int, *, search: Search = "auto", compiled: bool = True) -> Neighbours:
        """As `nearest_neighbours(x, m)`."""
        kind = m, search, compiled
        if kind not in self._found:
            self._found[kind] = self._search(*kind)
        return self._found[kind]

    def _search(self, m: int, search: Search, compiled: bool) -> Neighbours:
        return nearest_neighbours(self.x, m, search=search, compiled=compiled)

    def among(self, rows: Tensor) -> KeptNeighbours:
        """The neighbours of the images `rows` (ascending) among each other."""
        return _Part(self, rows)


class _Part(KeptNeighbours):
    """Neighbours among some of the images, from those among all."""

    def __init__(self, whole: KeptNeighbours, rows: Tensor) -> None:
        super().__init__(whole.x.index_select(0, rows))
        self._whole, self._rows = whole, rows

    def _search(self, m: int, search: Search, compiled: bool) -> Neighbours:
        found, rows = self._whole.nearest(m, search=search, compiled=compiled), self._rows
        if len(rows) - 1 < found.indices.shape[1]:  # there are not so many others left
            return super()._search(m, search, compiled)
        place = torch.full((len(self._whole.x),), -1, device=rows.device)
        place[rows] = torch.arange(len(rows), device=rows.device)
        indices, similarity = place[found.indices[rows]], found.similarity[rows]
        short = (indices < 0).any(dim=1).nonzero().squeeze(1)
        keep_best = best_keeper(self.x, compiled)  # as above: equals in the same order
        indices[short], similarity[short] = _among_all(self.x, short, indices.shape[1], keep_best)
        return found._replace(indices=indices, similarity=similarity)


def best_keeper(x: Tensor, compiled: bool = True) -> Keep:
    """`_keep_best`, compiled if possible."""
    fast = compiled_form("compiled_neighbours", x) if compiled else None
    return fast.keep_best if fast else _keep_best


def empty_lists(n: int, m: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Empty lists: indices −1 and the lowest similarity, n×m."""
    return torch.full((n, m), -1, device=like.device), torch.full((n, m), LOWEST, dtype=like.dtype, device=like.device)


def _keep_best(similarity: Tensor, rows: Tensor, columns: Tensor, indices: Tensor, values: Tensor) -> None:
    """Merge candidates `columns` (c) into the lists (r×m, in place) of images `rows` (r), by similarity (r×c)."""
    m = values.shape[1]
    best, place = similarity.topk(min(m + 1, len(columns)), dim=1)  # one more, as the image itself may be among them
    found = columns[place]
    best.masked_fill_(found == rows[:, None], LOWEST)
    best, place = torch.cat([values, best], dim=1).topk(m, dim=1)
    indices.copy_(torch.cat([indices, found], dim=1).gather(1, place))
    values.copy_(best)


def _among_all(x: Tensor, rows: Tensor, m: int, keep_best: Keep) -> tuple[Tensor, Tensor]:
    """Exact neighbours of some images (r): indices and similarities, r×m."""
    indices, values = empty_lists(len(rows), m, x)
    everyone = torch.arange(len(x), device=x.device)
    for start in track(range(0, len(rows), BLOCK_ROWS), "neighbours"):
        part = slice(start, start + BLOCK_ROWS)
        x_part = x[rows[part]]
        for left in range(0, len(x), BLOCK_COLUMNS):
            columns = slice(left, left + BLOCK_COLUMNS)
            keep_best(x_part @ x[columns].T, rows[part], everyone[columns], indices[part], values[part])
    return indices, values


def _approximate(x: Tensor, m: int, keep_best: Keep) -> Neighbours:
    """Approximate neighbours of all images, as the module's docstring describes."""
    draw = torch.Generator().manual_seed(SEED)
    sample = torch.randperm(len(x), generator=draw)[: 2 * SAMPLE].to(x.device)
    true_indices, true_values = _among_all(x, sample, m, keep_best)
    half = len(sample) // 2
    centres = k_means(x[training_images(len(x), draw).to(x.device)], round(math.sqrt(len(x))), draw)
    p = lists_to_visit(x[sample[:half]], x[true_indices[:half].flatten()], centres)
    if len(x) * p > INDEX_ENTRIES:  # such data has no lists: little work would be saved
        return Neighbours(*_among_all(x, torch.arange(len(x), device=x.device), m, keep_best))
    visited = nearest_centres(x, centres, p)
    members = _by_list(visited[:, :1], len(centres))
    visitors = _by_list(visited, len(centres))

    indices, values = empty_lists(len(x), m, x)
    for inside, looking in track(list(zip(members, visitors, strict=True)), "neighbours"):
        for columns in torch.split(inside, BLOCK_COLUMNS):
            listed = x[columns].T
            for rows in torch.split(looking, BLOCK_ROWS):
                at, best = indices[rows], values[rows]
                keep_best(x[rows] @ listed, rows, columns, at, best)
                indices[rows], values[rows] = at, best
    short = (values[:, -1] <= LOWEST).nonzero().squeeze(1)  # their lists had fewer than m others
    indices[short], values[short] = _among_all(x, short, m, keep_best)

    judges = slice(half, None)
    return Neighbours(indices, values, recall=recall(values[sample[judges]], true_values[judges]), exact=False)


def recall(found: Tensor, true: Tensor) -> float:
    """The share of true neighbours that were found, from the similarities of both (s×m, falling)."""
    return float((found >= true[:, -1:] - ROUNDING).double().mean())  # as near as a true one: ties are no loss


def training_images(n: int, draw: torch.Generator) -> Tensor:
    """The images out of n, ascending, that k-means sees for √n lists."""
    return torch.randperm(n, generator=draw)[: TRAINING * round(math.sqrt(n))].sort().values


def k_means(seen: Tensor, lists: int, draw: torch.Generator) -> Tensor:
    """So many unit vectors, l×d, by spherical k-means on these images."""
    centres = seen[torch.randperm(len(seen), generator=draw)[:lists].to(seen.device)]
    for _ in track(range(ROUNDS), "k-means"):
        total = torch.zeros_like(centres).index_add_(0, nearest_centres(seen, centres, 1).squeeze(1), seen)
        centres = torch.where(total.any(dim=1, keepdim=True), unit(total), centres)  # a centre without images stays
    return centres


def lists_to_visit(x: Tensor, neighbours: Tensor, centres: Tensor) -> int:
    """p: the smallest number of lists in which the images x (s×d) find the share AIM of their true neighbours.

    neighbours: the features of those, sm×d.
    """
    similarity = x @ centres.T
    home = nearest_centres(neighbours, centres, 1).view(len(x), -1)
    nearer = similarity[:, None] > similarity.gather(1, home)[..., None]  # s×m×lists: than the list it is in
    ranks = nearer.sum(dim=2).flatten().sort().values
    return int(ranks[math.ceil(AIM * len(ranks)) - 1]) + 1


def nearest_centres(x: Tensor, centres: Tensor, p: int) -> Tensor:
    """The p nearest centres of each image, the nearest first, n×p."""
    return torch.cat([(rows @ centres.T).topk(p, dim=1).indices for rows in torch.split(x, BLOCK_ROWS)])


def _by_list(centres: Tensor, lists: int) -> tuple[Tensor, ...]:
    """For each list the images that have it among their `centres` (n×p), in order."""
    images = centres.flatten().argsort(stable=True) // centres.shape[1]
    return torch.split(images, torch.bincount(centres.flatten(), minlength=lists).tolist())
