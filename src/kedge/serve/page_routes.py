"""What the page asks for: /, /page/NAME and /api/… The protocol is the page's own; programs use /v1.

Images are named by their numbers, never by paths. Routes that solve or decode are plain functions, which FastAPI runs
in threads.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable
from importlib.resources import files
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr
from starlette.exceptions import HTTPException

from ..errors import KedgeError
from ..ranges import MOST_IMAGES
from ..words import printable
from . import exports
from .app import error
from .encoding import Encoding
from .image_list import NotNow
from .said import AddClass, DropClass, EditClass, Label, Present, Reject
from .thumbnails import Thumbnails
from .workspace import Workspace

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
INDEX = "index.html"
FOR_EVER = {"Cache-Control": "private, max-age=31536000, immutable"}

Above = Annotated[float | None, Query(ge=0, le=1, allow_inf_nan=False)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Label(_Body):
    images: Annotated[list[StrictInt], Field(min_length=1, max_length=MOST_IMAGES)]
    label: StrictInt | None
    of: StrictStr | None = None  # the list that the numbers are from


class _Present(_Body):
    classes: Annotated[list[StrictInt], Field(min_length=1)]
    present: StrictBool


class _Reject(_Body):
    threshold: StrictFloat | StrictInt | None


class _NewClass(_Body):
    name: StrictStr
    prompt: StrictStr | None = None


class _EditedClass(_Body):
    name: StrictStr = ""
    prompt: StrictStr | None = None


class _Folders(_Body):
    above: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None


def page_router(workspace: Workspace, encoding: Encoding, thumbnails: Thumbnails) -> APIRouter:
    """The routes of the page on this workspace."""
    routes = APIRouter(include_in_schema=False)
    page = _page_files()

    @routes.get("/")
    def index(request: Request) -> Response:
        return _file(page, INDEX, request)

    @routes.get("/page/{name}")
    def page_file(name: str, request: Request) -> Response:
        return _file(page, name, request)

    @routes.get("/api/set")
    def get_set() -> Response:
        return _json(workspace.set())

    @routes.get("/api/labels")
    def get_labels() -> Response:
        return _json(workspace.labels())

    @routes.post("/api/label")
    def label(body: _Label) -> Response:
        images = workspace.images.of(body.of)
        return _json(workspace.change(Label(tuple(map(images.path, body.images)), body.label)))

    @routes.post("/api/present")
    def present(body: _Present) -> Response:
        return _json(workspace.change(Present(tuple(body.classes), body.present)))

    @routes.post("/api/reject")
    def reject(body: _Reject) -> Response:
        return _json(workspace.change(Reject(body.threshold)))

    @routes.post("/api/undo")
    def undo() -> Response:
        return _json(workspace.undo())

    @routes.post("/api/redo")
    def redo() -> Response:
        return _json(workspace.redo())

    @routes.post("/api/classes")
    def add_class(body: _NewClass) -> Response:
        return _json(workspace.change(AddClass(body.name, body.prompt or None)))

    @routes.patch("/api/classes/{number}")
    def edit_class(number: int, body: _EditedClass) -> Response:
        name, prompt = workspace.said_of(number)
        if "name" in body.model_fields_set:
            name = body.name
        if "prompt" in body.model_fields_set:
            prompt = body.prompt or None
        return _json(workspace.change(EditClass(number, name, prompt)))

    @routes.delete("/api/classes/{number}")
    def drop_class(number: int) -> Response:
        return _json(workspace.change(DropClass(number)))

    @routes.get("/api/images/{image}")
    def image(image: int) -> Response:
        return _json(workspace.image(image))

    @routes.get("/api/images/{image}/small")
    def small(image: int, of: str | None = None) -> Response:
        return _picture(lambda: thumbnails.small(workspace.file(image, of)), of)

    @routes.get("/api/images/{image}/large")
    def large(image: int, of: str | None = None) -> Response:
        return _picture(lambda: thumbnails.large(workspace.file(image, of)), of)

    @routes.get("/api/events")
    async def events() -> Response:
        stream: AsyncIterator[bytes] = workspace.events.stream(encoding.first)
        return StreamingResponse(stream, media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    @routes.post("/api/encode-new")
    def encode_new() -> Response:
        encoding.encode_new()
        return _json({}, 202)

    @routes.get("/api/export/{kind}")
    def export(kind: str, above: Above = None) -> Response:
        if kind not in exports.KINDS:
            raise HTTPException(404, f"there is no export {kind!r}. Choose from {', '.join(exports.KINDS)}.")
        content, rows = exports.content(kind, workspace.predictions(), above)
        workspace.journal.add_export(kind, rows, above)
        media_type = "application/json" if kind.endswith(".json") else "text/csv; charset=utf-8"
        return Response(
            content, media_type=media_type, headers={"Content-Disposition": f'attachment; filename="{kind}"'}
        )

    @routes.post("/api/export/folders")
    def folders(body: _Folders) -> Response:
        predictions, task = workspace.predictions(), workspace.task
        made = exports.into_folders(predictions, task.work.exports, task.root, body.above)
        copied = sum(1 for path in made.rglob("*") if path.is_file())
        workspace.journal.add_export("folders", copied, body.above)
        missing = len(exports.accepted(predictions, body.above)) - copied
        return _json({"folder": printable(str(made)), "images": copied, "missing": missing})

    return routes


def not_now(request: Request, found: Exception) -> Response:
    """The answer to something that cannot be done at present."""
    return error(409, str(found))


def _json(value: dict[str, Any], status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def _picture(made: Callable[[], bytes], revision: str | None) -> Response:
    """A picture; 404 if the image is gone or cannot be read. The browser may keep it if its address says of which list
    it is: without, the number may soon be that of another image."""
    try:
        return Response(made(), media_type="image/webp", headers=FOR_EVER if revision else None)
    except NotNow:
        raise
    except KedgeError as found:
        raise HTTPException(404, str(found)) from found


def _page_files() -> dict[str, tuple[bytes, str]]:
    """The files of the page, by name, with their hashes: nothing else is ever served."""
    found = {}
    for file in (files(__package__) / "page").iterdir():
        if file.is_file() and _suffix(file.name) in TYPES:
            content = file.read_bytes()
            found[file.name] = content, f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    return found


def _file(page: dict[str, tuple[bytes, str]], name: str, request: Request) -> Response:
    if name not in page:
        raise HTTPException(404, "there is no such page.")
    content, tag = page[name]
    headers = {"Cache-Control": "no-cache", "ETag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=TYPES[_suffix(name)], headers=headers)


def _suffix(name: str) -> str:
    return name[name.rfind(".") :]
