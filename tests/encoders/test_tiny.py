"""The bundled model and images: small enough, whole, loaded like any other, and in the regime they claim."""

from __future__ import annotations

import io
import re
import zipfile
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import kedge

TINY = Path(kedge.__file__).parent / "data" / "tiny"
MODEL, IMAGES, README = TINY / "model", TINY / "images.zip", TINY / "README.md"
CLASSES = ("T-shirt", "ankle boot", "bag", "coat", "dress", "pullover", "sandal", "shirt", "sneaker", "trouser")
PROMPTS = [f"a photo of a {name}." for name in CLASSES]
LIMIT = 4_000_000  # bytes


@cache
def images() -> dict[str, Image.Image]:
    """Path in the zip → image."""
    with zipfile.ZipFile(IMAGES) as archive:
        return {path: Image.open(io.BytesIO(archive.read(path))) for path in archive.namelist()}


@cache
def reference() -> tuple[Any, Any]:
    """Model and tokenizer, by transformers alone."""
    transformers = pytest.importorskip("transformers", reason="the bundled model needs transformers: kedge[hf]")
    return (
        transformers.CLIPModel.from_pretrained(MODEL).eval(),
        transformers.AutoTokenizer.from_pretrained(MODEL),
    )


def pooled(ids: Any) -> torch.Tensor:
    model, _ = reference()
    with torch.no_grad():
        output: torch.Tensor = model.text_model(input_ids=torch.as_tensor(ids)).pooler_output
    return output


def said(pattern: str) -> float:
    """A number of the README, found by what stands around it."""
    found = re.search(pattern, README.read_text(encoding="utf-8"))
    assert found, f"the README no longer says {pattern}"
    return float(found[1])


def test_the_files_are_small_and_complete() -> None:
    assert sum(path.stat().st_size for path in MODEL.iterdir()) <= LIMIT
    assert IMAGES.stat().st_size <= LIMIT
    licence = (TINY / "LICENSE.fashion-mnist").read_text(encoding="utf-8")
    assert "MIT" in licence
    assert "2017 Zalando SE" in licence


def test_the_zip_holds_a_balanced_set_of_grey_images() -> None:
    counts = Counter(path.split("/")[0] for path in images())
    assert sorted(counts) == sorted(CLASSES)
    assert len(images()) >= 2_000
    assert max(counts.values()) <= 1.1 * min(counts.values())
    assert {(image.mode, image.size) for image in images().values()} == {("L", (32, 32))}
    assert len({image.tobytes() for image in images().values()}) == len(images())


def test_the_images_are_shifted() -> None:
    corners = np.array([np.asarray(image)[[0, 0, -1, -1], [0, -1, 0, -1]] for image in images().values()])
    assert (corners.mean(axis=1) > 5).mean() > 0.95  # Fashion-MNIST's background is 0
    assert corners.mean(axis=1).std() > 5  # and each image has its own


def test_it_loads_through_transformers_as_float32_with_a_scale_of_its_own() -> None:
    model, _ = reference()
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert all(p.isfinite().all() for p in model.parameters())
    assert model.logit_scale.exp().item() == pytest.approx(said(r"logit scale is (\d+\.\d+)"), abs=0.005)


def test_the_tokenizer_knows_every_class_and_no_text_is_unknown() -> None:
    _, tokenizer = reference()
    for name in CLASSES:
        words = re.findall(r"[a-z]+|-", name.lower())
        tokens = tokenizer.convert_ids_to_tokens(tokenizer(name)["input_ids"])
        assert tokens == [tokenizer.bos_token, *(word + "</w>" for word in words), tokenizer.eos_token]
    for odd in ("", "zebra", "Übergrößenmäntel", "靴 👢", "  7/8 ", "x" * 500):
        ids = tokenizer(odd, truncation=True)["input_ids"]
        assert len(ids) <= tokenizer.model_max_length == reference()[0].config.text_config.max_position_embeddings
        assert ids.count(tokenizer.unk_token_id) == 1  # the end itself, which is CLIP's "unknown" too
        assert pooled([ids]).isfinite().all()


def test_the_text_tower_pools_at_the_end_and_sees_no_padding() -> None:
    model, tokenizer = reference()
    assert tokenizer.eos_token_id == model.config.text_config.eos_token_id == len(tokenizer) - 1
    padded = tokenizer(PROMPTS, padding="max_length")["input_ids"]
    alone = torch.cat([pooled([tokenizer(prompt)["input_ids"]]) for prompt in PROMPTS])
    torch.testing.assert_close(pooled(padded), alone, atol=1e-5, rtol=1e-4)
    with torch.no_grad():
        states = model.text_model(input_ids=torch.tensor(padded)).last_hidden_state
    ends = [ids.index(tokenizer.eos_token_id) for ids in padded]
    torch.testing.assert_close(states[range(len(ends)), ends], alone, atol=1e-5, rtol=1e-4)


def test_zero_shot_on_the_shifted_images_is_what_the_readme_says() -> None:
    reference()  # skips without transformers
    from kedge.encoders.names import load_encoder
    from kedge.images.pixels import to_rgb

    encoder = load_encoder("tiny", device="cpu")
    assert encoder.logit_scale == pytest.approx(reference()[0].logit_scale.exp().item())
    text = encoder.encode_texts(PROMPTS)
    assert (text @ text.T).fill_diagonal_(0).max() < 0.95  # ten different prototypes
    pixels = torch.stack([encoder.preprocessing(to_rgb(image)) for image in images().values()])
    labels = torch.tensor([CLASSES.index(path.split("/")[0]) for path in images()])
    right = (encoder.encode_images(pixels) @ text.T).argmax(dim=1) == labels
    accuracy = 100 * right.float().mean().item()
    assert 55 <= accuracy <= 75
    assert accuracy == pytest.approx(said(r"shifted images\s+\|[ \d,]+\| (\d+\.\d+) %"), abs=0.15)  # 0.1 % is 2 images
