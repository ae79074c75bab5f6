"""Label one batch: check what was given, solve, and with `reject` solve once more without the images rejected."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from ..answers.answer import Answer
from ..answers.strangers import none_scores
from ..arrays import A, Array, as_tensor, check_count, check_unit_rows, effective_classes, like_input, unit_rows
from ..encoders.familiar import Familiar
from ..errors import InputError
from ..features.feature_set import FeatureSet
from ..features.text_head import TextHead, check_same_dimension
from ..methods.contract import UNKNOWN, Batch, Method, State, check_needs
from ..methods.given import NONE, Known, known_labels
from ..methods.narrowing import initial_state, narrowed_step, zero_shot_among
from ..methods.solve.neighbours import KeptNeighbours
from ..ranges import checked_number
from .result import NO_CLASS, Result


class Prepared(NamedTuple):
    """What several solves of the same images share."""

    log_zero_shot: Tensor | None  # n×k, of the head
    kept: KeptNeighbours | None


@dataclass(frozen=True)
class Solver:
    """A method with its classes."""

    method: Method
    head: TextHead
    present: Tensor | None  # numbers of the classes that can occur; None: all
    normalize: bool

    def initial_state(self) -> State | None:
        """The state before the first batch."""
        return initial_state(self.method, self.head, self.present)

    def label(
        self,
        state: State | None,
        features: A,
        *,
        views: Array | None = None,
        images: Tensor | None = None,
        encoder: torch.nn.Module | None = None,
        known: Known | None = None,
        reject: float | None = None,
        familiar: Familiar | None = None,
        prepared: Prepared | None = None,
    ) -> tuple[State | None, Result[A]]:
        """The next state, and the labels of a batch as arrays of the kind of its features.

        familiar: which images the encoder knows, if it says so. prepared: what earlier solves of this batch computed.
        """
        threshold = checked_threshold(reject)
        x = self._checked_rows(features, "image_features", 2)
        v = None if views is None else self._checked_rows(views, "views", 3)
        if v is not None:
            check_count(len(v), len(x), "views")
        labels = None if known is None else known_labels(known, len(x), self.head, self.present).to(x.device)
        check_needs(self.method, views=v is not None, encoder=images is not None and encoder is not None)
        check_known(self.method, labels)
        said = torch.full((len(x),), UNKNOWN, device=x.device) if labels is None else labels
        none = said == NONE
        with torch.no_grad():
            if prepared is None:
                given = any(value is not None for value in (known, self.present, reject))  # zero-shot is used again
                prepared = Prepared(self.head.log_zero_shot(x) if given else None, None)
            tables = {} if prepared.log_zero_shot is None else {"log_zero_shot": prepared.log_zero_shot}
            batch = Batch(x, self.head, v, images, encoder, labels, tables, prepared.kept)
            step, scores = narrowed_step(self.method, state, batch, self.present), None
            tempered = "heat" in step.info
            answer = Answer(
                x, self.head, _zero_shot(batch), step.z, batch.known, self.present, tempered, familiar, batch.kept
            )
            if threshold is not None:
                scores = none_scores(answer)
                rejected = (scores > threshold) & (said == UNKNOWN)
                none = none | rejected
                if bool(rejected.any()):
                    others = replace(batch, known=said.masked_fill(rejected, NONE))
                    again = narrowed_step(self.method, state, others, self.present)
                    step = replace(again, z=torch.where(rejected[:, None], step.z, again.z))
                    answer = replace(answer, z=step.z)
            shows = step.z if bool(none.all()) else step.z[~none]
            info = {"method": self.method.name, **step.info, "effective_classes": effective_classes(shows.sum(dim=0))}
            found = answer.labels.masked_fill(none, NO_CLASS)
        out = like_input(features)
        return step.state, Result(out(step.z), out(found), out(answer.zero_shot), info, answer, scores)

    def _checked_rows(self, array: Array, name: str, ndim: int) -> Tensor:
        if isinstance(array, FeatureSet):
            raise InputError(f"{name} must be an array; got a FeatureSet. Pass features.{name}.")
        x = as_tensor(array, name, ndim)
        check_same_dimension(x, self.head, name)
        check_unit_rows(x, name, normalize=self.normalize)
        return unit_rows(x, normalize=self.normalize, like=self.head.features)


def check_known(method: Method, known: Tensor | None) -> None:
    """Raise InputError if the method does not use known classes. Images of none of them never reach a method."""
    if known is not None and bool((known >= 0).any()):
        check_needs(method, views=True, encoder=True, known=True)


def checked_threshold(reject: float | None, name: str = "reject") -> float | None:
    """A threshold of `none` scores, if one is given: above 0, at most 1."""
    return None if reject is None else float(checked_number(name, reject, above=0, high=1))


def _zero_shot(batch: Batch) -> Tensor:
    """ŷ of the encoder alone, n×k: without what a person said, which is in a batch of its own (`Narrowing`)."""
    if "log_zero_shot" in vars(batch):
        return batch.log_zero_shot.exp()
    return zero_shot_among(batch, None).exp_()  # exp in place saves memory
