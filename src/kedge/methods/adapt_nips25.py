"""ADAPT: Gaussians near the text prototypes, fitted to a bank of confident images; in a batch, or along a stream.

Zhang, Kim, Choi, Kim, Liu, Hong, "Backpropagation-Free Test-Time Adaptation via Probabilistic Gaussian Alignment",
NeurIPS 2025.

A class has a bank: the L images of lowest entropy H(ŷ) among those whose zero-shot class it is, each with its weight
w = ŷ_c. M images are in all banks. Classes have their own means, near the text, and share one covariance:

    m_c   = (Σ_bank(c) w_i x_i + Σ_i ŷ_ic x_i) / (Σ_bank(c) w_i + Σ_i ŷ_ic)    i: all images of the batch
    μ_c   = α m_c + (1 − α) t_c                              t_c for a class without a bank
    S     = covariance of the bank's features, each minus its μ_c
    P     = d ((M − 1) S + tr(S) I)⁻¹                        ridge estimate
    g     = log softmax_c( x P μ_c − ½ μ_cᵀ P μ_c )
    u_c   = g_c + (s/2M) Σ_bank(c) w_j x·x_j
    f_c   = τ x·t_c exp((u_c − max u)/s)
    z     = f/Σ_c f_c

Along a stream (`adapt-nips25-online`) each image first tries to enter the bank of its class. If it enters, the mean of
that class is computed again, with i the image alone, and so are S and P. Then the image is labelled.

| symbol    | code                 | shape    | meaning                                            |
|-----------|----------------------|----------|----------------------------------------------------|
| x, t      | `x`, `t`             | n×d, k×d | unit image features, text prototypes               |
| ŷ         | `log_y`              | n×k      | zero-shot probabilities, as logarithms             |
| μ         | `mu`                 | k×d      | class means                                        |
| (M − 1) S | `scatter`, centred   | d×d      | shared scatter; `scatter` itself is not centred    |
| P         | in `Discriminant`    | d×d      | precision                                          |
| Σ w_j x_j | `pull`               | k×d      | the banks' weighted sums: Σ w_j x·x_j is x·pull_c  |
| L, α, s   | `slots`, `alpha`, `scale` |     | 12, 0.9, 50                                        |

Cost of a batch: one Cholesky factor (d³/3) and d²·(M + k) + 3n·d·k multiplications. Along a stream that is a factor and
d²·(L + k) for an image that enters, and 3d·k for one that does not.

Deviations
- from the paper: L, α and s are those of MOON's comparison, one setting for all datasets. The authors' are L = 6 (16
  along a stream), and s from 10 to 100 by dataset. The authors read descriptions by a language model as prompts.
- from the paper: an image that enters the bank counts twice in m, as in the authors' program. The paper leaves it out.
- the authors label by argmax f. z = f/Σf is how MOON's comparison reads it; softmax(f) would be nearly one-hot.
- from the authors' program along a stream: an image that does not enter is compared with the bank by its own features,
  not by those of the last image that did.
- with M = 1, or tr(S) = 0, P = I. The authors' batch program gives NaN.
- f multiplies similarities, so a negative one would be pushed the wrong way. It counts as 0, an image without any
  positive one keeps ŷ, and `info["negative_similarities"]` says how many entries of x tᵀ it was; a notice says so too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..arrays import wide
from ..features.text_head import TextHead
from ..progress import notice, noticed
from .contract import Batch, State, Step, Traits
from .settings import Configured, setting
from .solve.cache import Memory, entropy
from .solve.discriminant import Discriminant, ridge
from .solve.online import Online


@dataclass(frozen=True)
class _Settings(Configured):
    """What the batch and the stream have in common."""

    slots: int = setting(12, "L, images in the bank of each class", low=1, high=1000)
    alpha: float = setting(0.9, "α, weight of the images in a mean; the rest is the text prototype's", low=0, high=1.0)
    scale: float = setting(50.0, "s, how softly the Gaussians weight the zero-shot similarities", low=1e-3, high=1e6)

    def _means(self, t: Tensor, total: Tensor, weight: Tensor) -> Tensor:
        """μ = α m + (1 − α) t, with m = total/weight (…×d and …)."""
        return torch.lerp(t, total / weight[..., None], self.alpha)

    def _log_f(self, cosines: Tensor, log_y: Tensor, g: Tensor, similarity: Tensor, m: int) -> Tensor:
        """log f (…×k), for x·t, log ŷ, the Gaussians' log densities and Σ_bank w_j x·x_j of …×k each."""
        u = torch.log_softmax(g, dim=-1) + self.scale / (2 * m) * similarity
        log_f = cosines.clamp_min(0).log() + (u - u.amax(dim=-1, keepdim=True)) / self.scale
        return torch.where(cosines.amax(dim=-1, keepdim=True) > 0, log_f, log_y)


