"""What a method is: a frozen dataclass whose fields are its settings, with two functions.

    init(head) -> state | None         before the first batch; None if the method keeps nothing between batches
    step(state, batch) -> Step         label one batch; returns the next state, changes nothing

A method sees a `Batch` and nothing else. A batch has no benchmark labels.

A state keeps the names, types and shapes that `init` gave it, so that a state from a file can be checked. An empty
state may grow with the first batch, as TENT's does, which depends on the encoder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from ..errors import InputError
from ..features.text_head import TextHead
from .solve.neighbours import KeptNeighbours, Neighbours, Search, nearest_neighbours
from .solve.parts import Parts

UNKNOWN = -1  # in `Batch.known`: no label is known
IMPOSSIBLE = -1e30  # log ŷ of the other classes, if the label is known: no setting outweighs it, and 0 · log ŷ is 0

State = Mapping[str, Tensor]  # what a method remembers along a stream: named tensors, so that it can be saved


@dataclass(frozen=True, eq=False)
class Batch:
    """The input of one step: n unit features, the text head, and what else the method may use.

    Methods that adapt the encoder also get the images, in the form that the encoder takes, and the encoder.
    """

    features: Tensor  # n×d
    head: TextHead  # k×d, with the dtype and device of the features
    views: Tensor | None = None  # n×v×d
    images: Tensor | None = None  # n×…, usually n×3×height×width
    encoder: torch.nn.Module | None = None  # images → unit features; a method leaves it unchanged
    known: Tensor | None = None  # n, int64: class numbers given by a person, or UNKNOWN; None: all unknown
    tables: Mapping[str, Tensor] = field(default_factory=dict)  # computed in advance, a row per image: see `Prepares`
    kept: KeptNeighbours | None = None  # of these images, from earlier solves of them

    def __post_init__(self) -> None:
        if self.known is not None and bool((self.known == UNKNOWN).all()):
            object.__setattr__(self, "known", None)

    @cached_property
    def log_zero_shot(self) -> Tensor:
        """log ŷ, n×k: the log of softmax(τ x tᵀ). The method and its caller share it: do not write to it.

        A known label has ŷ = 1, so a method that starts from ŷ and adds to log ŷ keeps it without further ado.
        """
        return self.log_zero_shot_of(slice(None))

    def log_zero_shot_of(self, rows: slice) -> Tensor:
        """The same for some rows. Nothing is kept, for batches whose n×k is too large."""
        table = self.tables.get("log_zero_shot")
        log_y = self.head.log_zero_shot(self.features[rows]) if table is None else table[rows]
        return log_y if self.known is None else certain(log_y, self.known[rows])

    def nearest(self, m: int, *, search: Search = "auto", compiled: bool = True) -> Neighbours:
        """The m nearest others of each image: those kept, or searched for."""
        if self.kept is None:
            return nearest_neighbours(self.features, m, search=search, compiled=compiled)
        return self.kept.nearest(m, search=search, compiled=compiled)

    @property
    def labelled(self) -> tuple[Tensor, Tensor]:
        """The images with a known label, and their classes."""
        return labelled(
            torch.empty(0, dtype=torch.long, device=self.features.device) if self.known is None else self.known
        )


def labelled(known: Tensor) -> tuple[Tensor, Tensor]:
    """The numbers of the images with a known label, and their classes."""
    images = (known >= 0).nonzero().squeeze(1)
    return images, known[images]


def certain(log_y: Tensor, known: Tensor) -> Tensor:
    """log ŷ (n×k) in which known labels (n, UNKNOWN elsewhere) have ŷ = 1."""
    images, classes = labelled(known)
    rows = log_y.new_full((len(images), log_y.shape[1]), IMPOSSIBLE).scatter_(1, classes[:, None], 0.0)
    return log_y.index_copy(0, images, rows)


@dataclass(frozen=True)
class Step:
    """The result of one batch: the next state, the probabilities z (n×k, rows sum to 1), and what happened."""

    state: State | None
    z: Tensor
    info: dict[str, Any] = field(default_factory=dict)
    scores: Tensor | None = None  # n×k: z before its softmax, if the method has that; log z has fewer digits


@dataclass(frozen=True)
class Traits:
    """What a method is and what it needs."""

    paper: str
    year: int
    scope: Literal["image", "batch"]  # does a label depend on the other images of the batch?
    memory: Literal["none", "stream"]  # does a label depend on earlier batches?
    needs: Literal["features", "views", "encoder"] = "features"
    known: bool = False  # does it use `Batch.known`, and keep those labels?
    by_class: bool = False  # is its state rows per class, each of that class alone? Then classes can come and go
    graded: bool = True  # is z graded? False: it is one-hot, labels without probabilities


@runtime_checkable
class Method(Protocol):
    """The contract of a method; `kedge.check_method` tests it."""

    @property
    def name(self) -> str:
        """The registered name, like `zero-shot`: a constant of the class."""

    @property
    def traits(self) -> Traits:
        """A constant of the class; or, for a wrapper, a property that depends on the inner method."""

    def init(self, head: TextHead) -> State | None:
        """The state before the first batch; later states have the same names, types and shapes, unless it is empty."""

    def step(self, state: State | None, batch: Batch) -> Step:
        """Label one batch."""


@runtime_checkable
class Prepares(Protocol):
    """A method that computes something for each image independently of its batch, once for many batches."""

    def prepare(self, batch: Batch) -> Mapping[str, Tensor]:
        """Tables with a row per image. Later batches of these images get their rows in `Batch.tables`."""


@runtime_checkable
class SolvesParts(Protocol):
    """A method that can solve more images than memory holds, in parts and by lists of candidates; see `solve/joint`."""

    @property
    def neighbours(self) -> int:
        """How many neighbours of each image it needs."""

    @property
    def search(self) -> Search:
        """How they are to be found."""

    def check_parts(self) -> None:
        """Raise SettingError if a setting needs all images at once."""

    def solve(self, parts: Parts, head: TextHead) -> dict[str, Any]:
        """Solve the images of the parts, which are `Rows` and keep the outcome; its `info`."""


@runtime_checkable
class ChecksState(Protocol):
    """A method that knows more about its states than `check_state` can see."""

    def check_state(self, state: State | None, head: TextHead) -> None:
        """Raise InputError if this is not a state of the method."""


def check_state(method: Method, state: State | None, head: TextHead) -> None:
    """Raise InputError if a state, as read from a file, is not one of this method with this head.

    It needs the names, types and shapes of `init(head)`, and finite values (or init's own: ∞ marks an empty slot).
    """
    form = method.init(head)
    if form is None or form:  # an empty state may grow
        check_form(state, form)
    for name, value in (state or {}).items():
        expected = value.isfinite()
        if form:
            expected |= value == form[name]
        if not bool(expected.all()):
            raise InputError(f"{name} in the state has NaN or infinite values. Start a new stream.")
    if isinstance(method, ChecksState):
        method.check_state(state, head)


def check_form(state: State | None, form: State | None) -> None:
    """Raise InputError unless a state has the names, types and shapes of another."""
    if state is None and form is None:
        return
    if state is None or form is None or state.keys() != form.keys():
        names = ["none" if each is None else f"[{', '.join(sorted(each))}]" for each in (state, form)]
        raise InputError(f"the state is {names[0]}; it must be {names[1]}. Start a new stream.")
    for name, expected in form.items():
        found = state[name]
        if found.dtype != expected.dtype or found.shape != expected.shape:
            raise InputError(
                f"{name} in the state is {found.dtype} of shape {tuple(found.shape)}; it must be {expected.dtype} of "
                f"shape {tuple(expected.shape)}. Start a new stream."
            )


def unmet_needs(method: Method, *, views: bool, encoder: bool = False, known: bool = False) -> str:
    """Why the method cannot run on such a batch, and what to do; "" if it can.

    views, encoder, known: does the batch have views, images with their encoder, known labels?
    """
    if method.traits.needs == "views" and not views:
        return (
            f"method {method.name!r} needs augmented views, and there are none. "
            "Extract the features with views (n×v×d, view 0 is the image itself), or choose another method."
        )
    if method.traits.needs == "encoder" and not encoder:
        return (
            f"method {method.name!r} needs the images and their encoder; features alone are not enough. "
            "Pass images=… and encoder=… with the features, or choose another method."
        )
    if known and not method.traits.known:
        return (
            f"method {method.name!r} does not use known labels. Leave `known` out, or choose one that does: "
            "see `kedge ls methods`."
        )
    return ""


def check_needs(method: Method, *, views: bool, encoder: bool = False, known: bool = False) -> None:
    """Raise InputError if `unmet_needs` finds a reason."""
    if reason := unmet_needs(method, views=views, encoder=encoder, known=known):
        raise InputError(reason)
