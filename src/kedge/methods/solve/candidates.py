"""StatA's solver for more images times classes than memory holds: z as lists of candidates.

Same equations as stata.py. Nothing of n×k is held but the result, and nothing of n×d but x itself, which may be a
memory map:

    classes  n×C  the candidates of image i: the C classes with the largest log ŷ + log p / T, classes on their anchors
    z        n×C  its assignments to them; it has none to other classes

Rows are taken in blocks, and only class statistics are carried from one to the next. Within a block, lists are
scattered into a dense rows×k array and gathered from one, so that matrix products do the work:

    moments  zᵀφ        Σ over blocks of scatter(z)ᵀ φ, where φ = [x, x²] is of the block alone, see gaussian.py
    scores   log p      gather(φ ηᵀ)
    pull     G z        gather(Σ_j scatter(g_ij z_j))

What is lost is the probability outside the lists. `outside` in info is its mean over the images while all classes are
on their anchors: what softmax(log ŷ + log p / T) gives to other classes. With C ≥ k nothing is lost.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

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
    cooling: float,
    unit_means: bool,
    iterations: int,
    z_steps: int,
    candidates: int = CANDIDATES,
) -> tuple[Tensor, dict[str, Any]]:
    """z (n×k), and what to say of it."""
    x, head = batch.features, batch.head
    t, features = head.features, Features.of(x, width=head.k)
    var0 = shared_variance(x, t, lambda rows: batch.log_zero_shot_of(rows).exp())  # Eq. parameter-initialization
    lists = Lists(batch, features, var0, cooling, candidates)
    unary, z = lists.anchored, lists.log_y.exp()

    for iteration in track(range(iterations), "StatA"):
        z = lists.assign(z, unary, graph, z_steps)

        # M-step, for the active classes
        mass = lists.mass(z)
        active, n_a = active_classes(mass if soft else lists.hard_counts(z))
        t_a, moments = t.index_select(0, active), lists.moments(z, active, mass)
        _, mu, var = anchored_fit(features.centre, moments, n_a, t_a, var0, alpha, unit_means)
        if iteration == 0 and unit_means and head.unit is not head:
            lists.anchor(head.unit.features, var0)  # an empty class is there from here on, β_k = 0
        unary = lists.scores(active, mu, var, var0)

    before = z
    z = lists.assign(z, unary, graph, z_steps)
    info = {
        **outcome(largest_change(z, before), iterations, SETTLED),
        "candidates": lists.length,
        "outside": lists.outside,
    }
    return lists.dense(z), info


class Lists:
    """The candidates of every image, and what is known of each of them: arrays of n×C."""

    def __init__(self, batch: Batch, features: Features, var0: Tensor, cooling: float, candidates: int) -> None:
        x, n, head = features.x, len(features.x), batch.head
        k = head.k
        self.features, self.k, self.length, self.cooling = features, k, min(candidates, k), cooling
        self.classes = torch.empty(n, self.length, dtype=torch.int32, device=x.device)  # of a row, ascending
        self.log_y = x.new_empty(n, self.length)  # log ŷ
        self.anchored = torch.empty_like(self.log_y)  # log ŷ + log p / T, classes on their anchors
        natural, outside = features.natural_shared(head.features, var0), 0.0
        for block in features.blocks():
            log_y = batch.log_zero_shot_of(block.rows)
            anchored = block.log_density(natural).mul_(self.cooling).add_(log_y)
            classes = anchored.topk(self.length, dim=1, sorted=False).indices.sort(dim=1).values
            self.classes[block.rows] = classes
            self.log_y[block.rows] = log_y.gather(1, classes)
            self.anchored[block.rows] = inside = anchored.gather(1, classes)
            outside += float((1 - (inside.logsumexp(dim=1) - anchored.logsumexp(dim=1)).exp_()).clamp_(0).sum())
        self.outside = outside / n

    def anchor(self, t: Tensor, var0: Tensor) -> None:
        """Move the anchors to t (k×d)."""
        natural = self.features.natural_shared(t, var0)
        for block in self.features.blocks():
            log_p = block.log_density(natural).gather(1, self.classes[block.rows].long())
            self.anchored[block.rows] = torch.add(self.log_y[block.rows], log_p, alpha=self.cooling)

    def scores(self, active: Tensor, mu: Tensor, var: Tensor, var0: Tensor) -> Tensor:
        """log ŷ + log p / T, n×C: as anchored, but for the active classes (a) from their μ and Σ (a×d)."""
        place = self._places(active)
        unary = torch.empty_like(self.anchored)
        natural = self.features.natural(mu, var, var0)
        for block in self.features.blocks():
            rows = block.rows
            at = place[self.classes[rows]]
            log_p = block.log_density(natural).gather(1, at.clamp_max(len(active) - 1))
            updated = torch.add(self.log_y[rows], log_p, alpha=self.cooling)
            unary[rows] = torch.where(at < len(active), updated, self.anchored[rows])
        return unary

    def moments(self, z: Tensor, active: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
        """As Features.moments, of the active classes (a), both a×d; `mass` (k) is Σ_i z_ik."""
        place = self._places(active)
        total = z.new_zeros(len(active), 2 * self.features.x.shape[1])
        for rows, phi, _ in self.features.blocks():
            dense = z.new_zeros(len(phi), len(active) + 1).scatter_(1, place[self.classes[rows]], z[rows])
            total.addmm_(dense[:, :-1].T, phi)
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
        for rows in self.features.rows:  # each block's sum first: one long sum would lose digits
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
            for rows in self.features.rows:
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
        for rows in self.features.rows:
            out[rows].scatter_(1, self.classes[rows].long(), z[rows])
        return out
