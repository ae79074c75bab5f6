"""The kinds of files that labels are written to, read by the programs they are for."""

from __future__ import annotations

import csv
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kedge
from command import run
from exported import NAMES, PATHS, predictions
from kedge.errors import FileError, InputError, KedgeError, MissingExtra, SettingError
from kedge.labelling.exports.asked import Asked
from kedge.labelling.exports.kinds import KINDS, check_output, kind_of
from kedge.labelling.known_file import read_known
from kedge.methods.given import names_alone
from pictures import save_pictures

FILES = {
    "metadata.csv": "metadata.csv",
    "metadata.jsonl": "metadata.jsonl",
    "x.labelstudio.json": ".labelstudio.json",
    "labelstudio.json": ".labelstudio.json",
    "a.b.FiftyOne.JSON": ".fiftyone.json",
    "fiftyone.json": ".fiftyone.json",
    "labels.csv": ".csv",
    "Metadata.csv": ".csv",
    "my-metadata.csv": ".csv",
    "labels.JSON": ".json",
    "notfiftyone.json": ".json",
    "x.parquet": ".parquet",
}


@pytest.mark.parametrize(("file", "name"), FILES.items())
def test_the_name_of_a_file_says_its_kind(file: str, name: str) -> None:
    assert kind_of(file).name == name


@pytest.mark.parametrize("file", ["labels.txt", "csv", ".csv", "x.jsonl", "metadata", "labels"])
def test_other_names_are_refused_with_a_list_of_the_kinds(tmp_path: Path, file: str) -> None:
    with pytest.raises(FileError, match="cannot write") as caught:
        check_output(tmp_path / file)
    assert all(kind.name in str(caught.value) for kind in KINDS)


def test_a_table_says_none_in_a_word_that_is_no_class(tmp_path: Path) -> None:
    names, known = ("cat", "none of these", "dog"), {0: kedge.NONE, 1: 1}
    predictions(names, known=known).write(tmp_path / "x.csv")
    assert read_known(tmp_path / "x.csv", PATHS, names_alone(names)) == known


def test_help_names_the_kinds() -> None:
    help_text = " ".join(run("adapt", "--help").out.replace("│", " ").split())
    assert all(kind.name in help_text for kind in KINDS)


