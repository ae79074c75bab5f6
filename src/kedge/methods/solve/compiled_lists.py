"""The z-step of lists.py with a compiled kernel, for float32 on CPUs: the same z to float32's last digits.

Torch's form lays the lists of an image's neighbours out in a dense row, with an index for every entry. Here the dense
row is one array that stays in the cache, and only what was put into it is taken out again.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .compiled_neighbours import by_rows
from .compiling import kernel
from .em import Settings
from .graph import NeighbourGraph

Rows = NDArray[Any]
F = np.float32


def assign(
    around: Tensor,
    z: Tensor,
    unary: Tensor,
    graph: NeighbourGraph,
    edge: float,
    settings: Settings,
    counts: Tensor | None,
    k: int,
    keep: bool,
) -> tuple[Tensor, Tensor]:
    """z after a step, with room for what other parts lend, and Σ_i z_ik (k); see `Rows.assign`."""
    s, following = settings, torch.empty_like(z)
    prior = F(0 if counts is None else s.prior), F(s.floor), F(s.size), F(s.leave_one_out)
    tables = [table.numpy() for table in (around, z, unary, graph.offsets, graph.columns, graph.values)]
    n = np.zeros(k, F) if counts is None else counts.numpy()
    by_rows(_assign, tables[2], *tables, F(edge), n, *prior, keep, following.numpy())
    return following, torch.from_numpy(_mass(len(unary), k, tables[0], following.numpy()))


def warm_up() -> None:
    """Compile the kernels, or load them from the disk."""
    z, graph = torch.ones(2, 1), NeighbourGraph.symmetric(torch.tensor([0]), torch.tensor([1]), torch.ones(1), 2)
    for kind in (torch.uint8, torch.int16):
        assign(z.to(kind) - 1, z, z.clone(), graph, 1.0, Settings(1.0, 1.0, True, True, 1, 1), None, 1, False)


@kernel
def _assign(
    begin: int,
    end: int,
    around: Rows,
    z: Rows,
    unary: Rows,
    offsets: Rows,
    columns: Rows,
    values: Rows,
    edge: np.float32,
    counts: Rows,
    weight: np.float32,
    floor: np.float32,
    size: np.float32,
    own: np.float32,
    keep: bool,
    following: Rows,
) -> None:
    """z ← softmax( unary + G z + prior ) over the candidates, for these rows."""
    pull, scores = np.zeros(len(counts), F), np.empty(unary.shape[1], F)
    for i in range(begin, end):
        for e in range(offsets[i], offsets[i + 1]):
            j, g = columns[e], edge * values[e]
            for c in range(len(scores)):
                pull[around[j, c]] += g * z[j, c]
        highest = F(-3e38)
        for c in range(len(scores)):
            score = unary[i, c] + pull[around[i, c]]
            if weight > F(0):
                others = max(counts[around[i, c]] - own * z[i, c], F(0))
                score += weight * np.log((others + floor) / (others + size))
            scores[c] = score
            highest = max(highest, score)
        for e in range(offsets[i], offsets[i + 1]):
            for c in range(len(scores)):
                pull[around[columns[e], c]] = F(0)
        total = F(0)
        for c in range(len(scores)):
            power = np.exp(scores[c] - highest)
            following[i, c] = power
            total += power
        for c in range(len(scores)):
            following[i, c] /= total
        if keep:
            unary[i] = scores


@kernel
def _mass(n: int, k: int, classes: Rows, z: Rows) -> Rows:
    """Σ_i z_ik of the first n rows, k."""
    mass = np.zeros(k, np.float64)
    for i in range(n):
        for c in range(z.shape[1]):
            mass[classes[i, c]] += z[i, c]
    return mass
