"""Files on disk: written by rename, so that a file that exists is whole; read without pickle, and checked.

A kedge file is a safetensors file whose metadata has one key, `kedge`, a JSON object with `kind` and `version` (what
the file is), `sha256` (over every tensor and the rest of the JSON) and the content's own fields.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from .errors import FileError


def check_writable(path: str | Path) -> Path:
    """Refuse a path that can not be written, before any work is done for it."""
    path = Path(path)
    status = _status(path)
    if status and stat.S_ISDIR(status.st_mode):
        raise FileError(f"can not write {path}: it is a folder. Name a file in it.")
    if not path.parent.is_dir():
        raise FileError(f"can not write {path}: there is no folder {path.parent}. Create it first.")
    if not os.access(path.parent, os.W_OK) or (status and not os.access(path, os.W_OK)):
        raise FileError(f"can not write {path}: permission denied. Choose another place.")
    return path


@contextlib.contextmanager
def written_by_rename(path: str | Path) -> Iterator[Path]:
    """A temporary path beside `path` to write to; it takes the name when the block ends well, else it vanishes."""
    path = check_writable(path)
    try:
        handle, name = tempfile.mkstemp(prefix=".kedge-", suffix=".tmp", dir=path.parent)
    except OSError as error:
        raise FileError(f"can not write {path}: {error.strerror or error}. Choose another place.") from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)  # mkstemp makes private files; ours are ordinary ones
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
    except OSError as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"can not write {path}: {error.strerror or error}.") from error
    finally:
        temporary.unlink(missing_ok=True)


def existing(path: str | Path) -> Path:
    """The path, if a non-empty file is there."""
    path = Path(path)
    status = _status(path)
    if status is None:
        raise FileError(f"no file {path}. Check the path (the current folder is {Path.cwd()}).")
    if stat.S_ISDIR(status.st_mode):
        raise FileError(f"{path} is a folder, not a file. Name a file in it.")
    if not os.access(path, os.R_OK):
        raise FileError(f"can not read {path}: permission denied. Change its permissions.")
    if status.st_size == 0:
        raise FileError(f"{path} is empty (0 bytes). Make it again.")
    return path


def _status(path: Path) -> os.stat_result | None:
    """What is at the path; None if nothing is."""
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:  # a name that is too long, a folder that may not be entered
        raise FileError(f"can not use {path}: {error.strerror or error}. Check the path.") from error


def text_lines(path: str | Path) -> list[tuple[int, str]]:
    """The lines of a text file that have something in them, with their numbers."""
    try:
        text = existing(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(f"{path} is not UTF-8 text: {error}. Save it as UTF-8.") from error
    return [(number, line.strip()) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
