"""Work spread over processes: each item is done by one of them, and one that dies takes only its own item along."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import wait
from typing import Any, Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
PATIENCE = 5.0  # seconds a process is given to end by itself


def spread(
    items: Iterable[T], jobs: int, make: Callable[[], Callable[[T], R]], died: Callable[[T, str], R]
) -> Iterator[tuple[T, R]]:
    """(item, result) as they get done, by at most `jobs` processes of one thread each.

    Each process calls `make` once, and what that returns for every item. `died(item, why)` is the result of an item
    whose process ended in the middle of it. Leaving the loop early ends the processes; so does killing this one.
    """
    waiting = iter(items)
    busy: dict[Any, tuple[_Worker[T, R], T]] = {}  # by their pipe

    def give_next(worker: _Worker[T, R] | None) -> None:
        """The next item to this worker, or to a new one; a worker for whom there is none ends."""
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
    """A process and the pipe to it."""

    def __init__(self, make: Callable[[], Callable[[T], R]]) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, make), daemon=True)
        with _inherited():
            self.process.start()
        theirs.close()  # the child's is the only one left, so that its end is seen

    def stop(self, patience: float = 0.0) -> str:
        """End the process, after some seconds in which it may end by itself; say how it ended."""
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
    """In the process: do what comes through the pipe, until it is closed."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    work = make()
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            pipe.send(work(pipe.recv()))


def _end_with_parent() -> None:
    """A parent that is killed can not tell its children; they notice that it is gone."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


@contextlib.contextmanager
def _inherited() -> Iterator[None]:
    """What a process started meanwhile inherits: one thread, and no ear for Ctrl-C, on which only the parent acts."""
    environment = {name: os.environ.get(name) for name in ONE_THREAD}
    main = threading.current_thread() is threading.main_thread()  # the only one that may set signals
    on_ctrl_c = signal.signal(signal.SIGINT, signal.SIG_IGN) if main else None
    os.environ.update(ONE_THREAD)
    try:
        yield
    finally:
        for name, value in environment.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        if on_ctrl_c is not None:
            signal.signal(signal.SIGINT, on_ctrl_c)
