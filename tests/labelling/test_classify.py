"""From images to labels: `kedge.classify`, `kedge adapt IMAGES`, and images sorted into folders."""

from __future__ import annotations

import csv
import inspect
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import kedge
from command import run
from kedge import FeatureSet, Predictions
from kedge.answers.answer import Answer
from kedge.errors import FileError, InputError, SettingError
from kedge.images.folders import folder
from kedge.images.sources import image_set
from kedge.labelling import classify as classification
from kedge.labelling import sorting
from kedge.labelling.sorting import folder_names, sort_into
from pictures import COLOURS, colours, encoder, picture, save_pictures

__all__ = ["colours"]
pytestmark = pytest.mark.usefixtures("colours")
NAMES = list(COLOURS)
TRUTH = [name for name in sorted(COLOURS) for _ in range(4)]  # of the images, in the order of their paths


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return save_pictures(tmp_path / "images")


class TestClassify:
    def test_a_folder(self, images: Path) -> None:
        found = kedge.classify(images, NAMES)
        assert found.paths == tuple(f"{name}/{i}.png" for name in sorted(COLOURS) for i in range(4))
        assert found.names == TRUTH
        assert found.features.provenance["encoder"] == classification.DEFAULT
        assert found.result.probs.shape == (12, 3)
        assert found.summary()["accuracy"] == 1.0  # sub-folders that are classes are labels
        assert kedge.classify(str(images)).names == TRUTH  # and classes, if none are named

    def test_paths_patterns_and_pictures_give_the_same(self, images: Path) -> None:
        expected = kedge.classify(images, NAMES).result.probs
        files = sorted(images.glob("*/*.png"))
        for given in (files, list(map(str, files)), f"{images}/*/*.png", [Image.open(file) for file in files]):
            found = kedge.classify(given, "red, green, blue")
            np.testing.assert_allclose(found.result.probs, expected, atol=1e-6)
            assert found.names == TRUTH
        assert found.paths is None  # pictures have none
        assert [row["image"] for row in found.rows()] == list(range(12))
        assert kedge.classify(files[0], NAMES).names == ["blue"]

    def test_it_is_extract_then_adapt(self, images: Path, tmp_path: Path) -> None:
        kept = tmp_path / "kept.safetensors"
        found = kedge.classify(images, NAMES, encoder(), "stata", keep_features=kept, iterations=2)
        features = FeatureSet.load(kept)
        assert features.hash == found.features.hash
        expected = kedge.adapt(features, method="stata", iterations=2)
        assert (found.result.probs == expected.probs).all()
        assert found.result.info == expected.info
        assert found.result.info != kedge.adapt(features, method="stata").info  # the setting arrived

    def test_printed(self, images: Path) -> None:
        (images / "red" / "2.png").write_bytes(b"no picture")
        lines = str(kedge.classify(images, NAMES, encoder())).splitlines()
        assert lines[:4] == [
            "Predictions: 11 images, 3 classes, method kedge",
            "  0 labels changed (0.0 %), encoder colours",
            "  accuracy 100.0 % zero-shot, 100.0 % adapted",
            "  1 image left out: see .skipped",
        ]
        assert re.fullmatch(r"  blue/0\.png: blue \([01]\.\d\d\)", lines[4])
        assert lines[9:] == ["  … (6 more)"]
        few = str(kedge.classify([picture("red")], NAMES))
        assert "accuracy" not in few
        assert re.search(r"\n  0: red \([01]\.\d\d\)$", few)

    def test_printed_rows_show_what_changed(self) -> None:
        features = FeatureSet.from_arrays(np.eye(2), np.eye(2), class_names=["cat", "dog"])
        probs, zero_shot = torch.tensor([[0.25, 0.75], [0.0, 1.0]]), torch.tensor([[0.6, 0.4], [0.0, 1.0]])
        answer = Answer(features.image_features, features.head, zero_shot, probs)
        result = kedge.Result(probs, probs.argmax(dim=1), zero_shot, {"method": "stata"}, answer)
        assert str(Predictions(features, result)).splitlines()[1:] == [
            "  1 label changed (50.0 %), encoder unknown",
            "  0: dog (0.75), zero-shot cat (0.60)",
            "  1: dog (1.00)",
        ]

    def test_the_default_method(self, images: Path) -> None:
        assert kedge.classify(images, NAMES).result.info["method"] == "kedge"

    def test_an_image_set_has_its_own_classes(self, images: Path) -> None:
        with pytest.raises(kedge.InputError, match="an ImageSet has its own class names"):
            kedge.classify(folder(images), ["red", "green"])

    def test_one_template_is_no_list_of_letters(self, images: Path) -> None:
        one, listed = (kedge.classify(images, NAMES, templates=given) for given in ("all {}", ["all {}"]))
        assert (one.result.probs == listed.result.probs).all()
        with pytest.raises(kedge.InputError, match=r"the template 'a photo' must have \{\} .* exactly once"):
            kedge.classify(images, NAMES, templates=["a photo"])

    def test_pil_images_are_known_by_their_pixels(self) -> None:
        one, two = (image_set([Image.new("RGB", (8, 8), colour)], NAMES) for colour in ("red", "blue"))
        assert one.paths == two.paths
        assert one.identity != two.identity

    def test_prompts(self, images: Path) -> None:
        assert kedge.classify(images, NAMES).features.provenance["templates"] == ["a photo of a {}."]
        found = kedge.classify(images, NAMES, templates=["{} paint", "all {}"])
        assert found.features.provenance["templates"] == ["{} paint", "all {}"]

    def test_views_are_made_for_those_who_look_at_them(self, images: Path) -> None:
        assert inspect.signature(kedge.classify).parameters["views"].default == 64
        found = kedge.classify(images, NAMES, method="mta", views=5)
        assert found.features.views is not None
        assert found.features.views.shape == (12, 5, 3)
        assert kedge.classify(images, NAMES, views=5).features.views is None

    @pytest.mark.parametrize("pictures", [False, True])
    def test_the_encoder_is_adapted_on_the_images_that_could_be_read(self, images: Path, pictures: bool) -> None:
        (images / "blue" / "1.png").write_bytes(b"no picture")
        (images / "red" / "3.png").write_bytes(b"no picture")
        good = [path for path in sorted(images.glob("*/*.png")) if path.stat().st_size > 10]
        given: Any = [Image.open(path) for path in good] if pictures else images
        found = kedge.classify(given, NAMES, method="tent", steps=3)
        assert found.names == ["blue"] * 3 + ["green"] * 4 + ["red"] * 3
        features = found.features
        pixels = np.stack([encoder().preprocessing(Image.open(path)) for path in good])
        expected = kedge.adapt(
            features, method="tent", steps=3, images=kedge.arrays.as_tensor(pixels, "x", 4), encoder=encoder().visual
        )
        np.testing.assert_allclose(found.result.probs, expected.probs, atol=1e-6)
        if not pictures:
            assert set(found.skipped) == {"blue/1.png", "red/3.png"}
            assert "not an image" in found.skipped["red/3.png"]

    def test_an_image_set(self, images: Path) -> None:
        assert kedge.classify(folder(images)).names == TRUTH

    @pytest.mark.parametrize(
        ("given", "classes", "error", "message"),
        [
            ("nowhere", NAMES, FileError, "no file nowhere"),
            ("*.nothing", NAMES, InputError, "no images"),
            ([], NAMES, InputError, "no images"),
            (["a.png", "b.png"], None, InputError, "classes are not known"),
            (["a.png", picture("red")], NAMES, InputError, "got 1 image and 1 path in one list"),
            (["a.png"], NAMES, FileError, "no file a.png"),
            (["a.png", "b.png"], NAMES, InputError, "none of 2 images can be read"),
            (3, NAMES, InputError, "images must be paths, PIL images or numpy arrays .*; got int"),
            (["a.png", None], NAMES, InputError, "got NoneType"),
            ([picture("red")], ["red", "red"], InputError, "'red' is named more than once"),
        ],
    )
    def test_refusals(self, given: Any, classes: Any, error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=message):
            kedge.classify(given, classes)

    def test_settings_are_checked_before_anything_is_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(classification, "load_encoder", lambda *_, **__: pytest.fail("loaded"))
        with pytest.raises(SettingError, match="did you mean 'alpha'"):
            kedge.classify([picture("red")], NAMES, alfa=1)

    def test_the_function_is_not_hidden_by_a_module(self) -> None:
        import kedge.cli.adapt
        import kedge.labelling.classify

        assert callable(kedge.classify)


