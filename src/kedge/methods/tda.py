"""TDA: a positive cache of confident images per class, and a negative cache of uncertain ones.

Karmanov, Guan, Lu, El Saddik, Xing, "Efficient Test-Time Adaptation of Vision-Language Models", CVPR 2024.

Each image enters the positive cache of its zero-shot class; a class keeps the entries with the lowest entropy. Images
of medium entropy also enter the negative cache, with the classes that they may belong to:

    positive: up to 3 per class
    negative: up to 2 per class, if 0.2 < H(ŷ)/log₂ K < 0.5
    logits_k = τ x·t_k + a₊ Σ_{j in class k} exp(−b₊(1 − x·f_j)) − a₋ Σ_j exp(−b₋(1 − x·f_j)) 1[0.03 < ŷ_jk < 1]

The first sum is over the positive cache of class k, the second over the whole negative cache. z = softmax(logits).

| symbol       | code                                         | shape | meaning                                  |
|--------------|----------------------------------------------|-------|------------------------------------------|
| x            | `x`                                          | n×d   | unit image features                      |
| ŷ            | `log_y`                                      | n×k   | zero-shot probabilities, as logarithms   |
| H(ŷ)         | `h`                                          | n     | entropy in nats                          |
| f_j          | `entries["features"]`                        | k×L×d | cached features                          |
| 1[… ŷ_jk …]  | `entries["possible"]`                        | k×L×k | the possible classes of a negative entry |
| a₊, b₊       | `positive_weight`, `positive_sharpness`      |       | 2, 5                                     |
| a₋, b₋       | `negative_weight`, `negative_sharpness`      |       | 0.117, 1                                 |

Cost of a batch: n·k·(5d + 2k) multiplications for the logits, and one sort for the caches. With `protocol="image"` the
logits of each image use the caches at that moment, so all keys are read n times.

Deviations
- from the paper: by default the whole batch enters the caches before it is labelled, as in the StatA paper;
  `protocol="image"` is the paper's order. The weights are the authors' for ImageNet, for every dataset.
- from the authors' program: the ratio of H in nats to log₂ K (at most 0.69) is the program's, and is kept; it is
  compared as a product, so that K = 1 causes no division by 0. One image works, and all is in full precision.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from ..features.text_head import TextHead
from .contract import Batch, State, Traits
from .settings import setting
from .solve.cache import Memory, entropy
from .solve.online import Online, turns


@dataclass(frozen=True)
class Caches(Online):
    """The two caches: their settings, and the score of the negative one. BoostAdapter has them too."""

    positive_slots: int = setting(3, "images per class in the positive cache", low=1, high=1000)
    positive_weight: float = setting(2.0, "a₊, weight of the positive cache", low=0, high=1e6)
    positive_sharpness: float = setting(
        5.0, "b₊, how fast the weight of a positive entry falls with distance", low=0, high=1e4
    )
    negative_slots: int = setting(2, "images per class in the negative cache", low=1, high=1000)
    negative_weight: float = setting(0.117, "a₋, weight of the negative cache", low=0, high=1e6)
    negative_sharpness: float = setting(
        1.0, "b₋, how fast the weight of a negative entry falls with distance", low=0, high=1e4
    )
    entropy_low: float = setting(0.2, "images enter the negative cache if H/log₂ K is above this", low=0, high=1.0)
    entropy_high: float = setting(0.5, "and below this", low=0, high=1.0)
    possible_low: float = setting(0.03, "possible classes of a negative entry have ŷ above this", low=0, high=1.0)
    possible_high: float = setting(1.0, "and below this", low=0, high=1.0)

    def init(self, head: TextHead) -> State | None:
        """Two empty caches."""
        t = head.features
        positive = Memory.empty(head.k, self.positive_slots, features=t[0])
        negative = Memory.empty(head.k, self.negative_slots, features=t[0], possible=t[:, 0])
        return positive.state("positive") | negative.state("negative")

    def info(self, now: State) -> dict[str, Any]:
        """How many images each cache holds."""
        positive, negative = Memory.of(now, "positive"), Memory.of(now, "negative")
        return {"cached": int(positive.filled.sum()), "cached_negative": int(negative.filled.sum())}

    def doubts(self, log_y: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """Who enters the negative cache (n), and the classes it may belong to, as 0 or 1 (n×k)."""
        y, bits = log_y.exp(), math.log2(log_y.shape[1])
        unsure = (h > self.entropy_low * bits) & (h < self.entropy_high * bits)
        return unsure, ((y > self.possible_low) & (y < self.possible_high)).to(y.dtype)

    def against(self, x: Tensor, cache: Memory) -> Tensor:
        """Σ_j exp(−b₋(1 − x·f_j)) 1[k is possible for j], n×k; an empty slot has no possible class."""
        slots = zip(cache.entries["features"].unbind(1), cache.entries["possible"].unbind(1), strict=True)
        terms = (affinity(x, keys, self.negative_sharpness) @ possible for keys, possible in slots)
        return sum(terms, start=x.new_zeros(()))


@dataclass(frozen=True)
class TDA(Caches):
    """TDA; the defaults are the authors' for ImageNet, with the protocol of the StatA paper."""

    name: ClassVar[str] = "tda"
    traits: ClassVar[Traits] = Traits(paper="TDA", year=2024, scope="batch", memory="stream")

    protocol: Literal["batch", "image"] = setting("batch", "store the batch, then label it; or image by image")

    def walk(self, now: dict[str, Tensor], batch: Batch) -> Iterator[Tensor]:
        """Store the images of each turn, then score them."""
        x, log_y = batch.features, batch.log_zero_shot
        positive, negative = Memory.of(now, "positive"), Memory.of(now, "negative")
        h, classes = entropy(log_y), log_y.argmax(dim=1)
        unsure, possible = self.doubts(log_y, h)
        for rows in turns(len(x), self.protocol):
            positive.take(classes[rows], h[rows], features=x[rows])
            u = unsure[rows]
            negative.take(classes[rows][u], h[rows][u], features=x[rows][u], possible=possible[rows][u])
            logits = log_y[rows] + self.positive_weight * self._for(x[rows], positive)
            yield logits - self.negative_weight * self.against(x[rows], negative)

    def _for(self, x: Tensor, cache: Memory) -> Tensor:
        """Σ_{j in class k} exp(−b₊(1 − x·f_j)), n×k; one slot at a time, so that no array is larger."""
        slots = zip(cache.entries["features"].unbind(1), cache.filled.unbind(1), strict=True)
        terms = (affinity(x, keys, self.positive_sharpness) * filled for keys, filled in slots)
        return sum(terms, start=x.new_zeros(()))


def affinity(x: Tensor, keys: Tensor, sharpness: float) -> Tensor:
    """exp(−b(1 − x·f)), n×m, for n×d images and m×d keys."""
    return torch.exp_((x @ keys.T).sub_(1).mul_(sharpness))
