"""Encoders by open_clip: its own transforms' pixels, its own models' features, and what is refused.

Run by `make test-openclip`, in an environment of its own. open_clip imports torchvision; where that can not be
installed, `torchvision_stub` takes the place of the few names it needs. The pixels are then those of open_clip's own
composition of transforms, over torchvision's documented arithmetic instead of its code.

The largest difference of a normalised pixel, over all files: 2.4e-7 with CLIP's mean and deviation, 6e-8 with SigLIP's.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import torchvision_stub
from image_cases import BETTER, PLAIN, picture, write
from kedge.encoders.names import load_encoder
from kedge.errors import FileError, MissingExtra, SettingError
from kedge.features.text_head import TextHead
from kedge.images.pixels import open_image
from kedge.methods.contract import Batch
from kedge.methods.tent import Tent

pytest.importorskip("ftfy", reason="open_clip is tested in an environment of its own: make test-openclip")
STUBBED = torchvision_stub.put_in_place()
huggingface_hub: Any = pytest.importorskip("huggingface_hub")
open_clip: Any = pytest.importorskip(
    "open_clip", reason="open_clip is tested in its own environment: make test-openclip"
)

from open_clip import pretrained  # noqa: E402

TOLERANCE = 5e-7
AFTER_RESIZING = ["palette", "1-bit", "cmyk"]  # open_clip converts these to RGB when they are small already
PREPROCESSING = {
    "shortest": {"interpolation": "bicubic", "resize_mode": "shortest"},
    "squash": {"interpolation": "bilinear", "resize_mode": "squash", "mean": [0.5] * 3, "std": [0.5] * 3},
}


def build(folder: Path, way: str = "shortest", size: int = 32, bias: float | None = None) -> Path:
    """A folder with a tiny random model as open_clip's folders are."""
    torch.manual_seed(0)
    model_cfg = {
        "embed_dim": 24,
        "vision_cfg": {"image_size": size, "layers": 2, "width": 64, "patch_size": 8},
        "text_cfg": {"context_length": 12, "vocab_size": 49408, "width": 32, "heads": 4, "layers": 1},
    }
    if bias is not None:
        model_cfg["init_logit_bias"] = bias
    model = open_clip.CLIP(**model_cfg)
    folder.mkdir(parents=True, exist_ok=True)
    from safetensors.torch import save_file

    save_file(model.state_dict(), folder / "open_clip_model.safetensors")
    settings = {"model_cfg": model_cfg, "preprocess_cfg": {"size": size, **PREPROCESSING[way]}}
    (folder / "open_clip_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="module", params=PREPROCESSING)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("openclip") / request.param, request.param)


def reference(folder: Path) -> tuple[Any, Any, Any]:
    """The model, its inference transform and its tokenizer, as open_clip gives them."""
    model, transform = open_clip.create_model_from_pretrained(f"local-dir:{folder}")
    return model.eval(), transform, open_clip.get_tokenizer(f"local-dir:{folder}")


@pytest.mark.parametrize("name", [*PLAIN, *BETTER])
def test_pixels_are_open_clips(name: str, folder: Path, tmp_path: Path) -> None:
    path = write(tmp_path, name)
    encoder = load_encoder(str(folder), device="cpu")
    ours = encoder.preprocessing(open_image(path))
    theirs = reference(folder)[1](open_image(path) if name in [*BETTER, *AFTER_RESIZING] else Image.open(path))
    assert (ours - theirs).abs().max() <= TOLERANCE


@torch.no_grad()
def test_features_are_open_clips(folder: Path) -> None:
    encoder = load_encoder(str(folder), device="cpu")
    model, transform, tokenizer = reference(folder)
    images = [picture(50, 41), picture(33, 70, seed=1)]
    prompts = ["a photo of a cat.", "a very long text " * 20]
    ours = encoder.encode_images(torch.stack([encoder.preprocessing(image) for image in images]))
    theirs = model.encode_image(torch.stack([transform(image) for image in images]), normalize=True)
    torch.testing.assert_close(ours, theirs, atol=2e-6, rtol=0)
    torch.testing.assert_close(
        encoder.encode_texts(prompts), model.encode_text(tokenizer(prompts), normalize=True), atol=2e-6, rtol=0
    )
    assert encoder.dimension == 24
    assert (ours[0] - ours[1]).abs().max() > 1e-3


def test_scale_bias_and_provenance(tmp_path: Path) -> None:
    folder = build(tmp_path / "siglip", "squash", bias=-10.0)
    encoder = load_encoder(f"openclip:{folder}", device="cpu")
    assert encoder.logit_scale == pytest.approx(1 / 0.07, rel=1e-5)
    assert encoder.logit_bias == -10
    assert load_encoder(str(build(tmp_path / "clip")), device="cpu").logit_bias == 0
    found = encoder.provenance
    assert found == json.loads(json.dumps(found))
    assert found["weights_sha256"] == hashlib.sha256((folder / "open_clip_model.safetensors").read_bytes()).hexdigest()
    assert found["library"] == f"open_clip {open_clip.__version__}"
    assert math.isclose(found["logit_scale"], encoder.logit_scale)
    assert load_encoder(found["encoder"], device="cpu").provenance == found


def test_visual_is_what_tent_adapts(folder: Path) -> None:
    encoder = load_encoder(str(folder), device="cpu")
    images = torch.randn(6, 3, 32, 32)
    head = TextHead.from_arrays(encoder.encode_texts(["cat", "dog", "bird"]), 50.0)
    method = Tent(steps=3)
    step = method.step(
        method.init(head), Batch(encoder.encode_images(images), head, images=images, encoder=encoder.visual)
    )
    norms = [m for m in encoder.visual.modules() if isinstance(m, torch.nn.LayerNorm)]
    assert step.info["adapted"] == 2 * len(norms) == 12
    assert step.info["entropy"][-1] < step.info["entropy"][0]


def test_other_ways_of_resizing_are_refused(tmp_path: Path) -> None:
    folder = build(tmp_path / "longest")
    config = json.loads((folder / "open_clip_config.json").read_text())
    config["preprocess_cfg"]["resize_mode"] = "longest"
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    with pytest.raises(SettingError, match="longest to 32×32"):
        load_encoder(str(folder), device="cpu")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("openclip:ViT-B-166/openai", "did you mean 'ViT-B-16'"),
        ("openclip:zzz/openai", "see open_clip.list_models"),
        ("openclip:ViT-B-16/openaj", "did you mean 'openai'"),
        ("openclip:ViT-B-16", "has no weights ''; choose from openai"),
    ],
)
def test_unknown_names(name: str, words: str) -> None:
    with pytest.raises(SettingError, match=words):
        load_encoder(name)


