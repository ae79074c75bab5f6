"""A temperature that makes probabilities honest without labels. Labels stay as they are.

A solver that looks at the whole batch is too sure, zero-shot is not sure enough. Halfway between the two mean
confidences is the best estimate of accuracy found without labels. Find ϑ ≥ 1 with

    mean_i max_k softmax(L_i/ϑ) = ½ ( mean_i max_k z_ik + mean_i max_k ŷ_ik )

where L are the solver's scores, z = softmax(L). It only lowers confidence. One ϑ is fitted per batch: probabilities of
batches with different classes are not comparable to the last digit.
"""

from __future__ import annotations

import math

import torch
from scipy.optimize import brentq
from torch import Tensor

from ..contract import Batch
from .compiling import compiled_form

HOTTEST = 50.0  # ϑ at most
DIGITS = 1e-3  # of log ϑ


def tempered(scores: Tensor, z: Tensor, batch: Batch) -> tuple[Tensor, float]:
    """softmax(L/ϑ) (n×k) and ϑ, for scores L with z = softmax(L).

    Images whose label is known have no part in ϑ, and stay as they are.
    """
    logits, log_y, free = scores, batch.log_zero_shot, None
    if batch.known is not None:
        free = (batch.known < 0).nonzero().squeeze(1)
        logits, log_y = logits.index_select(0, free), log_y.index_select(0, free)
    if len(logits) < 2:
        return z, 1.0
    gaps = logits - logits.amax(dim=1, keepdim=True)
    heat = _heat(gaps, float(log_y.amax(dim=1).exp_().mean()))
    if heat == 1:
        return z, 1.0
    cooled = torch.softmax(gaps / heat, dim=1)
    return (cooled if free is None else z.index_copy(0, free, cooled)), heat


def _heat(gaps: Tensor, confidence: float) -> float:
    """ϑ; gaps: scores minus the largest of their row (n×k); confidence: mean_i max_k ŷ_ik."""
    fast = compiled_form("compiled", gaps)

    def confidence_at(heat: float) -> float:
        if fast:
            return float(fast.mean_confidence(gaps, heat))
        return float((gaps / heat).exp_().sum(dim=1).reciprocal_().mean())

    now = confidence_at(1.0)
    target = 0.5 * (now + confidence)
    if now <= target:
        return 1.0
    if confidence_at(HOTTEST) >= target:
        return HOTTEST
    found = brentq(lambda log_heat: confidence_at(math.exp(log_heat)) - target, 0.0, math.log(HOTTEST), xtol=DIGITS)
    return math.exp(found)
