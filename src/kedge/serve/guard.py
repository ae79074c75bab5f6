"""The door of the server: what passes it, and what is refused. A pure ASGI middleware.

| refused                                              | status   | against                                          |
|------------------------------------------------------|----------|--------------------------------------------------|
| a path with `..`, `//`, a backslash or a control     | 404      | leaving a folder                                 |
| a Host that is not this server's                     | 403      | DNS rebinding: a foreign name that leads to us   |
| an Origin that is not the Host; another site's page  | 403      | requests that a page of another site makes       |
| no token, or a wrong one                             | 401      | other users of the machine or the network        |
| a body that is too large, or too slow                | 413, 408 | running out of memory or connections: `exchange` |
| too many requests at once                            | 429      | the same                                         |

`/?token=T` with the right token sets a cookie and leads to `/`. Programs send `Authorization: Bearer T`. GET /v1/health
is open. Each refusal is a line on standard error, at most one a second of a kind.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ..errors import SettingError
from ..memory import in_bytes
from ..progress import tell
from ..words import count, shown
from .exchange import Exchange, Limits

__all__ = ["Guard", "Limits", "Watch"]

LOCAL = ("127.0.0.1", "localhost", "::1")
OPEN = ("GET", "/v1/health")
SAFE = ("GET", "HEAD")
TOKEN = re.compile(r"[A-Za-z0-9_-]{8,200}")  # as it is in addresses and cookies
QUIET = 1.0  # seconds between two lines about the same kind of refusal

_ODD_PATH = re.compile(r"[\x00-\x1f\x7f\\]|//|(^|/)\.\.?(/|$)")
_HOST = re.compile(r"(?P<name>\[[0-9a-f:.%]+\]|[^\[\]:@/\s]+)(:(?P<port>[0-9]{1,5}))?")
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8">{again}<title>kedge</title>
<h1>Open the address that <code>kedge serve</code> printed</h1>
<p>This page needs the token at the end of that address. You find it in the terminal where <code>kedge serve</code>
runs; it is a new one each time the server starts.</p></html>
"""


@dataclass(frozen=True)
class Refusal:
    """Why a request does not pass."""

    kind: str  # one of a few, for the line on stderr and the metrics
    status: int
    error: str


class Watch(Protocol):
    """Who is told what passes and what does not: the metrics."""

    def answered(self, scope: Scope, status: int, seconds: float) -> None:
        """A request was answered."""

    def refused(self, kind: str) -> None:
        """A request was refused."""


