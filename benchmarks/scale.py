"""Large solves, each in a process of its own that reads its features from a file: time, memory, arithmetic, equality.

`neighbours`  the exact graph, as a share of the fastest matrix product measured in the same process
`large`       n=50,000, k=1,000: seconds, peak memory, and the same solve in small blocks, whose z must be the same
`million`     n=1,000,000, k=100 from a memory-mapped file; and, with a tenth of the images, how much accuracy the
              approximate graph costs. Slow, so only when asked for

Memory is the most the process ever held, with Python, torch, and what of the mapped file was in memory.

Operations are said twice: as the equations need them (2n²d for all pairs; `flop` for a solve), and as they were done,
counted by torch in its matrix products. A solver that uses symmetry, or leaves alone what is at rest, does fewer.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from machine import QUICK as QUICK_PRODUCTS
from machine import SIZES as PRODUCTS
from machine import peak
from measuring import DIMENSION, Result, alone, best_of, load, peak_memory_mb, say, seconds, simulated
from torch.utils.flop_counter import FlopCounterMode

import kedge
from kedge import arrays
from kedge.methods.solve import compiled_neighbours
from kedge.methods.solve.neighbours import nearest_neighbours

GRAPHS = ((50_000, 1000, 2), (20_000, 1000, 1))  # n, k of the file, threads
QUICK_GRAPHS = ((600, 20, 2), (400, 20, 1))
LARGE, QUICK_LARGE = (50_000, 1000), (3000, 20)  # more rows than a small block has
MILLION, QUICK_MILLION = (1_000_000, 100), (4000, 10)
COMPARED, QUICK_COMPARED = (100_000, 100), (1000, 10)
NEIGHBOURS = 3
COMPARED_ROWS = 4096  # of two z read at once


def neighbours(quick: bool) -> Result:
    """Seconds, GFLOP/s and share of the peak of the exact graph, per size."""
    rows = []
    for n, k, threads in QUICK_GRAPHS if quick else GRAPHS:
        say(f"neighbours: n={n:,}, {threads} thread(s)")
        rows.append(alone(_graph, simulated(n, k), n, k, threads, QUICK_PRODUCTS if quick else PRODUCTS))
    return {"sizes": rows}


def large(quick: bool) -> Result:
    """The large solve on two threads, and its distance from the solve in small blocks."""
    n, k = QUICK_LARGE if quick else LARGE
    path, products = simulated(n, k), QUICK_PRODUCTS if quick else PRODUCTS
    with tempfile.TemporaryDirectory() as place:
        first, second = Path(place) / "large.npy", Path(place) / "small.npy"
        say(f"large: n={n:,}, k={k:,}, two threads")
        found = alone(_solve, path, n, k, 2, {}, first, products)
        say(f"  {found['seconds']:.1f} s, {found['peak_gb']:.2f} GB; now in small blocks, and counting")
        other = alone(_solve_in_small_blocks, path, n, k, 2, second)
        needed, possible = flop(n, k, DIMENSION, found["active"]), found["seconds"] * 1e9 * found["product_gflops"]
        return {
            **found,
            "share": needed / possible,
            "share_done": other["flop_done"] / possible,
            "small_blocks": {**other, **differences(first, second)},
        }


def million(quick: bool) -> Result:
    """The mapped file, and approximate against exact neighbours where both can be had."""
    n, k = QUICK_MILLION if quick else MILLION
    path = simulated(n, k)
    say(f"million: n={n:,}, k={k:,}, two threads")
    found = alone(_solve, path, n, k, 2, {})
    say(f"  {found['seconds']:.0f} s, {found['peak_gb']:.2f} GB; now both graphs of fewer images")
    m, k = QUICK_COMPARED if quick else COMPARED
    path = simulated(m, k)
    graphs = {search: alone(_solve, path, m, k, 2, {"search": search}) for search in ("exact", "approximate")}
    lost = 100 * (graphs["exact"]["accuracy"] - graphs["approximate"]["accuracy"])
    return {**found, "compared": {**graphs, "points_lost": lost}}


def flop(n: int, k: int, d: int, active: int, iterations: int = 10) -> float:
    """Operations in the matrix products that StatA's equations need; a product of a×b and b×c has 2abc.

    2n²d for the graph; 2nkd each for the zero-shot logits, for Σ' (ŷ with t) and for the densities on the anchors; per
    iteration, for the active classes and φ = [x, x²] of 2d columns, 4nad for the moments and 4nad for the densities.
    What is not a matrix product (z-steps, exponentials, the search among similarities) counts nothing.
    """
    return 2.0 * n * n * d + 3 * 2.0 * n * k * d + iterations * 2 * 4.0 * n * active * d


def differences(first: Path, second: Path) -> Result:
    """Between two z on disk (n×k): the largest, and the share of rows with the same label; block by block."""
    a, b = np.load(first, mmap_mode="r"), np.load(second, mmap_mode="r")
    largest, same = 0.0, 0
    for start in range(0, len(a), COMPARED_ROWS):
        rows = slice(start, start + COMPARED_ROWS)
        largest = max(largest, float(np.abs(a[rows] - b[rows]).max()))
        same += int((a[rows].argmax(axis=1) == b[rows].argmax(axis=1)).sum())
    return {"difference": largest, "same_labels": same / len(a)}


@contextmanager
def small_blocks() -> Iterator[None]:
    """The solver with smaller blocks, of φ and of x xᵀ. A name that is gone is an error, not a silent no."""
    smaller = (
        (arrays, "BLOCK_ENTRIES", 1 << 18),
        (compiled_neighbours, "SIDE", 200),
        (compiled_neighbours, "SHARED_SIDE", 500),
    )
    with ExitStack() as stack:
        for module, name, size in smaller:
            stack.enter_context(patch.object(module, name, size))
        yield


def counted(work: Callable[[], Any]) -> tuple[Any, float]:
    """What work() gives, and the operations of torch's matrix products in it."""
    with FlopCounterMode(display=False) as counter:
        return work(), float(counter.get_total_flops())


