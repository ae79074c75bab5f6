"""DMN, zero-shot: a memory per class, from which each image computes its own classifier.

Zhang, Zhu, Tang, Ma, Zhou, Zhang, "Dual Memory Networks: A Versatile Adaptation Approach for Vision-Language Models",
CVPR 2024. This is its dynamic memory; the static memory needs labelled images.

Each image enters the memory of its zero-shot class. A class keeps the L entries m with the lowest entropy, and its text
prototype as one more. Each image computes its own classifier c from them:

    c_k   = unit( Σ_m exp(−b(1 − x·m)) m )         over the entries of class k, without empty slots
    p_mem = softmax(τ x·c)
    score = ŷ + w p_mem        readout "probabilities"; z = score/(1 + w)
          = τ x·t + w p_mem    readout "logits";        z = softmax(score)

| symbol | code              | shape | meaning                                             |
|--------|-------------------|-------|-----------------------------------------------------|
| x, t   | `x`, `t`          | n×d, k×d | unit image features, text prototypes             |
| ŷ      | `log_y`           | n×k   | zero-shot probabilities, as logarithms              |
| m      | `slots` of `_read` | k×s×d | stored features and the text prototype             |
| b, w   | `sharpness`, `weight` |   | 5.5, 1                                              |

The array c (n×k×d) is never computed: x·c_k = Σ_m w_m x·m / ‖Σ_m w_m m‖, and the norm is a quadratic form of the
weights with the s×s inner products of the entries. For a class without images, c_k is the text prototype. Cost of a
batch: n·a·s·(d + s) multiplications, for a classes with images and s = L + 1.

Published variants: `DMN(slots=50, views=32)`, the authors'; `DMN(slots=8)`; `DMN(readout="logits", weight=10)`. All use
b = 5.5.

Deviations
- from the paper: no static memory and no projection layers, which need labels; w is 1 for every dataset (the authors
  search it with labels); by default the whole batch enters the memory before it is labelled, as in the StatA paper
  (`protocol="image"` is the paper's order); L is 10, for images without augmented views.
- with `views`, the memory stores the image itself, as in the authors' program. The other views are used only for ŷ,
  which is averaged over the most confident tenth of them. `views` counts the image, which is view 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from ..errors import SettingError
from ..features.text_head import TextHead
from ..memory import check_memory
from ..words import count
from .contract import Batch, State, Traits
from .settings import setting
from .solve.cache import Memory, entropy
from .solve.online import Online, turns
from .solve.views import first_views, most_confident, zero_shot_of

BLOCK = 1 << 22  # maximum number of weights (images × classes × slots) in memory


@dataclass(frozen=True)
class DMN(Online):
    """DMN; the defaults are those of the StatA paper's comparison: no views, weight 1."""

    name: ClassVar[str] = "dmn"
    traits: ClassVar[Traits] = Traits(paper="DMN", year=2024, scope="batch", memory="stream", by_class=True)

    slots: int = setting(10, "L, images stored per class", low=1, high=1000)
    sharpness: float = setting(5.5, "b, how fast the weight of an entry falls with distance", low=0, high=1e4)
    weight: float = setting(1.0, "w, weight of the memory relative to the text", low=0, high=1e6)
    readout: Literal["probabilities", "logits"] = setting("probabilities", "p_mem is added to these, of zero-shot")
    views: int = setting(0, "views per image for ŷ, including the image; 0 is the image alone", low=0, high=1000)
    confident: float = setting(
        0.1, "fraction of the views to keep: those with the lowest entropy, at least one", low=0, high=1.0
    )
    protocol: Literal["batch", "image"] = setting("batch", "store the batch, then label it; or image by image")

    def init(self, head: TextHead) -> State | None:
        """An empty memory."""
        products = head.k * (self.slots + 1) ** 2 * head.features.element_size()  # of the entries of each class
        check_memory(products, f"{count(self.slots, 'slot')} for each of {count(head.k, 'class')}", SettingError)
        return Memory.empty(head.k, self.slots, features=head.features[0]).state("memory")

    def walk(self, now: dict[str, Tensor], batch: Batch) -> Iterator[Tensor]:
        """Store the images of each turn, then score them."""
        memory = Memory.of(now, "memory")
        x, log_y = batch.features, self._log_text(batch)
        h, classes = entropy(log_y), log_y.argmax(dim=1)
        for rows in turns(len(x), self.protocol):
            memory.take(classes[rows], h[rows], features=x[rows])
            cosines = self._read(x[rows], batch.head.features, memory)
            p_mem = torch.softmax(batch.head.logit_scale * cosines, dim=1)
            if self.readout == "probabilities":
                yield (log_y[rows].exp() + self.weight * p_mem).log_()
            else:
                yield log_y[rows] + self.weight * p_mem

    def info(self, now: State) -> dict[str, Any]:
        """How many images the memory holds."""
        return {"remembered": int(Memory.of(now, "memory").filled.sum())}

    def _read(self, x: Tensor, t: Tensor, memory: Memory) -> Tensor:
        """x·c, n×k."""
        cosines = x @ t.T
        active = memory.filled.any(dim=1).nonzero().squeeze(1)
        used = int(memory.filled.sum(dim=1).max())  # filled slots come first
        slots = torch.cat([memory.entries["features"][active, :used], t[active, None]], dim=1)  # a×s×d
        a, s, _ = slots.shape  # an empty slot is 0, so its weight has no effect
        gram = slots @ slots.mT  # a×s×s
        size = max(1, BLOCK // (a * s))
        for start in range(0, len(x), size):
            rows = slice(start, start + size)
            similarity = (slots.flatten(0, 1) @ x[rows].T).view(a, s, -1)  # a×s×b
            w = torch.exp(self.sharpness * (similarity - 1))
            norm = (w * (gram @ w)).sum(dim=1).clamp_min(torch.finfo(x.dtype).tiny).sqrt()  # ‖Σ_m w_m m‖, a×b
            cosines[rows, active] = ((w * similarity).sum(dim=1) / norm).T
        return cosines

    def _log_text(self, batch: Batch) -> Tensor:
        """log ŷ, n×k, of the images, or of the mean ŷ over their most confident views."""
        if self.views == 0:
            return batch.log_zero_shot
        means = []
        for _, log_y in zero_shot_of(first_views(batch, self.views, self.name), batch.head):
            best = most_confident(log_y, self.confident)
            chosen = log_y.gather(1, best[:, :, None].expand(-1, -1, batch.head.k))
            means.append(chosen.logsumexp(dim=1) - math.log(best.shape[1]))
        return torch.cat(means)
