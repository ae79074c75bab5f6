"""MOON: a von Mises–Fisher distribution per class, with a stronger anchor for classes that seem absent.

MOON, ICML 2026, the successor of StatA. The z-step is StatA's, with one z-step per iteration. The anchor weight α_k is
large if zero-shot finds little of class k in the batch. The weight g_i of an image is small if z_i is uncertain:

    λ_k = √( mean_i ŷ_ik · max_i ŷ_ik ), divided by its maximum over classes;   α_k = 1/λ_k

    log p_ik = κ_k μ_k·x_i + ((d−1)/2) log κ_k − κ_k
    z   ← softmax_k( log ŷ + log p / T + G z )
    g_i = 1 − H(z_i)/log K
    v_k = Σ_i g_i z_ik x_i / Σ_i g_i z_ik
    β_k = n_k/(n_k + α_k),  n_k hard counts
    q_k = β_k v_k + (1 − β_k) t_k,  μ_k = q_k/‖q_k‖,  κ_k = min( K(‖q_k‖), 500 ),  K(r) = (d r − r³)/(1 − r²)

starting from z = ŷ, μ = t, κ_k = K( Σ_i z_ik x_i·t_k / Σ_i z_ik ). A z-step follows the last iteration.

| symbol   | code            | shape | meaning                                                        |
|----------|-----------------|-------|----------------------------------------------------------------|
| x_i, t_k | `x`, `t`        | n×d, k×d | unit image features, unit text prototypes                   |
| ŷ_i, z_i | `log_y`, `z`    | n×k   | zero-shot probabilities, as logarithms; assignments            |
| α_k      | `alpha`         | k     | anchor weight of class k, ≥ 1; computed once from ŷ            |
| g_i      | `g`             | n     | weight of image i in the means                                 |
| β_k      | `beta`          | k     | weight of the batch against the anchor for class k             |
| μ_k, κ_k | `mu`, `kappa`   | k×d, k | mean direction and concentration of class k                   |
| T        | `temperature`   |       | log p is divided by T                                          |
| G        | `graph`         | n×n   | affinities, λ/(2m)·(W + Wᵀ) of m neighbours                    |

A class without images has β_k = 0, so μ_k = t_k and κ_k is at its bound. As in StatA, only active classes are updated.

The normaliser in log p is an approximation for κ ≫ d, and poor at the concentrations of CLIP features. It is kept as
published, for comparison. So are the hard counts, which do not use the weights g.

Deviations
- from the authors' program: κ is at least 1e-30 (a class that points away from its images has K(r) = 0, and log 0);
  g is at least the machine precision (if all images are uncertain, they have equal weights; the program has 0/0), and 1
  for a single class; neighbours exclude the image itself by index, not by dropping the best match; n < 4 works.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..arrays import unit
from ..progress import track
from .contract import Batch, Traits
from .settings import setting
from .solve.em import Transductive, active_classes, hard_counts, z_step
from .solve.neighbours import Neighbours

R_MAX = 0.999  # K(r) → ∞ as r → 1
KAPPA_MIN = 1e-30  # instead of 0, so that log κ is finite


@dataclass(frozen=True)
class Iterate:
    """The variables after the z-step and the M-step of one iteration; the last one has only z."""

    z: Tensor  # n×k
    active: Tensor | None = None  # a: the classes that were updated; all others equal their anchors
    beta: Tensor | None = None  # a
    mu: Tensor | None = None  # a×d
    kappa: Tensor | None = None  # a


@dataclass(frozen=True)
class Moon(Transductive):
    """MOON; the defaults are the published settings."""

    name: ClassVar[str] = "moon"
    traits: ClassVar[Traits] = Traits(paper="MOON", year=2026, scope="batch", memory="none", known=True)

    temperature: float = setting(50.0, "log p is divided by this; ∞ is without log p", low=1e-3, high=math.inf)
    neighbours: int = setting(3, "m, neighbours per image", low=1, high=1000)
    laplacian: float = setting(1.0, "λ, weight of the graph", low=0, high=1e6)
    kappa_max: float = setting(500.0, "bound on κ after the start", low=1e-6, high=1e6)
    iterations: int = setting(10, "iterations of a z-step and an M-step; one more z-step follows", low=0, high=1000)

    @torch.no_grad()
    def iterate(self, batch: Batch, nearest: Neighbours | None = None) -> Iterator[Iterate]:
        """Run the solver, one iteration at a time. Do not write to the tensors it yields."""
        x, t, log_y = batch.features, batch.head.features, batch.log_zero_shot
        d = x.shape[1]
        graph = self._graph(batch, nearest)
        z = log_y.exp()
        alpha = anchor_weights(z)
        cosine = x @ t.T
        kappa = concentration((z * cosine).sum(dim=0) / z.sum(dim=0).clamp_min_(torch.finfo(z.dtype).tiny), d)
        unary = log_y + log_density(cosine, kappa, d) / self.temperature
        # From the first M-step on, a class without images has q_k = t_k.
        length = torch.linalg.vector_norm(t, dim=1)
        kappa = concentration(length, d).clamp_max_(self.kappa_max)
        anchored = log_y + log_density(cosine / length, kappa, d) / self.temperature

        for _ in track(range(self.iterations), "MOON"):
            z = z_step(z, unary, graph)

            # M-step, for the active classes
            active, n_a = active_classes(hard_counts(z))
            weight = decidedness(z)[:, None] * z.index_select(1, active)  # g_i z_ik
            v = (weight.T @ x) / weight.sum(dim=0)[:, None]
            beta = n_a / (n_a + alpha.index_select(0, active))
            q = torch.lerp(t.index_select(0, active), v, beta[:, None])
            mu, kappa = unit(q), concentration(torch.linalg.vector_norm(q, dim=1), d).clamp_max_(self.kappa_max)
            updated = log_y.index_select(1, active) + log_density(x @ mu.T, kappa, d) / self.temperature
            unary = anchored.index_copy(1, active, updated)
            yield Iterate(z, active, beta, mu, kappa)

        yield Iterate(z_step(z, unary, graph))


def anchor_weights(y: Tensor) -> Tensor:
    """α_k = 1/λ_k, k, for zero-shot probabilities (n×k); ∞ for a class with probability 0 everywhere."""
    presence = (y.mean(dim=0) * y.amax(dim=0)).sqrt_()  # λ_k, not yet divided by its maximum
    alpha: Tensor = presence.max() / presence
    return alpha


def decidedness(z: Tensor) -> Tensor:
    """g_i = 1 − H(z_i)/log K, n: 1 for a one-hot row, slightly above 0 for a uniform row."""
    negative_entropy = torch.special.xlogy(z, z).sum(dim=1)
    most = math.log(z.shape[1]) or 1.0  # a single class has entropy 0
    g: Tensor = negative_entropy / most + 1
    return g.clamp_min_(torch.finfo(z.dtype).eps)


def concentration(r: Tensor, d: int) -> Tensor:
    """K(r) = (d r − r³)/(1 − r²): approximates the κ for which d-dimensional unit vectors have a mean of length r."""
    r = r.clamp(0, R_MAX)
    return ((d - r * r) * r / (1 - r * r)).clamp_min_(KAPPA_MIN)


def log_density(cosine: Tensor, kappa: Tensor, d: int) -> Tensor:
    """κ_k μ_k·x_i + ((d−1)/2) log κ_k − κ_k, n×k, for μ_k·x_i in `cosine`, without the constant."""
    return (cosine - 1) * kappa + (d - 1) / 2 * kappa.log()
