"""Answer: a labelled batch. Everything in this room is computed from it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from ..features.text_head import TextHead


@dataclass(frozen=True, eq=False)
class Answer:
    """n images with their probabilities, by the encoder alone and after adaptation."""

    features: Tensor  # n×d, unit rows
    head: TextHead  # of all k classes
    zero_shot: Tensor  # n×k: ŷ
    z: Tensor  # n×k
    known: Tensor | None = None  # n: labels that a person gave: a class, UNKNOWN or NONE
    present: Tensor | None = None  # numbers of the classes that can occur; None: all

    @cached_property
    def labels(self) -> Tensor:
        """The most probable class of each image, n."""
        return self.z.argmax(dim=1)
