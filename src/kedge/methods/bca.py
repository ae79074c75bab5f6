"""BCA: moves the class vectors along a stream, and learns which classes each of them stands for.

Zhou, Ye, Li, Li, Zhu, Deng, Liu, Lei, "Bayesian Test-Time Adaptation for Vision-Language Models", CVPR 2025.

Each class has a vector μ and a row of R, the probabilities of the classes given that vector. For each image in turn:

    p = softmax(τ x μᵀ) R                                      z = p
    s = argmax p
    p_s > τ₁:  μ_s ← unit( (a_s μ_s + x)/(a_s + 1) ),   a_s ← a_s + 1
    p_s > τ₂:  R_s ← (b_s R_s + p)/(b_s + 1),           b_s ← b_s + 1

| symbol  | code                 | shape    | starts at | meaning                                         |
|---------|----------------------|----------|-----------|-------------------------------------------------|
| x       | `x`                  | n×d      |           | unit image features                             |
| μ       | `mu`                 | k×d      | t         | class vectors                                   |
| R       | `prior`              | k×k      | identity  | probabilities of the classes, by class vector   |
| a, b    | `mu_count`, `prior_count` | k   | n₁, n₂    | images that each vector and each row stand for  |
| n₁, n₂  | `mu_start`, `prior_start` |     |           | 20,000 and 1                                    |
| τ₁, τ₂  | `mu_above`, `prior_above` |     |           | 0.05 and 0.65                                   |

With n₁ = 20,000 the vectors hardly move in a thousand images; R is what acts. Cost of an image: k·(d + k).

Deviations
- the authors' program was not to be had: the constants are those of a public port (TTABC) for all datasets, whose
  output is what this file reproduces.
- p is divided by its sum, against rounding.
- with `views`, x is the mean of the most confident tenth of the views, under the current μ, and is not scaled to unit
  norm. `views` counts the image, which is view 0. The default is the image alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..arrays import unit
from ..features.text_head import TextHead
from ..memory import check_memory
from ..words import count
from .contract import Batch, State, Traits
from .settings import setting
from .solve.online import Online
from .solve.views import first_views, most_confident


@dataclass(frozen=True)
class BCA(Online):
    """BCA; the defaults are a public port's, for all datasets."""

    name: ClassVar[str] = "bca"
    traits: ClassVar[Traits] = Traits(paper="BCA", year=2025, scope="batch", memory="stream")

    mu_above: float = setting(0.05, "τ₁, probability above which an image moves its class vector", low=0, high=1.0)
    mu_start: float = setting(20_000.0, "n₁, images that the text prototype counts as", low=0, high=1e7)
    prior_above: float = setting(0.65, "τ₂, probability above which an image changes R", low=0, high=1.0)
    prior_start: float = setting(1.0, "n₂, images that a row of the identity counts as", low=0, high=1e7)
    views: int = setting(0, "views per image, including the image; 0 is the image alone", low=0, high=1000)
    confident: float = setting(
        0.1, "fraction of the views to keep: those with the lowest entropy, at least one", low=0, high=1.0
    )

    def init(self, head: TextHead) -> State | None:
        """Class vectors on the text, each for its own class."""
        t, k = head.features, head.k
        needed = 2 * k * k * t.element_size()  # the state and its copy
        check_memory(needed, f"{k:,} numbers for each of {count(k, 'class')}")
        return {
            "mu": t.clone(),
            "mu_count": t.new_full((k,), self.mu_start),
            "prior": torch.eye(k, dtype=t.dtype, device=t.device),
            "prior_count": t.new_full((k,), self.prior_start),
        }

    def walk(self, now: dict[str, Tensor], batch: Batch) -> Iterator[Tensor]:
        """Label each image; then its class vector and its row of R move."""
        mu, prior, scale = now["mu"], now["prior"], batch.head.logit_scale
        views = first_views(batch, self.views, self.name) if self.views else batch.features[:, None]
        for of_image in views:
            x = self._feature(of_image, mu, scale)
            p = torch.softmax(scale * (mu @ x), dim=0) @ prior
            p /= p.sum()
            yield p.log()
            sure, s = (float(value) for value in p.max(dim=0))
            s = int(s)
            if sure > self.mu_above:
                a = now["mu_count"][s].clone()
                mu[s] = unit((a * mu[s] + x) / (a + 1))
                now["mu_count"][s] += 1
            if sure > self.prior_above:
                b = now["prior_count"][s].clone()
                prior[s] = (b * prior[s] + p) / (b + 1)
                now["prior_count"][s] += 1

    def _feature(self, views: Tensor, mu: Tensor, scale: float) -> Tensor:
        """The mean of the most confident views (v×d), d."""
        if len(views) == 1:
            return views[0]
        return views[most_confident(torch.log_softmax(scale * views @ mu.T, dim=1), self.confident)].mean(dim=0)

    def info(self, now: State) -> dict[str, Any]:
        """How many images have changed R."""
        return {"sure": round(float((now["prior_count"] - self.prior_start).sum()))}
