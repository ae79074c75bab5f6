"""Servers for the tests of `kedge.serve`: in the same process, or uvicorn in a thread with raw sockets."""

from __future__ import annotations

import base64
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
from starlette.testclient import TestClient

from kedge.serve.app import create_app
from kedge.serve.guard import Limits
from kedge.serve.protocol import PromptProtocol
from kedge.serve.v1.routes import Service, router

TOKEN = "token-of-a-test"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


def client(app: Any, **options: Any) -> TestClient:
    """A client of an application that thinks it listens on port 80."""
    return TestClient(app, base_url="http://localhost", headers=BEARER, **options)


def service(streams: Path, **options: Any) -> TestClient:
    """A client of the service for programs."""
    made = Service(streams, **options)
    return client(create_app(router(made), token=TOKEN, port=80, limits=Limits(), watch=made.metrics))


def packed(array: Any) -> dict[str, Any]:
    array = np.asarray(array)
    data = base64.b64encode(array.astype(array.dtype.newbyteorder("<")).tobytes()).decode()
    return {"shape": list(array.shape), "dtype": array.dtype.name, "data": data}


def unpacked(entry: dict[str, Any]) -> np.ndarray[Any, Any]:
    return np.frombuffer(base64.b64decode(entry["data"]), entry["dtype"]).reshape(entry["shape"])


@contextlib.contextmanager
def running(make: Callable[[int], Any], head_seconds: float = 10.0) -> Iterator[int]:
    """uvicorn in a thread, on a free port, which is handed to `make` and to the block."""

    class Protocol(PromptProtocol):
        pass

    Protocol.head_seconds = head_seconds
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        port = door.getsockname()[1]
        config = uvicorn.Config(make(port), http=Protocol, ws="none", lifespan="off", log_level="critical")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [door]})
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield port
        finally:
            server.should_exit = server.force_exit = True
            thread.join()


def raw(port: int, *parts: bytes, pause: float = 0.0, patience: float = 10.0) -> bytes:
    """Send bytes as they are, a part at a time; all that comes back until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=patience) as line:
        with contextlib.suppress(ConnectionError):
            for part in parts:
                line.sendall(part)
                time.sleep(pause)
        answer = b""
        with contextlib.suppress(ConnectionError):
            while block := line.recv(1 << 16):
                answer += block
    return answer


def head(port: int, method: str, path: str, *lines: str, host: str | None = None) -> bytes:
    """The head of a request with the token; its connection is closed after the answer."""
    own = f"127.0.0.1:{port}" if host is None else host
    every = (f"{method} {path} HTTP/1.1", f"Host: {own}", f"Authorization: Bearer {TOKEN}", "Connection: close", *lines)
    return "".join(f"{line}\r\n" for line in every).encode() + b"\r\n"


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])
