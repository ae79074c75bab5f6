"""Files on disk: written by rename, so that a file that exists is whole; read without pickle, and checked.

A kedge file is a safetensors file whose metadata has one key, `kedge`, a JSON object with `kind` and `version` (what
the file is), `sha256` (over every tensor and the rest of the JSON) and the content's own fields.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from .errors import FileError

Meta = dict[str, Any]


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


def content_hash(tensors: Mapping[str, Tensor], meta: Meta) -> str:
    """sha256 over the tensors (name, dtype, shape, bytes) and the metadata; the same content, the same hash."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    digest.update(json.dumps(meta, sort_keys=True).encode())
    return digest.hexdigest()


def save_tensors(path: str | Path, kind: str, version: int, tensors: Mapping[str, Tensor], meta: Meta) -> str:
    """Write a kedge file; returns its content hash."""
    plain: dict[str, Tensor] = {}
    places = set()
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        place = tensor.untyped_storage().data_ptr()
        plain[name] = tensor.clone() if place in places else tensor  # safetensors refuses tensors that share memory
        places.add(place)
    head = {"kind": kind, "version": version, **meta}
    sha256 = content_hash(plain, head)
    with written_by_rename(path) as temporary:
        save_file(plain, temporary, metadata={"kedge": json.dumps({**head, "sha256": sha256})})
    return sha256


def load_tensors(
    path: str | Path, kind: str, version: int, fields: Iterable[str] = ()
) -> tuple[dict[str, Tensor], Meta]:
    """Read a kedge file, its tensors memory-mapped; refuses one of another kind, changed, or without these `fields`."""
    path = existing(path)
    try:
        with safe_open(path, framework="pt") as file:
            meta = json.loads((file.metadata() or {}).get("kedge", "null"))
            names = file.keys()
            tensors = {name: file.get_tensor(name) for name in names}
    except (SafetensorError, json.JSONDecodeError, RuntimeError, OSError) as error:
        reason = " ".join(str(error).split())
        raise FileError(
            f"{path} is not a readable safetensors file (truncated, damaged or of another kind): {reason}. "
            "Make it again."
        ) from error
    if not isinstance(meta, dict) or meta.get("kind") != kind:
        found = f"a kedge {meta['kind']} file" if isinstance(meta, dict) and "kind" in meta else "no kedge metadata"
        raise FileError(
            f"{path} is not a kedge {kind} file: found {found} (tensors: {', '.join(names) or 'none'}). "
            "Pass another file, or save this one's content with kedge."
        )
    if meta.get("version") != version:
        raise FileError(
            f"{path} has {kind} format {meta.get('version')}; this kedge reads format {version}. "
            "Make the file again, or install the kedge that wrote it."
        )
    stored = meta.pop("sha256", None)
    if content_hash(tensors, meta) != stored:
        raise FileError(f"{path} is damaged: its content does not match its own hash. Copy or make it again.")
    missing = [name for name in fields if name not in meta]
    if missing:
        raise FileError(f"{path} lacks {', '.join(missing)} in its metadata. Make it again with kedge.")
    return tensors, {**meta, "sha256": stored}


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