@dataclass(frozen=True)
class ADAPT(_Settings):
    """ADAPT of one batch, which keeps nothing; the defaults are those of MOON's comparison."""

    name: ClassVar[str] = "adapt-nips25"
    traits: ClassVar[Traits] = Traits(paper="ADAPT", year=2025, scope="batch", memory="none")

    def init(self, head: TextHead) -> State | None:
        """No state."""
        return None

    def step(self, state: State | None, batch: Batch) -> Step:
        """Fit the Gaussians to a batch, and label it."""
        x, t, log_y = batch.features, batch.head.features, batch.log_zero_shot
        n, k = log_y.shape
        y, number = log_y.exp(), torch.arange(n, device=x.device)
        bank = Memory.empty(k, min(self.slots, n), weight=y[0, 0], image=number[0])
        bank.take(y.argmax(dim=1), entropy(log_y), weight=y.amax(dim=1), image=number)
        classes, kept = bank.filled.nonzero()[:, 0], x[bank.entries["image"][bank.filled]]
        weights = bank.entries["weight"]
        pull = torch.zeros_like(t).index_add_(0, classes, weights[bank.filled][:, None] * kept)
        means = self._means(t, pull + y.T @ x, weights.sum(dim=1) + y.sum(dim=0))
        mu = torch.where(bank.filled.any(dim=1, keepdim=True), means, t)
        away = kept - mu[classes]
        away = away - away.mean(dim=0)
        g = _discriminant(mu, away.T @ away, len(away)).log_density(x)
        cosines = x @ t.T
        z = torch.softmax(self._log_f(cosines, log_y, g, x @ pull.T, len(away)), dim=1)
        return Step(None, z, {"bank": len(away), "negative_similarities": _negative(cosines)})


@dataclass(frozen=True)
class ADAPTOnline(_Settings, Online):
    """ADAPT along a stream, image by image; the defaults are those of MOON's comparison."""

    name: ClassVar[str] = "adapt-nips25-online"
    traits: ClassVar[Traits] = Traits(paper="ADAPT", year=2025, scope="batch", memory="stream")

    def init(self, head: TextHead) -> State | None:
        """Empty banks; means on the text."""
        t = head.features
        return {
            **Memory.empty(head.k, self.slots, features=t[0], weight=t[0, 0]).state("bank"),
            "mu": t.clone(),
            "scatter": torch.zeros(head.d, head.d, dtype=wide(t), device=t.device),  # Σ_bank (x − μ)(x − μ)ᵀ
        }

    def walk(self, now: dict[str, Tensor], batch: Batch) -> Iterator[Tensor]:
        """Each image enters the bank of its class, if it is sure enough; then it is labelled."""
        t, log_y = batch.head.features, batch.log_zero_shot
        h, classes, w = entropy(log_y), log_y.argmax(dim=1), log_y.amax(dim=1).exp()
        cosines = batch.features @ t.T
        bank, mu, fit = Memory.of(now, "bank"), now["mu"], None
        pull = (bank.entries["weight"][:, None] @ bank.entries["features"])[:, 0]
        for i, (x, c) in enumerate(zip(batch.features, classes.tolist(), strict=True)):
            if h[i] < bank.entropy[c, -1]:  # the highest of the class; ∞ if there is room
                one = slice(i, i + 1)
                before = _scatter(bank, mu, c)
                bank.take(classes[one], h[one], features=batch.features[one], weight=w[one])
                weights = bank.entries["weight"][c]
                pull[c] = weights @ bank.entries["features"][c]
                mu[c] = self._means(t[c], pull[c] + w[i] * x, weights.sum() + w[i])
                now["scatter"] += _scatter(bank, mu, c).sub_(before)
                fit = None
            if fit is None:
                m = int(bank.filled.sum())
                fit = _discriminant(mu, _centred(now["scatter"], bank, mu, m), m)
            yield self._log_f(cosines[i], log_y[i], fit.log_density(x), pull @ x, m)

    def info(self, now: State) -> dict[str, Any]:
        """How many images the banks hold."""
        return {"bank": int(Memory.of(now, "bank").filled.sum())}

    def step(self, state: State | None, batch: Batch) -> Step:
        """Label a batch, image by image."""
        step = super().step(state, batch)
        negative = _negative(batch.features @ batch.head.features.T)
        return replace(step, info={**step.info, "negative_similarities": negative})


def _discriminant(mu: Tensor, scatter: Tensor, m: int) -> Discriminant:
    """The Gaussians for (M − 1) S, d×d, of M images; P = I without any spread."""
    covariance = ridge(scatter, m)
    if covariance is None:
        return Discriminant.with_weights(mu, mu)
    return Discriminant.of(mu, covariance.to(mu.dtype))


def _scatter(bank: Memory, mu: Tensor, c: int) -> Tensor:
    """Σ_bank(c) (x − μ_c)(x − μ_c)ᵀ, d×d."""
    away = bank.entries["features"][c][bank.filled[c]] - mu[c]
    return away.T @ away


def _centred(scatter: Tensor, bank: Memory, mu: Tensor, m: int) -> Tensor:
    """(M − 1) S: the scatter of the bank (d×d) around the mean of what its M images are away from their class means."""
    away = bank.entries["features"].sum(dim=(0, 1)) - bank.filled.sum(dim=1).to(mu.dtype) @ mu  # empty slots are 0
    mean = (away / m).to(scatter.dtype)
    return torch.addr(scatter, mean, mean, alpha=-m)


def _negative(cosines: Tensor) -> int:
    """How many of the similarities x·t (n×k) are negative; a notice says so once."""
    negative = int((cosines < 0).sum())
    if negative and noticed():
        _notice_of_negative()
    return negative


@cache
def _notice_of_negative() -> None:
    notice(
        "note: some images have a negative similarity to a class. ADAPT is made for encoders whose similarities are "
        "positive, as CLIP's are; here a negative one counts as 0."
    )
