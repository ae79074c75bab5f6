"""Graphs over the images of a batch, as operators on assignments. Never an n×n array.

Both are symmetric n×n operators G with `G @ z` for z of n×k.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .neighbours import Neighbours

MOST_ENTRIES = torch.iinfo(torch.int32).max  # that int32 can count


@dataclass(frozen=True)
class NeighbourGraph:
    """G = weight·(W + Wᵀ), W the directed nearest-neighbour similarities, as compressed sparse rows."""

    offsets: Tensor  # n+1: row i has the entries offsets[i] to offsets[i+1]
    columns: Tensor
    values: Tensor

    @classmethod
    def of(cls, nearest: Neighbours, weight: float) -> NeighbourGraph:
        """The graph of n images and their neighbours."""
        n, m = nearest.indices.shape
        source = torch.arange(n, device=nearest.indices.device).repeat_interleave(m)
        return cls.symmetric(source, nearest.indices.flatten(), weight * nearest.similarity.flatten(), n)

    @classmethod
    def symmetric(cls, source: Tensor, target: Tensor, values: Tensor, nodes: int) -> NeighbourGraph:
        """W + Wᵀ, W the e weighted edges source → target among this many nodes."""
        return cls.from_entries(torch.cat([source, target]), torch.cat([target, source]), values.repeat(2), nodes)

    @classmethod
    def from_entries(cls, rows: Tensor, columns: Tensor, values: Tensor, nodes: int) -> NeighbourGraph:
        """The operator with these entries, in this many rows."""
        order = rows.argsort(stable=True)
        offsets = F.pad(torch.bincount(rows, minlength=nodes).cumsum(0), (1, 0))
        kind = torch.int32 if len(rows) <= MOST_ENTRIES else torch.int64  # of both, or an embedding bag refuses them
        return cls(offsets.to(kind), columns[order].to(kind), values[order])

    def __matmul__(self, z: Tensor) -> Tensor:
        # A weighted sum of rows of z per row of G: what an embedding bag computes, on every device.
        return F.embedding_bag(
            self.columns, z, self.offsets, mode="sum", per_sample_weights=self.values, include_last_offset=True
        )


@dataclass(frozen=True)
class GramGraph:
    """G = weight·x xᵀ, all pairs, self included: positive semi-definite, multiplied without being formed."""

    x: Tensor
    weight: float

    def __matmul__(self, z: Tensor) -> Tensor:
        return self.weight * (self.x @ (self.x.T @ z))
