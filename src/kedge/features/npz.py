"""Reading .npz files of arrays: those with known names, no pickled objects, and not more than memory holds."""

from __future__ import annotations

import difflib
import math
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import FileError, KedgeError
from ..memory import check_memory

NPY_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
NPZ_KEYS = ("image_features", "text_features", "labels", "class_names", "views", "paths", "logit_scale", "meta")


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays in NPZ_KEYS; others are not read."""
    if not zipfile.is_zipfile(path):
        raise FileError(
            f"{path} is not an npz file (truncated, damaged or of another kind): it is not a zip of arrays. "
            "Make it again with np.savez(path, image_features=…, text_features=…)."
        )
    try:
        with zipfile.ZipFile(path) as file:
            found = [name.removesuffix(".npy") for name in file.namelist() if name.endswith(".npy")]
            _require(path, found, ("image_features", "text_features"))
            keys = [key for key in NPZ_KEYS if key in found]
            check_memory(sum(_npy_bytes(path, file, key) for key in keys), f"{path}, unpacked,", FileError)
            return {key: _npy(file, key) for key in keys}
    except KedgeError:
        raise
    except Exception as error:  # zipfile, zlib and numpy raise errors of many kinds on damaged data
        reason = " ".join(str(error).split())
        raise FileError(
            f"{path} is not a readable npz file (truncated, damaged or of another kind): {reason}. Make it again."
        ) from error


def _npy_bytes(path: Path, file: zipfile.ZipFile, key: str) -> int:
    """The size of an array in memory, from its header; nothing else is unpacked."""
    with file.open(f"{key}.npy") as array:
        read_header = NPY_HEADERS[np.lib.format.read_magic(array)]
        shape, _, dtype = read_header(array)
        if dtype.hasobject:
            raise FileError(
                f"{path} has pickled objects, which can run code when read; kedge does not load them. "
                "Save plain arrays (strings as dtype '<U…', numbers as float or int)."
            )
        size = math.prod(shape) * dtype.itemsize
        if size != file.getinfo(f"{key}.npy").file_size - array.tell():
            raise ValueError(f"{key} claims {size} bytes and has others")
        return size


def _npy(file: zipfile.ZipFile, key: str) -> NDArray[Any]:
    with file.open(f"{key}.npy") as array:
        return np.asarray(np.lib.format.read_array(array, allow_pickle=False))


def _require(path: Path, found: Iterable[str], needed: Sequence[str]) -> None:
    for key in needed:
        if key not in found:
            near = difflib.get_close_matches(key, set(found) - set(NPZ_KEYS), n=1)
            raise FileError(
                f"{path} has no array {key!r}; found {', '.join(sorted(found)) or 'nothing'}. "
                f"A feature file needs {' and '.join(needed)}" + (f": rename {near[0]!r}?" if near else ".")
            )
