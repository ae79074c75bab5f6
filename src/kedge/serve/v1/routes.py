"""The routes under /v1. Work happens in threads of its own, so that the page never waits for programs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.resources import files
from typing import Annotated, Any

import anyio
import msgspec
from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends, HTTPException, Path, Response
from fastapi.security import HTTPBearer

from ..._version import __version__
from .metrics import CONTENT_TYPE
from .models import (
    ID,
    AdaptRequest,
    Error,
    Health,
    Labels,
    PresentRequest,
    StepLabels,
    StepRequest,
    StreamInfo,
    StreamList,
    StreamRequest,
)
from .service import Service

__all__ = ["Service", "router"]

THREADS = 16  # requests that are worked on at one time
DOCS = {"docs.html": "text/html", "docs.js": "text/javascript", "docs.css": "text/css"}

Id = Annotated[str, Path(pattern=ID, description="The id of a stream.")]
Answers = dict[int | str, dict[str, Any]]


def _errors(**meanings: str) -> Answers:
    return {int(status[1:]): {"model": Error, "description": text} for status, text in meanings.items()}


EVERYWHERE = _errors(
    _401="The token is missing or wrong.",
    _403="The request comes from another site.",
    _404="There is no such page or stream.",
    _429="Too many requests at once.",
)
WITH_BODY = _errors(
    _400="The input is not valid.",
    _408="The body did not come in time.",
    _413="The body is too large.",
    _422="The request is not as described.",
)
ONE_STREAM = _errors(_400="The stream cannot be read.", _422="The id is not one.")
CONFLICT = _errors(_409="The stream is at another step, or there are too many streams.")


def router(service: Service) -> APIRouter:
    """The service as routes."""
    routes = APIRouter(prefix="/v1", responses=EVERYWHERE)
    token = [Depends(HTTPBearer(auto_error=False, description="The token that `kedge serve` printed."))]
    limiter = anyio.CapacityLimiter(THREADS)

    async def answered(work: Callable[..., dict[str, Any]], *given: Any, status: int = 200) -> Response:
        content = await run_sync(lambda: msgspec.json.encode(work(*given)), limiter=limiter)  # NaN becomes null
        return Response(content, status, media_type="application/json")

    post = partial(routes.post, dependencies=token)
    get = partial(routes.get, dependencies=token)

    @routes.get("/health", response_model=Health)
    async def health() -> dict[str, str]:
        """Does the server answer? No token is needed."""
        return {"status": "ok", "version": __version__}

    @get(
        "/metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def metrics() -> Response:
        """Numbers for Prometheus."""
        return Response(await run_sync(service.metrics.text, limiter=limiter), headers={"Content-Type": CONTENT_TYPE})

    @post("/adapt", response_model=Labels, responses=WITH_BODY)
    async def adapt(request: AdaptRequest) -> Response:
        """Label n images jointly, as `kedge.adapt` does."""
        return await answered(service.adapt, request)

    @post("/streams", response_model=StreamInfo, status_code=201, responses={**WITH_BODY, **CONFLICT})
    async def create_stream(request: StreamRequest) -> Response:
        """Begin a stream of batches, as `kedge.Stream` does. The method may remember earlier batches."""
        return await answered(service.create, request, status=201)

    @get("/streams", response_model=StreamList)
    async def list_streams() -> Response:
        """All streams, the last used first."""
        return await answered(service.all_streams)

    @get("/streams/{id}", response_model=StreamInfo, responses=ONE_STREAM)
    async def stream(id: Id) -> Response:
        """What a stream is, and how many batches it has had."""
        return await answered(service.info, id)

    @post("/streams/{id}/step", response_model=StepLabels, responses={**WITH_BODY, **CONFLICT})
    async def step(id: Id, request: StepRequest) -> Response:
        """Label the next batch. The stream is saved before the answer is sent."""
        return await answered(service.step, id, request)

    @routes.put("/streams/{id}/present", response_model=StreamInfo, responses=WITH_BODY, dependencies=token)
    async def present(id: Id, request: PresentRequest) -> Response:
        """Change the classes that can occur. Some methods refuse that after the first batch."""
        return await answered(service.present, id, request)

    state_file = {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}

    @get("/streams/{id}/state", response_class=Response, responses={**ONE_STREAM, 200: state_file})
    async def state(id: Id) -> Response:
        """The stream as a safetensors file, which `kedge.Stream.load` reads."""
        content = await run_sync(service.streams.content, id, limiter=limiter)
        name = f'attachment; filename="{id}.safetensors"'
        return Response(content, media_type="application/octet-stream", headers={"Content-Disposition": name})

    @routes.delete("/streams/{id}", status_code=204, response_class=Response, responses=ONE_STREAM, dependencies=token)
    async def delete_stream(id: Id) -> None:
        """Delete a stream and its file."""
        await run_sync(service.streams.delete, id, limiter=limiter)

    @routes.get("/docs", include_in_schema=False)
    @routes.get("/docs/{name}", include_in_schema=False)
    async def docs(name: str = "docs.html") -> Response:
        """This description as a page."""
        if name not in DOCS:
            raise HTTPException(404)
        return Response((files(__package__) / "docs" / name).read_bytes(), media_type=DOCS[name])

    return routes
