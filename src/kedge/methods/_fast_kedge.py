"""The solver of kedge.py with the compiled kernels of _fast.py: the same steps, the same z to float32's last digits.

No row is ever at rest here: the class proportions move with every z-step, and with them all of z.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..progress import track
from . import Batch, State
from ._fast import Assignments, F, Parts, Rows, compiled, nearest_neighbours, symmetric_graph
from .kedge import PRESENT, PSEUDO_COUNT, Kedge, Trust, recalled, smooth

__all__ = ["nearest_neighbours", "solve"]


def solve(
    method: Kedge, past: State, batch: Batch, nearest: Tensor, similarity: Tensor, trust: Trust
) -> tuple[Tensor, Tensor]:
    """The last z (n×k), and the z of an iteration before; float32, on the CPU."""
    t, log_y = batch.head.features.contiguous(), batch.log_zero_shot.contiguous()
    (n, k), d = log_y.shape, t.shape[1]
    cooling = trust.visual / method.temperature
    graph = symmetric_graph(nearest, similarity * (trust.visual * method.laplacian / (2 * method.neighbours)))
    parts, z = Parts(batch.features), Assignments(log_y, graph)
    var0 = parts.shared_variance(z.tensor, t)
    anchored = parts.anchored(log_y, t, var0, cooling)
    weight = F(trust.proportions if method.proportions else 0)
    active, scores, prior = np.empty(0, np.int64), torch.empty(0, n), np.ones(k, F)
    for iteration in track(range(method.iterations + 1), "kedge"):
        z.weigh(anchored, active, scores)
        if iteration == method.iterations:
            before = z.tensor.clone()
        for _ in range(method.z_steps):
            counts = z.pull(1, prior).sum(dim=0)
            few, prior = _proportions(counts.numpy(), n, weight, F(PSEUDO_COUNT))
        if iteration == method.iterations:
            break

        # M-step, for the classes that are present
        present = (counts > PRESENT).nonzero().squeeze(1)
        z_a, n_a = z.tensor.index_select(1, present), counts.index_select(0, present)
        moments, mass = parts.moments(z_a), n_a
        if past:
            first, second = (moments / mass[:, None]).chunk(2, dim=1)
            moments = torch.cat(recalled(past, present, parts.centre, n_a, (first, second)), dim=1)
            mass = torch.ones_like(n_a)
        t_a = t.index_select(0, present)
        scores = parts.fitted(moments, mass, n_a.numpy(), t_a, var0, method.alpha, True, cooling)
        if method.own_say:
            taken_back = cooling * smooth(few) ** 2 * d / (n_a + method.alpha)
            scores.addcmul_(z_a.T, taken_back[:, None], value=-1)
        active = present.numpy()
    return z.tensor, before


@compiled
def _proportions(counts: Rows, n: int, trust: np.float32, pseudo: np.float32) -> tuple[float, Rows]:
    """ω = 1 − K̂/K, and the prior exp(ρ log π), k. Constants of other files come as arguments: compiled code is kept."""
    k = len(counts)
    total, entropy = F(0), F(0)
    for c in range(k):
        total += counts[c]
    for c in range(k):
        if counts[c] > F(0):
            entropy -= counts[c] / total * np.log(counts[c] / total)
    few = F(1) - np.exp(entropy) / F(k)
    u = min(max(few, F(0)), F(1))
    weight = trust * u * u * (F(3) - F(2) * u)
    prior = np.empty(k, F)
    for c in range(k):
        prior[c] = ((counts[c] + pseudo) / (F(n) + pseudo * F(k))) ** weight
    return few, prior
