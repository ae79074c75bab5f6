"""Arrays in JSON: as nested lists of numbers, or packed as the bytes of their entries in base64.

    [[0.6, 0.8], [1, 0]]                                              read as float32
    {"shape": [2, 2], "dtype": "float32", "data": "mpkZP83MTD8AAIA/AAAAAA=="}   little-endian, row by row

Both keep every bit: a float32 is written with enough digits to be read back as the same float32. An answer has the
form of its request.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from ...errors import InputError
from ...memory import check_memory

MOST_ROWS, MOST_COLUMNS = 100_000, 65_536
MOST_TEXT = 64 << 20  # characters of base64

Number = Annotated[float, Field(allow_inf_nan=False)]
Row = Annotated[list[Number], Field(min_length=1, max_length=MOST_COLUMNS)]
Nested = Annotated[list[Row], Field(min_length=1, max_length=MOST_ROWS, description="rows of numbers, as float32")]


class Packed(BaseModel):
    """An array as bytes: its entries row by row, little-endian, in base64."""

    model_config = ConfigDict(extra="forbid", strict=True)

    shape: Annotated[list[Annotated[int, Field(ge=1, le=MOST_ROWS)]], Field(min_length=2, max_length=2)]
    dtype: Literal["float16", "float32", "float64"]
    data: Annotated[str, Field(max_length=MOST_TEXT)]


class PackedAnswer(BaseModel):
    """A packed array of an answer: n entries or n×k."""

    shape: list[int]
    dtype: Literal["float32", "float64", "int64"]
    data: str


def _form(value: Any) -> str:
    return "packed" if isinstance(value, dict | Packed) else "rows"


Matrix = Annotated[Annotated[Nested, Tag("rows")] | Annotated[Packed, Tag("packed")], Discriminator(_form)]
Write = Callable[[NDArray[Any]], Any]


def read(array: Nested | Packed, name: str) -> NDArray[Any]:
    """The array, n×d; raises InputError if the rows differ in length, or the bytes do not fit the shape."""
    if isinstance(array, Packed):
        return _unpacked(array, name)
    if len({len(row) for row in array}) > 1:
        raise InputError(f"{name} must have rows of one length; the first has {len(array[0])} numbers.")
    check_memory(4 * len(array) * len(array[0]), name)
    with np.errstate(over="ignore"):  # what is too large for float32 is refused as infinite
        return np.array(array, dtype=np.float32)


def _unpacked(array: Packed, name: str) -> NDArray[Any]:
    dtype = np.dtype(array.dtype).newbyteorder("<")
    size = math.prod(array.shape) * dtype.itemsize
    if len(array.data) != 4 * -(-size // 3):
        shape = "×".join(map(str, array.shape))
        raise InputError(
            f"{name}: {shape} entries of {array.dtype} are {size:,} bytes, {4 * -(-size // 3):,} characters of base64; "
            f"got {len(array.data):,}. Send all rows, with = at the end where base64 needs it."
        )
    check_memory(size, name)
    try:
        data = base64.b64decode(array.data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InputError(
            f"{name}: the data is not base64 ({error}). Use the standard alphabet, on one line."
        ) from error
    if len(data) != size:
        raise InputError(f"{name}: the data has {len(data):,} bytes instead of {size:,}. Send all rows.")
    return np.frombuffer(data, dtype).reshape(array.shape)


def writer(like: Nested | Packed | None) -> Write:
    """A function that writes arrays in the form of `like`: packed, or as lists."""
    return _packed if isinstance(like, Packed) else lambda array: array.tolist()


def _packed(array: NDArray[Any]) -> dict[str, Any]:
    data = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    return {"shape": list(array.shape), "dtype": array.dtype.name, "data": base64.b64encode(data).decode()}
