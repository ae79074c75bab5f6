"""The application: routers behind a guard. An error is {"error": "one line for a person"} with its status."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from .._version import __version__
from ..errors import KedgeError
from ..words import printable, without_middle
from .guard import Guard, Limits, Watch

LONGEST = 500  # characters of an error

ABOUT = (
    "Test-time adaptation of vision-language models: features or images in, labels out. Every request needs the token: "
    '`Authorization: Bearer TOKEN`. An error is `{"error": "one line"}`.'
)


class App(FastAPI):
    """A FastAPI application that is reached through its guard alone."""

    guard: Guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, if the guard lets it pass."""
        await self.guard(scope, receive, send)

    async def unguarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        """What the guard passes requests on to."""
        await super().__call__(scope, receive, send)


def create_app(
    *routers: APIRouter,
    token: str,
    host: str = "127.0.0.1",
    port: int,
    limits: Limits = Limits(),  # noqa: B008  # frozen
    watch: Watch | None = None,
) -> App:
    """The routers as one application. Its description is at /v1/openapi.json.

    token, host, port, limits: see `Guard`. watch: who is told of every answer, like `v1.metrics.Metrics`.
    """
    app = App(
        title="kedge",
        version=__version__,
        description=ABOUT,
        openapi_url="/v1/openapi.json",
        docs_url=None,  # FastAPI's own pages load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    app.guard = Guard(app.unguarded, token=token, host=host, port=port, limits=limits, watch=watch)
    for router in routers:
        app.include_router(router)
    app.add_exception_handler(KedgeError, _kedge_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(MemoryError, _no_memory)
    app.add_exception_handler(Exception, _unexpected)
    return app


def error(status: int, text: str, headers: Any = None) -> JSONResponse:
    """An answer that says what was wrong, in one line."""
    line = without_middle(printable(" ".join(text.split())), LONGEST)
    return JSONResponse({"error": line}, status, headers)


async def _kedge_error(request: Request, found: Exception) -> JSONResponse:
    return error(400, str(found))


async def _invalid(request: Request, found: Exception) -> JSONResponse:
    """The first thing that is wrong with a body or a parameter, and where."""
    assert isinstance(found, RequestValidationError)
    first = found.errors()[0]
    if first["type"] == "json_invalid":
        return error(422, f"the body is not JSON: {first['ctx']['error']} at character {first['loc'][-1]}.")
    where = ".".join(str(step) for step in first["loc"] if step != "body") or "the body"
    return error(422, f"{where}: {first['msg']}")


async def _http_error(request: Request, found: Exception) -> JSONResponse:
    assert isinstance(found, HTTPException)
    text = "there is no such page." if found.status_code == 404 and found.detail == "Not Found" else found.detail
    return error(found.status_code, text, found.headers)


async def _no_memory(request: Request, found: Exception) -> JSONResponse:
    return error(413, "there is not enough memory for this. Send fewer images or classes at a time.")


async def _unexpected(request: Request, found: Exception) -> JSONResponse:
    return error(500, "kedge failed; the terminal where it runs says why.")
