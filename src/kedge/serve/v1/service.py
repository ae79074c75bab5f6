"""The work of the service, without HTTP: requests in, answers out. Everything here runs in threads."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.exceptions import HTTPException
from torch import Tensor

from ...encoders.encoder import Encoder
from ...encoders.templates import PLAIN_TEMPLATE
from ...errors import InputError
from ...features.feature_set import FeatureSet
from ...features.text_head import CLIP_LOGIT_SCALE, TextHead, text_head
from ...labelling.result import NO_CLASS_NAME, Result
from ...labelling.stream import Stream, adapt
from ...memory import check_memory
from ...methods.contract import Method, check_needs
from ...methods.registry import build
from ...methods.settings import description
from ...words import count
from .metrics import Metrics
from .models import AdaptRequest, Batch, Head, Known, PresentRequest, StepRequest, StreamRequest
from .packing import read, writer
from .streams import Streams
from .uploads import encoded

MOST_ENTRIES = 1 << 25  # of n×k
WRITTEN_ENTRIES = 1 << 22  # of n×k, as lists of numbers
LARGE = 1 << 22  # entries of n×k: such solves happen one at a time
ARRAYS = 8  # of n×k in memory at one time, about
MOST_PROMPTS = 10_000


class Service:
    """Labels batches and streams for programs.

    streams: a folder for the streams. encoder: gives the server's encoder, for requests with images or class names;
    None: these are refused.
    """

    def __init__(self, streams: Path, encoder: Callable[[], Encoder] | None = None) -> None:
        self.streams = Streams(streams)
        self.metrics = Metrics()
        self.metrics.streams.set_function(lambda: len(self.streams.files()))
        self._encoder = encoder
        self._encoding = threading.Lock()
        self._large = threading.Lock()
        self._encoded_head = lru_cache(maxsize=16)(self._encode_classes)

    def adapt(self, request: AdaptRequest) -> dict[str, Any]:
        """Label one batch."""
        method, head = build(request.method), self._head(request)
        x, given = self._batch(request, method, head)
        with self._room(len(x), head.k):
            result = adapt(
                x,
                None if isinstance(x, FeatureSet) else head,
                method,
                normalize=request.normalize,
                present=_exact(request.present, head),
                **given,
            )
            return self._answer(request, head, result)

    def create(self, request: StreamRequest) -> dict[str, Any]:
        """A new stream."""
        method, head = build(request.method), self._head(request)
        check_needs(method, views=False, encoder=self._encoder is not None)
        stream = Stream(head, method, normalize=request.normalize, present=_exact(request.present, head))
        return about(self.streams.create(stream), stream)

    def step(self, name: str, request: StepRequest) -> dict[str, Any]:
        """Label the next batch of a stream."""

        def work(stream: Stream) -> dict[str, Any]:
            if request.step is not None and request.step != stream.steps:
                raise HTTPException(
                    409, f"the stream has had {count(stream.steps, 'batch')}, not {request.step:,}. Nothing was done."
                )
            x, given = self._batch(request, stream.method, stream.head)
            features = x.image_features if isinstance(x, FeatureSet) else x
            with self._room(len(features), stream.head.k):
                answer = self._answer(request, stream.head, stream.step(features, **given))
            return {**answer, "step": stream.steps}

        return self.streams.change(name, work)

    def present(self, name: str, request: PresentRequest) -> dict[str, Any]:
        """Change the classes that can occur in a stream."""

        def work(stream: Stream) -> dict[str, Any]:
            stream.present = _exact(request.present, stream.head)
            return about(name, stream)

        return self.streams.change(name, work)

    def info(self, name: str) -> dict[str, Any]:
        """What a stream is."""
        return self.streams.use(name, lambda stream: about(name, stream))

    def all_streams(self) -> dict[str, Any]:
        """All streams, the last used first."""
        found = []
        for name, path in self.streams.files():
            with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                status = path.stat()
                found.append({"id": name, "bytes": status.st_size, "changed": status.st_mtime})
        return {"streams": sorted(found, key=lambda entry: (-entry["changed"], entry["id"]))}

    def _head(self, request: Head) -> TextHead:
        if request.text_features is None:
            assert request.classes is not None
            templates = tuple(request.templates or (PLAIN_TEMPLATE,))
            if len(request.classes) * len(templates) > MOST_PROMPTS:
                raise InputError(f"more than {MOST_PROMPTS:,} prompts: classes × templates. Send fewer of one.")
            head = self._encoded_head(tuple(request.classes), templates)
            return (
                head
                if request.logit_scale is None
                else TextHead.from_arrays(head.features, request.logit_scale, head.class_names)
            )
        scale = CLIP_LOGIT_SCALE if request.logit_scale is None else request.logit_scale
        rows = read(request.text_features, "text_features")
        return TextHead.from_arrays(rows, scale, request.classes, normalize=request.normalize)

    def _encode_classes(self, classes: tuple[str, ...], templates: tuple[str, ...]) -> TextHead:
        encoder = self._loaded("classes", "text_features")
        with self._encoding:
            return text_head(encoder, classes, templates)

    def _batch(self, request: Batch, method: Method, head: TextHead) -> tuple[Any, dict[str, Any]]:
        """The images as an array, or as a FeatureSet if they are encoded here; and what goes with them."""
        given: dict[str, Any] = {"known": _by_number(request.known, head), "reject": request.reject}
        if request.image_features is not None:
            x = read(request.image_features, "image_features")
            self._check_entries(request, len(x), head.k)
            return x, given
        assert request.images is not None
        check_needs(method, views=False, encoder=True)
        self._check_entries(request, len(request.images), head.k)
        encoder = self._loaded("images", "image_features")
        with self._encoding:
            features, pixels = encoded(request.images, encoder, keep=method.traits.needs == "encoder")
        if pixels is not None:
            given |= {"images": pixels, "encoder": encoder.visual}
        return FeatureSet.from_arrays(features, head, provenance=encoder.provenance), given

    def _loaded(self, what: str, instead: str) -> Encoder:
        if self._encoder is None:
            raise InputError(f"this server has no encoder, so it cannot encode {what}. Send {instead}.")
        return self._encoder()

    def _check_entries(self, request: Batch, n: int, k: int) -> None:
        what = f"{count(n, 'image')} and {count(k, 'class')}"
        if n * k > MOST_ENTRIES:
            raise InputError(f"{what}: more than {MOST_ENTRIES:,} probabilities. Send fewer images at a time.")
        if request.probs and n * k > WRITTEN_ENTRIES and isinstance(request.image_features, list):
            raise InputError(f"{what}: more than {WRITTEN_ENTRIES:,} probabilities as text. Send packed arrays.")
        check_memory(8 * ARRAYS * n * k, what)

    def _room(self, n: int, k: int) -> contextlib.AbstractContextManager[Any]:
        """Large solves wait for each other, so that their memory does not add up."""
        return self._large if n * k > LARGE else contextlib.nullcontext()

    def _answer(self, request: Batch, head: TextHead, result: Result[Any]) -> dict[str, Any]:
        write = writer(request.image_features)
        names = (*head.class_names, NO_CLASS_NAME)
        labels, probs, zero_shot = _numpy(result.labels), _numpy(result.probs), _numpy(result.zero_shot)
        self.metrics.images.inc(len(labels))
        answer = {
            "labels": write(labels),
            "names": [names[label] for label in labels.tolist()],  # the last one for −1
            "probability": write(probs.max(axis=1)),
            "zero_shot_labels": write(zero_shot.argmax(axis=1).astype(np.int64)),
            "none": write(_numpy(result.none)),
            "review": write(_numpy(result.review)),
            "classes": [vars(found) for found in result.classes],
            "verdict": vars(result.verdict),
            "info": result.info,
        }
        return {**answer, "probs": write(probs)} if request.probs else answer


def about(name: str, stream: Stream) -> dict[str, Any]:
    """What a stream is, for its info."""
    return {
        "id": name,
        "step": stream.steps,
        "method": description(stream.method),
        "classes": list(stream.head.class_names),
        "dimension": stream.head.d,
        "logit_scale": stream.head.logit_scale,
        "normalize": stream.normalize,
        "present": stream.present,
    }


def _exact(present: Sequence[int | str] | None, head: TextHead) -> list[int | str] | None:
    """Classes by number where the name is exactly that of one class; the rest is left to the library."""
    if present is None or not any(isinstance(entry, str) for entry in present):
        return None if present is None else list(present)
    numbers = _numbers(head)
    return [numbers.get(entry, entry) if isinstance(entry, str) else entry for entry in present]


def _by_number(known: Known | None, head: TextHead) -> Any:
    """Known labels as the library takes them."""
    if not isinstance(known, dict):
        return known
    labels = list(known.values())
    numbers = _numbers(head) if any(isinstance(label, str) for label in labels) else {}
    return {
        int(image): numbers.get(label, label) if isinstance(label, str) else label for image, label in known.items()
    }


def _numbers(head: TextHead) -> dict[str, int]:
    """The number of each class whose name no other has. (The library looks each name up in the whole list.)"""
    numbers: dict[str, int] = {}
    for number, name in enumerate(head.class_names):
        numbers[name] = -1 if name in numbers else number
    return {name: number for name, number in numbers.items() if number >= 0}


def _numpy(array: Any) -> NDArray[Any]:
    found: NDArray[Any] = array.cpu().numpy() if isinstance(array, Tensor) else array
    return found
