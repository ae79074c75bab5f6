"""One request and its answer: a body within limits of size and time, and the headers that every answer has.

Nothing is buffered. A request whose body was not read to its end is answered at once; then the rest is read for a
moment and thrown away, and the connection closed. (To close it at once would often destroy the answer on its way.)
"""

from __future__ import annotations

from dataclasses import dataclass

import anyio
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope, Send

from ..memory import in_bytes
from ..words import duration

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
LINGER_SECONDS, LINGER_BYTES = 1.0, 16 << 20  # what is read of a body that nobody wants


@dataclass(frozen=True)
class Limits:
    """What one request may take, and how many there may be."""

    body_bytes: int = 64 << 20
    body_seconds: float = 60.0  # until the body is complete
    at_once: int = 128  # requests in work, open event streams among them


class Exchange:
    """The two channels of a request, for the application to use instead of the server's."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, limits: Limits) -> None:
        self.headers = Headers(scope=scope)
        self.status = 0  # of the answer, once it has begun
        self._receive, self._send, self._limits = receive, send, limits
        self._read = 0
        self._all_read = not ("transfer-encoding" in self.headers or self.headers.get("content-length", "0") != "0")
        self._deadline = anyio.current_time() + limits.body_seconds

    async def receive(self) -> Message:
        """The next part of the body; raises HTTPException 408 or 413 if it takes too long or is too large."""
        if self._all_read:
            return await self._receive()
        with anyio.move_on_at(self._deadline) as waiting:
            message = await self._next()
        if waiting.cancelled_caught:
            return self._refuse(408, f"the body was not complete within {duration(self._limits.body_seconds)}")
        if self._read > self._limits.body_bytes:
            return self._refuse(413, f"the body is too large; the limit is {in_bytes(self._limits.body_bytes)}")
        return message

    async def send(self, message: Message) -> None:
        """Send a part of the answer, with our headers."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(raw=list(message.get("headers", ())))
            for name, value in HEADERS.items():
                headers[name] = value
            headers.setdefault("Cache-Control", "no-store")
            if not self._all_read:
                headers["Connection"] = "close"
            message = {**message, "headers": headers.raw}
        elif not self._all_read and not message.get("more_body", False):
            await self._send({**message, "more_body": True})
            await self._linger()
            message = {**message, "body": b""}
        await self._send(message)

    async def _next(self) -> Message:
        message = await self._receive()
        self._read += len(message.get("body", b""))
        self._all_read = not message.get("more_body", False)  # also if the client has gone
        return message

    async def _linger(self) -> None:
        most = self._read + LINGER_BYTES
        with anyio.move_on_after(LINGER_SECONDS):
            while not self._all_read and self._read < most:
                await self._next()

    def _refuse(self, status: int, reason: str) -> Message:
        if self.status:  # too late for another answer
            return {"type": "http.disconnect"}
        raise HTTPException(status, f"{reason}. Send it faster, or in smaller parts.")
