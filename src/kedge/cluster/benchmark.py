"""A benchmark on a cluster: each cell is a task of Ray.

with connected():
    run(grid, "results", jobs=slots(), spread=spread)
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import islice
from typing import Any, TypeVar

from .connect import ray_library

T = TypeVar("T")
R = TypeVar("R")
RETRIES = 2  # of an item whose worker or node was lost: it may itself be what ends the worker


def slots() -> int:
    """How many items the cluster runs at one time."""
    return max(1, int(ray_library().cluster_resources().get("CPU", 1)))


def spread(
    items: Iterable[T], make: Callable[[], Callable[[T], R]], died: Callable[[T, str], R]
) -> Iterator[tuple[T, R]]:
    """Yield (item, result) as items finish, from tasks of one CPU each: see `benchmark.pool.spread`."""
    ray = ray_library()
    task = ray.remote(num_cpus=1, max_retries=RETRIES)(_result)
    made = ray.put(pickle.dumps(make))
    waiting = iter(items)
    running: dict[Any, T] = {}
    try:
        while True:
            for item in islice(waiting, max(0, slots() - len(running))):
                running[task.remote(made, item)] = item
            if not running:
                return
            (ready,), _ = ray.wait(list(running), num_returns=1)
            item = running.pop(ready)
            try:
                result: R = ray.get(ready)
            except ray.exceptions.RayError as error:
                result = died(item, f"was lost on the cluster: {type(error).__name__}, {_first_line(error)}")
            yield item, result
    finally:
        for task in running:
            ray.cancel(task, force=True)


def _result(make: bytes, item: Any) -> Any:
    """In a worker process, which keeps what it has made for its next items."""
    return _made(make)(item)


@lru_cache(maxsize=1)
def _made(make: bytes) -> Callable[[Any], Any]:
    made: Callable[[Any], Any] = pickle.loads(make)()
    return made


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), "without a reason").rstrip(".")
