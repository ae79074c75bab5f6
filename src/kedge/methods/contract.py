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

UNKNOWN, NONE = -1, -2  # in `Batch.known`: no label was given; the image shows none of the classes

State = Mapping[str, Tensor]  # what an online method carries along a stream: named tensors, so any state can be saved


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
    known: Tensor | None = None  # n, int64: class numbers that a person gave, UNKNOWN or NONE; None: all are unknown
    tables: Mapping[str, Tensor] = field(default_factory=dict)  # computed beforehand, a row per image: see `Prepares`

    def __post_init__(self) -> None:
        if self.known is not None and bool((self.known == UNKNOWN).all()):
            object.__setattr__(self, "known", None)

    @cached_property
    def log_zero_shot(self) -> Tensor:
        """log ŷ, n×k: the log of softmax(τ x tᵀ). Shared between the method and the caller: do not write to it."""
        table = self.tables.get("log_zero_shot")
        return self.head.log_zero_shot(self.features) if table is None else table


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


@runtime_checkable
class Prepares(Protocol):
    """A method that computes something of each image alone, whatever batch it is in: once for many batches."""

    def prepare(self, batch: Batch) -> Mapping[str, Tensor]:
        """Tables with a row per image. Later batches of some of these images get their rows in `Batch.tables`."""


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
