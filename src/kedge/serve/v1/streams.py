"""The streams of a server: each is a file in one folder, written by rename after every step.

A killed server loses at most the step under way. The streams used last are kept in memory too. Steps of one stream
happen one after the other, those of different streams in parallel.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from starlette.exceptions import HTTPException

from ...errors import FileError, InputError
from ...files import existing, remove_temporary, writing
from ...labelling.stream import Stream
from ...memory import in_bytes
from .models import ID

T = TypeVar("T")

MOST = 1_000  # streams on disk
KEPT, KEPT_BYTES = 256, 1 << 30  # streams in memory
STREAM_BYTES = 256 << 20  # of one stream


@dataclass(eq=False)
class _Kept:
    """A stream in memory, or on its way there."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    users: int = 0  # requests that use it or wait for it: until they are done it stays
    stream: Stream | None = None
    bytes: int = 0


class Streams:
    """All streams in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            remove_temporary(folder)  # of a killed server
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, _Kept] = OrderedDict()  # the last used is last
        self._creating = threading.Lock()

    def files(self) -> list[tuple[str, Path]]:
        """The ids of all streams with their files."""
        found = ((path.stem, path) for path in self.folder.glob("*.safetensors"))
        return [(name, path) for name, path in found if re.fullmatch(ID, name)]

    def create(self, stream: Stream) -> str:
        """Keep a new stream; its id."""
        with self._creating:
            if len(self.files()) >= MOST:
                raise HTTPException(409, f"there are {MOST:,} streams, the most this server keeps. Delete some first.")
            name = secrets.token_hex(16)
            with self._using(name) as kept, kept.lock:
                _check_size(stream)
                self._save(name, kept, stream)
        return name

    def use(self, name: str, work: Callable[[Stream], T]) -> T:
        """Do something that leaves the stream as it is."""
        with self._loaded(name) as (_, stream):
            return work(stream)

    def change(self, name: str, work: Callable[[Stream], T]) -> T:
        """Do something that changes the stream, and save it. After an error it is as before."""
        with self._loaded(name) as (kept, stream):
            before = stream.steps, stream.present
            try:
                found = work(stream)
                _check_size(stream)
                self._save(name, kept, stream)
            except BaseException:
                if (stream.steps, stream.present) != before:
                    kept.stream = None  # what is on disk counts
                raise
            return found

    def content(self, name: str) -> bytes:
        """The stream's file, which `kedge.Stream.load` reads."""
        path = self._there(name)
        try:
            return existing(path).read_bytes()  # a rename in between does no harm: this file stays as it was opened
        except FileNotFoundError:
            raise _missing(name) from None

    def delete(self, name: str) -> None:
        """Forget a stream."""
        with self._using(name) as kept, kept.lock:
            kept.stream = None
            path = self._there(name)
            with writing(path):
                path.unlink()

    @contextlib.contextmanager
    def _loaded(self, name: str) -> Iterator[tuple[_Kept, Stream]]:
        with self._using(name) as kept, kept.lock:
            if kept.stream is None:
                path = self._there(name)
                kept.stream = Stream.load(path)
                kept.bytes = path.stat().st_size
            yield kept, kept.stream

    @contextlib.contextmanager
    def _using(self, name: str) -> Iterator[_Kept]:
        """The place of a stream in memory, which stays as long as somebody uses it."""
        with self._lock:
            kept = self._kept.setdefault(name, _Kept())
            self._kept.move_to_end(name)
            kept.users += 1
        try:
            yield kept
        finally:
            with self._lock:
                kept.users -= 1
                self._make_room()

    def _make_room(self) -> None:
        """Let streams go that nobody uses, the longest unused first, until the others fit."""
        idle = [name for name, kept in self._kept.items() if not kept.users]
        empty = [name for name in idle if self._kept[name].stream is None]
        for name in (*empty, *idle):
            size = sum(kept.bytes for kept in self._kept.values())
            if name in self._kept and (name in empty or len(self._kept) > KEPT or size > KEPT_BYTES):
                del self._kept[name]

    def _save(self, name: str, kept: _Kept, stream: Stream) -> None:
        path = self._path(name)
        try:
            stream.save(path)
        except FileError as error:  # the disk is full: no fault of the client
            raise HTTPException(507, f"the stream cannot be saved: {error}") from error
        kept.stream, kept.bytes = stream, path.stat().st_size

    def _there(self, name: str) -> Path:
        """The file of a stream; 404 if it is not there."""
        path = self._path(name)
        if not path.exists():
            raise _missing(name)
        return path

    def _path(self, name: str) -> Path:
        if not re.fullmatch(ID, name):
            raise _missing(name)
        return self.folder / f"{name}.safetensors"


def _check_size(stream: Stream) -> None:
    tensors = [stream.head.features, *(stream.state or {}).values()]
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    if size > STREAM_BYTES:
        raise InputError(
            f"this stream takes {in_bytes(size)}; the limit is {in_bytes(STREAM_BYTES)}. Use fewer classes, or a "
            "smaller memory of the method."
        )


def _missing(name: str) -> HTTPException:
    return HTTPException(404, "there is no such stream. GET /v1/streams lists all.")
