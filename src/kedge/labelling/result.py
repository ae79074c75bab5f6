"""Result: the labels of one batch, and what follows from them.

    result = kedge.adapt(image_features, text_features)
    result.labels, result.probs       # computed
    result.verdict                    # computed when asked for, like all properties below: see the room `answers`

On a stream, everything concerns the last batch alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic

import torch
from torch import Tensor

from ..answers.answer import Answer
from ..answers.classes import FoundClass, found_classes
from ..answers.review import review_order
from ..answers.strangers import none_scores
from ..answers.verdict import Verdict, verdict
from ..arrays import A, like_input
from ..methods.given import NONE
from ..words import count

NO_CLASS = -1  # in labels: the image shows none of the classes
NO_CLASS_NAME = "none of these"
NONE_WORDS = (NO_CLASS_NAME, "none")  # what a person may write for it, unless a class is called so


def none_word(class_names: Sequence[str], words: Sequence[str] = NONE_WORDS) -> str | None:
    """The first word for "none of these" that is no class; None if classes have them all."""
    return next((word for word in words if word not in class_names), None)


def none_name(class_names: Sequence[str]) -> str:
    """What −1 is called in tables: `none_word`, and if classes have them all, "none of these" all the same."""
    return none_word(class_names) or NO_CLASS_NAME


@dataclass(frozen=True, eq=False, repr=False)
class Result(Generic[A]):
    """The labels of one batch, as arrays of the same kind as its image features."""

    probs: A  # n×k, rows sum to 1
    labels: A  # n, the argmax of probs; −1 if the image is known to show none of the classes, or was rejected
    zero_shot: A  # n×k, the probabilities of the encoder alone
    info: dict[str, Any]  # what the method reports, and the effective number of classes
    answer: Answer  # the batch with its probabilities as tensors, and what a person said of it
    rejecting: Tensor | None = None  # n, with `reject`: the scores that decided, of the first solve

    @property
    def changed(self) -> int:
        """How many labels differ from zero-shot; −1 does."""
        return int((self.labels != self.zero_shot.argmax(1)).sum())

    @cached_property
    def classes(self) -> tuple[FoundClass, ...]:
        """The classes found, those most in doubt first."""
        return found_classes(self._settled)

    @cached_property
    def none(self) -> A:
        """n scores from 0 to 1: does the image show none of the classes? With `reject`: those that decided."""
        return self._like(none_scores(self.answer) if self.rejecting is None else self.rejecting)

    @cached_property
    def review(self) -> A:
        """The numbers of all images whose label is not known, in the order in which a person's look is worth most."""
        return self._like(review_order(self.answer))

    @cached_property
    def verdict(self) -> Verdict:
        """Can the labels be used? A level, a sentence, the expected accuracy, and the numbers behind them."""
        settled = self._settled
        rejected = int((settled.given != self.answer.given).sum())
        return verdict(settled, torch.as_tensor(self.none, device=self.answer.z.device), rejected)

    @cached_property
    def runner_up(self) -> A:
        """The second most probable class of each image, n; −1 if no other has any probability or the class is known."""
        probs, classes = self._best_two
        other = (probs[:, 1] > 0) & (self.answer.given < 0)  # of a known class, some solvers leave others 1e-30
        return self._like(torch.where(other, classes[:, 1], NO_CLASS))

    @cached_property
    def margin(self) -> A:
        """Probability of the most probable class minus that of the runner-up, n."""
        probs, _ = self._best_two
        return self._like(probs[:, 0] - probs[:, 1])

    def __repr__(self) -> str:
        n, k = self.probs.shape
        return (
            f"Result: {count(n, 'image')}, {count(k, 'class')}, method {self.info.get('method', 'unknown')}\n"
            f"  {count(self.changed, 'label')} changed\n"
            f"  probs, zero_shot: {n}×{k} {self.probs.dtype}; labels: {n}; info: {', '.join(self.info)}"
        )

    @cached_property
    def _best_two(self) -> tuple[Tensor, Tensor]:
        """Probabilities and numbers of the two most probable classes, n×2 each; of one class, the second has 0."""
        z = self.answer.z
        if z.shape[1] == 1:
            z = torch.cat([z, torch.zeros_like(z)], dim=1)
        probs, classes = z.topk(2, dim=1)
        return probs, classes

    @property
    def _settled(self) -> Answer:
        """The answer in which images that were rejected are known to show none of the classes."""
        none = torch.as_tensor(self.labels, device=self.answer.z.device) == NO_CLASS
        return replace(self.answer, known=self.answer.given.masked_fill(none, NONE))

    def _like(self, found: Tensor) -> A:
        return like_input(self.probs)(found)
