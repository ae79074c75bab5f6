"""What StatA, TransCLIP and MOON have in common. Each alternates between assignments and class parameters:

    z ← softmax_k( log ŷ + log p / T + G z ),   G = λ/(2m)·(W + Wᵀ) of m neighbours

and then fits its classes to z. They differ in p, and in how the classes are fitted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ...features.text_head import TextHead
from ..contract import Batch, State, Step
from ..settings import Configured
from .gaussian import floored, shared_variance
from .graph import GramGraph, NeighbourGraph
from .neighbours import Neighbours

RELEASED_CHUNK = 2500  # images per chunk in the program of StatA's authors
SETTLED = 1e-3  # without a tolerance, a last change of z below this counts as converged


class Settings(NamedTuple):
    """The numbers of a solve by StatA or kedge, compiled or by lists; those with a default are kedge's."""

    alpha: float
    cooling: float  # 1/T
    soft: bool  # counts are Σ_i z_ik
    unit_means: bool
    iterations: int
    z_steps: int
    present: float = 0.0  # a class with no more images than this is on its anchor
    prior: float = 0.0  # ρ
    floor: float = 1.0  # r b
    size: float = 1.0  # b
    leave_one_out: bool = False  # m = n_k − z_ik, else n_k
    own: float = 0.0  # ρ d/T: what an image gets by being part of its own class
    reliance: float = 0.0  # images of memory at most per image of the batch


class Iterate(Protocol):
    """The state of a solver after an iteration."""

    @property
    def z(self) -> Tensor:
        """The assignments, n×k."""


class Transductive(Configured):
    """Base of methods that solve each batch on its own, one iteration at a time, over a graph of neighbours."""

    neighbours: int
    laplacian: float

    def init(self, head: TextHead) -> State | None:
        """No state."""
        return None

    def step(self, state: State | None, batch: Batch) -> Step:
        """Solve one batch."""
        nearest = batch.nearest(self.neighbours)
        z, info = run((iterate.z for iterate in self.iterate(batch, nearest)), batch)
        return Step(None, z, {**info, **nearest.info})

    def iterate(self, batch: Batch, nearest: Neighbours | None = None) -> Iterator[Iterate]:
        """The solver; neighbours are searched for if not given."""
        raise NotImplementedError

    def _graph(self, batch: Batch, nearest: Neighbours | None) -> NeighbourGraph:
        """G = λ/(2m)·(W + Wᵀ), n×n."""
        nearest = nearest or batch.nearest(self.neighbours)
        return NeighbourGraph.of(nearest, self.laplacian / (2 * self.neighbours))


def z_step(z: Tensor, unary: Tensor, graph: NeighbourGraph | GramGraph) -> Tensor:
    """softmax_k( unary + G z ), n×k, with log ŷ + log p / T in `unary`."""
    return torch.softmax((graph @ z).add_(unary), dim=1)


def hard_counts(z: Tensor) -> Tensor:
    """n_k: how many images have class k as their most probable one, k."""
    return torch.bincount(z.max(dim=1).indices, minlength=z.shape[1]).to(z.dtype)


def log_presence(counts: Tensor, z: Tensor | float, weight: float, floor: float, size: float) -> Tensor:
    """kedge's prior ρ log[(m + r b)/(m + b)], m = n_k − z_ik, for n_k and z_ik of any shapes that fit each other."""
    m = (counts - z).clamp_min_(0)
    total = m + size
    return m.add_(floor).div_(total).log_().mul_(weight)


def active_classes(counts: Tensor) -> tuple[Tensor, Tensor]:
    """The classes that have any images (a), and how many each (a)."""
    active = counts.nonzero().squeeze(1)
    return active, counts.index_select(0, active)


def released_variance(x: Tensor, mu: Tensor, y: Tensor) -> Tensor:
    """`shared_variance` as the program of StatA's authors has it, for y of n×k: wrong for n > 2500."""
    n, var = len(x), torch.zeros_like(x[0])
    if n <= RELEASED_CHUNK:
        return shared_variance(x, mu, y.__getitem__)
    for start in range(0, n, RELEASED_CHUNK):  # the running sum is divided by n once per chunk
        x_part, y_part = x[start : start + RELEASED_CHUNK], y[start : start + RELEASED_CHUNK]
        var = (var + shared_variance(x_part, mu, y_part.__getitem__) * len(x_part)) / n
    return floored(var)


def run(assignments: Iterable[Tensor], batch: Batch, tol: float = SETTLED) -> tuple[Tensor, dict[str, Any]]:
    """The last z of a solve that starts at ŷ, and its `info`. The last z-steps, without an M-step, are no iteration."""
    before = z = None
    iterations = -1
    for z_next in assignments:
        before, z = z, z_next
        iterations += 1
    assert z is not None
    before = batch.log_zero_shot.exp() if before is None else before
    return z, outcome(largest_change(z, before), iterations, tol)


def largest_change(z: Tensor, before: Tensor) -> float:
    """max |z − before| over all entries (n×k)."""
    return float((z - before).abs_().max())


def outcome(change: float, iterations: int, tol: float) -> dict[str, Any]:
    """The `info` of a solve: M-steps, the largest change of z in the last iteration, and whether it is within `tol`."""
    return {"iterations": iterations, "converged": change <= tol, "change": change}
