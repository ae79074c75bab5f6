"""Label one batch, or a stream of batches.

result = kedge.adapt(image_features, text_features)    # one batch
stream = kedge.Stream(text_features)                   # many batches; the method may remember earlier ones
result = stream.step(batch)
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, overload

import torch
from torch import Tensor

from ..arrays import (
    A,
    Array,
    Integers,
    as_tensor,
    check_count,
    check_unit_rows,
    effective_classes,
    like_input,
    unit_rows,
    working,
)
from ..errors import FileError, InputError, SettingError
from ..features.feature_set import FeatureSet
from ..features.text_head import CLIP_LOGIT_SCALE, TextHead, check_same_dimension
from ..methods.contract import Batch, Method, State, check_needs, check_state
from ..methods.given import known_labels
from ..methods.registry import build, list_methods, list_wrappers
from ..methods.results import check_step
from ..methods.settings import settings_of
from ..schema import Whole
from ..tensor_files import check_names, load_tensors, save_tensors
from ..words import count

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


@dataclass(frozen=True, eq=False, repr=False)
class Result(Generic[A]):
    """The labels of one batch, as arrays of the same kind as its image features."""

    probs: A  # n×k, rows sum to 1
    labels: A  # n, the argmax of probs
    zero_shot: A  # n×k, the probabilities of the encoder alone
    info: dict[str, Any]  # what the method reports, and the effective number of classes

    @property
    def changed(self) -> int:
        """How many labels differ from zero-shot."""
        return int((self.labels != self.zero_shot.argmax(1)).sum())

    def __repr__(self) -> str:
        n, k = self.probs.shape
        return (
            f"Result: {count(n, 'image')}, {count(k, 'class')}, method {self.info.get('method', 'unknown')}\n"
            f"  {count(self.changed, 'label')} changed\n"
            f"  probs, zero_shot: {n}×{k} {self.probs.dtype}; labels: {n}; info: {', '.join(self.info)}"
        )


@overload
def adapt(
    image_features: FeatureSet,
    text_features: None = None,
    method: str | Method = "kedge",
    logit_scale: float = CLIP_LOGIT_SCALE,
    normalize: bool = False,
    images: Tensor | None = None,
    encoder: torch.nn.Module | None = None,
    known: Integers | None = None,
    **settings: Any,
) -> Result[Tensor]: ...


@overload
def adapt(
    image_features: A,
    text_features: Array | TextHead,
    method: str | Method = "kedge",
    logit_scale: float = CLIP_LOGIT_SCALE,
    normalize: bool = False,
    images: Tensor | None = None,
    encoder: torch.nn.Module | None = None,
    known: Integers | None = None,
    **settings: Any,
) -> Result[A]: ...


def adapt(
    image_features: Any,
    text_features: Any = None,
    method: str | Method = "kedge",
    logit_scale: float = CLIP_LOGIT_SCALE,
    normalize: bool = False,
    images: Tensor | None = None,
    encoder: torch.nn.Module | None = None,
    known: Integers | None = None,
    **settings: Any,
) -> Result[Any]:
    """Label n images jointly.

    image_features: n×d unit rows, numpy or torch, any float type; or a FeatureSet, which has its own text features.
    text_features: k×d unit rows, one per class; or a TextHead, which has its own logit scale.
    method: a registered name (see `kedge.list_methods()`) with its **settings, or a method object.
    normalize: scale rows to unit norm. Otherwise rows without unit norm are an error.
    images, encoder: for methods that adapt the encoder: the n images as its input, and the encoder itself.
    known: labels given by a person, n whole numbers: a class 0…k−1, −1 if unknown, −2 (kedge.NONE) if none of them.
        For methods that use them (`Traits.known`).

    Returns a Result with arrays of the input's kind, on its device: float64 for float64, float32 for any other type.
    """
    chosen = build(method, settings)
    views = None
    if isinstance(image_features, FeatureSet):
        if text_features is not None:
            raise InputError("a FeatureSet has its own text features; got others too. Pass it alone, or two arrays.")
        views, text_features = image_features.views, image_features.head
        image_features = image_features.image_features
    x = as_tensor(image_features, "image_features", ndim=2)
    if text_features is None:
        raise InputError("text_features is missing: pass k×d prototypes, one per class, or a FeatureSet.")
    head = _head(text_features, logit_scale, normalize).like(working(x[:1]))
    return _labelled(chosen, head, chosen.init(head), image_features, views, normalize, images, encoder, known)[1]


class Stream:
    """A method that labels a stream of batches, one after the other.

    It computes on the device and in the precision of `text_features`; each result has the kind of its batch.
    Several threads may use one stream: its steps then run one at a time, in any order. Different streams run in
    parallel.

    text_features: k×d unit rows, one per class; or a TextHead, which has its own logit scale.
    method: a registered name (see `kedge.list_methods()`) with its **settings, or a method object.
    normalize: scale rows to unit norm. Otherwise rows without unit norm are an error.
    """

    def __init__(
        self,
        text_features: Array | TextHead,
        method: str | Method = "kedge",
        logit_scale: float = CLIP_LOGIT_SCALE,
        normalize: bool = False,
        **settings: Any,
    ) -> None:
        self.method = build(method, settings)
        self.head = _head(text_features, logit_scale, normalize)
        self.normalize = normalize
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Forget all batches."""
        with self._lock:
            self.state: State | None = self.method.init(self.head)
            self.steps = 0

    def step(
        self,
        batch: A,
        views: Array | None = None,
        *,
        images: Tensor | None = None,
        encoder: torch.nn.Module | None = None,
        known: Integers | None = None,
    ) -> Result[A]:
        """Label the next batch (n×d) jointly. After an error the stream is as before the step.

        views: n×v×d, for methods that need them.
        images, encoder: for methods that adapt the encoder: the n images as its input, and the encoder itself, which
        stays unchanged.
        known: labels given by a person, as in `adapt`.
        """
        with self._lock:
            self.state, result = _labelled(
                self.method, self.head, self.state, batch, views, self.normalize, images, encoder, known
            )
            self.steps += 1
        return result

    def __repr__(self) -> str:
        return f"Stream: {self.method!r}\n  after {count(self.steps, 'batch')}\n  {self.head!r}"

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
            state, steps = self.state, self.steps
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
            check_state(chosen, state, head)
        except (InputError, SettingError) as error:
            raise FileError(f"{path} is not a stream of {header.method!r}: {error}") from error
        stream = cls(head, chosen, normalize=header.normalize)
        stream.state, stream.steps = state, header.steps
        return stream


