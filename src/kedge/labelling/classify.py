"""From images and class names to labels, in one call.

    found = kedge.classify("photos", ["cat", "dog"])        # a folder, a list of paths, or a list of PIL images
    for path, name in zip(found.paths, found.names):
        ...
    found.write("labels.csv")

All images are encoded, then labelled jointly. Images that cannot be read are in `found.skipped`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..encoders.encoder import DEFAULT, Encoder
from ..encoders.names import load_encoder
from ..features.extract import extract
from ..features.feature_set import FeatureSet
from ..features.image_source import ImageSource
from ..images.sources import Classes, Images, image_set
from ..methods.contract import Method
from ..methods.registry import build
from .predictions import Predictions
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
    workers: int | None = 0,
    device: str = "auto",
    force: bool = False,
    **settings: Any,
) -> Predictions:
    """Label images jointly.

    images, classes, encoder, templates, workers, device: see `kedge.extract`.
    method: a registered name (see `kedge.list_methods()`) with its **settings, or a method object.
    views: how many augmented views of each image to encode, if the method needs views; otherwise none are encoded.
    keep_features: a .safetensors file to keep the features in. An interrupted call can then be continued, and a call
        with the same images, classes and encoder uses the file again.
    force: replace a file, kept by keep_features, of another job.
    """
    chosen = build(method, settings)
    found = image_set(images, classes)
    model = load_encoder(encoder, device=device)
    with tempfile.TemporaryDirectory(prefix="kedge-", ignore_cleanup_errors=True) as temporary:
        features = extract(
            found,
            encoder=model,
            out=keep_features or Path(temporary) / "features.safetensors",
            templates=templates,
            views=views if chosen.traits.needs == "views" else 0,
            workers=workers,
            force=force,
        )
        skipped = {entry["path"] for entry in features.provenance["skipped"]}
        read = [i for i, path in enumerate(found.paths) if path not in skipped]
        return label(features, chosen, ImageSource(model, lambda i: found.source(read[i])))


def label(features: FeatureSet, method: Method, images: ImageSource | None = None) -> Predictions:
    """Label all images of a feature set jointly. A method that adapts the encoder gets the images too."""
    if method.traits.needs != "encoder":
        return Predictions(features, adapt(features, method=method))
    images = images or ImageSource.of(features)
    pixels = images.pixels(range(len(features)))
    return Predictions(features, adapt(features, method=method, images=pixels, encoder=images.encoder.visual))
