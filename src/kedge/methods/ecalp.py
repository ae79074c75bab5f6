"""ECALP: label propagation on a graph that grows by one image at a time.

Li, Su, Goodge, Jia, Xu, "Efficient and Context-Aware Label Propagation for Zero-/Few-Shot Training-Free Adaptation of
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
|          | `links`                     | T×3   | nearest texts of each image, and the weights of these edges         |
| A        | `graph`, `from_texts`       |       | its columns of images, sparse; its columns of texts times I, sparse |
| Z        | `spread`                    | (T+1)×k | labels that reached each image                                    |
| Y        | `classes`, `values`         | T, T  | what stays: one entry per image                                     |

The copy is an image like any other that is removed after the reading. The first product needs only one number per
image, as Y has one entry per row.

Cost of image T: T·d multiplications for its similarities, and three sparse products with about 19 T entries and k
columns: a stream costs T² altogether. The state grows: all features, 8 neighbours and 3 texts of each image, and Y.

Deviations
- from the authors' program: its lists lose a neighbour while there are fewer than about ten images, so images 8 to
  18 of a stream differ from the equations by up to 5 % of Z. A negative similarity has weight 0; γ = 10 is even, so
  theirs has a positive one. Equal similarities: the later image is nearer.
- an image that no label reaches, because all its similarities are negative, keeps its zero-shot probabilities. With one
  class, or equal prototypes, v has no information and is 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..arrays import check_unit_rows
from ..errors import InputError
from ..features.text_head import TextHead
from ..memory import check_memory
from ..words import count
from .contract import Batch, State, Traits, check_form
from .settings import setting
from .solve.growing import NOBODY, BothWays, GrowingLists
from .solve.online import Online

BLOCK = 1 << 22  # maximum number of similarities in memory
LEAST_ROOT = 1e-6  # added to the root of a row sum
LARGEST_VALUE = 1e9  # in Y, at most


class Links(NamedTuple):
    """Edges of images to their nearest texts."""

    texts: Tensor  # T×3
    weights: Tensor  # T×3

    def with_copy(self, image: int) -> Links:
        """Those of all images up to this one and of its copy."""
        nodes = torch.arange(image + 2, device=self.texts.device).clamp_max_(image)
        return Links(self.texts[nodes], self.weights[nodes])


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
        new, log_y, t = batch.features, batch.log_zero_shot, batch.head.features
        seen = now or self._form(batch.head, 0, t.device)
        x, before = torch.cat([seen["features"], new]), len(seen["features"])
        self._check_memory(x, batch.head.k)
        lists = GrowingLists.of(seen["neighbours"], seen["similarity"], room=len(x) + 1)  # 1: the copy
        cosines, nearest = (new @ t.T).topk(seen["texts"].shape[1], dim=1)
        links = Links(torch.cat([seen["texts"], nearest]), torch.cat([seen["text_weights"], self._weights(cosines)]))
        classes, values = (F.pad(seen[name], (0, len(new) + 1)) for name in ("classes", "values"))  # Y
        for i, s in enumerate(_similarities(x, before, _informative(t)), start=before):
            images, nodes = slice(i + 1), slice(i + 2)
            lists.add(s)
            instead = lists.add(torch.cat([s, s[-1:]]))  # the copy
            z = self._propagated(lists, links.with_copy(i), classes[nodes], values[nodes], len(t))
            lists.remove(instead)
            values[images] = self.carried * _largest(z[images], classes[images])
            yield torch.where(z[-1].any(), self.scale * z[-1], log_y[i - before])
        now.update(features=x, neighbours=lists.indices[:-1], similarity=lists.similarity[:-1])
        now.update(texts=links.texts, text_weights=links.weights, classes=classes[:-1], values=values[:-1])

    def info(self, now: State) -> dict[str, Any]:
        """How many images the graph has."""
        return {"remembered": len(now["features"])}

    def _propagated(self, lists: GrowingLists, links: Links, classes: Tensor, values: Tensor, k: int) -> Tensor:
        """Z of all nodes, from Y as its classes and values: T+1×k."""
        edges = BothWays.of(lists.indices[: lists.nodes], self._weights(lists.similarity[: lists.nodes]))
        to_texts = values.new_zeros(k).index_add_(0, links.texts.flatten(), links.weights.flatten())
        d = 1 / ((edges.degrees() + links.weights.sum(dim=1)).sqrt() + LEAST_ROOT)
        d_texts = 1 / (to_texts.sqrt() + LEAST_ROOT)
        graph, from_texts = edges.scaled(d), values.new_zeros(len(values), k)
        from_texts.scatter_(1, links.texts, links.weights * d[:, None] * d_texts[links.texts])  # A [I; 0]
        z = from_texts + graph.spread(classes, values, k)
        for _ in range(self.rounds - 1):
            z = from_texts + graph @ z
        return z

    def _weights(self, similarity: Tensor) -> Tensor:
        return similarity.clamp(0, 1) ** self.power

    def _form(self, head: TextHead, images: int, device: torch.device | str) -> dict[str, Tensor]:
        """Tensors of the types and shapes of a state after so many images."""
        shapes = {
            "features": (head.d,),
            "neighbours": (self.neighbours,),
            "similarity": (self.neighbours,),
            "texts": (min(self.texts, head.k),),
            "text_weights": (min(self.texts, head.k),),
            "classes": (),
            "values": (),
        }
        types = {"neighbours": torch.int32, "texts": torch.int64, "classes": torch.int64}
        return {
            name: torch.empty((images, *shape), dtype=types.get(name, head.features.dtype), device=device)
            for name, shape in shapes.items()
        }

    def check_state(self, state: State | None, head: TextHead) -> None:
        """Raise InputError unless a state has all that is known of each of its images, in the right ranges."""
        if state is None or not state:
            return
        images = len(state["features"]) if "features" in state and state["features"].ndim else 0
        check_form(state, self._form(head, images, "meta"))
        check_unit_rows(state["features"], "features in the state")
        limits = {
            "neighbours": (0, images - 1),
            "similarity": (NOBODY, 1.1),
            "texts": (0, head.k - 1),
            "text_weights": (0, 1),
            "classes": (0, head.k - 1),
            "values": (0, LARGEST_VALUE),
        }
        for name, (low, high) in limits.items():
            if bool(((state[name] < low) | (state[name] > high)).any()):
                raise InputError(f"{name} in the state has values outside {low:g} to {high:g}. Start a new stream.")

    def _check_memory(self, x: Tensor, k: int) -> None:
        numbers = len(x) * (3 * x.shape[1] + 4 * k + 8 * self.neighbours)
        check_memory(numbers * x.element_size(), f"a graph of {count(len(x), 'image')} and {count(k, 'class')}")


def _largest(z: Tensor, classes: Tensor) -> Tensor:
    """The largest entry of each row of z (n×k), n; its place is written to `classes` (n), which had it for the last z.

    The places of most rows stay, and argmax of all rows would take as long as all the rest.
    """
    largest = z.amax(dim=1)
    moved = (z.gather(1, classes[:, None]).squeeze(1) < largest).nonzero().squeeze(1)
    classes[moved] = z[moved].argmax(dim=1)
    return largest


def _informative(t: Tensor) -> Tensor:
    """v, d: the variance of each coordinate over the prototypes; 1 if they are all the same."""
    v = t.var(dim=0, correction=0)  # its scale has no effect
    return v if bool((v > 0).any()) else torch.ones_like(v)


def _similarities(x: Tensor, before: int, v: Tensor) -> Iterator[Tensor]:
    """For each image from number `before` on, s to all earlier ones and itself: unit(v ∘ x_a)·x_b, a the earlier."""
    length = (x * v).norm(dim=1).clamp_min(torch.finfo(x.dtype).tiny)
    block = max(1, BLOCK // len(x))
    for start in range(before, len(x), block):
        stop = min(start + block, len(x))
        s = (x[start:stop] * v) @ x[:stop].T / length[:stop]
        yield from (row[: start + i + 1] for i, row in enumerate(s))
