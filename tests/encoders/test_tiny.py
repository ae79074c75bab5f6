"""The bundled model and pictures: small enough, whole, loaded like any other, and in the regime they claim."""

from __future__ import annotations

import io
import re
import socket
import time
import zipfile
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import kedge

TINY = Path(kedge.__file__).parent / "data" / "tiny"
MODEL, IMAGES, README = TINY / "model", TINY / "images.zip", TINY / "README.md"
LIMIT = 5_000_000  # bytes


@cache
def images() -> dict[str, Image.Image]:
    """Path in the zip → picture."""
    with zipfile.ZipFile(IMAGES) as archive:
        return {path: Image.open(io.BytesIO(archive.read(path))) for path in archive.namelist()}


@cache
def classes() -> tuple[str, ...]:
    return tuple(sorted({path.split("/")[0] for path in images()}))


@cache
def vocabulary() -> tuple[str, ...]:
    return tuple((TINY / "vocabulary.txt").read_text(encoding="utf-8").splitlines())


@cache
def reference() -> tuple[Any, Any]:
    """Model and tokenizer, by transformers alone."""
    transformers = pytest.importorskip("transformers", reason="the bundled model needs transformers: kedge[hf]")
    return (
        transformers.AutoModel.from_pretrained(MODEL).eval(),
        transformers.AutoTokenizer.from_pretrained(MODEL),
    )


def read(texts: list[str], **padding: Any) -> torch.Tensor:
    """Text features by transformers alone."""
    model, tokenizer = reference()
    words = tokenizer(texts, truncation=True, return_tensors="pt", **padding)
    with torch.no_grad():
        pooled = model.text_model(input_ids=words["input_ids"], attention_mask=words["attention_mask"]).pooler_output
        features: torch.Tensor = torch.nn.functional.normalize(model.text_projection(pooled))
    return features


def said(pattern: str) -> float:
    """A number of the README, found by what stands around it."""
    found = re.search(pattern, README.read_text(encoding="utf-8"))
    assert found, f"the README no longer says {pattern}"
    return float(found[1])


def test_the_files_are_small_and_complete() -> None:
    assert sum(path.stat().st_size for path in MODEL.iterdir()) <= LIMIT
    assert IMAGES.stat().st_size <= LIMIT
    licence = (TINY / "LICENSE.fluent-emoji").read_text(encoding="utf-8")
    assert "MIT" in licence
    assert "Microsoft Corporation" in licence


def test_the_zip_holds_a_balanced_set_of_colour_pictures() -> None:
    counts = Counter(path.split("/")[0] for path in images())
    assert 100 <= len(counts) <= 200
    assert 2_000 <= len(images()) <= 4_000
    assert 15 <= min(counts.values()) == max(counts.values())
    assert {(image.format, image.mode, image.size) for image in images().values()} == {("WEBP", "RGB", (96, 96))}
    assert len({image.tobytes() for image in images().values()}) == len(images())


def test_the_vocabulary_is_larger_than_the_classes() -> None:
    assert len(set(vocabulary())) == len(vocabulary()) >= 300
    assert set(classes()) < set(vocabulary())
    assert all(re.fullmatch(r"[a-z]+([ -][a-z]+)*", name) for name in vocabulary())


def test_it_loads_through_transformers_as_float32_with_a_scale_of_its_own() -> None:
    model, _ = reference()
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert all(p.isfinite().all() for p in model.parameters())
    assert model.logit_scale.exp().item() == pytest.approx(said(r"logit scale is (\d+\.\d+)"), abs=0.005)


def test_no_text_is_unknown_to_the_tokenizer() -> None:
    model, tokenizer = reference()
    for odd in ("", "zebra", "Übergrößenmäntel", "靴 👢", "  7/8 ", "x" * 500):
        ids = tokenizer(odd, truncation=True)["input_ids"]
        assert len(ids) <= tokenizer.model_max_length == model.config.text_config.max_position_embeddings
        assert ids.count(tokenizer.unk_token_id) == 1  # the end itself, which is CLIP's "unknown" too
        assert read([odd]).isfinite().all()


