"""The folder of an unfinished extraction, `FILE.parts`: its job description and its shards."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from ..errors import FileError
from ..files import written_by_rename
from ..tensor_files import load_tensors, save_tensors
from .encode import Encoded, Skipped

KIND, VERSION = "feature shard", 1
SHARD_ROWS, SHARD_SECONDS = 16_384, 20.0  # write a shard at this many features, or at this age
JOB, LOCK = "job.json", "lock"


class Parts:
    """The shards of one job. As a context manager it locks the folder, and removes it if it is empty."""

    def __init__(self, out: Path, job: dict[str, Any], force: bool = False) -> None:
        self.folder = out.with_name(out.name + ".parts")
        self.job: dict[str, Any] = json.loads(json.dumps(job))
        self.force = force  # replace the shards of another job
        self._lock: IO[str] | None = None
        self._removed = False

    def __enter__(self) -> Parts:
        try:
            self.folder.mkdir(exist_ok=True)
            self._lock = (self.folder / LOCK).open("w")
        except OSError as error:
            raise FileError(f"cannot write to {self.folder}: {error.strerror}. Choose another place.") from error
        _keep_others_out(self._lock, self.folder)
        if self.force and self.shards():
            self._drop_other_job()
        if kept := self.shards():
            self._check_job()
            for path in set(self.folder.glob("[0-9]*-[0-9]*.safetensors")) - set(kept):
                path.unlink()  # after a gap, so it is encoded again
        else:
            with written_by_rename(self.folder / JOB) as temporary:
                temporary.write_text(json.dumps(self.job, indent=1, ensure_ascii=False), encoding="utf-8")
        return self

    def __exit__(self, *error: object) -> None:
        if not self._removed and self.folder.is_dir() and not self.shards():
            self.remove()  # while locked: later another process may use it
        if self._lock:
            self._lock.close()

    def _check_job(self) -> None:
        """Raise FileError if the shards belong to another job."""
        again = "To continue it, use the same options; to start over, use --force (force=True)."
        try:
            there = json.loads((self.folder / JOB).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise FileError(f"{self.folder} has shards, but no readable {JOB} ({error}). {again}") from error
        if other := difference(there, self.job):
            raise FileError(f"{self.folder} is an unfinished extraction with another {other}. {again}")

    def _drop_other_job(self) -> None:
        try:
            self._check_job()
        except FileError:
            for path in self.shards():
                path.unlink()

    def shards(self) -> list[Path]:
        """The shards from the first image on, up to the first gap."""
        found: list[Path] = []
        for path in sorted(self.folder.glob("[0-9]*-[0-9]*.safetensors")):
            if _range(path)[0] == (_range(found[-1])[1] if found else 0):
                found.append(path)
        return found

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

    def joined(self) -> tuple[Tensor, Tensor | None, list[int], list[Skipped]]:
        """Join all shards: features n×d, views n×v×d or None, positions, and skipped images.

        The tensors are memory-mapped files in the folder, filled shard by shard, so that they are never all in memory.
        """
        positions: list[int] = []
        skipped: list[Skipped] = []
        shapes = []
        for path in self.shards():
            tensors, meta = load_tensors(path, KIND, VERSION, ("skipped",))
            shapes.append(tensors["features"].shape)
            positions += tensors["positions"].tolist()
            skipped += [(i, reason) for i, reason in meta["skipped"]]
        *views, d = shapes[0][1:]
        features = self._map("features", (len(positions), d))
        all_views = self._map("views", (len(positions), *views, d)) if views else None
        row = 0
        for path, shape in zip(self.shards(), shapes, strict=True):
            rows = load_tensors(path, KIND, VERSION)[0]["features"]
            features[row : row + shape[0]] = rows[:, 0] if views else rows
            if all_views is not None:
                all_views[row : row + shape[0]] = rows
            row += shape[0]
        return features, all_views, positions, skipped

    def _map(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A memory-mapped file of zeros of this shape."""
        size = torch.Size(shape).numel()
        path = self.folder / f"{name}.joined"
        path.unlink(missing_ok=True)
        if not size:
            return torch.empty(shape)
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


def _keep_others_out(lock: IO[str], folder: Path) -> None:
    """Raise FileError if another process uses the folder. The system releases the lock when a process ends."""
    with contextlib.suppress(ImportError):  # not on Windows
        import fcntl

        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FileError(
                f"another process uses {folder}. Wait until it is done, or choose another output."
            ) from None
        except OSError:  # a file system without locks
            return
