"""Progress bars. The library shows none by default; the command line turns them on.

with progress.on_stderr():
    kedge.adapt(...)
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress

T = TypeVar("T")
_display: ContextVar[Progress | None] = ContextVar("kedge_progress", default=None)


def track(items: Sequence[T], what: str) -> Iterable[T]:
    """Iterate over the items, with a progress bar named `what` if bars are shown."""
    display = _display.get()
    return items if display is None else _bar(display, items, what)


def _bar(display: Progress, items: Sequence[T], what: str) -> Iterator[T]:
    task = display.add_task(what, total=len(items))
    try:
        for item in items:
            yield item
            display.advance(task)
    finally:
        display.remove_task(task)


@contextlib.contextmanager
def counting(total: int, what: str, unit: str, done: int = 0) -> Iterator[Callable[[int], None]]:
    """A function that advances a bar named `what` by a number; the bar shows `unit`s per second."""
    display = _display.get()
    if display is None:
        yield lambda count: None
        return
    task = display.add_task(what, total=total, completed=done, unit=unit)
    try:
        yield lambda count: display.advance(task, count)
    finally:
        display.remove_task(task)


@contextlib.contextmanager
def on_stderr() -> Iterator[None]:
    """Show bars on standard error inside the block, if it is a terminal. Finished bars disappear."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeRemainingColumn,
    )

    class Rate(ProgressColumn):
        """Items per second, for bars with a unit."""

        def render(self, task: Task) -> str:
            unit = task.fields.get("unit")
            return f"{task.speed:,.1f} {unit}/s" if unit and task.speed else ""

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Rate(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as display:
        token = _display.set(display)
        try:
            yield
        finally:
            _display.reset(token)


@contextlib.contextmanager
def hidden() -> Iterator[None]:
    """Show no bars inside the block: for many small steps, bars take longer than the steps."""
    token = _display.set(None)
    try:
        yield
    finally:
        _display.reset(token)
