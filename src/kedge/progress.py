"""Progress and messages on standard error. The library shows none by default; the command line turns them on.

    with progress.on_stderr():
        kedge.adapt(...)

On a terminal, progress is a bar. Elsewhere, work that takes long says now and then how far it is.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import TextIO, TypeVar

from .words import duration, percent, printable

T = TypeVar("T")
Advance = Callable[[int], None]
Display = Callable[[int, str, str, int], AbstractContextManager[Advance]]  # total, what, unit, done
_display: ContextVar[Display | None] = ContextVar("kedge_progress", default=None)
_say: ContextVar[Callable[[str], None] | None] = ContextVar("kedge_notices", default=None)
OFTEN, SELDOM = 5.0, 30.0  # seconds between two lines: at least, and at most if the work goes on


def tell(text: str) -> None:
    """Print one line on standard error; if that is impossible, nothing. Foreign text cannot control a terminal."""
    try:
        print(printable(text), file=sys.stderr, flush=True)
    except OSError:
        discard(sys.stderr)


def discard(stream: TextIO) -> None:
    """Let a stream that cannot be written lose its content; otherwise Python complains when it ends."""
    with contextlib.suppress(OSError, ValueError):  # a stream without a number
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def notice(text: str) -> None:
    """Print one line on standard error, if progress is shown; also where standard error is not a terminal."""
    if say := _say.get():
        say(text)


def noticed() -> bool:
    """Are notices shown?"""
    return _say.get() is not None


def track(items: Sequence[T], what: str) -> Iterable[T]:
    """Iterate over the items, with progress named `what` if progress is shown."""
    return items if _display.get() is None else _tracked(items, what)


def _tracked(items: Sequence[T], what: str) -> Iterator[T]:
    with counting(len(items), what) as advance:
        for item in items:
            yield item
            advance(1)


@contextlib.contextmanager
def counting(total: int, what: str, unit: str = "", done: int = 0) -> Iterator[Advance]:
    """A function that advances the progress named `what` by a number; it shows `unit`s per second."""
    display = _display.get()
    if display is None:
        yield lambda count: None
        return
    with display(total, printable(what), unit, done) as advance:
        yield advance


@contextlib.contextmanager
def on_stderr() -> Iterator[None]:
    """Show notices and progress on standard error inside the block. Finished bars disappear."""
    if not sys.stderr.isatty():
        with shown_by(_lines, tell):
            yield
        return
    with _bars() as (display, say), shown_by(display, say):
        yield


@contextlib.contextmanager
def shown_by(display: Display, say: Callable[[str], None]) -> Iterator[None]:
    """Show progress by this display and notices by this function inside the block, in the same thread."""
    with _set(_display, display), _set(_say, say):
        yield


@contextlib.contextmanager
def also_shown_by(display: Display, say: Callable[[str], None]) -> Iterator[None]:
    """Like `shown_by`; what showed progress and notices outside of the block shows them too."""
    before, said = _display.get(), _say.get()

    @contextlib.contextmanager
    def both(total: int, what: str, unit: str, done: int) -> Iterator[Advance]:
        outside = contextlib.nullcontext() if before is None else before(total, what, unit, done)
        with outside as first, display(total, what, unit, done) as second:

            def advance(count: int) -> None:
                if first is not None:
                    first(count)
                second(count)

            yield advance

    def say_both(text: str) -> None:
        if said is not None:
            said(text)
        say(text)

    with shown_by(both, say_both):
        yield


@contextlib.contextmanager
def _lines(total: int, what: str, unit: str, done: int) -> Iterator[Advance]:
    """A line at every tenth of the work, but not more often than OFTEN; and a line every SELDOM seconds."""
    first, start = done, time.monotonic()
    last, tenth = start, 10 * done // max(total, 1)

    def advance(count: int) -> None:
        nonlocal done, last, tenth
        done += count
        now = time.monotonic()
        reached = 10 * done // max(total, 1)
        if now - last < (OFTEN if reached > tenth else SELDOM) or done >= total:
            return
        last, tenth = now, reached
        speed = (done - first) / (now - start)
        rate = f", {speed:,.1f} {unit}/s" if unit else ""
        left = duration((total - done) / speed)
        tell(f"{what}: {done:,} of {total:,} ({percent(done / total)}){rate}, about {left} left")

    yield advance


@contextlib.contextmanager
def _bars() -> Iterator[tuple[Display, Callable[[str], None]]]:
    """Bars, and a function that prints a line above them."""
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

    name = TextColumn("{task.description}", markup=False)
    console = Console(stderr=True, markup=False, emoji=False, highlight=False)
    columns = name, BarColumn(), MofNCompleteColumn(), Rate(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as bars:

        @contextlib.contextmanager
        def bar(total: int, what: str, unit: str, done: int) -> Iterator[Advance]:
            task = bars.add_task(what, total=total, completed=done, unit=unit)
            try:
                yield lambda count: bars.advance(task, count)
            finally:
                bars.remove_task(task)

        yield bar, lambda text: console.print(printable(text))


@contextlib.contextmanager
def hidden() -> Iterator[None]:
    """Show no progress inside the block: for many small steps, it takes longer than the steps."""
    with _set(_display, None):
        yield


@contextlib.contextmanager
def _set(variable: ContextVar[T], value: T) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
