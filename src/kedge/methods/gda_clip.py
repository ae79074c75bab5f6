"""GDA-CLIP: Gaussian discriminant analysis with one covariance, fitted to soft zero-shot labels, beside zero-shot.

Wang, Liang, Sheng, He, Wang, Tan, "A Hard-to-Beat Baseline for Training-free CLIP-based Adaptation", ICLR 2024.

The paper has a Gaussian of each class, with one covariance for all classes, from a few labelled images, and adds its
discriminant to the zero-shot logits. Without labels, zero-shot probabilities take their place:

    q   = ŷ
    μ_c = Σ_i q_ic x_i / Σ_i q_ic                                     means of soft labels
    S   = covariance of all images of the batch around their mean     total, not within classes
    P   = (S + tr(S)/d · I)⁻¹
    z   = softmax_c( τ x·t_c + α (x P μ_c − ½ μ_cᵀ P μ_c) )

One pass; the class prior is uniform. With `iterations`, the paper's unsupervised form instead, as far as it is printed:
EM, from q = ŷ and with μ as above,

    S = (1/k) Σ_c Σ_i q_ic (x_i − μ_c)(x_i − μ_c)ᵀ / Σ_i q_ic         within classes
    P = d ((n − 1) S + tr(S) I)⁻¹
    q = softmax_c( τ x·t_c + α (x P μ_c − ½ μ_cᵀ P μ_c) ),            z is the last q

| symbol   | code        | shape    | meaning                                                  |
|----------|-------------|----------|----------------------------------------------------------|
| x, t     | `x`         | n×d, k×d | unit image features, text prototypes                     |
| ŷ, q     | `log_y`, `q`| n×k      | zero-shot probabilities (as logarithms), soft labels     |
| μ_c      | `mu`        | k×d      | class means                                              |
| S        | `cov`       | d×d      | covariance of all classes                                |
| P⁻¹      | `covariance`| d×d      | the same, regularised                                    |
| α        | `alpha`     |          | weight of the discriminant                               |

Known labels: ŷ is 1 for these, so they are in the means as the paper's labelled images are, and their z is certain.

Cost of a batch: d³/3 + n·d·(d + 2k) multiplications, in float64; with `iterations`, each costs as much.

Deviations
- from the paper: the form without labels and α = 5 are of MOON's comparison, whose figures are the published ones.
  The paper chooses α with labels, and neither its α without labels nor its stopping rule is printed.
- from MOON's program: a Cholesky solve, not the pseudo-inverse of the same matrix. Where S is 0 (one image, or only
  copies) z = ŷ; theirs is NaN. The term log 1/k, the same for all classes, is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..arrays import wide
from ..features.text_head import TextHead
from .contract import Batch, State, Step, Traits
from .settings import Configured, setting
from .solve.discriminant import Discriminant, ridge

LEAST_MASS = 1e-6  # the soft labels of a class add up to at least this, so that a mean is finite


@dataclass(frozen=True)
class GDACLIP(Configured):
    """GDA-CLIP without labels; the defaults are those of MOON's comparison."""

    name: ClassVar[str] = "gda-clip"
    traits: ClassVar[Traits] = Traits(paper="GDA-CLIP", year=2024, scope="batch", memory="none", known=True)

    alpha: float = setting(5.0, "α, weight of the discriminant relative to zero-shot", low=0, high=1e6)
    iterations: int = setting(0, "of EM, the paper's form without labels; 0: one pass, as in MOON", low=0, high=1000)

    def init(self, head: TextHead) -> State | None:
        """No state: each batch is solved separately."""
        return None

    @torch.no_grad()
    def step(self, state: State | None, batch: Batch) -> Step:
        """Solve one batch."""
        full = wide(batch.features)
        x, log_y = batch.features.to(full), batch.log_zero_shot.to(full)
        q = log_y.exp()
        for _ in range(max(1, self.iterations)):
            mass = q.sum(dim=0).clamp_min(LEAST_MASS)
            mu = (q.T @ x) / mass[:, None]
            covariance = _total(x) if self.iterations == 0 else _within(x, q / mass, mu)
            if covariance is None:
                break
            discriminant = Discriminant.of(mu, covariance).log_density(x)
            q = torch.softmax(log_y + self.alpha * discriminant, dim=1)
        return Step(None, q.to(batch.features.dtype), {"gaussian": covariance is not None})


def _total(x: Tensor) -> Tensor | None:
    """P⁻¹ with S around the mean of all images: the ridge of OGA with the weight d instead of n − 1."""
    n, d = x.shape
    away = x - x.mean(dim=0)
    return ridge(away.T @ away * (d / max(1, n - 1)), d + 1)


def _within(x: Tensor, w: Tensor, mu: Tensor) -> Tensor | None:
    """P⁻¹ with S within classes, for q_ic/Σ_i q_ic (n×k).

    Σ_i w_ic (x_i − μ_c)(x_i − μ_c)ᵀ = Σ_i w_ic x_i x_iᵀ − μ_c μ_cᵀ: no class needs a pass of its own.
    """
    n, k = w.shape
    cov = ((x * w.sum(dim=1, keepdim=True)).T @ x - mu.T @ mu) / k
    return ridge((n - 1) * cov, n)
