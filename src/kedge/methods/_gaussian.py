"""Gaussians with diagonal covariance, by matrix products. Never an n×k×d array.

Densities and variances do not change when features and means are shifted together, so `Features` holds the features
centred on their mean: squares stay small and float32 keeps its digits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..arrays import wide

VARIANCE_FLOOR = 1e-6  # of 1/d, the variance of a unit vector's coordinate: only collapsed classes touch it


@dataclass(frozen=True)
class Features:
    """n×d features, centred, with their squares."""

    centre: Tensor  # d
    x: Tensor  # n×d, minus centre
    x2: Tensor  # n×d, squared

    @classmethod
    def of(cls, x: Tensor) -> Features:
        """Centre x and square it, once."""
        centre = x.mean(dim=0)
        centred = x - centre
        return cls(centre, centred, centred.square())

    def log_density(self, mu: Tensor, var: Tensor, reference: Tensor) -> Tensor:
        """log N(x_i; μ_k, σ²_k) − log N(x_i; centre, reference), n×k; `var` is k×d or, shared by all classes, d.

        −½ Σ_d (x − μ)²/σ² − ½ Σ_d log σ², the square multiplied out into two products. What an image has in common for
        all classes is taken off before it can cost digits; a softmax over classes does not see it.
        """
        mu = mu - self.centre
        scaled = mu / var
        linear = self.x @ scaled.T
        constant = 0.5 * ((mu * scaled).sum(dim=1) + (var / reference).log().sum(dim=-1))
        if var is reference:
            return linear.sub_(constant)
        quadratic = self.x2 @ torch.atleast_2d(0.5 / var - 0.5 / reference).T  # n×k, or n×1
        return linear.sub_(quadratic).sub_(constant)

    def class_means(self, z: Tensor, mass: Tensor) -> Tensor:
        """v_k = Σ_i z_ik x_i / Σ_i z_ik, k×d; `mass` is Σ_i z_ik, kept from 0."""
        return z.T @ self.x / mass[:, None] + self.centre

    def class_variances(self, z: Tensor, mass: Tensor, v: Tensor, mu: Tensor) -> Tensor:
        """T_k = Σ_i z_ik (x_i − μ_k)² / Σ_i z_ik, k×d: the variance around v_k, plus (v_k − μ_k)²."""
        around_mean = z.T @ self.x2 / mass[:, None] - (v - self.centre).square()
        return around_mean.clamp_min_(0).add_((v - mu).square())

    def shared_variance(self, y: Tensor, mu: Tensor) -> Tensor:
        """Σ_ik y_ik (x_i − μ_k)² / n, d, for y with rows on the simplex; summed in float64."""
        mu = mu - self.centre
        full = wide(self.x)
        squares = self.x2.sum(dim=0, dtype=full)
        cross = (self.x * (y @ mu)).sum(dim=0, dtype=full)
        anchors = y.sum(dim=0, dtype=full) @ mu.to(full).square()
        return floored(((squares - 2 * cross + anchors) / len(self.x)).to(self.x.dtype))


def floored(var: Tensor) -> Tensor:
    """Keep variances off zero: a class of identical images has none, and would divide by it."""
    return var.clamp_min(VARIANCE_FLOOR / var.shape[-1])


def anchor_divergence(mu0: Tensor, var0: Tensor, mu: Tensor, var: Tensor) -> Tensor:
    """KL(N(μ'_k, Σ') ‖ N(μ_k, Σ_k)) per class, k: Eq. kl-anchor for diagonal covariances."""
    return 0.5 * (((mu0 - mu).square() + var0) / var + torch.log(var / var0) - 1).sum(dim=1)