def test_the_text_tower_sees_no_padding() -> None:
    prompts = [f"a photo of a {name}." for name in vocabulary()[:20]]
    alone = torch.cat([read([prompt]) for prompt in prompts])
    torch.testing.assert_close(read(prompts, padding="max_length"), alone, atol=1e-5, rtol=1e-4)


@cache
def encoded() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Features of all pictures, features of the classes, and the true labels."""
    reference()  # skips without transformers
    from kedge.encoders.names import load_encoder
    from kedge.images.pixels import to_rgb

    encoder = load_encoder("tiny", device="cpu")
    assert encoder.logit_scale == pytest.approx(reference()[0].logit_scale.exp().item())
    text = encoder.encode_texts([f"a photo of a {name}." for name in classes()])
    pixels = torch.stack([encoder.preprocessing(to_rgb(image)) for image in images().values()])
    labels = torch.tensor([classes().index(path.split("/")[0]) for path in images()])
    return encoder.encode_images(pixels), text, labels


def test_zero_shot_on_the_pictures_is_what_the_readme_says() -> None:
    x, text, labels = encoded()
    right = (x @ text.T).argmax(dim=1) == labels
    accuracy = 100 * right.float().mean().item()
    assert 50 <= accuracy <= 65
    assert accuracy == pytest.approx(said(r"photographs\s+\|[ \d,]+\| (\d+\.\d+) %"), abs=0.15)
    never = set(range(len(classes()))) - set(labels[right].tolist())
    assert len(never) <= 0.08 * len(classes())
    named = re.search(r"never finds (\d+) of the\s+\d+ classes: ([^.]*)\.", README.read_text(encoding="utf-8"))
    assert named
    assert abs(len(never) - int(named[1])) <= 1  # a class with one picture right may go either way on another machine
    assert len({classes()[i] for i in never} ^ set(re.split(r",\s+", named[2]))) <= 1


def test_the_features_cluster_as_the_readme_says() -> None:
    x, _, labels = encoded()
    nearest = labels[(x @ x.T).fill_diagonal_(-2).topk(10).indices]
    neighbours = 100 * (nearest.mode(dim=1).values == labels).float().mean().item()
    sums = torch.zeros(len(classes()), x.shape[1]).index_add_(0, labels, x)
    to_centres = x @ torch.nn.functional.normalize(sums).T
    others = torch.nn.functional.normalize(sums[labels] - x)  # the centre of its own class without the picture
    to_centres[torch.arange(len(x)), labels] = (others * x).sum(dim=1)
    centroids = 100 * (to_centres.argmax(dim=1) == labels).float().mean().item()
    assert min(neighbours, centroids) >= 85
    assert neighbours == pytest.approx(said(r"nearest neighbours give\s+(\d+\.\d+) %"), abs=0.5)  # ties
    assert centroids == pytest.approx(said(r"centroids\s+(\d+\.\d+) %"), abs=0.15)


def test_it_loads_in_a_second_and_asks_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    reference()  # transformers itself takes seconds to import
    from kedge.encoders.names import load_encoder

    def refuse(*given: object) -> None:
        raise AssertionError("it asked the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    start = time.process_time()
    load_encoder("tiny", device="cpu")
    assert time.process_time() - start <= 1


def noted(images: Path, classes: list[str]) -> list[str]:
    """The notes of an extraction with the bundled model."""
    from kedge import progress

    said: list[str] = []
    with progress._set(progress._say, said.append):
        kedge.extract(images, classes, "tiny", images.parent / "features.safetensors", force=True)
    return said


def test_it_says_what_it_does_not_know(tmp_path: Path) -> None:
    reference()  # skips without transformers
    photos = tmp_path / "photos"
    with zipfile.ZipFile(IMAGES) as archive:
        archive.extractall(photos, archive.namelist()[:2])
    assert noted(photos, ["airplane", "Fire_Truck", "watermelon"]) == []
    (names,) = noted(photos, ["airplane", "quokka", "x" * 1000])
    assert re.match(r"note: the tiny model does not know 2 classes: quokka, x{26} … x{10}\. ", names)
    Image.new("RGB", (96, 96)).save(photos / "black.png")
    (pictures,) = noted(photos, ["airplane", "cat"])
    assert pictures.startswith("note: the tiny model knows only drawings")
