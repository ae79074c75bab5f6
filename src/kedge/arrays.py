"""Input validation and conversion of arrays.

Callers pass numpy arrays or torch tensors of any float type, and get results of the same kind. In between, kedge works
with torch tensors of unit rows in float32 or float64.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .errors import InputError
from .words import count, shown

Array: TypeAlias = NDArray[Any] | Tensor
Integers: TypeAlias = Array | Sequence[int]
A = TypeVar("A", NDArray[Any], Tensor)  # results are of the same kind as the input

HALF = (torch.float16, torch.bfloat16)
FLOATS = (*HALF, torch.float32, torch.float64)
INT64 = int(np.iinfo(np.int64).max)
BLOCK_ENTRIES = 1 << 22  # entries per block of rows, so that a memory-mapped array is never read into memory whole


def row_blocks(shape: Sequence[int]) -> list[slice]:
    """Split the rows of an array of this shape into blocks of at most BLOCK_ENTRIES entries, but at least one row."""
    rows, *width = shape
    step = max(1, BLOCK_ENTRIES // max(1, math.prod(width)))
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


class Stacked:
    """Checked rows of several arrays as those of one, read in working precision; the arrays may be memory-mapped.

    Each array is opened when rows of it are read and let go of afterwards, so that a mapped one takes no memory.
    """

    def __init__(self, opening: Sequence[Callable[[], Tensor]], lengths: Sequence[int], like: Tensor) -> None:
        """opening: what opens each array; lengths: how many rows each has. like: its type is the working precision."""
        self.opening, self.like = opening, like
        self.starts = [0, *itertools.accumulate(lengths)]

    def __len__(self) -> int:
        return self.starts[-1]

    def blocks(self, width: int) -> list[slice]:
        """As `row_blocks`, for rows of this many entries; no block is of two arrays."""
        return [
            slice(start + rows.start, start + rows.stop)
            for start, stop in itertools.pairwise(self.starts)
            for rows in row_blocks((stop - start, width))
        ]

    def __getitem__(self, rows: slice | Tensor) -> Tensor:
        """The rows of one of `blocks`, or those with these numbers, in working precision."""
        if isinstance(rows, slice):
            part = bisect.bisect_right(self.starts, rows.start) - 1
            start = self.starts[part]
            return unit_rows(self.opening[part]()[rows.start - start : rows.stop - start], like=self.like)
        out = self.like.new_empty(len(rows), self.like.shape[-1])
        for part, (start, stop) in enumerate(itertools.pairwise(self.starts)):
            there = ((rows >= start) & (rows < stop)).nonzero().squeeze(1)
            if len(there):
                out[there] = unit_rows(self.opening[part]()[rows[there] - start], like=self.like)
        return out


def as_tensor(array: Array, name: str, ndim: int) -> Tensor:
    """Convert an array to a tensor, without a copy where possible; it must have `ndim` dimensions of floats.

    Never write to the tensor: the memory may belong to the caller, and writing to a read-only memory map crashes.
    """
    if isinstance(array, str | PathLike):
        raise InputError(
            f"{name} must be an array; got a path, {shown(str(array))}. Load the file: FeatureSet.load(path)."
        )
    found = _plain(array, name)
    tensor = found.resolve_neg() if isinstance(found, Tensor) else _from_numpy(found, name)
    if tensor.dtype not in FLOATS:
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


def as_integers(values: Integers, name: str, advice: str) -> Tensor:
    """Convert class numbers or positions (numpy, torch or list) to int64, n, on the CPU. `advice` ends the message."""
    found = _plain(values, name)
    if isinstance(found, Tensor):
        whole = not (found.is_floating_point() or found.is_complex() or found.dtype == torch.bool)
    else:
        found = found.astype(np.int64) if found.shape == (0,) else found  # an empty list has no type of its own
        whole = found.dtype.kind in "iu"
    if not whole or found.ndim != 1:
        what = f"{str(found.dtype).removeprefix('torch.')} of shape {tuple(found.shape)}"
        large = found.dtype == np.object_ and any(isinstance(v, int) and abs(v) > INT64 for v in np.ravel(found))
        raise InputError(f"{name} must be whole numbers; got {'one beyond 64 bits' if large else what}. {advice}")
    array = found.cpu().numpy() if isinstance(found, Tensor) else found
    if len(array) and int(array.max()) > INT64:
        raise InputError(f"{name} must be whole numbers; got one beyond 64 bits. {advice}")
    return torch.from_numpy(array.astype(np.int64))


def _plain(array: Any, name: str) -> Tensor | NDArray[Any]:
    """An array whose numbers are all in memory, as torch or numpy have it; raises InputError for any other."""
    if isinstance(array, Tensor):
        if what := _unusual(array):
            raise InputError(f"{name} must be an ordinary tensor; got {what}.")
        return array.detach()
    if isinstance(array, np.ma.MaskedArray) and np.ma.is_masked(array):
        masked = count(int(np.ma.getmaskarray(array).sum()), "masked value")
        raise InputError(f"{name} has {masked}, and kedge has no masks. Remove those rows, or fill them in.")
    what = type(array).__name__
    try:
        if isinstance(array, list | tuple) and any(isinstance(row, Tensor) for row in array):
            array = [row.detach().numpy() if isinstance(row, Tensor) else row for row in array]
        found = np.asarray(array)
        if found.dtype != object or isinstance(array, np.ndarray | list | tuple):
            return found
    except (ValueError, TypeError, RuntimeError) as error:
        what = "lists of different lengths" if "inhomogeneous" in str(error) else f"a {what} that numpy cannot convert"
    raise InputError(f"{name} must be an array; got {what}. Pass a numpy array or a torch tensor.")


def _unusual(tensor: Tensor) -> str:
    """What keeps a tensor from being used, and what to do; "" if nothing does."""
    if tensor.is_nested:
        return "a nested tensor. Pass rows of one length"
    if tensor.layout != torch.strided:
        return f"a {str(tensor.layout).removeprefix('torch.').strip('_')} tensor. Pass x.to_dense()"
    if tensor.is_quantized:
        return "a quantised tensor. Pass x.dequantize()"
    return "a tensor without data, on the device meta. Pass one with data" if tensor.is_meta else ""


def _from_numpy(array: NDArray[Any], name: str) -> Tensor:
    if array.dtype.kind not in "fiu" or array.dtype.itemsize > 8:  # torch has no wider floats
        raise InputError(f"{name} must be an array of floats; got dtype {array.dtype}. Convert it to float32.")
    if any(stride < 0 for stride in array.strides):
        array = array.copy()  # torch has no negative strides
    array = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("="), copy=False)
    return torch.from_numpy(array if array.flags.writeable else np.asarray(_Writable(array)))


class _Writable:
    """The memory of a read-only array, declared writable: torch warns about any other."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array  # keeps the memory alive as long as the tensor
        self.__array_interface__ = {**array.__array_interface__, "data": (array.ctypes.data, False)}


