"""StatA once more, plainly: the independent reference that `kedge.StatA` is tested against.

Written from the method's description alone and in its direct form: every distance (x_id − μ_kd)² is an entry
of one n×k×d array, every class takes part in every step, and the graph is an n×n matrix. None of kedge's
rearrangements (matrix products for the distances, active classes, sparse neighbours) is used, so an error in
one of them shows as a difference. It computes in the dtype of its inputs: float64 is the oracle of the
tests, float32 the plain baseline of the benchmarks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize


@dataclass
class Trace:
    """What was computed: `z`, `log_p` after the z-steps, `beta`, `mu`, `var` after the M-step after them."""

    var0: Tensor
    graph: Tensor
    z: list[Tensor] = field(default_factory=list)
    log_p: list[Tensor] = field(default_factory=list)
    beta: list[Tensor] = field(default_factory=list)
    mu: list[Tensor] = field(default_factory=list)
    var: list[Tensor] = field(default_factory=list)


def nearest(x: Tensor, neighbours: int) -> Tensor:
    """W: the cosine of each row to its nearest other rows, zero elsewhere. n×n, directed."""
    cosine = x @ x.T
    cosine.fill_diagonal_(-torch.inf)
    value, index = cosine.topk(min(neighbours, len(x) - 1), dim=1)
    return torch.zeros_like(cosine).scatter_(1, index, value)


def log_density(x: Tensor, mu: Tensor, var: Tensor) -> Tensor:
    """log p_ik without −d/2·log 2π, which the softmax over classes does not see. n×k."""
    return -0.5 * ((x[:, None, :] - mu[None, :, :]).square() / var).sum(dim=2) - 0.5 * var.log().sum(dim=1)


def stata(
    x: Tensor,
    t: Tensor,
    *,
    logit_scale: float = 100.0,
    alpha: float = 1.0,
    beta: Literal["hard", "soft"] = "hard",
    temperature: float = 50.0,
    graph: Literal["neighbours", "dense"] = "neighbours",
    neighbours: int = 3,
    laplacian: float = 1.0,
    unit_means: bool = True,
    iterations: int = 10,
    z_steps: int = 5,
) -> Trace:
    """Solve one batch: unit rows `x` (n×d) against unit prototypes `t` (k×d).

    Neighbour graph: the z-step adds λ/(2m)·(W + Wᵀ)z. Dense graph: λ·Wz, with w_ij = x_i·x_j for all pairs.
    """
    n = len(x)
    log_y = (logit_scale * x @ t.T).log_softmax(dim=1)
    if graph == "neighbours":
        w = nearest(x, neighbours)
        pull = laplacian / (2 * neighbours) * (w + w.T)
    else:
        w = x @ x.T
        pull = laplacian * w

    z = log_y.exp()
    mu = t
    var0 = (z[:, :, None] * (x[:, None, :] - t[None, :, :]).square()).sum(dim=(0, 1)) / n
    var = var0.expand_as(t)
    trace = Trace(var0, w)

    for iteration in range(iterations + 1):
        log_p = log_density(x, mu, var)
        for _ in range(z_steps):
            z = (log_y + log_p / temperature + pull @ z).softmax(dim=1)
        trace.z.append(z)
        trace.log_p.append(log_p)
        if iteration == iterations:
            break

        mass = z.sum(dim=0)
        count = mass if beta == "soft" else torch.bincount(z.argmax(dim=1), minlength=len(t)).to(x.dtype)
        share = count / (count + alpha) if alpha > 0 else (count > 0).to(x.dtype)
        # A class that lost all its mass has share 0: any finite v_k and T_k will do.
        mass = mass.clamp_min(torch.finfo(x.dtype).tiny)
        v = (z.T @ x) / mass[:, None]
        s = share[:, None]
        mu = s * normalize(v) + (1 - s) * t if unit_means else s * v + (1 - s) * t
        if unit_means:
            mu = normalize(mu)
        spread = (z[:, :, None] * (x[:, None, :] - mu[None, :, :]).square()).sum(dim=0) / mass[:, None]
        var = s * spread + (1 - s) * (var0 + (t - mu).square())
        trace.beta.append(share)
        trace.mu.append(mu)
        trace.var.append(var)
    return trace
