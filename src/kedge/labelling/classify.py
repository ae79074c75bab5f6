"""From images and class names to labels, in one call.

    found = kedge.classify("photos", ["cat", "dog"])   # a folder, paths, PIL images or numpy arrays
    for path, name in zip(found.paths, found.names):
        ...
    found.write("labels.csv")

All images are encoded, then labelled jointly. Images that cannot be read are in `found.skipped`.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..encoders.encoder import DEFAULT, Encoder
from ..encoders.names import load_encoder
from ..encoders.precision import usual
from ..features.extract import extract
from ..features.feature_set import FeatureSet
from ..features.image_source import ImageSource
from ..images.sources import Classes, Images, image_set
from ..methods.contract import Method
from ..methods.given import Known, Present, known_labels, names_alone, present_classes
from ..methods.registry import build
from .predictions import Predictions
from .solving import check_known, checked_threshold
from .stream import adapt

VIEWS = 64  # per image, as in the MTA paper


def classify(
    images: Images,
    classes: Classes | None = None,
    encoder: str | Encoder = DEFAULT,
    method: str | Method = "kedge",
    *,
    templates: str | Sequence[str] | None = None,
    views: int = VIEWS,
    keep_features: str | Path | None = None,
    batch_size: int | None = None,
    workers: int | None = None,
    strict: bool = False,
    device: str = "auto",
    precision: str | None = None,
    keep_precision: bool = False,
    force: bool = False,
    present: Present | None = None,
    known: Known | None = None,
    reject: float | None = None,
    **settings: Any,
) -> Predictions:
    """Label images jointly.

    images, classes, encoder, templates, batch_size, workers, strict, device, precision, keep_precision: see
        `kedge.extract`. The default precision is "auto" from 512 images on, and "fp32" for fewer.
    method: a registered name (see `kedge.list_methods()`) with its **settings, or a method object.
    views: how many augmented views of each image to encode, if the method needs views; otherwise none are encoded.
    keep_features: a .safetensors file to keep the features in. An interrupted call can then be continued, and a call
        with the same images, classes and encoder uses the file again.
    force: replace a file, kept by keep_features, of another job.
    present, known, reject: see `kedge.adapt`. In `known`, images are numbered as in the list that was passed; in a
        folder, in the order of their paths. Images that cannot be read count.
    """
    chosen = build(method, settings)
    found = image_set(images, classes)
    names = names_alone(found.class_names)
    given: dict[str, Any] = {"present": present_classes(present, names), "reject": checked_threshold(reject)}
    labels = None if known is None else known_labels(known, len(found), names, given["present"])
    check_known(chosen, labels)
    model = load_encoder(encoder, device=device)
    with tempfile.TemporaryDirectory(prefix="kedge-", ignore_cleanup_errors=True) as temporary:
        features = extract(
            found,
            encoder=model,
            out=keep_features or Path(temporary) / "features.safetensors",
            templates=templates,
            views=views if chosen.traits.needs == "views" else 0,
            batch_size=batch_size,
            workers=workers,
            strict=strict,
            precision=precision or usual(len(found)),
            keep_precision=keep_precision,
            force=force,
        )
        skipped = features.skipped
        read = [i for i, path in enumerate(found.paths) if path not in skipped]
        given["known"] = None if labels is None else labels[read]
        predictions = label(features, chosen, ImageSource(model, lambda i: found.source(read[i])), **given)
        return replace(predictions, folders=found.folders or (found.root,))


def label(features: FeatureSet, method: Method, images: ImageSource | None = None, **given: Any) -> Predictions:
    """Label all images of a feature set jointly. A method that adapts the encoder gets the images too.

    given: what `adapt` takes beside: present, known, reject.
    """
    if method.traits.needs == "encoder":
        images = images or ImageSource.of(features)
        given |= {"images": images.pixels(range(len(features))), "encoder": images.encoder.visual}
    start = time.perf_counter()
    result = adapt(features, method=method, **given)
    return Predictions(features, result, seconds=time.perf_counter() - start)
