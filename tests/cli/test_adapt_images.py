"""`kedge adapt IMAGES`: several folders, the options of extraction, and what the summary says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import kedge
from command import npz, run
from pictures import COLOURS, colours, picture, save_pictures

__all__ = ["colours"]
pytestmark = pytest.mark.usefixtures("colours")


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return save_pictures(tmp_path / "images", each=2)


def test_two_folders_and_a_file(images: Path, tmp_path: Path) -> None:
    more = save_pictures(tmp_path / "more", each=1)
    (tmp_path / "one").mkdir()
    (more / "red" / "0.png").rename(tmp_path / "one" / "single.png")
    ran = run("adapt", images, more, tmp_path / "one" / "single.png", "--sort-into", tmp_path / "sorted")
    assert ran.code == 0
    assert ran.err.startswith("9 images, 3 classes, method kedge: ")
    rows = [line.split(",")[:2] for line in ran.out.splitlines()[1:]]
    assert [image for image, _ in rows][-3:] == ["more/blue/0.png", "more/green/0.png", "one/single.png"]
    assert len(list((tmp_path / "sorted").glob("*/*.png"))) == 9  # beside the folders, not inside one
    assert "it is inside" in run("adapt", images, more, "--sort-into", more / "sorted").err
    both = run("extract", images, more, "-o", tmp_path / "f.safetensors", "--json")
    assert json.loads(both.out)["images"] == 8


def test_labels_that_are_unknown_are_not_mentioned_to_those_who_want_labels(images: Path, tmp_path: Path) -> None:
    ran = run("adapt", images, "--classes", "red, green")
    assert ran.err.startswith("6 images, 2 classes, method kedge: ")
    assert "labels are unknown" not in ran.err
    assert "labels are unknown" in run("extract", images, "--classes", "red", "-o", tmp_path / "f.safetensors").err


def test_the_summary_counts_labels(images: Path) -> None:
    (images / "red" / "1.png").unlink()
    ran = run("adapt", images, "--json")
    assert json.loads(ran.out)["label_counts"] == {"blue": 2, "green": 2, "red": 1}
    assert "labels: blue 2, green 2, red 1\n" in ran.err


def test_only_the_ten_most_frequent_labels_are_shown(tmp_path: Path) -> None:
    np.savez(tmp_path / "f.npz", image_features=np.eye(13), text_features=np.eye(13))
    ran = run("adapt", tmp_path / "f.npz", "--json", "--method", "zero-shot")
    assert len(json.loads(ran.out)["label_counts"]) == 13
    shown = next(line for line in ran.err.splitlines() if line.startswith("labels: "))
    assert shown.endswith(" 1, … (3 more)")
    assert shown.count(" 1, ") == 10


def test_times_of_encoding_and_labelling_are_apart(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = run("adapt", images, "--json")
    report = json.loads(ran.out)
    assert report["encoding_seconds"] > 0
    assert report["seconds"] > 0
    assert re.search(r", encoded in \d+\.\d\d s, labelled in \d+\.\d\d s\n", ran.err)
    features = run("adapt", npz(tmp_path), "--json")
    assert "encoding_seconds" not in json.loads(features.out)
    assert re.search(r"%\), labelled in \d+\.\d\d s\n", features.err)


def test_options_of_extraction(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {}
    real = kedge.classify.__globals__["extract"]
    monkeypatch.setattr(
        "kedge.labelling.classify.extract", lambda *args, **options: asked.update(options) or real(*args, **options)
    )
    assert run("adapt", images, "--batch-size", 2, "--workers", 0, "--device", "cpu", "--strict").code == 0
    assert (asked["batch_size"], asked["workers"], asked["strict"]) == (2, 0, True)
    kedge.classify(images, batch_size=3, strict=True)
    assert (asked["batch_size"], asked["strict"]) == (3, True)
    (images / "red" / "0.png").write_bytes(b"no picture")
    ran = run("adapt", images, "--strict")
    assert ran.code == 2
    assert ran.err.count(str(images / "red" / "0.png")) == 1  # named once
    assert ran.err.startswith(f"error: image 5 of 6: {images / 'red' / '0.png'} is not an image")


def test_an_image_that_cannot_be_read_is_named_once(images: Path) -> None:
    (images / "red" / "0.png").write_bytes(b"no picture")
    ran = run("adapt", images)
    assert ran.err.count("red/0.png") == 1
    found = kedge.classify([np.zeros((1, 2_000_000), np.uint8), np.asarray(picture("red"))], list(COLOURS))
    assert found.names == ["red"]
    assert found.skipped["0"].startswith("image 0: an image of 2000000×1 pixels is too long and thin")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["images", "--normalize"], "--normalize is for a feature file, and these are images. Leave --normalize out"),
        (["images", "--images", "images"], "--images is for a feature file"),
        (["f.npz", "--images", "images"], "--images is for --sort-into and for methods that adapt the encoder"),
        (["f.npz", "--encoder", "tiny"], "--encoder is for images; f.npz is a feature file"),
        (["f.npz", "--device", "cpu"], "--device is for images"),
        (["f.npz", "--batch-size", "3"], "--batch-size is for images"),
        (["f.npz", "--workers", "0"], "--workers is for images"),
        (["f.npz", "--strict"], "--strict is for images"),
        (["f.npz", "images"], "f.npz is a feature file, not an image. Pass a feature file alone, or only images"),
        (["f.npz", "f.npz"], "f.npz is a feature file, not an image"),
        (["s3://bucket/photos"], "s3://bucket/photos is an address, and kedge uses local files only"),
        (["s3://bucket/f.npz"], "s3://bucket/f.npz is an address, and kedge uses local files only"),
        (["images", "http://a.b/c.jpg"], "http://a.b/c.jpg is an address"),
    ],
)
def test_refusals(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: list[str], message: str) -> None:
    npz(tmp_path).rename(tmp_path / "f.npz")
    monkeypatch.chdir(tmp_path)
    ran = run("adapt", *argv)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert message in ran.err
