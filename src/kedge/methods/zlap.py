"""ZLaP: label propagation from the text prototypes over a graph of texts and images.

Stojnić, Kalantidis, Tolias, "Label Propagation for Zero-shot Classification with Vision-Language Models", CVPR 2024.

The K texts and the n images are the nodes. Each image links to its 5 nearest images, counting itself, and to its 5
nearest texts. Negative similarities count as 0. Weights between image and text are raised to the power 5, which makes
the two kinds of similarity comparable. With W the directed weights,

    S = D^-½ (W + Wᵀ) D^-½,   D its row sums
    (I − γ S) X = E,          E selects the text nodes: e_k in column k

and the label of image i is the class of the largest score in its row of X. The K systems share one matrix, symmetric
and positive definite (γ < 1), so conjugate gradients solve them together, with one sparse product per step.

| symbol | code                | shape      | meaning                                                       |
|--------|---------------------|------------|---------------------------------------------------------------|
| x_i    | `x`                 | n×d        | unit image features                                           |
| t_k    | `t`                 | K×d        | unit text prototypes                                          |
| S      | `graph`             | (K+n)×(K+n) | normalised affinities, sparse; texts first                   |
| X      | `scores`            | n×K        | rows of the images: score of each class                       |
| γ      | `damping`           |            | how far labels propagate                                      |

Scores are not probabilities. z is each row divided by its sum, which keeps the order. Scores are not negative, except
for the error of the solver; those are set to 0. `scores(batch)` returns them unchanged.

Known labels, beyond the paper: an image i with the known class c is one more source of label c, as strong as all that
the texts give it: e_ic = γ Σ_k s_ik. Its own z is certain. (With e_ic = 1, like a text, it would outweigh all texts:
links between images are many times stronger than links between image and text.)

Deviations
- from the paper: labels propagate only within the batch (the paper's transductive setting).
- from the authors' program: an image is excluded from its own neighbours by index (different only for more than five
  exact duplicates); texts without links are left out of the system (their columns are exactly 0 for the images); an
  image without links, because all its similarities are negative, keeps its zero-shot probabilities.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..features.text_head import TextHead
from .contract import Batch, State, Step, Traits
from .settings import Configured, setting
from .solve.graph import NeighbourGraph
from .solve.neighbours import Neighbours


@dataclass(frozen=True)
class ZLaP(Configured):
    """ZLaP, transductive; the defaults are the published settings."""

    name: ClassVar[str] = "zlap"
    traits: ClassVar[Traits] = Traits(paper="ZLaP", year=2024, scope="batch", memory="none", known=True)

    neighbours: int = setting(5, "nearest images (including itself) and nearest texts of an image", low=1, high=1000)
    power: float = setting(5.0, "weights between image and text are raised to this", low=1e-3, high=1e3)
    damping: float = setting(0.3, "γ, how far labels propagate", low=0, high=0.9999)
    tol: float = setting(1e-6, "stop at this residual, relative to the right-hand side", low=1e-12, high=1.0)
    iterations: int = setting(50, "maximum number of conjugate-gradient steps", low=1, high=10_000)

    def init(self, head: TextHead) -> State | None:
        """No state: each batch is solved separately."""
        return None

    def step(self, state: State | None, batch: Batch) -> Step:
        """Solve one batch."""
        scores, info = self._solve(batch)
        scores = scores.clamp_min_(0)
        total = scores.sum(dim=1, keepdim=True)
        alone = total <= torch.finfo(total.dtype).tiny
        fixed = alone.index_fill(0, batch.labelled[0], True)
        z = torch.where(fixed, batch.log_zero_shot.exp(), scores / total.masked_fill(alone, 1))
        return Step(None, z, {**info, "isolated": int(alone.sum())})

    def scores(self, batch: Batch) -> Tensor:
        """X for the images, n×K, before scaling to probabilities."""
        return self._solve(batch)[0]

    @torch.no_grad()
    def _solve(self, batch: Batch) -> tuple[Tensor, dict[str, Any]]:
        x, t = batch.features, batch.head.features
        nearest = batch.nearest(self.neighbours - 1)  # one of them is the image itself
        images, classes = batch.labelled
        graph, linked = self._graph(x, t, nearest, classes)
        k = len(linked)
        e = torch.eye(k + len(x), k, dtype=x.dtype, device=x.device)
        if len(images):
            from_texts = (graph @ e).sum(dim=1)[k + images]
            e[k + images, torch.searchsorted(linked, classes)] = self.damping * from_texts
        spread, info = conjugate_gradients(lambda p: p - self.damping * (graph @ p), e, self.tol, self.iterations)
        scores = x.new_zeros(len(x), len(t)).index_copy_(1, linked, spread[k:])
        return scores, {**info, **nearest.info}

    def _graph(self, x: Tensor, t: Tensor, nearest: Neighbours, known: Tensor) -> tuple[NeighbourGraph, Tensor]:
        """S over the linked texts and those of known classes, then the images; and the numbers of these texts."""
        text_weight, texts = (x @ t.T).topk(min(self.neighbours, len(t)), dim=1)
        linked = torch.cat([texts.flatten(), known]).unique()  # type: ignore[no-untyped-call]
        texts = torch.searchsorted(linked, texts)
        targets = torch.cat([nearest.indices + len(linked), texts], dim=1)
        weight = torch.cat([nearest.similarity.clamp_min(0), text_weight.clamp_min(0) ** self.power], dim=1).flatten()
        nodes = len(linked) + len(x)
        source = torch.arange(len(linked), nodes, device=x.device).repeat_interleave(targets.shape[1])
        target = targets.flatten()
        degree = x.new_zeros(nodes).index_add_(0, source, weight).index_add_(0, target, weight)
        scale = degree.clamp_min_(torch.finfo(x.dtype).tiny).rsqrt_()  # a node without weights needs no scale
        return NeighbourGraph.symmetric(source, target, weight * scale[source] * scale[target], nodes), linked


def conjugate_gradients(
    apply: Callable[[Tensor], Tensor], b: Tensor, tol: float, iterations: int
) -> tuple[Tensor, dict[str, Any]]:
    """Solve A X = B for all columns of B at once, A symmetric positive definite and given as P ↦ A P.

    Stops when every column's residual is at most `tol` times its right-hand side. Returns X and the info.
    """
    tiny = torch.finfo(b.dtype).tiny
    x, r, p = torch.zeros_like(b), b.clone(), b.clone()
    rho = (r * r).sum(dim=0)
    aim = tol * tol * rho
    steps = 0
    while steps < iterations and bool((rho > aim).any()):
        steps += 1
        q = apply(p)
        step = rho / (p * q).sum(dim=0).clamp_min_(tiny)  # a solved column has r = p = 0 and no longer changes
        x.addcmul_(p, step)
        r.addcmul_(q, step, value=-1)
        before, rho = rho, (r * r).sum(dim=0)
        p.mul_(rho / before.clamp_min_(tiny)).add_(r)
    return x, {"iterations": steps, "converged": not bool((rho > aim).any())}
