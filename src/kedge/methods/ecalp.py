"""ECALP: label propagation on a graph that grows by one image at a time.

Li, Su, Zhao, Xu, "Efficient and Context-Aware Label Propagation for Zero-/Few-Shot Training-Free Adaptation of
Vision-Language Model", ICLR 2025.

Texts and all images so far are the nodes. Labels spread from the texts over the edges, as in ZLaP, and what an image
got stays with it. For image number T:

    nodes    k texts; images 1 … T; and a second copy of image T, the one that is read
    v_j      variance of coordinate j over the class prototypes: coordinates that tell classes apart count more
    s_ab     unit(v ∘ x_a)·x_b for images, a the earlier of the two
    edges    each image to its 8 nearest images by s, itself and the copy included, with the weight s^γ;
             and to its 3 nearest texts by x·t, with the weight (x·t)^γ
    W        edges + edgesᵀ; D = 1/(√(row sums of W) + 10⁻⁶); A = D W D, the rows of images
    Z        is Y for images 1 … T−1, 0 for T and its copy; then three times Z ← A [I; Z], I the labels of the texts
    z_T      softmax(10,000 Z_copy)
    Y_i      a fifth of the largest entry of Z_i, at its place, and 0 elsewhere; i = 1 … T

| symbol   | code                        | shape | meaning                                                             |
|----------|-----------------------------|-------|---------------------------------------------------------------------|
| x        | `x`                         | T×d   | unit features of all images                                         |
| v        | `v`                         | d     | weights of the coordinates (their scale has no effect)              |
| s        | `lists`                     | T×8   | nearest images of each image                                        |
|          | `texts`, `text_weights`     | T×3   | nearest texts, and the weights of these edges                       |
| A        | `graph`, `from_texts`       |       | its columns of images, sparse; its columns of texts times I, sparse |
| Z        | `spread`                    | (T+1)×k | labels that reached each image                                    |
| Y        | `classes`, `values`         | T, T  | what stays: one entry per image                                     |

The copy is an image like any other that is removed after the reading. The first product needs only one number per
image, as Y has one entry per row.

Cost of image T: T·d multiplications for its similarities, and three sparse products with about 19 T entries and k
columns: a stream costs T² altogether. The state grows: all features, 8 neighbours and 3 texts of each image, and Y.

Deviations
- from the authors' program: its lists of neighbours lose one while there are fewer than about ten images, so images 8 to
  18 of a stream differ from the equations by up to 5 % of Z. A negative similarity has weight 0; γ = 10 is even, so
  theirs has a positive one. Equal similarities: the later image is nearer.
- an image that no label reaches, because all its similarities are negative, keeps its zero-shot probabilities. With one
  class, or equal prototypes, v has no information and is 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..errors import InputError, SettingError
from ..features.text_head import TextHead
from ..memory import check_memory
from ..words import count
from .contract import Batch, State, Traits
from .settings import setting
from .solve.growing import NOBODY, BothWays, GrowingLists
from .solve.online import Online

BLOCK = 1 << 22  # maximum number of similarities in memory
LEAST_ROOT = 1e-6  # added to the root of a row sum


@dataclass(frozen=True)
class ECALP(Online):
    """ECALP; the defaults are the authors', for all datasets."""

    name: ClassVar[str] = "ecalp"
    traits: ClassVar[Traits] = Traits(paper="ECALP", year=2025, scope="batch", memory="stream")

    neighbours: int = setting(8, "nearest images of an image, counting itself", low=1, high=1000)
    texts: int = setting(3, "nearest texts of an image", low=1, high=1000)
    power: float = setting(10.0, "γ, similarities are raised to this", low=1e-3, high=1e3)
    rounds: int = setting(3, "how often labels are propagated", low=1, high=100)
    carried: float = setting(0.2, "share of an image's largest label that stays for the next image", low=0, high=1.0)
    scale: float = setting(10_000.0, "z is the softmax of this times Z", low=0, high=1e9)

    def init(self, head: TextHead) -> State | None:
        """No images: an empty state, which grows."""
        return {}

    def walk(self, now: dict[str, Tensor], batch: Batch) -> Iterator[Tensor]:
        """Add each image to the graph, propagate, and read its copy."""
        new, k, t = batch.features, batch.head.k, batch.head.features
        old, n = self._seen(now, batch.head), len(new)
        x, start = torch.cat([old["features"], new]), len(old["features"])
        rows = len(x) + 1
        check_memory(
            (rows * (4 * k + x.shape[1] + 6 * self.neighbours)) * x.element_size(),
            f"a graph of {count(rows, 'image')} and {count(k, 'class')}",
            SettingError,
        )
        lists = GrowingLists.of(old["neighbours"], old["similarity"], n + 1)
        cosines, near = (new @ t.T).topk(min(self.texts, k), dim=1)
        texts, text_weights = torch.cat([old["texts"], near]), torch.cat([old["text_weights"], self._weights(cosines)])
        classes, values = torch.cat([old["classes"], near[:, 0]]), torch.cat([old["values"], x.new_zeros(n)])
        ...
