"""kedge's memory along a stream: what each class looked like in earlier batches.

For each class the state holds a count N_k, a mean and a variance of images with z_ik > 0.9, weighted by how established
the class was in its batch, s(n_k K̂/n), and by the trust in the batch; an image whose label is known has weight 1. In
later batches they join the moments of class k as M_k = min(N_k, 10 n_k) images. So the memory counts only for classes
that the batch itself shows, and N_k ≤ 64 lets a class that changes be learned anew.

β stays n_k/(n_k + α): the memory says where a class is, the batch alone says whether it is present. (With M_k in β,
every class ever seen attracted images of other classes.)
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import threshold

from ...arrays import effective_classes
from ..contract import State

SURE = 0.9  # z from which an image is remembered
REMEMBERED = 64.0  # upper limit of N_k
RELIANCE = 10.0  # images of memory at most per image of the batch
LEARNED = 0.1  # images: a class with less in a batch is not remembered


def recalled(
    past: State, present: Tensor, centre: Tensor, counts: Tensor, moments: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Moments (a×d each) of the present classes with n_k in `counts` (a), and what earlier batches showed of them."""
    if not past:
        return moments
    seen = torch.minimum(past["counts"].index_select(0, present), RELIANCE * counts)  # M_k
    share = (seen / (counts + seen))[:, None]
    mean = past["mean"].index_select(0, present) - centre
    square = torch.addcmul(past["var"].index_select(0, present), mean, mean)
    return torch.lerp(moments[0], mean, share), torch.lerp(moments[1], square, share)


def remembered(past: State, x: Tensor, z: Tensor, trust: float, known: Tensor | None) -> State:
    """The state after a batch: the sure images of established classes, and the known ones, join N, mean and variance.

    known: labels that a person gave (n), negative if unknown.
    """
    counts = z.sum(dim=0)
    typical = len(z) / effective_classes(counts)  # images of a class, about
    u = (counts / typical).clamp_max_(1)
    sure = threshold(z, SURE, 0.0).mul_(trust * u * u * (3 - 2 * u))
    if known is not None:
        sure[known >= 0] = z[known >= 0]
    new = sure.sum(dim=0)
    learned = (new > LEARNED).nonzero().squeeze(1)
    old, new = past["counts"].index_select(0, learned), new.index_select(0, learned)
    share = (new / (old + new))[:, None]
    weights = (sure.index_select(1, learned) / new).T
    mean0, var0 = past["mean"].index_select(0, learned), past["var"].index_select(0, learned)
    batch_mean = weights @ x
    mean = torch.lerp(mean0, batch_mean, share)
    spread = (weights @ x.square() - batch_mean.square()).clamp_min_(0) + (batch_mean - mean).square()
    var = torch.lerp(var0 + (mean0 - mean).square(), spread, share)
    return {
        "counts": past["counts"].index_copy(0, learned, (old + new).clamp_max_(REMEMBERED)),
        "mean": past["mean"].index_copy(0, learned, mean),
        "var": past["var"].index_copy(0, learned, var),
    }
