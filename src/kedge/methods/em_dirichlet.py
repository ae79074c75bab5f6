"""Hard EM-Dirichlet: cluster zero-shot probabilities with Dirichlet distributions, then match clusters to classes.

Martin, Huang, Shakeri, Pesquet, Ben Ayed, "Transductive Zero-Shot and Few-Shot CLIP", CVPR 2024.

The data are the rows s_i = softmax(30 x_i tᵀ), points on the simplex, instead of features. The method alternates
between hard assignments u_i to K clusters and the parameters A_k of the clusters' Dirichlet distributions, to minimise

    −Σ_ik u_ik log Dir(s_i | A_k) − λ Σ_k π_k log π_k,   π_k = mean_i u_ik

The second term, the partition complexity, favours few clusters. Starting from u = s, A = 1, each of 10 iterations does:

    A_k ← argmax_a Σ_i u_ik log Dir(s_i | a)              by majorise-minimise, see `fit_dirichlet`
    v_k = log π_k + 1
    u_i ← one-hot argmax_k log Dir(s_i | A_k) + (λ/n) v_k

At the end the Hungarian method matches clusters to classes, one to one, by the clusters' means of s.

| symbol | code        | shape | meaning                                                              |
|--------|-------------|-------|----------------------------------------------------------------------|
| s_i    | `log_s`     | n×K   | zero-shot probabilities at scale 30, as logarithms                   |
| u_i    | `u`         | n×K   | assignments: s at the start, then one-hot                            |
| A_k    | `alpha`     | K×K   | Dirichlet parameters of cluster k                                    |
| y_k    | `y`         | a×K   | mean of log s over cluster k; the fit needs nothing else             |
| λ/n    | `pressure`  |       | ⌊K/5⌋: weight of the partition complexity                            |

z is one-hot: the method gives labels, not probabilities. It assumes that the batch consists of few clusters. If many of
the K classes are present, λ is far too large, and most classes disappear.

All computation is in float64 and uses logarithms, because precision decides labels that are nearly tied. The fit needs
only K numbers per class, and runs on the CPU for every device.

Cost: much slower than StatA. A cluster of one image (or of identical images) has no optimal Dirichlet; its parameters
grow until the 1000 steps are used up, in each iteration. Measured on simulated features with K = 400, as multiples of
StatA's time: 90 for 64 images; for 1000 images 6 with 25 classes present, 70 with all.

Deviations
- from the paper: none known with the defaults. `EMDirichlet.released()` is what the program of StatA's authors runs,
  λ = 0 and no matching; the figures in the StatA paper agree with the defaults.
- known labels, beyond the paper: u_i is fixed to the known class, from the start on; s_i is what it is. A cluster with
  known images is matched to their class.
- from the programs: float64; classes whose fit has converged take no further steps; an empty cluster has v_k = −∞ if
  λ > 0, so it stays empty; only clusters with images are matched.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.special import digamma, gammaln
from torch import Tensor

from ..arrays import wide
from ..features.text_head import TextHead
from ..progress import track
from .contract import Batch, State, Step, Traits
from .settings import Configured, setting

Array = NDArray[np.float64]

TEST_EVERY = 50  # steps of the fit between two convergence tests
SMALL, STEEPEST = 1e-6, math.pi**2 / 6  # for a < SMALL, c is lost to rounding; use its limit at 0, the maximum
AT_REST = 1e-26  # relative squared step of a class that has converged up to rounding


@dataclass(frozen=True)
class Iterate:
    """The variables after one iteration."""

    clusters: Tensor  # n: the cluster of each image, before matching
    alpha: Tensor  # K×K


@dataclass(frozen=True)
class EMDirichlet(Configured):
    """Hard EM-Dirichlet; the defaults are its authors' settings."""

    name: ClassVar[str] = "em-dirichlet"
    traits: ClassVar[Traits] = Traits(
        paper="EM-Dirichlet", year=2024, scope="batch", memory="none", known=True, graded=False
    )

    scale: float = setting(30.0, "s = softmax(scale · x tᵀ)", low=1e-3, high=1e6)
    partition: float = setting(
        0.2, "λ = ⌊partition · K⌋ · n, weight of the partition complexity; 0 is off", low=0, high=1e6
    )
    matching: bool = setting(True, "match clusters to classes one to one at the end; else cluster k is class k")
    iterations: int = setting(10, "iterations", low=1, high=50)
    fit_steps: int = setting(1000, "maximum number of majorise-minimise steps of a fit", low=1, high=5000)
    fit_tol: float = setting(1e-11, "a fit stops when its relative squared step is below this", low=0, high=1.0)

    @classmethod
    def released(cls, **settings: Any) -> EMDirichlet:
        """The settings of the program of StatA's authors: λ = 0, no matching."""
        return cls(**{"partition": 0.0, "matching": False, **settings})

    def init(self, head: TextHead) -> State | None:
        """No state: each batch is solved separately."""
        return None

    def step(self, state: State | None, batch: Batch) -> Step:
        """Solve one batch."""
        before = last = None
        for iterate in self.iterate(batch):
            before, last = last, iterate
        assert last is not None
        clusters = last.clusters
        labels = match(clusters, self.log_s(batch).exp(), batch.labelled[1]) if self.matching else clusters
        info = {
            "iterations": self.iterations,
            "converged": before is not None and torch.equal(before.clusters, clusters),
            "clusters": int(clusters.bincount().count_nonzero()),
        }
        return Step(None, F.one_hot(labels, batch.head.k).to(batch.features.dtype), info)

    def log_s(self, batch: Batch) -> Tensor:
        """log softmax(scale · x tᵀ), n×K, in float64."""
        full = wide(batch.features)
        return torch.log_softmax(self.scale * (batch.features.to(full) @ batch.head.features.to(full).T), dim=1)

    @torch.no_grad()
    def iterate(self, batch: Batch) -> Iterator[Iterate]:
        """Run the solver, one iteration at a time. Do not write to the tensors it yields."""
        log_s = self.log_s(batch)
        n, k = log_s.shape
        pressure = math.floor(self.partition * k)  # λ/n
        images, classes = batch.labelled
        u = log_s.exp().index_copy(0, images, F.one_hot(classes, k).to(log_s.dtype))
        alpha = torch.ones(k, k, dtype=u.dtype, device=u.device)
        for _ in track(range(self.iterations), "EM-Dirichlet"):
            mass = u.sum(dim=0)
            active = mass.nonzero().squeeze(1)  # an empty cluster keeps its parameters
            y = (u.T @ log_s)[active] / mass[active, None]
            fitted = fit_dirichlet(alpha[active].cpu().numpy(), y.cpu().numpy(), self.fit_steps, self.fit_tol)
            alpha = alpha.index_copy(0, active, torch.from_numpy(fitted).to(alpha))
            score = log_dirichlet(log_s, alpha)
            if pressure:
                score += pressure * ((mass / n).log() + 1)  # (λ/n) v_k
            clusters = score.argmax(dim=1).index_copy(0, images, classes)
            u = F.one_hot(clusters, k).to(u.dtype)
            yield Iterate(clusters, alpha)


