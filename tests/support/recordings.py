"""Recorded outputs of the authors' programs on real features (../shared/golden)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from cases import SHARED, WITHOUT_SHARED

DUPLICATES = {("dtd_test_vitb32", "case_d"): [363, 380, 387]}


def unit32(a: np.ndarray) -> np.ndarray:
    """As the recordings were made."""
    a = a.astype(np.float32)
    return a / np.linalg.norm(a, axis=1, keepdims=True)


@lru_cache(maxsize=1)  # the tests come file by file
def features(name: str) -> tuple[np.ndarray, np.ndarray]:
    with np.load(SHARED / "features" / f"{name}.npz", allow_pickle=False) as file:
        return unit32(file["image_features"]), unit32(file["text_features"])


@lru_cache(maxsize=1)
def recording(name: str) -> Any:
    return np.load(SHARED / "golden" / f"{name}.npz", allow_pickle=False)


def inputs(name: str, case: str, dtype: type = np.float32) -> tuple[np.ndarray, np.ndarray]:
    x, t = features(name)
    return x[recording(name)[f"{case}/indices"]].astype(dtype), t.astype(dtype)


def entries(pattern: str) -> Iterator[Any]:
    """Every (file, case, entry) found whose keys match; one skipped test if there are no files."""
    for file in sorted((SHARED / "golden").glob("*.npz")):
        for key in recording(file.stem).files:
            if re.fullmatch(pattern, key):
                yield pytest.param(file.stem, *key.split("/")[:2], id=f"{file.stem}-{'-'.join(key.split('/')[:2])}")
    if not SHARED.is_dir():
        yield pytest.param("", "", "", marks=pytest.mark.skip(reason=WITHOUT_SHARED))


def distances(name: str, case: str, entry: str, z: np.ndarray) -> np.ndarray:
    """Per image, the largest difference from what was recorded: all of z, or parts of it in large cases."""
    known = {
        key.split("/")[-1]: recording(name)[key] for key in recording(name).files if key.startswith(f"{case}/{entry}/")
    }
    if "z" in known:
        return np.abs(z - known["z"]).max(axis=1)
    best = np.take_along_axis(z, known["top5_idx"].astype(int), axis=1)
    off = np.abs(best - known["top5_val"]).max(axis=1)
    off[:128] = np.maximum(off[:128], np.abs(z[:128] - known["z_first128"]).max(axis=1))
    return off


def column_distance(name: str, case: str, entry: str, z: np.ndarray) -> float:
    key = f"{case}/{entry}/z_colsum"
    return float(np.abs(z.sum(axis=0, dtype=float) - recording(name)[key]).max()) if key in recording(name) else 0.0


def comparable_rows(name: str, case: str, n: int) -> np.ndarray:
    """All images, except the known duplicates and those whose neighbours they are."""
    top4 = recording(name)[f"{case}/knn_top4_idx"].astype(int)
    twins = np.flatnonzero(top4[:, 0] != np.arange(n))
    assert twins.tolist() == DUPLICATES.get((name, case), [])
    touched = np.isin(top4, twins).any(axis=1)
    touched[np.unique(top4[twins])] = True
    assert touched.sum() < 0.01 * n
    return ~touched
