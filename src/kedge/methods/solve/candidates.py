"""StatA's solver for more images times classes than memory holds: z as lists of candidates.

Same equations as stata.py. Nothing of n×k is held but the result, and nothing of n×d but x itself, which may be a
memory map:

    classes  n×C  the candidates of image i: the C classes with the largest log ŷ + log p / T, classes on their anchors
    z        n×C  its assignments to them; it has none to other classes

Rows are taken in blocks, and only class statistics are carried from one to the next. Within a block, lists are
scattered into a dense rows×k array and gathered from one, so that matrix products do the work:

    moments  zᵀφ        Σ over blocks of scatter(z)ᵀ φ, where φ = [x, x²] is of the block alone, see _gaussian.py
    scores   log p      gather(φ ηᵀ)
    pull     G z        gather(Σ_j scatter(g_ij z_j))

What is lost is the probability outside the lists. `outside` in info is its mean over the images while all classes are
on their anchors: what softmax(log ŷ + log p / T) gives to other classes. With C ≥ k nothing is lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ...arrays import row_blocks, wide
from ...progress import track
from ..contract import Batch
from .em import SETTLED, active_classes, largest_change, outcome
from .gaussian import Features, anchored_fit, shared_variance
from .graph import NeighbourGraph

DENSE_ENTRIES = 1 << 27  # of n×k, 0.5 GB in float32, and the dense solvers hold about seven such arrays; above, lists
CANDIDATES = 64  # C: on real features of ImageNet and SUN397 99.9 % of labels are as with all classes; with 32, 99.5 %


@torch.no_grad()
def solve(
    batch: Batch,
    graph: NeighbourGraph,
    *,
    alpha: float,
    soft: bool,
    temperature: float,
    unit_means: bool,
    iterations: int,
    z_steps: int,
    candidates: int = CANDIDATES,
) -> tuple[Tensor, dict[str, Any]]:
    """z (n×k), and what to say of it."""
    parts = Parts(batch)
    t, var0 = parts.head.features, parts.shared_variance()  # Eq. parameter-initialization
    lists = Lists(parts, var0, temperature, candidates)
    unary, z = lists.anchored, lists.log_y.exp()

    for iteration in track(range(iterations), "StatA"):
        z = lists.assign(z, unary, graph, z_steps)

        # M-step, for the active classes
        mass = lists.mass(z)
        active, n_a = active_classes(mass if soft else lists.hard_counts(z))
        t_a, moments = t.index_select(0, active), lists.moments(z, active, mass)
        _, mu, var = anchored_fit(parts[slice(0)], moments, n_a, t_a, var0, alpha, unit_means)
        if iteration == 0 and unit_means and parts.head.unit is not parts.head:
            lists.anchor(parts.head.unit.features, var0)  # an empty class is there from here on, β_k = 0
        unary = lists.scores(active, mu, var, var0)

    before = z
    z = lists.assign(z, unary, graph, z_steps)
    info = {
        **outcome(largest_change(z, before), iterations, SETTLED),
        "candidates": lists.length,
        "outside": lists.outside,
    }
    return lists.dense(z), info


class Parts:
    """The rows of x (n×d) in blocks, with φ of one block at a time."""

    def __init__(self, batch: Batch) -> None:
        self.x, self.head = batch.features, batch.head
        self.centre = self.x.mean(dim=0)
        self.rows = row_blocks((len(self.x), self.head.k + 2 * self.head.d))

    def __getitem__(self, rows: slice) -> Features:
        centred = self.x[rows] - self.centre
        phi = torch.cat([centred, centred * centred], dim=1)
        return Features(self.centre, phi, phi.T)

    def __iter__(self) -> Iterator[tuple[slice, Features]]:
        return ((rows, self[rows]) for rows in self.rows)

    def shared_variance(self) -> Tensor:
        """Σ' = Σ_ik ŷ_ik (x_i − t_k)² / n, d; the long sum in float64."""
        total = torch.zeros_like(self.centre, dtype=wide(self.x))
        for rows in self.rows:
            log_y = self.head.log_zero_shot(self.x[rows])
            total += shared_variance(self.x[rows], self.head.features, log_y).to(total) * len(log_y)
        return (total / len(self.x)).to(self.centre)