def log_dirichlet(log_s: Tensor, alpha: Tensor) -> Tensor:
    """log Dir(s_i | A_k), n×a, for log s (n×K) and parameters (a×K)."""
    constant = torch.lgamma(alpha.sum(dim=1)) - torch.lgamma(alpha).sum(dim=1)
    return torch.addmm(constant, log_s, (alpha - 1).T)


def fit_dirichlet(alpha: Array, y: Array, steps: int, tol: float) -> Array:
    """Maximum-likelihood Dirichlet parameters (a×K) for the means of log s in y (a×K), starting at `alpha`.

    Minimises Σ_j lnΓ(a_j) − lnΓ(Σ_j a_j) − Σ_j (a_j − 1) y_j for all classes in parallel. Every 50 steps it tests
    convergence for all classes together: the squared step, relative to the squared parameters.
    """
    result, size = alpha.copy(), np.zeros(len(alpha))
    rows = np.arange(len(alpha))  # the classes that have not converged, which `alpha` and `y` hold
    for step in range(1, steps + 1):
        before, alpha = alpha, minimise_majorant(alpha, y)
        if step % TEST_EVERY == 0:
            result[rows] = alpha
            moved, size[rows] = np.square(alpha - before).sum(axis=1), np.square(before).sum(axis=1)
            moving = moved > AT_REST * size[rows]
            if not moving.any() or moved.sum() < tol * size.sum():
                return result
            rows, alpha, y = rows[moving], alpha[moving], y[moving]
    result[rows] = alpha
    return result


def minimise_majorant(a: Array, y: Array) -> Array:
    """One majorise-minimise step, a×K.

    Write lnΓ(a) = lnΓ(a+1) − ln a. The parabola of curvature c that is tangent to lnΓ(a+1) at a, and equal to it at 0,
    is an upper bound; so is the tangent of −lnΓ(Σa). Their sum is separable, and its minimum is the positive root of
    c·a² + b·a − 1.
    """
    up = a + 1
    psi = digamma(up)
    c = 2 * (psi * a - gammaln(up)) / (a * a)  # |2(lnΓ(1) − lnΓ(a+1) + ψ(a+1)·a)/a²|, which is positive
    c = np.where(a > SMALL, c, STEEPEST)
    b = psi - digamma(a.sum(axis=1, keepdims=True)) - c * a - y
    root = np.sqrt(b * b + 4 * c)
    minimum: Array = np.where(b > 0, 2 / (b + root), (root - b) / (2 * c))  # the root without cancellation
    return minimum


def match(clusters: Tensor, s: Tensor, known: Tensor) -> Tensor:
    """Labels (n) for cluster numbers (n), by the one-to-one matching of clusters to classes with the largest sum.

    The weight of a cluster and class k is the cluster's mean of s_ik. Clusters without images are not matched.
    known: numbers of clusters that stay what they are, because they have images whose label is known.
    """
    used, cluster = clusters.unique(return_inverse=True)  # type: ignore[no-untyped-call]
    u = F.one_hot(cluster, len(used)).to(s.dtype)
    means = (u.T @ s) / u.sum(dim=0)[:, None]
    means[torch.searchsorted(used, known), known] = s.shape[1] + 1  # more than all others together
    _, classes = linear_sum_assignment(means.cpu().numpy(), maximize=True)
    return torch.from_numpy(classes).to(clusters.device)[cluster]
