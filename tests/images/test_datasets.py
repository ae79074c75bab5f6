"""Lists of images, on small trees in the layouts that people have."""

from __future__ import annotations

import io
import pickle
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dataset_trees import SPLIT, SPLIT_FILES, picture, write, zhou_tree
from kedge.errors import FileError, InputError, MissingExtra, SettingError
from kedge.images.datasets import dataset_names, find_dataset
from kedge.images.folders import folder
from kedge.images.huggingface import huggingface
from kedge.images.layouts import benchmark_images

# Folders


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    for name in ("polar_bear/b.png", "polar_bear/deep/a.JPG", "ant/z.webp", "ant/.hidden.png", "ant/notes.txt"):
        file = tmp_path / "zoo" / name
        picture(file) if file.suffix != ".txt" else write(file, "")
    picture(tmp_path / "zoo" / ".cache" / "x.png")
    (tmp_path / "zoo" / "empty").mkdir()
    return tmp_path / "zoo"


def test_sub_folders_are_classes(zoo: Path) -> None:
    found = folder(zoo)
    assert found.paths == ("ant/z.webp", "polar_bear/b.png", "polar_bear/deep/a.JPG")
    assert found.class_names == ("ant", "polar bear")
    assert found.labels == (0, 1, 1)
    assert (found.name, found.root, found.note) == ("zoo", zoo, "")
    assert found.source(1) == zoo / "polar_bear" / "b.png"


def test_given_classes_label_only_if_all_names_match(zoo: Path) -> None:
    same = folder(zoo, ["Polar-Bear", "cow", "Ant"])
    assert same.labels == (2, 0, 0)
    assert same.class_names == ("Polar-Bear", "cow", "Ant")
    other = folder(zoo, ["cow", "ant"])
    assert other.labels is None
    assert other.note == "labels are unknown: the sub-folders 'polar_bear' are not among the classes"


def test_images_without_sub_folders(tmp_path: Path) -> None:
    picture(tmp_path / "b.png")
    picture(tmp_path / "a.png")
    with pytest.raises(InputError, match=r"are not known: it has no sub-folders\. Name them"):
        folder(tmp_path)
    found = folder(tmp_path, ["cat", "dog"])
    assert (found.paths, found.labels, found.note) == (("a.png", "b.png"), None, "")
    picture(tmp_path / "cat" / "c.png")
    with pytest.raises(InputError, match="2 of 3 images are not in a sub-folder"):
        folder(tmp_path)
    assert folder(tmp_path, ["cat", "dog"]).labels is None


def test_linked_folders_are_followed_once(zoo: Path, tmp_path: Path) -> None:
    outside = picture(tmp_path / "outside" / "o.png").parent
    (zoo / "ant" / "more").symlink_to(outside, target_is_directory=True)
    (zoo / "ant" / "loop").symlink_to(zoo, target_is_directory=True)
    assert folder(zoo).paths.count("ant/more/o.png") == 1
    assert len(folder(zoo)) == 4


def test_each_file_is_taken_once_by_its_own_path(tmp_path: Path) -> None:
    picture(tmp_path / "cat" / "a.png")
    for name in ("a cat", "kitten"):
        (tmp_path / name).symlink_to(tmp_path / "cat", target_is_directory=True)
    (tmp_path / "cat" / "0.png").symlink_to("a.png")
    assert folder(tmp_path).paths == ("cat/a.png",)


def test_folders_that_link_to_each_other(tmp_path: Path) -> None:
    """Six of them were walked as 1,956 images."""
    names = [f"c{i}" for i in range(6)]
    for name in names:
        picture(tmp_path / "in" / name / f"{name}.png")
    for one in names:
        for other in names:
            (tmp_path / "in" / one / f"to-{other}").symlink_to(tmp_path / "in" / other, target_is_directory=True)
    assert folder(tmp_path / "in").paths == tuple(f"{name}/{name}.png" for name in names)
    for name in ("b", "a"):  # two ways to one folder outside: the first in sorted order
        (tmp_path / "in" / "c0" / name).symlink_to(picture(tmp_path / "out" / "o.png").parent, target_is_directory=True)
    assert folder(tmp_path / "in").paths[:2] == ("c0/a/o.png", "c0/c0.png")


def test_links_to_images(tmp_path: Path) -> None:
    outside = picture(tmp_path / "out" / "o.png")
    picture(tmp_path / "in" / "x.png")
    for name, target in (("1.png", outside), ("2.png", outside), ("3.png", "gone.png"), ("4.png", "4.png")):
        (tmp_path / "in" / name).symlink_to(target)
    assert folder(tmp_path / "in", ["cat"]).paths == ("1.png", "3.png", "4.png", "x.png")  # 3 and 4 are left out later


