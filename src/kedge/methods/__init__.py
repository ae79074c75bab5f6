"""What a method is, and which there are.

A method is a frozen dataclass: its fields are its settings, nothing else is in it. It has two functions:

    init(head) -> state | None         before the first batch; None if the method keeps nothing between batches
    step(state, batch) -> Step         label one batch; returns the next state, changes nothing

`Batch` is all that a method may look at. It has no labels, by type.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from ..errors import InputError, SettingError, did_you_mean
from ..features import TextHead
from ._compiled import compiled_solver
from ._gaussian import floored, shared_variance, squared_distances
from ._settings import check_names

State = Mapping[
    str, Tensor
]  # what an online method carries along a stream: named tensors, so that any state can be saved
ENTRY_POINTS = "kedge.methods"  # the group in which another package announces its methods

_BUILTIN = {
    "zero-shot": "kedge.methods.zero_shot:ZeroShot",
    "kedge": "kedge.methods.kedge:Kedge",
    "stata": "kedge.methods.stata:StatA",
    "transclip": "kedge.methods.transclip:TransCLIP",
    "em-dirichlet": "kedge.methods.em_dirichlet:EMDirichlet",
    "zlap": "kedge.methods.zlap:ZLaP",
    "moon": "kedge.methods.moon:Moon",
    "tda": "kedge.methods.tda:TDA",
    "dmn": "kedge.methods.dmn:DMN",
    "oga": "kedge.methods.oga:OGA",
    "mta": "kedge.methods.mta:MTA",
    "tent": "kedge.methods.tent:Tent",
}


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


class _CallableModule(ModuleType):
    """`kedge.methods` is this package and, for people, the function `methods()` too, whichever was imported first."""

    def __call__(self) -> tuple[str, ...]:
        return methods()


sys.modules[__name__].__class__ = _CallableModule


def methods() -> tuple[str, ...]:
    """Names of every registered method: ours, then those of installed packages."""
    return (*_BUILTIN, *sorted(_plugins()))


@lru_cache(maxsize=1)
def _plugins() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINTS) if point.name not in _BUILTIN}


def find(name: str) -> type[Any]:
    """The class of a registered method; loads its module only now."""
    if name in _BUILTIN:
        module, _, attribute = _BUILTIN[name].partition(":")
        return getattr(import_module(module), attribute)  # type: ignore[no-any-return]
    if name in _plugins():
        try:
            return _plugins()[name].load()  # type: ignore[no-any-return]
        except Exception as error:
            raise SettingError(f"method {name!r} of another package does not load: {error}") from error
    raise SettingError(f"unknown method {name!r}{did_you_mean(name, methods())}")


def build(method: str | Method, settings: Mapping[str, Any] | None = None) -> Method:
    """A method object from a registered name and settings; a method object passes through (without settings)."""
    settings = dict(settings or {})
    if isinstance(method, str):
        cls = find(method)
        check_names(cls, settings, method)
        return cls(**settings)  # type: ignore[no-any-return]
    if isinstance(method, type) or not isinstance(method, Method):
        raise SettingError(
            f"a method is a registered name ({', '.join(methods())}) or an object with name, traits, init and step; "
            f"got {method!r}."
        )
    if settings:
        raise SettingError(
            f"settings ({', '.join(settings)}) go with a method's name; this {method.name!r} is already configured."
        )
    return method
