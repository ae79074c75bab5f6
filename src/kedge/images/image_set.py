"""ImageSet: a list of images, with their class names and, if known, labels."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from ..errors import InputError

FEATURES = (".safetensors", ".npz")  # feature files, which are not images
MANIFEST = "manifest.safetensors"  # only a feature folder has it


@dataclass(frozen=True)
class ImageSet:
    """n images, the names of the k classes and, if known, the labels."""

    name: str
    root: Path
    paths: tuple[str, ...]  # n, relative to root, with / on every system; as `os.fsdecode` gives them
    labels: tuple[int, ...] | None  # n class numbers
    class_names: tuple[str, ...]  # k
    note: str = ""  # a message for the user: why labels are unknown
    identity: str = ""  # identifies the images' content, where the paths do not
    template: str = ""  # the prompt of the dataset's paper, with {} for the class name
    folders: tuple[Path, ...] = ()  # the folders that the user named, if there are several; root contains them

    def __post_init__(self) -> None:
        if not self.paths:
            raise InputError(f"{self.root} has no images. Check the path.")

    def __len__(self) -> int:
        return len(self.paths)

    def source(self, i: int) -> Path | IO[bytes]:
        """The path of image i, or its bytes as a file."""
        return self.root / self.paths[i]

    def part(self, numbers: range) -> ImageSet:
        """Some consecutive images."""
        rows = slice(numbers.start, numbers.stop)
        return replace(self, paths=self.paths[rows], labels=None if self.labels is None else self.labels[rows])


def readable(name: str) -> str:
    """A class name as words: polar_bear → polar bear."""
    return " ".join(name.replace("_", " ").split())


def same_name(name: str) -> str:
    """A key that ignores case, underscores, hyphens and spaces."""
    return readable(name.replace("-", " ")).casefold()


def is_features(path: str | Path) -> bool:
    """Does a path name a feature file or a feature folder, and not images?"""
    return Path(path).suffix.lower() in FEATURES or is_feature_folder(path)


def is_feature_folder(path: str | Path) -> bool:
    """Is it a folder of features in shards? A folder of images has no manifest."""
    return os.path.isfile(os.path.join(path, MANIFEST))
