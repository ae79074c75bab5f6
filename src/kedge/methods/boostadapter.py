"""BoostAdapter: TDA whose positive cache is joined, for one image at a time, by confident views of that image.

Zhang, Wang, Guo, Dai, Chen, Xia, "BoostAdapter: Improving Vision-Language Test-Time Adaptation via Regional
Bootstrapping", NeurIPS 2024.

Image by image. Each has v views, view 0 is the image x itself; ŷ is its zero-shot. First it enters TDA's caches:

    positive: up to 3 per class, the lowest entropy H(ŷ) stays
    negative: up to 2 per class, if 0.2 < H(ŷ)/log₂ K < 0.5; first in, first out

Then it is labelled. The ⌊0.1 v⌋ views of lowest entropy join a copy of the positive cache, each under the class of its
own zero-shot label. The copy keeps 3 + δ per class of lowest entropy, and serves this image only:

    logits_k = τ x·t_k + a₊ Σ_{j in class k} exp(−b₊(1 − x·f_j)) − a₋ Σ_j exp(−b₋(1 − x·f_j)) 1[0.03 < ŷ_jk < 1]

The first sum is over the joined cache of class k, the second over the whole negative cache. z = softmax(logits).

| symbol       | code                                         | shape | meaning                                  |
|--------------|----------------------------------------------|-------|------------------------------------------|
| x            | `x`                                          | n×d   | unit image features                      |
| ŷ            | `log_y`                                      | n×k   | zero-shot probabilities, as logarithms   |
| H(ŷ)         | `h`                                          | n     | entropy in nats                          |
| f_j          | `entries["features"]`, `views.x`             | …×d   | cached features, kept views              |
| δ            | `extra_slots`                                |       | more entries per class in the joined cache |
| a₊, b₊       | `positive_weight`, `positive_sharpness`      |       | 2, 5                                     |
| a₋, b₋       | `negative_weight`, `negative_sharpness`      |       | 0.117, 1                                 |

Cost of an image: v·k·d multiplications for the views, 5k·d + 2k² for the caches.

Deviations
- from the authors' files, which have other constants for each dataset: TDA's for ImageNet everywhere, and δ = 0, the
  most frequent of theirs.
- with fewer than 10 views none joins: what is left is TDA with a negative cache that is first in, first out.
- one class works: TDA's page says how the entropies are compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .contract import Batch, Traits
from .settings import setting
from .solve.cache import Memory, entropy
from .solve.views import most_confident, zero_shot_of
from .tda import Caches, affinity


class Views(NamedTuple):
    """The m most confident views of each image."""

    x: Tensor  # n×m×d
    entropy: Tensor  # n×m
    classes: Tensor  # n×m, of their zero-shot


@dataclass(frozen=True)
class BoostAdapter(Caches):
    """BoostAdapter; the defaults are TDA's for ImageNet."""

    name: ClassVar[str] = "boostadapter"
    traits: ClassVar[Traits] = Traits(paper="BoostAdapter", year=2024, scope="batch", memory="stream", needs="views")

    extra_slots: int = setting(0, "δ, more images per class in the joined cache", low=0, high=1000)
    confident: float = setting(0.1, "fraction of the views that join: those with the lowest entropy", low=0, high=1.0)
    average_views: bool = setting(
        False, "the mean of these views replaces the image, as the authors do on variants of ImageNet"
    )

    def walk(self, now: dict[str, Tensor], batch: Batch) -> Iterator[Tensor]:
        """Store each image, then score it."""
        x, log_y, views = batch.features, batch.log_zero_shot, self._kept(batch)
        if self.average_views and views.x.shape[1]:
            x = views.x.mean(dim=1)
            log_y = batch.head.log_zero_shot(x)
        positive, negative = Memory.of(now, "positive"), Memory.of(now, "negative")
        h, classes = entropy(log_y), log_y.argmax(dim=1)
        unsure, possible = self.doubts(log_y, h)
        for i in range(len(x)):
            one = slice(i, i + 1)
            positive.take(classes[one], h[one], features=x[one])
            if unsure[i]:
                negative.queue(classes[one], features=x[one], possible=possible[one])
            near = self._joined(x[i], positive, Views(*(part[i] for part in views)))
            yield log_y[i] + self.positive_weight * near - self.negative_weight * self.against(x[one], negative)[0]

    def _joined(self, x: Tensor, positive: Memory, views: Views) -> Tensor:
        """Σ_{j in class k} exp(−b₊(1 − x·f_j)) over the joined cache, k. Only these terms are stored in it."""
        k, slots = positive.entropy.shape
        terms = affinity(x[None], positive.entries["features"].flatten(0, 1), self.positive_sharpness).view(k, slots)
        joined = Memory(
            F.pad(positive.entropy, (0, self.extra_slots), value=torch.inf),
            {"terms": F.pad(terms, (0, self.extra_slots))},
        )
        joined.take(views.classes, views.entropy, terms=affinity(x[None], views.x, self.positive_sharpness)[0])
        return (joined.entries["terms"] * joined.filled).sum(dim=1)

    def _kept(self, batch: Batch) -> Views:
        """The views that join."""
        assert batch.views is not None
        x, h, classes = [], [], []
        for views, log_y in zero_shot_of(batch.views, batch.head):
            best = most_confident(log_y, self.confident)[:, : int(self.confident * views.shape[1])]
            x.append(views.gather(1, best[:, :, None].expand(-1, -1, views.shape[2])))
            h.append(entropy(log_y).gather(1, best))
            classes.append(log_y.argmax(dim=2).gather(1, best))
        return Views(torch.cat(x), torch.cat(h), torch.cat(classes))