def _head(text_features: Array | TextHead, logit_scale: float, normalize: bool) -> TextHead:
    if isinstance(text_features, TextHead):
        return text_features
    if isinstance(text_features, FeatureSet):
        raise InputError("text_features must be k×d prototypes or a TextHead; got a FeatureSet. Pass features.head.")
    return TextHead.from_arrays(text_features, logit_scale, normalize=normalize)


def _labelled(
    method: Method,
    head: TextHead,
    state: State | None,
    features: A,
    views: Array | None,
    normalize: bool,
    images: Tensor | None,
    encoder: torch.nn.Module | None,
    known: Integers | None,
) -> tuple[State | None, Result[A]]:
    """Check a batch, label it, and convert the result to the kind of the input."""
    x = _checked_rows(features, "image_features", 2, head, normalize)
    batch = Batch(
        x,
        head,
        None if views is None else _checked_rows(views, "views", 3, head, normalize),
        images,
        encoder,
        None if known is None else known_labels(known, len(x), head).to(x.device),
    )
    has_encoder = images is not None and encoder is not None
    check_needs(method, views=views is not None, encoder=has_encoder, known=batch.known is not None)
    if batch.views is not None:
        check_count(len(batch.views), len(batch.features), "views")
    with torch.no_grad():
        step = method.step(state, batch)
        check_step(method, step, batch, state)
        if "log_zero_shot" in vars(batch):
            zero_shot = batch.log_zero_shot.exp()
        else:  # the method never computed zero-shot; exp in place saves memory
            zero_shot = head.log_zero_shot(batch.features).exp_()
        info = {"method": method.name, **step.info, "effective_classes": effective_classes(step.z.sum(dim=0))}
        out = like_input(features)
        return step.state, Result(out(step.z), out(step.z.argmax(dim=1)), out(zero_shot), info)


def _checked_rows(array: Array, name: str, ndim: int, head: TextHead, normalize: bool) -> Tensor:
    if isinstance(array, FeatureSet):
        raise InputError(f"{name} must be an array; got a FeatureSet. Pass features.{name}.")
    x = as_tensor(array, name, ndim)
    check_same_dimension(x, head, name)
    check_unit_rows(x, name, normalize=normalize)
    return unit_rows(x, normalize=normalize, like=head.features)
