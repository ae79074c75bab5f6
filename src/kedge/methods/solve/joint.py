"""StatA's and kedge's solver for more images times classes than memory holds: one solve, its images in parts.

Same equations as stata.py and kedge.py, which are the definition. `lists.py` has what happens to the images, in one or
several `Rows`; here is what happens to the classes. The M-step sums class statistics over the parts, k×(2d+2) numbers,
and gives all parts the new μ and Σ. A z-step takes Σ_i z_ik (k) from each part, gives their sum to all, and passes z of
neighbours from part to part. Sums are taken in the order of the parts, so they do not depend on who is faster.

What is lost is the probability outside the lists: `outside` in info is its mean over ŷ. With C ≥ k nothing is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...features.text_head import TextHead
from ...progress import track
from ..contract import Batch, State
from .em import SETTLED, Settings, outcome
from .gaussian import anchored_fit, floored
from .lists import Rows, Statistics
from .memory import recalled
from .neighbours import Neighbours
from .parts import Here, Parts

DENSE_ENTRIES = 1 << 27  # of n×k, 0.5 GB in float32, and the dense solvers hold about seven such arrays; above, lists


class Survey(NamedTuple):
    """What zero-shot says of all images."""

    n: int
    centre: Tensor  # d: mean_i x_i
    y: Tensor  # k: mean_i ŷ_i
    entropy: float  # mean_i H(ŷ_i)
    confidence: float  # mean_i max_k ŷ_ik
    outside: float  # mean probability outside the lists
    var0: Tensor  # d: Σ'


def of_batch(batch: Batch, nearest: Neighbours) -> tuple[Here, Rows]:
    """A batch as the only part, and that part."""
    rows = Rows(batch.features, batch.head, nearest, zero_shot=lambda rows, x: batch.log_zero_shot_of(rows))
    return Here([rows]), rows


@torch.no_grad()
def link(parts: Parts) -> dict[str, Any]:
    """Make the graph of the neighbours. `info`: with more than one part, the share of edges from one to another."""
    crossing, edges = map(sum, zip(*parts.exchange("crossing", "link", lasting=True), strict=True))
    return {"crossing": crossing / max(edges, 1)} if len(parts) > 1 else {}


@torch.no_grad()
def survey(parts: Parts, head: TextHead, shift: Tensor | None = None) -> Survey:
    """Zero-shot of all images, and their candidates. shift (k): log ŷ ← log softmax(log ŷ − shift)."""
    t = head.features
    totals, counts = zip(*parts.each("total"), strict=True)
    n = sum(counts)
    centre = (_sum(totals) / n).to(t.dtype)
    found = parts.each("survey", centre, shift, lasting=True)
    return Survey(
        n,
        centre,
        (_sum(part.y for part in found) / n).to(t.dtype),
        sum(part.entropy for part in found) / n,
        sum(part.confidence for part in found) / n,
        sum(part.outside for part in found) / n,
        floored((_sum(part.spread for part in found) / n).to(t.dtype)),  # Eq. parameter-initialization
    )


@torch.no_grad()
def solve(
    parts: Parts,
    head: TextHead,
    found: Survey,
    var0: Tensor,
    settings: Settings,
    edge: float,
    *,
    name: str,
    compiled: bool,
    later: Tensor | None = None,
    past: State | None = None,
) -> dict[str, Any]:
    """Solve the parts, which keep the last z and its scores; and what to say of it.

    var0: Σ' (d). edge: what similarities are multiplied with. later (k×d): where classes without images are after the
    first fit, if not at t. compiled: if possible. past: what earlier batches showed of each class.
    """
    s, t = settings, head.features
    parts.exchange("lend_classes", "start", s, edge, compiled, lasting=True)
    parts.each("fit", t, var0.expand_as(t), var0, None, lasting=True)
    counts = found.y * found.n

    for iteration in track(range(s.iterations + 1), name):
        last = iteration == s.iterations
        if last:
            parts.each("mark", lasting=True)
        for step in range(s.z_steps):
            prior = counts if s.prior > 0 and iteration + step > 0 else None  # the first z-step has no prior
            keep = last and step == s.z_steps - 1
            counts = _sum(parts.exchange("lend", "assign", prior, keep, lasting=True)).to(t.dtype)
        if not last:
            anchors = t if later is None else later
            fitted = _m_step(parts, found.centre, t, anchors, var0, s, past or {})
            parts.forget("fit")  # what it and the z-steps came to is in the statistics
            parts.each("fit", *fitted, lasting=True)

    return {
        **outcome(max(parts.each("change")), s.iterations, SETTLED),
        "candidates": min(max(parts.each("candidates")), head.k),
        "outside": found.outside,
    }


def _m_step(
    parts: Parts,
    centre: Tensor,
    t: Tensor,
    anchors: Tensor,
    var0: Tensor,
    s: Settings,
    past: Mapping[str, Tensor],
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """μ and Σ (k×d) of all classes, those without images on their anchors; Σ', and what an image gives itself (k)."""
    each: list[Statistics] = parts.each("statistics")
    mass = _sum(part.mass for part in each)
    counts = mass.to(t.dtype) if s.soft else _sum(part.best for part in each).to(t.dtype)
    active = (counts > s.present).nonzero().squeeze(1)
    n_a, t_a = counts.index_select(0, active), t.index_select(0, active)
    total = _sum(part.moments for part in each).index_select(0, active)
    total /= mass.index_select(0, active).clamp_min(torch.finfo(t.dtype).tiny)[:, None]
    first, second = total.to(t.dtype).chunk(2, dim=1)
    moments = recalled(past, active, centre, n_a, (first, second))
    _, mu, var = anchored_fit(centre, moments, n_a, t_a, var0, s.alpha, s.unit_means)
    own = torch.zeros_like(counts).index_copy_(0, active, s.own / (n_a + s.alpha)) if s.own else None
    return (
        anchors.index_copy(0, active, mu),
        var0.expand_as(t).index_copy(0, active, var),
        var0,
        own,
    )


@torch.no_grad()
def proportions(parts: Parts, pi: Tensor, n: int, steps: int) -> Tensor:
    """The proportions of the classes (k) that make ŷ most likely, after so many EM steps from π."""
    for _ in range(steps):
        pi = (_sum(parts.each("responsibilities", pi)) / n).to(pi.dtype)
    return pi


@torch.no_grad()
def agreement(parts: Parts, n: int, neighbours: int, k: int) -> float:
    """κ: how often neighbours have the same zero-shot label; 0 by chance, 1 always."""
    pairs = max(1, n * min(neighbours, n - 1))
    agreeing: list[int] = parts.exchange("lend_labels", "agreeing")
    return (sum(agreeing) / pairs - 1 / k) / (1 - 1 / k)


@torch.no_grad()
def mass(parts: Parts) -> Tensor:
    """Σ_i z_ik, k."""
    return _sum(parts.each("mass"))


@torch.no_grad()
def temper(parts: Parts, compiled: bool) -> float:
    """Lower probabilities to what is likely to be right; the mean ϑ."""
    found: list[tuple[float, int]] = parts.each("temper", compiled, lasting=True)
    heat, images = (float(sum(each)) for each in zip(*found, strict=True))
    return heat / images


def _sum(tensors: Iterable[Tensor]) -> Tensor:
    first, *others = tensors
    return sum(others, first)
