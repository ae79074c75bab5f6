"""StatA: a Gaussian per class, anchored on its text prototype.

Zanella, Fuchs, De Vleeschouwer, Ben Ayed, "Realistic Test-Time Adaptation of Vision-Language Models", CVPR 2025.

Objective, minimised block by block over z, then μ, then Σ:

    L(z, μ, Σ) = Σ_i KL(z_i ‖ ŷ_i) − ½ Σ_ij g_ij z_i·z_j
                 + (1/T) [ −Σ_i z_i·log p_i + α Σ_k KL(N(t_k, Σ') ‖ N(μ_k, Σ_k)) ]

| symbol    | code              | shape | meaning                                                      |
|-----------|-------------------|-------|--------------------------------------------------------------|
| f_i       | `x`               | n×d   | unit image features                                          |
| t_k       | `t`               | k×d   | unit text prototypes, the anchors' means                     |
| ŷ_i       | `log_y`           | n×k   | zero-shot probabilities, as logarithms                       |
| z_i       | `z`               | n×k   | assignments, rows on the simplex                             |
| μ_k, Σ_k  | `mu`, `var`       | k×d   | mean and diagonal covariance of class k                      |
| Σ'        | `var0`            | d     | the anchors' shared diagonal covariance                      |
| β_k       | `beta`            | k     | how far class k trusts the batch instead of its anchor       |
| α, T      | `alpha`, `temperature` |  | anchor weight; log p and the anchor are divided by T         |
| G         | `graph`           | n×n   | affinities: λ/(2m)·(W + Wᵀ) of m neighbours, or λ·x xᵀ        |

The defaults are the constants behind the published numbers; `StatA.literal()` is the paper's equations as printed, for
which the objective cannot rise (T = 1, no unit scaling, soft β, positive semi-definite graph).

Only *active* classes, those with assigned images, are updated: with hard counts an empty class has
β_k = 0, so its mean and covariance are the anchor's, exactly. A batch of 64 images has about 20 active classes out of
a thousand.

Deviations
- from the paper: its z-update carries Σ_j w_ij z_j, which is the concave-convex step for half the Laplacian it prints;
  the objective above has the ½, so step and objective agree. α and log p are divided by T together, so that the M-step
  is the same at every T and the objective is one function.
- from the authors' program: neighbours exclude the image itself by index, not by dropping the best match (which drops
  the twin of a duplicated image instead); Σ' is the equation for any n, not only up to 2,500 images
  (`released_variance` gives the program's value); it works for n < 4 and cannot see labels; variances are kept above
  1e-6/d.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from ..errors import SettingError
from ..features.text_head import TextHead
from ..progress import track
from .contract import Batch, State, Step, Traits
from .settings import Configured, setting
from .solve.compiling import compiled_form, recommending
from .solve.em import SETTLED, Settings, active_classes, hard_counts, outcome, released_variance, run, z_step
from .solve.gaussian import Features, anchor_divergence, anchor_variance, anchored_fit, text_distances
from .solve.graph import GramGraph, NeighbourGraph
from .solve.joint import DENSE_ENTRIES, link, of_batch, solve, survey
from .solve.neighbours import Neighbours
from .solve.parts import Parts

NEARLY_EMPTY = 1e-6  # images: with soft counts the compiled solver leaves a class with less on its anchor


@dataclass(frozen=True)
class Iterate:
    """Where the solver stands after z-steps and the M-step that follows; the last one has no M-step and no classes."""

    z: Tensor  # n×k
    objective: tuple[float, ...] = ()  # after every z-step and after the M-step, if asked for
    active: Tensor | None = None  # a: the classes that were updated; all others are on their anchors
    beta: Tensor | None = None  # a
    mu: Tensor | None = None  # a×d
    var: Tensor | None = None  # a×d
    var0: Tensor | None = None  # d


@dataclass(frozen=True)
class StatA(Configured):
    """StatA with all its settings; the defaults give the published numbers."""

    name: ClassVar[str] = "stata"
    traits: ClassVar[Traits] = Traits(paper="StatA", year=2025, scope="batch", memory="none", known=True)

    alpha: float = setting(1.0, "anchor weight: 0 is maximum likelihood, ∞ keeps the anchors", low=0, high=math.inf)
    beta: Literal["hard", "soft"] = setting("hard", "counts behind β: by argmax (Eq. hard_beta_k) or by sums of z")
    temperature: float = setting(50.0, "log p is divided by this; ∞ is without log p", low=1e-3, high=math.inf)
    graph: Literal["neighbours", "dense"] = setting("neighbours", "m nearest neighbours, or all pairs")
    neighbours: int = setting(3, "m, neighbours per image", low=1, high=1000)
    search: Literal["auto", "exact", "approximate"] = setting(
        "auto", "of neighbours: exact, approximate, or auto: exact up to 100,000 images"
    )
    laplacian: float = setting(1.0, "λ, weight of the graph", low=0, high=1e6)
    unit_means: bool = setting(True, "scale class means and their mix with the anchor to unit norm")
    iterations: int = setting(10, "M-steps, each after `z_steps` z-steps, which also end the solve", low=0, high=1000)
    z_steps: int = setting(5, "z-steps per iteration", low=1, high=100)
    tol: float = setting(
        0.0, "stop early when no entry of z moves more than this in an iteration; 0 is off", low=0, high=1.0
    )
    objective: bool = setting(False, "put the objective after every step into info (costs time)")
    released_variance: bool = setting(False, "Σ' as the authors' program has it for n > 2500: divided once per chunk")
    compiled: bool = setting(True, "use the compiled solver if possible: float32, CPU, the extra `fast` installed")

    @classmethod
    def literal(cls, **settings: Any) -> StatA:
        """The paper's equations as printed, run until converged (tol 1e-6, at most 1000 iterations)."""
        printed = cls(
            beta="soft", temperature=1.0, graph="dense", unit_means=False, iterations=1000, z_steps=1, tol=1e-6
        )
        return replace(printed, **settings)

    def init(self, head: TextHead) -> State | None:
        """No state: the paper's online StatA solves each batch on its own."""
        return None

    def prepare(self, batch: Batch) -> Mapping[str, Tensor]:
        """The per-image part of Σ', see `anchor_variance`."""
        return {"text_distances": text_distances(batch.features, batch.head.features, batch.log_zero_shot)}

    def step(self, state: State | None, batch: Batch) -> Step:
        """Solve one batch."""
        x, head = batch.features, batch.head
        nearest = self._nearest(batch) if self.graph == "neighbours" else None
        found = nearest.info if nearest else {}
        if nearest and not self._plain:
            if len(x) * head.k > DENSE_ENTRIES:
                parts, only = of_batch(batch, nearest)
                info = self.solve(parts, head)
                return Step(None, only.dense(), {**info, **found})
            if fast := self._compiled(batch):
                settings = self._settings(NEARLY_EMPTY if self.beta == "soft" else 0.0)
                log_y, var0 = batch.log_zero_shot, anchor_variance(batch)
                later = head.unit if self.unit_means and head.unit is not head else None
                z, scores, change = fast.solve(x, log_y, head, var0, nearest, self._edge, settings, later=later)
                return Step(None, z, {**outcome(change, self.iterations, SETTLED), **found}, scores)
        objective: list[float] = []

        def assignments() -> Iterator[Tensor]:
            for iterate in self.iterate(batch, nearest):
                objective.extend(iterate.objective)
                yield iterate.z

        with recommending(x) if self.compiled else nullcontext():
            z, info = run(assignments(), batch, self.tol or SETTLED)
        return Step(None, z, {**info, **found, "objective": objective} if self.objective else {**info, **found})

    def _compiled(self, batch: Batch) -> ModuleType | None:
        """The compiled solver, where it can be used."""
        if self.beta == "soft" and self.alpha < 0.1:
            return None  # with hardly an anchor, a class of next to no mass is not left on it without a difference
        fast = compiled_form("compiled", batch.features) if self.compiled else None
        return fast if fast and fast.suits(len(batch.features), batch.head.k, batch.head.d) else None

    @property
    def _plain(self) -> bool:
        """Is something asked for that only the plain form has?"""
        return self.tol > 0 or self.objective or self.released_variance

    def _settings(self, present: float = 0.0) -> Settings:
        """As the compiled solver and the one by lists take them."""
        return Settings(
            alpha=self.alpha,
            cooling=1 / self.temperature,
            soft=self.beta == "soft",
            unit_means=self.unit_means,
            iterations=self.iterations,
            z_steps=self.z_steps,
            present=present,
        )

    def check_parts(self) -> None:
        """Raise SettingError if a setting needs all images at once."""
        if self._plain or self.graph == "dense":
            raise SettingError(
                "stata by lists of candidates has no tol, objective, released_variance and dense graph. Leave them out."
            )

    def solve(self, parts: Parts, head: TextHead) -> dict[str, Any]:
        """Solve images in parts, by lists of candidates."""
        crossing = link(parts)
        found = survey(parts, head)
        later = head.unit.features if self.unit_means else None
        info = solve(
            parts,
            head,
            found,
            found.var0,
            self._settings(),
            self._edge,
            name="StatA",
            compiled=self.compiled,
            later=later,
        )
        return {**info, **crossing}

    @torch.no_grad()
    def iterate(self, batch: Batch, nearest: Neighbours | None = None) -> Iterator[Iterate]:
        """The solver, one iteration at a time, over a graph of the nearest. Do not write to what it yields."""
        x, t = batch.features, batch.head.features
        log_y = batch.log_zero_shot
        graph = self._graph(batch, nearest)
        features = Features.of(x)
        z = log_y.exp()
        # Eq. parameter-initialization, or the program's
        var0 = released_variance(x, t, z) if self.released_variance else anchor_variance(batch)
        anchored = self._unary(log_y, features.log_density(features.natural_shared(t, var0)))  # of classes on anchors
        unary = anchored
        anchor_cost = 0.0  # (α/T) Σ_k KL; 0 as long as all classes are on their anchors

        for iteration in track(range(self.iterations), "StatA"):
            before = z
            z, objective = self._assign(z, unary, graph, anchor_cost)

            # M-step, for the active classes
            active, n_a = active_classes(z.sum(dim=0) if self.beta == "soft" else hard_counts(z))
            z_a, t_a = z.index_select(1, active), t.index_select(0, active)
            moments = features.moments(z_a)
            beta, mu, var = anchored_fit(features.centre, moments, n_a, t_a, var0, self.alpha, self.unit_means)
            if iteration == 0 and self.unit_means and batch.head.unit is not batch.head:
                # From here on an empty class is at unit(t_k), β_k = 0; rounded input is only nearly that.
                at_unit = features.natural_shared(batch.head.unit.features, var0)
                anchored = self._unary(log_y, features.log_density(at_unit))
            log_p = features.log_density(features.natural(mu, var, var0))
            unary = anchored.index_copy(1, active, self._unary(log_y.index_select(1, active), log_p))

            if self.objective:
                anchor_cost = self._anchor_cost(t_a, var0, mu, var)
                objective.append(_objective(z, unary, graph, anchor_cost))
            yield Iterate(z, tuple(objective), active, beta, mu, var, var0)
            if self.tol > 0 and float((z - before).abs_().max()) <= self.tol:
                break

        z, objective = self._assign(z, unary, graph, anchor_cost)
        yield Iterate(z, tuple(objective), var0=var0)

    def _unary(self, log_y: Tensor, log_p: Tensor) -> Tensor:
        """log ŷ + log p / T; takes the memory of log p."""
        return log_p.mul_(1 / self.temperature).add_(log_y)

    def _assign(
        self, z: Tensor, unary: Tensor, graph: NeighbourGraph | GramGraph, anchor_cost: float
    ) -> tuple[Tensor, list[float]]:
        """z ← softmax_k( log ŷ + log p / T + G z ), `z_steps` times. Eq. z_update."""
        objective = []
        for _ in range(self.z_steps):
            z = z_step(z, unary, graph)
            if self.objective:
                objective.append(_objective(z, unary, graph, anchor_cost))
        return z, objective

    def _nearest(self, batch: Batch) -> Neighbours:
        return batch.nearest(self.neighbours, search=self.search, compiled=self.compiled)

    def _graph(self, batch: Batch, nearest: Neighbours | None) -> NeighbourGraph | GramGraph:
        if self.graph == "dense":
            return GramGraph(batch.features, self.laplacian)
        return NeighbourGraph.of(nearest or self._nearest(batch), self._edge)

    @property
    def _edge(self) -> float:
        """G = λ/(2m)·(W + Wᵀ): what similarities are multiplied with."""
        return self.laplacian / (2 * self.neighbours)

    def _anchor_cost(self, t: Tensor, var0: Tensor, mu: Tensor, var: Tensor) -> float:
        if math.isinf(self.alpha):
            return 0.0  # the parameters are the anchors
        return self.alpha / self.temperature * float(anchor_divergence(t, var0, mu, var).sum())


def _objective(z: Tensor, unary: Tensor, graph: NeighbourGraph | GramGraph, anchor_cost: float) -> float:
    """L(z, μ, Σ) with log ŷ + log p / T in `unary`; terms that never change are left out."""
    entropy_term = torch.special.xlogy(z, z).sum()
    return float(entropy_term - (z * unary).sum() - 0.5 * (z * (graph @ z)).sum()) + anchor_cost