def _graph(path: Path, n: int, k: int, threads: int, products: tuple[int, ...]) -> Result:
    """In a process of its own: the graph's time beside the peak, which is measured before and after it."""
    before = peak(threads, products)
    x = load(path, n, k).image_features

    def search() -> object:
        return nearest_neighbours(x, NEIGHBOURS, search="exact")

    done = counted(search)[1]
    took = best_of(2, search)
    best = max(before, peak(threads, products))
    rate = 2 * n * n * x.shape[1] / took / 1e9
    return {
        "n": n,
        "threads": threads,
        "seconds": took,
        "gflops": rate,
        "product_gflops": best,
        "share": rate / best,
        "share_done": done / took / 1e9 / best,
    }


def _solve_in_small_blocks(path: Path, n: int, k: int, threads: int, keep: Path) -> Result:
    """In a process of its own: the same solve in other blocks, and its operations."""
    with small_blocks():
        found, done = counted(lambda: _solve(path, n, k, threads, {}, keep))
    return {"seconds": found["seconds"], "flop_done": done}


def _solve(
    path: Path,
    n: int,
    k: int,
    threads: int,
    settings: Result,
    keep: Path | None = None,
    products: tuple[int, ...] | None = None,
) -> Result:
    """In a process of its own: one solve; z is kept if told where to, and the products' peak measured if told how."""
    torch.set_num_threads(threads)
    features = load(path, n, k)
    kedge.adapt(features.take(slice(64)), method="stata")  # the kernels are loaded, or compiled
    results: list[kedge.Result] = []
    took = seconds(lambda: results.append(kedge.adapt(features, method="stata", **settings)))
    peak_gb = peak_memory_mb() / 1e3  # before anything below adds to it
    labels, info = torch.as_tensor(results[0].labels), results[0].info
    assert features.labels is not None
    found = {
        "n": n,
        "k": k,
        "threads": threads,
        "seconds": took,
        "peak_gb": peak_gb,
        "accuracy": float((labels == features.labels).float().mean()),
        "active": len(np.unique(labels)),
        "info": {name: value for name, value in info.items() if isinstance(value, bool | int | float | str)},
    }
    if keep:
        np.save(keep, np.asarray(results[0].probs))
    if products:
        found["product_gflops"] = peak(threads, products)
    return found
