"""Gaussians with diagonal covariance, by matrix products. Never an n×k×d array.

A diagonal Gaussian is an exponential family: its log density is linear in φ(x) = [x, x²], so likelihoods are φ ηᵀ and
class statistics are zᵀ φ, one matrix product each. Densities and variances do not change when features and means are
shifted together, so φ is taken of the features minus their mean: squares stay small and float32 keeps its digits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...arrays import row_blocks, unit, wide
from ..contract import Batch

SUM_BLOCK = 128  # classes summed in float32 before the sum goes on in float64
VARIANCE_FLOOR = 1e-6  # of 1/d, the variance of a unit vector's coordinate: only collapsed classes touch it


@dataclass(frozen=True)
class Features:
    """n×d features as φ = [x − centre, (x − centre)²]."""

    centre: Tensor  # d
    phi: Tensor  # n×2d, for statistics
    phi_t: Tensor  # 2d×n, for likelihoods: a product with few classes is twice as fast on rows of this

    @classmethod
    def of(cls, x: Tensor) -> Features:
        """Centre and square x, once."""
        centre = x.mean(dim=0)
        centred = x - centre
        phi = torch.cat([centred, centred * centred], dim=1)
        return cls(centre, phi, phi.T.contiguous())

    def __getitem__(self, rows: slice) -> Features:
        return Features(self.centre, self.phi[rows], self.phi_t[:, rows])

    def log_density(self, mu: Tensor, var: Tensor, reference: Tensor) -> Tensor:
        """log N(x_i; μ_k, σ²_k) − log N(x_i; centre, reference), n×k, for μ and σ² of k×d.

        −½ Σ_d (x − μ)²/σ² − ½ Σ_d log σ², multiplied out. Against a `reference` variance (d), so that what an image has
        in common for all classes costs no digits; a softmax over classes does not see it.
        """
        mu = mu - self.centre
        precision = var.reciprocal()
        scaled = mu * precision
        eta = torch.cat([scaled, torch.sub(0.5 / reference, precision, alpha=0.5)], dim=1)
        constant = (mu * scaled).sum(dim=1) + (var / reference).log_().sum(dim=1)
        return (eta @ self.phi_t).sub_(constant[:, None], alpha=0.5).T

    def log_density_shared(self, mu: Tensor, var: Tensor) -> Tensor:
        """`log_density` for one variance (d) shared by all classes, which is its own reference: half the work."""
        mu = mu - self.centre
        scaled = mu / var
        return (self.phi[:, : len(var)] @ scaled.T).sub_((mu * scaled).sum(dim=1), alpha=0.5)

    def moments(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Σ_i z_ik (x_i − centre) / Σ_i z_ik and the same of (x_i − centre)², both k×d. No mass gives 0, not NaN."""
        mass = z.sum(dim=0).clamp_min_(torch.finfo(z.dtype).tiny)
        first, second = ((z / mass).T @ self.phi).chunk(2, dim=1)
        return first, second

    def scatter(self, moments: tuple[Tensor, Tensor], mu: Tensor) -> Tensor:
        """T_k = Σ_i z_ik (x_i − μ_k)² / Σ_i z_ik, k×d, from the moments; rounding may leave it just below 0."""
        first, second = moments
        shift = mu - self.centre
        return torch.addcmul(second, shift, torch.sub(shift, first, alpha=2))

    def shared_variance(self, y: Tensor, mu: Tensor) -> Tensor:
        """Σ_ik y_ik (x_i − μ_k)² / n, d, for y with rows on the simplex."""
        x, x2 = self.phi.chunk(2, dim=1)
        return floored((_total_squares(x, x2, y, mu - self.centre) / len(x)).to(mu.dtype))


def anchored_fit(
    features: Features,
    moments: tuple[Tensor, Tensor],
    counts: Tensor,
    t: Tensor,
    var0: Tensor,
    alpha: float,
    unit_means: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """StatA's M-step: β (a), μ and Σ (a×d) of classes with n_k in `counts` (a), anchored on N(t_k, Σ'), t a×d."""
    beta = counts / (counts + alpha)  # Eq. hard_beta_k
    b = beta[:, None]
    v = moments[0] + features.centre  # Σ_i z_ik x_i / Σ_i z_ik
    mu = torch.lerp(t, unit(v) if unit_means else v, b)  # β v + (1 − β) t, Eq. regularized-updates
    mu = unit(mu) if unit_means else mu
    away = t - mu
    scatter = features.scatter(moments, mu)  # T_k, around the new mean
    return beta, mu, floored(torch.lerp(torch.addcmul(var0, away, away), scatter, b))  # Eq. regularized-updates


def shared_variance(x: Tensor, t: Tensor, log_y: Tensor) -> Tensor:
    """Σ_ik ŷ_ik (x_i − t_k)² / n, d, in blocks of rows."""
    centre = x.mean(dim=0)
    total = torch.zeros_like(centre, dtype=wide(x))
    for rows in row_blocks((len(x), len(centre) + len(t))):
        block = x[rows] - centre
        total += _total_squares(block, block * block, log_y[rows].exp(), t - centre)
    return floored((total / len(x)).to(x.dtype))


def _total_squares(x: Tensor, x2: Tensor, y: Tensor, mu: Tensor) -> Tensor:
    """Σ_ik y_ik (x_i − μ_k)², d, for x and its squares (n×d); long sums in float64."""
    full = wide(mu)
    total = torch.addcmul(x2, x, y @ mu, value=-2).sum(dim=0, dtype=full)
    mass, mu2 = y.sum(dim=0), mu * mu
    for start in range(0, len(mu), SUM_BLOCK):
        block = slice(start, start + SUM_BLOCK)
        total += mass[block] @ mu2[block]
    return total


def text_distances(x: Tensor, t: Tensor, log_y: Tensor) -> Tensor:
    """a_i = x_i² − 2 x_i Σ_k ŷ_ik t_k, n×d: what Σ' of any of these images needs beside the mean of ŷ."""
    out = torch.empty_like(x)
    for rows in row_blocks((len(x), 8, x.shape[1] + len(t))):  # an eighth of what memory allows: it stays in the cache
        block = x[rows]
        torch.mul(block, torch.addmm(block, log_y[rows].exp(), t, alpha=-2), out=out[rows])
    return out


def anchor_variance(batch: Batch) -> Tensor:
    """Σ' = Σ_ik ŷ_ik (x_i − t_k)² / n, d: one variance for the text prototypes as means."""
    t, log_y, table = batch.head.features, batch.log_zero_shot, batch.tables.get("text_distances")
    if table is None:
        return shared_variance(batch.features, t, log_y)
    return floored(table.mean(dim=0) + log_y.exp().mean(dim=0) @ t.square())


def floored(var: Tensor) -> Tensor:
    """Keep variances off zero: a class of identical images has none, and would divide by it."""
    return var.clamp_min(VARIANCE_FLOOR / var.shape[-1])


def anchor_divergence(mu0: Tensor, var0: Tensor, mu: Tensor, var: Tensor) -> Tensor:
    """KL(N(μ'_k, Σ') ‖ N(μ_k, Σ_k)) per class, k: Eq. kl-anchor for diagonal covariances."""
    return 0.5 * (((mu0 - mu).square() + var0) / var + torch.log(var / var0) - 1).sum(dim=1)
