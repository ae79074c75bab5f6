"""kedge: StatA with a prior on class proportions, a guard, and a memory along a stream.

Objective, minimised block by block over z, π, then μ and Σ. It is StatA's with a prior on class proportions, and every
part that comes from the batch has a weight between 0 and 1, the trust in the batch:

    L(z, π, μ, Σ) = Σ_i KL(z_i ‖ ŷ_i)
                    + v { −½ Σ_ij g_ij z_i·z_j + (1/T) [ −Σ_i z_i·log p_i + α Σ_k KL(N(t_k, Σ') ‖ N(μ_k, Σ_k)) ] }
                    + ρ { −Σ_i z_i·log π − c Σ_k log π_k }

| symbol    | code         | shape | meaning                                                                       |
|-----------|--------------|-------|-------------------------------------------------------------------------------|
| x_i, t_k  | `x`, `t`     | n×d, k×d | unit image features, unit text prototypes                                  |
| ŷ_i, z_i  | `log_y`, `z` | n×k   | zero-shot probabilities, as logarithms; assignments                           |
| μ_k, Σ_k  | `mu`, `var`  | a×d   | mean and diagonal covariance of the a classes that are present                |
| Σ'        | `var0`       | d     | the anchors' shared diagonal covariance                                       |
| n_k, π_k  | `counts`     | k     | Σ_i z_ik; class proportions (n_k + c)/(n + c K)                               |
| K̂         | `effective`  |       | exp H(n_k/n), the effective number of classes                                 |
| ω         | `few`        |       | 1 − K̂/K: 0 when all classes are present, near 1 when few are                  |
| v         | `visual`     |       | trust in similarities between images (graph, Gaussians)                       |
| ρ         |              |       | trust in the class proportions, s(ω)·`decided`·(1 − 1/n)                      |
| G         | `graph`      | n×n   | affinities, λ/(2m)·(W + Wᵀ) of m neighbours                                   |

Steps, with s(u) = u²(3 − 2u) for u in [0, 1] and 0, 1 outside (a smooth switch):

    z   ← softmax_k( log ŷ + ρ log π + v [ log p / T + G z ] )       `z_steps` times, π and ω after each
    β_k = n_k/(n_k + α),  μ_k and Σ_k as in StatA with soft counts
    log p_ik ← log p_ik − s(ω)² d z_ik/(n_k + α)                     leave-one-out correction

*Proportions.* π is the maximum a posteriori estimate under a Dirichlet prior. It has full weight only if few classes
are present: with all of them present, uneven proportions are mostly zero-shot's own bias, which would reinforce itself.

*Leave-one-out correction.* Image i is part of the mean and variance of its own class. That raises log p_ik by about
d z_ik/(n_k + α) through the mean, and by as much through the variance; half of the sum is subtracted. The effect keeps
an image where zero-shot put it. That is wanted with few images per class and unwanted with few classes: hence s(ω)².

*The guard*, from ŷ and the neighbours alone:

    decided = min(1, 4 (1 − mean_i H(ŷ_i)/log K))      is zero-shot informative at all?
    visual  = decided · s((κ − 0.1)/0.4),  κ = (A − 1/K)/(1 − 1/K)
              A: share of neighbours with the same zero-shot label. Similar images should have the same label.

*Memory.* For each class the state holds a count N_k, a mean and a variance of images with z_ik > 0.9, weighted by how
established the class was in its batch, s(n_k K̂/n). In later batches they join the moments of class k as
M_k = min(N_k, 10 n_k) images. So the memory counts only for classes that the batch itself shows, and N_k ≤ 64 lets a
class that changes be learned anew. β stays n_k/(n_k + α): the memory says where a class is, the batch alone says
whether it is present. (With M_k in β, every class ever seen attracted images of other classes.)

Guaranteed: with v and ρ fixed, each z-step (for a positive semi-definite graph), each π-step and each M-step (without
unit scaling, of classes that stay present) lowers L or keeps it. Heuristic: that ω follows z, the neighbour graph, unit
means, putting nearly empty classes back on their anchors, the leave-one-out correction, the guard, the memory.

Deviations from StatA: the terms above; soft counts; classes with less than a tenth of an image stay on their
anchors. With ρ = 0, v = 1 and no leave-one-out correction, it is StatA with soft counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import threshold

from ..arrays import effective_classes
from ..errors import InputError
from ..features.text_head import TextHead
from ..progress import track
from .contract import Batch, State, Step, Traits, check_form
from .settings import Configured, setting
from .solve.compiling import compiled_form, recommending
from .solve.em import SETTLED, largest_change, outcome
from .solve.gaussian import Features, anchor_variance, anchored_fit, text_distances
from .solve.graph import NeighbourGraph
from .solve.neighbours import Neighbours, nearest_neighbours

PRESENT = 0.1  # images: a class with less stays on its anchor
PSEUDO_COUNT = 0.2  # c, images added to every class
SURE = 0.9  # z from which an image is remembered
REMEMBERED = 64.0  # upper limit of N_k
RELIANCE = 10.0  # images of memory at most per image of the batch


@dataclass(frozen=True)
class Trust:
    """The guard's judgement of a batch, before the solve."""

    decided: float  # is zero-shot informative?
    visual: float  # v: and do similar images get the same label?
    proportions: float  # upper limit of ρ

    @property
    def reason(self) -> str:
        """A sentence for `info`."""
        if self.decided < 0.5:
            return "zero-shot is undecided, so adaptation is weak"
        if self.proportions == 0:
            return "a single image or a single class: zero-shot labels are kept"
        if self.visual < 0.5 * self.decided:
            return "similar images have different zero-shot labels, so similarity counts for little"
        return "zero-shot is decided and similar images agree"


