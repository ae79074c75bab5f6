"""Which form of an algorithm runs: torch's, or the one with compiled kernels."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import torch
from torch import Tensor


def compiled_solver(name: str, x: Tensor) -> ModuleType | None:
    """The module of that name, if x is float32 on the CPU and numba is installed (`pip install "kedge[fast]"`)."""
    if x.dtype != torch.float32 or x.device.type != "cpu" or not _has_numba():
        return None
    return import_module(name, __package__)


@lru_cache
def _has_numba() -> bool:
    return find_spec("numba") is not None
