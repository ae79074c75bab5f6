"""StatA's speed and memory, as ratios in one run: kedge against the plain broadcast form of the equations.

    make bench        (or: python benchmarks/stata.py --quick)

One thread, float32, d = 512, simulated features. The plain form is the oracle of the tests, which holds every n×k×d
array; `torch` is kedge without its compiled solver (the extra `fast`). All solve the same batch, their results are
compared, and each is timed in turn, the best run counting.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

import kedge
from kedge.evaluate import peak_memory_mb
from kedge.simulate import simulate

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))
from oracle import stata as plain  # noqa: E402

SIZES = [  # n, k, K_eff, runs of ours, runs of the plain form, the ratio we hold ourselves to
    (64, 100, 10, 100, 5, 60),
    (64, 1000, 10, 50, 2, 400),
    (1000, 100, 25, 10, 2, 80),
    (1000, 1000, 50, 5, 1, 200),
]
LARGE = (20_000, 1000)
MEMORY_LIMIT_GB = 2.0


def best_of(runs: int, work: Callable[[], object]) -> float:
    """Seconds of the fastest run, after one to warm up."""
    work()
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def compare(n: int, k: int, k_eff: int, runs: int, plain_runs: int, aim: int) -> dict[str, object]:
    features = simulate(n, k, k_eff=k_eff, seed=0)
    x, t = features.image_features, features.head.features
    ours = best_of(runs, lambda: kedge.adapt(x, t))
    in_torch = best_of(runs, lambda: kedge.adapt(x, t, compiled=False))
    theirs = best_of(plain_runs, lambda: plain(x, t)) if plain_runs > 1 else _once(lambda: plain(x, t))
    difference = float((kedge.adapt(x, t).probs - plain(x, t).z[-1]).abs().max()) if n * k <= 100_000 else None
    return {
        "n": n,
        "k": k,
        "kedge_ms": 1e3 * ours,
        "torch_ms": 1e3 * in_torch,
        "plain_ms": 1e3 * theirs,
        "ratio": theirs / ours,
        "torch_ratio": theirs / in_torch,
        "aim": aim,
        "max_difference": difference,
    }


def _once(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def memory(n: int, k: int) -> None:
    """In a process of its own: solve once and say the peak."""
    torch.set_num_threads(1)
    features = simulate(n, k, seed=0)
    start = time.perf_counter()
    kedge.adapt(features)
    seconds = time.perf_counter() - start
    peak = peak_memory_mb() / 1e3
    print(json.dumps({"n": n, "k": k, "seconds": seconds, "peak_gb": peak, "limit_gb": MEMORY_LIMIT_GB}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="leave out n=1000, k=1000 and the memory run")
    parser.add_argument("--memory", nargs=2, type=int, metavar=("N", "K"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory:
        return memory(*arguments.memory)

    torch.set_num_threads(1)
    rows = []
    print(
        f"{'n':>6} {'k':>6} {'plain':>12} {'torch':>10} {'ratio':>8} {'kedge':>10} {'ratio':>8} {'aim':>6}   "
        "largest difference",
        flush=True,
    )
    for size in SIZES[:3] if arguments.quick else SIZES:
        row = compare(*size)
        rows.append(row)
        difference = "-" if row["max_difference"] is None else f"{row['max_difference']:.1e}"
        print(
            f"{row['n']:>6} {row['k']:>6} {row['plain_ms']:>9.1f} ms {row['torch_ms']:>7.2f} ms "
            f"{row['torch_ratio']:>7.0f}x {row['kedge_ms']:>7.2f} ms {row['ratio']:>7.0f}x {row['aim']:>5}x   "
            f"{difference}",
            flush=True,
        )
    peak = None
    if not arguments.quick:
        command = [sys.executable, __file__, "--memory", *map(str, LARGE)]
        peak = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(f"n={peak['n']} k={peak['k']}: {peak['seconds']:.1f} s, peak memory {peak['peak_gb']:.2f} GB (limit 2)")
    machine = {"cpu": platform.processor() or platform.machine(), "torch": torch.__version__, "threads": 1}
    out = HERE.parent / "build" / "bench"
    out.mkdir(parents=True, exist_ok=True)
    (out / "stata.json").write_text(json.dumps({"machine": machine, "speed": rows, "memory": peak}, indent=2))
    print(f"written to {out / 'stata.json'}")


if __name__ == "__main__":
    main()
