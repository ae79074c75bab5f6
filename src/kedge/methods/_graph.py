"""Graphs over the images of a batch, as something to multiply assignments with. Never an n×n array.

Both are symmetric n×n operators G with `G @ z` for z of n×k.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK_ROWS = 256  # rows of x xᵀ looked at together
BLOCK_ENTRIES = 1 << 24  # and at most this many entries of them (64 MB in float32)


def nearest_neighbours(x: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """The m nearest other rows by cosine: indices and similarities, both n×min(m, n−1). Exact, block by block."""
    n = len(x)
    m = min(m, n - 1)
    rows = max(1, min(BLOCK_ROWS, BLOCK_ENTRIES // n))
    values = x.new_empty(n, m)
    indices = torch.empty(n, m, dtype=torch.long, device=x.device)
    for start in range(0, n, rows):
        similarity = x[start : start + rows] @ x.T
        similarity.diagonal(start).fill_(-torch.inf)  # self is excluded by index: a duplicate is a neighbour
        values[start : start + rows], indices[start : start + rows] = similarity.topk(m, dim=1)
    return indices, values


@dataclass(frozen=True)
class NeighbourGraph:
    """G = weight·(W + Wᵀ), W the directed nearest-neighbour similarities, as compressed sparse rows."""

    offsets: Tensor  # n+1: row i has the entries offsets[i] to offsets[i+1]
    columns: Tensor
    values: Tensor

    @classmethod
    def of(cls, x: Tensor, m: int, weight: float) -> NeighbourGraph:
        """The graph of unit features x (n×d) with m neighbours each."""
        indices, similarity = nearest_neighbours(x, m)
        source = torch.arange(len(x), device=x.device).repeat_interleave(indices.shape[1])
        return cls.symmetric(source, indices.flatten(), weight * similarity.flatten(), len(x))

    @classmethod
    def symmetric(cls, source: Tensor, target: Tensor, values: Tensor, nodes: int) -> NeighbourGraph:
        """W + Wᵀ, W the e weighted edges source → target among this many nodes."""
        rows = torch.cat([source, target])
        order = rows.argsort(stable=True)
        offsets = F.pad(torch.bincount(rows, minlength=nodes).cumsum(0), (1, 0))
        columns = torch.cat([target, source])[order]
        return cls(offsets.int(), columns.int(), values.repeat(2)[order])

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
