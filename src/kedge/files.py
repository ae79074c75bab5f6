"""Safe reading and writing of files. Files are written by rename, so a file that exists is complete."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from .errors import FileError

_NO_FALLOCATE = (errno.EINVAL, errno.EOPNOTSUPP)  # file systems that cannot reserve space
_TEMPORARY = re.compile(r"\.kedge-[0-9a-f]{16}\.tmp|\.tmp[A-Za-z0-9]{6}")  # the latter are of safetensors
_ADDRESS = re.compile(r"(?P<kind>[a-z][a-z0-9+.-]+):/+(?P<rest>.*)", re.IGNORECASE)  # Path makes :/ of ://


def check_writable(path: str | Path) -> Path:
    """The path, if a file can be written there; call it before starting long work."""
    path = Path(path)
    status = _status(path)
    if status and stat.S_ISDIR(status.st_mode):
        raise FileError(f"cannot write {path}: it is a folder. Name a file in it.")
    if status and not stat.S_ISREG(status.st_mode):  # a rename would replace the device
        raise FileError(f"cannot write {path}: it is a device or a pipe, not a file. Name a file.")
    if not os.path.isdir(path.parent):
        raise FileError(f"cannot write {path}: there is no folder {path.parent}. Create it first.")
    if not os.access(path.parent, os.W_OK) or (status and not os.access(path, os.W_OK)):
        raise FileError(f"cannot write {path}: permission denied. Choose another place.")
    return path


@contextlib.contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Turn the errors of the system (disk full, no permission, file too large, …) into a FileError about this path."""
    try:
        yield
    except OSError as error:
        if isinstance(error, FileError):
            raise
        raise FileError(
            f"cannot write {path}: {error.strerror or error}. Make room or choose another place, and run it again."
        ) from error


@contextlib.contextmanager
def written_by_rename(path: str | Path) -> Iterator[Path]:
    """A temporary path beside `path`: renamed to `path` when the block succeeds, deleted when it fails."""
    path = check_writable(path)
    with writing(path):
        temporary = path.parent / f".kedge-{secrets.token_hex(8)}.tmp"
        temporary.touch(exist_ok=False)  # gets the usual permissions; to ask for the umask would be to set it
        usual = stat.S_IMODE(temporary.stat().st_mode)
        try:
            yield temporary
            temporary.chmod(usual)  # safetensors replaces the file by one that only its owner can read
            with temporary.open("rb") as written:
                os.fsync(written.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def is_temporary(name: str) -> bool:
    """Is this a name of files that are being written? They stay if the process is killed."""
    return _TEMPORARY.fullmatch(name) is not None


def remove_temporary(folder: Path) -> None:
    """Remove what killed processes left in a folder to which nobody writes now."""
    for path in folder.iterdir():
        if is_temporary(path.name):
            path.unlink(missing_ok=True)


def reserve(file: IO[bytes], size: int) -> None:
    """Give an open file this size, its space reserved on the disk, where the system can; else it has holes."""
    file.truncate(size)
    if size and hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            if error.errno not in _NO_FALLOCATE:
                raise


def lock_file(path: Path) -> IO[str] | None:
    """Open a file and lock it; None if another process has it locked. It stays locked until it is closed.

    The system releases the lock when a process ends, however it ends. Links are not followed. Windows, and file systems
    without locks, let everybody in.
    """
    lock = open(path, "a", opener=_not_through_links)  # noqa: SIM115  # the caller closes it
    with contextlib.suppress(ImportError):  # not on Windows
        import fcntl

        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            return None
        except OSError:  # a file system without locks
            return lock
    return lock


def _not_through_links(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def existing(path: str | Path) -> Path:
    """The path, if it is a readable file that is not empty."""
    path = Path(path)
    status = _status(path)
    if status is None:
        raise FileError(f"no file {path}. Check the path (the current folder is {Path.cwd()}).")
    if stat.S_ISDIR(status.st_mode):
        raise FileError(f"{path} is a folder, not a file. Name a file in it.")
    if not stat.S_ISREG(status.st_mode):
        raise FileError(f"{path} is not a regular file, but a pipe or a device. Copy its content to a file.")
    if not os.access(path, os.R_OK):
        raise FileError(f"cannot read {path}: permission denied. Change its permissions.")
    if status.st_size == 0:
        raise FileError(f"{path} is empty (0 bytes). Make it again.")
    return path


def check_local(path: str | Path) -> None:
    """Raise FileError if the path is an address, like s3://bucket/images."""
    found = _ADDRESS.match(str(path))
    if found and not os.path.exists(path):
        raise FileError(
            f"{found['kind']}://{found['rest']} is an address, and kedge uses local files only. "
            "Name a file or folder of this machine."
        )


def check_usable(path: Path) -> None:
    """Raise FileError if the system cannot take this path at all: too long, an address, with a NUL character."""
    _status(path)


def _status(path: Path) -> os.stat_result | None:
    """The status of the path; None if nothing is there."""
    check_local(path)
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:  # a name that is too long, a folder without access, a NUL character
        reason = getattr(error, "strerror", None) or error
        raise FileError(f"cannot use {path}: {reason}. Check the path.") from error


def stamp(path: Path) -> tuple[int, int]:
    """The size of a file in bytes, and when it was changed; zeros if it is gone."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_size, status.st_mtime_ns


def text_lines(path: str | Path) -> list[tuple[int, str]]:
    """The non-empty lines of a text file with their line numbers (from 1)."""
    try:
        text = existing(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(f"{path} is not UTF-8 text: {error}. Save it as UTF-8.") from error
    return [(number, line.strip()) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
