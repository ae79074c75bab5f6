"""Label a batch, or a stream of batches: the door most people use.

r = kedge.adapt(image_features, text_features)          # one batch
s = kedge.Stream("stata", text_features); s.step(batch)  # batch after batch, with the method's memory between them
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..arrays import Array, as_tensor, check_count, check_unit_rows, like_input, unit_rows, working
from ..errors import FileError, InputError, SettingError
from ..features.feature_set import FeatureSet
from ..features.text_head import CLIP_LOGIT_SCALE, TextHead, check_same_dimension
from ..methods.contract import Batch, Method, State, check_needs
from ..methods.registry import build, list_methods
from ..methods.settings import settings_of
from ..methods.solve.em import effective_classes
from ..tensor_files import load_tensors, save_tensors

KIND, VERSION = "stream", 1
FIELDS = ("method", "settings", "logit_scale", "class_names", "has_state", "steps", "normalize")


@dataclass(frozen=True, eq=False)
class Result:
    """Labels of one batch, as arrays of the kind that came in."""

    probs: Array  # n×k, rows sum to 1
    labels: Array  # n, the argmax of probs
    zero_shot: Array  # n×k, the encoder's own probabilities
    info: dict[str, Any]  # what the method says happened, and the effective number of classes


def adapt(
    image_features: Array | FeatureSet,
    text_features: Array | TextHead | None = None,
    method: str | Method = "stata",
    logit_scale: float = CLIP_LOGIT_SCALE,
    normalize: bool = False,
    images: Tensor | None = None,
    encoder: torch.nn.Module | None = None,
    **settings: Any,
) -> Result:
    """Label n images jointly.

    image_features: n×d unit rows, numpy or torch, any float type; or a FeatureSet (then leave text_features out).
    text_features: k×d unit rows, one per class; or a TextHead, which brings its own logit scale.
    method: a registered name (see `kedge.methods()`), with its **settings; or a method object.
    normalize: scale rows to unit norm first, instead of refusing others.
    images, encoder: for methods that adapt the encoder: n images as it takes them, of which the features are.

    Returns a Result of the input's array kind and device: float64 in, float64 out; every narrower float gives float32.
    """
    chosen = build(method, settings)
    views = None
    if isinstance(image_features, FeatureSet):
        if text_features is not None:
            raise InputError("a FeatureSet brings its own text features; pass it alone, or pass two arrays.")
        views, text_features = image_features.views, image_features.head
        image_features = image_features.image_features
    x = as_tensor(image_features, "image_features", ndim=2)
    if text_features is None:
        raise InputError("text_features is missing: pass k×d prototypes, one per class, or a FeatureSet.")
    head = _head(text_features, logit_scale, normalize).like(working(x[:1]))
    return _labelled(chosen, head, chosen.init(head), image_features, views, normalize, images, encoder)[1]


class Stream:
    """A method on its way along a stream of batches.

    Works on the device and in the precision of `text_features`; each result has the kind of the batch that was given.
    """

    def __init__(
        self,
        method: str | Method,
        text_features: Array | TextHead,
        logit_scale: float = CLIP_LOGIT_SCALE,
        normalize: bool = False,
        **settings: Any,
    ) -> None:
        self.method = build(method, settings)
        self.head = _head(text_features, logit_scale, normalize)
        self.normalize = normalize
        self.reset()

    def reset(self) -> None:
        """Forget every batch seen."""
        self.state: State | None = self.method.init(self.head)
        self.steps = 0

    def step(
        self,
        batch: Array,
        views: Array | None = None,
        *,
        images: Tensor | None = None,
        encoder: torch.nn.Module | None = None,
    ) -> Result:
        """Label the next batch: n×d, and n×v×d views if the method needs them. If it fails, the stream is as before.

        A method that adapts the encoder needs it and the n images too; the encoder itself is never changed.
        """
        self.state, result = _labelled(
            self.method, self.head, self.state, batch, views, self.normalize, images, encoder
        )
        self.steps += 1
        return result

    def save(self, path: str | Path) -> None:
        """Write the stream as it stands, by rename; `Stream.load` goes on from there, bit for bit."""
        if not hasattr(self.method, "__dataclass_fields__"):
            raise SettingError(f"a {type(self.method).__name__} is not a dataclass, so its settings can not be saved.")
        tensors = {"text_features": self.head.features}
        tensors.update({f"state.{name}": value.clone() for name, value in (self.state or {}).items()})
        meta = {
            "method": self.method.name,
            "settings": settings_of(self.method),
            "logit_scale": self.head.logit_scale,
            "class_names": list(self.head.class_names),
            "has_state": self.state is not None,
            "steps": self.steps,
            "normalize": self.normalize,
        }
        save_tensors(path, KIND, VERSION, tensors, meta)

    @classmethod
    def load(cls, path: str | Path, method: Method | None = None) -> Stream:
        """Go on where `save` stopped. A method that is not registered must be passed, with the same settings."""
        tensors, meta = load_tensors(path, KIND, VERSION, FIELDS)
        if method is None and meta["method"] not in list_methods():
            raise FileError(
                f"{path} is a stream of {meta['method']!r}, which is not registered here. Pass the method object: "
                "Stream.load(path, method=…)."
            )
        chosen = build(meta["method"], meta["settings"]) if method is None else build(method)
        if chosen.name != meta["method"] or settings_of(chosen) != meta["settings"]:
            raise FileError(f"{path} is a stream of {meta['method']!r} with {meta['settings']}; got {chosen!r}.")
        stream = cls.__new__(cls)
        stream.method = chosen
        stream.head = TextHead(tensors["text_features"].clone(), meta["logit_scale"], tuple(meta["class_names"]))
        stream.normalize = meta["normalize"]
        stream.steps = meta["steps"]
        state = {name.removeprefix("state."): v.clone() for name, v in tensors.items() if name.startswith("state.")}
        stream.state = state if meta["has_state"] else None
        return stream


def _head(text_features: Array | TextHead, logit_scale: float, normalize: bool) -> TextHead:
    if isinstance(text_features, TextHead):
        return text_features
    return TextHead.from_arrays(text_features, logit_scale, normalize=normalize)


def _labelled(
    method: Method,
    head: TextHead,
    state: State | None,
    features: Array,
    views: Array | None,
    normalize: bool,
    images: Tensor | None,
    encoder: torch.nn.Module | None,
) -> tuple[State | None, Result]:
    """Check a batch, take one step, give the result the input's kind."""
    check_needs(method, views=views is not None, encoder=images is not None and encoder is not None)
    batch = Batch(
        _checked_rows(features, "image_features", 2, head, normalize),
        head,
        None if views is None else _checked_rows(views, "views", 3, head, normalize),
        images,
        encoder,
    )
    if batch.views is not None:
        check_count(len(batch.views), len(batch.features), "views")
    with torch.no_grad():
        step = method.step(state, batch)
        info: Mapping[str, Any] = {
            "method": method.name,
            **step.info,
            "effective_classes": effective_classes(step.z.sum(dim=0), len(step.z)),
        }
        if "log_zero_shot" in vars(batch):
            zero_shot = batch.log_zero_shot.exp()
        else:  # the method did without: then no array of logarithms is kept beside the probabilities
            zero_shot = head.log_zero_shot(batch.features).exp_()
        out = like_input(features)
        result = Result(out(step.z), out(step.z.argmax(dim=1)), out(zero_shot), dict(info))
    return step.state, result


def _checked_rows(array: Array, name: str, ndim: int, head: TextHead, normalize: bool) -> Tensor:
    x = as_tensor(array, name, ndim)
    check_same_dimension(x, head, name)
    check_unit_rows(x, name, normalize=normalize)
    return unit_rows(x, normalize=normalize, like=head.features)
