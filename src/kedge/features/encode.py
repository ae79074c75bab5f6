"""Encode images in batches, in order, while worker processes decode the next ones."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
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
from .shard import Skipped

if TYPE_CHECKING:
    from ..encoders.encoder import Encoder

AHEAD = 2  # batches that each worker decodes ahead
WORTH_WORKERS = 1000  # images; fewer are decoded faster than worker processes start
USUAL_WORKERS, MOST_WORKERS = 8, 256
MOST_VIEWS, MOST_TOGETHER = 10_000, 1_000_000  # views of an image; pictures through the encoder at one time


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
    offset: int  # the number of its first image
    batches: Sequence[range]  # image numbers
    preprocessing: Preprocessing
    views: int
    seed: int

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, batch: int) -> _Decoded:
        numbers = self.batches[batch]
        positions, pixels, skipped = [], [], []
        for i in numbers:
            random = np.random.default_rng((self.seed, i))  # per image, so that order and interruptions do not matter
            source = self.images.source(i - self.offset)
            name = str(source) if isinstance(source, Path) else f"image {self.images.paths[i - self.offset]}"
            try:
                image = open_image(source, name)
                made = self.preprocessing.views(image, self.views, random) if self.views else self.preprocessing(image)
            except (KedgeError, OSError) as error:  # an InputError is about the pixels, and does not name the file
                reason = f"{name}: {error}" if isinstance(error, InputError) else str(error)
                skipped.append((i, " ".join(reason.split())))
                continue
            positions.append(i)
            pixels.append(made)
        stacked = torch.stack(pixels) if pixels else torch.empty(0, 0)
        return _Decoded(numbers.start, numbers.stop, positions, stacked, skipped)


def encode(
    images: ImageSet,
    encoder: Encoder,
    *,
    views: int = 0,
    batch_size: int = 64,
    workers: int | None = None,
    seed: int = 0,
    ranges: Sequence[range] | None = None,
    offset: int = 0,
) -> Iterator[Encoded]:
    """Encode images in batches, in order; no batch has images of two ranges.

    ranges: the numbers of the images to encode; None: all.
    offset: the number of the first of `images`, if these are a part of all images.
    batch_size: pictures that go through the encoder together; v views of an image are v pictures.
    workers: processes that decode images; 0: decode in this process; None: one per core if there are many images.
    """
    from torch.utils.data import DataLoader

    check_options(views, batch_size, workers, seed)
    ranges = [range(offset, offset + len(images))] if ranges is None else ranges
    todo = sum(map(len, ranges))
    if workers is None:
        workers = min(USUAL_WORKERS, os.cpu_count() or 1) if todo >= WORTH_WORKERS else 0
    together = max(1, min(images_together(batch_size, views), todo))
    batches = [part[i : i + together] for part in ranges for i in range(0, len(part), together)]
    decoder = _Decoder(images, offset, batches, encoder.preprocessing, views, seed)
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


def check_options(views: int, batch_size: int, workers: int | None, seed: int) -> None:
    """Raise SettingError for a number that is out of range."""
    whole("views", views, 0, MOST_VIEWS)
    whole("batch_size", batch_size, 1, MOST_TOGETHER)
    whole("workers", workers or 0, 0, MOST_WORKERS)
    seed_number(seed)


def images_together(batch_size: int, views: int) -> int:
    """How many images a batch has, if each has this many views."""
    return max(1, batch_size // max(1, views))


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
