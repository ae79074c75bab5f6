"""Augmented views of an image: those a method asks for, and the most confident of them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ...errors import InputError
from ...features.text_head import TextHead
from ..contract import Batch
from .cache import entropy

BLOCK = 1 << 22  # maximum number of probabilities (images × views × classes) in memory


def first_views(batch: Batch, views: int, method: str) -> Tensor:
    """The first `views` views of each image, n×v×d; raises InputError if the batch has fewer."""
    if batch.views is None or batch.views.shape[1] < views:
        found = "none" if batch.views is None else batch.views.shape[1]
        raise InputError(
            f"{method} with views={views} needs that many views per image; got {found}. "
            "Extract the features with more views, or set views to 0."
        )
    return batch.views[:, :views]


def zero_shot_of(views: Tensor, head: TextHead) -> Iterator[tuple[Tensor, Tensor]]:
    """Views of some images at a time (b×v×d, of n×v×d), with their log ŷ (b×v×k)."""
    for some in torch.split(views, max(1, BLOCK // (views.shape[1] * head.k))):
        yield some, Batch(some.flatten(0, 1), head).log_zero_shot.view(*some.shape[:2], head.k)


def most_confident(log_y: Tensor, share: float) -> Tensor:
    """The numbers of the views with the lowest entropy, …×m in ascending entropy, for log ŷ of …×v×k.

    m = ⌊share · v⌋, but at least 1.
    """
    keep = max(1, int(share * log_y.shape[-2]))
    return entropy(log_y).argsort(dim=-1, stable=True)[..., :keep]
