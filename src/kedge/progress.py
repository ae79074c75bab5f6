"""Progress bars and notices. The library shows none by default; the command line turns them on.

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
_say: ContextVar[Callable[[str], None] | None] = ContextVar("kedge_notices", default=None)


def notice(text: str) -> None:
    """Print one line on standard error, if progress is shown; also where standard error is not a terminal."""
    if say := _say.get():
        say(text)


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
    """Show notices on standard error inside the block and, if it is a terminal, bars. Finished bars disappear."""
    if not sys.stderr.isatty():
        with _set(_say, lambda text: print(text, file=sys.stderr, flush=True)):
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
    console = Console(stderr=True)
    with (
        Progress(*columns, console=console, transient=True) as display,
        _set(_display, display),
        _set(_say, lambda text: console.print(text, highlight=False)),
    ):
        yield


@contextlib.contextmanager
def hidden() -> Iterator[None]:
    """Show no bars inside the block: for many small steps, bars take longer than the steps."""
    with _set(_display, None):
        yield


@contextlib.contextmanager
def _set(variable: ContextVar[T], value: T) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
