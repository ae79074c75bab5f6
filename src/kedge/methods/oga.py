"""OGA: online Gaussian adaptation. The surest images of each class make a Gaussian, and zero-shot is its prior.

Fuchs, Zanella, De Vleeschouwer, "Online Gaussian Test-Time Adaptation of Vision-Language Models", 2025.

Every image enters the memory of the class that zero-shot gives it, if it says anything at all (H(ŷ) < log K); a class
keeps the 8 of lowest entropy. The means are per class, the covariance is one for all:

    μ_k = mean of the class's features if there are 2 or more, else t_k
    S   = covariance of all m stored features, each less its μ_k
    Σ⁻¹ = d ((m − 1) S + tr(S) I)⁻¹                 the ridge estimate; S⁺, the pseudo-inverse, when m > 4d
    z_k ∝ ŷ_k · N(x; μ_k, Σ)^τ'                      τ' = 0.05

| symbol | code     | shape | meaning                                                    |
|--------|----------|-------|------------------------------------------------------------|
| x, t   | `x`, `t` | n×d, k×d | unit image features, text prototypes                    |
| ŷ      | `log_y`  | n×k   | zero-shot probabilities, as logarithms                     |
| μ_k    | `mu`     | k×d   | class means                                                |
| S      | `cov`    | d×d   | shared covariance                                          |
| Σ⁻¹    | `precision` | d×d | its regularised inverse                                   |
| τ'     | `tau`    |       | weight of the Gaussian beside zero-shot                    |

Cost of a batch: one symmetric d×d inverse (d³) and d²·k + n·d·k multiplications, in float64.

Deviations
- from the authors' program: a mean is divided by the number of images that are there. The program divides by the
  number of slots, so that the mean of a class with 2 images of 8 is a quarter as long as it should be
  (`released_means` gives that); it stores half precision (`half_memory` rounds what is remembered); its
  pseudo-inverse can fail to converge, ours is by Cholesky and, for m > 4d, by a symmetric eigendecomposition.
- where all stored features are on their means (one image stored; nothing but copies) there is no covariance to speak
  of, and z = ŷ; `info["gaussian"]` says so.
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

MINIMUM = 2  # images of a class that make a mean
NO_SPREAD = 1e-9  # tr(S) of unit features below this is rounding


@dataclass(frozen=True)
class OGA(Configured):
    """OGA with every knob; the defaults are the paper's."""

    name: ClassVar[str] = "oga"
    traits: ClassVar[Traits] = Traits(paper="OGA", year=2025, scope="batch", memory="stream")

    slots: int = setting(8, "images remembered per class", low=1)
    tau: float = setting(0.05, "τ', weight of the Gaussians beside zero-shot", low=0)
    released_means: bool = setting(False, "means as the authors' program has them: divided by `slots`, however many")
    half_memory: bool = setting(False, "round remembered features to half precision, as the authors' program does")

    def init(self, head: TextHead) -> State | None:
        """An empty memory."""
        return Memory.empty(head.k, self.slots, features=head.features[0]).state("memory")

    def step(self, state: State | None, batch: Batch) -> Step:
        """Remember and label a batch."""
        assert state is not None
        x, log_y = batch.features, batch.log_zero_shot
        memory = Memory.of(state, "memory")
        h, classes = entropy(log_y), log_y.argmax(dim=1)
        says = h < math.log(batch.head.k)
        stored = x.half().to(x.dtype) if self.half_memory else x
        memory.take(classes[says], h[says], features=stored[says])
        mu, precision = self.gaussians(memory.state("memory"), batch.head)
        if precision is None:
            z = log_y.exp()
        else:
            scaled = mu @ precision  # log N(x; μ, Σ) = x·Σ⁻¹μ − ½ μ·Σ⁻¹μ + what all classes share
            log_p = (x.to(mu.dtype) @ scaled.T).sub_((mu * scaled).sum(dim=1), alpha=0.5)
            z = torch.softmax(log_y + self.tau * log_p, dim=1).to(x.dtype)
        info = {"remembered": int(memory.filled.sum()), "gaussian": precision is not None}
        return Step(memory.state("memory"), z, info)

    def gaussians(self, state: State, head: TextHead) -> tuple[Tensor, Tensor | None]:
        """μ (k×d) and Σ⁻¹ (d×d, None without spread) of what a state remembers, in the widest precision."""
        full = wide(head.features)
        f, filled = state["memory.features"].to(full), state["memory.entropy"] < torch.inf
        count = filled.sum(dim=1, keepdim=True)
        mean = f.sum(dim=1) / (self.slots if self.released_means else count.clamp_min(1))  # empty slots are 0
        mu = torch.where(count >= MINIMUM, mean, head.features.to(full))
        away = (f - mu[:, None])[filled]  # m×d
        away = away - away.mean(dim=0)
        m, d = away.shape
        if m < 2:
            return mu, None
        scatter = away.T @ away  # (m − 1) S
        trace = float(scatter.trace()) / (m - 1)
        if trace < NO_SPREAD:
            return mu, None
        if m > 4 * d:
            return mu, torch.linalg.pinv(scatter / (m - 1), hermitian=True)
        ridge = scatter + trace * torch.eye(d, dtype=full, device=f.device)
        return mu, d * torch.cholesky_inverse(torch.linalg.cholesky(ridge))