@dataclass(frozen=True)
class Kedge(Configured):
    """kedge's own method; the defaults are the ones measured."""

    name: ClassVar[str] = "kedge"
    traits: ClassVar[Traits] = Traits(paper="kedge", year=2026, scope="batch", memory="stream")

    alpha: float = setting(1.0, "anchor weight, in images", low=1e-6, high=1e6)
    temperature: float = setting(50.0, "log p is divided by this; ∞ is without log p", low=1e-3, high=math.inf)
    neighbours: int = setting(3, "m, neighbours per image", low=1, high=1000)
    search: Literal["auto", "exact", "approximate"] = setting("auto", "for neighbours; auto: exact up to 100,000")
    laplacian: float = setting(1.0, "λ, weight of the graph", low=0, high=1e6)
    iterations: int = setting(10, "M-steps, each after `z_steps` z-steps, which also end the solve", low=0, high=1000)
    z_steps: int = setting(3, "z-steps per iteration", low=1, high=100)
    proportions: bool = setting(True, "estimate class proportions and use them as a prior; false leaves ρ = 0")
    leave_one_out: bool = setting(True, "correct for an image being part of its own class's statistics")
    guard: bool = setting(True, "stay near zero-shot where the evidence is weak; false trusts every batch")
    compiled: bool = setting(True, "use the compiled solver if possible: float32, CPU, the extra `fast` installed")
    memory: bool = setting(True, "use earlier batches of the stream; false solves each batch on its own")

    def init(self, head: TextHead) -> State | None:
        """An empty memory: N (k), means and variances (k×d)."""
        return {name: torch.zeros_like(like) for name, like in self._form(head).items()}

    def _form(self, head: TextHead) -> State:
        """Tensors of the types and shapes of a state's."""
        t = head.features
        return {"counts": t[:, 0], "mean": t, "var": t} if self.memory else {}

    def check_state(self, state: State | None, head: TextHead) -> None:
        """Raise InputError if this is not a memory of this head's classes."""
        check_form(state, self._form(head))
        for name, value in (state or {}).items():
            if name != "mean" and bool((value < 0).any()):
                raise InputError(f"{name} in the state has negative values. Start a new stream.")

    def prepare(self, batch: Batch) -> Mapping[str, Tensor]:
        """The per-image part of Σ', see `anchor_variance`."""
        return {"text_distances": text_distances(batch.features, batch.head.features, batch.log_zero_shot)}

    @torch.no_grad()
    def step(self, state: State | None, batch: Batch) -> Step:
        """Solve one batch and update the memory."""
        x = batch.features
        if state:
            check_form(state, self._form(batch.head))  # the compiled solver relies on the shapes
        past = state if state and bool(state["counts"].any()) else {}  # empty at first
        nearest = nearest_neighbours(x, self.neighbours, search=self.search, compiled=self.compiled)
        trust = self._trust(batch.log_zero_shot, nearest.indices)
        fast = compiled_form("compiled", x) if self.compiled else None
        if fast and fast.suits(len(x), batch.head.k, batch.head.d):
            z, change = self._solve_compiled(fast, past, batch, nearest, trust)
        else:
            with recommending(x) if self.compiled else nullcontext():
                z, change = self._solve(past, batch, nearest, trust)
        info: dict[str, Any] = {
            **outcome(change, self.iterations, SETTLED),
            "effective_classes": effective_classes(z.sum(dim=0)),
            "trust": trust.visual,
            "trust_zero_shot": trust.decided,
            "why": trust.reason,
            **nearest.info,
        }
        return Step(remembered(state, x, z, trust.visual) if state else {}, z, info)

    def _trust(self, log_y: Tensor, nearest: Tensor) -> Trust:
        """The guard, for log ŷ (n×k) and the neighbours of each image (n×m)."""
        n, k = log_y.shape
        if n == 1 or k == 1:
            return Trust(1.0, 0.0, 0.0)
        others = 1 - 1 / n
        if not self.guard:
            return Trust(1.0, 1.0, others)
        entropy, agreement = evidence(log_y, nearest)
        decided = min(1.0, 4 * max(0.0, 1 - entropy / math.log(k)))
        kappa = (agreement - 1 / k) / (1 - 1 / k)
        return Trust(decided, decided * smooth((kappa - 0.1) / 0.4), decided * others)

    def _solve_compiled(
        self, fast: ModuleType, past: State, batch: Batch, nearest: Neighbours, trust: Trust
    ) -> tuple[Tensor, float]:
        """`_solve` in one compiled call."""
        x, head, cooling = batch.features, batch.head, trust.visual / self.temperature
        settings = fast.Settings(
            alpha=self.alpha,
            cooling=cooling,
            soft=True,
            unit_means=True,
            iterations=self.iterations,
            z_steps=self.z_steps,
            present=PRESENT,
            trust=trust.proportions if self.proportions else 0.0,
            pseudo_count=PSEUDO_COUNT,
            leave_one_out=cooling * head.d if self.leave_one_out else 0.0,
            reliance=RELIANCE,
        )
        edge, var0 = self._edge(trust), anchor_variance(batch)
        z, change = fast.solve(x, batch.log_zero_shot, head, var0, nearest, edge, settings, memory=past)
        return z, change

    def _edge(self, trust: Trust) -> float:
        """G = v λ/(2m)·(W + Wᵀ): what similarities are multiplied with."""
        return trust.visual * self.laplacian / (2 * self.neighbours)

    def _solve(self, past: State, batch: Batch, nearest: Neighbours, trust: Trust) -> tuple[Tensor, float]:
        """The last z (n×k), and its largest change in the last iteration."""
        t, log_y, features = batch.head.features, batch.log_zero_shot, Features.of(batch.features)
        (n, k), d = log_y.shape, t.shape[1]
        graph = NeighbourGraph.of(nearest, self._edge(trust))
        cooling = trust.visual / self.temperature
        z = log_y.exp()
        var0 = anchor_variance(batch)
        on_anchors = features.log_density(features.natural_shared(t, var0))
        anchored = on_anchors.mul_(cooling).add_(log_y)  # for classes on their anchors
        unary, bias, few = anchored, torch.zeros_like(t[:, 0]), 0.0

        for iteration in track(range(self.iterations + 1), "kedge"):
            before = z
            for _ in range(self.z_steps):
                z = torch.softmax((graph @ z).add_(unary).add_(bias), dim=1)
                counts = z.sum(dim=0)
                few = 1 - effective_classes(counts) / k
                if self.proportions:
                    bias = log_proportions(counts, n).mul_(trust.proportions * smooth(few))
            if iteration == self.iterations:
                break

            # M-step, for the classes that are present
            present = (counts > PRESENT).nonzero().squeeze(1)
            z_a, t_a = z.index_select(1, present), t.index_select(0, present)
            n_a = counts.index_select(0, present)
            moments = recalled(past, present, features.centre, n_a, features.moments(z_a))
            _, mu, var = anchored_fit(features.centre, moments, n_a, t_a, var0, self.alpha)
            log_p = features.log_density(features.natural(mu, var, var0))
            if self.leave_one_out:
                log_p -= z_a * (smooth(few) ** 2 * d / (n_a + self.alpha))
            unary = anchored.index_copy(1, present, log_y.index_select(1, present).add_(log_p, alpha=cooling))
        return z, largest_change(z, before)


