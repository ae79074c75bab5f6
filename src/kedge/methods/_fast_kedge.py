"""The solver of kedge.py with the compiled kernels of _fast.py: the same steps, the same z to float32's last digits.

Nothing is ever at rest here: the class proportions move with every z-step, and with them all of z.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..progress import track
from . import Batch, State
from ._fast import F, Solver, many, proportions, rounds, symmetric_graph
from ._neighbours import Neighbours
from .kedge import PRESENT, PSEUDO_COUNT, Kedge, Trust, recalled, smooth


def solve(method: Kedge, past: State, batch: Batch, nearest: Neighbours, trust: Trust) -> tuple[Tensor, float]:
    """The last z (n×k), and its largest change in the last iteration; float32, on the CPU."""
    n, k, d = len(batch.features), batch.head.k, batch.head.d
    cooling = trust.visual / method.temperature
    weight = trust.visual * method.laplacian / (2 * method.neighbours)
    graph = symmetric_graph(nearest.indices, nearest.similarity * weight)
    solver = Solver.of(batch, graph, cooling, most=k)
    weight_of_prior = F(trust.proportions if method.proportions else 0)
    prior = solver.no_prior
    for iteration in track(range(method.iterations + 1), "kedge"):
        if iteration == method.iterations:
            solver.mark()
        if many(n, k):
            for _ in range(method.z_steps):
                solver.pull(1, prior)
                counts = solver.soft_counts()
                few, prior = proportions(counts, n, weight_of_prior, F(PSEUDO_COUNT))
        else:  # the same in one call
            solver.weigh()
            told = (method.z_steps, weight_of_prior, F(PSEUDO_COUNT), prior, solver.now)
            counts, few, prior = rounds(*told, *solver.pulled)
            solver.turn(method.z_steps)
        if iteration == method.iterations:
            break

        # M-step, for the classes that are present
        present = np.where(counts > PRESENT, counts, F(0))
        moments, mass = solver.moments(present, resting=True)
        n_a = counts[solver.classes]
        if past:
            table, mass_a = torch.from_numpy(moments), torch.from_numpy(mass[: len(n_a), None])
            first, second = (table / mass_a).chunk(2, dim=1)
            now = (
                torch.from_numpy(solver.classes.astype(np.int64)),
                torch.from_numpy(solver.centre),
                torch.from_numpy(n_a),
            )
            moments = torch.cat(recalled(past, *now, (first, second)), dim=1).numpy()
            mass = np.ones_like(n_a)
        own = cooling * smooth(few) ** 2 * d / (n_a + F(method.alpha)) if method.own_say else None
        solver.fit(moments, mass, counts, method.alpha, True, own)
    return solver.result()