class Lists:
    """The candidates of every image, and what is known of each of them: arrays of n×C."""

    def __init__(self, parts: Parts, var0: Tensor, temperature: float, candidates: int) -> None:
        n, k = len(parts.x), parts.head.k
        self.parts, self.k, self.length, self.cooling = parts, k, min(candidates, k), 1 / temperature
        self.classes = torch.empty(n, self.length, dtype=torch.int32, device=parts.x.device)  # of a row, ascending
        self.log_y = parts.x.new_empty(n, self.length)  # log ŷ
        self.anchored = torch.empty_like(self.log_y)  # log ŷ + log p / T, classes on their anchors
        outside = 0.0
        for rows, features in parts:
            log_y = parts.head.log_zero_shot(parts.x[rows])
            log_p = features.log_density_shared(parts.head.features, var0)
            anchored = log_p.mul_(self.cooling).add_(log_y)
            classes = anchored.topk(self.length, dim=1, sorted=False).indices.sort(dim=1).values
            self.classes[rows] = classes
            self.log_y[rows] = log_y.gather(1, classes)
            self.anchored[rows] = inside = anchored.gather(1, classes)
            outside += float((1 - (inside.logsumexp(dim=1) - anchored.logsumexp(dim=1)).exp_()).clamp_(0).sum())
        self.outside = outside / n

    def anchor(self, t: Tensor, var0: Tensor) -> None:
        """Move the anchors to t (k×d)."""
        for rows, features in self.parts:
            log_p = features.log_density_shared(t, var0).gather(1, self.classes[rows].long())
            self.anchored[rows] = torch.add(self.log_y[rows], log_p, alpha=self.cooling)

    def scores(self, active: Tensor, mu: Tensor, var: Tensor, var0: Tensor) -> Tensor:
        """log ŷ + log p / T, n×C: as anchored, but for the active classes (a) from their μ and Σ (a×d)."""
        place = self._places(active)
        unary = torch.empty_like(self.anchored)
        for rows, features in self.parts:
            at = place[self.classes[rows]]
            log_p = features.log_density(mu, var, var0).gather(1, at.clamp_max(len(active) - 1))
            updated = torch.add(self.log_y[rows], log_p, alpha=self.cooling)
            unary[rows] = torch.where(at < len(active), updated, self.anchored[rows])
        return unary

    def moments(self, z: Tensor, active: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
        """As Features.moments, of the active classes (a), both a×d; `mass` (k) is Σ_i z_ik."""
        place = self._places(active)
        total = self.parts.x.new_zeros(len(active), 2 * self.parts.head.d)
        for rows, features in self.parts:
            dense = z.new_zeros(len(features.phi), len(active) + 1).scatter_(1, place[self.classes[rows]], z[rows])
            total.addmm_(dense[:, :-1].T, features.phi)
        total /= mass.index_select(0, active).clamp_min(torch.finfo(z.dtype).tiny)[:, None]
        first, second = total.chunk(2, dim=1)
        return first, second

    def _places(self, active: Tensor) -> Tensor:
        """Where each class is among the active ones, k; a for those that are not."""
        place = torch.full((self.k,), len(active), device=active.device)
        return place.index_copy_(0, active, torch.arange(len(active), device=active.device))

    def mass(self, z: Tensor) -> Tensor:
        """Σ_i z_ik, k."""
        total = z.new_zeros(self.k)
        for rows in self.parts.rows:  # each block's sum first: one long sum would lose digits
            total += torch.zeros_like(total).scatter_add_(0, self.classes[rows].flatten().long(), z[rows].flatten())
        return total

    def hard_counts(self, z: Tensor) -> Tensor:
        """How many images have class k as their best, k; of equal ones the first, as in a dense row."""
        best = self.classes.gather(1, z.max(dim=1, keepdim=True).indices).flatten()
        return torch.bincount(best, minlength=self.k).to(z.dtype)

    def assign(self, z: Tensor, unary: Tensor, graph: NeighbourGraph, steps: int) -> Tensor:
        """z ← softmax( log ŷ + log p / T + G z ) over the candidates, `steps` times. Eq. z_update."""
        for _ in range(steps):
            following = torch.empty_like(z)
            for rows in self.parts.rows:
                following[rows] = torch.softmax(self._pull(z, graph, rows).add_(unary[rows]), dim=1)
            z = following
        return z

    def _pull(self, z: Tensor, graph: NeighbourGraph, rows: slice) -> Tensor:
        """Σ_j g_ij z_j of the candidates, rows×C."""
        offsets = graph.offsets[rows.start : rows.stop + 1].long()
        edges = slice(int(offsets[0]), int(offsets[-1]))
        starts = torch.arange(0, (rows.stop - rows.start) * self.k, self.k, device=z.device)  # of dense rows, laid flat
        to = starts.repeat_interleave(offsets.diff())
        of = graph.columns[edges]
        at = (self.classes[of] + to[:, None]).flatten()
        dense = z.new_zeros(len(starts) * self.k).scatter_add_(0, at, (z[of] * graph.values[edges, None]).flatten())
        return dense[self.classes[rows] + starts[:, None]]

    def dense(self, z: Tensor) -> Tensor:
        """The lists as n×k, zero outside them."""
        out = z.new_zeros(len(z), self.k)
        for rows in self.parts.rows:
            out[rows].scatter_(1, self.classes[rows].long(), z[rows])
        return out