def evidence(log_y: Tensor, nearest: Tensor) -> tuple[float, float]:
    """The mean entropy of ŷ, and how often neighbours (n×m) have the same label by it; log ŷ n×k."""
    labels = log_y.max(dim=1).indices
    agreement = float((labels[nearest] == labels[:, None]).double().mean())
    return -float((log_y.exp() * log_y).sum(dim=1).mean()), agreement


def smooth(u: float) -> float:
    """s(u) = u²(3 − 2u), held at 0 and 1 outside [0, 1]."""
    u = min(max(u, 0.0), 1.0)
    return u * u * (3 - 2 * u)


def log_proportions(counts: Tensor, n: int) -> Tensor:
    """log π, k: the π on the simplex with the largest Σ_k (n_k + c) log π_k."""
    return (counts + PSEUDO_COUNT).div_(n + PSEUDO_COUNT * len(counts)).log_()


def recalled(
    past: State, present: Tensor, centre: Tensor, counts: Tensor, moments: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Moments (a×d each) of the present classes with n_k in `counts` (a), and what earlier batches showed of them."""
    if not past:
        return moments
    known = torch.minimum(past["counts"].index_select(0, present), RELIANCE * counts)  # M_k
    share = (known / (counts + known))[:, None]
    mean = past["mean"].index_select(0, present) - centre
    square = torch.addcmul(past["var"].index_select(0, present), mean, mean)
    return torch.lerp(moments[0], mean, share), torch.lerp(moments[1], square, share)


def remembered(past: State, x: Tensor, z: Tensor, trust: float) -> State:
    """The state after a batch: the sure images of established classes join N, mean and variance."""
    counts = z.sum(dim=0)
    typical = len(z) / effective_classes(counts)  # images of a class, about
    u = (counts / typical).clamp_max_(1)
    sure = threshold(z, SURE, 0.0).mul_(trust * u * u * (3 - 2 * u))
    new = sure.sum(dim=0)
    learned = (new > PRESENT).nonzero().squeeze(1)
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
