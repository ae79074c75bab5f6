"""The folder of an unfinished extraction, `FILE.parts`: its job description and its shards."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Annotated, Any

import torch
from torch import Tensor

from ..arrays import check_unit_rows
from ..errors import FileError, KedgeError
from ..files import lock_file, reserve, writing, written_by_rename
from ..progress import notice
from ..schema import Meta, Whole, checked, fitted, parsed
from ..tensor_files import check_names, load_tensors, save_tensors
from .encode import MOST_TOGETHER, Encoded, Skipped
from .precision_check import PrecisionCheck

KIND, VERSION = "feature shard", 1
SHARD_ROWS, SHARD_SECONDS = 16_384, 20.0  # write a shard at this many features, or at this age
JOB, LOCK = "job.json", "lock"
MEASURED = "measured"  # the entry of job.json that is no part of the job
_NAME = re.compile(r"\d{9,}-\d{9,}")


@dataclass(frozen=True)
class Header:
    """What a shard says beside its tensors."""

    skipped: list[tuple[Whole, str]]


@dataclass(frozen=True)
class Measured:
    """What was measured once for a job, and holds for all of its shards."""

    batch_size: Annotated[int, Meta(ge=1, le=MOST_TOGETHER)] | None = None
    check: PrecisionCheck | None = None


class OtherJob(FileError):
    """A feature file, or unfinished work, of another job is in the way."""


class Parts:
    """The shards of one job. As a context manager it locks the folder, and removes it if it is empty.

    The job says what the features depend on, and `images`, `views` and `dimension`, which its shards must fit.
    """

    def __init__(self, out: Path, job: dict[str, Any], force: bool = False) -> None:
        self.folder = out.with_name(out.name + ".parts")
        self.job: dict[str, Any] = json.loads(json.dumps(job))
        self.force = force  # replace the shards of another job
        self.measured = Measured()  # when the shards were made
        self._lock: IO[str] | None = None
        self._removed = False
        if self.folder.is_symlink() or (self.folder.exists() and not self.folder.is_dir()):
            raise FileError(
                f"{self.folder} is a link or a file; unfinished work needs a folder of this name. "
                "Remove it, or choose another output."
            )

    def __enter__(self) -> Parts:
        with writing(self.folder):
            self.folder.mkdir(exist_ok=True)
            self._lock = lock_file(self.folder / LOCK)
        if self._lock is None:
            raise FileError(f"another process uses {self.folder}. Wait until it is done, or choose another output.")
        if self.force and self.shards():
            self._drop_other_job()
        if self.shards():
            self._check_job()
        kept = self._readable()
        for path in self._files():
            if path not in kept:
                path.unlink()  # damaged, after a gap, or of another job: its images are encoded again
        return self

    def keep(self, measured: Measured) -> None:
        """Write the job's description, with what was measured for the shards to come."""
        self.measured = measured
        with written_by_rename(self.folder / JOB) as temporary:
            temporary.write_text(json.dumps({**self.job, MEASURED: asdict(measured)}, indent=1), encoding="utf-8")

    def __exit__(self, *error: object) -> None:
        if not self._removed and self.folder.is_dir():
            for path in self.folder.glob("*.joined"):
                path.unlink()  # makes room
            if not self.shards():
                self.remove()  # while locked: later another process may use it
        if self._lock:
            self._lock.close()

    def _readable(self) -> list[Path]:
        """The shards up to the first that is damaged."""
        found = self.shards()
        for number, path in enumerate(found):
            try:
                self._read(path)
            except KedgeError as error:
                notice(f"a part of the unfinished extraction is damaged and made again: {error}")
                return found[:number]
        return found

    def _read(self, path: Path) -> tuple[Tensor, list[int], list[Skipped]]:
        """Features (m×d or m×v×d), positions and skipped images of a shard; raises KedgeError if they do not fit."""
        tensors, header = load_tensors(path, KIND, VERSION, Header)
        check_names(path, tensors, ("features", "positions"))
        features, positions = tensors["features"], tensors["positions"]
        start, stop = _range(path)
        done = sorted([*positions.flatten().tolist(), *(i for i, _ in header.skipped)])
        views = (self.job["views"],) if self.job["views"] else ()
        if (
            (positions.dtype, features.dtype) != (torch.int64, torch.float32)
            or positions.dim() != 1
            or features.shape != (len(positions), *views, self.job["dimension"])
            or done != list(range(start, stop))
            or stop > self.job["images"]
        ):
            raise FileError(f"{path} does not have the features of images {start} to {stop - 1}.")
        if len(features):
            check_unit_rows(features, str(path))
        return features, positions.tolist(), header.skipped

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

    def start_over(self) -> None:
        """Delete the shards."""
        for path in self.shards():
            path.unlink()

    def shards(self) -> list[Path]:
        """The shards from the first image on, up to the first gap."""
        found: list[Path] = []
        for path in self._files():
            if _range(path)[0] == (_range(found[-1])[1] if found else 0):
                found.append(path)
        return found

    def _files(self) -> list[Path]:
        """All shards in the folder, in order."""
        return sorted(path for path in self.folder.glob("*.safetensors") if _NAME.fullmatch(path.stem))

    def done(self) -> int:
        """How many images are done."""
        return max((_range(path)[1] for path in self.shards()), default=0)

    def write(self, batches: Sequence[Encoded]) -> None:
        """Write consecutive batches as one shard."""
        start, stop = batches[0].start, batches[-1].stop
        tensors = {
            "features": torch.cat([batch.features for batch in batches]),
            "positions": torch.tensor([i for batch in batches for i in batch.positions], dtype=torch.long),
        }
        skipped = [entry for batch in batches for entry in batch.skipped]
        name = f"{start:09d}-{stop:09d}.safetensors"
        save_tensors(self.folder / name, KIND, VERSION, tensors, {"skipped": skipped})

    def batches(self) -> Iterator[Encoded]:
        """What is done, a batch for each shard."""
        for path in self.shards():
            features, positions, skipped = self._read(path)
            yield Encoded(*_range(path), positions, features, skipped)

    def joined(self) -> tuple[Tensor, Tensor | None, list[int], list[Skipped]]:
        """Join all shards: features n×d, views n×v×d or None, positions, and skipped images.

        The tensors are memory-mapped files in the folder, filled shard by shard, so that they are never all in memory.
        """
        positions: list[int] = []
        skipped: list[Skipped] = []
        for path in self.shards():
            _, done, left_out = self._read(path)
            positions += done
            skipped += left_out
        n, v, d = len(positions), self.job["views"], self.job["dimension"]
        features = self._map("features", (n, d))
        all_views = self._map("views", (n, v, d)) if v else None
        row = 0
        for path in self.shards():
            rows, _, _ = self._read(path)
            features[row : row + len(rows)] = rows[:, 0] if v else rows
            if all_views is not None:
                all_views[row : row + len(rows)] = rows
            row += len(rows)
        return features, all_views, positions, skipped

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

    def remove(self) -> None:
        """Delete the folder."""
        self._removed = True
        shutil.rmtree(self.folder, ignore_errors=True)


