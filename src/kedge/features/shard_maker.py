"""From images to shards: the work of an extraction, in this process or on another machine that sees the same files."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ..errors import FileError
from ..images.image_set import ImageSet
from ..images.sources import InMemory
from .encode import Encoded, check_options, encode
from .feature_set import image_tensors
from .shard import save_shard, shard_name

if TYPE_CHECKING:
    from ..encoders.encoder import Encoder

SHARD_ROWS, SHARD_SECONDS = 16_384, 20.0  # of work that will be joined: write a shard at this size, or at this age


@dataclass(frozen=True)
class Unit:
    """The images of one shard."""

    numbers: range
    images: ImageSet  # these only


@dataclass(frozen=True)
class ShardMaker:
    """Encodes images and writes their shards. It can be sent to another process."""

    encoder: Encoder
    folder: Path
    images: int  # how many there are in all
    views: int
    batch_size: int
    workers: int | None
    seed: int
    strict: bool
    stays: bool  # there is a shard for each range, and no smaller ones

    def __post_init__(self) -> None:
        check_options(self.views, self.batch_size, self.workers, self.seed)

    def __call__(self, unit: Unit) -> int:
        """Make the shard of a unit, unless it is there; the number of its images."""
        if not (self.folder / shard_name(unit.numbers.start, unit.numbers.stop)).exists():
            for _ in self.batches(unit.images, [unit.numbers], unit.numbers.start):
                pass
        return len(unit.numbers)

    def batches(self, images: ImageSet, ranges: Sequence[range], offset: int = 0) -> Generator[Encoded, None, None]:
        """Encode these ranges of image numbers, write their shards on the way, and yield the batches, in order.

        images: those with the numbers from `offset` on.
        """
        ends = {numbers.stop for numbers in ranges}
        waiting: list[Encoded] = []
        since = time.monotonic()
        encoded = encode(
            images,
            self.encoder,
            views=self.views,
            batch_size=self.batch_size,
            workers=self.workers,
            seed=self.seed,
            ranges=ranges,
            offset=offset,
        )
        try:
            for batch in encoded:
                if self.strict and batch.skipped:
                    number, reason = batch.skipped[0]
                    raise FileError(f"image {number + 1} of {self.images:,}: {reason} Or run it without --strict.")
                waiting.append(batch)
                rows = sum(each.features.shape[:-1].numel() for each in waiting)
                enough = not self.stays and (rows >= SHARD_ROWS or time.monotonic() - since >= SHARD_SECONDS)
                if enough or batch.stop in ends:
                    self._write(images, offset, waiting)
                    waiting, since = [], time.monotonic()
                yield batch
        finally:
            if waiting and not self.stays:
                self._write(images, offset, waiting)

    def _write(self, images: ImageSet, offset: int, batches: Sequence[Encoded]) -> None:
        """Write consecutive batches as one shard."""
        features = torch.cat([batch.features for batch in batches])
        rows = [number - offset for batch in batches for number in batch.positions]
        tensors = image_tensors(
            features[:, 0] if self.views else features,
            None if images.labels is None else torch.tensor([images.labels[i] for i in rows], dtype=torch.long),
            features if self.views else None,
            None if isinstance(images, InMemory) else [images.paths[i] for i in rows],
        )
        skipped = [entry for batch in batches for entry in batch.skipped]
        save_shard(self.folder / shard_name(batches[0].start, batches[-1].stop), tensors, skipped)
