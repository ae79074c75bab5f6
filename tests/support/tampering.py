"""Changes at random, as by hand or by damage: of JSON, of arrays, of bytes, and of tensor files.

tensors, meta = opened(path)
path.write_bytes(tensor_file(tensors, meta, random))  # one or two changes and a correct hash, or damage
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from kedge.tensor_files import content_hash

Random = np.random.Generator

DEEP = "@deep@"  # stands for a list of lists of lists …
DEPTH = 100_000
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 7, 2**31, 2**63, 2**64, -(2**70), 10**400),
    *(0.5, -0.5, 1e-320, 1e308, float("nan"), float("inf"), float("-inf")),
    *("", "x", "a\0b", "\udcff", "\x1b[31m", "‮", "inf", "../../x", "/", "y" * 10_000),
    *([], {}, [1], [[]], [None], ["a", "b"], [["a", 1]], {"a": 1}, {"name": 3}, {"name": "stata"}, DEEP),
]
DTYPES = [
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.int32),
    *(torch.uint8, torch.bool),
]


# Headers and other JSON


def changed(value: Any, random: Random) -> Any:
    """JSON with one change at a random place."""
    value = copy.deepcopy(value)
    places = list(_places(value))
    if not places or random.random() < 0.02:
        return pick(VALUES, random)
    holder, key = pick(places, random)
    change = random.random()
    if change < 0.15:
        del holder[key]
    elif change < 0.25:
        new = pick(VALUES, random)
        if isinstance(holder, dict):
            holder[pick(["x", "name", "method", "skipped", "root", ""], random)] = new
        else:
            holder.insert(key, new)
    elif change < 0.4 and isinstance(holder[key], int | float):
        holder[key] = pick([-holder[key], holder[key] + 1, holder[key] * 10**6, str(holder[key])], random)
    elif change < 0.5 and isinstance(holder[key], list):
        holder[key] = pick([holder[key] * 2, holder[key][1:], [holder[key]]], random)
    else:
        holder[key] = pick(VALUES, random)
    return value


def _places(value: Any) -> Any:
    """Every entry of JSON, as its dict or list and its key; only the first entries of long lists."""
    keys = list(value) if isinstance(value, dict) else range(min(len(value), 3)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])


def as_json(value: Any) -> str:
    nested = "[" * DEPTH + "]" * DEPTH
    return json.dumps(value).replace(json.dumps(DEEP), nested)


# Arrays


def changed_tensors(tensors: dict[str, Tensor], random: Random) -> dict[str, Tensor]:
    """Tensors with one change: a type, a shape, a value, one missing, one more."""
    name = pick(sorted(tensors), random)
    found, tensors = tensors[name], dict(tensors)
    change = random.random()
    if change < 0.1:
        del tensors[name]
    elif change < 0.2:
        tensors[pick(["x", "views", "labels", "paths", "state.x", "state.mean", ""], random)] = found.clone()
    elif change < 0.4:
        tensors[name] = found.to(pick(DTYPES, random))
    elif change < 0.65:
        tensors[name] = pick(SHAPES, random)(found).clone()
    elif found.numel():
        new = found.clone().flatten()
        if found.is_floating_point():
            values = [float("nan"), float("inf"), -float("inf"), 0.0, -1.0, 1e30, 1e-30, 3.0]
        else:
            values = [-1, 0, 1, 255, 10**6, 2**62, -(2**62)]
        limits = None if found.is_floating_point() or found.dtype == torch.bool else torch.iinfo(found.dtype)
        value = pick(values, random)
        new[random.integers(len(new), size=int(random.integers(1, 4)))] = (
            value if limits is None else max(limits.min, min(limits.max, value))
        )
        tensors[name] = new.reshape(found.shape)
    return tensors


SHAPES: list[Callable[[Tensor], Tensor]] = [
    lambda t: t.flatten(),
    lambda t: t[None],
    lambda t: t.mT if t.dim() > 1 else t[..., None],
    lambda t: t[:-1] if t.dim() else t[None],
    lambda t: t[..., :-1] if t.dim() else t[None],
    lambda t: torch.cat([t, t]) if t.dim() else t[None],
    lambda t: t[:0] if t.dim() else t[None],
    lambda t: t.flatten()[:1].squeeze(),
]


# Bytes


def damaged(content: bytes, random: Random) -> bytes:
    """Bytes with some of them changed, cut off or added."""
    at, length = int(random.integers(len(content))), int(random.integers(1, 64))
    change = pick(["flip", "cut", "zero", "insert", "remove", "digit"], random)
    if change == "flip":
        return content[:at] + bytes([content[at] ^ 1 << int(random.integers(8))]) + content[at + 1 :]
    if change == "cut":
        return content[:at]
    if change == "zero":
        return content[:at] + bytes(length) + content[at + length :]
    if change == "insert":
        return content[:at] + random.bytes(length) + content[at:]
    if change == "remove":
        return content[:at] + content[at + length :]
    digits = [i for i, byte in enumerate(content[:2000]) if chr(byte).isdigit()]  # of shapes and sizes, mostly
    at = pick(digits, random) if digits else at
    return content[:at] + str(int(random.integers(10))).encode() + content[at + 1 :]


# Tensor files


def tensor_file(tensors: dict[str, Tensor], meta: Any, random: Random) -> bytes:
    """A kedge tensor file after one or two changes."""
    if random.random() < 0.15:
        return damaged(sealed(tensors, meta), random)
    for _ in range(int(random.integers(1, 3))):
        if random.random() < 0.55:
            meta = changed(meta, random)
        elif tensors:
            tensors = changed_tensors(tensors, random)
    return sealed(tensors, meta)


def sealed(tensors: dict[str, Tensor], meta: Any) -> bytes:
    """The bytes of a tensor file, with a correct content hash."""
    plain = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    if isinstance(meta, dict):
        meta = {**meta, "sha256": content_hash(plain, meta)}
    return save(plain, metadata={"kedge": as_json(meta)})


def opened(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the header of a tensor file."""
    with safe_open(path, framework="pt") as file:
        names = file.keys()
        meta = json.loads(file.metadata()["kedge"])
        return {name: file.get_tensor(name).clone() for name in names}, without(meta, "sha256")


def without(entries: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in entries.items() if name not in names}


def pick(options: Any, random: Random) -> Any:
    return options[int(random.integers(len(options)))]
