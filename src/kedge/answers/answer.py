"""Answer: a labelled batch. Everything in this room is computed from it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..encoders.familiar import Familiar
from ..features.text_head import TextHead
from ..methods.contract import UNKNOWN
from ..methods.solve.neighbours import KeptNeighbours


@dataclass(frozen=True, eq=False)
class Answer:
    """n images with their probabilities, by the encoder alone and after adaptation."""

    features: Tensor  # n×d, unit rows
    head: TextHead  # of all k classes
    zero_shot: Tensor  # n×k: ŷ
    z: Tensor  # n×k
    known: Tensor | None = None  # n: labels that a person gave: a class, UNKNOWN or NONE
    present: Tensor | None = None  # numbers of the classes that can occur; None: all
    tempered: bool = False  # is z honest already: did the method lower it by a temperature?
    familiar: Familiar | None = None  # which images the encoder knows, if it says so
    kept: KeptNeighbours | None = None  # their neighbours, if they are solved more than once

    @cached_property
    def labels(self) -> Tensor:
        """The most probable class of each image, n."""
        return self.z.argmax(dim=1)

    @cached_property
    def given(self) -> Tensor:
        """`known` with an entry for every image, n."""
        return torch.full_like(self.labels, UNKNOWN) if self.known is None else self.known

    @property
    def unknown(self) -> Tensor:
        """Is the label of the image unknown? n, bool."""
        return self.given == UNKNOWN

    @cached_property
    def among(self) -> Tensor:
        """Zero-shot among the classes that can occur, n×k; 0 for the others."""
        if self.present is None:
            return self.zero_shot
        y = self.head.select(self.present).log_zero_shot(self.features).exp_()
        return torch.zeros_like(self.zero_shot).index_copy_(1, self.present, y)

    @property
    def classes(self) -> int:
        """How many classes can occur."""
        return self.head.k if self.present is None else len(self.present)

    @cached_property
    def entropy(self) -> Tensor:
        """How undecided zero-shot is, n: the entropy of ŷ divided by the largest possible, from 0 to 1."""
        entropy: Tensor = torch.special.entr(self.among).sum(dim=1)
        return entropy / math.log(max(self.classes, 2))
