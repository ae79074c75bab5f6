"""Gaussians of one full covariance shared by all classes: their log densities are linear in x. OGA, ADAPT, DOTA."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...errors import InputError

NO_SPREAD = 1e-9  # tr(S) of unit features below this is rounding error


class Discriminant(NamedTuple):
    """log N(x; μ_k, P⁻¹) = x·Pμ_k − ½ μ_k·Pμ_k + a term equal for all classes."""

    weights: Tensor  # Pμ, k×d
    offsets: Tensor  # ½ μ·Pμ, k

    @classmethod
    def of(cls, mu: Tensor, covariance: Tensor) -> Discriminant:
        """From means (k×d) and P⁻¹ (d×d); raises InputError unless that is positive definite."""
        factor, failed = torch.linalg.cholesky_ex(covariance)
        if failed:
            raise InputError(
                "the covariance is not positive definite: the state of the stream is damaged, or a setting is extreme. "
                "Start a new stream, with settings nearer to the defaults."
            )
        return cls.with_weights(mu, torch.cholesky_solve(mu.T, factor).T)

    @classmethod
    def with_weights(cls, mu: Tensor, weights: Tensor) -> Discriminant:
        """From means and Pμ, both k×d."""
        return cls(weights, 0.5 * (mu * weights).sum(dim=1))

    def log_density(self, x: Tensor) -> Tensor:
        """x·Pμ_k − ½ μ_k·Pμ_k: n×k for images of n×d, k for one image (d)."""
        return x @ self.weights.T - self.offsets


def ridge(scatter: Tensor, m: int) -> Tensor | None:
    """((m − 1) S + tr(S) I)/d, d×d, for (m − 1) S of m images: the inverse of P = d ((m − 1) S + tr(S) I)⁻¹.

    None if there is no spread: m < 2, or tr(S) = 0.
    """
    trace = float(scatter.trace()) / (m - 1) if m > 1 else 0.0
    if trace < NO_SPREAD:
        return None
    d = len(scatter)
    covariance = scatter / d
    covariance.diagonal().add_(trace / d)
    return covariance
