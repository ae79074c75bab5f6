"""Encode images in batches, in order, while threads decode the next ones.

PIL reads and resizes images without Python's lock, so threads decode on all cores. Processes would import torch again,
which takes as long as decoding a thousand photos, and would copy every image once more.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError, KedgeError, SettingError
from ..images.image_set import ImageSet
from ..images.pixels import Preprocessing, open_image
from ..memory import check_memory
from ..ranges import seed_number, whole
from ..words import count
from .shard import Skipped

if TYPE_CHECKING:
    from ..encoders.encoder import Encoder

AHEAD = 2  # batches that are decoded ahead
USUAL_WORKERS, MOST_WORKERS = 8, 256
MOST_VIEWS, MOST_TOGETHER = 10_000, 1_000_000  # views of an image; pictures through the encoder at one time

T = TypeVar("T")
R = TypeVar("R")


class Encoded(NamedTuple):
    """The features of a batch: images start to stop − 1, without those that could not be read."""

    start: int
    stop: int
    positions: list[int]  # of the m images that could be read
    features: Tensor  # m×d, or m×v×d with views; float32 unit rows
    skipped: list[Skipped]


@dataclass(frozen=True)
class Decoder:
    """The work of a thread: from an image to its pixels, or to the reason why it cannot be read."""

    images: ImageSet
    preprocessing: Preprocessing
    views: int = 0
    seed: int = 0
    offset: int = 0  # the number of the first of the images

    def __call__(self, image: tuple[int, Path | IO[bytes]]) -> Tensor | str:
        """3×h×w, or v×3×h×w with views."""
        i, source = image
        name = str(source) if isinstance(source, Path) else f"image {self.images.paths[i - self.offset]}"
        try:
            opened = open_image(source, name)
            if not self.views:
                return self.preprocessing(opened)
            random = np.random.default_rng((self.seed, i))  # per image, so that order and interruptions do not matter
            return self.preprocessing.views(opened, self.views, random)
        except (KedgeError, OSError) as error:  # an InputError is about the pixels, and does not name the file
            reason = f"{name}: {error}" if isinstance(error, InputError) else str(error)
            return " ".join(reason.split())


def encode(
    images: ImageSet,
    encoder: Encoder,
    *,
    views: int = 0,
    batch_size: int,
    workers: int | None = None,
    seed: int = 0,
    ranges: Sequence[range] | None = None,
    offset: int = 0,
) -> Iterator[Encoded]:
    """Encode images in batches, in order; no batch has images of two ranges.

    ranges: the numbers of the images to encode; None: all.
    offset: the number of the first of `images`, if these are a part of all images.
    batch_size: pictures that go through the encoder together; v views of an image are v pictures.
    workers: threads that decode images; 0: decode in this thread, between the batches; None: one per core.
    """
    check_options(views, batch_size, workers, seed)
    workers = _usual_workers() if workers is None else workers
    ranges = [range(offset, offset + len(images))] if ranges is None else ranges
    together = max(1, min(images_together(batch_size, views), sum(map(len, ranges))))
    pictures, (height, width) = together * max(1, views), encoder.preprocessing.size
    needed = pictures * (2 + AHEAD * bool(workers)) * 3 * height * width * 4  # 2: alone, and as a batch
    check_memory(needed, f"{count(pictures, 'picture')} of {height}×{width} at one time", SettingError)
    decoder = Decoder(images, encoder.preprocessing, views, seed, offset)
    shape = (-1, views, encoder.dimension) if views else (-1, encoder.dimension)

    starts = [
        (start, min(start + together, part.stop)) for part in ranges for start in range(part.start, part.stop, together)
    ]

    def batches() -> Iterator[Encoded]:
        sources = ((i, images.source(i - offset)) for numbers in ranges for i in numbers)
        with closing(_ahead(decoder, sources, workers, AHEAD * together)) as decoded:
            for start, stop in starts:
                positions, pixels, skipped = _batch(start, list(islice(decoded, stop - start)))
                parts = [encoder.encode_images(part) for part in torch.split(pixels, batch_size)] if positions else []
                features = torch.cat([part.float().cpu() for part in parts]) if parts else torch.empty(0)
                yield Encoded(start, stop, positions, features.reshape(shape), skipped)

    return batches()


def check_options(views: int, batch_size: int, workers: int | None, seed: int) -> None:
    """Raise SettingError for a number that is out of range."""
    whole("views", views, 0, MOST_VIEWS)
    whole("batch_size", batch_size, 1, MOST_TOGETHER)
    whole("workers", 0 if workers is None else workers, 0, MOST_WORKERS)
    seed_number(seed)


def images_together(batch_size: int, views: int) -> int:
    """How many images a batch has, if each has this many views."""
    return max(1, batch_size // max(1, views))


def _batch(start: int, decoded: list[Tensor | str]) -> tuple[list[int], Tensor, list[Skipped]]:
    """Positions and pixels (p×3×h×w) of the images that could be read, and the others with the reason."""
    pixels = {i: found for i, found in enumerate(decoded, start) if isinstance(found, Tensor)}
    skipped = [(i, found) for i, found in enumerate(decoded, start) if isinstance(found, str)]
    together = torch.stack(list(pixels.values())) if pixels else torch.empty(0)
    return list(pixels), together.flatten(0, 1) if together.dim() == 5 else together, skipped  # 5: with views


def _ahead(work: Callable[[T], R], items: Iterable[T], workers: int, ahead: int) -> Generator[R, None, None]:
    """work(item) of each item, in order; threads are at most so many items ahead."""
    if not workers:
        yield from map(work, items)
        return
    threads = ThreadPoolExecutor(workers, "kedge decodes")
    waiting: deque[Future[R]] = deque()
    try:
        for item in items:
            waiting.append(threads.submit(work, item))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        threads.shutdown(cancel_futures=True)


def _usual_workers() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(USUAL_WORKERS, cores or 1)