def test_a_folder_says_which_file_is_missing(tmp_path: Path) -> None:
    folder = build(tmp_path)
    (folder / "open_clip_model.safetensors").rename(folder / "open_clip_pytorch_model.bin")
    with pytest.raises(FileError, match=r"it has no open_clip_model\.safetensors"):
        load_encoder(str(folder))


def test_damaged_weights_are_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = build(tmp_path)
    whole = (folder / "open_clip_model.safetensors").read_bytes()
    (folder / "open_clip_model.safetensors").write_bytes(whole[:-100])
    with pytest.raises(FileError, match="open_clip cannot load") as caught:
        load_encoder(str(folder))
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


TINY = {
    "embed_dim": 24,
    "vision_cfg": {"image_size": 32, "layers": 2, "width": 64, "patch_size": 8},
    "text_cfg": {"context_length": 12, "vocab_size": 49408, "width": 32, "heads": 4, "layers": 1},
}


@pytest.fixture
def tagged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Models `tiny` and `tiny-quickgelu`, with weights of the tag `here`; the tag's settings, to be changed."""
    for name, more in (("tiny", {}), ("tiny-quickgelu", {"quick_gelu": True})):
        (tmp_path / f"{name}.json").write_text(json.dumps({**TINY, **more}))
        open_clip.add_model_config(tmp_path / f"{name}.json")
    folder = build(tmp_path / "model")
    tag = {"hf_hub": "some/model/", "quick_gelu": False, **PREPROCESSING["squash"]}
    tags = {**pretrained._PRETRAINED, "tiny": {"here": tag}, "tiny-quickgelu": {"here": tag}}
    monkeypatch.setattr(pretrained, "_PRETRAINED", tags)

    def download(repository: str, allow_patterns: list[str]) -> str:
        assert repository == "some/model"
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    return tag


def test_a_tag_brings_its_weights_preprocessing_and_activation(tagged: dict[str, Any]) -> None:
    image = torch.randn(1, 3, 32, 32)
    encoder = load_encoder("openclip:tiny/here", device="cpu")
    assert encoder.provenance["encoder"] == "openclip:tiny/here"
    assert encoder.preprocessing.resize == (32, 32)
    assert encoder.preprocessing.mean == (0.5, 0.5, 0.5)
    plain = encoder.encode_images(image)
    with pytest.raises(SettingError, match="Choose tiny/here"):
        load_encoder("openclip:tiny-quickgelu/here", device="cpu")
    tagged["quick_gelu"] = True
    quick = load_encoder("openclip:tiny/here", device="cpu").encode_images(image)
    assert torch.equal(quick, load_encoder("openclip:tiny-quickgelu/here", device="cpu").encode_images(image))
    assert (quick - plain).abs().max() > 1e-5


@pytest.mark.parametrize("place", [{"hf_hub": "some/model/weights.pt"}, {"hf_hub": "", "url": "https://some/where.pt"}])
def test_pickles_are_refused(tagged: dict[str, Any], place: dict[str, str]) -> None:
    tagged.update(place)
    with pytest.raises(SettingError, match="are a pickle"):
        load_encoder("openclip:tiny/here")


OFFLINE = """
import time, torchvision_stub
torchvision_stub.put_in_place()
import kedge
from kedge.errors import FileError
start = time.monotonic()
try:
    kedge.load_encoder("openclip:ViT-B-16/openai")
except FileError as error:
    print(error)
assert time.monotonic() - start < 30
"""


def test_offline_says_what_to_download_at_once_and_nothing_else(tmp_path: Path) -> None:
    nowhere = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path), "HF_HUB_CACHE": str(tmp_path / "hub")}
    environment = {
        **os.environ,
        **nowhere,
        "PYTHONPATH": os.pathsep.join([*sys.path, str(Path(__file__).parents[1] / "support")]),
    }
    run = subprocess.run([sys.executable, "-c", OFFLINE], env=environment, capture_output=True, text=True, timeout=60)
    assert run.stderr == ""
    assert run.stdout.count("\n") == 1
    assert (
        "hf download timm/vit_base_patch16_clip_224.openai --local-dir DIR; then use the encoder openclip:DIR"
        in run.stdout
    )


def test_without_open_clip_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "open_clip", None)
    with pytest.raises(MissingExtra, match=r'open_clip is not installed. .*pip install "kedge\[openclip\]"'):
        load_encoder("openclip:ViT-B-16/openai")
