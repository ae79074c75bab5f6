"""`kedge serve` as a process: its address, its end, a kill in the middle; and its options."""

from __future__ import annotations

import signal
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import kedge
from command import run
from kedge.serve import server
from kedge.serve.server import listen
from page_tools import pictures
from server_process import serving


@pytest.fixture
def features(tmp_path: Path) -> Path:
    """A feature file whose images are there; its encoder is nowhere."""
    made = kedge.simulate(n=40, k=5, d=16, seed=0)
    paths = [f"{i:02d}.png" for i in range(40)]
    (tmp_path / "birds").mkdir()
    for path in paths:
        Image.new("RGB", (8, 8)).save(tmp_path / "birds" / path)
    about = {**made.provenance, "root": "birds"}
    file = tmp_path / "birds.safetensors"
    kedge.FeatureSet.from_arrays(made.image_features, made.head, paths=paths, provenance=about).save(file)
    return file


def test_a_person_s_work_survives_a_kill(features: Path) -> None:
    with serving(str(features)) as first:
        first.labelled()
        two = [first.connection("GET", "/api/events") for _ in range(2)]
        for each in two:
            assert b"event: version\n" in [each.readline() for _ in range(3)]
        after = first.ask("POST", "/api/label", {"images": [3, 4], "label": 1})
        for each in two:  # two tabs agree; a notice that the encoder is not there may come first
            while b'"version":%d' % after["version"] not in each.readline():
                pass
        first.end(signal.SIGKILL)
    with serving(str(features), "--port", str(first.port), "--token", "a-token-of-mine") as second:
        assert (second.port, second.token) == (first.port, "a-token-of-mine")
        again = second.labelled()
        assert again["columns"] == after["columns"]
        assert again["corrections"] == 2
        stream = second.connection("GET", "/api/events")
        assert stream.readline() == b"event: version\n"
        code, out, err = second.end(signal.SIGINT)
        assert (code, out) == (0, "")  # stdout has the address alone
        assert "Traceback" not in err
        assert err.splitlines()[-1] == "stopped; everything is kept"
        assert stream.read().endswith(b"\n\n")  # it ended whole


def test_an_encoder_that_cannot_be_loaded_ends_the_server(tmp_path: Path) -> None:
    photos = pictures(tmp_path / "photos", each=1)
    ran = run("serve", photos, "--encoder", "hf:/nowhere/model", "--no-open", "--port", _free())
    assert ran.code == 2
    assert ran.err.count("error: no folder /nowhere/model") == 1
    assert "Traceback" not in ran.err


def test_a_port_that_is_taken() -> None:
    with listen("127.0.0.1", None) as first, listen("127.0.0.1", None) as second:
        assert first.getsockname()[1] != second.getsockname()[1]
        assert first.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)  # else small answers take 40 ms
        with pytest.raises(kedge.SettingError, match="Choose another with --port"):
            listen("127.0.0.1", second.getsockname()[1])
    with pytest.raises(kedge.SettingError, match="--host"):
        listen("no.such.host.invalid", None)


class Run:
    """Takes the place of `serve`, and notes what it was called with."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.task: Any = None
        self.token = ""
        monkeypatch.setattr(server, "serve", self)

    def __call__(self, work: Any, door: socket.socket, host: str, token: str, ready: Any) -> None:
        self.task, self.token = work.workspace.task, token
        ready("http://address")


def test_without_a_folder_the_demo_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    called = Run(monkeypatch)
    ran = run("serve", "--no-open")
    assert (ran.code, ran.out) == (0, "http://address\n")
    assert "kedge serve photos --classes" in ran.err
    assert len(called.task.paths) == 400
    assert called.task.strangers
    assert called.task.encoder == "tiny"
    assert called.task.work.path == tmp_path / "kedge-demo" / "pictures.kedge"
    assert len(called.token) >= 32  # random
    monkeypatch.setattr("kedge.serve.demo_set.demo_images", lambda place: (place, ("cat", "dog")))  # another version's
    assert run("serve", "--demo", "--no-open").code == 0
    assert len(called.task.class_names) == 177  # it goes on
    assert "for images of your own" in run("serve", "photos", "--demo").err


def test_the_browser_is_opened_if_asked(features: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Run(monkeypatch)
    seen: list[str] = []
    monkeypatch.setattr("webbrowser.open", seen.append)
    run("serve", features)  # no terminal here
    assert not seen
    run("serve", features, "--open")
    assert seen == ["http://address"]


def test_beyond_this_machine_it_says_what_that_means(
    features: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def started(self: Any, sockets: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("uvicorn.Server.run", started)
    monkeypatch.setattr(server, "listen", lambda host, port: listen("127.0.0.1", None))
    ran = run("serve", features, "--host", "0.0.0.0", "--no-open")
    assert ran.code == 0
    assert "can see the images and change labels, and nothing is encrypted" in ran.err
    assert "encrypted" not in run("serve", features, "--no-open").err


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--token", "short"], "8 to 200 letters"),
        (["--classes", "a, b"], "--classes is for images"),
        (["--method", "tda"], "known labels"),
        (["--images", "nowhere"], "nowhere is not a folder"),
    ],
)
def test_options_are_checked_before_anything_starts(features: Path, options: list[str], expected: str) -> None:
    ran = run("serve", features, *options)
    assert ran.code == 2
    assert expected in ran.err
    assert len(ran.err.splitlines()) == 1


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    ran = run("serve", "photos")
    assert ran.code == 2
    assert 'pip install "kedge[serve]"' in ran.err


def _free() -> int:
    with listen("127.0.0.1", 0) as found:
        return int(found.getsockname()[1])
