"""Unfinished extractions: a folder with the job's description and the shards that are done.

| output                | folder                   | shards are                                                       |
|-----------------------|--------------------------|------------------------------------------------------------------|
| birds.safetensors     | birds.safetensors.parts  | joined to the file, and the folder is removed                    |
| birds, feature folder | birds                    | those of the feature folder, which gets its manifest             |

Whoever makes shards, in this process or on another machine, writes each by rename. So what is left to do follows from
the names of the files that are there.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Annotated, Any

import torch
from torch import Tensor

from ..arrays import check_unit_rows
from ..errors import FileError, KedgeError
from ..files import lock_file, reserve, writing, written_by_rename
from ..images.image_set import MANIFEST
from ..progress import notice
from ..schema import Meta, checked, fitted, parsed
from .encode import MOST_TOGETHER, Encoded
from .feature_set import FeatureSet, stored_paths
from .folder import Columns, Entry, FeatureFolder, write_manifest
from .precision_check import PrecisionCheck
from .shard import Header, Skipped, load_shard, shard_range, shards_in
from .text_head import TextHead

JOB, LOCK = "job.json", "lock"
MEASURED = "measured"  # the entry of job.json that is no part of the job


class OtherJob(FileError):
    """A feature file, or unfinished work, of another job is in the way."""


@dataclass(frozen=True)
class Measured:
    """What was measured once for a job, and holds for all of its shards."""

    batch_size: Annotated[int, Meta(ge=1, le=MOST_TOGETHER)] | None = None
    check: PrecisionCheck | None = None


class Unfinished:
    """The folder of one job. As a context manager it locks the folder, and removes it if nothing is done.

    The job says what the features depend on, and `images`, `views` and `dimension`, which its shards must fit;
    `images_per_shard` is part of it if the shards stay.
    """

    def __init__(self, folder: Path, job: Mapping[str, Any], force: bool = False) -> None:
        self.folder = folder
        self.job: dict[str, Any] = json.loads(json.dumps(job))
        self.per_shard: int | None = job.get("images_per_shard")  # None: the shards will be joined
        self.force = force  # replace the shards of another job
        self.measured = Measured()  # when the shards were made
        self._lock: IO[str] | None = None
        self._removed = False
        if self.folder.is_symlink() or (self.folder.exists() and not self.folder.is_dir()):
            raise FileError(
                f"{self.folder} is a link or a file; unfinished work needs a folder of this name. "
                "Remove it, or choose another output."
            )

    def __enter__(self) -> Unfinished:
        with writing(self.folder):
            self.folder.mkdir(exist_ok=True)
            self._lock = lock_file(self.folder / LOCK)
        if self._lock is None:
            raise FileError(f"another process uses {self.folder}. Wait until it is done, or choose another output.")
        try:
            if self.force and self.shards():
                self._drop_other_job()
            if self.shards():
                self._check_job()
            self._drop_unreadable()
        except BaseException:
            self._lock.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        if not self._removed and self.folder.is_dir():
            for path in self.folder.glob("*.joined"):
                path.unlink()  # makes room
            if not self.shards():
                self.remove()  # while locked: later another process may use it
        if self._lock:
            self._lock.close()

    def keep(self, measured: Measured) -> None:
        """Write the job's description, with what was measured for the shards to come."""
        self.measured = measured
        with written_by_rename(self.folder / JOB) as temporary:
            temporary.write_text(json.dumps({**self.job, MEASURED: asdict(measured)}, indent=1), encoding="utf-8")

    def start_over(self) -> None:
        """Delete the shards."""
        (self.folder / MANIFEST).unlink(missing_ok=True)
        for path in self.shards():
            path.unlink()

    def shards(self) -> list[Path]:
        """The shards that are there, in order."""
        return shards_in(self.folder) if self.folder.is_dir() else []

    def done(self) -> int:
        """How many images are done."""
        return sum(len(_numbers(path)) for path in self.shards())

    def missing(self, size: int | None = None) -> list[range]:
        """What is left to do; in ranges of at most `size` images, if given, from the first of all on."""
        last, found = 0, []
        for numbers in [*map(_numbers, self.shards()), range(self.job["images"], self.job["images"])]:
            start = last
            while start < numbers.start:
                stop = min(start + size - start % size if size else numbers.start, numbers.start)
                found.append(range(start, stop))
                start = stop
            last = numbers.stop
        return found

    def batches(self) -> Iterator[Encoded]:
        """What is done, a batch for each shard."""
        for path in self.shards():
            tensors, header = self._read(path)
            features = tensors["views" if self.job["views"] else "image_features"]
            numbers = _numbers(path)
            yield Encoded(numbers.start, numbers.stop, _positions(path, header), features, header.skipped)

    def summary(self) -> tuple[list[int], list[Skipped]]:
        """The numbers of the images that have features, and the images that could not be read."""
        positions: list[int] = []
        skipped: list[Skipped] = []
        for path in self.shards():
            _, header = load_shard(path, verified=True)
            positions += _positions(path, header)
            skipped += header.skipped
        return positions, skipped

    def joined(self, head: TextHead, provenance: Mapping[str, Any], rows: int) -> FeatureSet:
        """Join all shards, which have so many rows.

        The tensors are memory-mapped files in the folder, filled shard by shard, so that they are never all in memory.
        """
        n, v, d = rows, self.job["views"], self.job["dimension"]
        features, views = self._map("features", (n, d)), self._map("views", (n, v, d)) if v else None
        labels: list[Tensor] = []
        paths: list[str] = []
        row = 0
        for path in self.shards():
            tensors, _ = self._read(path)
            x = tensors["image_features"]
            features[row : row + len(x)] = x
            if views is not None:
                views[row : row + len(x)] = tensors["views"]
            labels += [tensors["labels"]] if "labels" in tensors else []
            paths += (stored_paths(tensors) or []) if len(x) else []
            row += len(x)
        return FeatureSet.from_arrays(
            features,
            head,
            labels=torch.cat(labels) if labels else None,
            views=views,
            paths=paths or None,
            provenance=provenance,
        )

    def complete(self, head: TextHead, provenance: Mapping[str, Any]) -> FeatureFolder:
        """Make a feature folder of this one. Shards without any image that can be read are removed."""
        entries = []
        columns: Columns | None = None
        for path in self.shards():
            tensors, header = load_shard(path, verified=True)
            if rows := len(tensors["image_features"]):
                entries.append(Entry(path.name, rows, header.sha256))
                columns = columns or Columns("float32", "labels" in tensors, "paths" in tensors, self.job["views"])
        assert columns is not None
        made = write_manifest(self.folder, head, columns, entries, provenance)
        self.tidy()
        return made

    def tidy(self) -> None:
        """Remove what only unfinished work needs."""
        self._removed = True
        for name in (JOB, LOCK):
            (self.folder / name).unlink(missing_ok=True)

    def remove(self) -> None:
        """Delete the folder; one that stays loses only what is ours."""
        self._removed = True
        if self.per_shard is None:
            shutil.rmtree(self.folder, ignore_errors=True)
            return
        self.start_over()
        self.tidy()
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    def _drop_unreadable(self) -> None:
        """Delete shards that are damaged, of another job, or of images that another shard has too."""
        last = 0
        for path in self.shards():
            try:
                self._read(path)
                if _numbers(path).start < last:
                    raise FileError(f"{path} has images of the shard before it.")
                last = _numbers(path).stop
            except KedgeError as error:
                notice(f"a part of the unfinished extraction is damaged and made again: {error}")
                path.unlink()

    def _read(self, path: Path) -> tuple[dict[str, Tensor], Header]:
        """A shard; raises KedgeError if it does not fit the job. The content of shards that stay is checked later."""
        tensors, header = load_shard(path, verified=self.per_shard is not None)
        x, d, v = tensors["image_features"], self.job["dimension"], self.job["views"]
        views = tensors.get("views")
        if (
            x.shape[1:] != (d,)
            or x.dtype != torch.float32
            or (views.shape if views is not None else None) != ((len(x), v, d) if v else None)
            or _numbers(path).stop > self.job["images"]
            or _numbers(path).start % (self.per_shard or 1)
        ):
            raise FileError(f"{path} does not have the features of its images.")
        if len(x) and self.per_shard is None:
            check_unit_rows(x, str(path))
        return tensors, header

    def _check_job(self) -> None:
        """Raise OtherJob if the shards belong to another job."""
        again = "To continue it, use the same options; to start over, use --force (force=True)."
        try:
            path = self.folder / JOB
            there = checked(parsed(path.read_bytes()), dict[str, Any], path, "job")
            self.measured = fitted(there.pop(MEASURED, {}), Measured)
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise OtherJob(f"{self.folder} has shards, but no readable {JOB} ({reason}). {again}") from error
        if other := difference(there, self.job):
            raise OtherJob(f"{self.folder} is an unfinished extraction with another {other}. {again}")

    def _drop_other_job(self) -> None:
        try:
            self._check_job()
        except FileError:
            self.start_over()

    def _map(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A memory-mapped file of zeros of this shape. Its space is reserved, so that a full disk is an error here."""
        size = torch.Size(shape).numel()
        path = self.folder / f"{name}.joined"
        path.unlink(missing_ok=True)
        if not size:
            return torch.empty(shape)
        with writing(path), path.open("wb") as file:
            reserve(file, 4 * size)
        return torch.from_file(str(path), shared=True, size=size, dtype=torch.float32).view(shape)


def difference(there: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """How a job differs from the present one, in a few words; "" if it does not."""
    other = [name for name in {**there, **now} if there.get(name) != now.get(name)]
    if not other:
        return ""
    values = f" ({there.get(other[0])} there, {now.get(other[0])} now)"
    more = f" and {len(other) - 1} more" if len(other) > 1 else ""
    return other[0].replace("_", " ") + (values if len(values) < 100 else "") + more


def _numbers(path: Path) -> range:
    return shard_range(path.name) or range(0)


def _positions(path: Path, header: Header) -> list[int]:
    """The numbers of the images of a shard that have features, in the order of its rows."""
    left_out = {number for number, _ in header.skipped}
    return [number for number in _numbers(path) if number not in left_out]
