"""Models read without transformers: as transformers reads them, bit for bit, and left to it if they are not known."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from encoder_tools import SIZE, build, transformers
from kedge.encoders import plain
from kedge.encoders.clip import read_settings
from kedge.encoders.encoder import TINY
from kedge.encoders.names import load_encoder
from kedge.errors import FileError

TEXTS = [
    "a photo of a cat.",
    "",
    "Übergrößenmäntel",
    "靴 👢",
    "  7/8 ",
    "x" * 500,
    "It's A\tDog\n's",
    "cafe\u0301 café",
]


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    return build(tmp_path / "clip", "clip")


def edit(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


def config_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return found


@torch.no_grad()
def check_same(folder: Path, size: int, prompts: list[str]) -> None:
    """The features of the model in a folder are transformers', to the last bit."""
    name = "tiny" if folder == TINY else str(folder)
    encoder = load_encoder(name, device="cpu")
    assert encoder.provenance["library"] == "kedge"
    model, tokenizer = (
        library.from_pretrained(folder) for library in (transformers.AutoModel, transformers.AutoTokenizer)
    )
    pixels = torch.randn(3, 3, size, size, generator=torch.Generator().manual_seed(0))
    words = tokenizer(
        prompts,
        padding=True,
        truncation=True,
        max_length=model.config.text_config.max_position_embeddings,
        return_tensors="pt",
    )
    seen = model.eval().get_image_features(pixels)
    read = model.get_text_features(input_ids=words["input_ids"], attention_mask=words["attention_mask"])
    for ours, theirs in ((encoder.encode_images(pixels), seen), (encoder.encode_texts(prompts), read)):
        features = theirs if isinstance(theirs, torch.Tensor) else theirs.pooler_output
        torch.testing.assert_close(ours, torch.nn.functional.normalize(features), atol=1e-6, rtol=0)


def test_the_bundled_model() -> None:
    check_same(TINY, 48, TEXTS)


@pytest.mark.parametrize("activation", ["quick_gelu", "gelu", "gelu_new"])
def test_clip(clip: Path, activation: str) -> None:
    config = config_of(clip)
    towers = {tower: {**config[tower], "hidden_act": activation} for tower in ("text_config", "vision_config")}
    edit(clip, **towers)
    check_same(clip, SIZE, ["a photo of a cat.", "bird", "the small red dog cat bird"])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", ["clip", "tiny"])
def test_a_traced_image_tower_takes_any_number_of_images(clip: Path, name: str) -> None:
    encoder = load_encoder("tiny" if name == "tiny" else str(clip), device="cpu")
    pixels = torch.randn(3, 3, *encoder.preprocessing.size)
    traced: Any = torch.jit.trace(encoder.visual, pixels[:2], check_trace=False)  # type: ignore[no-untyped-call]
    torch.testing.assert_close(traced(pixels), encoder.visual(pixels))


def test_an_old_clip(clip: Path) -> None:
    """Its towers are said twice, and the number of the last token is wrong: the end is the highest number."""
    vision = config_of(clip)["vision_config"]
    text = {**config_of(clip)["text_config"], "eos_token_id": 2, "bos_token_id": 0, "pad_token_id": 1}
    edit(clip, text_config={}, text_config_dict=text, vision_config={**vision, "num_hidden_layers": 9},
         vision_config_dict=vision)  # fmt: skip
    model = load_encoder(str(clip), device="cpu")
    assert model.provenance["library"] == "kedge"
    words = json.loads((clip / "tokenizer.json").read_text())["model"]["vocab"]
    assert words["<eos>"] == 12 == max(number for word, number in words.items() if word != "<pad>")
    edit(clip, text_config={**text, "eos_token_id": 12}, text_config_dict=None, vision_config=vision,
         vision_config_dict=None)  # fmt: skip
    new = load_encoder(str(clip), device="cpu")
    prompts = ["cat", "a photo of the dog"]
    assert torch.equal(model.encode_texts(prompts), new.encode_texts(prompts))


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "siglip"},
        {"projection_dim": "many"},
        {"text_config": ["x"]},
        {"text_config": {"num_hidden_layers": 10**9}},
        {"vision_config": {"hidden_act": "mish"}},
    ],
)
def test_what_is_not_known_is_left_to_transformers(clip: Path, changes: dict[str, Any]) -> None:
    assert read_settings(config_of(clip)) is not None
    edit(clip, **changes)
    assert read_settings(config_of(clip)) is None
    assert plain.find(clip, config_of(clip)) is None


def test_tokens_are_clips_from_either_kind_of_file(tmp_path: Path) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(TINY)
    ours = plain._tokenizer(TINY)
    for text in TEXTS:
        assert ours.encode(text).ids == theirs(text)["input_ids"], text
    shutil.copytree(TINY, tmp_path / "copy")
    for name in plain.CLIP_FILES:
        (tmp_path / "copy" / name).unlink()
    ours.save(str(tmp_path / "copy" / "tokenizer.json"))
    again = plain._tokenizer(tmp_path / "copy")
    assert [again.encode(text).ids for text in TEXTS] == [ours.encode(text).ids for text in TEXTS]


def test_without_a_tokenizer_that_it_knows_transformers_is_asked(clip: Path) -> None:
    assert plain.find(clip, config_of(clip))
    (clip / "tokenizer.json").rename(clip / "spiece.model")
    assert plain.find(clip, config_of(clip)) is None


def test_weights_of_other_sizes_are_one_line(clip: Path) -> None:
    edit(clip, vision_config={**config_of(clip)["vision_config"], "hidden_size": 64})
    with pytest.raises(FileError, match=r"cannot load the model in .* Download it again") as caught:
        load_encoder(str(clip), device="cpu")
    assert "\n" not in str(caught.value)
