"""Encode images in batches, in order, while worker processes decode the next ones."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import FileError, InputError, KedgeError, SettingError
from ..images.image_set import ImageSet
from ..images.pixels import Preprocessing, open_image
from ..memory import check_memory
from ..processes import without_ctrl_c
from ..ranges import seed_number, whole
from ..words import count

if TYPE_CHECKING:
    from ..encoders.encoder import Encoder

AHEAD = 2  # batches that each worker decodes ahead
WORTH_WORKERS = 1000  # images; fewer are decoded faster than worker processes start
USUAL_WORKERS, MOST_WORKERS = 8, 256
MOST_VIEWS, MOST_TOGETHER = 10_000, 1_000_000  # views of an image; pictures through the encoder at one time

Skipped = tuple[int, str]  # the position of an image that could not be read, and why


class Encoded(NamedTuple):
    """The features of a batch: images start to stop − 1, without those that could not be read."""

    start: int
    stop: int
    positions: list[int]  # of the m images that could be read
    features: Tensor  # m×d, or m×v×d with views; float32 unit rows
    skipped: list[Skipped]


class _Decoded(NamedTuple):
    start: int
    stop: int
    positions: list[int]
    pixels: Tensor  # m×3×h×w, or m×v×3×h×w
    skipped: list[Skipped]


@dataclass(frozen=True)
class _Decoder:
    """The work of a worker process: from batch number to pixels. It can be pickled."""

    images: ImageSet
    preprocessing: Preprocessing
    views: int
    size: int
    seed: int
    first: int  # the first image of batch 0

    def __len__(self) -> int:
        return -(-(len(self.images) - self.first) // self.size)

    def __getitem__(self, batch: int) -> _Decoded:
        start = self.first + batch * self.size
        stop = min(start + self.size, len(self.images))
        positions, pixels, skipped = [], [], []
        for i in range(start, stop):
            random = np.random.default_rng((self.seed, i))  # per image, so that order and interruptions do not matter
            source = self.images.source(i)
            name = str(source) if isinstance(source, Path) else f"image {self.images.paths[i]}"
            try:
                image = open_image(source, name)
                made = self.preprocessing.views(image, self.views, random) if self.views else self.preprocessing(image)
            except (KedgeError, OSError) as error:  # an InputError is about the pixels, and does not name the file
                reason = f"{name}: {error}" if isinstance(error, InputError) else str(error)
                skipped.append((i, " ".join(reason.split())))
                continue
            positions.append(i)
            pixels.append(made)
        return _Decoded(start, stop, positions, torch.stack(pixels) if pixels else torch.empty(0, 0), skipped)


def encode(
    images: ImageSet,
    encoder: Encoder,
    *,
    views: int = 0,
    batch_size: int = 64,
    workers: int | None = None,
    seed: int = 0,
    first: int = 0,
) -> Iterator[Encoded]:
    """Encode images `first` to n − 1, in batches, in order.

    batch_size: pictures that go through the encoder together; v views of an image are v pictures.
    workers: processes that decode images; 0: decode in this process; None: one per core if there are many images.
    """
    from torch.utils.data import DataLoader

    views, batch_size = whole("views", views, 0, MOST_VIEWS), whole("batch_size", batch_size, 1, MOST_TOGETHER)
    seed = seed_number(seed)
    if workers is None:
        workers = min(USUAL_WORKERS, os.cpu_count() or 1) if len(images) - first >= WORTH_WORKERS else 0
    workers = whole("workers", workers, 0, MOST_WORKERS)
    together = max(1, min(batch_size // max(1, views), len(images) - first))
    decoder = _Decoder(images, encoder.preprocessing, views, together, seed, first)
    workers = min(workers, len(decoder))
    pictures, (height, width) = together * max(1, views), encoder.preprocessing.size
    needed = pictures * (1 + AHEAD * workers) * 3 * height * width * 4
    check_memory(needed, f"{count(pictures, 'picture')} of {height}×{width} at one time", SettingError)
    loader: Iterable[_Decoded] = DataLoader(
        decoder,  # type: ignore[arg-type]  # it has len and []
        batch_size=None,  # each item is a batch
        num_workers=workers,
        collate_fn=_as_it_is,
        prefetch_factor=AHEAD if workers else None,
        multiprocessing_context="spawn" if workers else None,
        pin_memory=encoder.device.type == "cuda",
    )
    return _encoded(loader, encoder, views, batch_size)


def _encoded(loader: Iterable[_Decoded], encoder: Encoder, views: int, batch_size: int) -> Iterator[Encoded]:
    shape = (-1, views, encoder.dimension) if views else (-1, encoder.dimension)
    try:
        with without_ctrl_c():
            decoded = iter(loader)  # starts the workers
        for start, stop, positions, pixels, skipped in decoded:
            pictures = pixels.flatten(0, 1) if views else pixels
            parts = [encoder.encode_images(part) for part in torch.split(pictures, batch_size)] if positions else []
            features = torch.cat([part.float().cpu() for part in parts]) if parts else torch.empty(0)
            yield Encoded(start, stop, positions, features.reshape(shape), skipped)
    except RuntimeError as error:
        if "DataLoader worker (pid" not in str(error):  # an error raised in a worker
            raise
        raise FileError(
            "a worker process died, perhaps out of memory or of shared memory in /dev/shm. "
            "Run it again with fewer workers (--workers 0: none) or a smaller batch; finished work is kept."
        ) from error


def _as_it_is(batch: Any) -> Any:
    return batch
