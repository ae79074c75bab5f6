"""Tensor files: safetensors with a content hash, written by rename, checked on reading. No pickle.

The metadata of a kedge file has one key, `kedge`: a JSON object with `kind` and `version` (the file format), `sha256`
(over all tensors and the rest of the JSON) and further fields of its kind.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from .errors import FileError
from .files import existing, written_by_rename
from .schema import checked, parsed
from .words import first_few

Meta = dict[str, Any]
H = TypeVar("H")


def content_hash(tensors: Mapping[str, Tensor], meta: Meta) -> str:
    """sha256 over the tensors (name, dtype, shape, bytes) and the metadata. Equal content has equal hashes."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    digest.update(json.dumps(meta, sort_keys=True).encode())
    return digest.hexdigest()


def check_path(path: str | Path) -> Path:
    """The path, if safetensors can open it; else raises FileError."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise FileError(
            f"cannot use {path}: safetensors opens only paths that are UTF-8. Rename it, or its folder."
        ) from None
    return Path(path)


def save_tensors(path: str | Path, kind: str, version: int, tensors: Mapping[str, Tensor], meta: Meta) -> str:
    """Write a kedge file and return its content hash."""
    plain: dict[str, Tensor] = {}
    places = set()
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        place = tensor.untyped_storage().data_ptr()
        plain[name] = tensor.clone() if place in places else tensor  # safetensors refuses tensors that share memory
        places.add(place)
    head = {"kind": kind, "version": version, **meta}
    sha256 = content_hash(plain, head)
    with written_by_rename(check_path(path)) as temporary:
        try:
            save_file(plain, temporary, metadata={"kedge": json.dumps({**head, "sha256": sha256})})
        except SafetensorError as error:  # e.g. the disk is full
            raise OSError(str(error)) from error
    return sha256


def load_tensors(
    path: str | Path, kind: str, version: int, header: type[H], *, verified: bool = False
) -> tuple[dict[str, Tensor], H]:
    """Read a kedge file: its tensors (memory-mapped) and its header, checked against this dataclass (`kedge.schema`).

    verified: this content was compared with its hash before.
    Raises FileError if the file is of another kind or version, damaged, or has other fields.
    """
    path = existing(check_path(path))
    try:
        with safe_open(path, framework="pt") as file:
            meta = parsed((file.metadata() or {}).get("kedge", "null"))
            names = file.keys()
            tensors = {name: file.get_tensor(name) for name in names}
    except Exception as error:  # safetensors and torch raise errors of many kinds
        reason = " ".join(str(error).split())
        raise FileError(
            f"{path} is not a readable safetensors file (truncated, damaged or of another kind): {reason}. "
            "Make it again."
        ) from error
    if not isinstance(meta, dict) or meta.get("kind") != kind:
        found = f"a kedge {meta['kind']} file" if isinstance(meta, dict) and "kind" in meta else "no kedge metadata"
        raise FileError(
            f"{path} is not a kedge {kind} file: found {found} (tensors: {first_few(names) or 'none'}). "
            "Pass another file, or save its content with kedge."
        )
    if meta.get("version") != version:
        raise FileError(
            f"{path} has {kind} format {meta.get('version')}; this kedge reads format {version}. "
            "Make the file again, or install the kedge that wrote it."
        )
    stored = meta.pop("sha256", None)
    if not verified and content_hash(tensors, meta) != stored:
        raise FileError(f"{path} is damaged: its content does not match its own hash. Copy or make it again.")
    known = {"kind", "version", *(f.name for f in fields(header))}  # type: ignore[arg-type]  # a dataclass
    if unknown := sorted(meta.keys() - known):
        raise FileError(f"{path} is not a kedge {kind} file: unknown field {unknown[0]!r}. Make it again.")
    return tensors, checked({**meta, "sha256": stored}, header, path, f"{kind} file")


def check_names(path: Path, tensors: Iterable[str], needed: Sequence[str], optional: Sequence[str] = ()) -> None:
    """Raise FileError unless a file has the tensors that are needed, and none but those and the optional ones."""
    for name in needed:
        if name not in tensors:
            raise FileError(
                f"{path} has no array {name!r}; found {first_few(sorted(tensors)) or 'none'}. Make it again."
            )
    if unknown := sorted(set(tensors) - {*needed, *optional}):
        raise FileError(f"{path} has an array {unknown[0]!r} that a file of this kind does not have. Make it again.")
