"""What a writer is asked for, and what several writers need."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import InputError

if TYPE_CHECKING:
    from ..predictions import Predictions


@dataclass(frozen=True)
class Asked:
    """How to write; a writer reads what concerns it."""

    raw_csv: bool = False  # CSV as it is: text that a spreadsheet could take for a formula stays
    all_rows: bool = False  # also rows for images that could not be read
    image_url: str | None = None  # what comes before an image's path, for programs that show images
    only: Set[int] | None = None  # the numbers of the images; None: all

    def rows(self, predictions: Predictions) -> Iterator[tuple[int, dict[str, Any]]]:
        """The number and the row of every image asked for. Images that could not be read have numbers beyond."""
        for number, row in enumerate(predictions.rows(self.all_rows)):
            if self.only is None or number in self.only:
                yield number, row

    def count(self, predictions: Predictions) -> int:
        """How many rows there are."""
        images = len(predictions.features) + (len(predictions.skipped) if self.all_rows else 0)
        return images if self.only is None else len(self.only)


def check_named(images: Sequence[str | int]) -> None:
    """Raise InputError if images have numbers and no paths: other programs could not find them."""
    if isinstance(images, range):
        raise InputError(
            "the features do not have the paths of their images, and other programs find images by path. "
            "Make them with `kedge extract`, or write .csv, .json or .parquet."
        )


def as_utf8(name: str) -> str:
    r"""A file name that is not UTF-8, escaped: `a\udcff.jpg`."""
    return name.encode("utf-8", "backslashreplace").decode()
