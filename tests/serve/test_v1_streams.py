from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

import kedge
from cases import ON_FEATURES, simulated
from kedge.serve.v1 import streams
from serving import packed, service, unpacked

N, K, D, STEPS = 12, 4, 8, 4
ROWS, T = (a.float().numpy() for a in simulated(N * STEPS, K, D, noise=0.6))
BATCHES = np.split(ROWS, STEPS)
HEAD = {"text_features": packed(T), "logit_scale": 10.0, "classes": ["cat", "dog", "hen", "cow"]}


@pytest.fixture
def client(tmp_path: Path) -> TestClient:
    return service(tmp_path / "streams")


def created(client: TestClient, **more: Any) -> str:
    answer = client.post("/v1/streams", json={**HEAD, **more})
    assert answer.status_code == 201, answer.text
    found: str = answer.json()["id"]
    return found


def step(client: TestClient, stream: str, batch: Any, **more: Any) -> Any:
    asked = {"image_features": packed(batch), "probs": True, **more}
    return client.post(f"/v1/streams/{stream}/step", json=asked)


def alone(method: str = "kedge", **more: Any) -> kedge.Stream:
    """The same stream without a server."""
    return kedge.Stream(kedge.TextHead.from_arrays(T, 10.0, HEAD["classes"]), method, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", [*ON_FEATURES, "stata:alpha=2"])
def test_the_same_bits_as_a_stream_of_the_library(tmp_path: Path, method: str) -> None:
    """Also if the server starts again in the middle."""
    client, expected = service(tmp_path / "streams"), alone(method)
    stream = created(client, method=method)
    for i, batch in enumerate(BATCHES):
        if i == 2:
            client = service(tmp_path / "streams")
        answer = step(client, stream, batch, step=i).json()
        assert np.array_equal(unpacked(answer["probs"]), expected.step(batch).probs)
        assert answer["step"] == i + 1


def test_streams_that_leave_memory_go_on(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "KEPT", 1)
    loads: list[Any] = []
    load = kedge.Stream.load
    monkeypatch.setattr(kedge.Stream, "load", lambda path: loads.append(path) or load(path))
    names, expected = [created(client, method="oga") for _ in range(2)], [alone("oga") for _ in range(2)]
    for batch in BATCHES:
        for name, same in zip(names, expected, strict=True):
            answer = step(client, name, batch).json()
            assert np.array_equal(unpacked(answer["probs"]), same.step(batch).probs)
    assert len(loads) == 2 * STEPS  # each step of one sends the other away


def test_known_labels_and_rejection(client: TestClient) -> None:
    stream, expected = created(client, method="kedge"), alone()
    answer = step(client, stream, BATCHES[0], known={"0": "hen", "3": -2}, reject=0.3).json()
    result = expected.step(BATCHES[0], known={0: 2, 3: -2}, reject=0.3)
    assert unpacked(answer["labels"]).tolist() == result.labels.tolist()
    assert answer["names"][0] == "hen"
    assert answer["names"][3] == "none of these"


def test_the_state_is_a_file_of_the_library(client: TestClient, tmp_path: Path) -> None:
    stream = created(client, method="tda")
    step(client, stream, BATCHES[0])
    answer = client.get(f"/v1/streams/{stream}/state")
    assert answer.headers["content-disposition"] == f'attachment; filename="{stream}.safetensors"'
    (tmp_path / "mine.safetensors").write_bytes(answer.content)
    mine = kedge.Stream.load(tmp_path / "mine.safetensors")
    assert mine.steps == 1
    theirs = step(client, stream, BATCHES[1]).json()
    assert np.array_equal(unpacked(theirs["probs"]), mine.step(BATCHES[1]).probs)


def test_a_repeated_request_does_no_harm(client: TestClient) -> None:
    stream = created(client, method="oga")
    assert step(client, stream, BATCHES[0], step=0).status_code == 200
    before = client.get(f"/v1/streams/{stream}/state").content
    again = step(client, stream, BATCHES[0], step=0)
    assert again.status_code == 409
    assert "1 batch" in again.json()["error"]
    assert client.get(f"/v1/streams/{stream}/state").content == before
    assert step(client, stream, BATCHES[1], step=1).json()["step"] == 2


def test_a_bad_batch_leaves_the_stream_as_it_was(client: TestClient) -> None:
    stream, expected = created(client, method="oga"), alone("oga")
    for bad in (2 * BATCHES[0], BATCHES[0][:, 1:], np.full((2, D), np.nan, np.float32)):
        assert step(client, stream, bad).status_code == 400
    assert np.array_equal(unpacked(step(client, stream, BATCHES[0]).json()["probs"]), expected.step(BATCHES[0]).probs)


def test_what_a_stream_is(client: TestClient) -> None:
    stream = created(client, method="stata:alpha=2", present=["dog", 3], normalize=True)
    found = client.get(f"/v1/streams/{stream}").json()
    assert found["id"] == stream
    assert found["method"]["alpha"] == 2
    assert (found["classes"], found["dimension"], found["logit_scale"]) == (HEAD["classes"], D, 10.0)
    assert (found["present"], found["normalize"], found["step"]) == ([1, 3], True, 0)
    other = created(client)
    listed = client.get("/v1/streams").json()["streams"]
    assert {entry["id"] for entry in listed} == {stream, other}
    assert all(entry["bytes"] > 0 for entry in listed)


def test_the_classes_that_can_occur(client: TestClient, tmp_path: Path) -> None:
    stream = created(client)
    answer = client.put(f"/v1/streams/{stream}/present", json={"present": ["cat", "hen"]})
    assert answer.json()["present"] == [0, 2]
    again = service(tmp_path / "streams")  # it was saved
    assert set(step(again, stream, BATCHES[0]).json()["names"]) <= {"cat", "hen"}
    assert again.put(f"/v1/streams/{stream}/present", json={"present": None}).json()["present"] is None
    assert again.put(f"/v1/streams/{stream}/present", json={}).status_code == 422
    assert again.put(f"/v1/streams/{stream}/present", json={"present": ["owl"]}).status_code == 400
    fixed = created(again, method=next(name for name in ON_FEATURES if _remembers_as_a_whole(name)))
    step(again, fixed, BATCHES[0])
    assert again.put(f"/v1/streams/{fixed}/present", json={"present": [0]}).status_code == 400
    assert again.get(f"/v1/streams/{fixed}").json()["present"] is None


def _remembers_as_a_whole(method: str) -> bool:
    traits = kedge.find_method(method).traits
    return traits.memory == "stream" and not traits.by_class


def test_a_deleted_stream_is_gone(client: TestClient, tmp_path: Path) -> None:
    stream = created(client)
    assert client.delete(f"/v1/streams/{stream}").status_code == 204
    for answer in (
        client.get(f"/v1/streams/{stream}"),
        client.get(f"/v1/streams/{stream}/state"),
        client.delete(f"/v1/streams/{stream}"),
        step(client, stream, BATCHES[0]),
        client.put(f"/v1/streams/{stream}/present", json={"present": [0]}),
    ):
        assert (answer.status_code, "no such stream" in answer.json()["error"]) == (404, True)
    assert client.get("/v1/streams").json() == {"streams": []}
    assert list((tmp_path / "streams").iterdir()) == []


@pytest.mark.parametrize(
    "name", ["x", "A" * 32, "0" * 31, "../secret", "..", "%2e%2e%2fsecret", "0" * 32 + "%0a", "%00"]
)
def test_an_id_is_never_a_path(client: TestClient, tmp_path: Path, name: str) -> None:
    alone().save(tmp_path / "secret.safetensors")
    assert client.get(f"/v1/streams/{name}").status_code in (404, 422)
    assert client.get(f"/v1/streams/{name}/state").status_code in (404, 422)
    assert client.delete(f"/v1/streams/{name}").status_code in (404, 405, 422)
    assert (tmp_path / "secret.safetensors").exists()
    with pytest.raises(Exception, match="no such stream"):
        streams.Streams(tmp_path / "streams").content(name)


@pytest.mark.parametrize("forge", [Path.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_file_is_no_stream(client: TestClient, tmp_path: Path, forge: Callable[[Path], None]) -> None:
    name = "0" * 32
    forge(tmp_path / "streams" / f"{name}.safetensors")
    for path in (name, f"{name}/state"):
        answer = client.get(f"/v1/streams/{path}")
        assert (answer.status_code, "not a" in answer.json()["error"]) == (400, True)
    assert client.delete(f"/v1/streams/{name}").status_code in (204, 400)


def test_ids_cannot_be_guessed(client: TestClient) -> None:
    names = {created(client) for _ in range(5)}
    assert len(names) == 5
    assert all(len(name) == 32 for name in names)


def test_a_limit_on_their_number(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MOST", 2)
    first = created(client)
    created(client)
    answer = client.post("/v1/streams", json=HEAD)
    assert (answer.status_code, "Delete some" in answer.json()["error"]) == (409, True)
    client.delete(f"/v1/streams/{first}")
    created(client)


def test_a_limit_on_their_size(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "STREAM_BYTES", T.nbytes + 1)
    created(client, method="zero-shot")  # it remembers nothing
    answer = client.post("/v1/streams", json={**HEAD, "method": "tda"})
    assert (answer.status_code, "the limit" in answer.json()["error"]) == (400, True)
    assert len(client.get("/v1/streams").json()["streams"]) == 1


def test_methods_that_need_more_than_features_are_refused(client: TestClient) -> None:
    for method, what in (("mta", "views"), ("tent", "encoder")):
        answer = client.post("/v1/streams", json={**HEAD, "method": method})
        assert (answer.status_code, what in answer.json()["error"]) == (400, True)


def test_a_full_disk_leaves_the_stream_as_it_was(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, expected = created(client, method="oga"), alone("oga")
    step(client, stream, BATCHES[0])
    expected.step(BATCHES[0])

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        answer = step(client, stream, BATCHES[1], step=1)
    assert (answer.status_code, "No space left" in answer.json()["error"]) == (507, True)
    assert len(list((tmp_path / "streams").iterdir())) == 1
    answer = step(client, stream, BATCHES[1], step=1)
    assert np.array_equal(unpacked(answer.json()["probs"]), expected.step(BATCHES[1]).probs)


def test_a_kill_in_the_middle_of_saving_loses_the_step_under_way(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, expected = created(client, method="oga"), alone("oga")
    step(client, stream, BATCHES[0])
    expected.step(BATCHES[0])

    class Killed(BaseException):
        pass

    def killed(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", killed)
        patched.setattr(Path, "unlink", lambda *_, **__: None)  # a killed process cleans nothing up
        with pytest.raises(Killed):
            streams.Streams(tmp_path / "streams").change(stream, lambda found: found.step(BATCHES[1]))
    assert len(list((tmp_path / "streams").iterdir())) == 2  # an unfinished file
    again = service(tmp_path / "streams")
    assert len(list((tmp_path / "streams").iterdir())) == 1
    answer = step(again, stream, BATCHES[1], step=1)
    assert np.array_equal(unpacked(answer.json()["probs"]), expected.step(BATCHES[1]).probs)


def test_a_damaged_file_is_an_error_in_one_line(client: TestClient, tmp_path: Path) -> None:
    stream = created(client)
    (tmp_path / "streams" / f"{stream}.safetensors").write_bytes(b"damaged")
    again = service(tmp_path / "streams")
    assert again.get(f"/v1/streams/{stream}").status_code == 400
    assert again.delete(f"/v1/streams/{stream}").status_code == 204


def test_steps_of_one_stream_wait_for_each_other(tmp_path: Path) -> None:
    kept, inside, most = streams.Streams(tmp_path), 0, 0
    name = kept.create(alone("oga"))

    def work(stream: kedge.Stream) -> int:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        stream.step(BATCHES[0])
        inside -= 1
        return stream.steps

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: kept.change(name, work), range(16)))
    assert sorted(found) == list(range(1, 17))
    assert most == 1
    assert kedge.Stream.load(tmp_path / f"{name}.safetensors").steps == 16


def test_different_streams_run_in_parallel(tmp_path: Path) -> None:
    kept, together = streams.Streams(tmp_path), threading.Barrier(2, timeout=10)
    names = [kept.create(alone()) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda name: kept.change(name, lambda _: together.wait()), names))


def test_a_stream_in_use_stays_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise another request would load it from disk meanwhile, and one of two steps would be lost."""
    monkeypatch.setattr(streams, "KEPT", 0)
    kept, began, go_on = streams.Streams(tmp_path), threading.Event(), threading.Event()
    name = kept.create(alone("oga"))

    def slowly(stream: kedge.Stream) -> None:
        began.set()
        go_on.wait(10)
        stream.step(BATCHES[0])

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(kept.change, name, slowly)
        began.wait(10)
        kept.create(alone())  # makes room
        second = pool.submit(kept.change, name, lambda stream: stream.step(BATCHES[1]))
        go_on.set()
        first.result(), second.result()
    assert kept.use(name, lambda stream: stream.steps) == 2
    assert not kept._kept
