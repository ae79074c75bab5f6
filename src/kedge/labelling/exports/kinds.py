"""Which file is written how: for `kedge adapt --out`, `Predictions.write` and the exports of the page.

| name               | what                                                                         |
|--------------------|------------------------------------------------------------------------------|
| .csv               | a table with all columns                                                     |
| .json              | the same rows as an array of objects                                         |
| .parquet           | the same columns with their types                                            |
| .labelstudio.json  | tasks with predictions for Label Studio; beside it .labelstudio.xml, the     |
|                    | labelling configuration                                                      |
| .fiftyone.json     | labels for FiftyOne                                                          |
| metadata.csv       | labels for Hugging Face's image folders; only by exactly this name           |
| metadata.jsonl     | the same as JSON lines                                                       |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from ...errors import FileError, SettingError
from ...files import check_writable, written_by_rename
from . import fiftyone, image_folder, label_studio, tables
from .asked import Asked, check_named

if TYPE_CHECKING:
    from ..predictions import Predictions

Writer = Callable[["Predictions", TextIO, Asked], int]  # writes, and says how many images


@dataclass(frozen=True)
class Kind:
    """One kind of file."""

    name: str  # what the file's name ends in; without a dot in front, the whole name
    write: Writer
    check: Callable[[Sequence[str | int], Sequence[str]], None] = lambda images, class_names: None
    ready: Callable[[Path], None] = lambda path: None  # raises MissingExtra
    takes: tuple[str, ...] = ()  # options that not every kind has
    beside: tuple[str, Writer] | None = None  # a second file: its suffix, and what writes it

    def fits(self, path: Path) -> bool:
        """Is a file of this name of this kind? The ending may be all of the name: fiftyone.json."""
        if not self.name.startswith("."):
            return path.name == self.name
        ending = self.name.split(".")[1:]
        return bool(path.suffix) and path.name.lower().split(".")[-len(ending) :] == ending

    def files(self, path: Path) -> dict[Path, Writer]:
        """What is written: each file, and by which function."""
        return {path: self.write} | ({path.with_suffix(self.beside[0]): self.beside[1]} if self.beside else {})


def _paths(images: Sequence[str | int], class_names: Sequence[str]) -> None:
    check_named(images)


LABEL_STUDIO = Kind(
    ".labelstudio.json",
    label_studio.tasks,
    label_studio.check_tasks,
    takes=("image_url",),
    beside=(".xml", label_studio.config),
)
KINDS = (  # the first that fits counts
    Kind("metadata.jsonl", image_folder.jsonl_metadata, _paths),
    Kind("metadata.csv", image_folder.csv_metadata, _paths),
    Kind(".fiftyone.json", fiftyone.labels_json, fiftyone.check_labels),
    LABEL_STUDIO,
    Kind(".parquet", tables.parquet_rows, ready=tables.check_parquet, takes=("all_rows",)),
    Kind(".json", tables.json_rows, takes=("all_rows",)),
    Kind(".csv", tables.csv_rows, takes=("all_rows",)),
)


def kind_of(path: str | Path) -> Kind:
    """The kind of a file, by its name."""
    path = Path(path)
    for kind in KINDS:
        if kind.fits(path):
            return kind
    found = f"the suffix {path.suffix!r}" if path.suffix else "no suffix"
    names = ", ".join(kind.name for kind in reversed(KINDS))
    raise FileError(f"cannot write {path}: it has {found}. Choose from {names}, or - for stdout.")


def check_output(path: str | Path, asked: Asked | None = None) -> Path:
    """Raise an error if the labels cannot be written to this path, in this way: called before any work."""
    path = check_writable(path)
    kind = kind_of(path)
    for file in kind.files(path):
        check_writable(file)
    kind.ready(path)
    for option in ("all_rows", "image_url"):
        if getattr(asked or Asked(), option) not in (None, False) and option not in kind.takes:
            those = ", ".join(each.name for each in reversed(KINDS) if option in each.takes)
            name = f"{option} (on the command line --{option.replace('_', '-')})"
            raise SettingError(f"{name} is for files that end in {those}; {path} does not. Leave it out.")
    return path


def write(predictions: Predictions, path: str | Path, asked: Asked) -> None:
    """Write the labels, each file by rename. File names that are not UTF-8 are escaped."""
    path = check_output(path, asked)
    kind = kind_of(path)
    kind.check(predictions.image_names, predictions.features.head.class_names)
    for place, writer in kind.files(path).items():
        with (
            written_by_rename(place) as temporary,
            temporary.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file,
        ):
            writer(predictions, file, asked)