def norm_tolerance(dtype: torch.dtype) -> float:
    """How far from 1 the norm of a unit row may be after rounding to `dtype`."""
    return 1e-2 if dtype in HALF else 1e-3


def check_unit_rows(x: Tensor, name: str, *, normalize: bool = False) -> None:
    """Raise InputError for rows with NaN or Inf, for zero rows and, unless `normalize`, for rows without unit norm."""
    tolerance = norm_tolerance(x.dtype)
    for rows in row_blocks(x.shape):
        norms = working(x[rows]).norm(dim=-1)
        if bool(((norms - 1).abs() <= tolerance).all()):
            continue
        _check_block(x[rows], norms, rows.start, name, tolerance, normalize)


def _check_block(x: Tensor, norms: Tensor, start: int, name: str, tolerance: float, normalize: bool) -> None:
    """Raise InputError for the first problem in a block of rows that begins at row `start`."""

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
            f"{name} has {count(int(zero.sum()), 'all-zero row')}, first {first(zero)}, which has no direction. "
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
    """Convert `x` to the precision of computation: float64 stays, every narrower type becomes float32."""
    if like is not None:
        return x.to(device=like.device, dtype=like.dtype)
    return x if x.dtype == torch.float64 else x.float()


def unit_rows(x: Tensor, *, normalize: bool = False, like: Tensor | None = None) -> Tensor:
    """Convert checked rows to working precision; half-precision rows are normalised again, since rounding moved them.

    Rows that need no change are returned without a copy; otherwise one new array is filled block by block.
    """
    if not normalize and x.dtype not in HALF:
        rows = working(x)
    else:
        rows = working(x[:0]).new_empty(x.shape)
        for part in row_blocks(x.shape):
            block = working(x[part])
            if normalize:  # first scale by the largest entry: squares of very large or small values overflow
                block = block / block.abs().amax(dim=-1, keepdim=True)
            rows[part] = unit(block)
    return rows if like is None else working(rows, like)


def unit(x: Tensor) -> Tensor:
    """Scale rows to norm 1; zero rows stay zero."""
    norm: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / norm.clamp_min_(torch.finfo(x.dtype).tiny)


def is_unit(x: Tensor) -> bool:
    """Do all rows have unit norm, to within rounding?"""
    return float((x.norm(dim=-1) - 1).abs().max()) <= 8 * torch.finfo(x.dtype).eps


def wide(x: Tensor) -> torch.dtype:
    """The most precise float type of the tensor's device: float64, or float32 on MPS."""
    return torch.float32 if x.device.type == "mps" else torch.float64


def like_input(array: A) -> Callable[[Tensor], A]:
    """A function that converts results to the kind and device of `array`."""
    device = array.device if isinstance(array, Tensor) else None

    def convert(result: Tensor) -> Any:
        return result.cpu().numpy() if device is None else result.to(device)

    return convert


def check_count(found: int, n: int, name: str) -> None:
    """Raise InputError unless there is one entry per image."""
    if found != n:
        raise InputError(f"{name} has {found} entries for {n} image features. Pass one per image.")


def effective_classes(counts: Tensor) -> float:
    """exp of the entropy of normalised class counts (k): k if all classes are equally frequent, 1 if one has all."""
    return float(torch.special.entr(counts / counts.sum()).sum().exp())
