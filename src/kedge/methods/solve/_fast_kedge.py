"""The solver of kedge.py with the compiled kernels of _fast.py: the same steps, the same z to float32's last digits.

Here images are at rest only when the class proportions are: they move with every z-step, and with them all of z.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...progress import track
from ..contract import Batch, State
from ..kedge import PRESENT, PSEUDO_COUNT, RELIANCE, REMEMBERED, SURE, Kedge, Trust, smooth
from ..solve import _kernels
from ._fast import Solver, is_near, symmetric_graph
from ._kernels import F, proportions, recall, rounds
from .neighbours import Neighbours


def evidence(log_y: Tensor, nearest: Tensor) -> tuple[float, float]:
    """As in kedge.py."""
    return _kernels.evidence(log_y.contiguous().numpy(), nearest.numpy())


def remembered(past: State, x: Tensor, z: Tensor, trust: float) -> State:
    """As in kedge.py."""
    state = {name: past[name].clone(memory_format=torch.contiguous_format) for name in ("counts", "mean", "var")}
    settings = (F(trust), F(SURE), F(PRESENT), F(REMEMBERED))
    _kernels.remember(x.contiguous().numpy(), z.numpy(), *settings, *(table.numpy() for table in state.values()))
    return state


def solve(method: Kedge, past: State, batch: Batch, nearest: Neighbours, trust: Trust) -> tuple[Tensor, float]:
    """The last z (n×k), and its largest change in the last iteration; float32, on the CPU."""
    n, k, d = len(batch.features), batch.head.k, batch.head.d
    cooling = trust.visual / method.temperature
    weight = trust.visual * method.laplacian / (2 * method.neighbours)
    graph = symmetric_graph(nearest, weight)
    near = is_near(n, k, d)  # then a single call makes an iteration's z-steps
    most = min(k, int(n / PRESENT) + 1) if near else k  # and classes may be idle
    solver = Solver.of(batch, graph, cooling, method.alpha, True, most)
    shape = (F(trust.proportions if method.proportions else 0), F(PSEUDO_COUNT))
    memory: list[Any] = [past[name].contiguous().numpy() for name in ("counts", "mean", "var") if past]
    counts, prior, drifted = np.zeros(k, F), solver.no_prior.copy(), np.zeros(1, F)
    for iteration in track(range(method.iterations + 1), "kedge"):
        if iteration == method.iterations:
            solver.mark()
        if near:
            solver.weigh()
            told: tuple[Any, ...] = (counts, prior, drifted, solver.names, solver.slots, solver.now)
            few = rounds(method.z_steps, *shape, *told, *solver.pulled)
            solver.turn((solver.now + method.z_steps) % 2)
        else:
            for _ in range(method.z_steps):
                solver.pull(1, prior)
                counts = solver.soft_counts()
                few, prior = proportions(counts, n, *shape)
        if iteration == method.iterations:
            break

        # M-step, for the classes that are present
        present = np.where(counts > PRESENT, counts, F(0))
        solver.enliven(present, int(np.count_nonzero(present)), int(np.count_nonzero(present[solver.slots < 0])))
        live = slice(*solver.live)
        prior[live] = prior[solver.names[live]]
        moments, mass = solver.moments(present)
        n_a = counts[solver.classes]
        if past:
            recall(F(RELIANCE), solver.centre, solver.classes, n_a, moments, mass, *memory)
        own = cooling * smooth(few) ** 2 * d / (n_a + F(method.alpha)) if method.own_say else None
        solver.fit(moments, mass, counts, own)
    return solver.result()
