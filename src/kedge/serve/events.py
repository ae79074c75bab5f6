"""Server-sent events: what happens on the server, told to every open page (tab).

events.publish("version", {"version": 18})     # from any thread
async for chunk in events.stream(first): …     # in the route of a tab

A tab that does not read its events is let go; its browser connects again and hears what matters.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any, TypeAlias

import msgspec

Event: TypeAlias = tuple[str, Mapping[str, Any]]  # its name and its data

WAITING = 1000  # events that a tab may be behind
ALIVE = 15.0  # seconds between two signs of life, by which a connection that is gone is noticed


class Events:
    """The tabs that are open."""

    def __init__(self) -> None:
        self._tabs: set[_Tab] = set()
        self._lock = threading.Lock()
        self._closed = False

    def __len__(self) -> int:
        """How many tabs are open."""
        return len(self._tabs)

    def publish(self, name: str, data: Mapping[str, Any]) -> None:
        """Tell all tabs."""
        with self._lock:
            tabs = list(self._tabs)
        for tab in tabs:
            tab.send(_written(name, data))

    async def stream(self, first: Callable[[], Iterable[Event]]) -> AsyncIterator[bytes]:
        """The events of one tab, for as long as it is open; `first` says what it hears at the beginning."""
        tab = _Tab()
        with self._lock:
            if self._closed:
                return
            self._tabs.add(tab)  # before `first` looks, so that nothing is lost in between
        try:
            for name, data in first():
                yield _written(name, data)
            while (message := await tab.next()) is not None:
                yield message
        finally:
            with self._lock:
                self._tabs.discard(tab)

    def close(self) -> None:
        """End all streams: the server stops. It may be called in a signal handler, so it waits for no lock."""
        self._closed = True
        for tab in tuple(self._tabs):
            tab.send(None)


class _Tab:
    """A queue from any thread to the loop of one stream; None ends the stream."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()

    def send(self, message: bytes | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._put, message)

    def _put(self, message: bytes | None) -> None:
        if self._queue.qsize() < WAITING:
            self._queue.put_nowait(message)
        elif self._queue.qsize() == WAITING:
            self._queue.put_nowait(None)

    async def next(self) -> bytes | None:
        """The next message, or a sign of life."""
        try:
            return await asyncio.wait_for(self._queue.get(), ALIVE)
        except asyncio.TimeoutError:
            return b": alive\n\n"


def _written(name: str, data: Mapping[str, Any]) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(data))
