"""A small folder of bundled pictures, and the page's routes on it, without a network."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from kedge.encoders.encoder import Encoder
from kedge.encoders.names import load_encoder
from kedge.encoders.tiny import unpack
from kedge.serve.server import Work, opened
from kedge.serve.task import Options

SHOWN = ("bicycle", "cat", "guitar", "hammer", "mushroom", "umbrella")
NAMES = (*SHOWN, "dog", "violin")  # the last two are in no picture
EACH = 7
TOKEN, PORT = "token-of-tests", 8017
SECONDS = 60.0  # that a test waits for anything


@lru_cache
def tiny() -> Encoder:
    return load_encoder("tiny", device="cpu")


@pytest.fixture
def quick_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny model is loaded once for all tests; no other encoder can be loaded."""

    def load(name: str, device: str = "auto") -> Encoder:
        return tiny() if name == "tiny" else load_encoder(name, device=device)

    monkeypatch.setattr("kedge.serve.task.load_encoder", load)
    monkeypatch.setattr("kedge.serve.encoding.warm_up", lambda: None)


def pictures(place: Path, each: int = EACH, first: int = 0, shown: Sequence[str] = SHOWN) -> Path:
    """Bundled pictures of these classes, in folders by class."""
    unpacked = unpack(place.parent / "bundled", set(shown))
    for name in shown:
        (place / name).mkdir(parents=True, exist_ok=True)
        for file in sorted((unpacked / name).iterdir())[first : first + each]:
            shutil.copy(file, place / name)
    return place


class Page:
    """What a browser would do."""

    def __init__(self, work: Work) -> None:
        self.work, self.workspace = work, work.workspace
        app = work.app(TOKEN, "127.0.0.1", PORT)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        self.client = TestClient(
            app, base_url=f"http://127.0.0.1:{PORT}", headers=headers, raise_server_exceptions=False
        )

    def get(self, path: str, status: int = 200, **options: Any) -> Any:
        return self._answer(self.client.get(f"/api/{path}", **options), status)

    def post(self, path: str, body: Any = None, status: int = 200, method: str = "POST") -> Any:
        return self._answer(self.client.request(method, f"/api/{path}", json=body), status)

    def label(self, image: int | list[int], label: int | None) -> Any:
        return self.post("label", {"images": image if isinstance(image, list) else [image], "label": label})

    def _answer(self, answer: Any, status: int) -> Any:
        assert answer.status_code == status, answer.text
        return answer.json()


@contextlib.contextmanager
def page(source: Path, work: Path | None = None, strangers: bool = False, **options: Any) -> Iterator[Page]:
    """A server on this source, opened and labelled."""
    with opened(source, Options(**options), work, workers=0, strangers=strangers) as found:
        found.encoding.start()
        assert found.encoding.wait(SECONDS)
        if found.encoding.error is not None:
            raise found.encoding.error
        yield Page(found)
