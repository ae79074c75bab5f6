"""Encoders by transformers (4.57 and 5), on tiny random models: features, scale, identity, and what is refused."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from encoder_tools import SIZE, build, pixels, processor, transformers
from image_cases import picture
from kedge.encoders import hub as _hub
from kedge.encoders.encoder import DEFAULT
from kedge.encoders.hf import CLIP_MEAN, CLIP_STD, read_preprocessing
from kedge.encoders.names import load_encoder
from kedge.errors import FileError, MissingExtra, SettingError
from kedge.features.text_head import TextHead
from kedge.images.pixels import Preprocessing
from kedge.methods.contract import Batch
from kedge.methods.tent import Tent

PROMPTS = ["a photo of a cat.", "a photo of the small red dog.", "bird"]


@pytest.fixture(scope="module", params=["clip", "siglip"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp(request.param) / request.param, request.param)


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Path:
    """A copy of the model that a test may damage."""
    return Path(shutil.copytree(folder, tmp_path / "model"))


def reference(folder: Path) -> Any:
    return transformers.AutoModel.from_pretrained(folder).eval()


def tensor(output: Any) -> torch.Tensor:
    """Features of either version, found in another way than kedge does."""
    found: torch.Tensor = output["pooler_output"] if hasattr(output, "keys") else output
    return found / found.norm(dim=-1, keepdim=True)


@torch.no_grad()
def test_image_features_are_the_librarys(folder: Path) -> None:
    encoder = load_encoder(f"hf:{folder}", device="cpu")
    images = [picture(50, 41), picture(32, 70, seed=1), picture(33, 33, seed=2)]
    settings = json.loads((folder / "preprocessor_config.json").read_text())
    own = processor(folder.name, size=settings["size"])
    if folder.name == "clip":
        own = processor("clip", size=settings["size"], crop_size=settings["crop_size"])
    theirs = tensor(reference(folder).get_image_features(torch.stack([pixels(own, image) for image in images])))
    ours = encoder.encode_images(torch.stack([encoder.preprocessing(image) for image in images]))
    assert ours.dtype == torch.float32
    assert ours.shape == (3, encoder.dimension)
    assert not ours.requires_grad
    torch.testing.assert_close(ours, theirs, atol=2e-6, rtol=0)
    assert (ours[0] - ours[1]).abs().max() > 1e-3  # and they tell images apart
    assert (ours.norm(dim=1) - 1).abs().max() < 1e-6


@torch.no_grad()
def test_text_features_are_the_librarys(folder: Path) -> None:
    encoder = load_encoder(f"hf:{folder}", device="cpu")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = reference(folder)
    if folder.name == "clip":  # one by one, without padding; 8 positions
        theirs = [
            tensor(model.get_text_features(tokenizer(p, return_tensors="pt").input_ids[:, :8])) for p in PROMPTS[::2]
        ]
    else:
        ids = [tokenizer(p, padding="max_length", max_length=8, return_tensors="pt").input_ids for p in PROMPTS[::2]]
        theirs = [tensor(model.get_text_features(i)) for i in ids]
    ours = encoder.encode_texts(PROMPTS)
    assert ours.shape == (3, encoder.dimension)
    torch.testing.assert_close(ours[::2], torch.cat(theirs), atol=2e-6, rtol=0)
    torch.testing.assert_close(encoder.encode_texts(PROMPTS[::-1]).flip(0), ours, atol=1e-6, rtol=0)
    torch.testing.assert_close(encoder.encode_texts(["bird"]), ours[2:], atol=1e-6, rtol=0)  # alone as in company
    assert encoder.encode_texts([]).shape == (0, encoder.dimension)


def test_long_texts_are_cut_and_many_are_done_in_turn(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = load_encoder(f"hf:{folder}", device="cpu")
    at_once = encoder.encode_texts(["cat " * 50, *PROMPTS * 3])
    monkeypatch.setattr("kedge.encoders.encoder.PROMPTS_AT_ONCE", 4)
    torch.testing.assert_close(encoder.encode_texts(["cat " * 50, *PROMPTS * 3]), at_once, atol=1e-6, rtol=0)


def test_scale_and_bias_are_the_models(folder: Path) -> None:
    encoder = load_encoder(f"hf:{folder}", device="cpu")
    assert encoder.logit_scale == pytest.approx(math.exp(2.3) if folder.name == "siglip" else 1 / 0.07, rel=1e-4)
    assert encoder.logit_bias == (-10 if folder.name == "siglip" else 0)


def test_siglip_reads_lower_case(tmp_path: Path) -> None:
    encoder = load_encoder(f"hf:{build(tmp_path, 'siglip')}", device="cpu")
    assert torch.equal(encoder.encode_texts(["A Photo of a CAT."]), encoder.encode_texts(["a photo of a cat."]))


def test_provenance_tells_encoders_apart(folder: Path, tmp_path: Path) -> None:
    encoder = load_encoder(str(folder), device="cpu")
    found = encoder.provenance
    assert found == json.loads(json.dumps(found))
    assert found["weights_sha256"] == hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert found["preprocessing"] == encoder.preprocessing.describe()
    assert found["library"] == ("kedge" if folder.name == "clip" else f"transformers {transformers.__version__}")
    assert (found["logit_scale"], found["logit_bias"]) == (encoder.logit_scale, encoder.logit_bias)
    assert load_encoder(found["encoder"], device="cpu").provenance == found  # by the name in a file, from any folder
    other = load_encoder(str(build(tmp_path / "other", folder.name, seed=1)), device="cpu").provenance
    assert other["weights_sha256"] != found["weights_sha256"]


def test_weights_in_several_files(copied: Path) -> None:
    model = reference(copied)
    one = load_encoder(str(copied), device="cpu")
    (copied / "model.safetensors").unlink()
    model.save_pretrained(copied, max_shard_size="40KB")
    assert len(list(copied.glob("*.safetensors"))) > 1
    several = load_encoder(str(copied), device="cpu")
    image = torch.randn(1, 3, SIZE, SIZE)
    # The same weights lie elsewhere in memory, and on some processors a product's last digit hangs on that.
    torch.testing.assert_close(one.encode_images(image), several.encode_images(image), rtol=0, atol=1e-6)
    assert several.provenance["weights_sha256"] != one.provenance["weights_sha256"]
    min(copied.glob("*.safetensors")).unlink()
    with pytest.raises(FileError, match=r"it has no model-00001-of-.*safetensors"):
        load_encoder(str(copied), device="cpu")


def test_visual_is_what_tent_adapts(folder: Path) -> None:
    encoder = load_encoder(str(folder), device="cpu")
    names = [name for name, _ in encoder.visual.named_parameters()]
    assert not any("text" in name for name in names)
    images = torch.randn(6, 3, SIZE, SIZE)
    features = encoder.encode_images(images)
    head = TextHead.from_arrays(encoder.encode_texts(PROMPTS), 50.0)
    method = Tent(steps=3)
    before = {name: p.clone() for name, p in encoder.visual.named_parameters()}
    step = method.step(method.init(head), Batch(features, head, images=images, encoder=encoder.visual))
    norms = [m for m in encoder.visual.modules() if isinstance(m, torch.nn.LayerNorm)]
    assert step.info["adapted"] == 2 * len(norms) > 0
    assert step.info["entropy"][-1] < step.info["entropy"][0]
    assert step.state is not None
    moved = [n for n in before if f"theta.{n}" in step.state and not torch.equal(step.state[f"theta.{n}"], before[n])]
    assert len(moved) >= step.info["adapted"] - 2  # a norm that nothing follows may have no say
    assert all(torch.equal(p, before[name]) for name, p in encoder.visual.named_parameters())


def test_the_visual_tower_is_differentiable(folder: Path) -> None:
    image = torch.randn(1, 3, SIZE, SIZE, requires_grad=True)
    load_encoder(str(folder), device="cpu").visual(image)[0, 0].backward()
    assert image.grad is not None
    assert image.grad.abs().max() > 0


SETTINGS: dict[str, tuple[dict[str, Any], Preprocessing]] = {
    "as openai's folders say it": (
        {"crop_size": 224, "do_center_crop": True, "do_normalize": True, "do_resize": True, "resample": 3, "size": 224}
        | {"feature_extractor_type": "CLIPFeatureExtractor", "image_mean": CLIP_MEAN, "image_std": CLIP_STD},
        Preprocessing(224, (224, 224), mean=CLIP_MEAN, std=CLIP_STD),
    ),
    "siglip": (
        {"image_processor_type": "SiglipImageProcessor", "size": {"height": 384, "width": 256}, "resample": 2},
        Preprocessing((384, 256), None, "bilinear", mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)),
    ),
    "nothing said": (
        {"image_processor_type": "CLIPImageProcessor"},
        Preprocessing(224, (224, 224), mean=CLIP_MEAN, std=CLIP_STD),
    ),
    "squeezed, not normalised": (
        {"do_center_crop": False, "size": 32, "do_rescale": False, "do_normalize": False},
        Preprocessing((32, 32), None, rescale=1.0),
    ),
    "as it comes": (
        {"do_resize": False, "crop_size": {"height": 30, "width": 20}, "do_normalize": False, "rescale_factor": 0.5},
        Preprocessing(None, (30, 20), rescale=0.5),
    ),
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("nested", [False, True], ids=["preprocessor_config", "processor_config"])
def test_settings_of_processors_are_read(name: str, nested: bool, tmp_path: Path) -> None:
    found, expected = SETTINGS[name]
    file = "processor_config.json" if nested else "preprocessor_config.json"
    (tmp_path / file).write_text(json.dumps({"image_processor": found} if nested else found))
    assert read_preprocessing(tmp_path) == expected


@pytest.mark.parametrize(
    "found", [{"size": {"longest_edge": 224}}, {"resample": 9}, {"size": {"shortest_edge": 9}, "do_center_crop": False}]
)
def test_settings_that_kedge_does_not_know_are_refused(found: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(found))
    with pytest.raises(FileError, match="preprocessing that kedge does not know"):
        read_preprocessing(tmp_path)


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("config.json", "no config.json"),
        ("model.safetensors", "no model.safetensors"),
        ("preprocessor_config.json", "no preprocessor_config.json"),
        ("tokenizer.json", r"no tokenizer \(tokenizer.json\)"),
    ],
)
def test_a_folder_says_which_file_is_missing(copied: Path, file: str, words: str) -> None:
    (copied / file).unlink()
    with pytest.raises(FileError, match=words):
        load_encoder(str(copied), device="cpu")


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "preprocessor_config.json", "tokenizer.json"])
def test_damaged_files_are_one_line(copied: Path, file: str, capfd: pytest.CaptureFixture[str]) -> None:
    whole = (copied / file).read_bytes()
    (copied / file).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FileError, match="Download it again") as caught:
        load_encoder(str(copied), device="cpu")
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_weights_with_holes_are_not_filled_with_random_numbers(copied: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(copied / "model.safetensors")
    gone = next(name for name in weights if "vision" in name and "layer" in name)
    del weights[gone]
    save_file(weights, copied / "model.safetensors", {"format": "pt"})
    with pytest.raises(FileError, match=f"lack {gone}"):
        load_encoder(str(copied), device="cpu")


def test_pickled_weights_are_refused_and_the_advice_works(copied: Path) -> None:
    torch.save(reference(copied).state_dict(), copied / "pytorch_model.bin")
    image = torch.randn(1, 3, SIZE, SIZE)
    before = load_encoder(str(copied), device="cpu").encode_images(image)
    (copied / "model.safetensors").unlink()
    with pytest.raises(FileError, match="kedge loads none") as caught:
        load_encoder(str(copied), device="cpu")
    code = str(caught.value).partition('python -c "')[2].rpartition('"')[0]
    exec(code, {})
    assert torch.equal(load_encoder(str(copied), device="cpu").encode_images(image), before)


def test_models_that_are_no_encoders_are_refused(copied: Path) -> None:
    config = transformers.AutoConfig.from_pretrained(copied).vision_config
    transformers.AutoModel.from_config(config).save_pretrained(copied / "vision")
    for file in ("preprocessor_config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(copied / file, copied / "vision")
    with pytest.raises(SettingError, match="lip_vision_model"):
        load_encoder(str(copied / "vision"), device="cpu")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tinny", "did you mean 'tiny'"),
        ("openclp:ViT-B-16/openai", "did you mean 'openclip:MODEL/TAG'"),
        ("hf", "did you mean 'hf:OWNER/NAME'"),
        ("openai/clip-vit-base-patch16", "did you mean 'hf:openai/clip-vit-base-patch16'"),
        ("xyz", "choose from tiny, hf:OWNER/NAME"),
        ("hf:", "not complete"),
        ("./no/such/folder", "no encoder or folder"),
    ],
)
def test_unknown_names(name: str, words: str) -> None:
    with pytest.raises(SettingError, match=words):
        load_encoder(name)


def test_unknown_devices() -> None:
    for name in ("cuda:77", "toaster", "meta"):
        with pytest.raises(SettingError, match=f"cannot use the device '{name}'"):
            load_encoder("tiny", device=name)


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="no folder"):
        load_encoder(f"hf:{tmp_path}/none")


def test_without_transformers_the_extra_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("transformers", "tokenizers"):
        monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtra, match=r'(transformers|tokenizers) is not installed. .*pip install "kedge\[hf\]"'):
        load_encoder(str(folder))


MAIN, CONVERTED = "1" * 40, "2" * 40


class Hub:
    """A hub with one repository: main has pickled weights, as openai/clip-vit-base-patch16 has, v2 has safetensors."""

    def __init__(self, cache: Path, pickled: Path, converted: Path, real: Any) -> None:
        self.errors = real.errors
        self.utils = real.utils
        self.commits = {"main": MAIN, "v2": CONVERTED, MAIN: MAIN, CONVERTED: CONVERTED, "refs/pr/3": CONVERTED}
        self.content = {MAIN: pickled, CONVERTED: converted}
        self.cache: Path = cache
        self.asked: list[str] = []

    def try_to_load_from_cache(self, repository: str, name: str, revision: str | None = None) -> str | None:
        assert repository == "some/model"
        found = self.cache / self.commits.get(revision or "main", "none") / name
        return str(found) if found.exists() else None

    def snapshot_download(self, repository: str, revision: str | None = None, **_: Any) -> str:
        self.asked.append(revision or "main")
        if self.asked[-1] not in self.commits:
            raise self.errors.RevisionNotFoundError("404", response=SimpleNamespace(headers={}, request=None))
        commit = self.commits[self.asked[-1]]
        return str(shutil.copytree(self.content[commit], self.cache / commit, dirs_exist_ok=True))


@pytest.fixture
def hub(folder: Path, copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    (copied / "model.safetensors").rename(copied / "pytorch_model.bin")
    hub = Hub(tmp_path / "cache", copied, folder, pytest.importorskip("huggingface_hub"))
    whole = _hub.imported
    monkeypatch.setattr(
        _hub, "imported", lambda module, extra: hub if module == "huggingface_hub" else whole(module, extra)
    )
    return hub


def test_a_revision_is_resolved_to_a_commit_and_recorded(hub: Hub, folder: Path) -> None:
    encoder = load_encoder("hf:some/model@v2", device="cpu")
    assert encoder.provenance["encoder"] == "hf:some/model@v2"
    assert encoder.provenance["revision"] == CONVERTED
    image = torch.randn(1, 3, SIZE, SIZE)
    local = load_encoder(str(folder), device="cpu")
    assert torch.equal(encoder.encode_images(image), local.encode_images(image))
    assert "revision" not in local.provenance
    assert load_encoder(f"hf:some/model@{CONVERTED}", device="cpu").provenance["revision"] == CONVERTED
    assert hub.asked == ["v2"]  # the second came from the cache
    hub.commits["main"] = CONVERTED
    assert load_encoder("hf:some/model", device="cpu").provenance["revision"] == CONVERTED


def test_the_models_that_kedge_names_are_pinned(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    assert DEFAULT.removeprefix("hf:") in _hub.PINNED
    assert all(re.fullmatch("[0-9a-f]{40}", commit) for commit in _hub.PINNED.values())
    monkeypatch.setattr(_hub, "PINNED", {"some/model": CONVERTED})
    for _ in range(2):
        assert load_encoder("hf:some/model", device="cpu").provenance["revision"] == CONVERTED
    assert hub.asked == [CONVERTED]  # the second came from the cache
    with pytest.raises(FileError, match="has no weights as safetensors"):
        load_encoder("hf:some/model@main", device="cpu")


def test_nobodys_pull_request_is_used(hub: Hub) -> None:
    with pytest.raises(FileError, match=f"some/model at commit {MAIN} has no weights as safetensors"):
        load_encoder("hf:some/model", device="cpu")
    assert hub.asked == ["main"]
    for name in ("refs/pr/3", "pr/3"):
        with pytest.raises(FileError, match=r"is a pull request.* name its commit: hf:some/model@COMMIT"):
            load_encoder(f"hf:some/model@{name}", device="cpu")
    assert hub.asked == ["main"]


@pytest.mark.parametrize(
    ("revision", "words"),
    [("v3", "has no revision 'v3'"), ("", "'' is not a revision"), ("../..", "is not a revision"), ("a@b", "is not a")],
)
def test_wrong_revisions(hub: Hub, revision: str, words: str) -> None:
    with pytest.raises(FileError, match=words):
        load_encoder(f"hf:some/model@{revision}", device="cpu")


CODE = {
    "config.json": {"AutoConfig": "evil.Config", "AutoModel": "evil.Model"},
    "tokenizer_config.json": {"AutoTokenizer": ["evil.Tokenizer", None]},
    "preprocessor_config.json": {"AutoImageProcessor": "evil.Processor"},
}


@pytest.fixture
def ran(copied: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that exists once the code in the model's folder has run. Nobody may ask a question."""
    (copied / "evil.py").write_text(f"open({str(copied / 'ran')!r}, 'w')\n")
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked a question"))
    return copied / "ran"