def rows(text: str) -> dict[str, str]:
    return {row["image"]: row["label"] for row in csv.DictReader(io.StringIO(text))}


class TestCommand:
    def test_a_folder_to_csv(self, images: Path) -> None:
        (images / "red" / "2.png").write_bytes(b"no picture")
        ran = run("adapt", images, "--classes", "red, green, blue")
        assert ran.code == 0
        expected = kedge.classify(images, NAMES)
        assert expected.paths is not None
        assert rows(ran.out) == dict(zip(expected.paths, expected.names, strict=True))
        assert "11 images, 3 classes, method kedge" in ran.err
        assert "accuracy: 100.0 % zero-shot" in ran.err
        assert f"left out: {images / 'red' / '2.png'} is not an image" in ran.err

    def test_several_files_and_json(self, images: Path) -> None:
        files = [images / "red" / "0.png", images / "blue" / "1.png"]
        report = json.loads(run("adapt", *files, "--classes", "red,blue", "--encoder", "E", "--quiet", "--json").out)
        assert [(row["image"], row["label"]) for row in report["rows"]] == [
            ("red/0.png", "red"), ("blue/1.png", "blue"),
        ]  # fmt: skip
        assert report["source"] == list(map(str, files))
        assert report["skipped"] == {}

    def test_kept_features_can_be_adapted_and_sorted_too(self, images: Path, tmp_path: Path) -> None:
        kept = tmp_path / "kept.safetensors"
        first = run("adapt", images, "--keep-features", kept, "--method", "mta", "--views", 4)
        assert FeatureSet.load(kept).views is not None
        assert run("adapt", kept, "--method", "mta", "--sort-into", tmp_path / "sorted").out == first.out
        assert len(list((tmp_path / "sorted").glob("*/*.png"))) == 12
        assert run("adapt", kept, "--method", "tent", "--set", "steps=0").code == 0  # finds images and encoder

    def test_templates(self, images: Path, tmp_path: Path) -> None:
        (tmp_path / "t.txt").write_text("{} paint\n")
        run("adapt", images, "--templates", tmp_path / "t.txt", "--keep-features", tmp_path / "k.safetensors")
        assert FeatureSet.load(tmp_path / "k.safetensors").provenance["templates"] == ["{} paint"]

    def test_copies_that_fail_leave_no_table(self, images: Path, tmp_path: Path) -> None:
        kept = tmp_path / "kept.safetensors"
        assert run("adapt", images, "--classes", "red,green,blue", "--keep-features", kept).code == 0
        (images / "red" / "0.png").unlink()
        ran = run("adapt", kept, "--out", tmp_path / "l.csv", "--sort-into", tmp_path / "sorted")
        assert ran.code == 2
        assert "1 of 12 images are not there, the first: " in ran.err
        assert not (tmp_path / "l.csv").exists()
        assert not (tmp_path / "sorted").exists()

    def test_sorting(self, images: Path, tmp_path: Path) -> None:
        ran = run("adapt", images, "--classes", "red,green,blue", "--sort-into", tmp_path / "sorted")
        assert ran.code == 0
        assert f"→ {tmp_path / 'sorted'}" in ran.err
        for name in COLOURS:
            assert sorted(p.name for p in (tmp_path / "sorted" / name).iterdir()) == [f"{i}.png" for i in range(4)]

    @pytest.mark.parametrize(
        ("argv", "message"),
        [
            (["images", "--sort-into", "images/sorted"], "it is inside .*images, with the images"),
            (["images", "--sort-into", "full"], "cannot sort into full: it is not empty"),
            (["images", "--sort-into", "l.csv/x"], "there is no folder"),
            (["images", "--sort-into", "file"], "it is a file"),
            (["bare.npz", "--sort-into", "new"], "do not have the paths of their images"),
            (["bare.npz", "--classes", "a, b"], "--classes is for images; bare.npz is a feature file"),
            (["bare.npz", "--keep-features", "x.safetensors"], "--keep-features is for images"),
            (["images", "--keep-features", "x.npz"], "ends in .safetensors"),
            (["nowhere"], "no file nowhere"),
            (["images/red"], "classes of .*red are not known"),
            (["images", "--method", "mta", "--views", "0"], "needs augmented views"),
        ],
    )
    def test_refusals_come_before_the_work(
        self, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: list[str], message: str
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "full" / "something").mkdir(parents=True)
        (tmp_path / "file").write_text("")
        np.savez(tmp_path / "bare.npz", image_features=np.eye(3), text_features=np.eye(3))
        if "--views" not in argv:
            monkeypatch.setattr(classification, "extract", lambda *_, **__: pytest.fail("worked before it looked"))
        before = sorted(tmp_path.rglob("*"))
        ran = run("adapt", *argv, "--out", "l.csv")
        assert ran.code == 2
        assert ran.err.count("\n") == 1
        assert re.search(message, ran.err), ran.err
        assert sorted(tmp_path.rglob("*")) == before


