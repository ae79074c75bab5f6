"""How many pictures go through the encoder together: measured once, then kept with the work that is done.

Too few waste time between the products of matrices, too many fall out of the processor's cache. Which number is best
depends on the model, on its precision and on the machine.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from ..encoders.encoder import Encoder

USUAL = 16  # pictures, without measuring
SMALLEST, LARGEST = 8, 256
WORTH_MEASURING = 4000  # pictures; measuring takes the time of some 60 on a CPU
GAIN = 1.03  # a batch of twice the size must be faster by this factor


def fastest(encoder: Encoder, pictures: int) -> int:
    """The batch size for so many pictures: doubled for as long as that makes this encoder faster."""
    if pictures < WORTH_MEASURING:
        return USUAL
    size, speed = SMALLEST, pictures_per_second(encoder, SMALLEST)
    while size < LARGEST:
        twice = pictures_per_second(encoder, 2 * size)
        if twice < GAIN * speed:
            break
        size, speed = 2 * size, twice
    return size


def pictures_per_second(encoder: Encoder, size: int) -> float:
    """The speed on a blank batch of this size: the better of two, since the first prepares memory."""
    pixels = torch.zeros(size, 3, *encoder.preprocessing.size)
    times = []
    for _ in range(2):
        start = time.perf_counter()
        encoder.encode_images(pixels)
        times.append(time.perf_counter() - start)
    return size / min(times)
