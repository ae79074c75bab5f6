"""The server of `kedge serve`: one work folder, one process, one port.

    with opened(Path("photos"), options) as work, listen("127.0.0.1", None) as door:
        serve(work, door, "127.0.0.1", new_token(), print)

It listens on 127.0.0.1 unless told otherwise. Whoever knows the token can see the images and change labels.
"""

from __future__ import annotations

import contextlib
import errno
import secrets
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from urllib.parse import quote

import uvicorn
from fastapi import FastAPI

from ..errors import KedgeError, SettingError
from ..progress import tell
from .app import create_app
from .encoding import Encoding
from .events import Events
from .guard import LOCAL
from .image_list import NotNow
from .journal import Journal
from .page_routes import not_now, page_router
from .protocol import PromptProtocol
from .task import Options, open_task
from .thumbnails import Thumbnails
from .v1.routes import Service
from .v1.routes import router as v1_router
from .work_folder import WorkFolder
from .workspace import Workspace

PORT, TRIED = 8017, 50  # the first port that is tried, and how many
AT_ONCE = 256  # connections; twice as many as the guard lets in, so that it can say so
END_SECONDS = 3  # that requests under way have when the server ends


@dataclass(frozen=True, eq=False)
class Work:
    """What a server needs to serve one work folder."""

    workspace: Workspace
    encoding: Encoding

    def app(self, token: str, host: str, port: int) -> FastAPI:
        """The page and the service for programs."""
        task = self.workspace.task
        page = page_router(self.workspace, self.encoding, Thumbnails(task.work.thumbnails))
        service = Service(task.work.streams, task.load)
        app = create_app(page, v1_router(service), token=token, host=host, port=port, watch=service.metrics)
        app.add_exception_handler(NotNow, not_now)
        return app


@contextlib.contextmanager
def opened(
    source: Path,
    options: Options,
    work: Path | None = None,
    workers: int | None = None,
    strangers: bool = False,
) -> Iterator[Work]:
    """Open the work on a source; other servers are kept out of its folder until the block ends.

    work: the folder for it, if it is not beside the source. workers: see `kedge.extract`. strangers: see `Task`.
    """
    folder = WorkFolder.of(source, work)
    with folder.locked(), contextlib.closing(Journal(folder.journal)) as journal:
        try:
            task = open_task(source, folder, journal, options, moved=work is None, strangers=strangers)
        except KedgeError:
            if journal.about() is None:
                journal.close()
                folder.discard()  # so that a slip leaves nothing behind
            raise
        workspace = Workspace(task, journal, Events())
        encoding = Encoding(workspace, workers)
        try:
            yield Work(workspace, encoding)
        finally:
            workspace.events.close()
            encoding.stop()


def listen(host: str, port: int | None) -> socket.socket:
    """A socket at this port; None: at 8017, or the next port that is free."""
    for number in range(PORT, PORT + TRIED) if port is None else (port,):
        try:
            family = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM)[0][0]
            door = socket.create_server((host, number), family=family, backlog=128)
            door.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else a small answer waits 40 ms for its end
            return door
        except socket.gaierror as error:
            raise SettingError(f"--host {host}: {error.strerror}. Give an address of this machine.") from error
        except OSError as error:
            if error.errno != errno.EADDRINUSE or port is not None:
                why = (error.strerror or str(error)).partition(" (")[0]  # Python adds the address in its own words
                raise SettingError(
                    f"cannot listen at {host}, port {number}: {why}. Choose another with --port and --host."
                ) from error
    raise SettingError(f"the ports from {PORT} to {PORT + TRIED - 1} are all in use. Choose another with --port.")


def new_token() -> str:
    """A random token."""
    return secrets.token_urlsafe(24)


def serve(work: Work, door: socket.socket, host: str, token: str, ready: Callable[[str], None]) -> None:
    """Serve until Ctrl-C; `ready` is called with the address once the server answers.

    If the images cannot be encoded the first time, the server ends with that error.
    """
    port = door.getsockname()[1]
    if not is_local(host):
        tell(
            f"note: --host {host} lets other machines in. Everyone who has the address with its token can see the "
            "images and change labels, and nothing is encrypted on the way."
        )
    events, encoding = work.workspace.events, work.encoding
    address = f"http://{_shown_host(host)}:{port}/?token={quote(token)}"

    class Server(uvicorn.Server):
        """Says when it is ready, and ends the event streams before it waits for connections."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            encoding.start()
            ready(address)

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            events.close()
            super().handle_exit(sig, frame)

        def end(self) -> None:
            """End the server, from another thread."""
            events.close()
            self.should_exit = True

    server = Server(
        uvicorn.Config(
            work.app(token, host, port),
            http=PromptProtocol,
            ws="none",
            limit_concurrency=AT_ONCE,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=END_SECONDS,
        )
    )
    encoding.failed = server.end
    with contextlib.suppress(KeyboardInterrupt):  # the usual end
        server.run([door])
    if encoding.error is not None:
        raise encoding.error


def is_local(host: str) -> bool:
    """Is it a name of this machine that others cannot reach?"""
    return host in LOCAL


def _shown_host(host: str) -> str:
    """The host in an address that people open."""
    if host in ("0.0.0.0", "::"):
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host
