"""The images of the page in order: outside, an image is its number in this list."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ..errors import InputError
from ..features.image_source import check_inside


class NotNow(InputError):
    """Something that cannot be done at present: nothing to undo, images still being encoded, another list of images."""


@dataclass(frozen=True, eq=False)
class ImageList:
    """The images, and what the page must know of them once."""

    root: Path
    paths: Sequence[str]  # relative to root
    simulated: bool
    edit: bool  # is an encoder there?

    def __post_init__(self) -> None:
        for path in self.paths:
            check_inside(path, self.root)

    @cached_property
    def name(self) -> str:
        """Changes with the images alone: numbers and pictures stay valid while it is the same."""
        text = "\0".join([str(self.root), *self.paths])
        return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:8]

    @property
    def revision(self) -> str:
        """Changes with anything here."""
        return f"{self.name}-{self.simulated:d}{self.edit:d}"

    def path(self, image: int) -> str:
        """The path of the image with this number."""
        if not 0 <= image < len(self.paths):
            raise InputError(f"there is no image {image}: there are {len(self.paths):,}. Load the page again.")
        return self.paths[image]

    def of(self, name: str | None) -> ImageList:
        """This list; raises NotNow if numbers of images are from one with another name."""
        if name not in (None, self.name):
            raise NotNow("the list of images has changed. Load the page again.")
        return self
