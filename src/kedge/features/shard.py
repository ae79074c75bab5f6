"""A shard: the features of consecutive images in one file, without the classes, which its folder has once.

    000000000-000000512.safetensors      images 0 to 511 of the folder, or of the list that was to be encoded

| tensor         | shape | what                                                    |
|----------------|-------|---------------------------------------------------------|
| image_features | m×d   | unit rows, any float type                               |
| labels         | m     | true class numbers, if known                            |
| views          | m×v×d | features of augmented views, if extracted               |
| paths          | bytes | of the images, separated by NUL, if known               |

The header lists the images of the range that could not be read, by number and with the reason; the m others have a row
each. A shard is written by rename: one that exists is complete.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ..errors import FileError
from ..schema import Whole
from ..tensor_files import check_names, load_tensors, save_tensors

KIND, VERSION = "feature shard", 2
NAME = r"\A(\d{9,18})-(\d{9,18})\.safetensors\Z"

Skipped = tuple[int, str]  # the number of an image that could not be read, and why


@dataclass(frozen=True)
class Header:
    """What a shard says beside its tensors."""

    skipped: list[tuple[Whole, str]]
    sha256: str


def shard_name(start: int, stop: int) -> str:
    """The name of the shard of images `start` to `stop` − 1."""
    return f"{start:09d}-{stop:09d}.safetensors"


def shard_range(name: str) -> range | None:
    """The numbers of a shard's images, from its name; None if this is no shard's name."""
    found = re.match(NAME, name)
    return range(int(found[1]), int(found[2])) if found else None


def shards_in(folder: Path) -> list[Path]:
    """All shards in a folder, in order."""
    found = {path: numbers for path in folder.iterdir() if (numbers := shard_range(path.name)) is not None}
    return sorted(found, key=lambda path: (found[path].start, found[path].stop))


def save_shard(path: Path, tensors: Mapping[str, Tensor], skipped: Sequence[Skipped] = ()) -> str:
    """Write a shard and return its content hash; see `image_tensors`."""
    return save_tensors(path, KIND, VERSION, tensors, {"skipped": [list(entry) for entry in skipped]})


def load_shard(path: Path, *, verified: bool = False) -> tuple[dict[str, Tensor], Header]:
    """The tensors of a shard, memory-mapped, and its header; `verified`: the content hash has been checked before.

    Raises FileError unless every image of its range has a row or is left out.
    """
    tensors, header = load_tensors(path, KIND, VERSION, Header, verified=verified)
    check_names(path, tensors, ("image_features",), ("labels", "views", "paths"))
    numbers = shard_range(path.name)
    rows, left_out = tensors["image_features"].shape[:1].numel(), [number for number, _ in header.skipped]
    if numbers is None or rows + len(left_out) != len(numbers) or len(set(left_out) & set(numbers)) != len(left_out):
        raise FileError(f"{path} does not have the images that its name says. Make it again.")
    if "labels" in tensors and tensors["labels"].shape != (rows,):
        raise FileError(f"{path} does not have a label for each image. Make it again.")
    return tensors, header
