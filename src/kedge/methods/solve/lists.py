"""A part of the images in a solve for more images times classes than memory holds: z as lists of candidates.

`joint.py` conducts the solve. It calls the functions of one or more `Rows`, in this process or in others (see
`parts.py`), and nothing of n×k exists anywhere:

    classes  n×C  the candidates of image i: the C classes with the largest ŷ
    z        n×C  its assignments to them; it has none to other classes
    log_y    n×C  log ŷ of the candidates
    unary    n×C  log ŷ + log p / T of the candidates

Features may be memory-mapped and of half precision: rows are taken in blocks. Within a block, lists are scattered into
a dense rows×k array and gathered from one, so that matrix products do the work:

    moments  zᵀφ        Σ over blocks of scatter(z)ᵀ φ, where φ = [x, x²] is of the block alone, see gaussian.py
    scores   log p      gather(φ ηᵀ)
    pull     G z        gather(Σ_j scatter(g_ij z_j))

Neighbours of an image may be in other parts. Each part lends those that others need: their classes once, their z at
every z-step. Positions count the images of all parts, one part after the other; `offsets` says where each begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from ...arrays import Stacked, row_blocks, wide
from ...features.text_head import TextHead
from ..contract import certain
from .compiling import compiled_form
from .em import Settings, log_presence
from .gaussian import Features, spread
from .graph import NeighbourGraph
from .neighbours import GRAPH_BYTES, Neighbours
from .temperature import tempered_towards

FEWEST, MOST = 32, 64  # candidates
SMALLEST_TYPES = ((1 << 8, torch.uint8), (1 << 15, torch.int16), (1 << 31, torch.int32))  # of class numbers, up to k

Edges: TypeAlias = tuple[Tensor, Tensor, Tensor]  # positions of one end, of the other end, and similarities; each e
ZeroShot: TypeAlias = Callable[[slice, Tensor], Tensor]  # log ŷ (r×k) of a block of rows and its features (r×d)


def list_length(k: int) -> int:
    """C for k classes: half of them, but not less than 32 and not more than 64."""
    return min(max(FEWEST, k // 2), MOST, k)


def class_type(k: int) -> torch.dtype:
    """The smallest type for the numbers of k classes."""
    return next(kind for most, kind in SMALLEST_TYPES if k <= most)


def bytes_of_image(k: int, m: int) -> int:
    """Memory of an image in a solve in float32: its candidates, their log ŷ, z, next z and unary, and m neighbours."""
    return list_length(k) * (class_type(k).itemsize + 4 * 4) + GRAPH_BYTES * m


class Sums(NamedTuple):
    """What zero-shot says of a part, as sums over its images."""

    images: int
    y: Tensor  # k: Σ_i ŷ_ik
    entropy: float  # Σ_i H(ŷ_i)
    confidence: float  # Σ_i max_k ŷ_ik
    outside: float  # of probability outside the lists
    spread: Tensor  # d: Σ_ik ŷ_ik (x_i − t_k)²


class Statistics(NamedTuple):
    """What the M-step needs of a part."""

    moments: Tensor  # k×2d: Σ_i z_ik φ_i
    mass: Tensor  # k: Σ_i z_ik
    best: Tensor  # k: how many images have class k as their best


class Answers(NamedTuple):
    """What was found of some images, when the solve has ended."""

    classes: Tensor  # r×C, ascending
    z: Tensor  # r×C
    zero_shot_labels: Tensor  # r: by the encoder alone
    zero_shot_confidence: Tensor  # r


class Rows:
    """Some of the images, with everything that is known of each."""

    def __init__(
        self,
        x: Tensor | Stacked,
        head: TextHead,
        nearest: Neighbours,
        *,
        zero_shot: ZeroShot | None = None,
        present: Tensor | None = None,
        known: Tensor | None = None,
        number: int = 0,
        offsets: Sequence[int] = (0,),
        candidates: int | None = None,
    ) -> None:
        """x: n×d. nearest: positions of neighbours, n×m. number: of this part, whose first position is offsets[number].

        zero_shot: by default of the head. present: numbers of the classes that can occur, ascending; None: all.
        known: n labels that a person gave, numbered among the classes that can occur, or UNKNOWN. candidates: C.
        """
        self.x, self.present, self.known = x, present, known
        self.head = head if present is None else head.select(present)
        self.n, self.k = len(x), self.head.k
        self.length = min(candidates, self.k) if candidates else list_length(self.k)
        self.zero_shot = zero_shot or (lambda rows, x: head.log_zero_shot(x))
        self.number, self.offsets = number, torch.tensor(offsets, device=head.features.device)
        self.resuming = False
        self.nearest: Neighbours | None = nearest  # until it is linked
        self.type = class_type(head.k)
        width = 2 * head.d + head.k
        self.blocks = x.blocks(width) if isinstance(x, Stacked) else row_blocks((self.n, width))

    def resume(self) -> None:
        """This part takes the place of one that was lost: its z will start from the classes, not from ŷ."""
        self.resuming = True

    # Neighbours

    def crossing(self) -> list[Edges]:
        """The edges to each other part."""
        if self.nearest is None:  # for a part that takes the place of one that was lost
            return self.edges
        m = self.nearest.indices.shape[1]
        target, similarity = self.nearest.indices.flatten(), self.nearest.similarity.flatten()
        source = self._first + torch.arange(self.n, device=target.device).repeat_interleave(m)
        part = torch.searchsorted(self.offsets, target, right=True) - 1
        found = []
        for other in range(len(self.offsets)):
            there = (part == other) & (other != self.number)
            found.append((source[there], target[there], similarity[there]))
        return found

    def link(self, given: Sequence[Edges]) -> tuple[int, int]:
        """Make the graph W + Wᵀ from these edges of other parts and one's own; how many of one's own cross, and all."""
        assert self.nearest is not None
        n, m = self.nearest.indices.shape
        own = self.edges = self.crossing()
        rows, columns, values, borrowed = [], [], [], []
        self.lent, base = [], self.n  # of each other part: what it needs of this one
        for (source, target, similarity), (theirs, mine, back) in zip(own, given, strict=True):
            here, there = torch.cat([source, mine]) - self._first, torch.cat([target, theirs])
            ghosts, place = torch.unique(there, return_inverse=True)
            rows.append(here)
            columns.append(base + place)
            values.append(torch.cat([similarity, back]))
            borrowed.append(ghosts)
            self.lent.append(torch.unique(here))
            base += len(ghosts)
        ghosts = torch.cat(borrowed)  # ascending, as the parts are
        target = self.nearest.indices.flatten()
        local = target - self._first
        outside = (local < 0) | (local >= n)
        self.targets = torch.where(outside, n + torch.searchsorted(ghosts, target), local).int().view(n, m)
        source = torch.arange(n, device=target.device).repeat_interleave(m)[~outside]
        local, similarity = local[~outside], self.nearest.similarity.flatten()[~outside]
        self.graph = NeighbourGraph.from_entries(
            torch.cat([source, local, *rows]),
            torch.cat([local, source, *columns]),
            torch.cat([similarity, similarity, *values]),
            n,
        )
        self.ghosts, self.nearest = len(ghosts), None
        return int(outside.sum()), n * m

    @property
    def _first(self) -> int:
        return int(self.offsets[self.number])

    # Zero-shot

    def total(self) -> tuple[Tensor, int]:
        """Σ_i x_i (d), and how many they are."""
        x = self.head.features
        total = x.new_zeros(self.head.d, dtype=wide(x))
        for rows in self.blocks:
            total += self.x[rows].sum(dim=0, dtype=total.dtype)
        return total, self.n

    def survey(self, centre: Tensor, shift: Tensor | None) -> Sums:
        """Zero-shot of every image, and its candidates. shift (k): log ŷ ← log softmax(log ŷ − shift)."""
        t = self.head.features
        self.features = Features(self.x, centre, self.blocks, None)
        self.classes = torch.empty(self.n, self.length, dtype=self.type, device=t.device)  # of a row, ascending
        self.log_y = t.new_empty(self.n, self.length)
        self.first_labels = torch.empty(self.n, dtype=self.type, device=t.device)  # by the encoder alone
        self.first_confidence, self.confidence = t.new_empty(self.n), t.new_empty(self.n)
        y_sum, around = t.new_zeros(self.k, dtype=wide(t)), t.new_zeros(self.head.d, dtype=wide(t))
        entropy = confidence = outside = 0.0
        for rows in self.blocks:
            x = self.x[rows]
            log_y = self.zero_shot(rows, x)
            best, labels = log_y.max(dim=1)
            self.first_labels[rows], self.first_confidence[rows] = labels.to(self.type), best.exp()
            if self.present is not None:
                log_y = torch.log_softmax(log_y.index_select(1, self.present), dim=1)
            if self.known is not None:
                log_y = certain(log_y, self.known[rows])
            self.confidence[rows] = log_y.amax(dim=1).exp_()
            if shift is not None:
                log_y = torch.log_softmax(log_y - shift, dim=1)
            classes = log_y.topk(self.length, dim=1, sorted=False).indices.sort(dim=1).values
            self.classes[rows] = classes.to(self.type)
            self.log_y[rows] = inside = log_y.gather(1, classes)
            outside += float((1 - inside.exp().sum(dim=1)).clamp_(0).sum())
            y = log_y.exp_()
            y_sum += y.sum(dim=0)
            entropy += float(torch.special.entr(y).sum())
            confidence += float(y.amax(dim=1).sum())
            around += spread(x - centre, t - centre, y)
        return Sums(self.n, y_sum, entropy, confidence, outside, around)

    def responsibilities(self, pi: Tensor) -> Tensor:
        """Σ_i ŷ_ik π_k / Σ_l ŷ_il π_l, k, for proportions π (k)."""
        total = self._per_class()
        for rows, classes in self._rows():
            share = self.log_y[rows].exp() * pi[classes]
            share /= share.sum(dim=1, keepdim=True).clamp_min_(torch.finfo(share.dtype).tiny)
            self._add(total, classes, share)
        return total

    def lend_labels(self) -> list[Tensor]:
        """The zero-shot labels of the images that each part needs."""
        self.labels = self.classes.gather(1, self.log_y.max(dim=1, keepdim=True).indices).flatten()
        return [self.labels[rows] for rows in self.lent]

    def agreeing(self, lent: Sequence[Tensor]) -> int:
        """How many pairs of neighbours have the same zero-shot label."""
        labels = torch.cat([self.labels, *lent])
        return int((labels[self.targets] == self.labels[:, None]).sum())

    # The solve

    def lend_classes(self) -> list[Tensor]:
        """The candidates of the images that each part needs."""
        return [self.classes[rows] for rows in self.lent]

    def start(self, lent: Sequence[Tensor], settings: Settings, edge: float, compiled: bool) -> None:
        """z = ŷ. edge: what similarities are multiplied with. compiled: use a compiled z-step if possible."""
        self.settings, self.edge = settings, edge
        self.fast = compiled_form("compiled_lists", self.log_y) if compiled else None
        self.around = torch.cat([self.classes, *lent])  # with those of images of other parts
        self.classes = self.around[: self.n]  # memory holds them once
        self.unary = torch.empty_like(self.log_y)
        self.z = self.log_y.new_zeros(len(self.around), self.length)
        torch.exp(self.log_y, out=self.z[: self.n])

    def fit(self, mu: Tensor, var: Tensor, var0: Tensor, own: Tensor | None) -> None:
        """unary = log ŷ + log p / T, for classes of these μ and Σ (k×d).

        own (k): an image gives itself own_k z_ik, which is taken back.
        """
        natural = self.features.natural(mu, var, var0)
        for block in self.features.blocks():
            rows, classes = block.rows, self.classes[block.rows].long()
            log_p = block.log_density(natural).gather(1, classes)
            unary = torch.add(self.log_y[rows], log_p, alpha=self.settings.cooling)
            if own is not None:
                unary.addcmul_(own[classes], self.z[rows], value=-1)
            self.unary[rows] = unary
        if self.resuming:
            self.z[: self.n] = torch.softmax(self.unary, dim=1)
            self.resuming = False

    def mark(self) -> None:
        """Remember z, to say how far it moves from here on. Log ŷ is needed no longer, and gives its memory."""
        self.before = self.log_y.copy_(self.z[: self.n])

    def lend(self) -> list[Tensor]:
        """z of the images that each part needs."""
        return [self.z[rows] for rows in self.lent]

    def assign(self, lent: Sequence[Tensor], counts: Tensor | None, keep: bool) -> Tensor:
        """z ← softmax( log ŷ + log p / T + G z + prior ), Eq. z_update; Σ_i z_ik (k).

        counts: n_k (k), for the prior; None: no prior. keep: keep the scores, in place of `unary`.
        """
        self.z[self.n :] = torch.cat([self.z[:0], *lent])
        if self.fast:
            at = self.around, self.z, self.unary, self.graph, self.edge, self.settings, counts, self.k, keep
            self.z, sums = self.fast.assign(*at)
            return torch.as_tensor(sums)
        following, mass, s = torch.empty_like(self.z), self._per_class(), self.settings
        for rows, classes in self._rows():
            scores = self._pull(rows, classes).add_(self.unary[rows])
            if counts is not None:
                others = self.z[rows] if s.leave_one_out else 0.0
                scores += log_presence(counts[classes], others, s.prior, s.floor, s.size)
            following[rows] = z = torch.softmax(scores, dim=1)
            if keep:
                self.unary[rows] = scores
            self._add(mass, classes, z)
        self.z = following
        return mass

    def _pull(self, rows: slice, classes: Tensor) -> Tensor:
        """Σ_j g_ij z_j of the candidates, rows×C."""
        offsets = self.graph.offsets[rows.start : rows.stop + 1].long()
        edges = slice(int(offsets[0]), int(offsets[-1]))
        starts = torch.arange(0, len(classes) * self.k, self.k, device=classes.device)  # of dense rows, laid flat
        to = starts.repeat_interleave(offsets.diff())
        of = self.graph.columns[edges]
        at = (self.around[of] + to[:, None]).flatten()
        weights = self.edge * self.graph.values[edges, None]
        dense = self.z.new_zeros(len(starts) * self.k).scatter_add_(0, at, (self.z[of] * weights).flatten())
        return dense[classes + starts[:, None]]

    def statistics(self) -> Statistics:
        """Sums for the M-step."""
        moments, mass = self.z.new_zeros(self.k, 2 * self.head.d, dtype=wide(self.z)), self._per_class()
        best = torch.zeros(self.k, dtype=torch.long, device=self.z.device)
        for rows, phi, _ in self.features.blocks():
            z, classes = self.z[rows], self.classes[rows].long()
            dense = z.new_zeros(len(z), self.k).scatter_(1, classes, z)
            moments += dense.T @ phi
            mass += dense.sum(dim=0)
            # of equal classes the first counts, as in a dense row
            best += torch.bincount(classes.gather(1, z.max(dim=1, keepdim=True).indices).flatten(), minlength=self.k)
        return Statistics(moments, mass, best)

    def change(self) -> float:
        """max |Δz| since `mark`."""
        return max((float((self.z[rows] - self.before[rows]).abs_().max()) for rows in self.blocks), default=0.0)

    def temper(self, compiled: bool) -> tuple[float, int]:
        """Lower probabilities to what is likely to be right (`temperature.py`); the sum of ϑ over how many images."""
        heat = 0.0
        for rows in self.blocks:
            self.z[rows], mean = tempered_towards(
                self.confidence[rows], self.unary[rows], self.z[rows], compiled=compiled
            )
            heat += mean * (rows.stop - rows.start)
        return heat, self.n

    # What comes of it

    def candidates(self) -> int:
        """C."""
        return self.length

    def mass(self) -> Tensor:
        """Σ_i z_ik, k."""
        total = self._per_class()
        for rows, classes in self._rows():
            self._add(total, classes, self.z[rows])
        return total

    def answers(self, rows: Tensor) -> Answers:
        """What was found of some images (r)."""
        classes = self.classes[rows]
        if self.present is not None:
            classes = self.present[classes.long()].to(self.type)
        return Answers(classes, *(found[rows] for found in (self.z, self.first_labels, self.first_confidence)))

    def dense(self) -> Tensor:
        """z as n×k, zero outside the lists."""
        out = self.z.new_zeros(self.n, self.k)
        for rows, classes in self._rows():
            out[rows].scatter_(1, classes, self.z[rows])
        return out

    def _per_class(self) -> Tensor:
        """Zeros, k."""
        return self.head.features.new_zeros(self.k, dtype=wide(self.head.features))

    def _rows(self) -> Iterator[tuple[slice, Tensor]]:
        """Block by block: which images, and their candidates as indices (r×C)."""
        for rows in self.blocks:
            yield rows, self.classes[rows].long()

    def _add(self, total: Tensor, classes: Tensor, entries: Tensor) -> None:
        """Add entries (r×C) to a sum per class (k), in which long sums are in float64: each block's sum first."""
        total += entries.new_zeros(self.k).scatter_add_(0, classes.flatten(), entries.flatten())
