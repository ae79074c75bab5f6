"""OnLab: zero-shot with a weight for each class, learned along a stream so that no class is left without images.

Qian, Hu, "Online Zero-Shot Classification with CLIP", ECCV 2024. This is the label half of its method OnZeta.

The prior knows only that each class has at least the share α/k of the images. ρ is its dual variable: it grows for a
class whose share so far is smaller, and never falls below 0. For image i = 1, 2, … of the stream:

    q ∝ ŷ ∘ exp(ρ)                              z = q
    ρ ← max( ρ − (c/√i)(q − α/k), 0 )           starts at 0

| symbol | code    | shape | meaning                                          |
|--------|---------|-------|--------------------------------------------------|
| ŷ      | `log_y` | n×k   | zero-shot probabilities, as logarithms           |
| q      | `q`     | k     | the probabilities of image i                     |
| ρ      | `rho`   | k     | dual variable: log weights of the classes        |
| i      | `seen`  | 1     | images so far                                    |
| c, α   | `rate`, `share` | | 20, 1: each class has the same share          |

Cost of an image: k, beside zero-shot.

Deviations
- from the paper: OnZeta also moves a proxy of each class, by steps of c_w/(τ_i √i), and mixes its probabilities with
  q; b = 0 leaves q alone, which is this method. The other half is not here because it is chaotic at the published
  constants: the first step moves a unit vector by up to 12.5, so the order of a sum decides. Two runs of the authors'
  program, in float32 and in float64, gave different labels to up to 223 of 768 images.
- ŷ has the encoder's own temperature; the paper's is 0.01, which is CLIP's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..features.text_head import TextHead
from .contract import Batch, State, Traits
from .settings import setting
from .solve.online import Online


@dataclass(frozen=True)
class OnLab(Online):
    """OnLab; the defaults are the authors'."""

    name: ClassVar[str] = "onlab"
    traits: ClassVar[Traits] = Traits(paper="OnZeta", year=2024, scope="batch", memory="stream")

    rate: float = setting(20.0, "c, how fast the weights of the classes change", low=0, high=1e6)
    share: float = setting(1.0, "α, the least share of each class, relative to uniform classes", low=0, high=1.0)

    def init(self, head: TextHead) -> State | None:
        """No class has a weight."""
        t = head.features
        return {"rho": t.new_zeros(head.k), "seen": torch.zeros(1, dtype=torch.int64, device=t.device)}

    def walk(self, now: dict[str, Tensor], batch: Batch) -> Iterator[Tensor]:
        """Label each image; then the weights move."""
        rho, least = now["rho"], self.share / batch.head.k
        for i, log_y in enumerate(batch.log_zero_shot, start=int(now["seen"]) + 1):
            scores = log_y + rho
            yield scores
            q = torch.softmax(scores, dim=0)
            rho.sub_(q - least, alpha=self.rate / i**0.5).clamp_min_(0)
        now["seen"] += len(batch.features)

    def info(self, now: State) -> dict[str, Any]:
        """Images so far, and the largest weight of a class, as a logarithm."""
        return {"seen": int(now["seen"]), "rho_max": float(now["rho"].max())}
