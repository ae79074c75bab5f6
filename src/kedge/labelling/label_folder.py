"""A label folder: the labels of a feature folder's images, in as many shards.

    labels/labels.safetensors                   written last: what the method reports, and the list of shards
    labels/000000000-000010000.safetensors      a shard: the labels of images 0 to 9,999

| tensor                | shape | what                                                                    |
|-----------------------|-------|-------------------------------------------------------------------------|
| labels                | m     | class numbers after adaptation                                          |
| probability           | m     | of that class                                                           |
| runner_up             | m     | the second most probable class; −1 if no other has any probability      |
| margin                | m     | probability minus that of the runner-up                                 |
| zero_shot_labels      | m     | class numbers of the encoder alone                                      |
| zero_shot_probability | m     | of that class                                                           |
| known                 | m     | the label that a person gave, −1 elsewhere                              |
| candidates, z         | m×C   | the classes that the solve considered, ascending; their probabilities   |
| paths                 | bytes | of the images, separated by NUL, if known                               |

    folder = kedge.LabelFolder.open("labels")
    folder.write("labels.csv")              # shard by shard; the columns are those of `Predictions`, without none
                                            # and review_rank, which need all classes of all images
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor

from ..errors import FileError, SettingError
from ..features.feature_set import as_bytes, naming, stored_paths
from ..features.folder import Entry, check_entries
from ..features.shard import shard_name
from ..files import check_usable, check_writable, written_by_rename
from ..methods.contract import UNKNOWN
from ..methods.solve.lists import Answers
from ..schema import Meta, Whole
from ..tensor_files import check_names, check_path, load_tensors, save_tensors
from ..words import count, percent, write_csv, write_json
from .result import NO_CLASS

MANIFEST = "labels.safetensors"
KIND, SHARD, VERSION = "label folder", "label shard", 1
PER_IMAGE = ("labels", "probability", "runner_up", "margin", "zero_shot_labels", "zero_shot_probability", "known")
LISTS = ("candidates", "z")
CLASSES = ("labels", "runner_up", "zero_shot_labels", "known", "candidates")
WHOLE = (torch.uint8, torch.int16, torch.int32)
FLOATS = (torch.float32, torch.float64)
COLUMNS = (
    "image",
    "label",
    "probability",
    "runner_up",
    "margin",
    "zero_shot_label",
    "zero_shot_probability",
    "changed",
    "true_label",
)


@dataclass(frozen=True)
class Header:
    """What the manifest says beside its tensor."""

    job: dict[str, Any]  # what the labels depend on
    class_names: Annotated[list[str], Meta(min_length=1)]
    method: str
    changed: Whole  # labels that differ from zero-shot
    summary: dict[str, Any]
    shards: Annotated[list[Entry], Meta(min_length=1)]
    sha256: str

    def __post_init__(self) -> None:
        check_entries(self.shards)


@dataclass(frozen=True)
class ShardHeader:
    """What a shard says beside its tensors: nothing."""

    sha256: str


@dataclass(frozen=True, eq=False, repr=False)
class LabelFolder:
    """The labels of a feature folder. Open one with `open`."""

    path: Path
    job: Mapping[str, Any]  # what the labels depend on: the hash of the features, the method, its settings, …
    class_names: tuple[str, ...]
    summary: Mapping[str, Any]  # what the method reports, and counts, as in `Predictions.summary`
    entries: tuple[Entry, ...]

    @classmethod
    def open(cls, path: str | Path) -> LabelFolder:
        """Read and check the manifest; no shard is opened."""
        path = check_path(path)
        check_usable(path)
        if not (path / MANIFEST).is_file():
            raise FileError(f"{path} is not a label folder: it has no {MANIFEST}. Make it with kedge adapt.")
        tensors, header = load_tensors(path / MANIFEST, KIND, VERSION, Header)
        check_names(path / MANIFEST, tensors, ("mass",))
        summary = {**header.summary, "method": header.method, "changed": header.changed}
        return cls(path.absolute(), header.job, tuple(header.class_names), summary, tuple(header.shards))

    def __len__(self) -> int:
        return sum(entry.images for entry in self.entries)

    def __repr__(self) -> str:
        n, changed = len(self), self.summary["changed"]
        return (
            f"LabelFolder: {count(n, 'image')}, {count(len(self.class_names), 'class')}, "
            f"method {self.summary['method']}\n  {count(changed, 'label')} changed ({percent(changed / n)})"
        )

    def shards(self) -> Iterator[dict[str, Tensor]]:
        """The tensors of each shard, memory-mapped, in order."""
        for entry in self.entries:
            path = self.path / entry.name
            tensors, header = load_tensors(path, SHARD, VERSION, ShardHeader)
            if header.sha256 != entry.sha256:
                raise FileError(f"{path} is not the shard that {MANIFEST} lists: their hashes differ. Make it again.")
            check_names(path, tensors, (*PER_IMAGE, *LISTS), ("paths",))
            _check_shard(path, tensors, entry.images, len(self.class_names))
            yield tensors

    def rows(self) -> Iterator[dict[str, Any]]:
        """One row per image, with plain Python values."""
        names, row = (*self.class_names, None), 0  # the last one for −1
        for tensors in self.shards():
            paths = stored_paths(tensors) or range(row, row + len(tensors["labels"]))
            row += len(tensors["labels"])
            plain = {
                name: map(float, map(str, tensors[name].numpy()))  # the shortest decimals of float32
                if tensors[name].is_floating_point()
                else tensors[name].tolist()
                for name in PER_IMAGE
            }
            for image, label, probability, runner_up, margin, first, first_probability, known in zip(
                paths, *plain.values(), strict=True
            ):
                values = (
                    image,
                    names[label],
                    probability,
                    names[runner_up],
                    margin,
                    names[first],
                    first_probability,
                    label != first,
                    names[known],
                )
                yield dict(zip(COLUMNS, values, strict=True))

    def write(self, path: str | Path, raw_csv: bool = False) -> None:
        """Write the rows to a file, .csv or .json, one shard in memory at a time."""
        path = check_table(path)
        with (
            written_by_rename(path) as temporary,
            temporary.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file,
        ):
            if path.suffix.lower() == ".csv":
                write_csv(file, COLUMNS, self.rows(), raw_csv)
            else:
                write_json(file, self.rows())


def check_table(path: str | Path) -> Path:
    """The path, if the rows of a label folder can be written there."""
    path = check_writable(path)
    if path.suffix.lower() not in (".csv", ".json"):
        raise SettingError(f"{path} is no name for a table of so many labels. Choose .csv or .json.")
    return path


def label_tensors(found: Answers, known: Tensor, paths: Sequence[str] | None) -> dict[str, Tensor]:
    """The tensors of a shard, from what was found of its images, and known labels (m, UNKNOWN elsewhere)."""
    classes, z, zero_shot, zero_shot_probability = found
    best, first = z.max(dim=1, keepdim=True)
    second, then = z.scatter(1, first, -1.0).max(dim=1)
    other = (second > 0) & (known == UNKNOWN)
    labels = classes.gather(1, first).squeeze(1).int()
    tensors = {
        "labels": labels,
        "probability": best.squeeze(1),
        "runner_up": torch.where(other, classes.gather(1, then[:, None]).squeeze(1).int(), NO_CLASS),
        "margin": best.squeeze(1) - second.clamp_min(0),
        "zero_shot_labels": zero_shot.int(),
        "zero_shot_probability": zero_shot_probability,
        "known": known.int(),
        "candidates": classes,
        "z": z,
    }
    return {**tensors, "paths": as_bytes(paths)} if paths is not None else tensors


def save_shard(folder: Path, start: int, tensors: Mapping[str, Tensor]) -> Entry:
    """Write the labels of consecutive images, the first of which has the number `start`."""
    images = len(tensors["labels"])
    name = shard_name(start, start + images)
    return Entry(name, images, save_tensors(folder / name, SHARD, VERSION, tensors, {}))


def save_manifest(
    folder: Path,
    job: Mapping[str, Any],
    class_names: Sequence[str],
    summary: Mapping[str, Any],
    entries: Sequence[Entry],
    mass: Tensor,
) -> LabelFolder:
    """Complete a folder whose shards are written. mass: Σ_i z_ik, k."""
    told = {name: value for name, value in summary.items() if name not in ("method", "changed")}
    meta = {
        "job": dict(job),
        "class_names": list(class_names),
        "method": summary["method"],
        "changed": summary["changed"],
        "summary": told,
        "shards": [asdict(entry) for entry in entries],
    }
    save_tensors(folder / MANIFEST, KIND, VERSION, {"mass": mass}, meta)
    return LabelFolder.open(folder)


def _check_shard(path: Path, tensors: Mapping[str, Tensor], images: int, k: int) -> None:
    """Raise FileError unless the tensors have the right shapes and name classes that exist."""
    lists = tensors["candidates"].shape
    shapes = dict.fromkeys(PER_IMAGE, (images,)) | dict.fromkeys(LISTS, (images, *lists[1:]))
    right = len(lists) == 2 and lists[1] > 0 and all(tensors[name].shape == shape for name, shape in shapes.items())
    for name in (*PER_IMAGE, *LISTS) if right else ():
        found, numbers = tensors[name], name in CLASSES
        right = right and found.dtype in (WHOLE if numbers else FLOATS)
        low, high = (float(found.min()), float(found.max())) if right else (0, 0)
        right = right and (low >= NO_CLASS and high < k if numbers else low >= 0 and high < 2)  # NaN is neither
    with naming(path):
        paths = stored_paths(tensors)
    if not right or (paths is not None and len(paths) != images):
        raise FileError(f"{path} does not have the labels of {images} images of {k} classes. Make it again.")
