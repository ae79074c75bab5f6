"""OGA: online Gaussian adaptation. A Gaussian per class, fitted to its most confident images, with zero-shot as prior.

Fuchs, Zanella, De Vleeschouwer, "Online Gaussian Test-Time Adaptation of Vision-Language Models", 2025.

Each image enters the memory of its zero-shot class, unless ŷ is uniform (H(ŷ) = log K); a class keeps the 8 with the
lowest entropy. Each class has a mean; all classes share the covariance:

    μ_k = mean of the class's features if there are 2 or more, else t_k
    S   = covariance of all m stored features, each minus its μ_k
    Σ⁻¹ = d ((m − 1) S + tr(S) I)⁻¹                 ridge estimate; for m > 4d the pseudo-inverse S⁺
    z_k ∝ ŷ_k · N(x; μ_k, Σ)^τ'                      τ' = 0.05

| symbol | code     | shape | meaning                                                    |
|--------|----------|-------|------------------------------------------------------------|
| x, t   | `x`, `t` | n×d, k×d | unit image features, text prototypes                    |
| ŷ      | `log_y`  | n×k   | zero-shot probabilities, as logarithms                     |
| μ_k    | `mu`     | k×d   | class means                                                |
| S      | `cov`    | d×d   | shared covariance                                          |
| Σ⁻¹    | `precision` | d×d | its regularised inverse                                   |
| τ'     | `tau`    |       | weight of the Gaussian relative to zero-shot               |

Cost of a batch: one symmetric d×d inverse (d³) and d²·k + n·d·k multiplications, in float64.

Deviations
- from the authors' program: a mean is divided by the number of stored images. The program divides by the number of
  slots, so the mean of a class with 2 images in 8 slots is a quarter of the correct length (`released_means` gives
  that). The program stores half precision (`half_memory` does). Its pseudo-inverse can fail to converge; ours uses
  Cholesky and, for m > 4d, a symmetric eigendecomposition.
- if all stored features equal their means (one image, or only copies) there is no covariance, and z = ŷ;
  `info["gaussian"]` is then False.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..arrays import wide
from ..features.text_head import TextHead
from .contract import Batch, State, Step, Traits
from .settings import Configured, setting
from .solve.cache import Memory, entropy
from .solve.discriminant import Discriminant, ridge
from .solve.online import copied

MINIMUM = 2  # images that a class needs for a mean


@dataclass(frozen=True)
class OGA(Configured):
    """OGA; the defaults are the paper's."""

    name: ClassVar[str] = "oga"
    traits: ClassVar[Traits] = Traits(paper="OGA", year=2025, scope="batch", memory="stream", by_class=True)

    slots: int = setting(8, "images stored per class", low=1, high=1000)
    tau: float = setting(0.05, "τ', weight of the Gaussians relative to zero-shot", low=0, high=1e6)
    released_means: bool = setting(False, "means as in the authors' program: always divided by `slots`")
    half_memory: bool = setting(False, "round stored features to half precision, as the authors' program does")

    def init(self, head: TextHead) -> State | None:
        """An empty memory."""
        return Memory.empty(head.k, self.slots, features=head.features[0]).state("memory")

    def step(self, state: State | None, batch: Batch) -> Step:
        """Store and label a batch."""
        assert state is not None
        x, log_y = batch.features, batch.log_zero_shot
        now = copied(state)
        memory = Memory.of(now, "memory")
        h, classes = entropy(log_y), log_y.argmax(dim=1)
        informative = h < math.log(batch.head.k)
        stored = x.half().to(x.dtype) if self.half_memory else x
        memory.take(classes[informative], h[informative], features=stored[informative])
        mu, precision = self.gaussians(now, batch.head)
        if precision is None:
            z = log_y.exp()
        else:
            log_p = Discriminant.with_weights(mu, mu @ precision).log_density(x.to(mu.dtype))
            z = torch.softmax(log_y + self.tau * log_p, dim=1).to(x.dtype)
        info = {"remembered": int(memory.filled.sum()), "gaussian": precision is not None}
        return Step(now, z, info)

    def gaussians(self, state: State, head: TextHead) -> tuple[Tensor, Tensor | None]:
        """μ (k×d) and Σ⁻¹ (d×d; None if S is 0) of the features in a state, in float64 where the device has it."""
        full = wide(head.features)
        f, filled = state["memory.features"].to(full), state["memory.entropy"] < torch.inf
        count = filled.sum(dim=1, keepdim=True)
        mean = f.sum(dim=1) / (self.slots if self.released_means else count.clamp_min(1))  # empty slots are 0
        mu = torch.where(count >= MINIMUM, mean, head.features.to(full))
        away = (f - mu[:, None])[filled]  # m×d
        away = away - away.mean(dim=0)
        m, d = away.shape
        scatter = away.T @ away  # (m − 1) S
        covariance = ridge(scatter, m)
        if covariance is None:
            return mu, None
        if m > 4 * d:
            return mu, torch.linalg.pinv(scatter / (m - 1), hermitian=True)
        return mu, torch.cholesky_inverse(torch.linalg.cholesky(covariance))
