"""Many small tasks, one thread: kedge against the plain broadcast form of the equations.

A plan of tasks, each one batch, is drawn from one simulated dataset and run by `kedge.evaluate`, as `kedge bench` does;
datasets have about the size and number of tasks of the paper's (three scenarios of 1,000 batches of 64). The plain form
is the oracle of the tests, which holds every n×k×d array; it solves the first of the same batches. It has a process of
its own, since its time hangs on where its large arrays come from: from 96 to 550 ms were seen for 64 images and 100
classes. Machines are noisy: the two take turns, and of each the median counts.

Both clocks run from features to z, and what kedge computes once for all tasks is in its time. What an evaluation needs
beside that (gathering rows, scores) is in `wall`.

| time, per task | what                                                                            |
|----------------|---------------------------------------------------------------------------------|
| plain          | the plain form                                                                  |
| kedge          | `Record.seconds` of the evaluation, and zero-shot's probabilities of all images |
| wall           | the whole evaluation                                                            |
| torch          | as kedge, with `compiled=False`: without the compiled solver                    |
| single         | one call of `kedge.adapt` after the other, on the same batches                  |
"""

from __future__ import annotations

import statistics
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import NamedTuple

import torch
from measuring import ROOT, Result, load, say, seconds, simulated

import kedge
from kedge.evaluate import all_images, evaluate
from kedge.scenarios import Plan, draw

sys.path.insert(0, str(ROOT / "tests"))
from oracle import stata as plain

COMPARED = 100_000  # n·k up to which the two results are compared


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


SIZES = (
    Size(64, 100, 10, 10_000, 3000, 200, 7, 300),
    Size(64, 1000, 10, 50_000, 3000, 100, 3, 1500),
    Size(1000, 100, 25, 10_000, 200, 50, 3, 130),
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
    features = load(simulated(size.images, size.k), size.images, size.k)
    x, head = features.image_features, features.head
    plan = tasks_of(size, features.labels, size.tasks)
    fewer = tasks_of(size, features.labels, size.others)  # the first of the same
    batches = [x[indices] for indices in fewer.batches()]

    def run(plan: Plan, compiled: bool = True) -> float:
        """Seconds in the method, and of what it starts from."""
        everything = all_images(features)
        zero_shot = seconds(lambda: everything.log_zero_shot)
        record = evaluate("stata", features, plan, everything=everything, compiled=compiled)
        assert record.seconds is not None
        return zero_shot + record.seconds

    def one_by_one() -> None:
        for batch in batches:
            kedge.adapt(batch, head, method="stata")

    for compiled in (True, False):  # to warm up
        run(tasks_of(size, features.labels, 2), compiled)
    wall, inside, plain_form = [], [], []
    with ProcessPoolExecutor(1, get_context("spawn")) as other:
        for task in range(size.rounds):
            wall.append(seconds(lambda: inside.append(run(plan))))
            plain_form.append(other.submit(plain_seconds, size, task).result())
            say(f"  {1e3 * inside[-1] / size.tasks:.2f} ms per task, the plain form {1e3 * plain_form[-1]:.0f} ms")
    per_task = {
        "wall": statistics.median(wall) / size.tasks,
        "kedge": statistics.median(inside) / size.tasks,
        "torch": run(fewer, compiled=False) / size.others,
        "single": seconds(one_by_one) / size.others,
        "plain": statistics.median(plain_form),
    }
    difference = None
    if size.n * size.k <= COMPARED:
        z = kedge.adapt(batches[0], head, method="stata").probs
        difference = float((z - plain(batches[0], head.features).z[-1]).abs().max())
    return {
        **size._asdict(),
        "seconds": per_task,
        "ratio": {name: per_task["plain"] / value for name, value in per_task.items() if name != "plain"},
        "difference": difference,
    }


def plain_seconds(size: Size, task: int) -> float:
    """The plain form's, of one task."""
    torch.set_num_threads(1)
    features = load(simulated(size.images, size.k), size.images, size.k)
    *_, indices = tasks_of(size, features.labels, task + 1).batches()
    return seconds(plain, features.image_features[indices], features.head.features)


def tasks_of(size: Size, labels: torch.Tensor | None, tasks: int) -> Plan:
    """The first tasks of this size; every batch is full."""
    assert labels is not None
    scenario = f"batches:size={size.n},k_min={size.k_eff},k_max={size.k_eff}"
    plan = draw(scenario, labels.numpy(), 0, tasks)
    assert all(len(batch) == size.n for batch in plan.batches()), f"{size.images} images are too few for {scenario}"
    return plan