def test_classes_that_are_the_same_are_refused(tmp_path: Path) -> None:
    for name in ("polar bear", "polar_bear"):
        picture(tmp_path / name / "a.png")
    with pytest.raises(InputError, match="the classes 'polar bear' and 'polar_bear' differ only in case"):
        folder(tmp_path)
    with pytest.raises(InputError, match="'Polar-bear' and 'polar bear' differ only"):
        folder(tmp_path, ["Polar-bear", "cow", "polar bear"])


def test_predictions_are_not_taken_for_labels(tmp_path: Path) -> None:
    picture(tmp_path / "cat" / "a.png")
    write(tmp_path / "labels.csv", "image,label,probability,zero_shot_label,zero_shot_probability,changed\n")
    assert folder(tmp_path).class_names == ("cat",)


@pytest.mark.parametrize("name", ["labels.csv", "table.csv"])
def test_table_of_paths_and_labels(tmp_path: Path, name: str) -> None:
    table = write(tmp_path / "in" / name, '\ufeffLabel, Path ,note\ncow,b.png,x\n"polar_bear",a.png,\n')
    found = folder(table if name == "table.csv" else table.parent)
    assert found.paths == ("b.png", "a.png")  # the table's order
    assert found.class_names == ("cow", "polar bear")
    assert found.labels == (0, 1)
    assert found.root == table.parent
    assert folder(table, ["Polar bear", "yak", "COW"]).labels == (2, 0)


def test_table_with_numbers_needs_classes_to_mean_them(tmp_path: Path) -> None:
    table = write(tmp_path / "t.csv", "path,label\na.png,1\nb.png,0\n")
    assert folder(table, ["cat", "dog"]).labels == (1, 0)
    assert folder(table, ["1", "0"]).labels == (0, 1)  # a class may be called so
    assert folder(table).class_names == ("0", "1")


def test_table_without_labels(tmp_path: Path) -> None:
    table = write(tmp_path / "t.csv", "path\na.png\n")
    assert folder(table, ["cat"]).labels is None
    with pytest.raises(InputError, match=r"the classes of .* are not known: the table has no labels"):
        folder(table)


def test_a_table_may_name_images_elsewhere(tmp_path: Path) -> None:
    far = picture(tmp_path / "far" / "b.png")
    table = write(tmp_path / "in" / "t.csv", f"path,label\n./a.png,cat\n../near/c.png,cat\n{far},dog\n")
    found = folder(table)
    assert (found.root, found.paths) == (tmp_path, ("in/a.png", "near/c.png", "far/b.png"))
    assert found.source(2) == far


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("file,label\na.png,cat\n", r"no column 'path'; found file, label\. Its first line must be: path,label"),
        ("path,label\na.png,cat\n\n,dog\n", "line 4: no path"),
        ("path,label\na.png,cat\nb.png\n", "line 3: no label"),
        (
            "path,label\na.png,cta\n",
            r"image 1 \(a.png\): the label 'cta' is not among the 2 classes; did you mean 'cat'",
        ),
        ("path,label\n", "has no images"),
        ("", "is empty"),
    ],
)
def test_bad_tables(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises((FileError, InputError), match=message):
        folder(write(tmp_path / "t.csv", text), ["cat", "dog"])


def test_folders_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="nowhere is not a folder: it does not exist"):
        folder(tmp_path / "nowhere")
    with pytest.raises(FileError, match="is not a folder: it is a file"):
        folder(picture(tmp_path / "a.png"))
    (tmp_path / "none").mkdir()
    with pytest.raises(InputError, match="contains no images"):
        folder(tmp_path / "none", ["cat"])


# The paper's datasets


@pytest.mark.parametrize("name", SPLIT_FILES)
def test_split_files(tmp_path: Path, name: str) -> None:
    zhou_tree(tmp_path, name)
    found = benchmark_images(name, tmp_path)
    assert found.name == name
    assert found.paths == ("c/4.jpg", "a/5.jpg")
    assert found.labels == (2, 0)
    assert found.class_names == ("air plane", "barrel", "car side")  # also those without test images
    assert all(Path(str(found.source(i))).is_file() for i in range(2))
    assert benchmark_images(name, tmp_path, "val").name == f"{name}_val"  # not what published figures are of
    assert benchmark_images(name, tmp_path, "train").labels == (0, 2)


