"""Many small tasks, one thread: kedge against the plain broadcast form of the equations.

A plan of tasks, each one batch, is drawn from one simulated dataset and run by `kedge.evaluate`, as `kedge bench` does;
datasets have about the size and number of tasks of the paper's (three scenarios of 1,000 batches of 64). The plain form
is the oracle of the tests, which holds every n×k×d array; it solves the first of the same batches. Machines are noisy:
the two take turns, and of each the median counts.

The plain form's time hangs on where its n×k×d arrays come from: fresh from the system, which clears every page as it is
first touched, or from memory that was freed before. glibc always takes arrays above 32 MB fresh. Smaller ones (13 MB
for 64 images and 100 classes) it takes either way, as the process's addresses happen to lie, and fresh memory makes the
solve four to five times slower. So that no ratio hangs on chance, each solve of the plain form has a process of its
own, whose environment holds the rule fixed; arrays much smaller than n×k×d are reused in any case. Ratios are to the
fresh form, which is the same at all sizes; the reused one, which is faster, is reported beside it. Page faults per
solve, one per 4 kB that is fresh on most machines, show whether each is what it is called; without glibc the
environment changes nothing.

Both clocks run from features to z, and what kedge computes once for all tasks is in its time. What an evaluation needs
beside that (gathering rows, scores) is in `wall`.

| time, per task | what                                                                            |
|----------------|---------------------------------------------------------------------------------|
| plain          | the plain form, its n×k×d arrays fresh from the system                          |
| plain_reused   | the same, in memory used before; only where one such array is below 32 MB       |
| kedge          | `Record.seconds` of the evaluation, and zero-shot's probabilities of all images |
| wall           | the whole evaluation                                                            |
| torch          | as kedge, with `compiled=False`: without the compiled solver                    |
| single         | one call of `kedge.adapt` after the other, on the same batches                  |
"""

from __future__ import annotations

import os
import resource
import statistics
import sys
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import torch
from measuring import DIMENSION, ROOT, Result, alone, load, say, seconds, simulated

import kedge
from kedge.benchmark.evaluate import evaluate
from kedge.benchmark.plan import Plan, draw

sys.path.insert(0, str(ROOT / "tests" / "support"))
from oracle import stata as plain

COMPARED = 100_000  # n·k up to which the two results are compared
REUSED = 32 * 2**20  # bytes: the largest M_MMAP_THRESHOLD, from which on glibc takes each block fresh from the system
NEVER = 2**31  # bytes: an M_TRIM_THRESHOLD, with which freed memory stays in the heap
WARM_UP = 4  # solves after which the heap no longer grows; after one it often still does


