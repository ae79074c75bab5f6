"""The hand-over type: which images, of which classes, with which labels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ..errors import InputError


@dataclass(frozen=True)
class ImageSet:
    """n images by name, their class numbers if known, and the names of the k classes.

    A name is a path relative to `root`, with `/` between its parts on every system. `note` is for people: why the
    labels are unknown although one might expect them.
    """

    name: str
    root: Path
    paths: tuple[str, ...]
    labels: tuple[int, ...] | None
    class_names: tuple[str, ...]
    note: str = ""
    identity: str = ""  # of the images' content, where their names do not say which they are

    def __post_init__(self) -> None:
        if not self.paths:
            raise InputError(f"{self.root} has no images. Check the path.")
        for path in self.paths:
            try:
                path.encode()
            except UnicodeEncodeError:
                raise InputError(
                    f"the file name {path!r} in {self.root} is not valid UTF-8, and feature files hold no others. "
                    "Rename the file."
                ) from None

    def __len__(self) -> int:
        return len(self.paths)

    def source(self, i: int) -> Path | IO[bytes]:
        """Where image i is read from: a path, or its bytes as a file."""
        return self.root / self.paths[i]


def readable(name: str) -> str:
    """A folder's or a split file's name for a class, as words: polar_bear → polar bear."""
    return " ".join(name.replace("_", " ").split())


def same_name(name: str) -> str:
    """Equal for names that differ in case, underscores, hyphens and spaces alone."""
    return readable(name.replace("-", " ")).casefold()