def difference(there: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """How a job differs from the present one, in a few words; "" if it does not."""
    other = [name for name in {**there, **now} if there.get(name) != now.get(name)]
    if not other:
        return ""
    values = f" ({there.get(other[0])} there, {now.get(other[0])} now)"
    more = f" and {len(other) - 1} more" if len(other) > 1 else ""
    return other[0].replace("_", " ") + (values if len(values) < 100 else "") + more


class ShardWriter:
    """Collects batches and writes them as shards, in a thread of its own."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self._thread = ThreadPoolExecutor(1)
        self._writing: Future[None] | None = None
        self._batches: list[Encoded] = []
        self._since = time.monotonic()

    def add(self, batch: Encoded) -> None:
        """Add a batch; write a shard if it is large or old enough."""
        self._batches.append(batch)
        rows = sum(each.features.shape[:-1].numel() for each in self._batches)
        if rows >= SHARD_ROWS or time.monotonic() - self._since >= SHARD_SECONDS:
            self._flush()

    def _flush(self) -> None:
        if self._writing:
            self._writing.result()  # one at a time: at most two shards are in memory
        self._writing = self._thread.submit(self.parts.write, self._batches) if self._batches else None
        self._batches, self._since = [], time.monotonic()

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, *error: object) -> None:
        with self._thread:
            self._flush()
            if self._writing:
                self._writing.result()


def _range(shard: Path) -> tuple[int, int]:
    start, _, stop = shard.stem.partition("-")
    return int(start), int(stop)
