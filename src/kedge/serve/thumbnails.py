"""Pictures for the page: small ones, made once and kept on disk, and large ones, made when they are looked at.

A kept file is the CRC of the picture and the picture. It is written by rename but not flushed: a file that a power cut
damaged is made again. Its name is a hash of the image's path, time and size, so an image that changed is drawn anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import tempfile
import threading
import zlib
from pathlib import Path

from PIL import Image

from ..errors import FileError
from ..images.pixels import open_image

SMALL, LARGE = 256, 1600  # pixels of the longer edge, at most
QUALITY, EFFORT = 80, 2  # of WebP: from 0 to 100, and from 0 to 6
MOST_BYTES = 1 << 30  # of all kept pictures
LEFT = 0.9  # share of these that stays when the oldest are deleted
AT_ONCE = 4  # images that are decoded at one time: each may take a gigabyte
CRC = 4  # bytes
OWN = re.compile(r"[0-9a-f]{40}|\.kedge-.*\.tmp")  # names of files that may be deleted


class Thumbnails:
    """The pictures in a folder. Any thread may ask."""

    def __init__(self, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        self.folder = folder
        self.most_bytes = most_bytes
        self._turns = threading.BoundedSemaphore(AT_ONCE)
        self._lock = threading.Lock()
        self._bytes: int | None = None  # kept; None: not counted yet

    def small(self, file: Path) -> bytes:
        """The image as WebP of at most 256 pixels; raises FileError if it cannot be read."""
        kept = self.folder / _name(file)
        with contextlib.suppress(OSError):
            stored = kept.read_bytes()
            if len(stored) > CRC and _crc(stored[CRC:]) == stored[:CRC]:
                return stored[CRC:]
        picture = self._picture(file, SMALL)
        with contextlib.suppress(OSError):  # a full disk: it is made again next time
            self._keep(kept, _crc(picture) + picture)
        return picture

    def large(self, file: Path) -> bytes:
        """The image as WebP of at most 1600 pixels; raises FileError if it cannot be read."""
        return self._picture(file, LARGE)

    def _picture(self, file: Path, longest: int) -> bytes:
        with self._turns:
            image = open_image(file, enough=2 * longest)  # reduced from there, it is as sharp as from the full size
            image.thumbnail((longest, longest), Image.Resampling.LANCZOS, reducing_gap=3)
            to = io.BytesIO()
            image.save(to, "WEBP", quality=QUALITY, method=EFFORT)
        return to.getvalue()

    def _keep(self, path: Path, content: bytes) -> None:
        handle, temporary = tempfile.mkstemp(prefix=".kedge-", suffix=".tmp", dir=self.folder)
        try:
            with open(handle, "wb") as to:
                to.write(content)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
        with self._lock:
            self._bytes = len(content) + self._bytes if self._bytes is not None else self._counted()
            if self._bytes > self.most_bytes:
                self._delete_oldest()
                self._bytes = self._counted()

    def _counted(self) -> int:
        return sum(size for _, size, _ in self._files())

    def _delete_oldest(self) -> None:
        left = self._counted()
        for _, size, path in sorted(self._files()):
            if left <= LEFT * self.most_bytes:
                return
            with contextlib.suppress(OSError):
                os.unlink(path)
                left -= size

    def _files(self) -> list[tuple[int, int, str]]:
        """Time, size and path of every kept file. Others are left alone: the folder may be a link to anywhere."""
        found = []
        with os.scandir(self.folder) as entries:
            for entry in filter(lambda entry: OWN.fullmatch(entry.name), entries):
                with contextlib.suppress(OSError):  # deleted meanwhile
                    status = entry.stat(follow_symlinks=False)
                    found.append((status.st_mtime_ns, status.st_size, entry.path))
        return found


def _name(file: Path) -> str:
    """The name of the kept file: without a suffix, so that nobody takes it for one of the images."""
    try:
        status = file.stat()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FileError(f"cannot read {file}: {reason}. Put it back, or take it out of the set.") from error
    what = f"{SMALL} {QUALITY} {status.st_mtime_ns} {status.st_size} ".encode() + os.fsencode(file.absolute())
    return hashlib.sha256(what).hexdigest()[:40]


def _crc(content: bytes) -> bytes:
    return zlib.crc32(content).to_bytes(CRC, "little")