class TestSorting:
    @pytest.fixture
    def found(self, tmp_path: Path) -> Predictions:
        root = tmp_path / "in"
        for number, place in enumerate(("a", "b", "A", "c")):
            (root / place).mkdir(parents=True, exist_ok=True)
            picture("red", number).save(root / place / "x.png")
        picture("blue").save(root / "a" / "X.PNG")
        return kedge.classify(root, ["red", "blue"])

    def test_same_names_get_numbers_and_nothing_is_lost(self, found: Predictions, tmp_path: Path) -> None:
        sort_into(found, tmp_path / "out")
        assert sorted(p.name for p in (tmp_path / "out" / "red").iterdir()) == [
            "x-2.png", "x-3.png", "x-4.png", "x.png",
        ]  # fmt: skip
        assert [p.name for p in (tmp_path / "out" / "blue").iterdir()] == ["X.PNG"]
        copies = {p.read_bytes() for p in (tmp_path / "out").rglob("*.*")}
        assert copies == {p.read_bytes() for p in (tmp_path / "in").rglob("*.*")}
        assert len(copies) == 5
        assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "out"]  # no temporary folder

    def test_an_empty_folder_may_be_used(self, found: Predictions, tmp_path: Path) -> None:
        (tmp_path / "out").mkdir()
        assert sort_into(found, tmp_path / "out") == tmp_path / "out"
        assert len(list((tmp_path / "out").rglob("*.png"))) == 4

    def test_a_failure_leaves_nothing(
        self, found: Predictions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        copy, done = sorting.shutil.copy2, []

        def fail(source: Path, target: Path) -> None:
            if len(done) == 3:
                raise OSError(28, "No space left on device")
            done.append(copy(source, target))

        monkeypatch.setattr(sorting.shutil, "copy2", fail)
        with pytest.raises(FileError, match=r"cannot copy .*No space left on device"):
            sort_into(found, tmp_path / "out")
        assert sorted(p.name for p in tmp_path.iterdir()) == ["in"]

    def test_folder_names(self) -> None:
        names = ["cat/dog", "cat:dog", "..", "CON", "a" * 500, "Ä" * 300, " x. ", "Cat", "cat", "a\nb", "nul.txt", "?"]
        found = folder_names(names)
        assert found[:4] == ["cat_dog", "cat_dog-2", "_", "CON_"]
        assert found[6:] == ["x", "Cat", "cat-2", "a_b", "nul.txt_", "_-2"]
        assert all(1 <= len(name.encode()) <= 210 for name in found)
        assert len({name.lower() for name in found}) == len(names)

    def test_hostile_class_names_stay_in_the_folder(self, images: Path, tmp_path: Path) -> None:
        found = kedge.classify(images, ["../../red", "/etc/green", "blue"])
        sort_into(found, tmp_path / "out")
        assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["_.._red", "_etc_green", "blue"]
        assert len(list((tmp_path / "out").rglob("*.png"))) == 12


def test_image_sets_are_named_by_their_folder(images: Path) -> None:
    assert image_set([images / "red" / "0.png", images / "blue" / "0.png"], NAMES).name == "images"
