from __future__ import annotations

import base64
import io
import json
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from starlette.testclient import TestClient

import kedge
from cases import ON_FEATURES, simulated
from kedge.encoders.tiny import IMAGES
from kedge.serve.v1 import routes, service
from serving import packed, unpacked
from serving import service as served

N, K, D = 24, 4, 16
X, T = (a.float().numpy() for a in simulated(N, K, D))
NAMES = ["cat", "dog", "käse", "a b"]
BATCH = {"image_features": X.tolist(), "text_features": T.tolist()}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    return served(tmp_path_factory.mktemp("v1") / "streams")


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    """A service with the bundled encoder."""
    encoder = kedge.load_encoder("tiny")
    return served(tmp_path_factory.mktemp("v1") / "streams", encoder=lambda: encoder)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three pictures each of three classes."""
    place = tmp_path_factory.mktemp("pictures")
    with zipfile.ZipFile(IMAGES) as archive:
        for name in ("airplane", "apple", "bicycle"):
            for i in range(3):
                archive.extract(f"{name}/{i:02}.webp", place)
    return place


def sent(folder: Path) -> list[str]:
    return [base64.b64encode(path.read_bytes()).decode() for path in sorted(folder.glob("*/*.webp"))]


def same(answer: dict[str, Any], result: kedge.Result[Any]) -> bool:
    """Is an answer in lists this result, bit for bit?"""
    dtype = result.probs.dtype
    return (
        np.array_equal(np.array(answer["probs"], dtype), result.probs)
        and np.array_equal(np.array(answer["probability"], dtype), result.probs.max(axis=1))
        and np.array_equal(np.array(answer["none"], dtype), result.none)
        and answer["labels"] == result.labels.tolist()
        and answer["zero_shot_labels"] == result.zero_shot.argmax(axis=1).tolist()
        and answer["review"] == result.review.tolist()
        and answer["classes"] == [vars(found) for found in result.classes]
        and answer["verdict"] == vars(result.verdict)
        and answer["info"].keys() == result.info.keys()
    )


@pytest.mark.parametrize(
    "said", [{}, {"known": {"3": 1, "5": -2}, "reject": 0.5}, {"present": [0, 2], "method": "stata"}]
)
def test_answers_are_those_of_the_library(client: TestClient, said: dict[str, Any]) -> None:
    answer = client.post("/v1/adapt", json={**BATCH, **said, "probs": True}).json()
    known = {int(image): label for image, label in said["known"].items()} if "known" in said else None
    assert same(answer, kedge.adapt(X, T, **{**said, "known": known}))
    assert answer["names"] == [f"class {label}" if label >= 0 else "none of these" for label in answer["labels"]]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_packed_arrays_keep_every_bit(client: TestClient, dtype: str) -> None:
    x, t = X.astype(dtype), T.astype(dtype)
    answer = client.post(
        "/v1/adapt", json={"image_features": packed(x), "text_features": packed(t), "probs": True}
    ).json()
    result = kedge.adapt(x, t)
    for name, expected in (("probs", result.probs), ("labels", result.labels), ("none", result.none)):
        found = unpacked(answer[name])
        assert found.dtype == expected.dtype
        assert np.array_equal(found, expected)
    assert unpacked(answer["review"]).tolist() == result.review.tolist()


@settings(max_examples=40)
@given(
    n=st.integers(1, 9),
    k=st.integers(1, 5),
    d=st.integers(1, 6),
    seed=st.integers(0, 99),
    method=st.sampled_from([*ON_FEATURES, "calibrated:stata", "stata:alpha=0,beta=soft", "kedge:no=1", "mta", "moon:"]),
    scale=st.floats(1e-4, 1e7),
    extreme=st.sampled_from([1.0, 1e30, 1e-30]),
    normalize=st.booleans(),
    known=st.none() | st.dictionaries(st.integers(0, 9), st.integers(-2, 5) | st.just("Class 1"), max_size=3),
    present=st.none() | st.lists(st.integers(0, 5) | st.sampled_from(["class_0", ""]), min_size=1, max_size=4),
    reject=st.none() | st.floats(0, 1.5),
)  # fmt: skip
def test_whatever_is_asked_the_answer_or_the_error_is_the_library_s(
    client: TestClient, n: int, k: int, d: int, seed: int, method: str, scale: float, extreme: float, **said: Any
) -> None:
    x, t = (a.float().numpy() for a in simulated(n, k, d, seed=seed))
    x = x * np.float32(extreme)
    known = said["known"]
    asked = {**said, "known": None if known is None else {str(image): label for image, label in known.items()}}
    batch = {"image_features": x.tolist(), "text_features": t.tolist(), "logit_scale": scale, "method": method}
    answer = client.post("/v1/adapt", json={**batch, **asked, "probs": True})
    try:
        expected, error = kedge.adapt(x, t, method, scale, **said), ""
    except kedge.KedgeError as refused:
        expected, error = None, str(refused)
    if expected is not None:
        assert answer.status_code == 200, answer.text
        assert same(answer.json(), expected)
    else:
        assert answer.status_code == 422 or (answer.status_code, answer.json()["error"]) == (400, error)


def test_names_of_classes(client: TestClient) -> None:
    said = {"classes": NAMES, "known": {"0": "Käse", "1": "dog"}, "present": ["dog", "käse", "A_B"]}
    answer = client.post("/v1/adapt", json={**BATCH, **said}).json()
    assert answer["names"][:2] == ["käse", "dog"]
    assert "cat" not in answer["names"]
    assert "probs" not in answer
    twice = client.post("/v1/adapt", json={**BATCH, "classes": ["a", "a", "b", "c"], "known": {"0": "a"}})
    assert "the name of 2 classes" in twice.json()["error"]


def test_images_are_encoded_as_in_classify(seeing: TestClient, pictures: Path) -> None:
    classes = ["airplane", "apple", "bicycle", "dog"]
    answer = seeing.post("/v1/adapt", json={"images": sent(pictures), "classes": classes, "probs": True}).json()
    found = kedge.classify(pictures, classes, "tiny").result
    assert np.array_equal(np.array(answer["probs"], np.float32), found.probs.numpy())
    assert answer["verdict"] == vars(found.verdict)
    assert "distance" in answer["verdict"]["numbers"]  # the bundled encoder says which images it knows
    scaled = seeing.post("/v1/adapt", json={"images": sent(pictures), "classes": classes, "logit_scale": 1e-3}).json()
    assert scaled["verdict"]["level"] == "do not use"


def test_a_method_that_adapts_the_encoder_gets_the_images(seeing: TestClient, pictures: Path) -> None:
    classes = ["airplane", "apple"]
    asked = {"images": sent(pictures), "classes": classes, "method": "tent", "probs": True}
    answer = seeing.post("/v1/adapt", json=asked)
    assert answer.status_code == 200, answer.text
    expected = kedge.classify(pictures, classes, "tiny", "tent").result.probs
    assert torch.allclose(torch.tensor(answer.json()["probs"]), expected, atol=1e-5)
    features = seeing.post("/v1/adapt", json={**BATCH, "method": "tent"})
    assert (features.status_code, "needs the images" in features.text) == (400, True)


def test_without_an_encoder_images_and_names_are_refused(client: TestClient) -> None:
    for asked in ({"images": ["AAAA"], "text_features": T.tolist()}, {"image_features": X.tolist(), "classes": NAMES}):
        answer = client.post("/v1/adapt", json=asked)
        assert (answer.status_code, "has no encoder" in answer.json()["error"]) == (400, True)


def png(width: int, height: int) -> bytes:
    """A tiny file of a huge image: one row of it, all the rest is missing."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("size", [(30_000, 30_000), (10_000, 5_001), (2**31 - 1, 1)])
