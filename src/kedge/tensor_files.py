"""Tensor files: safetensors with a content hash, written by rename, checked on reading. No pickle.

The metadata of a kedge file has one key, `kedge`: a JSON object with `kind` and `version` (the file format), `sha256`
(over all tensors and the rest of the JSON) and further fields of its kind.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from .errors import FileError
from .files import existing, written_by_rename

Meta = dict[str, Any]


def content_hash(tensors: Mapping[str, Tensor], meta: Meta) -> str:
    """sha256 over the tensors (name, dtype, shape, bytes) and the metadata. Equal content has equal hashes."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    digest.update(json.dumps(meta, sort_keys=True).encode())
    return digest.hexdigest()


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
    with written_by_rename(path) as temporary:
        save_file(plain, temporary, metadata={"kedge": json.dumps({**head, "sha256": sha256})})
    return sha256


def load_tensors(
    path: str | Path, kind: str, version: int, fields: Iterable[str] = ()
) -> tuple[dict[str, Tensor], Meta]:
    """Read a kedge file with memory-mapped tensors. Raises FileError for a wrong kind, damage, or missing `fields`."""
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
            "Pass another file, or save its content with kedge."
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
