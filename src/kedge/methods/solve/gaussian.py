"""Gaussians with diagonal covariance, by matrix products. Never an n×k×d array.

A diagonal Gaussian is an exponential family: its log density is linear in φ(x) = [x, x²], so likelihoods are φ ηᵀ and
class statistics are zᵀ φ, one matrix product each. Densities and variances do not change when features and means are
shifted together, so φ is taken of the features minus their mean: squares stay small and float32 keeps its digits.

φ is twice as large as x. Of few images it is made once; of many it is made block by block, whenever it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ...arrays import Stacked, row_blocks, unit, wide
from ..contract import Batch

SUM_BLOCK = 128  # classes summed in float32 before the sum goes on in float64
VARIANCE_FLOOR = 1e-6  # of 1/d, the variance of a unit vector's coordinate: only collapsed classes touch it


class Natural(NamedTuple):
    """Natural parameters of k Gaussians: log N(x_i; μ_k, σ²_k) = φ_i·η_k − constant_k, but for what classes share."""

    eta: Tensor  # k×2d, or k×d if all have the reference's variance
    constant: Tensor  # k


class Block(NamedTuple):
    """Some images: which they are, and their φ."""

    rows: slice
    phi: Tensor  # rows×2d, for statistics
    phi_t: Tensor  # 2d×rows, for likelihoods

    def log_density(self, of: Natural) -> Tensor:
        """φ ηᵀ − constant, rows×k."""
        return (of.eta @ self.phi_t[: of.eta.shape[1]]).sub_(of.constant[:, None]).T


@dataclass(frozen=True)
class Features:
    """n×d features as φ = [x − centre, (x − centre)²], in blocks of rows."""

    x: Tensor | Stacked  # n×d
    centre: Tensor  # d
    rows: list[slice]
    only: Block | None  # if there is just one, it is kept

    @classmethod
    def of(cls, x: Tensor, width: int = 0) -> Features:
        """φ of x (n×d). width: further entries per row that the caller holds, for the size of a block."""
        rows, centre = row_blocks((len(x), 2 * x.shape[1] + width)), x.mean(dim=0)
        features = cls(x, centre, rows, None)
        if len(rows) > 1:
            return features
        block = features._block(rows[0])
        return cls(x, centre, rows, block._replace(phi_t=block.phi_t.contiguous()))  # twice as fast with few classes

    def _block(self, rows: slice) -> Block:
        centred = self.x[rows] - self.centre
        phi = torch.cat([centred, centred * centred], dim=1)
        return Block(rows, phi, phi.T)

    def blocks(self) -> Iterator[Block]:
        """All images, block by block."""
        return iter([self.only]) if self.only else map(self._block, self.rows)

    def natural(self, mu: Tensor, var: Tensor, reference: Tensor) -> Natural:
        """−½ Σ_d (x − μ)²/σ² − ½ Σ_d log σ², multiplied out, for μ and σ² of k×d.

        Less the same of N(centre, reference), a variance (d), so that what an image has in common for all classes costs
        no digits; a softmax over classes does not see it.
        """
        mu = mu - self.centre
        precision = var.reciprocal()
        scaled = mu * precision
        eta = torch.cat([scaled, torch.sub(0.5 / reference, precision, alpha=0.5)], dim=1)
        return Natural(eta, 0.5 * ((mu * scaled).sum(dim=1) + (var / reference).log_().sum(dim=1)))

    def natural_shared(self, mu: Tensor, var: Tensor) -> Natural:
        """The same for one variance (d) shared by all classes, which is its own reference: half the work."""
        mu = mu - self.centre
        scaled = mu / var
        return Natural(scaled, 0.5 * (mu * scaled).sum(dim=1))

    def log_density(self, of: Natural) -> Tensor:
        """log N(x_i; μ_k, σ²_k), n×k, but for what all classes share."""
        if self.only:
            return self.only.log_density(of)
        out = of.eta.new_empty(len(self.x), len(of.eta))
        for block in self.blocks():
            out[block.rows] = block.log_density(of)
        return out

    def moments(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Σ_i z_ik (x_i − centre) / Σ_i z_ik and the same of (x_i − centre)², both k×d. No mass gives 0, not NaN."""
        total = sum(z[block.rows].T @ block.phi for block in self.blocks())
        first, second = (total / z.sum(dim=0).clamp_min_(torch.finfo(z.dtype).tiny)[:, None]).chunk(2, dim=1)
        return first, second