def test_image_bombs(seeing: TestClient, size: tuple[int, int]) -> None:
    asked = {"images": [base64.b64encode(png(*size)).decode()], "classes": ["cat"]}
    answer = seeing.post("/v1/adapt", json=asked)
    assert answer.status_code == 400
    assert "pixels" in answer.json()["error"]
    assert "image 0" in answer.json()["error"]


@pytest.mark.parametrize("content", [b"", b"no image", b"GIF89a", b"%!PS-Adobe", b"\x89PNG\r\n\x1a\n"])
def test_what_is_no_image(seeing: TestClient, content: bytes) -> None:
    answer = seeing.post("/v1/adapt", json={"images": [base64.b64encode(content).decode()], "classes": ["cat"]})
    assert answer.status_code in (400, 422)
    assert seeing.post("/v1/adapt", json={"images": ["/etc/passwd"], "classes": ["cat"]}).status_code == 400


def test_a_small_image_passes(seeing: TestClient) -> None:
    file = io.BytesIO()
    Image.new("RGB", (3, 2), "red").save(file, "PNG")
    asked = {"images": [base64.b64encode(file.getvalue()).decode()], "classes": ["apple", "dog"], "templates": ["{}"]}
    assert len(seeing.post("/v1/adapt", json=asked).json()["labels"]) == 1


