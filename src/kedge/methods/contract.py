"""What a method is: a frozen dataclass whose fields are its settings, with two functions.

    init(head) -> state | None         before the first batch; None if the method keeps nothing between batches
    step(state, batch) -> Step         label one batch; returns the next state, changes nothing

`Batch` is all that a method may look at. It has no benchmark labels, by type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from ..errors import InputError
from ..features.text_head import TextHead
from .solve._compiled import compiled_solver
from .solve.gaussian import floored, shared_variance, squared_distances

State = Mapping[
    str, Tensor
]  # what an online method carries along a stream: named tensors, so that any state can be saved


@dataclass(frozen=True, eq=False)
class Batch:
    """What is to be labelled: n unit features, the text head, and (if extracted) v views of each image.

    For methods that adapt the encoder: the images as it takes them, and the encoder, which makes features of them.
    """

    features: Tensor  # n×d
    head: TextHead  # k×d, in the same precision and on the same device
    views: Tensor | None = None  # n×v×d
    images: Tensor | None = None  # n×…, mostly n×3×height×width
    encoder: torch.nn.Module | None = None  # images → unit features; a method never leaves it changed
    # A batch and the rows (n) of it that are this one: for the values below alone, which are then taken from there.
    # What a method may look at is above.
    _part_of: tuple[Batch, Tensor] | None = field(default=None, repr=False)

    def take(self, rows: Tensor) -> Batch:
        """Some of its images (positions): what is computed of all of them once is not computed again for these."""

        def some(table: Tensor | None) -> Tensor | None:
            return None if table is None else table.index_select(0, rows)

        part = self.features.index_select(0, rows)
        return Batch(part, self.head, some(self.views), some(self.images), self.encoder, _part_of=(self, rows))

    @cached_property
    def log_zero_shot(self) -> Tensor:
        """log ŷ, n×k: the log of softmax(τ x tᵀ). Shared between the method and the caller: do not write to it."""
        if self._part_of:
            return self._part_of[0].log_zero_shot.index_select(0, self._part_of[1])
        return self.head.log_zero_shot(self.features)

    @cached_property
    def shared_variance(self) -> Tensor:
        """Σ' = Σ_ik ŷ_ik (x_i − t_k)² / n, d: one variance for the text prototypes as means."""
        if self._part_of:
            whole, rows = self._part_of
            of_images, centre = whole._squared_distances
            tables = (of_images, rows, self.log_zero_shot, self.head.features.contiguous(), centre)
            grad = any(table.requires_grad for table in tables)
            if fast := None if grad else compiled_solver("._kernels", of_images):  # a few torch calls would take long
                return floored(torch.from_numpy(fast.mean_distance(*(table.numpy() for table in tables))))
            y = self.log_zero_shot.exp().mean(dim=0)
            return floored(of_images.index_select(0, rows).mean(dim=0) + y @ (self.head.features - centre).square())
        return shared_variance(self.features, self.head.features, self.log_zero_shot)

    @cached_property
    def _squared_distances(self) -> tuple[Tensor, Tensor]:
        """What Σ' of any of its images is made of, see _gaussian.py: n×d, and d."""
        return squared_distances(self.features, self.head.features, self.log_zero_shot)


@dataclass(frozen=True)
class Step:
    """One batch labelled: the next state, the probabilities z (n×k, rows on the simplex), and what happened."""

    state: State | None
    z: Tensor
    info: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Traits:
    """What a method is and needs, for people choosing one and for programs refusing an impossible combination."""

    paper: str
    year: int
    scope: Literal["image", "batch"]  # does a label depend on the other images of the batch?
    memory: Literal["none", "stream"]  # does it depend on earlier batches?
    needs: Literal["features", "views", "encoder"] = "features"


@runtime_checkable
class Method(Protocol):
    """The contract; `kedge.checks.check_method` tries it on yours."""

    name: ClassVar[str]
    traits: ClassVar[Traits]

    def init(self, head: TextHead) -> State | None:
        """The state before the first batch."""

    def step(self, state: State | None, batch: Batch) -> Step:
        """Label one batch."""


def unmet_needs(method: Method, *, views: bool, encoder: bool = False) -> str:
    """What the method needs beyond features and is not there, and what to do; "" if nothing is missing."""
    if method.traits.needs == "views" and not views:
        return (
            f"method {method.name!r} needs augmented views, and there are none. "
            "Extract the features with views (n×v×d, view 0 the image itself), or choose another method."
        )
    if method.traits.needs == "encoder" and not encoder:
        return (
            f"method {method.name!r} needs the images and their encoder; features alone are not enough. "
            "Pass images=… and encoder=… beside the features, or choose another method."
        )
    return ""


def check_needs(method: Method, *, views: bool, encoder: bool = False) -> None:
    """Refuse, before any work, a method that needs more than there is."""
    if missing := unmet_needs(method, views=views, encoder=encoder):
        raise InputError(missing)
