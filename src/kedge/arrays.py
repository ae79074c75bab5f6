"""The public door for arrays: what comes in is checked here, once, and goes out as the kind it came in.

Everything behind the door is a torch tensor of unit rows in float32 or float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .errors import InputError
from .words import count

Array = Any  # numpy.ndarray | torch.Tensor: what people hand in, and get back

BLOCK_ENTRIES = 1 << 22  # worked on together, so that a memory-mapped array never comes in whole


def row_blocks(shape: Sequence[int]) -> list[slice]:
    """The rows of an array of this shape, in blocks of at most BLOCK_ENTRIES entries, or of one row if that is more."""
    rows, *width = shape
    step = max(1, BLOCK_ENTRIES // max(1, math.prod(width)))
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


def as_tensor(array: Array, name: str, ndim: int) -> Tensor:
    """A tensor that shares the array's memory where it can; refuses other than `ndim`-dimensional floats.

    Never write to it: the memory may be the caller's, and a file opened for reading ends a program that writes to it.
    """
    if isinstance(array, str | PathLike):
        raise InputError(f"{name} must be an array; got a path, {str(array)!r}. Load the file: FeatureSet.load(path).")
    if not isinstance(array, Tensor):
        array = np.asarray(array)
        if array.dtype.kind not in "fiu" or array.dtype.itemsize > 8:
            raise InputError(f"{name} must be an array of floats; got dtype {array.dtype}. Convert it to float32.")
        if any(stride < 0 for stride in array.strides):
            array = array.copy()  # torch has no such tensors
        array = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("="), copy=False)
        tensor = torch.from_numpy(array if array.flags.writeable else np.asarray(_Shared(array)))
    else:
        tensor = array.detach()
    if not tensor.is_floating_point():
        dtype = str(tensor.dtype).removeprefix("torch.")
        raise InputError(f"{name} must be floating point; got {dtype}. Convert it to float32.")
    if tensor.dim() != ndim:
        shape = "×".join("nvd" if ndim == 3 else "nd")
        raise InputError(
            f"{name} must be {ndim}-dimensional ({shape}); got shape {tuple(tensor.shape)}. "
            "For one image pass a batch of one, x[None]."
        )
    if 0 in tensor.shape:
        raise InputError(f"{name} is empty: shape {tuple(tensor.shape)}. Pass at least one row and one column.")
    return tensor


class _Shared:
    """The memory of a read-only array, said to be writable: torch shares no other without a warning."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array  # lives as long as the tensor does
        self.__array_interface__ = {**array.__array_interface__, "data": (array.ctypes.data, False)}


HALF = (torch.float16, torch.bfloat16)


def norm_tolerance(dtype: torch.dtype) -> float:
    """How far from 1 the norm of a unit row may be after rounding to `dtype`."""
    return 1e-2 if dtype in HALF else 1e-3


def check_unit_rows(x: Tensor, name: str, *, normalize: bool = False) -> None:
    """Refuse NaN, Inf and zero rows, and (unless they will be normalised) rows that are not of unit norm."""
    tolerance = norm_tolerance(x.dtype)
    for rows in row_blocks(x.shape):
        norms = working(x[rows]).norm(dim=-1)
        if bool(((norms - 1).abs() <= tolerance).all()):
            continue
        _explain_bad_rows(x[rows], norms, rows.start, name, tolerance, normalize)


def _explain_bad_rows(x: Tensor, norms: Tensor, start: int, name: str, tolerance: float, normalize: bool) -> None:
    """Raise for the first thing that is wrong with these rows; return if nothing is."""

    def first(bad: Tensor) -> str:
        where = bad.nonzero()[0].tolist()
        return f"row {start + where[0]}" + (f", view {where[1]}" if len(where) > 1 else "")

    finite = x.isfinite().all(dim=-1)
    if not finite.all():
        bad = ~finite
        kind = "NaN" if x[bad][0].isnan().any() else "Inf"
        raise InputError(
            f"{name} has {kind} in {count(int(bad.sum()), 'row')}, first in {first(bad)}. "
            "Remove those rows or extract the features again."
        )
    zero = x.abs().amax(dim=-1) == 0
    if zero.any():
        raise InputError(
            f"{name} has {count(int(zero.sum()), 'all-zero row')}, first {first(zero)}; zero has no direction. "
            "Remove those rows or extract the features again."
        )
    off = ~((norms - 1).abs() <= tolerance)
    if off.any() and not normalize:
        norm = float(norms[off].flatten()[0])
        raise InputError(
            f"{name} needs unit-norm rows; {first(off)} has norm {norm:.3g} "
            f"({count(int(off.sum()), 'row')} off by more than {tolerance:g}). "
            "Pass normalize=True (on the command line --normalize) or re-extract."
        )


def working(x: Tensor, like: Tensor | None = None) -> Tensor:
    """`x` in the precision kedge computes in: float64 stays, everything narrower becomes float32."""
    if like is not None:
        return x.to(device=like.device, dtype=like.dtype)
    return x if x.dtype == torch.float64 else x.float()


def unit_rows(x: Tensor, *, normalize: bool = False, like: Tensor | None = None) -> Tensor:
    """Checked rows, ready to compute with. Half-precision rows get back the unit norm that rounding took.

    Rows that need nothing are shared; the others become one new array, filled block by block.
    """
    if not normalize and x.dtype not in HALF:
        rows = working(x)
    else:
        rows = working(x[:0]).new_empty(x.shape)
        for part in row_blocks(x.shape):
            block = working(x[part])
            if normalize:  # values so large or small that their squares are lost come in range first
                block = block / block.abs().amax(dim=-1, keepdim=True)
            rows[part] = unit(block)
    return rows if like is None else working(rows, like)


def unit(x: Tensor) -> Tensor:
    """Rows scaled to norm 1; zero rows left at zero."""
    norm: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / norm.clamp_min_(torch.finfo(x.dtype).tiny)


def is_unit(x: Tensor) -> bool:
    """Are all rows of unit norm to the last digits of their own precision?"""
    return float((x.norm(dim=-1) - 1).abs().max()) <= 8 * torch.finfo(x.dtype).eps


def wide(x: Tensor) -> torch.dtype:
    """The widest float of the tensor's device, for sums that must not lose digits (MPS has no float64)."""
    return torch.float32 if x.device.type == "mps" else torch.float64


def like_input(array: Array) -> Callable[[Tensor], Array]:
    """A function that gives results the kind and the device of `array`; a half-precision input gets float32."""
    if isinstance(array, Tensor):
        device = array.device
        return lambda result: result.to(device)
    return lambda result: result.cpu().numpy()


def check_count(found: int, n: int, name: str) -> None:
    """Refuse a list that has not one entry per image."""
    if found != n:
        raise InputError(f"{name} has {found} entries for {n} image features. Pass one per image.")
