"""The machine: what it is, and how fast it multiplies matrices."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from measuring import Result, alone, best_of, say

from kedge import __version__

SIZES = (1024, 2048, 4096)  # of the square matrices, float32
QUICK = (256,)
THREADS = (1, 2)


def describe() -> dict[str, Any]:
    """The processor, its memory and the versions that matter."""
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "kedge": __version__,
        **{name: _version(name) for name in ("torch", "numpy", "numba")},
    }


def sentence(machine: dict[str, Any]) -> str:
    """The description in one line."""
    packages = ("python", "kedge", "torch", "numpy", "numba")
    versions = ", ".join(f"{name} {machine[name]}" for name in packages if machine[name])
    return f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']:g} GB, {machine['system']}; {versions}"


def peak(threads: int, sizes: tuple[int, ...] = SIZES) -> float:
    """GFLOP/s of the fastest float32 product of two square matrices; leaves torch with this many threads."""
    torch.set_num_threads(threads)
    rates = []
    for size in sizes:
        a, b = torch.rand(size, size), torch.rand(size, size)
        rates.append(2 * size**3 / best_of(5, torch.mm, a, b) / 1e9)
    return max(rates)


def measure(quick: bool) -> Result:
    """The peak by number of threads, each in a process of its own."""
    found = {}
    for threads in THREADS:
        say(f"matrix products, {threads} thread(s)")
        found[str(threads)] = alone(peak, threads, QUICK if quick else SIZES)
    return {"gflops": found, "sizes": QUICK if quick else SIZES}


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
