"""How the solver's time grows with the number of images and of classes, one thread.

The graph is apart: the search for neighbours is done in the run that warms up, and its result is handed to the runs
that count. Their time is that of `kedge.adapt` with everything else, zero-shot logits and checks of the input included.
The slope is a least-squares line through all points, in logarithms.

With n: k=100, all classes present. With k: n=1,000, once with 50 classes present whatever k, once with all of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from measuring import DIMENSION, Result, best_of, load, say, simulated, slope

import kedge
from kedge.features.feature_set import FeatureSet
from kedge.features.simulate import simulate

IMAGES, QUICK_IMAGES = (1000, 2000, 4000, 8000, 16_000, 32_000), (100, 200, 400)
CLASSES, QUICK_CLASSES = (50, 100, 200, 400, 800, 1600), (10, 20, 40)
AT_K, QUICK_AT_K = 100, 10
AT_N, QUICK_AT_N = 1000, 100
PRESENT, QUICK_PRESENT = 50, 10
SEARCH = "nearest_neighbours"  # as the modules of methods call it


def measure(quick: bool) -> Result:
    """Times and slopes: in n, in k with few classes present, in k with all present."""
    torch.set_num_threads(1)
    images, classes = (QUICK_IMAGES, QUICK_CLASSES) if quick else (IMAGES, CLASSES)
    k, n, present = (QUICK_AT_K, QUICK_AT_N, QUICK_PRESENT) if quick else (AT_K, AT_N, PRESENT)
    world = load(simulated(images[-1], k), images[-1], k)
    kedge.adapt(world.take(slice(8)), method="stata")  # all modules are loaded, to be found below
    return {
        "n": series(images, [world.take(slice(size)) for size in images], "n", {"k": k}),
        "k": series(classes, [simulate(n, size, DIMENSION, k_eff=present) for size in classes], "k",
                    {"n": n, "present": present}),
        "k_all": series(classes, [simulate(n, size, DIMENSION) for size in classes], "k", {"n": n}),
    }  # fmt: skip


def series(sizes: Sequence[int], batches: Sequence[FeatureSet], name: str, fixed: dict[str, int]) -> Result:
    """Seconds of the solver at each size, and their slope."""
    times = []
    for size, batch in zip(sizes, batches, strict=True):
        times.append(solver_seconds(batch))
        say(f"growth: {name}={size:,}: {times[-1]:.4f} s")
    return {**fixed, "sizes": list(sizes), "seconds": times, "slope": slope(sizes, times)}


def solver_seconds(batch: FeatureSet) -> float:
    """Best of some runs of `kedge.adapt`, its neighbours found before."""
    runs = 9 if len(batch) <= 2000 else 3
    with remembered_neighbours():
        return best_of(runs, lambda: kedge.adapt(batch, method="stata"))


@contextmanager
def remembered_neighbours() -> Iterator[None]:
    """Neighbours are searched once, and given again whoever asks: for the solves of one batch."""
    with ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            if name.startswith("kedge.methods.") and hasattr(module, SEARCH):
                stack.enter_context(patch.object(module, SEARCH, remembering(getattr(module, SEARCH))))
        yield


def remembering(search: Callable[..., Any]) -> Callable[..., Any]:
    """The first answer, ever after."""
    answers: list[Any] = []

    def remembered(*arguments: Any, **settings: Any) -> Any:
        if not answers:
            answers.append(search(*arguments, **settings))
        return answers[0]

    return remembered
