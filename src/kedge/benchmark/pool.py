"""Run items in several processes. If a process dies, only its current item is lost."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import wait
from typing import Any, Generic, TypeVar

from ..processes import without_ctrl_c

T = TypeVar("T")
R = TypeVar("R")
Spread = Callable[[Iterable[Any], Callable[[], Callable[[Any], Any]], Callable[[Any, str], Any]], Iterator[Any]]

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
PATIENCE = 5.0  # seconds to wait for a process to end by itself


def spread(
    items: Iterable[T], make: Callable[[], Callable[[T], R]], died: Callable[[T, str], R], *, jobs: int
) -> Iterator[tuple[T, R]]:
    """Yield (item, result) as items finish, from at most `jobs` processes with one thread each.

    Each process calls `make` once, and the function that it returns for every item. If a process dies, the result of
    its item is `died(item, why)`. Leaving the loop early ends the processes; so does killing this process.
    """
    waiting = iter(items)
    busy: dict[Any, tuple[_Worker[T, R], T]] = {}  # pipe → worker and its item

    def give_next(worker: _Worker[T, R] | None) -> None:
        """Give the next item to this worker or a new one; if there is no item, stop the worker."""
        for item in waiting:
            worker = worker or _Worker(make)
            busy[worker.pipe] = worker, item
            worker.pipe.send(item)
            return
        if worker:
            worker.stop()

    try:
        for _ in range(jobs):
            give_next(None)
        while busy:
            for pipe in wait(list(busy)):
                worker, item = busy.pop(pipe)
                try:
                    result: R = worker.pipe.recv()
                except (EOFError, ConnectionError):
                    result = died(item, worker.stop(PATIENCE))
                    give_next(None)
                else:
                    give_next(worker)
                yield item, result
    finally:
        for worker, _ in busy.values():
            worker.stop()


class _Worker(Generic[T, R]):
    """A process, and a pipe to it."""

    def __init__(self, make: Callable[[], Callable[[T], R]]) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, make), daemon=True)
        with _inherited():
            self.process.start()
        theirs.close()  # the child has the only copy, so that its end closes the pipe

    def stop(self, patience: float = 0.0) -> str:
        """Wait `patience` seconds, then end the process; return how it ended."""
        self.pipe.close()
        self.process.join(patience)
        if self.process.is_alive():
            self.process.terminate()
            self.process.join(PATIENCE)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        code = self.process.exitcode or 0
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _serve(pipe: Any, make: Callable[[], Callable[[T], R]]) -> None:
    """In the child process: handle items from the pipe until it closes."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    work = make()
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            pipe.send(work(pipe.recv()))


def _end_with_parent() -> None:
    """End this process when its parent is gone, even if the parent was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


@contextlib.contextmanager
def _inherited() -> Iterator[None]:
    """Processes started in this context use one thread and ignore Ctrl-C, which only the parent handles."""
    environment = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(ONE_THREAD)
    try:
        with without_ctrl_c():
            yield
    finally:
        for name, value in environment.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
