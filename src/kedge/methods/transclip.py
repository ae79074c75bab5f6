"""TransCLIP: a Gaussian per class with a shared covariance, with a prior on the labels but none on the means.

Zanella, Gérin, Ben Ayed, "Boosting Vision-Language Models with Transduction", NeurIPS 2024.

Objective, minimised block by block over z, then μ, then Σ:

    L(z, μ, Σ) = Σ_i KL(z_i ‖ ŷ_i) − ½ Σ_ij g_ij z_i·z_j − (1/T) Σ_i z_i·log p_i,   p_ik = N(x_i; μ_k, Σ)

    z ← softmax_k( log ŷ + log p / T + G z )             log |Σ| is equal for all classes
    μ_k = unit( Σ_i z_ik x_i / Σ_i z_ik )
    Σ   = Σ_ik z_ik (x_i − μ_k)² / n

| symbol | code          | shape | meaning                                                  |
|--------|---------------|-------|----------------------------------------------------------|
| x_i    | `x`           | n×d   | unit image features                                      |
| t_k    | `t`           | k×d   | unit text prototypes                                     |
| ŷ_i    | `log_y`       | n×k   | zero-shot probabilities, as logarithms                   |
| z_i    | `z`           | n×k   | assignments, rows on the simplex                         |
| μ_k    | `mu`          | k×d   | mean of class k                                          |
| Σ      | `var`         | d     | diagonal covariance, shared by all classes; starts at 1/d|
| T      | `temperature` |       | log p is divided by T                                    |
| G      | `graph`       | n×n   | affinities, λ/(2m)·(W + Wᵀ) of m neighbours              |

No term connects μ_k to t_k. This helps if every class has images. If few classes have images, the means of the absent
classes move to the little mass they have, and take images from the others.

Deviations
- from the paper: the means start at the text prototypes, as in the StatA paper; `start="confident"` is the paper's
  start.
- from the program of StatA's authors: a class without mass keeps its mean, and the variance is at least 1e-6/d (in the
  program both become NaN for small batches with many classes); neighbours exclude the image itself by index; Σ follows
  the equation for every n, not only up to 2,500 images (`released_variance` gives the program's value); n < 4 works;
  the method has no access to labels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ..arrays import unit
from ..progress import track
from .contract import IMPOSSIBLE, Batch, Traits
from .settings import setting
from .solve.em import Transductive, released_variance, z_step
from .solve.gaussian import Features, shared_variance
from .solve.graph import NeighbourGraph
from .solve.neighbours import Neighbours


@dataclass(frozen=True)
class Iterate:
    """The variables after the z-steps and the M-step of one iteration; the last one has no M-step."""

    z: Tensor  # n×k
    mu: Tensor | None = None  # k×d
    var: Tensor | None = None  # d


@dataclass(frozen=True)
class TransCLIP(Transductive):
    """TransCLIP; the defaults are those of the StatA paper's comparison."""

    name: ClassVar[str] = "transclip"
    traits: ClassVar[Traits] = Traits(paper="TransCLIP", year=2024, scope="batch", memory="none", known=True)

    start: Literal["text", "confident"] = setting("text", "means start at the prototypes or at confident images")
    confident: int = setting(8, 'images per class in the means of start="confident"', low=1, high=1000)
    temperature: float = setting(50.0, "log p is divided by this; ∞ is without log p", low=1e-3, high=math.inf)
    neighbours: int = setting(3, "m, neighbours per image", low=1, high=1000)
    laplacian: float = setting(1.0, "λ, weight of the graph", low=0, high=1e6)
    iterations: int = setting(
        10, "iterations of `z_steps` z-steps and an M-step; `z_steps` more follow", low=0, high=1000
    )
    z_steps: int = setting(5, "z-steps per iteration", low=1, high=100)
    released_variance: bool = setting(False, "Σ as in the program for n > 2500: divided once per chunk")

    @torch.no_grad()
    def iterate(self, batch: Batch, nearest: Neighbours | None = None) -> Iterator[Iterate]:
        """Run the solver, one iteration at a time. Do not write to the tensors it yields."""
        x, t, log_y = batch.features, batch.head.features, batch.log_zero_shot
        graph = self._graph(batch, nearest)
        features = Features.of(x)
        z = log_y.exp()
        mu = t if self.start == "text" else self._confident_means(batch)
        var = torch.full_like(x[0], 1 / x.shape[1])

        for _ in track(range(self.iterations), "TransCLIP"):
            z = self._assign(z, log_y, features.log_density(features.natural_shared(mu, var)), graph)
            mu = _means(z, x, mu)
            var = self._variance(x, mu, _noticeable(z))  # around the new means
            yield Iterate(z, mu, var)
        yield Iterate(self._assign(z, log_y, features.log_density(features.natural_shared(mu, var)), graph))

    def _variance(self, x: Tensor, mu: Tensor, z: Tensor) -> Tensor:
        return released_variance(x, mu, z) if self.released_variance else shared_variance(x, mu, z.__getitem__)

    def _assign(self, z: Tensor, log_y: Tensor, log_p: Tensor, graph: NeighbourGraph) -> Tensor:
        """z ← softmax_k( log ŷ + log p / T + G z ), `z_steps` times."""
        unary = torch.add(log_y, log_p, alpha=1 / self.temperature)
        for _ in range(self.z_steps):
            z = z_step(z, unary, graph)
        return z

    def _confident_means(self, batch: Batch) -> Tensor:
        """The paper's start: the mean of the most confident images of each class, scaled to unit norm, k×d.

        Without images that are known to be of another class; a class for which none are left starts at its prototype.
        """
        x, t = batch.features, batch.head.features
        log_y, images = batch.log_zero_shot.topk(min(self.confident, len(x)), dim=0)
        mu = torch.zeros_like(t)
        for rank, best in enumerate(images):  # one rank at a time, so that no array is larger than k×d
            mu += x[best] * (log_y[rank] > IMPOSSIBLE)[:, None]
        return torch.where((log_y[0] > IMPOSSIBLE)[:, None], unit(mu), t)


def _means(z: Tensor, x: Tensor, before: Tensor) -> Tensor:
    """μ_k = unit( Σ_i z_ik x_i / Σ_i z_ik ), k×d; a class without mass keeps its mean."""
    tiny = torch.finfo(z.dtype).tiny
    mass = z.sum(dim=0)[:, None]
    v = _noticeable(z.T / mass.clamp_min(tiny)) @ x
    return torch.where(mass > tiny, unit(v), before)


def _noticeable(z: Tensor) -> Tensor:
    """z with weights below 1e-30 set to 0: products with denormal numbers are many times slower."""
    return torch.where(z > 1e-30, z, 0)
