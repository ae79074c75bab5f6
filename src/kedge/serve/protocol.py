"""HTTP/1.1 as uvicorn speaks it, with a limit on the time until the head of a request is complete.

uvicorn waits for it for ever. Whoever opens connections and sends nothing, or a byte now and then, would take all that
`limit_concurrency` allows. Use it as `uvicorn.Config(app, http=PromptProtocol)`.
"""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


class PromptProtocol(H11Protocol):
    """Closes connections that take longer than `head_seconds` to say what they want."""

    head_seconds = 10.0
    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Go on waiting if the head is not complete. (Between two requests uvicorn has a limit of its own.)"""
        super().data_received(data)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._stop()
        elif self._waiting is None:
            self._waiting = self.loop.call_later(self.head_seconds, self.timeout_keep_alive_handler)

    def _stop(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
