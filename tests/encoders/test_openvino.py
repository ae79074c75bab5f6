"""The image tower by OpenVINO against torch's: features, the cache, and that nothing is reported to anybody."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

if find_spec("openvino") is None or find_spec("nncf") is None:  # not imported here: it would report that to Intel
    pytest.skip('OpenVINO or NNCF is not installed: pip install "kedge[openvino]"', allow_module_level=True)

from encoder_tools import SIZE, build
from kedge.encoders import openvino as back_end
from kedge.encoders.encoder import Encoder
from kedge.encoders.names import load_encoder
from kedge.encoders.precision import Precision, in_precision
from kedge.encoders.tiny import unpack
from kedge.images.folders import folder as images_in
from kedge.images.pixels import open_image

COSINES = {"float32": 0.999999, "bfloat16": 0.999, "int8": 0.99}  # on average, at least


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A cache of converted models for the tests alone."""
    place = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(place))
        yield place / "kedge" / "openvino"


def by_openvino(encoder: Encoder, dtype: str, calibration: Tensor | None = None) -> Encoder:
    return in_precision(encoder, Precision(dtype, "OpenVINO"), calibration)


@pytest.fixture(scope="module")
def tiny() -> Encoder:
    return load_encoder("tiny", device="cpu")


@pytest.fixture(scope="module")
def pixels(tiny: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Tensor:
    """48 bundled pictures of as many classes."""
    images = images_in(unpack(tmp_path_factory.mktemp("pictures")))
    some = range(0, len(images), len(images) // 48)[:48]
    return torch.stack([tiny.preprocessing(open_image(images.source(i))) for i in some])


def noise(seed: int = 0, n: int = 12) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.nn.functional.interpolate(torch.randn(n, 3, 4, 4, generator=random), size=SIZE, mode="bilinear")


@pytest.mark.parametrize("dtype", COSINES)
def test_tiny(tiny: Encoder, pixels: Tensor, dtype: str) -> None:
    fast = by_openvino(tiny, dtype, pixels[:24] if dtype == "int8" else None)
    exact, ours = tiny.encode_images(pixels), fast.encode_images(pixels)
    assert (ours.dtype, ours.shape) == (torch.float32, exact.shape)
    assert (ours.norm(dim=1) - 1).abs().max() < 1e-6
    assert (ours * exact).sum(dim=1).mean() > COSINES[dtype]
    assert torch.equal(fast.encode_images(pixels[:5]), fast.encode_images(pixels[:5]))
    assert fast.provenance["precision"] == dtype
    assert torch.equal(fast.encode_texts(["a cat"]), tiny.encode_texts(["a cat"]))
    assert fast.visual is tiny.visual  # what methods adapt


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_transformers_towers(kind: str, tmp_path: Path) -> None:
    exact = load_encoder(str(build(tmp_path, kind)), device="cpu")
    images = noise()
    for dtype, least in COSINES.items() if kind == "clip" else [("bfloat16", 0.999)]:
        fast = by_openvino(exact, dtype, images if dtype == "int8" else None)
        assert (fast.encode_images(images) * exact.encode_images(images)).sum(dim=1).mean() > least


def test_models_are_converted_once(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    convert = back_end._converted

    def counted(*given: Any) -> Any:
        made.append(given)
        return convert(*given)

    monkeypatch.setattr(back_end, "_converted", counted)
    before = set(cache.glob("*"))

    def conversions(encoder: Encoder, dtype: str, calibration: Tensor | None = None) -> tuple[int, Tensor]:
        made.clear()
        found = by_openvino(encoder, dtype, calibration).encode_images(noise())
        return len(made), found

    one = load_encoder(str(build(tmp_path / "one", "clip", seed=1)), device="cpu")
    count, first = conversions(one, "float32")
    assert count == 1
    count, again = conversions(one, "float32")
    assert count == 0
    assert torch.equal(first, again)
    (file,) = set(cache.glob("*")) - before  # nothing else was written
    for damage in (lambda: file.write_bytes(file.read_bytes()[:-9]), lambda: file.write_bytes(b"")):
        damage()
        count, again = conversions(one, "float32")
        assert count == 1
        assert torch.equal(first, again)
        assert conversions(one, "float32")[0] == 0
    other = load_encoder(str(build(tmp_path / "other", "clip", seed=2)), device="cpu")
    count, found = conversions(other, "float32")
    assert count == 1
    assert (found - first).abs().max() > 0.01
    assert conversions(one, "int8", noise(n=4))[0] == 1
    assert conversions(one, "int8", noise(n=4))[0] == 0
    assert conversions(one, "int8", noise(seed=1, n=4))[0] == 1


def test_other_settings_of_a_model_are_another_model(tmp_path: Path) -> None:
    """The same weights with another number of attention heads compute something else."""
    folder = build(tmp_path, "clip")
    one = by_openvino(load_encoder(str(folder), device="cpu"), "float32").encode_images(noise())
    config = json.loads((folder / "config.json").read_text())
    config["vision_config"]["num_attention_heads"] = 2
    (folder / "config.json").write_text(json.dumps(config))
    exact = load_encoder(str(folder), device="cpu")
    found = by_openvino(exact, "float32").encode_images(noise())
    torch.testing.assert_close(found, exact.encode_images(noise()), atol=1e-4, rtol=0)
    assert (found - one).abs().max() > 1e-3


def test_old_models_leave_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(back_end, "KEPT", 2)
    cache = back_end.cache_folder()
    cache.mkdir(parents=True)
    for used in (3, 1, 2):
        (cache / f"{used}.safetensors").touch()
        os.utime(cache / f"{used}.safetensors", (used, used))
    by_openvino(load_encoder(str(build(tmp_path / "model", "clip")), device="cpu"), "float32")
    assert len(list(cache.iterdir())) == 2
    assert (cache / "3.safetensors").exists()


def test_without_a_cache_it_works_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    exact = load_encoder(str(build(tmp_path / "model", "clip")), device="cpu")
    found = by_openvino(exact, "float32").encode_images(noise())
    torch.testing.assert_close(found, exact.encode_images(noise()), atol=1e-4, rtol=0)


PRIVATE = """
import socket, sys
import torch

def refuse(*given, **named):
    raise SystemExit(f"something was sent: {given}")

socket.getaddrinfo = socket.socket.connect = refuse
import builtins
builtins.input = refuse
from kedge.encoders.names import load_encoder
from kedge.encoders.precision import Precision, in_precision
encoder = load_encoder(sys.argv[1], device="cpu")
torch.manual_seed(0)
pixels = torch.randn(4, 3, 32, 32)
for dtype in ("float32", "int8"):
    in_precision(encoder, Precision(dtype, "OpenVINO"), pixels).encode_images(pixels)
print("openvino" in sys.modules, "nncf" in sys.modules, [name for name in sys.modules if "openvino_telemetry" in name])
"""


def test_nothing_is_reported_or_asked(tmp_path: Path) -> None:
    """In a new process, as a user's: under pytest and in CI the libraries are silent by themselves."""
    build(tmp_path / "model", "clip")
    home = tmp_path / "home"
    home.mkdir()
    environment = {name: value for name, value in os.environ.items() if name not in ("CI", "XDG_CACHE_HOME")}
    run = subprocess.run(
        [sys.executable, "-c", PRIVATE, str(tmp_path / "model")],
        env={**environment, "HOME": str(home), "USERPROFILE": str(home)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (run.stdout, run.stderr) == ("True True []\n", "")
    assert [path.name for path in home.iterdir()] == [".cache"]
