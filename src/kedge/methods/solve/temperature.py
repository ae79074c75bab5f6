"""A temperature that makes probabilities honest without labels. Labels stay as they are.

A solver that looks at the whole batch is too sure, zero-shot is not sure enough. Halfway between the two is the best
estimate found without labels of how often they are right. So each image gets the ϑ_i from 1 to 50 with

    max_k softmax(L_i/ϑ_i) = c_i,     c_i = ½ ( max_k z_ik + max_k ŷ_ik )

where L are the solver's scores, z = softmax(L). It only lowers confidence. An image with a known label has ŷ = z = 1,
and stays certain.

With β = 1/ϑ and γ_k = L_ik − max_k L_ik, log Σ_k e^{β γ_k} = −log c_i. The left side is convex and falls with β, so
Newton's method climbs to the root from any β below it. It starts where the two best classes alone would be. Eight steps
are enough: c_i is met to 5e-4 where several classes are tied for the best, and to 3e-5 elsewhere.

A second-best class stays second: heat must not round a small γ to 0. So β γ is at most γ, or SMALL if γ is lower.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...arrays import row_blocks
from ..contract import Batch
from .compiling import compiled_form

COOLEST = 1 / 50  # β at least
FARTHEST = -1e4  # γ at least: e to a fiftieth of it is still 0
NEWTON_STEPS = 8
SMALL = -1e-6  # of float32's digits, e to this is still less than 1


def tempered(scores: Tensor, z: Tensor, batch: Batch, *, compiled: bool = True) -> tuple[Tensor, float]:
    """softmax(L_i/ϑ_i) (n×k), and the mean of ϑ; for scores L with z = softmax(L). compiled: if possible."""
    return tempered_towards(batch.log_zero_shot.amax(dim=1).exp_(), scores, z, compiled=compiled)


def tempered_towards(confidence: Tensor, scores: Tensor, z: Tensor, *, compiled: bool = True) -> tuple[Tensor, float]:
    """The same for max_k ŷ_ik in `confidence` (n), where L and z (n×C) may leave out classes of no probability."""
    sure = z.amax(dim=1)
    target = torch.minimum(0.5 * (sure + confidence), sure)
    if fast := compiled_form("compiled", scores) if compiled else None:
        cooled, cooling = fast.tempered(scores, target, COOLEST, FARTHEST, SMALL, NEWTON_STEPS)
    else:
        cooled, cooling = torch.empty_like(z), torch.empty_like(sure)
        for rows in row_blocks((len(z), 4 * z.shape[1])):
            cooled[rows], cooling[rows] = _tempered(scores[rows], target[rows])
    heat = torch.where(target < sure, cooling.reciprocal(), 1.0)  # a certain image has no temperature of its own
    return cooled, float(heat.mean())


def _tempered(scores: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """softmax(β_i L_i) (n×k) and β (n) for scores (n×k) and c (n)."""
    best = scores.topk(min(2, scores.shape[1]), dim=1).values
    gaps, second = (scores - best[:, :1]).clamp_min_(FARTHEST), best[:, -1] - best[:, 0]
    least = torch.finfo(scores.dtype).tiny
    beta = ((1 / target - 1).clamp_min(least).log() / second.clamp_max(-least)).clamp(COOLEST, 1.0)
    for _ in range(NEWTON_STEPS):
        weights = (beta[:, None] * gaps).exp_()
        total = weights.sum(dim=1)
        slope = (weights.mul_(gaps).sum(dim=1) / total).clamp_max(-least)
        beta = (beta - (total.log() + target.log()) / slope).clamp_(COOLEST, 1.0)
    return torch.softmax(torch.minimum(beta[:, None] * gaps, gaps.clamp_min_(SMALL)), dim=1), beta
