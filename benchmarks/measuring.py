"""What the measurements share: clocks, the slope of a growth, simulated feature files, processes of their own."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from kedge.features.feature_set import FeatureSet
from kedge.features.simulate import simulate

ROOT = Path(__file__).resolve().parents[1]
FILES = ROOT / "build" / "bench"  # simulated features, made once and kept
DIMENSION = 512

Result = dict[str, Any]  # of one part, as JSON holds it


def say(text: str) -> None:
    """Progress, for people."""
    print(text, file=sys.stderr, flush=True)


def seconds(work: Callable[..., object], *arguments: Any) -> float:
    """Of one run of work(*arguments)."""
    start = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - start


def peak_memory_mb(process: int | str = "self") -> float:
    """Most memory a process has held. Linux's own figure: getrusage's also counts the process that started it."""
    with open(f"/proc/{process}/status") as file:
        return next(int(line.split()[1]) / 1e3 for line in file if line.startswith("VmHWM"))


def best_of(runs: int, work: Callable[..., object], *arguments: Any) -> float:
    """Seconds of the fastest run of work(*arguments), after one to warm up."""
    work(*arguments)
    return min(seconds(work, *arguments) for _ in range(runs))


def slope(sizes: Sequence[float], times: Sequence[float]) -> float:
    """The power p of time ∝ size^p: least squares over all points, in logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(times), 1)[0])


def alone(work: Callable[..., Any], *arguments: Any) -> Any:
    """work(*arguments) in a new process: its memory is its own, and its threads are as it sets them."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


def simulated(n: int, k: int, path: Path | None = None) -> Path:
    """A file of n simulated images of k classes, d = 512; made if it is not there."""
    path = path or FILES / f"simulated-{n}-{k}.safetensors"
    if not path.exists():
        say(f"simulating {n:,} images of {k:,} classes → {path}")
        path.parent.mkdir(parents=True, exist_ok=True)
        alone(_make, n, k, path)
    return path


def _make(n: int, k: int, path: Path) -> None:
    simulate(n, k, DIMENSION, seed=0).save(path)


def load(path: Path, n: int, k: int) -> FeatureSet:
    """The file's features, if they are simulated and of this size: a wrong file would be a wrong figure."""
    features = FeatureSet.load(path)
    found = (len(features), features.head.k, features.head.d, features.provenance.get("simulated"))
    if found != (n, k, DIMENSION, True):
        raise ValueError(f"{path} has (n, k, d, simulated) = {found}; {(n, k, DIMENSION, True)} is needed. Delete it.")
    return features
