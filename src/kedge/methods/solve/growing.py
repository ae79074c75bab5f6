"""A graph of nearest neighbours that grows by one node at a time. ECALP uses it.

Each node has a list of the m nodes nearest to it, itself included. A newcomer's similarity to all nodes is given. It is
symmetric, so it also says whose lists the newcomer enters; no list changes otherwise. So the lists are exact at any
time, and a newcomer costs one pass through their last places.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

NOBODY = -2.0  # similarity of an empty place: below every cosine


@dataclass
class GrowingLists:
    """The lists of the nodes so far, in arrays with room for more."""

    indices: Tensor  # room×m, int32, the nearest first; of equals the later node first. 0 in an empty place
    similarity: Tensor  # room×m; NOBODY in an empty place
    nodes: int = 0

    @classmethod
    def of(cls, indices: Tensor, similarity: Tensor, room: int) -> GrowingLists:
        """A copy of the lists of n nodes (n×m), with room for more."""
        more = (0, 0, 0, room - len(indices))
        return cls(F.pad(indices, more), F.pad(similarity, more, value=NOBODY), len(indices))

    def add(self, s: Tensor) -> Replaced:
        """Another node; s: its similarity to all nodes, itself last. Returns what it replaced, for `remove`."""
        node, m = self.nodes, self.indices.shape[1]
        self.nodes += 1
        others, best = s[:-1], min(m, node)
        if best:
            near = (others >= others.topk(best).values[-1]).nonzero().squeeze(1).flip(0)  # the later first
            near = near[others[near].argsort(descending=True, stable=True)[:best]]
            self.indices[node, :best] = near.int()
            self.similarity[node, :best] = others[near]
        rows = (s >= self.similarity[: self.nodes, -1]).nonzero().squeeze(1)
        before = Replaced(rows, self.indices[rows], self.similarity[rows])
        place = (before.similarity > s[rows, None]).sum(dim=1, keepdim=True)  # before its equals, as it is later
        column = torch.arange(m, device=s.device)

        def inserted(old: Tensor, new: Tensor) -> Tensor:
            return torch.where(column < place, old, torch.where(column == place, new, old.roll(1, dims=1)))

        self.indices[rows] = inserted(before.indices, torch.full_like(before.indices, node))
        self.similarity[rows] = inserted(before.similarity, s[rows, None].expand(-1, m))
        return before

    def remove(self, replaced: Replaced) -> None:
        """Undo the last `add`."""
        self.nodes -= 1
        self.indices[replaced.rows], self.similarity[replaced.rows] = replaced.indices, replaced.similarity
        self.indices[self.nodes], self.similarity[self.nodes] = 0, NOBODY


@dataclass(frozen=True)
class Replaced:
    """The lists (r×m) of some nodes (r), before a newcomer entered them."""

    rows: Tensor
    indices: Tensor
    similarity: Tensor


@dataclass(frozen=True)
class BothWays:
    """W + Wᵀ, W the edges of n lists of m, as an operator. W as rows; Wᵀ as the edges in the order of their targets."""

    targets: Tensor  # n×m, int32
    weights: Tensor  # n×m
    order: Tensor  # nm: the edges by target
    offsets: Tensor  # n+1, int32: where the edges to each node begin

    @classmethod
    def of(cls, targets: Tensor, weights: Tensor) -> BothWays:
        """From lists of nodes and the weights of their edges, n×m."""
        order = targets.flatten().argsort(stable=True)
        offsets = F.pad(torch.bincount(targets.flatten(), minlength=len(targets)).cumsum(0), (1, 0)).int()
        return cls(targets, weights, order, offsets)

    def degrees(self) -> Tensor:
        """The row sums, n."""
        return self.weights.sum(dim=1).index_add_(0, self.targets.flatten(), self.weights.flatten())

    def scaled(self, d: Tensor) -> BothWays:
        """D (W + Wᵀ) D for a diagonal D (n)."""
        return replace(self, weights=self.weights * d[:, None] * d[self.targets])

    def __matmul__(self, z: Tensor) -> Tensor:
        """(W + Wᵀ) z, n×k."""
        forth = F.embedding_bag(self.targets, z, mode="sum", per_sample_weights=self.weights)
        sources, weights = self._backwards
        return forth.add_(
            F.embedding_bag(sources, z, self.offsets, mode="sum", per_sample_weights=weights, include_last_offset=True)
        )

    @cached_property
    def _backwards(self) -> tuple[Tensor, Tensor]:
        """Sources and weights of the edges by target."""
        return (self.order // self.targets.shape[1]).int(), self.weights.flatten()[self.order]

    def spread(self, classes: Tensor, values: Tensor, k: int) -> Tensor:
        """(W + Wᵀ) z for a z with one entry per row: `values` (n) in the columns `classes` (n)."""
        n, targets = len(values), self.targets.long()
        out = values.new_zeros(n * k)
        forth = torch.arange(n, device=values.device)[:, None] * k + classes[targets]
        out.index_add_(0, forth.flatten(), (self.weights * values[targets]).flatten())
        back = targets * k + classes[:, None]
        out.index_add_(0, back.flatten(), (self.weights * values[:, None]).flatten())
        return out.view(n, k)