def test_aircraft(tmp_path: Path) -> None:
    home = tmp_path / "fgvc_aircraft"
    write(home / "variants.txt", "707-320\nA 380\n")
    lines = write(home / "images_variant_test.txt", "0034309 A 380\n0034310 707-320\n")
    picture(home / "images" / "0034309.jpg")
    found = benchmark_images("FGVCAircraft", tmp_path)
    assert found.paths == ("0034309.jpg", "0034310.jpg")
    assert found.labels == (1, 0)
    assert found.class_names == ("707-320", "A 380")
    write(lines, "0034309 A 381\n")
    with pytest.raises(FileError, match=r"images_variant_test\.txt, line 1: the variant 'A 381' is not in"):
        benchmark_images("aircraft", tmp_path)


def test_imagenet(tmp_path: Path) -> None:
    home = tmp_path / "imagenet"
    write(home / "classnames.txt", "n01440764 tench\nn01443537 goldfish\nn01484850 great white shark\n")
    picture(home / "images" / "val" / "n01484850" / "2.JPEG")
    picture(home / "images" / "val" / "n01440764" / "1.JPEG")
    for split in ("test", "val"):
        found = benchmark_images("ImageNet-1k", tmp_path, split)
        assert found.paths == ("n01440764/1.JPEG", "n01484850/2.JPEG")
        assert found.labels == (0, 2)
        assert found.class_names == ("tench", "goldfish", "great white shark")
    with pytest.raises(FileError, match=r"no folder .*imagenet/images/train"):
        benchmark_images("imagenet", tmp_path, "train")
    stranger = picture(home / "images" / "val" / "n99" / "3.JPEG")
    with pytest.raises(FileError, match=r"n99 is not in .*classnames\.txt"):
        benchmark_images("imagenet", tmp_path)
    stranger.rename(home / "images" / "val" / "3.JPEG")
    with pytest.raises(FileError, match=r"val/3\.JPEG is not in a class folder"):
        benchmark_images("imagenet", tmp_path)


def test_what_is_missing_is_named_in_full(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=f"no folder {tmp_path}/dtd. As root, name the folder that contains dtd/"):
        benchmark_images("dtd", tmp_path)
    split = zhou_tree(tmp_path, "dtd")
    split.rename(split.with_name("elsewhere"))
    with pytest.raises(FileError, match=f"no file {split}; CoOp's DATASETS.md explains the download"):
        benchmark_images("dtd", tmp_path)
    split.with_name("elsewhere").rename(split)
    (tmp_path / "dtd" / "images" / "c" / "4.jpg").unlink()
    with pytest.raises(FileError, match=f"no file {tmp_path}/dtd/images/c/4.jpg, the first image of the test split"):
        benchmark_images("dtd", tmp_path)


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ("{", "is not a split file"),
        ([], "is not a split file"),
        ({"train": [], "val": []}, "is not a split file.*KeyError: 'test'"),
        ({**SPLIT, "test": [["a.jpg", 0]]}, "is not a split file"),
        ({**SPLIT, "test": [["a.jpg", 0, "barrel"]]}, "two names for class 0: 'air_plane' and 'barrel'"),
        ({**SPLIT, "test": [["a.jpg", 5, "barn"]]}, "has 4 classes, but no class number 3"),
        ({**SPLIT, "test": []}, "the test split of dtd in .* has no images"),
    ],
)
def test_bad_split_files(tmp_path: Path, split: Any, message: str) -> None:
    zhou_tree(tmp_path, "dtd", split)
    with pytest.raises(FileError, match=message):
        benchmark_images("dtd", tmp_path)


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("DTD", "dtd"),
        ("Flowers102", "oxford_flowers"),
        ("caltech-101", "caltech101"),
        ("pets", "oxford_pets"),
        ("StanfordCars", "stanford_cars"),
        ("UCF-101", "ucf101"),
    ],
)
def test_spellings(spelling: str, name: str) -> None:
    assert find_dataset(spelling).name == name
    assert name in dataset_names()


def test_unknown_names(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"unknown dataset 'eurosaat'; did you mean 'eurosat'\?"):
        benchmark_images("eurosaat", tmp_path)
    with pytest.raises(SettingError, match=r"unknown split 'tets'; did you mean 'test'\?"):
        benchmark_images("dtd", tmp_path, "tets")


# Hugging Face


def encoded(colour: str) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (4, 4), colour).save(file, "PNG")
    return file.getvalue()


