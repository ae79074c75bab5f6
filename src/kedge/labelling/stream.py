"""Label one batch, or a stream of batches.

result = kedge.adapt(image_features, text_features)    # one batch
stream = kedge.Stream(text_features)                   # many batches; the method may remember earlier ones
result = stream.step(batch)
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor

from ..arrays import A, Array, as_tensor, working
from ..encoders.familiar import familiar
from ..errors import FileError, InputError, SettingError
from ..features.feature_set import FeatureSet
from ..features.text_head import CLIP_LOGIT_SCALE, TextHead
from ..methods.contract import Method, State, check_state
from ..methods.given import Known, Present, present_classes
from ..methods.narrowing import check_change, state_head
from ..methods.registry import build, list_methods, list_wrappers
from ..methods.settings import settings_of
from ..schema import Whole
from ..tensor_files import check_names, load_tensors, save_tensors
from ..words import count
from .result import Result
from .solving import Solver

KIND, VERSION = "stream", 1


@dataclass(frozen=True)
class Header:
    """What the file of a stream says beside its tensors."""

    method: str
    settings: dict[str, Any]
    logit_scale: float
    class_names: list[str]
    has_state: bool
    steps: Whole
    normalize: bool
    present: list[Whole] | None


@overload
def adapt(
    image_features: FeatureSet,
    text_features: None = None,
    method: str | Method = "kedge",
    logit_scale: float = CLIP_LOGIT_SCALE,
    normalize: bool = False,
    **options: Any,
) -> Result[Tensor]: ...


@overload
def adapt(
    image_features: A,
    text_features: Array | TextHead,
    method: str | Method = "kedge",
    logit_scale: float = CLIP_LOGIT_SCALE,
    normalize: bool = False,
    **options: Any,
) -> Result[A]: ...


def adapt(
    image_features: Any,
    text_features: Any = None,
    method: str | Method = "kedge",
    logit_scale: float = CLIP_LOGIT_SCALE,
    normalize: bool = False,
    *,
    images: Tensor | None = None,
    encoder: torch.nn.Module | None = None,
    present: Present | None = None,
    known: Known | None = None,
    reject: float | None = None,
    **settings: Any,
) -> Result[Any]:
    """Label n images jointly.

    image_features: n×d unit rows, numpy or torch, any float type; or a FeatureSet, which has its own text features.
    text_features: k×d unit rows, one per class; or a TextHead, which has its own logit scale.
    method: a registered name (see `kedge.list_methods()`) with its **settings, or a method object.
    normalize: scale rows to unit norm. Otherwise rows without unit norm are an error.
    images, encoder: for methods that adapt the encoder: the n images as its input, and the encoder itself.
    present: the classes that can occur, as names or numbers; the others get probability 0. None: all.
    known: labels given by a person, {image: class} with names or numbers, or n numbers: −1 if unknown, −2 (kedge.NONE)
        if the image shows none of the classes. Classes are for methods that use them (`Traits.known`), NONE is for all.
    reject: from 0 to 1: images whose score `none` is above it are taken out, and the others labelled once more. Those
        taken out get the label −1 and keep their first probabilities.

    Returns a Result with arrays of the input's kind, on its device: float64 for float64, float32 for any other type.
    """
    chosen = build(method, settings)
    views = knows = None
    if isinstance(image_features, FeatureSet):
        if text_features is not None:
            raise InputError("a FeatureSet has its own text features; got others too. Pass it alone, or two arrays.")
        views, text_features = image_features.views, image_features.head
        knows = familiar(image_features.provenance)
        image_features = image_features.image_features
    x = as_tensor(image_features, "image_features", ndim=2)
    if text_features is None:
        raise InputError("text_features is missing: pass k×d prototypes, one per class, or a FeatureSet.")
    head = _head(text_features, logit_scale, normalize).like(working(x[:1]))
    solver = Solver(chosen, head, present_classes(present, head), normalize)
    given: dict[str, Any] = {"images": images, "encoder": encoder, "known": known, "reject": reject, "familiar": knows}
    return solver.label(solver.initial_state(), image_features, views=views, **given)[1]


class Stream:
    """A method that labels a stream of batches, one after the other.

    It computes on the device and in the precision of `text_features`; each result has the kind of its batch.
    Several threads may use one stream: its steps then run one at a time, in any order. Different streams run in
    parallel.

    text_features: k×d unit rows, one per class; or a TextHead, which has its own logit scale.
    method: a registered name (see `kedge.list_methods()`) with its **settings, or a method object.
    normalize: scale rows to unit norm. Otherwise rows without unit norm are an error.
    present: the classes that can occur, as names or numbers; None: all. `stream.present = …` changes it between two
        steps; a method whose memory is not kept by class refuses that after the first step.
    """

    state: State | None  # what the method remembers
    steps: int  # how many batches there were

    def __init__(
        self,
        text_features: Array | TextHead,
        method: str | Method = "kedge",
        logit_scale: float = CLIP_LOGIT_SCALE,
        normalize: bool = False,
        *,
        present: Present | None = None,
        **settings: Any,
    ) -> None:
        self.method = build(method, settings)
        self.head = _head(text_features, logit_scale, normalize)
        self.normalize = normalize
        self._present = present_classes(present, self.head)
        self._lock = threading.Lock()
        self.reset()

    @property
    def present(self) -> tuple[int, ...] | None:
        """Numbers of the classes that can occur; None: all."""
        return None if self._present is None else tuple(self._present.tolist())

    @present.setter
    def present(self, classes: Present | None) -> None:
        chosen = present_classes(classes, self.head)
        with self._lock:
            if self.present == (None if chosen is None else tuple(chosen.tolist())):
                return
            check_change(self.method, self.steps)
            self._present = chosen
            if not self.steps:
                self.state = self._solver.initial_state()

    @property
    def _solver(self) -> Solver:
        return Solver(self.method, self.head, self._present, self.normalize)

    def reset(self) -> None:
        """Forget all batches."""
        with self._lock:
            self.state = self._solver.initial_state()
            self.steps = 0

    def step(
        self,
        batch: A,
        views: Array | None = None,
        *,
        images: Tensor | None = None,
        encoder: torch.nn.Module | None = None,
        known: Known | None = None,
        reject: float | None = None,
    ) -> Result[A]:
        """Label the next batch (n×d) jointly. After an error the stream is as before the step.

        views: n×v×d, for methods that need them.
        images, encoder: for methods that adapt the encoder: the n images as its input, and the encoder itself, which
        stays unchanged.
        known, reject: as in `adapt`. Images that show none of the classes do not enter the method's memory.
        """
        given: dict[str, Any] = {"views": views, "images": images, "encoder": encoder, "known": known, "reject": reject}
        with self._lock:
            self.state, result = self._solver.label(self.state, batch, **given)
            self.steps += 1
        return result

    def __repr__(self) -> str:
        present = self.present
        can_occur = "" if present is None else f"\n  {len(present):,} of them can occur: see .present"
        return f"Stream: {self.method!r}\n  after {count(self.steps, 'batch')}\n  {self.head!r}{can_occur}"

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            return {name: value for name, value in vars(self).items() if name != "_lock"}  # locks cannot be copied

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.Lock())

    def save(self, path: str | Path) -> None:
        """Write the stream to a file. `Stream.load` continues from there, bit for bit."""
        if not hasattr(self.method, "__dataclass_fields__"):
            raise SettingError(
                f"cannot save a stream of {type(self.method).__name__}: it is not a dataclass, so its settings are "
                "unknown. Make it a frozen dataclass."
            )
        with self._lock:
            state, steps, present = self.state, self.steps, self.present
        tensors = {"text_features": self.head.features}
        tensors.update({f"state.{name}": value.clone() for name, value in (state or {}).items()})
        meta = {
            "method": self.method.name,
            "settings": settings_of(self.method),
            "logit_scale": self.head.logit_scale,
            "class_names": list(self.head.class_names),
            "has_state": state is not None,
            "steps": steps,
            "normalize": self.normalize,
            "present": None if present is None else list(present),
        }
        save_tensors(path, KIND, VERSION, tensors, meta)

    @classmethod
    def load(cls, path: str | Path, method: Method | None = None) -> Stream:
        """Continue a saved stream. A method that is not registered must be passed, with the same settings."""
        tensors, header = load_tensors(path, KIND, VERSION, Header)
        saved = {name.removeprefix("state."): v.clone() for name, v in tensors.items() if name.startswith("state.")}
        check_names(Path(path), tensors, ("text_features",), [f"state.{name}" for name in saved if header.has_state])
        if method is None and header.method not in (*list_methods(), *list_wrappers()):
            raise FileError(
                f"{path} is a stream of {header.method!r}, which is not registered here. Pass the method object: "
                "Stream.load(path, method=…)."
            )
        state = saved if header.has_state else None
        try:
            chosen = build(header.method, header.settings) if method is None else build(method)
            if chosen.name != header.method or settings_of(chosen) != header.settings:
                raise FileError(
                    f"{path} is a stream of {header.method!r} with {header.settings}; got {chosen!r}. "
                    "Pass a method with the same settings."
                )
            head = TextHead.from_arrays(
                tensors["text_features"].clone(), header.logit_scale, header.class_names or None
            )
            stream = cls(head, chosen, normalize=header.normalize, present=header.present)
            check_state(chosen, state, state_head(chosen, head, stream._present))
        except (InputError, SettingError) as error:
            raise FileError(f"{path} is not a stream of {header.method!r}: {error}") from error
        stream.state, stream.steps = state, header.steps
        return stream


def _head(text_features: Array | TextHead, logit_scale: float, normalize: bool) -> TextHead:
    if isinstance(text_features, TextHead):
        return text_features
    if isinstance(text_features, FeatureSet):
        raise InputError("text_features must be k×d prototypes or a TextHead; got a FeatureSet. Pass features.head.")
    return TextHead.from_arrays(text_features, logit_scale, normalize=normalize)
