"""The solver of kedge.py with the compiled kernels of _fast.py: the same steps, the same z to float32's last digits.

Nothing is ever at rest here: the class proportions move with every z-step, and with them all of z.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..progress import track
from . import Batch, State
from ._fast import F, Rows, Solver, _exp, _pull, _sums, compiled, many, symmetric_graph
from ._neighbours import Neighbours
from .kedge import PRESENT, PSEUDO_COUNT, Kedge, Trust, recalled, smooth


def solve(method: Kedge, past: State, batch: Batch, nearest: Neighbours, trust: Trust) -> tuple[Tensor, Tensor]:
    """The last z (n×k), and the z of an iteration before; float32, on the CPU."""
    n, k, d = len(batch.features), batch.head.k, batch.head.d
    cooling = trust.visual / method.temperature
    weight = trust.visual * method.laplacian / (2 * method.neighbours)
    graph = symmetric_graph(nearest.indices, nearest.similarity * weight)
    solver = Solver(batch, graph, cooling, most=k)
    proportions = F(trust.proportions if method.proportions else 0)
    prior = solver.no_prior
    for iteration in track(range(method.iterations + 1), "kedge"):
        if iteration == method.iterations:
            before = torch.from_numpy(solver.z.copy())
        if not many(n, k):  # the same as below, in one call
            counts, few, prior = _rounds(method.z_steps, n, proportions, F(PSEUDO_COUNT), prior, *solver.pulled)
            solver.turn(method.z_steps)
        for _ in range(method.z_steps if many(n, k) else 0):
            solver.pull(1, prior)
            counts = solver.soft_counts()
            few, prior = _proportions(counts, n, proportions, F(PSEUDO_COUNT))
        if iteration == method.iterations:
            break

        # M-step, for the classes that are present
        present = np.where(counts > PRESENT, counts, F(0))
        moments, mass = solver.moments(present, resting=True)
        n_a = counts[solver.classes]
        if past:
            table, mass_a = torch.from_numpy(moments), torch.from_numpy(mass[: len(n_a), None])
            first, second = (table / mass_a).chunk(2, dim=1)
            now = (torch.from_numpy(solver.classes), torch.from_numpy(solver.centre), torch.from_numpy(n_a))
            moments = torch.cat(recalled(past, *now, (first, second)), dim=1).numpy()
            mass = np.ones_like(n_a)
        own = cooling * smooth(few) ** 2 * d / (n_a + F(method.alpha)) if method.own_say else None
        solver.fit(moments, mass, counts, method.alpha, True, own)
    return torch.from_numpy(solver.z), before


@compiled
def _proportions(counts: Rows, n: int, trust: np.float32, pseudo: np.float32) -> tuple[float, Rows]:
    """ω = 1 − K̂/K, and the prior exp(ρ log π), k. Constants of other files come as arguments: compiled code is kept."""
    k = len(counts)
    logs, power = np.empty(k, F), np.empty(k, np.int32)
    total, entropy = F(0), F(0)
    for c in range(k):
        total += counts[c]
    for c in range(k):
        logs[c] = max(counts[c] / total, F(1e-30))
    _log(logs, power)
    for c in range(k):
        entropy -= counts[c] / total * logs[c]
    few = F(1) - np.exp(entropy) / F(k)
    u = min(max(few, F(0)), F(1))
    weight = trust * u * u * (F(3) - F(2) * u)
    for c in range(k):
        logs[c] = (counts[c] + pseudo) / (F(n) + pseudo * F(k))
    _log(logs, power)
    for c in range(k):
        logs[c] *= weight
    _exp(logs, k, power)
    return few, logs


@compiled
def _rounds(
    steps: int, n: int, trust: np.float32, pseudo: np.float32, prior: Rows, w: Rows, unary: Rows, reach: Rows,
    offsets: Rows, columns: Rows, values: Rows, z: Rows, next: Rows, moved: Rows, moves: Rows, stirred: Rows,
    strayed: Rows,
) -> tuple[Rows, float, Rows]:  # fmt: skip
    """Some z-steps, each with the prior that the one before gives: the last n_k (k), ω and prior (k)."""
    counts, few = prior, 0.0
    for _ in range(steps):
        stirred[:] = F(1)
        rows = (z, next, moved, moves, stirred, strayed)
        _pull(0, n, prior, w, unary, reach, offsets, columns, values, *rows)
        z, next, moved, moves = next, z, moves, moved
        counts = _sums(z)
        few, prior = _proportions(counts, n, trust, pseudo)
    return counts, few, prior


@compiled
def _log(v: Rows, exponent: Rows) -> None:
    """v ← log(v), k, as whole vectors: v = 2^e m with m within √2 of 1, and log m = 2 artanh((m − 1)/(m + 1))."""
    bits = v.view(np.int32)
    for c in range(len(v)):
        e = (bits[c] - np.int32(0x3F3504F3)) >> np.int32(23)
        exponent[c] = e
        bits[c] -= e << np.int32(23)
    for c in range(len(v)):
        s = (v[c] - F(1)) / (v[c] + F(1))
        q = s * s
        p = F(2 / 9) * q + F(2 / 7)
        p = p * q + F(2 / 5)
        p = p * q + F(2 / 3)
        v[c] = s * (p * q + F(2)) + F(0.6931472) * exponent[c]