def add_code(folder: Path, file: str, **more: Any) -> None:
    found = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps({**found, **more, "auto_map": CODE[file]}))


@pytest.mark.parametrize("file", CODE)
@pytest.mark.parametrize("prefix", ["", "hf:"])
def test_a_models_own_code_is_refused(copied: Path, ran: Path, file: str, prefix: str) -> None:
    add_code(copied, file)
    with pytest.raises(FileError, match=rf"{file} names code that comes with the model \(auto_map\)") as caught:
        load_encoder(f"{prefix}{copied}", device="cpu")
    assert "\n" not in str(caught.value)
    assert not ran.exists()


def test_code_named_deeper_in_a_file_is_refused(copied: Path) -> None:
    (copied / "processor_config.json").write_text(json.dumps({"image_processor": {"auto_map": {"A": "evil.A"}}}))
    with pytest.raises(FileError, match=r"processor_config.json names code"):
        load_encoder(str(copied), device="cpu")


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
@pytest.mark.parametrize("value", ["some/kernel", {"vision_config": "some/kernel@main:x"}])
def test_kernels_from_the_hub_are_refused(copied: Path, key: str, value: Any) -> None:
    found = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps({**found, "vision_config": {**found["vision_config"], key: value}}))
    with pytest.raises(FileError, match=rf"config.json names code that comes with the model \({key}\)"):
        load_encoder(str(copied), device="cpu")


