"""The classes found in a batch, those most in doubt first: what a person can confirm or take out in half a minute.

n_k = Σ_i z_ik                        expected number of images
e_k = Σ_i z_ik ŷ_ik / n_k             evidence: what zero-shot thinks of the images that were given to the class

A class is found if n_k is at least ½, or if it is the label of an image. An image that shows none of the classes, as a
person said, has no part in it. A class of which an image is known is not
in doubt: it comes after the others.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..arrays import row_blocks
from ..methods.given import NONE
from .answer import Answer

FOUND = 0.5  # images


@dataclass(frozen=True)
class FoundClass:
    """A class that the batch seems to show."""

    number: int
    name: str
    count: float  # expected number of its images
    evidence: float  # mean zero-shot probability of its images
    example: int  # the image most surely of this class


def found_classes(answer: Answer) -> tuple[FoundClass, ...]:
    """The classes found: the least evidence first, confirmed ones last."""
    counts, evidence = counts_and_evidence(answer)
    named = torch.zeros_like(counts, dtype=torch.bool)
    named[answer.labels[answer.given != NONE]] = True
    found = (named | (counts >= FOUND)).nonzero().squeeze(1)
    order = found[(evidence + confirmed(answer))[found].argsort(stable=True)]  # evidence is at most 1
    sure = answer.z.index_select(1, order).masked_fill_((answer.given == NONE)[:, None], -1.0)
    names = answer.head.class_names
    columns = (column.tolist() for column in (order, counts[order], evidence[order], sure.argmax(dim=0)))
    return tuple(
        FoundClass(k, names[k] if names else f"class {k}", *values) for k, *values in zip(*columns, strict=True)
    )


def confirmed(answer: Answer) -> Tensor:
    """Is an image of the class known? k, bool."""
    found = torch.zeros_like(answer.z[0], dtype=torch.bool)
    found[answer.given[answer.given >= 0]] = True
    return found


def counts_and_evidence(answer: Answer) -> tuple[Tensor, Tensor]:
    """n_k and e_k, k each; e_k is 0 for a class without images."""
    shown = (answer.given != NONE).to(answer.z.dtype)
    counts, total = shown @ answer.z, torch.zeros_like(answer.z[0])
    for rows in row_blocks(answer.z.shape):
        total += shown[rows] @ (answer.z[rows] * answer.zero_shot[rows])
    return counts, total / counts.clamp_min(torch.finfo(counts.dtype).tiny)
