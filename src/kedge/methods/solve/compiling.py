"""The choice between the torch form and the compiled form of an algorithm, and notices about compiling.

Compiled forms need the extra `fast` (numba) and are for float32 on CPUs. numba is imported when first needed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from importlib import import_module
from types import ModuleType
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from ...progress import notice

Kernel = TypeVar("Kernel", bound=Callable[..., Any])
FLAGS: dict[str, Any] = {"fastmath": True, "nogil": True, "error_model": "numpy"}
LONG = 2.0  # seconds of a solve from which the extra `fast` is recommended
_said: set[str] = set()


def compiled_form(name: str, x: Tensor) -> ModuleType | None:
    """The module of that name in this folder, if it can be used for x."""
    return _module(name) if is_plain(x) and has_numba() else None


def is_plain(x: Tensor) -> bool:
    """Is it float32 on the CPU?"""
    return x.dtype == torch.float32 and x.device.type == "cpu"


@lru_cache
def has_numba() -> bool:
    """Is the extra `fast` installed?"""
    try:
        import numba  # noqa: F401  # may be there and refuse, beside too new a numpy
    except ImportError:
        return False
    return True


@lru_cache
def _module(name: str) -> ModuleType:
    return import_module(f".{name}", __package__)  # takes a while even if it is loaded


def warm_up() -> None:
    """Compile all kernels, or load them from the cache on disk, so that no later call waits. For services.

    Without the extra `fast` there is nothing to do.
    """
    if has_numba():
        for name in ("compiled", "compiled_neighbours", "compiled_lists"):
            _module(name).warm_up()


@contextmanager
def recommending(x: Tensor) -> Iterator[None]:
    """After a long solve without numba, recommend the extra `fast`, once per process."""
    start = time.perf_counter()
    yield
    if time.perf_counter() - start > LONG and is_plain(x) and not has_numba():
        _once('this takes less time with the compiled solver: pip install "kedge[fast]"')


def _once(text: str) -> None:
    if text not in _said:
        _said.add(text)
        notice(text)


# For modules with kernels


def part(function: Kernel) -> Kernel:
    """A part of a kernel, compiled with it. fastmath lets sums be vectors; maxima of floats never are."""
    from numba import njit

    alone: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}  # it is not called from Python
    return cast(Kernel, njit(**FLAGS, **alone)(function))


def kernel(function: Kernel) -> Kernel:
    """What Python calls. Its first call on this machine compiles it, says so, and keeps it on disk."""
    from numba import njit
    from numba.core import event

    class Announce(event.Listener):
        """Hears when something is compiled; nothing is if the cache on disk has it."""

        def on_start(self, event: Any) -> None:
            _once("compiling the solver, once on this machine (about 10 s)")

        def on_end(self, event: Any) -> None:
            pass

    try:
        compiled = njit(cache=True, **FLAGS)(function)
    except RuntimeError:  # nowhere to keep it, in a read-only installation: then once per process
        compiled = njit(**FLAGS)(function)

    def call(*arguments: Any) -> Any:
        with nullcontext() if compiled.overloads else event.install_listener("numba:compile", Announce()):
            try:
                return compiled(*arguments)
            except SystemError as error:  # what Python makes of a Ctrl-C that comes while the kernel returns
                cause: BaseException | None = error
                while isinstance(cause, SystemError):  # one may come of another
                    cause = cause.__cause__
                if isinstance(cause, KeyboardInterrupt):
                    raise cause from None
                raise

    return cast(Kernel, call)
