"""A feature folder: a FeatureSet in many files, which need not fit in memory together.

    birds/manifest.safetensors               the classes with their prototypes, the provenance, and the list of shards
    birds/000000000-000008192.safetensors    a shard: see `features.shard`

    folder = FeatureFolder.open("birds")     # reads the manifest only
    for shard in folder.shards:
        shard.open()                         # a FeatureSet of some of the images, memory-mapped
    folder.gather()                          # all of them, in memory

The manifest has the content hash of every shard, and its own. A shard is checked when it is opened: its hash once in
each process, as long as the file stays the same. The manifest is written last, by rename: a folder that has one is
complete. Its names are plain names of shards, so it cannot name a file elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from ..errors import FileError, InputError
from ..files import check_usable, check_writable, is_temporary, remove_temporary, stamp, writing
from ..images.image_set import MANIFEST, is_feature_folder
from ..memory import check_memory
from ..progress import notice, track
from ..ranges import whole
from ..schema import Meta, Positive, Whole
from ..tensor_files import check_names, check_path, load_tensors, save_tensors
from ..words import count
from .feature_set import FeatureSet, image_tensors, naming, recorded_precision, stored_paths
from .shard import NAME, load_shard, save_shard, shard_name, shard_range, shards_in
from .text_head import TextHead

KIND, VERSION = "feature folder", 1
IMAGES_PER_SHARD, MOST_PER_SHARD = 8192, 10_000_000  # a multiple of the usual batch sizes


@dataclass(frozen=True)
class Columns:
    """What is known of each image, the same in every shard."""

    dtype: Literal["float16", "bfloat16", "float32", "float64"]  # of features and views
    labels: bool
    paths: bool
    views: Whole  # 0: none

    @classmethod
    def of(cls, features: FeatureSet) -> Columns:
        """The columns of these features."""
        dtype: Any = str(features.image_features.dtype).removeprefix("torch.")
        return cls(
            dtype,
            features.labels is not None,
            features.paths is not None,
            0 if features.views is None else features.views.shape[1],
        )


@dataclass(frozen=True)
class Entry:
    """A shard, as the manifest lists it."""

    name: Annotated[str, Meta(pattern=NAME)]
    images: Positive
    sha256: str


@dataclass(frozen=True)
class Header:
    """What a manifest says beside the prototypes."""

    logit_scale: float
    class_names: list[str]
    provenance: dict[str, Any]
    columns: Columns
    shards: Annotated[list[Entry], Meta(min_length=1)]
    sha256: str

    def __post_init__(self) -> None:
        check_entries(self.shards)


def check_entries(shards: Sequence[Entry]) -> None:
    """Raise ValueError unless shards are in order and have room for their images."""
    ranges = [shard_range(entry.name) or range(0) for entry in shards]
    for one, two in pairwise(ranges):
        if one.stop > two.start:
            raise ValueError(f"the shards {shard_name(one.start, one.stop)} and the next are not in order")
    for entry, numbers in zip(shards, ranges, strict=True):
        if entry.images > len(numbers):
            raise ValueError(f"the shard {entry.name} cannot have {entry.images} images")


@dataclass
class Shard:
    """Some of the images of a feature folder, in one file."""

    folder: FeatureFolder = field(repr=False)
    entry: Entry
    _verified: tuple[int, int] | None = None  # size and time of the file whose content was checked

    def __len__(self) -> int:
        return self.entry.images

    @property
    def path(self) -> Path:
        """The file."""
        return self.folder.path / self.entry.name

    def open(self) -> FeatureSet:
        """These images, memory-mapped, with the classes and the provenance of the folder.

        Raises FileError or InputError unless the file is the one that the manifest lists, and passes the checks of
        feature files.
        """
        path, folder, found_stamp = self.path, self.folder, stamp(self.path)
        verified = found_stamp == self._verified
        tensors, header = load_shard(path, verified=verified)
        if header.sha256 != self.entry.sha256:
            raise FileError(f"{path} is not the shard that {MANIFEST} lists: their hashes differ. Make it again.")
        x, labels, views = tensors["image_features"], tensors.get("labels"), tensors.get("views")
        with naming(path):
            paths = stored_paths(tensors)
            if verified:
                found = FeatureSet(x, folder.head, labels, views, None if paths is None else tuple(paths))
            else:
                found = FeatureSet.from_arrays(x, folder.head, labels=labels, views=views, paths=paths)
        if Columns.of(found) != folder.columns or len(found) != len(self):
            raise FileError(f"{path} does not have the arrays that {MANIFEST} lists. Make the folder again.")
        self._verified = found_stamp
        return replace(found, provenance=folder.provenance, path=folder.path)


@dataclass(frozen=True, eq=False, repr=False)
class FeatureFolder:
    """Image features in shards, and the text prototypes of the classes. Open one with `open`."""

    path: Path
    head: TextHead
    columns: Columns
    provenance: Mapping[str, Any]
    entries: tuple[Entry, ...]
    hash: str  # sha256 of the manifest, which has those of the shards

    @classmethod
    def open(cls, path: str | Path) -> FeatureFolder:
        """Read and check the manifest; no shard is opened."""
        path = check_path(path)
        check_usable(path)
        if not is_feature_folder(path):
            raise FileError(f"{path} is not a feature folder: it has no {MANIFEST}. Make it with kedge features split.")
        manifest = path / MANIFEST
        tensors, header = load_tensors(manifest, KIND, VERSION, Header)
        check_names(manifest, tensors, ("text_features",))
        with naming(manifest):
            head = TextHead.from_arrays(tensors["text_features"], header.logit_scale, header.class_names)
            FeatureSet.from_arrays(head.features[:1], head, provenance=header.provenance)  # checks the provenance
        return cls(path.absolute(), head, header.columns, header.provenance, tuple(header.shards), header.sha256)

    def __len__(self) -> int:
        return sum(entry.images for entry in self.entries)

    def __repr__(self) -> str:
        return f"FeatureFolder: {count(len(self), 'image')} in {count(len(self.entries), 'shard')}\n  {self.head!r}"

    @cached_property
    def shards(self) -> tuple[Shard, ...]:
        """The shards, in order; each is opened by `open`."""
        return tuple(Shard(self, entry) for entry in self.entries)

    @property
    def precision(self) -> str:
        """See `FeatureSet.precision`."""
        return recorded_precision(self.provenance)

    def zero_shot_accuracy(self) -> float | None:
        """See `FeatureSet.zero_shot_accuracy`; opens one shard after the other, which checks them all."""
        right = 0.0
        for shard in track(self.shards, "shards"):
            right += len(shard) * (shard.open().zero_shot_accuracy() or 0.0)
        return right / len(self) if self.columns.labels else None

    def gather(self) -> FeatureSet:
        """All images in memory, as one FeatureSet: the one that was split."""
        n, d, v = len(self), self.head.d, self.columns.views
        dtype: torch.dtype = getattr(torch, self.columns.dtype)
        check_memory(
            n * d * (1 + v) * dtype.itemsize,
            f"{self.path}, all {count(n, 'image')} of it,",
            FileError,
        )
        x = torch.empty(n, d, dtype=dtype)
        views = torch.empty(n, v, d, dtype=dtype) if v else None
        labels = torch.empty(n, dtype=torch.long) if self.columns.labels else None
        paths: list[str] = []
        row = 0
        for shard in track(self.shards, "shards"):
            part = shard.open()
            rows = slice(row, row + len(part))
            x[rows] = part.image_features
            if views is not None and part.views is not None:
                views[rows] = part.views
            if labels is not None and part.labels is not None:
                labels[rows] = part.labels
            paths += part.paths or ()
            row = rows.stop
        names = tuple(paths) if self.columns.paths else None
        return FeatureSet(x, self.head, labels, views, names, self.provenance, self.path)


def split(features: FeatureSet, path: str | Path, images_per_shard: int = IMAGES_PER_SHARD) -> FeatureFolder:
    """Write features as a feature folder, with so many images in each shard. `gather` gives the same features.

    An interrupted split is continued: shards that are there with the same content stay. A complete one stays whole.
    """
    size = whole("images_per_shard", images_per_shard, 1, MOST_PER_SHARD)
    starts = range(0, len(features), size)
    parts = (features.take(slice(start, start + size)) for start in track(starts, "shards"))
    return write_folder(path, parts, features.head, features.provenance)


def write_folder(
    path: str | Path, parts: Iterable[FeatureSet], head: TextHead, provenance: Mapping[str, Any]
) -> FeatureFolder:
    """Write consecutive parts of a FeatureSet as the shards of a feature folder; one part is in memory at a time.

    A complete folder stays as it is; raises FileError if it has other features or shards.
    """
    path = check_new_folder(path)
    there = FeatureFolder.open(path) if is_feature_folder(path) else None
    other = FileError(f"{path} is a feature folder already, with other features or shards. Name another, or delete it.")
    with writing(path):
        path.mkdir(exist_ok=True)
    entries: list[Entry] = []
    columns, row = None, 0
    for part in parts:
        if columns is not None and Columns.of(part) != columns:
            raise InputError(f"the part from image {row} on has other arrays than those before: {part!r}.")
        columns = Columns.of(part)
        name = shard_name(row, row + len(part))
        tensors = image_tensors(part.image_features, part.labels, part.views, part.paths)
        kept = _kept(path / name, tensors)
        if there and not kept:
            raise other
        entries.append(Entry(name, len(part), kept or save_shard(path / name, tensors)))
        row += len(part)
    if columns is None:
        raise InputError(f"there are no features to write to {path}. Pass at least one part.")
    if there:
        made = columns, tuple(entries), dict(provenance), head.logit_scale, head.class_names
        found = there.columns, there.entries, there.provenance, there.head.logit_scale, there.head.class_names
        if made != found or not torch.equal(there.head.features, head.features):
            raise other
        notice(f"already done: {path}")
        return there
    return write_manifest(path, head, columns, entries, provenance)


def write_manifest(
    path: Path, head: TextHead, columns: Columns, entries: Sequence[Entry], provenance: Mapping[str, Any]
) -> FeatureFolder:
    """Complete a folder whose shards are written: its manifest, and no other shards than these."""
    for stray in {shard.name for shard in shards_in(path)} - {entry.name for entry in entries}:
        (path / stray).unlink()
    remove_temporary(path)
    meta = {
        "logit_scale": head.logit_scale,
        "class_names": list(head.class_names),
        "provenance": dict(provenance),
        "columns": asdict(columns),
        "shards": [asdict(entry) for entry in entries],
    }
    save_tensors(path / MANIFEST, KIND, VERSION, {"text_features": head.features}, meta)
    return FeatureFolder.open(path)


def check_new_folder(path: str | Path, left: Sequence[str] = ()) -> Path:
    """The path, if a feature folder can be made there: nothing is there, or what a run of the same job left.

    left: names of files that it may have left beside shards.
    """
    path = check_path(path)
    check_usable(path)
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise FileError(f"cannot write {path}: it is a link or a file. Name another folder.")
    check_writable(path / MANIFEST if path.is_dir() else path)
    if path.is_dir() and not is_feature_folder(path):
        for there in path.iterdir():
            if shard_range(there.name) is None and there.name not in left and not is_temporary(there.name):
                raise FileError(f"{path} has other files, like {there.name}. Name an empty or a new folder.")
    return path


def _kept(path: Path, tensors: Mapping[str, Tensor]) -> str | None:
    """The content hash of a shard that is there, if it has just these tensors."""
    try:
        there, header = load_shard(path)
    except FileError:
        return None
    same = there.keys() == tensors.keys() and all(
        there[name].dtype == tensor.dtype and torch.equal(there[name], tensor) for name, tensor in tensors.items()
    )
    return header.sha256 if same and not header.skipped else None