class Size(NamedTuple):
    """Batches of n images and k_eff of k classes, from this many `images`."""

    n: int
    k: int
    k_eff: int
    images: int
    tasks: int
    others: int  # tasks for torch and single, which are not what is aimed at
    rounds: int  # of all tasks, and then one by the plain form
    aim: float | None  # how many times faster than the plain form

    @property
    def array(self) -> int:
        """Bytes of an n×k×d array."""
        return 4 * self.n * self.k * DIMENSION

    @property
    def thresholds(self) -> dict[str, tuple[int, int]]:
        """M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of each plain form, by the names of the module's table.

        Blocks from the first on are fresh if no free one is at hand; the heap gives back its end once that is as large
        as the second. Twice the first is what glibc itself would set, and leaves no room there for an n×k×d array.
        """
        half = min(self.array // 2, REUSED)
        fresh = {"plain": (half, 2 * half)}
        return {**fresh, "plain_reused": (REUSED, NEVER)} if self.array < REUSED else fresh


class Solve(NamedTuple):
    """What one solve of the plain form took."""

    seconds: float
    faults: int  # of pages


SIZES = (
    Size(64, 100, 10, 10_000, 3000, 200, 7, 250),
    Size(64, 1000, 10, 50_000, 3000, 100, 3, 1000),
    Size(1000, 100, 25, 10_000, 200, 50, 3, 120),
    Size(1000, 1000, 50, 50_000, 200, 10, 1, 400),
)
QUICK = (Size(64, 20, 5, 1000, 10, 5, 2, None), Size(100, 50, 10, 1000, 5, 2, 1, None))


def measure(quick: bool) -> Result:
    """A row of times and ratios per size."""
    torch.set_num_threads(1)
    return {"sizes": [compare(size) for size in (QUICK if quick else SIZES)]}


def compare(size: Size) -> Result:
    """Seconds per task and ratios, by the names of the module's table."""
    say(f"throughput: {size.tasks} tasks of {size.n} images, {size.k} classes")
    path = simulated(size.images, size.k)
    features = load(path, size.images, size.k)
    x, head = features.image_features, features.head
    plan = tasks_of(size, features.labels, size.tasks)
    fewer = tasks_of(size, features.labels, size.others)  # the first of the same
    batches = [x[indices] for indices in fewer.batches()]

    def run(plan: Plan, compiled: bool = True) -> float:
        """Seconds in the method, and of what it starts from."""
        zero_shot = seconds(lambda: head.log_zero_shot(x))
        record = evaluate("stata", features, plan, compiled=compiled)
        assert record.seconds is not None
        return zero_shot + record.seconds

    def one_by_one() -> None:
        for batch in batches:
            kedge.adapt(batch, head, method="stata")

    for compiled in (True, False):  # to warm up
        run(tasks_of(size, features.labels, 2), compiled)
    wall, inside = [], []
    solves: dict[str, list[Solve]] = {name: [] for name in size.thresholds}
    for task in range(size.rounds):
        wall.append(seconds(lambda: inside.append(run(plan))))
        say(f"  {1e3 * inside[-1] / size.tasks:.2f} ms per task")
        for name, (mmap, trim) in size.thresholds.items():
            solves[name].append(plain_alone(path, size, task, mmap, trim))
            say(f"  {name} {1e3 * solves[name][-1].seconds:.0f} ms, {solves[name][-1].faults:,} page faults")
    faults = {name: statistics.median(solve.faults for solve in found) for name, found in solves.items()}
    if faults["plain"] <= 2 * faults.get("plain_reused", 0):
        say("  the plain form's memory is not as its environment asks: is the C library glibc?")
    per_task = {
        "wall": statistics.median(wall) / size.tasks,
        "kedge": statistics.median(inside) / size.tasks,
        "torch": run(fewer, compiled=False) / size.others,
        "single": seconds(one_by_one) / size.others,
        **{name: statistics.median(solve.seconds for solve in found) for name, found in solves.items()},
    }
    difference = None
    if size.n * size.k <= COMPARED:
        z = kedge.adapt(batches[0], head, method="stata").probs
        difference = float((z - plain(batches[0], head.features).z[-1]).abs().max())
    return {
        **size._asdict(),
        "seconds": per_task,
        "ratio": {name: per_task["plain"] / value for name, value in per_task.items() if name not in solves},
        "faults": faults,
        "difference": difference,
    }


def plain_alone(path: Path, size: Size, task: int, mmap: int, trim: int) -> Solve:
    """The plain form's solve of one task, in a process with these thresholds of the allocator."""
    rule = {"MALLOC_MMAP_THRESHOLD_": str(mmap), "MALLOC_TRIM_THRESHOLD_": str(trim)}
    with patch.dict(os.environ, rule):  # glibc reads them as the process starts
        found: Solve = alone(plain_solve, path, size, task)
    return found


def plain_solve(path: Path, size: Size, task: int) -> Solve:
    """The same, in this process."""
    torch.set_num_threads(1)
    features = load(path, size.images, size.k)
    *_, indices = tasks_of(size, features.labels, task + 1).batches()
    batch, prototypes = features.image_features[indices], features.head.features
    for _ in range(WARM_UP if size.array < REUSED else 0):  # above, there is nothing to be reused
        plain(batch, prototypes)
    before = page_faults()
    return Solve(seconds(plain, batch, prototypes), page_faults() - before)


def page_faults() -> int:
    """Of this process so far, without those that wait for a disk."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def tasks_of(size: Size, labels: torch.Tensor | None, tasks: int) -> Plan:
    """The first tasks of this size; every batch is full."""
    assert labels is not None
    scenario = f"batches:size={size.n},k_min={size.k_eff},k_max={size.k_eff}"
    plan = draw(scenario, labels.numpy(), 0, tasks)
    assert all(len(batch) == size.n for batch in plan.batches()), f"{size.images} images are too few for {scenario}"
    return plan