def test_too_many_prompts(seeing: TestClient) -> None:
    asked = {"image_features": X.tolist(), "classes": ["a"] * 10_000, "templates": ["{}", "a {}"]}
    assert "prompts" in seeing.post("/v1/adapt", json=asked).json()["error"]


HUGE = {"shape": [100_000, 100_000], "dtype": "float64", "data": "AAAA"}


@pytest.mark.parametrize(
    "array",
    [
        HUGE,
        {**HUGE, "shape": [10**18, 10**18]},
        {**HUGE, "shape": [-1, 3]},
        {**HUGE, "shape": [1]},
        {**HUGE, "shape": [1, 1], "data": "é" * 12},
        {**HUGE, "shape": [1, 1], "data": "AAAA\nAAAAAAA"},
        {**HUGE, "shape": [1, 1], "data": "A===========", "dtype": "float64"},
        {**HUGE, "shape": [1, 1], "data": "AAAAAAAAAAAA"},  # one byte too many
        {**HUGE, "dtype": "object"},
        packed(np.full((2, D), np.nan, np.float32)),
        packed(np.full((2, D), np.inf)),
        {**packed(X), "more": 1},
        [[1.0, 0.0], [1.0]],
        [[True] * D],
        [["1"] * D],
        [[1e39] * D],
        [[10**400] * D],
        [[]],
        [],
        5,
        "AAAA",
    ],
)
def test_arrays_that_are_none(client: TestClient, array: Any) -> None:
    for asked in ({**BATCH, "image_features": array}, {**BATCH, "text_features": array}):
        answer = client.post("/v1/adapt", json=asked)
        assert answer.status_code in (400, 422)
        assert list(answer.json()) == ["error"]
        assert "\n" not in answer.json()["error"]


def test_bytes_are_counted_before_they_are_decoded(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base64, "b64decode", lambda *_, **__: pytest.fail("decoded"))
    assert "80,000,000,000 bytes" in client.post("/v1/adapt", json={**BATCH, "text_features": HUGE}).json()["error"]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_not_finite(client: TestClient, number: str) -> None:
    for name in ("reject", "logit_scale"):
        text = json.dumps({**BATCH, name: 0.5}).replace("0.5}", f"{number}}}")
        assert client.post("/v1/adapt", content=text, headers={"content-type": "application/json"}).status_code == 422
    text = json.dumps({**BATCH, "image_features": [[0.25, 1]]}).replace("0.25", number)
    assert client.post("/v1/adapt", content=text, headers={"content-type": "application/json"}).status_code == 422


@pytest.mark.parametrize(
    "asked",
    [
        {},
        [],
        None,
        {**BATCH, "images": ["AAAA"]},
        {"image_features": X.tolist()},
        {**BATCH, "templates": ["{}"]},
        {**BATCH, "surprise": 1},
        {**BATCH, "method": "no-such-method"},
        {**BATCH, "method": "stata:alpha=nan"},
        {**BATCH, "method": "calibrated:" * 45 + "stata"},
        {**BATCH, "method": "\ud800"},
        {**BATCH, "classes": ["\ud800", "b", "c", "d"]},
        {**BATCH, "classes": ["a\0", "b", "c", "d"]},
        {**BATCH, "classes": ["a"]},
        {**BATCH, "known": {"-1": 0}},
        {**BATCH, "known": {"24": 0}},
        {**BATCH, "known": {"01": 0}},
        {**BATCH, "known": [0]},
        {**BATCH, "known": {"0": True}},
        {**BATCH, "known": {"0": 10**30}},
        {**BATCH, "present": []},
        {**BATCH, "present": [4]},
        {**BATCH, "reject": 0},
        {**BATCH, "probs": 1},
        {**BATCH, "text_features": (2 * T).tolist()},
        {**BATCH, "text_features": T[:, 1:].tolist()},
    ],
)
def test_requests_that_do_not_fit(client: TestClient, asked: Any) -> None:
    content = json.dumps(asked)
    answer = client.post("/v1/adapt", content=content, headers={"content-type": "application/json"})
    if asked and "calibrated" in str(asked.get("method") if isinstance(asked, dict) else ""):
        assert answer.status_code == 200  # allowed, and quick
        return
    assert answer.status_code in (400, 422)
    assert list(answer.json()) == ["error"]