def scatter(centre: Tensor, moments: tuple[Tensor, Tensor], mu: Tensor) -> Tensor:
    """T_k = Σ_i z_ik (x_i − μ_k)² / Σ_i z_ik, k×d, from moments around the centre; rounding may leave it below 0."""
    first, second = moments
    shift = mu - centre
    return torch.addcmul(second, shift, torch.sub(shift, first, alpha=2))


def anchored_fit(
    centre: Tensor,
    moments: tuple[Tensor, Tensor],
    counts: Tensor,
    t: Tensor,
    var0: Tensor,
    alpha: float,
    unit_means: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """StatA's M-step: β (a), μ and Σ (a×d) of classes with n_k in `counts` (a), anchored on N(t_k, Σ'), t a×d.

    Moments are a×d each, around the centre.
    """
    beta = counts / (counts + alpha)  # Eq. hard_beta_k
    b = beta[:, None]
    v = moments[0] + centre  # Σ_i z_ik x_i / Σ_i z_ik
    mu = torch.lerp(t, unit(v) if unit_means else v, b)  # β v + (1 − β) t, Eq. regularized-updates
    mu = unit(mu) if unit_means else mu
    away = t - mu
    around = scatter(centre, moments, mu)  # T_k, around the new mean
    return beta, mu, floored(torch.lerp(torch.addcmul(var0, away, away), around, b))  # Eq. regularized-updates


def shared_variance(x: Tensor, mu: Tensor, y: Callable[[slice], Tensor]) -> Tensor:
    """Σ_ik y_ik (x_i − μ_k)² / n, d, in blocks of rows; y gives those of some rows (rows×k, rows on the simplex).

    Long sums are in float64.
    """
    centre = x.mean(dim=0)
    total = torch.zeros_like(centre, dtype=wide(x))
    for rows in row_blocks((len(x), 2 * len(centre) + len(mu))):
        total += spread(x[rows] - centre, mu - centre, y(rows))
    return floored((total / len(x)).to(x.dtype))


def spread(x: Tensor, mu: Tensor, y: Tensor) -> Tensor:
    """Σ_ik y_ik (x_i − μ_k)², d, of a block of rows x (r×d), for y of r×k."""
    total = torch.addcmul(x * x, x, y @ mu, value=-2).sum(dim=0, dtype=wide(x))
    mass, square = y.sum(dim=0), mu * mu
    for start in range(0, len(mu), SUM_BLOCK):
        classes = slice(start, start + SUM_BLOCK)
        total += mass[classes] @ square[classes]
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
    head, log_y, table = batch.head, batch.log_zero_shot, batch.tables.get("text_distances")
    if table is None:
        return shared_variance(batch.features, head.features, lambda rows: log_y[rows].exp())
    return floored(table.mean(dim=0) + log_y.exp().mean(dim=0) @ head.squares)


def floored(var: Tensor) -> Tensor:
    """Keep variances off zero: a class of identical images has none, and would divide by it."""
    return var.clamp_min(VARIANCE_FLOOR / var.shape[-1])


def anchor_divergence(mu0: Tensor, var0: Tensor, mu: Tensor, var: Tensor) -> Tensor:
    """KL(N(μ'_k, Σ') ‖ N(μ_k, Σ_k)) per class, k: Eq. kl-anchor for diagonal covariances."""
    return 0.5 * (((mu0 - mu).square() + var0) / var + torch.log(var / var0) - 1).sum(dim=1)
