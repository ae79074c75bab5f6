"""Image files in a request: decoded and encoded here, kept nowhere."""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Sequence

import torch
from torch import Tensor

from ...encoders.encoder import Encoder
from ...errors import InputError
from ...images.pixels import open_image
from ...memory import check_memory
from ...words import count

MOST_PIXELS = 50_000_000  # of one image
TOGETHER = 64  # images through the encoder at one time


def encoded(images: Sequence[str], encoder: Encoder, *, keep: bool) -> tuple[Tensor, Tensor | None]:
    """Features of image files in base64, n×d; and, to `keep`, the encoder's input, n×3×h×w."""
    height, width = encoder.preprocessing.size
    check_memory(12 * height * width * (len(images) if keep else TOGETHER), count(len(images), "image"))
    features, kept = [], []
    for start in range(0, len(images), TOGETHER):
        pixels = torch.stack([_pixels(images, i, encoder) for i in range(start, min(start + TOGETHER, len(images)))])
        features.append(encoder.encode_images(pixels))
        if keep:
            kept.append(pixels)
    return torch.cat(features), torch.cat(kept).to(encoder.device) if keep else None


def _pixels(images: Sequence[str], i: int, encoder: Encoder) -> Tensor:
    try:
        data = base64.b64decode(images[i], validate=True)
    except (binascii.Error, ValueError) as error:
        raise InputError(f"image {i} is not base64 ({error}). Use the standard alphabet, on one line.") from error
    return encoder.preprocessing(open_image(io.BytesIO(data), f"image {i}", most_pixels=MOST_PIXELS))