def test_a_body_must_say_that_it_is_json(client: TestClient) -> None:
    """A page of another site could otherwise send it without asking the browser."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
        assert client.post("/v1/adapt", content=json.dumps(BATCH), headers={"content-type": kind}).status_code == 422


def test_large_answers(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "WRITTEN_ENTRIES", N * K - 1)
    assert client.post("/v1/adapt", json=BATCH).status_code == 200
    assert "packed" in client.post("/v1/adapt", json={**BATCH, "probs": True}).json()["error"]
    assert client.post("/v1/adapt", json={**BATCH, "image_features": packed(X), "probs": True}).status_code == 200
    monkeypatch.setattr(service, "MOST_ENTRIES", N * K - 1)
    assert "fewer images" in client.post("/v1/adapt", json=BATCH).json()["error"]


def test_answers_have_finite_numbers(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service.Service, "adapt", lambda self, request: {"x": float("nan"), "y": [float("inf")]})
    assert client.post("/v1/adapt", json=BATCH).json() == {"x": None, "y": [None]}


def test_health_is_open_and_the_rest_is_not(client: TestClient) -> None:
    nobody = {"authorization": ""}
    assert client.get("/v1/health", headers=nobody).json() == {"status": "ok", "version": kedge.__version__}
    for path in ("/v1/metrics", "/v1/streams", "/v1/openapi.json", "/v1/docs", "/v1/docs/docs.js"):
        assert client.get(path, headers=nobody).status_code == 401
        assert client.get(path).status_code == 200


def test_metrics(tmp_path: Path) -> None:
    client = served(tmp_path / "streams")
    client.post("/v1/adapt", json=BATCH)
    client.post("/v1/adapt", json={})
    client.post("/v1/streams", json={"text_features": T.tolist()})
    client.get("/v1/streams", headers={"authorization": ""})
    for path in ("/a", "/b"):
        client.request("BREW", path)
    answer = client.get("/v1/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    lines = answer.text.splitlines()
    for line in (
        'kedge_requests_total{method="POST",route="/v1/adapt",status="200"} 1.0',
        'kedge_requests_total{method="POST",route="/v1/adapt",status="422"} 1.0',
        'kedge_requests_total{method="other",route="none",status="404"} 2.0',  # not a series for each path
        'kedge_refused_total{kind="token"} 1.0',
        f"kedge_images_labelled_total {float(N)}",
        "kedge_streams 1.0",
    ):
        assert line in lines, line
    assert any(line.startswith("kedge_request_seconds_bucket") for line in lines)


def test_the_documentation_page_needs_nothing_from_elsewhere(client: TestClient) -> None:
    page = client.get("/v1/docs")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "http" not in page.text.replace("http-equiv", "")
    assert "<script>" not in page.text
    assert "style=" not in page.text
    for name in routes.DOCS:
        assert f"/v1/docs/{name}" in page.text or name == "docs.html"
        assert "innerHTML" not in client.get(f"/v1/docs/{name}").text
    assert client.get("/v1/docs/routes.py").status_code == 404
    assert set(client.get("/v1/openapi.json").json()["paths"]) == {
        "/v1/health", "/v1/metrics", "/v1/adapt", "/v1/streams", "/v1/streams/{id}", "/v1/streams/{id}/step",
        "/v1/streams/{id}/present", "/v1/streams/{id}/state",
    }  # fmt: skip
