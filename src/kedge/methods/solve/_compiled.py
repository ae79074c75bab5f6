"""Which form of an algorithm runs: torch's, or the one with compiled kernels."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from types import ModuleType

import torch
from torch import Tensor


def compiled_solver(name: str, x: Tensor) -> ModuleType | None:
    """The module of that name, if x is float32 on the CPU and numba is installed (`pip install "kedge[fast]"`)."""
    return _module(name) if x.dtype == torch.float32 and x.device.type == "cpu" and _has_numba() else None


@lru_cache
def _module(name: str) -> ModuleType:
    return import_module(name, __package__)  # takes a while even if it is there, and a small batch little longer


@lru_cache
def _has_numba() -> bool:
    try:
        import numba  # noqa: F401  # may be there and refuse, beside too new a numpy
    except ImportError:
        return False
    return True
