"""The folder that keeps the work on a set of images: `photos.kedge`, beside `photos`.

folder = WorkFolder.of(Path("photos"))
with folder.locked():
    Journal(folder.journal)
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import FileError
from ..files import check_usable, existing, lock_file

SUFFIX = ".kedge"
ELSEWHERE = "Name another folder for the work: --work DIR."


@dataclass(frozen=True)
class WorkFolder:
    """Where everything lies. The folders in it exist, the files perhaps not yet."""

    path: Path

    @classmethod
    def of(cls, source: Path, named: Path | None = None) -> WorkFolder:
        """The work folder of a folder of images or of a file: `named`, or beside it. It is made if it is not there."""
        check_usable(source)
        source = Path(os.path.abspath(source))
        if named is not None:
            check_usable(named)
        elif not source.name:
            raise FileError(f"there is no place beside {source} for the work. {ELSEWHERE}")
        is_folder = os.path.isdir(source)
        if not is_folder:
            existing(source)  # before a folder is made beside it
        path = Path(os.path.abspath(named or source.with_name((source.name if is_folder else source.stem) + SUFFIX)))
        if is_folder and path.resolve().is_relative_to(source.resolve()):
            raise FileError(f"{path} is inside {source}, with the images. {ELSEWHERE}")
        made = cls(path)
        try:
            for folder in (path, made.thumbnails, made.exports, made.streams):
                folder.mkdir(exist_ok=True)
        except OSError as error:
            raise FileError(f"cannot make the folder {path}: {error.strerror or error}. {ELSEWHERE}") from error
        if not os.access(path, os.W_OK | os.X_OK):
            raise FileError(f"cannot write in the folder {path}: permission denied. {ELSEWHERE}")
        return made

    @property
    def features(self) -> Path:
        """Features of the images."""
        return self.path / "features.safetensors"

    @property
    def new_features(self) -> Path:
        """Features of images that came later, until they are joined to the others."""
        return self.path / "new.safetensors"

    @property
    def journal(self) -> Path:
        """What the person said."""
        return self.path / "work.sqlite"

    @property
    def thumbnails(self) -> Path:
        """Small pictures; they can be deleted at any time."""
        return self.path / "thumbnails"

    @property
    def exports(self) -> Path:
        """Images sorted into folders by label."""
        return self.path / "exports"

    @property
    def streams(self) -> Path:
        """Streams of programs."""
        return self.path / "streams"

    def discard(self) -> None:
        """Remove the folder, if nothing but empty parts of it are there: the work did not begin."""
        for name in (*(self.journal.name + end for end in ("", "-wal", "-shm")), "lock"):
            (self.path / name).unlink(missing_ok=True)
        for folder in (self.thumbnails, self.exports, self.streams, self.path):
            with contextlib.suppress(OSError):  # it is not empty
                folder.rmdir()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Raise FileError if another process serves this folder; keep others out inside the block."""
        try:
            lock = lock_file(self.path / "lock")
        except OSError as error:
            raise FileError(f"cannot write in the folder {self.path}: {error.strerror}. {ELSEWHERE}") from error
        if lock is None:
            raise FileError(
                f"another `kedge serve` works in {self.path}. Use its page, or end it first. "
                "Or work apart from it, in another folder: --work DIR."
            )
        with lock:
            yield
