"""DMN, zero-shot: a memory per class that is read anew for every image.

Zhang, Zhu, Tang, Ma, Zhou, Zhang, "Dual Memory Networks: A Versatile Adaptation Approach for Vision-Language Models",
CVPR 2024. Without labelled images only its dynamic memory is left, which is what this is.

Every image enters the memory of the class that zero-shot gives it; a class keeps the L entries m of lowest entropy,
and its text prototype is one more. An image reads a classifier of its own from them:

    c_k   = unit( Σ_m exp(−b(1 − x·m)) m )         over the entries of class k; an empty slot adds nothing
    p_mem = softmax(τ x·c)
    score = ŷ + w p_mem        readout "probabilities"; z = score/(1 + w)
          = τ x·t + w p_mem    readout "logits";        z = softmax(score)

| symbol | code              | shape | meaning                                             |
|--------|-------------------|-------|-----------------------------------------------------|
| x, t   | `x`, `t`          | n×d, k×d | unit image features, text prototypes             |
| ŷ      | `log_y`           | n×k   | zero-shot probabilities, as logarithms              |
| m      | `slots` of `_read` | k×s×d | remembered features and the text prototype         |
| b, w   | `sharpness`, `weight` |   | 5.5, 1                                              |

c itself is n×k×d and never made: x·c_k = Σ_m w_m x·m / ‖Σ_m w_m m‖, and that norm is a quadratic form of the weights
with the s×s matrix of inner products of the class's entries. Only classes with images are read; in all others c_k is
the text prototype. Cost of a batch: n·a·s·(d + s) multiplications for a classes with images and s = L + 1.

Settings of published variants: `DMN(slots=50, views=32)` is the authors'; `DMN(slots=8)`; `DMN(readout="logits",
weight=10)`. All use b = 5.5.

Deviations
- from the paper: static memory and projection layers need labels and are not here; w is 1 for every dataset (the
  authors search it with labels); by default the memory takes the whole batch before any of it is labelled, as in
  StatA's comparison (`protocol="image"` is the paper's order); L is 10, for images without augmented views.
- with `views`, what is remembered and read is the image itself, as in the authors' program: its other views only help
  to tell ŷ, which is averaged over the most confident tenth of them. `views` counts the image, which is view 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ..errors import InputError
from ..features.text_head import TextHead
from .contract import Batch, State, Step, Traits
from .settings import Configured, setting
from .solve.cache import Memory, entropy, turns

BLOCK = 1 << 22  # weights (images × classes × slots) held at a time


@dataclass(frozen=True)
class DMN(Configured):
    """DMN with every knob; the defaults are StatA's comparison: no views, weight 1."""

    name: ClassVar[str] = "dmn"
    traits: ClassVar[Traits] = Traits(paper="DMN", year=2024, scope="batch", memory="stream")

    slots: int = setting(10, "L, images remembered per class", low=1)
    sharpness: float = setting(5.5, "b, how fast an entry's say falls with distance", low=0)
    weight: float = setting(1.0, "w, weight of the memory beside the text", low=0)
    readout: Literal["probabilities", "logits"] = setting("probabilities", "what the memory's softmax is added to")
    views: int = setting(0, "views per image that tell ŷ, the image among them; 0 is the image alone", low=0)
    confident: float = setting(0.1, "share of the views that is kept: those of lowest entropy, at least one", low=0)
    protocol: Literal["batch", "image"] = setting("batch", "remember the batch, then label it; or image by image")

    def init(self, head: TextHead) -> State | None:
        """An empty memory."""
        return Memory.empty(head.k, self.slots, features=head.features[0]).state("memory")

    def step(self, state: State | None, batch: Batch) -> Step:
        """Remember and label a batch."""
        state, score = self.score(state, batch)
        z = score / (1 + self.weight) if self.readout == "probabilities" else torch.softmax(score, dim=1)
        return Step(state, z, {"remembered": int((state["memory.entropy"] < torch.inf).sum())})

    def score(self, state: State | None, batch: Batch) -> tuple[State, Tensor]:
        """The next state and the published score, n×k; with readout "logits" up to a constant per image."""
        assert state is not None
        memory = Memory.of(state, "memory")
        x, log_y = batch.features, self._log_text(batch)
        h, classes = entropy(log_y), log_y.argmax(dim=1)
        p_mem = torch.empty_like(log_y)
        for rows in turns(len(x), self.protocol):
            memory.take(classes[rows], h[rows], features=x[rows])
            p_mem[rows] = torch.softmax(
                batch.head.logit_scale * self._read(x[rows], batch.head.features, memory), dim=1
            )
        text = log_y.exp() if self.readout == "probabilities" else log_y
        return memory.state("memory"), text + self.weight * p_mem

    def _read(self, x: Tensor, t: Tensor, memory: Memory) -> Tensor:
        """x·c, n×k."""
        cosines = x @ t.T
        active = memory.filled.any(dim=1).nonzero().squeeze(1)
        used = int(memory.filled.sum(dim=1).max())  # filled slots come first
        slots = torch.cat([memory.entries["features"][active, :used], t[active, None]], dim=1)  # a×s×d
        a, s, _ = slots.shape  # an empty slot is 0, and adds nothing whatever its weight
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
        """log ŷ, n×k: of the images, or averaged over their most confident views."""
        if self.views == 0:
            return batch.log_zero_shot
        if batch.views is None or batch.views.shape[1] < self.views:
            found = "none" if batch.views is None else batch.views.shape[1]
            raise InputError(
                f"dmn with views={self.views} needs that many views per image; got {found}. "
                "Extract the features with more views, or set views to 0."
            )
        views = batch.views[:, : self.views]
        some = max(1, BLOCK // (self.views * batch.head.k))
        return torch.cat([self._log_confident(part, batch.head) for part in torch.split(views, some)])

    def _log_confident(self, views: Tensor, head: TextHead) -> Tensor:
        """log of the mean ŷ of the views (b×v×d) of lowest entropy, b×k."""
        b, v, _ = views.shape
        log_y = Batch(views.flatten(0, 1), head).log_zero_shot.view(b, v, -1)
        keep = max(1, int(min(self.confident, 1.0) * v))
        best = entropy(log_y).topk(keep, largest=False, sorted=False).indices
        chosen = log_y.gather(1, best[:, :, None].expand(-1, -1, head.k))
        return chosen.logsumexp(dim=1) - math.log(keep)