def test_a_hub_models_own_code_is_refused(hub: Hub, copied: Path, ran: Path) -> None:
    (copied / "pytorch_model.bin").rename(copied / "model.safetensors")
    add_code(copied, "config.json")
    with pytest.raises(FileError, match="names code"):
        load_encoder("hf:some/model", device="cpu")
    assert not ran.exists()


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_transformers_does_not_run_it_either(
    copied: Path, ran: Path, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same without kedge's own check: transformers refuses the model, or does without the code."""
    monkeypatch.setattr("kedge.encoders.hf.check_no_code", lambda folder: None)
    add_code(copied, file, **({"model_type": "evil"} if file == "config.json" else {"tokenizer_class": "Evil"}))
    start = time.monotonic()
    with contextlib.suppress(FileError):
        load_encoder(str(copied), device="cpu")
    assert time.monotonic() - start < 10
    assert not ran.exists()


def test_without_prompts_transformers_refuses_at_once(copied: Path, ran: Path) -> None:
    add_code(copied, "config.json", model_type="evil")
    with _hub.without_prompts(), pytest.raises(ValueError, match="trust_remote_code"):
        transformers.AutoConfig.from_pretrained(copied)
    assert not ran.exists()
    assert transformers.dynamic_module_utils.TIME_OUT_REMOTE_CODE > 0


def test_deep_json_is_damaged(copied: Path) -> None:
    (copied / "config.json").write_text('{"a":' * 100_000)
    with pytest.raises(FileError, match="is not a JSON object"):
        load_encoder(str(copied), device="cpu")


OFFLINE = """
import sys, time
import kedge
from kedge.errors import FileError
from transformers import AutoModel  # takes long on a busy machine
start = time.monotonic()
try:
    kedge.load_encoder("hf:openai/clip-vit-base-patch16")
except FileError as error:
    print(error)
assert time.monotonic() - start < 30
"""


def test_offline_says_what_to_download_at_once_and_nothing_else(tmp_path: Path) -> None:
    nowhere = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path), "HF_HUB_CACHE": str(tmp_path / "hub")}
    run = subprocess.run(
        [sys.executable, "-c", OFFLINE], env={**os.environ, **nowhere}, capture_output=True, text=True, timeout=60
    )
    assert run.stderr == ""
    assert run.stdout.count("\n") == 1
    name = DEFAULT.removeprefix("hf:")
    assert f"hf download {name} --revision {_hub.PINNED[name]} --local-dir DIR" in run.stdout
    assert "--encoder tiny" in run.stdout
    assert "hf:DIR" in run.stdout


def test_loading_is_silent_and_leaves_logging_as_it_was(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shown = transformers.utils.logging.is_progress_bar_enabled()
    load_encoder(str(folder), device="cpu")
    assert capfd.readouterr() == ("", "")
    assert transformers.utils.logging.is_progress_bar_enabled() == shown
    assert logging.root.manager.disable == logging.NOTSET


def test_views_go_through_the_encoder(folder: Path) -> None:
    encoder = load_encoder(str(folder), device="cpu")
    views = encoder.preprocessing.views(picture(60, 45), 4, np.random.default_rng(0))
    assert encoder.encode_images(views).shape == (4, encoder.dimension)
