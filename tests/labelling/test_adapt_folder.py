"""A feature folder gets the labels that its images get together in memory; they leave as shards and as a table."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import kedge
from command import run
from kedge import FeatureSet, LabelFolder, adapt_folder
from kedge.features.folder import FeatureFolder, split
from kedge.features.simulate import simulate
from kedge.methods.solve.parts import Here

KNOWN = {5: 3, 299: 1, 120: 7}
PRESENT = [1, 3, 4, 7, 9, 12, 19]
SAID: list[dict[str, Any]] = [{}, {"known": KNOWN}, {"present": PRESENT}, {"known": KNOWN, "present": PRESENT}]


@pytest.fixture(scope="module")
def features() -> FeatureSet:
    f = simulate(300, 20, d=32, seed=1)
    paths = [f"a/{i}.jpg" for i in range(300)]
    return FeatureSet.from_arrays(f.image_features, f.head, labels=f.labels, paths=paths)


@pytest.fixture(scope="module")
def folder(features: FeatureSet, tmp_path_factory: pytest.TempPathFactory) -> FeatureFolder:
    return split(features, tmp_path_factory.mktemp("features") / "f", 70)


def together(labels: LabelFolder, k: int) -> tuple[Tensor, Tensor]:
    """The labels, and z (n×k)."""
    shards = list(labels.shards())
    found, candidates, z = (torch.cat([shard[name] for shard in shards]) for name in ("labels", "candidates", "z"))
    return found.long(), torch.zeros(len(found), k).scatter_(1, candidates.long(), z)


@pytest.mark.parametrize("parts", [1, 3, 5])
@pytest.mark.parametrize("said", SAID, ids=["-".join(said) for said in SAID])
@pytest.mark.parametrize("method", ["kedge", "stata"])
def test_the_labels_are_those_of_all_images_together(
    method: str, said: dict[str, Any], parts: int, features: FeatureSet, folder: FeatureFolder, tmp_path: Path
) -> None:
    whole = kedge.adapt(features, method=method, **said)
    labels = adapt_folder(folder, tmp_path / "labels", method, **said, parts=parts)
    found, z = together(labels, 20)
    assert torch.equal(found, whole.labels)
    assert (z - whole.probs).abs().max() <= 1e-4
    assert len(labels) == 300
    assert [entry.images for entry in labels.entries] == [70, 70, 70, 70, 20]
    assert sorted(path.name for path in (tmp_path / "labels").iterdir()) == sorted(
        ["labels.safetensors", *(entry.name for entry in labels.entries)]
    )
    summary = kedge.Predictions(features, whole).summary()
    for name in ("method", "accuracy", "zero_shot_accuracy", "changed", "known", "images", "classes"):
        assert labels.summary[name] == pytest.approx(summary[name]), name
    assert labels.job["features"] == folder.hash
    assert "300 images, 20 classes" in repr(labels)


def test_rows_are_those_of_predictions(features: FeatureSet, folder: FeatureFolder, tmp_path: Path) -> None:
    """But for the columns that need all classes of all images."""
    labels = adapt_folder(folder, tmp_path / "labels", known=KNOWN)
    rows = list(labels.rows())
    expected = list(kedge.Predictions(features, kedge.adapt(features, known=KNOWN)).rows())
    assert len(rows) == 300
    for row, other in zip(rows, expected, strict=True):
        kept = {name: value for name, value in other.items() if name not in ("none", "review_rank")}
        assert row == {
            name: pytest.approx(value, abs=1e-4) if isinstance(value, float) else value for name, value in kept.items()
        }
    labels.write(tmp_path / "labels.csv")
    with (tmp_path / "labels.csv").open(newline="") as file:
        read = list(csv.DictReader(file))
    assert [row["image"] for row in read] == [row["image"] for row in rows]
    assert read[5]["true_label"] == "simulated 003"
    labels.write(tmp_path / "labels.json")
    assert json.loads((tmp_path / "labels.json").read_text()) == rows


def test_half_precision_and_approximate_neighbours(features: FeatureSet, tmp_path: Path) -> None:
    half = FeatureSet.from_arrays(features.image_features.half(), features.head)
    folder = split(half, tmp_path / "f", 100)
    labels = adapt_folder(folder, tmp_path / "labels", "kedge", parts=2, search="approximate")
    assert 0.8 < labels.summary["recall"] <= 1
    assert 0 < labels.summary["crossing"] < 1
    whole = kedge.adapt(half, method="kedge", search="approximate")
    assert torch.equal(together(labels, 20)[0], whole.labels)


def test_one_image_and_one_class(tmp_path: Path) -> None:
    f = simulate(3, 1, d=16, seed=1)
    labels = adapt_folder(split(f, tmp_path / "f", 1), tmp_path / "labels", parts=2)
    assert together(labels, 1)[0].tolist() == [0, 0, 0]
    f = simulate(1, 4, d=16, seed=1)
    labels = adapt_folder(split(f, tmp_path / "g", 1), tmp_path / "more", parts=2)
    only = adapt_folder(tmp_path / "g", tmp_path / "only", present=[2])
    assert together(only, 4)[0].tolist() == [2]
    assert torch.allclose(together(labels, 4)[1], kedge.adapt(f).probs, atol=1e-5)


def views(found: Any) -> list[Tensor]:
    """The tensors that are parts of larger ones, in any tuples and lists."""
    if isinstance(found, Tensor):
        return [found] if found.untyped_storage().nbytes() > found.nbytes else []
    return [view for each in found for view in views(each)] if isinstance(found, list | tuple) else []


class Watching(Here):
    """What a part gives is as small as it says: Ray sends all the memory that a tensor is in."""

    def each(self, call: str, *shared: Any, **more: Any) -> list[Any]:
        found = super().each(call, *shared, **more)
        assert not views(found), f"by {call}"
        assert not views(shared), f"to {call}"
        return found


@pytest.mark.parametrize("search", ["exact", "approximate"])
def test_nothing_that_leaves_a_part_is_a_view(search: str, folder: FeatureFolder, tmp_path: Path) -> None:
    labels = adapt_folder(
        folder,
        tmp_path / "labels",
        known=KNOWN,
        search=search,
        parts=3,
        engine=lambda make, places: Watching([make(*place) for place in places]),
    )
    assert len(labels) == 300


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "zero-shot"}, "cannot solve a feature folder in parts. Choose kedge or stata"),
        ({"method": "stata", "tol": 0.1}, "by lists of candidates has no tol"),
        ({"known": {3: kedge.NONE}}, "image 3 is known to show none of the classes"),
        ({"known": {300: 1}}, "known names image 300"),
        ({"known": {5: 3}, "present": [1, 2]}, "image 5 is known to be .* not among the classes that can occur"),
        ({"present": []}, "present is empty"),
        ({"parts": 0}, "parts must be"),
        ({"features": "nowhere"}, "is not a feature folder"),
    ],
    ids=str,
)
def test_what_is_refused(change: dict[str, Any], message: str, folder: FeatureFolder, tmp_path: Path) -> None:
    with pytest.raises(kedge.KedgeError, match=message):
        adapt_folder(**{"features": folder, "out": tmp_path / "labels", **change})


def test_a_folder_with_other_files_is_left_alone(folder: FeatureFolder, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").touch()
    with pytest.raises(kedge.FileError, match="has other files"):
        adapt_folder(folder, tmp_path)


def test_forged_shards_are_refused(folder: FeatureFolder, tmp_path: Path) -> None:
    labels = adapt_folder(folder, tmp_path / "labels")
    first, second = (labels.path / entry.name for entry in labels.entries[:2])
    first.write_bytes(second.read_bytes())
    with pytest.raises(kedge.FileError, match="is not the shard that"):
        next(labels.shards())
    with pytest.raises(kedge.FileError, match="is not a label folder"):
        LabelFolder.open(tmp_path)


def test_the_command_line(features: FeatureSet, folder: FeatureFolder, tmp_path: Path) -> None:
    (tmp_path / "known.csv").write_text("image,label\na/5.jpg,simulated 003\n")
    (tmp_path / "absent.txt").write_text("simulated 002\nsimulated 019\n")
    table = tmp_path / "labels.csv"
    ran = run(
        "adapt", folder.path, "--label-folder", tmp_path / "labels", "--out", table, "--known", tmp_path / "known.csv",
        "--json", "--method", "stata", "--absent", tmp_path / "absent.txt",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    told = json.loads(ran.out)
    assert (told["images"], told["known"], told["sha256"]) == (300, 1, folder.hash)
    assert f"→ {table}" in ran.err
    labels = LabelFolder.open(tmp_path / "labels")
    others = [number for number in range(20) if number not in (2, 19)]
    expected = kedge.adapt(features, method="stata", known={5: 3}, present=others).labels
    assert torch.equal(together(labels, 20)[0], expected)
    assert len(table.read_text().splitlines()) == 301


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--label-folder", "labels", "--review", "3"], "--review is not for --label-folder"),
        (["--label-folder", "labels", "--device", "cpu"], "--device is not for --label-folder"),
        (["--cluster", "auto"], "--cluster is for --label-folder"),
        (["elsewhere", "--label-folder", "labels"], "--label-folder is for one feature folder; got 2 names"),
        (["--label-folder", "labels", "--actors", "3"], "--actors is for --cluster"),
        (["--label-folder", "labels", "--out", "x.parquet"], "Choose .csv or .json"),
    ],
    ids=str,
)
def test_options_that_do_not_go_together(
    options: list[str], message: str, folder: FeatureFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = run("adapt", folder.path, *options)
    assert ran.code == 2
    assert message in ran.err


def test_what_is_no_feature_folder(tmp_path: Path) -> None:
    for source, message in ((tmp_path / "nowhere", "error: no folder "), (tmp_path, f"{tmp_path} is none")):
        ran = run("adapt", source, "--label-folder", tmp_path / "labels")
        assert ran.code == 2
        assert message in ran.err
