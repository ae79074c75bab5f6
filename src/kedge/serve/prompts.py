"""The text head of the classes that a person has: only prompts that are new go through the encoder.

A prototype comes from the feature file (of the classes at the start), from the journal, or from the encoder, which is
loaded when it is first needed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..arrays import unit, unit_rows, working
from ..encoders.encoder import Encoder
from ..errors import InputError
from ..features.feature_set import FeatureSet
from ..features.text_head import TextHead
from .journal import Journal
from .said import SaidClass

KEPT = 8  # heads: undo and redo go back and forth


class LazyEncoder:
    """An encoder that is loaded once, at its first use."""

    def __init__(self, load: Callable[[], Encoder]) -> None:
        self._load = load
        self._lock = threading.Lock()
        self._loaded: Encoder | None = None

    def __call__(self) -> Encoder:
        """The encoder; whoever comes while it is loaded waits."""
        with self._lock:
            if self._loaded is None:
                self._loaded = self._load()
            return self._loaded


class Prompts:
    """Makes heads for the features of one encoder.

    encoder: None if it is not there; then only classes whose prototypes are known can be used.
    """

    def __init__(self, features: FeatureSet, templates: Sequence[str], journal: Journal) -> None:
        self.encoder: LazyEncoder | None = None
        self._templates, self._journal = tuple(templates), journal
        self._scale = features.head.logit_scale
        self._own = unit_rows(working(features.head.features))
        self._own_names = dict(enumerate(features.head.class_names))
        self._rows: dict[tuple[str, ...], Tensor] = {}
        self._heads: dict[tuple[SaidClass, ...], TextHead] = {}

    def head(self, classes: tuple[SaidClass, ...]) -> TextHead:
        """The head of these classes, in their order; the same object for the same classes."""
        if classes not in self._heads:
            rows = torch.stack([self._prototype(each) for each in classes])
            made = TextHead.from_arrays(rows, self._scale, [each.name for each in classes])
            self._heads = {**dict(list(self._heads.items())[1 - KEPT :]), classes: made}
        return self._heads[classes]

    def _prompts(self, given: SaidClass) -> tuple[str, ...]:
        """What the encoder reads for a class."""
        return tuple(text.replace("{}", given.name) for text in ([given.prompt] if given.prompt else self._templates))

    def _prototype(self, given: SaidClass) -> Tensor:
        if given.prompt is None and given.name == self._own_names.get(given.id):
            return self._own[given.id]
        prompts = self._prompts(given)
        if prompts not in self._rows:
            found = self._journal.prototype(prompts, self._own.shape[1])
            if found is None:
                found = self._encoded(prompts)
                self._journal.keep_prototype(prompts, found)
            self._rows[prompts] = found.to(self._own)
        return self._rows[prompts]

    def _encoded(self, prompts: tuple[str, ...]) -> Tensor:
        if self.encoder is None:
            raise InputError(
                "the encoder of these features is not there, so classes cannot be added or changed. "
                "Start `kedge serve` with --encoder NAME."
            )
        return unit(self.encoder().encode_texts(prompts).mean(dim=0, keepdim=True))[0]