@pytest.mark.parametrize(
    ("file", "asked", "message"),
    [
        (
            "x.fiftyone.json",
            Asked(all_rows=True),
            r"--all-rows\) is for files that end in .csv, .json, .parquet; .* does not",
        ),
        ("x.csv", Asked(image_url=""), r"--image-url\) is for files that end in .labelstudio.json; .* does not"),
    ],
)
def test_options_without_effect_are_refused(tmp_path: Path, file: str, asked: Asked, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        check_output(tmp_path / file, asked)


def test_both_files_of_label_studio_must_be_writable(tmp_path: Path) -> None:
    (tmp_path / "x.labelstudio.xml").mkdir()
    with pytest.raises(FileError, match=r"cannot write .*x\.labelstudio\.xml: it is a folder"):
        check_output(tmp_path / "x.labelstudio.json")


@pytest.mark.parametrize("file", ["metadata.csv", "metadata.jsonl", "x.fiftyone.json", "x.labelstudio.json"])
def test_images_without_paths_are_refused_before_they_are_labelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    made = predictions(paths=None)
    made.features.save(tmp_path / "f.safetensors")
    with pytest.raises(InputError, match="do not have the paths of their images"):
        made.write(tmp_path / file)
    monkeypatch.setattr("kedge.labelling.classify.label", lambda *_, **__: pytest.fail("labelled"))
    ran = run("adapt", tmp_path / "f.safetensors", "--out", tmp_path / file)
    assert "do not have the paths of their images" in ran.err
    assert not (tmp_path / file).exists()


class TestImageFolder:
    @pytest.mark.parametrize("file", ["metadata.csv", "metadata.jsonl"])
    def test_datasets_loads_it(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str) -> None:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        datasets = pytest.importorskip("datasets")
        datasets.disable_progress_bars()
        root = save_pictures(tmp_path / "photos", each=2)
        min(root.iterdir()).rename(root / "a train")  # which is no split
        paths = [path.relative_to(root).as_posix() for path in sorted(root.rglob("*.png"))]
        x, t = np.eye(3)[[0, 0, 1, 1, 2, 2]], np.eye(3)
        features = kedge.FeatureSet.from_arrays(x, t, class_names=["=b", "g, g", "r"], paths=paths)
        made = kedge.Predictions(features, kedge.adapt(features, method="zero-shot", known={5: kedge.NONE}))
        made.write(root / file)
        all_of_it = {"data_dir": str(root), "data_files": "**", "cache_dir": str(tmp_path / "cache")}
        loaded = datasets.load_dataset("imagefolder", **all_of_it)["train"]
        rows = {os.path.relpath(row["image"].filename, root): row for row in loaded}
        assert list(rows) == paths[:5]  # the last one shows none of these
        assert [row["label"] for row in rows.values()] == made.names[:5]
        assert [row["probability"] for row in rows.values()] == pytest.approx(
            made.result.probs.amax(dim=1)[:5].tolist()
        )

    def test_the_form_of_both(self, tmp_path: Path) -> None:
        made = predictions(known={2: kedge.NONE})
        for file in ("metadata.csv", "metadata.jsonl"):
            made.write(tmp_path / file)
        with (tmp_path / "metadata.csv").open(newline="", encoding="utf-8") as text:
            table = list(csv.DictReader(text))
        lines = [json.loads(line) for line in (tmp_path / "metadata.jsonl").read_text(encoding="utf-8").splitlines()]
        assert len(table) == len(lines) == len(PATHS) - 1
        assert [list(row) for row in (table[0], lines[0])] == [["file_name", "label", "probability"]] * 2
        assert [row["file_name"] for row in lines] == [path for path in PATHS if path != PATHS[2]]
        assert [row["label"] for row in table] == [row["label"] for row in lines]


class TestFiftyOne:
    def test_the_form_that_its_documentation_has(self, tmp_path: Path) -> None:
        made = predictions(known={1: 4})
        made.write(tmp_path / "x.fiftyone.json")
        found = json.loads((tmp_path / "x.fiftyone.json").read_text(encoding="utf-8"))
        assert list(found) == ["classes", "labels"]
        assert found["classes"] == list(NAMES)
        assert list(found["labels"]) == [os.path.splitext(path)[0] for path in PATHS]
        first, second = found["labels"]["a b/0"], found["labels"]["a b/1"]
        assert [found["classes"][each["label"]] for each in (first, second)] == made.names[:2]
        assert first["confidence"] == pytest.approx(float(made.result.probs[0].max()))
        assert first["attributes"]["margin"] == pytest.approx(float(made.result.margin[0]))
        assert second["attributes"]["true_label"] == "NA"
        assert None not in {**first["attributes"], **second["attributes"]}.values()

    def test_none_of_these_is_the_last_class(self, tmp_path: Path) -> None:
        made = predictions(known={1: kedge.NONE})
        made.write(tmp_path / "x.fiftyone.json")
        found = json.loads((tmp_path / "x.fiftyone.json").read_text(encoding="utf-8"))
        assert found["classes"] == [*NAMES, "none of these"]
        assert [found["classes"][each["label"]] for each in found["labels"].values()] == made.names

    def test_a_class_that_is_called_none_of_these(self, tmp_path: Path) -> None:
        made = predictions(("cat", "none of these", "dog"), known={0: kedge.NONE, 1: 1})
        made.write(tmp_path / "x.fiftyone.json")
        found = json.loads((tmp_path / "x.fiftyone.json").read_text(encoding="utf-8"))
        assert found["classes"] == ["cat", "none of these", "dog", "none"]
        assert [found["classes"][each["label"]] for each in found["labels"].values()] == made.names

    def test_two_images_that_fiftyone_would_confuse(self, tmp_path: Path) -> None:
        paths = ("a/0.jpg", "a/0.png", *PATHS[2:])
        with pytest.raises(KedgeError, match=r"'a/0\.jpg' and 'a/0\.png' would be the same"):
            predictions(paths=paths).write(tmp_path / "x.fiftyone.json")


class TestPandas:
    def test_columns_and_types(self) -> None:
        pandas = pytest.importorskip("pandas")
        made = predictions(known={3: 2})
        table = made.to_pandas()
        assert list(table) == list(made.columns)
        types = {name: str(kind) for name, kind in table.dtypes.items()}
        text = dict.fromkeys(("image", "label", "runner_up", "zero_shot_label", "true_label"), "string")
        numbers = dict.fromkeys(("probability", "margin", "none", "zero_shot_probability"), "float32")
        assert types == {**text, **numbers, "review_rank": "Int64", "changed": "bool"}
        assert table["image"].tolist() == [path.encode(errors="backslashreplace").decode() for path in PATHS]
        assert table["label"].tolist() == made.names
        assert table["review_rank"].isna().tolist() == [number == 3 for number in range(len(PATHS))]
        assert table["true_label"].dropna().to_dict() == {3: NAMES[2]}
        assert str(predictions(paths=None).to_pandas()["image"].dtype) == "int64"
        before = made.result.probs.clone()
        table["margin"] = 0.0
        table.loc[0, "probability"] = 0.0
        assert (made.result.probs == before).all()
        assert isinstance(table, pandas.DataFrame)

    def test_without_pandas(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "pandas", None)
        with pytest.raises(MissingExtra, match=r'pip install "kedge\[pandas\]"'):
            predictions().to_pandas()


class TestCalibration:
    def made(self, labels: Any, **given: Any) -> kedge.Predictions:
        """Four images of two classes with probabilities 0.9, 0.9, 0.6 and 0.6 of class 0."""
        t = np.eye(2)
        odds = np.log(np.array([9, 9, 1.5, 1.5]))  # of class 0 against class 1, at logit scale 10
        angle = np.pi / 4 - np.arcsin(odds / 10 / np.sqrt(2))
        x = np.stack([np.cos(angle), np.sin(angle)], axis=1)
        features = kedge.FeatureSet.from_arrays(x, t, labels=labels, logit_scale=10.0)
        return kedge.Predictions(features, kedge.adapt(features, method="zero-shot", **given))

    def test_by_hand(self) -> None:
        summary = self.made([0, 1, 0, 0]).summary()  # 0.9 sure, half right; 0.6 sure, all right: (0.4 + 0.4) / 2
        assert summary["calibration_error"] == pytest.approx(0.4, abs=1e-5)
        assert summary["zero_shot_calibration_error"] == pytest.approx(0.4, abs=1e-5)
        assert summary["accuracy"] == 0.75

    def test_images_that_a_person_labelled_do_not_count(self) -> None:
        summary = self.made([0, 1, 0, 0], known={1: kedge.NONE}).summary()  # (1 · 0.1 + 2 · 0.4) / 3
        assert summary["calibration_error"] == pytest.approx(0.3, abs=1e-5)
        assert summary["accuracy"] == 1.0

    def test_rejected_images_count_with_their_most_probable_class(self) -> None:
        summary = self.made([0, 1, 0, 0], reject=1e-9).summary()
        assert summary["none_of_these"] == 4
        assert summary["calibration_error"] == pytest.approx(0.4, abs=1e-5)

    def test_there_is_none_without_true_labels(self) -> None:
        summary = self.made(None).summary()
        assert summary["calibration_error"] is summary["zero_shot_calibration_error"] is None

    def test_it_is_told_beside_the_accuracy(self, tmp_path: Path) -> None:
        self.made([0, 1, 0, 0]).features.save(tmp_path / "f.safetensors")
        ran = run("adapt", tmp_path / "f.safetensors", "--method", "zero-shot", "--json")
        assert "accuracy: 75.0 % zero-shot, 75.0 % adapted\n" in ran.err
        assert "calibration error: 40.0 % zero-shot, 40.0 % adapted (how far probabilities are" in ran.err
        assert json.loads(ran.out)["calibration_error"] == pytest.approx(0.4, abs=1e-5)
