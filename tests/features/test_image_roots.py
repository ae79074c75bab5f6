"""Which files a feature file may have opened: it cannot choose files elsewhere, whatever it says."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kedge
from command import run
from encoder_tools import build
from kedge import FeatureSet
from kedge.encoders.encoder import DEFAULT
from kedge.encoders.hub import PINNED
from kedge.encoders.names import load_encoder
from kedge.errors import FileError, InputError
from kedge.features.extract import extract
from kedge.features.image_source import ImageSource, encoder_name, find_images
from kedge.images.folders import folder
from kedge.labelling.classify import label
from kedge.labelling.contact_sheet import contact_sheet
from kedge.labelling.sorting import sort_into
from kedge.methods.registry import build as method
from pictures import colours, encoder, save_pictures

__all__ = ["colours"]
pytestmark = pytest.mark.usefixtures("colours")
SECRET = "secret.txt"


@pytest.fixture
def features(tmp_path: Path) -> FeatureSet:
    """home/f.safetensors with its images in home/images; the secret is beside home."""
    (tmp_path / SECRET).write_text("secret")
    images = folder(save_pictures(tmp_path / "home" / "images", each=1))
    return extract(images, encoder=encoder(), out=tmp_path / "home" / "f.safetensors")


def saying(features: FeatureSet, root: str | None = None, path: str | None = None, **said: Any) -> FeatureSet:
    """The feature file, forged: another root, another path of the first image, other provenance."""
    assert features.paths is not None
    assert features.path is not None
    forged = replace(
        features,
        paths=features.paths if path is None else (path, *features.paths[1:]),
        provenance={**features.provenance, **({} if root is None else {"root": root}), **said},
    )
    vars(forged).pop("hash", None)
    forged.save(features.path)
    return FeatureSet.load(features.path)


def linked(features: FeatureSet, name: str, target: str | Path) -> FeatureSet:
    assert features.path is not None
    (features.path.parent / "images" / name).symlink_to(target)
    return saying(features, path=name)


FORGED: dict[str, tuple[Callable[[FeatureSet, Path], FeatureSet], str]] = {
    "root": (
        lambda f, _: saying(f, root="/", path="etc/passwd"),
        "the images were in /, which is not in the folder of",
    ),
    "root above": (lambda f, _: saying(f, root=".."), r"the images were in \.\., which is not in the folder"),
    "root elsewhere": (
        lambda f, place: saying(f, root=str(place / "a b")),
        r"If they are yours, name their folder: --images '/.*/a b'\.",
    ),
    "root with NUL": (lambda f, _: saying(f, root="/a\0b"), "which is not in the folder of the feature file"),
    "absolute path": (lambda f, _: saying(f, path="/etc/passwd"), "names the image '/etc/passwd', which is not in"),
    "path with ..": (
        lambda f, _: saying(f, path=f"../../{SECRET}"),
        "names the image '../../secret.txt', which is not",
    ),
    "device": (lambda f, _: saying(f, path="/dev/zero"), "names the image '/dev/zero', which is not in"),
    "link": (
        lambda f, place: linked(f, "x.png", place / SECRET),
        "the image 'x.png' is a link to outside of the folder",
    ),
    "linked folder": (
        lambda f, place: saying(linked(f, "out", place), path=f"out/{SECRET}"),
        "the image 'out/secret.txt' is a link to outside of the folder of the feature file. If the images are yours",
    ),
    "folder": (lambda f, _: saying(f, path="red"), "red is not a regular file"),
    "nothing": (lambda f, _: saying(f, path="gone.png"), "1 of 3 images are not there, the first: .*gone.png"),
}


@pytest.mark.parametrize("case", FORGED)
def test_a_feature_file_does_not_choose_files(features: FeatureSet, tmp_path: Path, case: str) -> None:
    change, message = FORGED[case]
    forged = change(features, tmp_path)
    found = label(forged, method("zero-shot"))
    for attempt in (
        lambda: sort_into(found, tmp_path / "sorted"),
        lambda: contact_sheet(found, tmp_path / "sheet.png", "t"),
        lambda: ImageSource.of(forged),
    ):
        with pytest.raises((InputError, FileError), match=message):
            attempt()
    ran = run("adapt", forged.path, "--sort-into", tmp_path / "sorted", "--out", tmp_path / "l.csv")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert re.search(message, ran.err)
    assert not (tmp_path / "sorted").exists()
    assert not (tmp_path / "l.csv").exists()


@pytest.mark.skipif(os.name == "nt", reason="no named pipes in folders on Windows")
def test_a_pipe_is_refused_at_once(features: FeatureSet, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "home" / "images" / "pipe.png")
    for images in (None, tmp_path / "home" / "images"):
        with pytest.raises(FileError, match=r"pipe.png is not a regular file"):
            find_images(saying(features, path="pipe.png"), images)


def test_images_elsewhere_are_opened_if_the_user_names_them(features: FeatureSet, tmp_path: Path) -> None:
    shutil.move(tmp_path / "home" / "images", tmp_path / "moved")
    moved = saying(features, root=str(tmp_path / "moved"))
    refused = run("adapt", moved.path, "--sort-into", tmp_path / "sorted")
    assert f"--images {tmp_path / 'moved'}." in refused.err
    ran = run("adapt", moved.path, "--sort-into", tmp_path / "sorted", "--images", tmp_path / "moved", "--quiet")
    assert (ran.code, ran.err) == (0, "")
    assert len(list((tmp_path / "sorted").glob("*/*.png"))) == 3
    assert run("adapt", moved.path, "--method", "tent", "--set", "steps=1").code == 2
    assert run("adapt", moved.path, "--method", "tent", "--set", "steps=1", "--images", tmp_path / "moved").code == 0
    bench = ("bench", moved.path, "--method", "tent", "--scenario", "all", "--out", tmp_path / "records")
    assert f"--images {tmp_path / 'moved'}." in run(*bench).err
    assert run(*bench, "--images", tmp_path / "moved").code == 0
    found = label(moved, method("zero-shot"))
    assert len(list(sort_into(found, tmp_path / "too", images=tmp_path / "moved").glob("*/*.png"))) == 3
    inside = run("adapt", moved.path, "--sort-into", tmp_path / "moved" / "x", "--images", tmp_path / "moved")
    assert "it is inside" in inside.err


def test_in_a_folder_that_the_user_names_links_are_followed(features: FeatureSet, tmp_path: Path) -> None:
    images = tmp_path / "home" / "images"
    elsewhere = shutil.move(images / "red", tmp_path / "elsewhere")
    (images / "red").symlink_to(elsewhere, target_is_directory=True)
    with pytest.raises(InputError, match=r"'red/0\.png' is a link to outside of the folder of the feature file"):
        find_images(features)
    assert len(find_images(features, images)) == 3
    for path in ("/etc/passwd", f"../../{SECRET}"):  # but the file still cannot leave it
        with pytest.raises(InputError, match=f"which is not in {images}"):
            find_images(saying(features, path=path), images)
    with pytest.raises(FileError, match="nowhere is not a folder"):
        find_images(features, tmp_path / "nowhere")


def test_a_feature_file_and_its_images_can_move_together(features: FeatureSet, tmp_path: Path) -> None:
    relative = saying(features, root="images")
    assert relative.path is not None
    shutil.move(tmp_path / "home", tmp_path / "new")
    moved = FeatureSet.load(tmp_path / "new" / "f.safetensors")
    assert find_images(moved)[0] == tmp_path / "new" / "images" / "blue" / "0.png"


def test_paths_in_an_npz_are_relative_to_it(tmp_path: Path) -> None:
    save_pictures(tmp_path / "in", each=1)
    paths = ["blue/0.png", "green/0.png", "red/0.png"]
    np.savez(tmp_path / "in" / "f.npz", image_features=np.eye(3), text_features=np.eye(3), paths=paths)
    assert run("adapt", tmp_path / "in" / "f.npz", "--sort-into", tmp_path / "sorted").code == 0
    assert len(list((tmp_path / "sorted").glob("*/*.png"))) == 3


def test_images_that_were_just_labelled_are_named_by_the_user(tmp_path: Path) -> None:
    images = save_pictures(tmp_path / "images", each=1)
    far = tmp_path / "far.png"
    shutil.move(images / "red" / "0.png", far)
    (images / "t.csv").write_text(f"path\n{far}\ngreen/0.png\n")
    found = kedge.classify(images / "t.csv", ["red", "green"])
    assert len(list(sort_into(found, tmp_path.parent / f"{tmp_path.name}-sorted").glob("*/*.png"))) == 2


def test_a_model_folder_is_loaded_only_if_the_user_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # real encoders
    home = tmp_path / "home"
    images = folder(save_pictures(home / "images", each=1))
    model = load_encoder(str(build(tmp_path / "model", "clip")))
    features = extract(images, encoder=model, out=home / "f.safetensors", templates="a {}.")
    name = str(features.provenance["encoder"])
    with pytest.raises(InputError, match=f"which is not in the folder .* If it is yours, name it: --encoder {name}"):
        ImageSource.of(features)
    tent = ("adapt", features.path, "--method", "tent", "--set", "steps=1")
    assert (ran := run(*tent)).code == 2
    assert f"--encoder {name}." in ran.err
    assert run(*tent, "--encoder", tmp_path / "model").code == 0
    assert "weights_sha256 differ" in run(*tent, "--encoder", build(tmp_path / "other", "clip", seed=1)).err
    shutil.move(tmp_path / "model", home / "model")
    beside = saying(features, encoder=f"hf:{home / 'model'}")
    assert ImageSource.of(beside).encoder.dimension == 24


@pytest.mark.parametrize(
    ("name", "commit"),
    [("hf:some/model", None), ("hf:some/model", "1" * 40), (DEFAULT, "1" * 40), (f"{DEFAULT}@{'1' * 40}", None)],
)
def test_a_feature_file_does_not_choose_what_is_downloaded(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch, name: str, commit: str | None
) -> None:
    """Also not at a commit of a model that kedge names: it can be that of anybody's pull request."""
    pytest.importorskip("huggingface_hub")
    monkeypatch.setattr("kedge.encoders.hub._downloaded", lambda *_: pytest.fail("a download"))
    monkeypatch.setattr("kedge.encoders.hub._cached", lambda *_: None)
    said = {"encoder": name, "revision": commit} if commit else {"encoder": name}
    with pytest.raises(InputError, match=r"which is not on this machine. If you trust it, name it: --encoder hf:"):
        encoder_name(saying(features, **said))


def test_a_feature_file_may_name_what_kedge_names(features: FeatureSet, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("huggingface_hub")
    monkeypatch.setattr("kedge.encoders.hub._cached", lambda *_: None)
    assert encoder_name(saying(features, encoder=DEFAULT)) == DEFAULT
    pinned = PINNED[DEFAULT.removeprefix("hf:")]
    assert encoder_name(saying(features, encoder=DEFAULT, revision=pinned)) == f"{DEFAULT}@{pinned}"
    monkeypatch.setattr("kedge.encoders.hub._cached", lambda *_: Path())
    assert encoder_name(saying(features, encoder="hf:some/model", revision="v2")) == "hf:some/model@v2"
