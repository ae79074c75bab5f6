"""Progress as events for the page. Only work that is counted in units is shown: the rest is short."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from ..progress import Advance
from .events import Events

TELL_EVERY = 0.25  # seconds between two events


class ProgressEvents:
    """Tells the tabs how far the work is; last: what was told, for a tab that connects now."""

    def __init__(self, events: Events) -> None:
        self.last: dict[str, Any] | None = None
        self._events = events

    @contextlib.contextmanager
    def display(self, total: int, what: str, unit: str, done: int) -> Iterator[Advance]:
        """A display for `progress.shown_by`."""
        first, start, told = done, time.monotonic(), 0.0

        def advance(number: int) -> None:
            nonlocal done, told
            done += number
            now = time.monotonic()
            if unit and (done >= total or now - told >= TELL_EVERY):
                told = now
                rate = (done - first) / (now - start) if now > start else 0.0
                left = round((total - done) / rate, 1) if rate else None
                self.last = {"what": what, "done": done, "total": total, "rate": round(rate, 1), "left": left}
                self._events.publish("progress", self.last)

        advance(0)
        try:
            yield advance
        finally:
            self.last = None
