"""DOTA: a running Gaussian per class, fitted to soft labels along a stream; all classes are read with one covariance.

Han, Yang, Wang, Li, Xu, Shou, Zhang, "DOTA: Distributional Test-Time Adaptation of Vision-Language Models", NeurIPS
2025.

For each image in turn:

    λ     = min(ρ · mean_k c_k, η)
    f_k   = τ x·t_k + λ ( x P μ_k − ½ μ_kᵀ P μ_k )                 z = softmax(f)

    Σ_k   ← (c_k Σ_k + ŷ_k (x − μ_k)(x − μ_k)ᵀ)/(c_k + ŷ_k)        with the old μ_k
    μ_k   ← (c_k μ_k + ŷ_k x)/(c_k + ŷ_k)
    c_k   ← c_k + ŷ_k
    P     ← ((1 − ε) mean_k Σ_k + ε I)⁻¹

ŷ is zero-shot's, never the method's own. Mean c grows by 1/k with each image, so λ reaches η after k(η/ρ − 1) images:
14 per class. Until then z is close to zero-shot.

| symbol | code      | shape | starts at       | meaning                                              |
|--------|-----------|-------|-----------------|------------------------------------------------------|
| x, t   | `x`, head | d, k×d |                | unit image features, text prototypes                 |
| ŷ      | `y`       | k     |                 | zero-shot probabilities                              |
| c      | `counts`  | k     | 1               | images per class                                     |
| μ      | `mu`      | k×d   | 0.001, or t     | class means                                          |
| c_k Σ_k | `scatter` | k×d×d | σ² I           | scatter of each class                                |
| mean Σ | `mean`    | d×d   | σ² I            | shared covariance                                    |
| P      | in `Discriminant` | d×d | I/σ²      | precision                                            |
| ε, σ²  | `ridge`, `variance` | |               | 1e-4, 0.002                                          |
| ρ, η   | `weight_rate`, `weight_limit` | |     | 0.02, 0.3                                            |

The state has k·d² numbers: 1 GB at 1,000 classes and d = 512. Cost of an image: one Cholesky factor (d³/3), d²·k for
Pμ, and 2d² for each class with ŷ ≥ 1e-7. mean Σ is kept up to date by the changes of these classes.

Deviations
- from the authors' program: one setting for all datasets. ρ and η are the most frequent ones of its 15 files.
- Σ_k does not change where ŷ_k < 1e-7, or not until such ŷ_k add up to that: it is below float32's rounding.
- P is not rounded to half precision, and ε cannot be 0.
- with `views`, the most confident tenth is used, at least one: f with the mean of their features (not scaled to unit
  norm), the update with each of them and its own ŷ, and ρ divided by their number. `views` counts the image, which is
  view 0. The default is the image alone; the authors use 64 views on variants of ImageNet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from ..arrays import wide
from ..features.text_head import TextHead
from ..memory import check_memory
from ..words import count
from .contract import Batch, State, Traits
from .settings import setting
from .solve.discriminant import Discriminant
from .solve.online import Online
from .solve.views import first_views, most_confident

NEGLIGIBLE = 1e-7  # images: a class that gained less has not changed its covariance
CONSTANT_MEAN = 1e-3  # each coordinate of μ at the start


@dataclass(frozen=True)
class DOTA(Online):
    """DOTA; the defaults are the most frequent constants of the authors."""

    name: ClassVar[str] = "dota"
    traits: ClassVar[Traits] = Traits(paper="DOTA", year=2025, scope="batch", memory="stream", by_class=True)

    ridge: float = setting(1e-4, "ε, share of the identity in the shared covariance", low=1e-6, high=1.0)
    variance: float = setting(0.002, "σ², variance of each coordinate at the start", low=1e-6, high=1e3)
    weight_rate: float = setting(0.02, "ρ, how fast the Gaussians' weight grows with the images", low=0, high=1e3)
    weight_limit: float = setting(0.3, "η, the most that it becomes", low=0, high=1e3)
    start: Literal["constant", "text"] = setting("constant", "means before the first image")
    views: int = setting(0, "views per image, including the image; 0 is the image alone", low=0, high=1000)
    confident: float = setting(
        0.1, "fraction of the views to keep: those with the lowest entropy, at least one", low=0, high=1.0
    )

    def init(self, head: TextHead) -> State | None:
        """One image of variance σ² for each class."""
        t, k, d = head.features, head.k, head.d
        needed = 2 * k * d * d * t.element_size()  # the state and its copy
        check_memory(needed, f"{d}×{d} numbers for each of {count(k, 'class')}")
        return {
            "counts": t.new_ones(k),
            "mu": t.clone() if self.start == "text" else torch.full_like(t, CONSTANT_MEAN),
            "scatter": (self.variance * torch.eye(d, dtype=t.dtype, device=t.device)).repeat(k, 1, 1),
        }

    def walk(self, now: dict[str, Tensor], batch: Batch) -> Iterator[Tensor]:
        """Label each image; then it joins the Gaussians."""
        counts, mu = now["counts"], now["mu"]
        mean, entered = self._mean(now), counts.clone()
        for x, log_y, log_mean in self._images(batch):
            ridge = self.ridge if bool((counts > 1).any()) else 0.0  # P starts at I/σ²
            shared = ((1 - ridge) * mean).to(mu.dtype)
            shared.diagonal().add_(ridge)
            weight = min(self.weight_rate / len(x) * float(counts.mean()), self.weight_limit)
            yield log_mean + weight * Discriminant.of(mu, shared).log_density(x.mean(dim=0))
            self._join(now, mean, entered, x, log_y.exp())

    def _images(self, batch: Batch) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """For each image its confident views (m×d), their log ŷ (m×k), and log ŷ of their mean (k)."""
        head = batch.head
        if not self.views:
            for x, log_y in zip(batch.features, batch.log_zero_shot, strict=True):
                yield x[None], log_y[None], log_y
            return
        for views in first_views(batch, self.views, self.name):
            log_y = head.log_zero_shot(views)
            best = most_confident(log_y, self.confident)
            x = views[best]
            yield x, log_y[best], head.log_zero_shot(x.mean(dim=0, keepdim=True))[0]

    def _mean(self, now: State) -> Tensor:
        """mean_k Σ_k, d×d."""
        scatter, counts = now["scatter"], now["counts"]
        k, d, _ = scatter.shape
        return ((1 / (k * counts)) @ scatter.view(k, d * d)).view(d, d).to(wide(scatter))

    def _join(self, now: dict[str, Tensor], mean: Tensor, entered: Tensor, x: Tensor, y: Tensor) -> None:
        """m images (m×d) with their ŷ (m×k) join the Gaussians; `mean` becomes the new mean Σ.

        entered: for each class, its count when it last changed `mean`.
        """
        counts, mu, scatter = now["counts"], now["mu"], now["scatter"]
        after = counts + y.sum(dim=0)
        touched = (after - entered >= NEGLIGIBLE).nonzero()[:, 0]
        shrink = (1 / after - 1 / entered) / len(counts)  # c_k Σ_k stays, and is divided by more
        change = torch.zeros_like(scatter[0])
        for j, factor in zip(touched.tolist(), shrink[touched].tolist(), strict=True):
            away = x - mu[j]
            change.add_(scatter[j], alpha=factor)
            scatter[j].addmm_((away * y[:, j, None]).T, away)
        for one, weights in zip(x, y[:, touched] / (len(counts) * after[touched]), strict=True):
            away = one - mu[touched]
            change.addmm_((away * weights[:, None]).T, away)
        mean += change
        entered[touched] = after[touched]
        mu.mul_((counts / after)[:, None]).addmm_((y / after).T, x)
        counts.copy_(after)

    def info(self, now: State) -> dict[str, Any]:
        """Images so far, and the weight of the Gaussians."""
        counts = now["counts"]
        return {
            "seen": round(float(counts.sum()) - len(counts)),
            "weight": min(self.weight_rate * float(counts.mean()), self.weight_limit),
        }
