"""kedge: StatA with a prior on which classes are present, honest probabilities, a guard, and a memory along a stream.

Objective, minimised block by block over z, then μ and Σ. It is StatA's with a prior on presences, and every part that
comes from the batch has a weight between 0 and 1, the trust in the batch:

    L(z, μ, Σ) = Σ_i KL(z_i ‖ ŷ_i)
                 + v { −½ Σ_ij g_ij z_i·z_j + (1/T) [ −Σ_i z_i·log p_i + α Σ_k KL(N(t_k, Σ') ‖ N(μ_k, Σ_k)) ] }
                 − ρ Σ_k F(n_k),        F(n) = (n + r b) log(n + r b) − (n + b) log(n + b)

| symbol    | code         | shape | meaning                                                                       |
|-----------|--------------|-------|-------------------------------------------------------------------------------|
| x_i, t_k  | `x`, `t`     | n×d, k×d | unit image features, unit text prototypes                                  |
| ŷ_i, z_i  | `log_y`, `z` | n×k   | zero-shot probabilities after the bias step, as logarithms; assignments       |
| μ_k, Σ_k  | `mu`, `var`  | a×d   | mean and diagonal covariance of the a classes that are present                |
| Σ'        | `var0`       | d     | the anchors' shared diagonal covariance, of ŷ before the bias step            |
| n_k       | `counts`     | k     | Σ_i z_ik, images of class k                                                   |
| K̂, q      | `classes`    |       | effective number of classes by text alone; K̂/K, the chance that one is there  |
| r, b, ρ   | `Prior`      |       | the prior on presences and its weight                                         |
| v         | `visual`     |       | trust in similarities between images (graph, Gaussians)                       |
| G         | `graph`      | n×n   | affinities, λ/(2m)·(W + Wᵀ) of m neighbours                                   |

Steps, with s(u) = u²(3 − 2u) for u in [0, 1] and 0, 1 outside (a smooth switch). All numbers but z, μ, Σ are fixed
before the solve.

    z   ← softmax_k( log ŷ + ρ log[(m + r b)/(m + b)] + v [ log p / T + G z ] ),   m_ik = n_k − z_ik     `z_steps` times
    β_k = n_k/(n_k + α),  μ_k and Σ_k as in StatA with soft counts
    log p_ik ← log p_ik − ρ d z_ik/(n_k + α)

*Presences.* Each class is more or less present, θ_k ~ Beta(r b, (1 − r) b), on its own: P(z) = Π_k E[θ_k^{n_k}]. So an
image joins class k with probability (m + r b)/(m + b), m the other images of the class. An image alone in its class
pays log r; a class of many more than b images gains nothing by growing. (Proportions would: there a class grows by
taking from others.) F is this for soft counts: F′(n) = log[(n + r b)/(n + b)]. All from ŷ alone:

    π ← mean_i ŷ_i;  five times π_k ← mean_i ŷ_ik π_k / Σ_l ŷ_il π_l;   K̂ = exp H(π)
    b = (n/K̂)/(1 − c̄),  c̄ = mean_i max_k ŷ_ik    images of a class that is there; more, as far as zero-shot can count
    r = q/(q + (1 − q)(1 + b))            chance that a class is there though no other image shows it
    ρ = decided · (1 − q) · (1 − e^{−n/K̂}) · (1 − even)    zero-shot says something · few classes · an image has company

(To 1 − c̄ 1e-3 is added, and to r b 1e-6. `even`, below, is from before the bias step. The first z-step has no prior.)

*An image is judged by the others.* m leaves image i out of its own class. Image i is also part of that class's mean and
variance, which raises log p_ik by about d z_ik/(n_k + α) through each; half of the sum is taken back, with weight ρ.

*Bias step*, before. If nearly all classes are present, uneven mean ŷ is mostly zero-shot's own bias:

    log ŷ ← log softmax( log ŷ − w log mean_i ŷ_i )
    w = decided · even · s((κ/reach − 0.1)/0.4) · s((q + c̄ − 0.8)/0.2)
    even = clip(2 − share/0.05, 0, 1)                     is mean ŷ even? Then all classes are there, and ρ = 0
    share = (log K − H(mean ŷ)) / (log K − mean H(ŷ))     how much of zero-shot's information is about proportions
    reach = min(1, max(n/K − 1, 0)/m)                     neighbour agreement possible if all K classes were present

The last factor is for noisy features. Noise blurs ŷ, so mean ŷ is even though few classes are there; κ/reach is no test
where reach is small. K̂ is less deceived, and the less zero-shot is sure, the more classes it has to find.

*The guard*, from ŷ and the neighbours alone:

    decided = min(1, 4 (1 − mean_i H(ŷ_i)/log K))      is zero-shot informative at all?
    v       = decided · s((κ − 0.1)/0.4),  κ = (A − 1/K)/(1 − 1/K)
              A: share of neighbours with the same zero-shot label. Similar images should have the same label.

*Temperature*, after: see `solve/temperature.py`. Labels stay, probabilities become honest.

*Memory* along a stream: see `solve/memory.py`.

*Known labels* have ŷ = 1 and count as one image each. They stay certain, and always enter the memory.

Guaranteed: with m = n_k and without the term d z_ik/(n_k + α), each z-step (for a positive semi-definite graph) and
each M-step (without unit scaling, of classes that stay present) lowers L or keeps it: F is convex, so its tangent at
n_k bounds −F from above. Heuristic: leaving an image out of its class, the numbers r, b, ρ, v and w, the neighbour
graph, unit means, putting nearly empty classes back on their anchors, the temperature, the memory.

Deviations from StatA: the terms above; soft counts; classes with less than a tenth of an image stay on their
anchors. With ρ = 0, v = 1, no bias step and no temperature, it is StatA with soft counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from ..arrays import effective_classes, row_blocks
from ..errors import InputError
from ..features.text_head import TextHead
from ..progress import track
from .contract import Batch, State, Step, Traits, check_form
from .settings import Configured, setting
from .solve import joint
from .solve.compiling import compiled_form, recommending
from .solve.em import SETTLED, Settings, largest_change, log_presence, outcome
from .solve.gaussian import Features, anchor_variance, anchored_fit, text_distances
from .solve.graph import NeighbourGraph
from .solve.joint import DENSE_ENTRIES, Survey
from .solve.memory import RELIANCE, recalled, remembered
from .solve.neighbours import Neighbours, agreement
from .solve.parts import Parts
from .solve.temperature import tempered

PRESENT = 0.1  # images: a class with less stays on its anchor
EM_STEPS = 5  # of the proportions behind K̂: more would believe in too few classes


class Evidence(NamedTuple):
    """What zero-shot and the neighbours say about a batch before the solve."""

    decided: float  # is zero-shot informative?
    agreement: float  # κ: how often neighbours have the same label, 0 by chance and 1 always
    confidence: float  # mean_i max_k ŷ_ik
    share: float  # of zero-shot's information that is about proportions
    classes: float  # K̂

    @property
    def even(self) -> float:
        """Is mean ŷ even, so that all classes seem to be there?"""
        return min(1.0, max(0.0, 2 - self.share / 0.05))

    @classmethod
    def of(cls, log_y: Tensor, nearest: Tensor) -> Evidence:
        """For log ŷ (n×k, at least two each) and the neighbours of each image (n×m)."""
        k, y = log_y.shape[1], log_y.exp()
        best, labels = y.max(dim=1)
        pi = mean = y.mean(dim=0)
        for _ in range(EM_STEPS):
            pi = (y.T @ (y @ pi).reciprocal_()).mul_(pi / len(y))
        entropy = float(torch.special.entr(y).sum(dim=1).mean())
        return cls.from_means(mean, entropy, float(best.mean()), agreement(labels, nearest, k), pi)

    @classmethod
    def of_parts(cls, parts: Parts, found: Survey, neighbours: int) -> Evidence:
        """The same for images in parts; π from their candidates."""
        kappa = joint.agreement(parts, found.n, neighbours, len(found.y))
        pi = joint.proportions(parts, found.y, found.n, EM_STEPS)
        return cls.from_means(found.y, found.entropy, found.confidence, kappa, pi)

    @classmethod
    def from_means(cls, mean: Tensor, entropy: float, confidence: float, kappa: float, pi: Tensor) -> Evidence:
        """From mean_i ŷ_i (k), mean_i H(ŷ_i), mean_i max_k ŷ_ik, κ, and π (k)."""
        k = len(mean)
        information = math.log(k) - entropy
        of_proportions = math.log(k) - float(torch.special.entr(mean).sum())
        return cls(
            decided=min(1.0, 4 * max(0.0, information / math.log(k))),
            agreement=kappa,
            confidence=confidence,
            share=of_proportions / max(information, 1e-9),
            classes=min(float(k), math.exp(float(torch.special.entr(pi).sum()))),
        )


NOTHING = Evidence(0.0, 0.0, 0.0, 0.0, 1.0)  # of one image, or with one class


class Prior(NamedTuple):
    """The prior on presences: r b and b images; and its weight ρ."""

    floor: float  # r b
    size: float  # b
    weight: float  # ρ

    @classmethod
    def of(cls, e: Evidence, n: int, k: int) -> Prior:
        """From ŷ after the bias step; but `share` is from before. See the top of the file."""
        q, each = e.classes / k, n / e.classes
        b = each / (1 - e.confidence + 1e-3)
        r = q / (q + (1 - q) * (1 + b))
        return cls(r * b + 1e-6, b, e.decided * (1 - q) * (1 - math.exp(-each)) * (1 - e.even))

    def log(self, counts: Tensor, z: Tensor | float) -> Tensor:
        """ρ log[(m + r b)/(m + b)], m = n_k − z_ik, n×k; or k with z = 0."""
        return log_presence(counts, z, self.weight, self.floor, self.size)

    def add_to(self, scores: Tensor, counts: Tensor, z: Tensor | None) -> None:
        """Add it to scores (n×k), in blocks of rows: it is never a whole n×k array. z: None for m = n_k."""
        for rows in row_blocks(scores.shape):
            scores[rows] += self.log(counts, 0.0 if z is None else z[rows])


@dataclass(frozen=True)
class Kedge(Configured):
    """kedge's own method; the defaults are the ones measured."""

    name: ClassVar[str] = "kedge"
    traits: ClassVar[Traits] = Traits(
        paper="kedge", year=2026, scope="batch", memory="stream", known=True, by_class=True
    )

    alpha: float = setting(1.0, "anchor weight, in images", low=1e-6, high=1e6)
    temperature: float = setting(50.0, "log p is divided by this; ∞ is without log p", low=1e-3, high=math.inf)
    neighbours: int = setting(3, "m, neighbours per image", low=1, high=1000)
    search: Literal["auto", "exact", "approximate"] = setting("auto", "for neighbours; auto: exact up to 100,000")
    laplacian: float = setting(1.0, "λ, weight of the graph", low=0, high=1e6)
    iterations: int = setting(10, "M-steps, each after `z_steps` z-steps, which also end the solve", low=0, high=1000)
    z_steps: int = setting(3, "z-steps per iteration", low=1, high=100)
    bias: bool = setting(True, "take out zero-shot's own bias if nearly all classes are present")
    presence: bool = setting(True, "the prior on which classes are present; false leaves ρ = 0")
    leave_one_out: bool = setting(True, "judge an image by the others of its class")
    guard: bool = setting(True, "stay near zero-shot where the evidence is weak; false trusts every batch")
    honest: bool = setting(True, "lower probabilities to what is likely to be right; labels stay")
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
        x, n, k = batch.features, len(batch.features), batch.head.k
        if state:
            check_form(state, self._form(batch.head))  # the compiled solver relies on the shapes
        past = state if state and bool(state["counts"].any()) else {}  # empty at first
        if n * k > DENSE_ENTRIES:
            return self._step_in_lists(state, past, batch)
        if n == 1 or k == 1:
            z = batch.log_zero_shot.exp()
            info: dict[str, Any] = {**outcome(0.0, 0, SETTLED), "trust": 0.0}
            return Step(remembered(state, x, z, 0.0, batch.known) if state else {}, z, info)
        nearest = batch.nearest(self.neighbours, search=self.search, compiled=self.compiled)
        raw, log_y = Evidence.of(batch.log_zero_shot, nearest.indices), batch.log_zero_shot
        if self.bias and (w := self._bias_weight(raw, n, k)) > 0:
            log_y = unbiased(log_y, w)
        evidence = raw if log_y is batch.log_zero_shot else Evidence.of(log_y, nearest.indices)
        decided, visual, prior = self._weights(raw, evidence, n, k)
        fast = compiled_form("compiled", x) if self.compiled else None
        if fast and fast.suits(n, k, batch.head.d):
            var0, edge, settings = anchor_variance(batch), self._edge(visual), self._settings(visual, prior, batch.head)
            z, scores, change = fast.solve(x, log_y, batch.head, var0, nearest, edge, settings, memory=past)
        else:
            with recommending(x) if self.compiled else nullcontext():
                z, scores, change = self._solve(past, batch, log_y, nearest, visual, prior)
        honest, heat = tempered(scores, z, batch, compiled=self.compiled) if self.honest else (z, 1.0)
        info = {
            **outcome(change, self.iterations, SETTLED),
            **_told(z.sum(dim=0), evidence, visual, decided),
            **({"heat": heat} if self.honest else {}),
            **nearest.info,
        }
        return Step(remembered(state, x, z, visual, batch.known) if state else {}, honest, info)

    def _bias_weight(self, e: Evidence, n: int, k: int) -> float:
        """w of the bias step."""
        reach = min(1.0, max(n / k - 1, 0.0) / self.neighbours)
        if reach == 0:
            return 0.0
        many = smooth((e.classes / k + e.confidence - 0.8) / 0.2)
        return e.decided * e.even * many * smooth((e.agreement / reach - 0.1) / 0.4)

    def _trust(self, e: Evidence) -> tuple[float, float]:
        """The guard: `decided` and v."""
        return (e.decided, e.decided * smooth((e.agreement - 0.1) / 0.4)) if self.guard else (1.0, 1.0)

    def _weights(self, raw: Evidence, evidence: Evidence, n: int, k: int) -> tuple[float, float, Prior]:
        """`decided`, v and the prior, from the evidence before and after the bias step."""
        decided, visual = self._trust(evidence)
        prior = Prior.of(evidence._replace(decided=decided, share=raw.share), n, k)
        return decided, visual, prior if self.presence else prior._replace(weight=0.0)

    def _settings(self, visual: float, prior: Prior, head: TextHead) -> Settings:
        """As the compiled solver and the one by lists take them."""
        cooling = visual / self.temperature
        return Settings(
            alpha=self.alpha,
            cooling=cooling,
            soft=True,
            unit_means=True,
            iterations=self.iterations,
            z_steps=self.z_steps,
            present=PRESENT,
            prior=prior.weight,
            floor=prior.floor,
            size=prior.size,
            leave_one_out=self.leave_one_out,
            own=prior.weight * cooling * head.d if self.leave_one_out else 0.0,
            reliance=RELIANCE,
        )

    def check_parts(self) -> None:
        """No setting needs all images at once."""

    def solve(self, parts: Parts, head: TextHead) -> dict[str, Any]:
        """Solve images in parts, by lists of candidates."""
        return {**self._solve_parts(parts, head, {}), **self._temper(parts)}

    def _step_in_lists(self, state: State | None, past: State, batch: Batch) -> Step:
        """`step` where n×k is too large for the dense solver."""
        nearest = batch.nearest(self.neighbours, search=self.search, compiled=self.compiled)
        parts, only = joint.of_batch(batch, nearest)
        info = {**self._solve_parts(parts, batch.head, past), **nearest.info}
        after = remembered(state, batch.features, only.dense(), info["trust"], batch.known) if state else {}
        info.update(self._temper(parts))
        return Step(after, only.dense(), info)

    def _solve_parts(self, parts: Parts, head: TextHead, past: State) -> dict[str, Any]:
        """The solve up to the temperature, and what to say of it."""
        info, found, k = joint.link(parts), joint.survey(parts, head), head.k
        var0, n = found.var0, found.n
        if n == 1 or k == 1:
            evidence, decided, visual, prior = NOTHING, 0.0, 0.0, Prior(1.0, 1.0, 0.0)
        else:
            evidence = raw = Evidence.of_parts(parts, found, self.neighbours)
            if self.bias and (w := self._bias_weight(raw, n, k)) > 0:
                found = joint.survey(parts, head, w * log_mean(found.y))
                evidence = Evidence.of_parts(parts, found, self.neighbours)
            decided, visual, prior = self._weights(raw, evidence, n, k)
        settings, edge = self._settings(visual, prior, head), self._edge(visual)
        info |= joint.solve(parts, head, found, var0, settings, edge, name="kedge", compiled=self.compiled, past=past)
        return {**info, **_told(joint.mass(parts), evidence, visual, decided)}

    def _temper(self, parts: Parts) -> dict[str, float]:
        """The temperature, after the solve."""
        return {"heat": joint.temper(parts, self.compiled)} if self.honest else {}

    def _edge(self, visual: float) -> float:
        """G = v λ/(2m)·(W + Wᵀ): what similarities are multiplied with."""
        return visual * self.laplacian / (2 * self.neighbours)

    def _solve(
        self, past: State, batch: Batch, log_y: Tensor, nearest: Neighbours, visual: float, prior: Prior
    ) -> tuple[Tensor, Tensor, float]:
        """The last z (n×k), its scores before the softmax, and its largest change in the last iteration."""
        t, features = batch.head.features, Features.of(batch.features)
        d = t.shape[1]
        graph = NeighbourGraph.of(nearest, self._edge(visual))
        cooling = visual / self.temperature
        z = log_y.exp()
        var0 = anchor_variance(batch)
        on_anchors = features.log_density(features.natural_shared(t, var0))
        anchored = on_anchors.mul_(cooling).add_(log_y)  # for classes on their anchors
        unary, before, counts = anchored, z, z.sum(dim=0)

        for iteration in track(range(self.iterations + 1), "kedge"):
            for step in range(self.z_steps):
                scores = (graph @ z).add_(unary)
                if prior.weight > 0 and iteration + step > 0:  # the first z-step has no prior
                    prior.add_to(scores, counts, z if self.leave_one_out else None)
                z = torch.softmax(scores, dim=1)
                counts = z.sum(dim=0)
            if iteration == self.iterations:
                break

            # M-step, for the classes that are present
            before, unary, scores = z, anchored, z  # let go of what is no longer needed: each is n×k
            present = (counts > PRESENT).nonzero().squeeze(1)
            z_a, t_a = z.index_select(1, present), t.index_select(0, present)
            n_a = counts.index_select(0, present)
            moments = recalled(past, present, features.centre, n_a, features.moments(z_a))
            _, mu, var = anchored_fit(features.centre, moments, n_a, t_a, var0, self.alpha)
            log_p = features.log_density(features.natural(mu, var, var0))
            if self.leave_one_out:
                log_p.addcmul_(z_a, prior.weight * d / (n_a + self.alpha), value=-1)
            del z_a
            unary = anchored.index_copy(1, present, log_y.index_select(1, present).add_(log_p, alpha=cooling))
            del log_p
        return z, scores, largest_change(z, before)


def unbiased(log_y: Tensor, w: float) -> Tensor:
    """The bias step: log softmax( log ŷ − w log mean_i ŷ_i ), n×k. A class that no image can be of stays so."""
    return torch.log_softmax(log_y - w * log_mean(log_y.exp().mean(dim=0)), dim=1)


def log_mean(mean: Tensor) -> Tensor:
    """log mean_i ŷ_i, k; 0 has no logarithm."""
    return mean.clamp_min(torch.finfo(mean.dtype).tiny).log()


def _told(mass: Tensor, evidence: Evidence, visual: float, decided: float) -> dict[str, float]:
    """What `info` says of the evidence, and of Σ_i z_ik (k)."""
    return {
        "effective_classes": effective_classes(mass),
        "classes_by_text": evidence.classes,
        "trust": visual,
        "trust_zero_shot": decided,
    }


def smooth(u: float) -> float:
    """s(u) = u²(3 − 2u), held at 0 and 1 outside [0, 1]."""
    u = min(max(u, 0.0), 1.0)
    return u * u * (3 - 2 * u)
