"""What people pass as images: folders, files and patterns in any mix, PIL images and numpy arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from dataset_trees import picture, write
from kedge.errors import FileError, InputError
from kedge.images.sources import image_set


@pytest.fixture
def places(tmp_path: Path) -> Path:
    for path in ("a/cat/1.png", "a/dog/2.png", "b/cat/3.png", "b/polar_bear/4.png", "flat/5.png", "6.png"):
        picture(tmp_path / path)
    write(tmp_path / "t.csv", "path,label\n6.png,dog\n")
    return tmp_path


def test_folders_are_taken_together(places: Path) -> None:
    found = image_set([places / "a", str(places / "b")])
    assert found.paths == ("a/cat/1.png", "a/dog/2.png", "b/cat/3.png", "b/polar_bear/4.png")
    assert found.class_names == ("cat", "dog", "polar bear")
    assert found.labels == (0, 1, 0, 2)
    assert (found.root, found.folders, found.name) == (places, (places / "a", places / "b"), places.name)
    given = image_set([places / "a", places / "b"], ["dog", "Polar-Bear", "cat"])
    assert (given.class_names, given.labels) == (("dog", "Polar-Bear", "cat"), (2, 0, 2, 1))


def test_folders_files_tables_and_patterns_mix(places: Path) -> None:
    found = image_set([places / "a", places / "6.png", f"{places}/f*/*.png"])
    assert found.paths == ("a/cat/1.png", "a/dog/2.png", "6.png", "flat/5.png")
    assert (found.class_names, found.labels) == (("cat", "dog"), None)  # a single file has no label
    assert image_set([places / "a", places / "t.csv"]).labels == (0, 1, 1)
    assert image_set([places / "a", places / "flat"]).class_names == ("cat", "dog")
    assert len(image_set(f"{places}/[ab]")) == 4  # a pattern of folders
    assert len(image_set((places / "a").glob("*/*.png"), "cat, dog")) == 2  # an iterator


def test_each_file_is_taken_once(places: Path) -> None:
    (places / "again").symlink_to(places / "a", target_is_directory=True)
    found = image_set(
        [places / "a", places / "a" / "cat", places / "again", places / "a" / "dog" / "2.png"], "cat, dog"
    )
    assert found.paths == ("a/cat/1.png", "a/dog/2.png")


def test_labels_are_unknown_if_those_of_one_folder_are(places: Path) -> None:
    found = image_set([places / "a", places / "b"], "cat, dog")
    assert found.labels is None
    assert found.note == "labels are unknown: the sub-folders 'polar_bear' are not among the classes"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["flat", "6.png"], r"the classes are not known \(.*flat: it has no sub-folders\)\. Name them"),
        (["6.png", "flat/5.png"], r"the classes are not known\. Name them"),
        (["a", "f.safetensors"], r"f\.safetensors is a feature file, not an image\. Pass a feature file alone"),
        (["a", "f.npz"], r"f\.npz is a feature file"),
        (["a", "x*.png"], r"no file matches the pattern x\*\.png"),
    ],
)
def test_refusals(places: Path, monkeypatch: pytest.MonkeyPatch, given: list[str], message: str) -> None:
    monkeypatch.chdir(places)
    with pytest.raises(InputError, match=message):
        image_set(given)


@pytest.mark.parametrize("address", ["s3://bucket/a.png", "http://a.b/c.jpg", "gs://x", "https://a.b/t.csv"])
def test_addresses_are_not_files(places: Path, address: str) -> None:
    for given in (address, [places / "6.png", address]):
        with pytest.raises(FileError, match=f"{address} is an address, and kedge uses local files only"):
            image_set(given, "cat, dog")


RNG = np.random.default_rng(0)
GREY, COLOUR, CLEAR = (RNG.integers(0, 256, shape, dtype=np.uint8) for shape in ((6, 5), (6, 5, 3), (6, 5, 4)))


def test_arrays_are_images() -> None:
    found = image_set([GREY, COLOUR, CLEAR[:, ::-1], Image.fromarray(COLOUR)], "cat, dog")
    shown = [np.asarray(Image.open(found.source(i))) for i in range(4)]
    assert np.array_equal(shown[0], np.repeat(GREY[:, :, None], 3, axis=2))
    assert np.array_equal(shown[1], COLOUR)
    assert shown[2].shape == (6, 5, 3)
    assert np.array_equal(shown[3], COLOUR)
    together = image_set(np.stack([COLOUR, COLOUR[::-1]]), "cat, dog")
    assert np.array_equal(np.asarray(Image.open(together.source(1))), COLOUR[::-1])
    assert len(image_set(np.stack([CLEAR, CLEAR]), "cat")) == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([COLOUR / 255], r"numpy arrays of uint8 .*; got an array of float64 and shape \(6, 5, 3\)"),
        ([COLOUR.transpose(2, 0, 1)], r"got an array of uint8 and shape \(3, 6, 5\)"),
        ([COLOUR[0, 0]], r"shape \(3,\)"),
        ([COLOUR[:0]], r"shape \(0, 5, 3\)"),
        (np.zeros((2, 3, 6, 5), np.uint8), r"shape \(3, 6, 5\)"),
        (COLOUR, r"one array of images must be n×h×w×3; got shape \(6, 5, 3\)\. Pass one image in a list: \[image\]"),
        (np.zeros((0, 6, 5, 3), np.uint8), "the list is empty"),
        ([np.ma.masked_array(COLOUR, COLOUR > 9)], "got MaskedArray"),
        (torch.zeros(2, 3, 6, 5), r"got a torch tensor; pass image\.cpu\(\)\.numpy"),
        ([torch.zeros(3, 6, 5)], r"got a torch tensor; pass image\.cpu\(\)\.numpy"),
        (torch.tensor(3), "got a torch tensor"),
        ([COLOUR, "a.png"], "got 1 image and 1 path in one list"),
    ],
)
def test_other_arrays_are_refused(given: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        image_set(given, "cat, dog")
    assert "\n" not in str(caught.value)