class Guard:
    """Passes requests on to `app` if they are ours, and adds headers to every answer.

    host, port: where the server listens. If that is beyond this machine (`host` is not one of LOCAL), that
    name, every IP address and the machine's own name may stand in Host too.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: str,
        host: str,
        port: int,
        limits: Limits = Limits(),  # noqa: B008  # frozen
        watch: Watch | None = None,
    ) -> None:
        if not TOKEN.fullmatch(token):
            raise SettingError("a token has 8 to 200 letters, digits, - or _. Leave it out: then a random one is made.")
        self.app, self.limits, self.watch = app, limits, watch
        self.port, self.cookie = port, f"kedge-{port}"
        self._token = token.encode()
        self._local = host in LOCAL
        own = socket.gethostname().lower()
        self._names = {*LOCAL} if self._local else {*LOCAL, host.lower(), own, f"{own}.local"}
        self._in_work = 0
        self._told = _Told(tell)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or let the application answer it."""
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":  # a web socket; nothing here uses one
            return await send({"type": "websocket.close", "code": 1008})
        start, exchange = time.perf_counter(), Exchange(scope, receive, send, self.limits)
        self._in_work += 1
        try:
            refusal = self._refusal(scope, exchange.headers)
            if answer := self._answer(scope, exchange.headers, refusal):
                await answer(scope, exchange.receive, exchange.send)
            else:
                await self.app(scope, exchange.receive, exchange.send)
        finally:
            self._in_work -= 1
            if refusal is None and exchange.status in (408, 413):
                refusal = Refusal("body", exchange.status, "a body that was too large or too slow")
            if refusal:
                self._refused(scope, refusal)
            if self.watch:
                self.watch.answered(scope, exchange.status or 500, time.perf_counter() - start)

    def _answer(self, scope: Scope, headers: Headers, refusal: Refusal | None) -> Response | None:
        """The guard's own answer; None: the application's."""
        if refusal is None:
            if scope["path"] != "/" or not self._token_in_query(scope):
                return None
            answer: Response = RedirectResponse("/", status_code=303)
            answer.set_cookie(self.cookie, self._token.decode(), path="/", httponly=True, samesite="strict")
            return answer
        if refusal.status == 401 and scope["path"] == "/":
            # After a link on another site the browser keeps the cookie back, until our own page leads on.
            again = '<meta http-equiv="refresh" content="0; url=/">' if _foreign_site(headers) else ""
            return HTMLResponse(_PAGE.format(again=again), 401)
        extra = {401: {"WWW-Authenticate": "Bearer"}, 429: {"Retry-After": "1"}}.get(refusal.status)
        return JSONResponse({"error": refusal.error}, refusal.status, extra)

    def _refusal(self, scope: Scope, headers: Headers) -> Refusal | None:
        """Why the request is refused, if it is. What costs least to find out comes first."""
        if not scope["path"].startswith("/") or _ODD_PATH.search(scope["path"]):
            return Refusal("path", 404, "there is no such page.")
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_own(hosts[0]):
            advice = f"Use http://127.0.0.1:{self.port}/." if self._local else "Use the address that was printed."
            return Refusal("host", 403, f"this server is not {shown(', '.join(hosts))}. {advice}")
        if reason := _foreign(scope, headers, hosts[0]):
            return Refusal("origin", 403, f"{reason}. Open the address of kedge itself.")
        if self._in_work > self.limits.at_once:
            return Refusal("busy", 429, f"more than {self.limits.at_once} requests at once. Try again in a second.")
        if not self._may_enter(scope, headers):
            return Refusal("token", 401, "the token is missing or wrong. Send `Authorization: Bearer TOKEN`.")
        if _length(headers) > self.limits.body_bytes:
            most = in_bytes(self.limits.body_bytes)
            return Refusal("body", 413, f"the body is too large; the limit is {most}. Send less at a time.")
        return None

    def _is_own(self, host: str) -> bool:
        """Is this Host header one of ours?"""
        found = _HOST.fullmatch(host.lower())
        if not found or int(found["port"] or 80) != self.port:
            return False
        name = found["name"].strip("[]")
        return name in self._names or (not self._local and _is_address(name))

    def _may_enter(self, scope: Scope, headers: Headers) -> bool:
        if (scope["method"], scope["path"]) == OPEN or self._token_in_query(scope):
            return True
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self._is_token(given.strip()):
            return True
        cookies = (pair.strip().partition("=") for part in headers.getlist("cookie") for pair in part.split(";"))
        return any(name == self.cookie and self._is_token(value) for name, _, value in cookies)

    def _token_in_query(self, scope: Scope) -> bool:
        """Is it GET /?token=T with the right token?"""
        if scope["path"] != "/" or scope["method"] != "GET":
            return False
        given = parse_qs(scope["query_string"].decode("latin-1"))
        return any(self._is_token(value) for value in given.get("token", ()))

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(errors="replace"), self._token)

    def _refused(self, scope: Scope, refusal: Refusal) -> None:
        if self.watch:
            self.watch.refused(refusal.kind)
        client = (scope.get("client") or ("unknown",))[0]
        what = f"refused ({refusal.status}): {scope['method']} {shown(scope['path'])} from {client}: {refusal.error}"
        self._told(refusal.kind, what)


class _Told:
    """Tells at most one line of a kind in a while, and then how many were left out."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._last: dict[str, tuple[float, int]] = {}  # kind → when it was last told, and how many came since

    def __call__(self, kind: str, line: str) -> None:
        now = time.monotonic()
        last, left_out = self._last.get(kind, (-QUIET, 0))
        if now - last < QUIET:
            self._last[kind] = last, left_out + 1
            return
        self._last[kind] = now, 0
        self._say(f"{line} (and {count(left_out, 'request')} like it before)" if left_out else line)


def _foreign(scope: Scope, headers: Headers, host: str) -> str:
    """Why the request seems to come from a page of another site; "" if it does not."""
    if _foreign_site(headers):
        opened = (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")) == ("navigate", "document")
        if not (opened and scope["method"] == "GET" and scope["path"] == "/"):
            return "a page of another site asked for this"
    for origin in headers.getlist("origin"):
        own = origin.lower() in (f"http://{host.lower()}", f"https://{host.lower()}")
        if not own and not (origin == "null" and scope["method"] in SAFE):
            return f"the page {shown(origin)} of another site asked for this"
    return ""


def _foreign_site(headers: Headers) -> bool:
    return headers.get("sec-fetch-site", "none").lower() not in ("none", "same-origin")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _length(headers: Headers) -> int:
    """Content-Length; the server has seen that it is a number."""
    given = headers.get("content-length", "0")
    return int(given) if given.isascii() and given.isdigit() and len(given) < 20 else 1 << 62