class FakeRows:
    """As much of a datasets.Dataset as is used: rows, columns, and a cast that leaves images as bytes."""

    def __init__(self, features: dict[str, Any], columns: dict[str, list[Any]]) -> None:
        self.features, self.columns = features, columns

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, key: Any) -> Any:
        return self.columns[key] if isinstance(key, str) else {name: c[key] for name, c in self.columns.items()}

    def cast_column(self, name: str, kind: Any) -> FakeRows:
        assert kind.decode is False
        return FakeRows({**self.features, name: kind}, self.columns)


class FakeImage:
    def __init__(self, decode: bool = True) -> None:
        self.decode = decode


class FakeClassLabel:
    def __init__(self, names: list[str]) -> None:
        self.names = names


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A stand-in for the library `datasets`; `rows` is what it loads."""
    fake = ModuleType("datasets")
    images = [{"bytes": encoded(colour), "path": None} for colour in ("red", "lime")]
    features = {"img": FakeImage(), "fine": FakeClassLabel(["polar_bear", "ant"])}
    columns = {"img": images, "fine": [1, 0]}
    state = SimpleNamespace(rows=FakeRows(features, columns), asked=None)

    def load_dataset(name: str, config: str | None, *, split: str, trust_remote_code: bool | None = None) -> FakeRows:
        state.asked, state.trusted = (name, config, split), trust_remote_code
        if name == "nowhere":
            raise ConnectionError("no\nnetwork")
        return state.rows

    fake.load_dataset, fake.Image, fake.ClassLabel = load_dataset, FakeImage, FakeClassLabel  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", fake)
    return state


def test_hub_dataset(library: Any) -> None:
    found = huggingface("somebody/zoo", "valid", config="small")
    assert library.asked == ("somebody/zoo", "small", "valid")
    assert (found.name, found.paths, found.labels) == ("zoo_valid", ("valid/0", "valid/1"), (1, 0))
    assert found.class_names == ("polar bear", "ant")
    source = found.source(1)
    assert not isinstance(source, Path)
    assert np.asarray(Image.open(source))[0, 0].tolist() == [0, 255, 0]
    again = pickle.loads(pickle.dumps(found))  # as for a worker process
    assert again.source(0).read() == encoded("red")


def test_a_dataset_never_runs_its_own_program(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    huggingface("zoo")
    assert library.trusted is False
    load = sys.modules["datasets"].load_dataset
    monkeypatch.setattr(
        sys.modules["datasets"], "load_dataset", lambda name, config, split: load(name, config, split=split)
    )
    assert len(huggingface("zoo")) == 2  # version 4 of the library has no such argument


def test_hub_labels_as_text_hidden_or_absent(library: Any) -> None:
    rows = library.rows
    library.rows = FakeRows({"img": FakeImage(), "label": "text"}, {**rows.columns, "label": ["b_b", "a"]})
    found = huggingface("zoo")
    assert (found.labels, found.class_names) == ((1, 0), ("a", "b b"))
    library.rows = FakeRows(rows.features, {**rows.columns, "fine": [-1, -1]})
    hidden = huggingface("zoo")
    assert (hidden.labels, hidden.class_names) == (None, ("polar bear", "ant"))
    assert hidden.note.startswith("labels are unknown")
    library.rows = FakeRows({"img": FakeImage()}, rows.columns)
    assert huggingface("zoo").class_names == ()


def test_hub_mistakes(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileError, match="cannot load split 'test' of the Hugging Face dataset 'nowhere': no network"):
        huggingface("nowhere")
    with pytest.raises(SettingError, match=r"has no column 'imgs'; did you mean 'img'\?"):
        huggingface("zoo", image="imgs")
    library.rows.features["coarse"] = FakeClassLabel(["x"])
    with pytest.raises(SettingError, match="several possible columns: fine, coarse"):
        huggingface("zoo")
    del library.rows.features["img"]
    with pytest.raises(SettingError, match="has no column of images; found fine, coarse"):
        huggingface("zoo")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtra, match=r'pip install "kedge\[datasets\]"'):
        huggingface("zoo")


def test_hub_with_the_library_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = pytest.importorskip("datasets", reason="the extra `datasets` is not installed")
    monkeypatch.setattr(library.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    for split, name in (("train", "ant/1.png"), ("test", "ant/2.png"), ("test", "polar_bear/3.png")):
        picture(tmp_path / "zoo" / split / name, "lime")
    found = huggingface(str(tmp_path / "zoo"))
    assert (found.name, found.labels, found.class_names) == ("zoo", (0, 1), ("ant", "polar bear"))
    again = pickle.loads(pickle.dumps(found))
    assert np.asarray(Image.open(again.source(1)))[0, 0].tolist() == [0, 255, 0]
