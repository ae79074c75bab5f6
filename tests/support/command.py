"""The command line in this process, and small feature files for it."""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kedge.cli import main

NAMES = ["oak", "ash", "elm", 'say "fir", please', "Wörlitzer Ulme"]


@dataclass(frozen=True)
class Ran:
    code: Any
    out: str
    err: str


def run(*argv: object) -> Ran:
    """The command line, in this process."""
    out, err = io.StringIO(), io.StringIO()
    redirected = contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)
    with redirected[0], redirected[1], pytest.raises(SystemExit) as ended:
        main([str(word) for word in argv])
    return Ran(ended.value.code, out.getvalue(), err.getvalue())


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def small(n: int = 60, d: int = 16, dtype: type = np.float32, **changes: Any) -> dict[str, Any]:
    """Simulated arrays of a feature file: images lie off their prototypes, so that adapting has an effect."""
    draw = np.random.default_rng(0)
    text = unit(draw.normal(size=(5, d)))
    labels = draw.integers(0, 4, size=n)  # the last class has no image
    shifted = text + unit(draw.normal(size=(5, d)))
    images = unit(shifted[labels] + 0.15 * draw.normal(size=(n, d)))
    arrays = {
        "image_features": images.astype(dtype),
        "text_features": text.astype(dtype),
        "labels": labels,
        "class_names": np.array(NAMES),
        "logit_scale": np.array(10.0),
    }
    return {name: array for name, array in {**arrays, **changes}.items() if array is not None}


def npz(folder: Path, **changes: Any) -> Path:
    file = folder / "features.npz"
    np.savez(file, **small(**changes))
    return file
