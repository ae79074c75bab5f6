"""`kedge adapt` with what a person says: classes that can occur, known labels, none of these; and what it answers."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kedge
from command import NAMES, npz, run, small
from kedge.labelling.classify import classify
from pictures import COLOURS, colours, save_pictures

__all__ = ["colours"]
METHOD = ("--method", "stata")


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return npz(tmp_path, paths=np.array([f"birds/{i}.jpg" for i in range(60)]))


def test_the_summary_shows_classes_in_doubt_and_ends_with_the_verdict(file: Path) -> None:
    ran = run("adapt", file, *METHOD)
    result = kedge.adapt(kedge.FeatureSet.load(file), method="stata")
    lines = ran.err.splitlines()
    assert lines[0].startswith("60 images, 5 classes, method stata: ")
    assert "effective classes" not in ran.err  # those found are counted
    at = lines.index(f"{len(result.classes)} classes found; worth a look (the least evidence from zero-shot first):")
    assert lines[at + 1].split() == ["class", "count", "evidence", "example"]
    first = result.classes[0]
    assert lines[at + 2].split()[-3:] == [
        f"{first.count:.1f}", f"{first.evidence:.2f}", f"birds/{first.example}.jpg"
    ]  # fmt: skip
    assert lines[-1] == result.verdict.sentence
    assert "trust" not in ran.err


def test_json_has_all_of_it(file: Path) -> None:
    report = json.loads(run("adapt", file, *METHOD, "--json", "--review", 3).out)
    result = kedge.adapt(kedge.FeatureSet.load(file), method="stata")
    assert report["verdict"]["level"] == result.verdict.level
    assert report["verdict"]["accuracy"] == pytest.approx(result.verdict.accuracy)
    assert [row["class"] for row in report["classes_found"]] == [found.name for found in result.classes]
    assert [row["image"] for row in report["review"]] == [f"birds/{i}.jpg" for i in result.review[:3].tolist()]
    assert report["rows"][7]["none"] == pytest.approx(float(result.none[7]))
    assert len(json.loads(run("adapt", file, *METHOD, "--json").out)["review"]) == 20


def test_review_lists_images_and_why(file: Path) -> None:
    lines = run("adapt", file, *METHOD, "--review", 30, "--out", file.parent / "l.csv").err.splitlines()
    at = lines.index("images most worth a look (if one that is typical is wrong, its class may not be there):")
    listed = lines[at + 2 : at + 32]
    assert [line.split()[0] for line in listed] == [
        row["image"]
        for row in sorted(rows((file.parent / "l.csv").read_text()), key=lambda row: int(row["review_rank"]))[:30]
    ]
    assert "typical of its class" in listed[0]
    assert "uncertain: " in listed[-1]
    assert all(len(line) <= 100 for line in lines[at : at + 32])


def test_the_summary_says_what_a_person_said(file: Path, tmp_path: Path) -> None:
    known = tmp_path / "known.csv"
    known.write_text(f"image,label\nbirds/1.jpg,{NAMES[1]}\nbirds/2.jpg,none\n")
    told = run("adapt", file, *METHOD, "--known", known, "--absent", NAMES[0]).err
    assert f"60 images, {len(NAMES)} classes ({len(NAMES) - 1} can occur), method stata: " in told
    assert "known: 2 labels\nnone of these: 1 image (1.7 %)\n" in told
    for nothing in ("image,label\nbirds/1.jpg\n", "image,label,true_label\nbirds/1.jpg,ash,\n"):
        known.write_text(nothing)
        told = run("adapt", file, *METHOD, "--known", known).err
        assert f"note: {known} has no label for any of these images\n" in told


def test_many_classes_are_all_in_the_file(tmp_path: Path) -> None:
    kedge.simulate(n=200, k=20, seed=0).save(tmp_path / "many.safetensors")
    found = tmp_path / "found.csv"
    assert "zero-shot first; all with --classes-out):" in run("adapt", tmp_path / "many.safetensors", *METHOD).err
    told = run("adapt", tmp_path / "many.safetensors", *METHOD, "--classes-out", found).err
    assert f"zero-shot first; all in {found}):" in told


def test_classes_are_written_edited_and_read_back(file: Path, tmp_path: Path) -> None:
    found = tmp_path / "found.csv"
    assert f"→ {found}" in run("adapt", file, *METHOD, "--classes-out", found).err
    table = rows(found.read_text())
    gone = table[0]["class"]
    found.write_text(found.read_text().replace("yes", "no", 1))
    for edited in ("--present", "--absent"):
        labels = [row["label"] for row in rows(run("adapt", file, *METHOD, edited, found).out)]
        assert gone not in labels
    present = [name for name in NAMES if name in {row["class"] for row in table} - {gone}]
    ran = run("adapt", file, *METHOD, "--present", found)
    expected = kedge.adapt(kedge.FeatureSet.load(file), method="stata", present=present)
    assert [row["label"] for row in rows(ran.out)] == [NAMES[j] for j in expected.labels]
    assert run("adapt", file, *METHOD, "--present", ", ".join(present)).out == ran.out


def test_own_output_with_true_labels_is_read_back(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "labels.csv"
    run("adapt", file, *METHOD, "--out", out)
    table = rows(out.read_text())
    table[3]["true_label"], table[8]["true_label"] = NAMES[4], "none"
    with out.open("w", newline="") as written:
        writer = csv.DictWriter(written, table[0])
        writer.writeheader()
        writer.writerows(table)
    ran = run("adapt", file, *METHOD, "--known", out, "--json")
    report = json.loads(ran.out)
    assert (report["rows"][3]["label"], report["rows"][3]["true_label"]) == (NAMES[4], NAMES[4])
    assert (report["rows"][8]["label"], report["rows"][8]["true_label"]) == ("none of these", "none of these")
    assert report["rows"][3]["review_rank"] is report["rows"][8]["review_rank"] is None
    assert (report["known"], report["none_of_these"]) == (2, 1)
    assert sum(row["changed"] for row in report["rows"]) == report["changed"]
    expected = kedge.adapt(kedge.FeatureSet.load(file), method="stata", known={3: 4, 8: kedge.NONE})
    probability = np.array([row["probability"] for row in report["rows"]], np.float32)
    assert (probability == expected.probs.numpy().max(axis=1)).all()
    hits = np.delete(expected.labels.numpy() == small()["labels"], [3, 8])
    assert report["accuracy"] == pytest.approx(hits.mean())  # of images that nobody told
    again = run("adapt", file, *METHOD, "--known", out, "--out", out)  # onto itself
    assert again.code == 0
    assert json.loads(run("adapt", file, *METHOD, "--known", out, "--json").out)["known"] == 2


def test_rejected_images_are_none_of_these(file: Path, tmp_path: Path) -> None:
    plain = rows(run("adapt", file, *METHOD).out)
    threshold = sorted(float(row["none"]) for row in plain)[-5]
    found = rows(run("adapt", file, *METHOD, "--reject", threshold).out)
    out = [i for i, row in enumerate(found) if row["label"] == "none of these"]
    assert out == [i for i, row in enumerate(plain) if float(row["none"]) > threshold]
    assert [found[i]["probability"] for i in out] == [plain[i]["probability"] for i in out]
    assert all(found[i]["changed"] == "true" for i in out)
    assert all(found[i]["true_label"] == "" for i in out)  # kedge's word, not a person's
    nobody = run("adapt", file, *METHOD, "--reject", 1e-9)
    assert "labels: none of these 60\n" in nobody.err
    assert "no class found\n" in nobody.err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--reject", "0"], "--reject must be greater than 0; got 0.0"),
        (["--reject", "2"], "--reject must be at most 1; got 2.0"),
        (["--review", "0"], "--review must be at least 1; got 0"),
        (["--present", "nothing"], "--present has 'nothing', which is no class; choose from"),
        (["--known", "none.csv"], "no file none.csv"),
        (["--known", "known.csv", "--method", "tda"], "method 'tda' does not use known labels"),
        (
            ["--known", "known.csv", "--absent", NAMES[1]],
            f"known.csv, line 2: the image 'birds/1.jpg' is known to be {NAMES[1]!r}, which is not among",
        ),
        (["--classes-out", "found.txt"], "cannot write found.txt: the classes found are a table"),
        (["--classes-out", "gone/found.csv"], "cannot write gone/found.csv: there is no folder gone"),
    ],
)
@pytest.mark.usefixtures("colours")
def test_refusals(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: list[str], message: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("known.csv").write_text(f"image,label\nbirds/1.jpg,{NAMES[1]}\n")
    ran = run("adapt", file, "--method", "stata", *argv, "--out", "l.csv")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert message in ran.err
    assert not Path("l.csv").exists()


@pytest.mark.usefixtures("colours")
class TestImages:
    @pytest.fixture
    def images(self, tmp_path: Path) -> Path:
        root = save_pictures(tmp_path / "images", each=3)
        (root / "blue" / "0.png").write_bytes(b"no picture")  # so that numbers shift
        return root

    def test_known_labels_are_found_by_path(self, images: Path, tmp_path: Path) -> None:
        known = tmp_path / "known.csv"
        known.write_text(f"image,label\n{images}/red/1.png,green\nblue/0.png,red\nimages/green/2.png,none\n")
        ran = run("adapt", images, *METHOD, "--known", known, "--sort-into", tmp_path / "sorted", "--json")
        table = {row["image"]: row for row in json.loads(ran.out)["rows"]}
        assert table["red/1.png"]["label"] == "green"
        assert table["green/2.png"]["label"] == "none of these"
        assert [name for name, row in table.items() if row["true_label"]] == ["green/2.png", "red/1.png"]
        assert [path.name for path in (tmp_path / "sorted" / "none of these").iterdir()] == ["2.png"]

    def test_classify_numbers_images_before_any_is_left_out(self, images: Path) -> None:
        options: dict[str, Any] = {"method": "stata", "known": {0: "red", 1: "green", 8: kedge.NONE}}
        found = classify(images, list(COLOURS), present=["red", "green"], **options)
        assert found.paths is not None
        assert found.names[found.paths.index("blue/1.png")] == "green"
        assert found.names[found.paths.index("red/2.png")] == "none of these"
        assert "blue" not in found.names
        with pytest.raises(kedge.InputError, match="image 1 is known to be 'blue', which is not among"):
            classify(images, list(COLOURS), present=["red"], method="stata", known={1: "blue"})

    def test_what_is_wrong_is_said_before_images_are_encoded(
        self, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("kedge.labelling.classify.extract", lambda *_, **__: pytest.fail("encoded"))
        (tmp_path / "known.csv").write_text("image,label\nred/0.png,red\n")
        for argv, message in (
            (["--known", tmp_path / "known.csv", "--method", "tda"], "does not use known labels"),
            (["--present", "pink"], "--present has 'pink', which is no class"),
            (["--reject", "7"], "reject must be at most 1"),
        ):
            assert message in run("adapt", images, *argv).err

    @pytest.mark.parametrize("suffix", ["csv", "json", "parquet"])
    def test_rows_for_images_that_could_not_be_read(self, images: Path, tmp_path: Path, suffix: str) -> None:
        out = tmp_path / f"labels.{suffix}"
        assert run("adapt", images, "--all-rows", "--out", out).code == 0
        if suffix == "parquet":
            table = pytest.importorskip("pyarrow.parquet").read_table(out).to_pylist()
        else:
            table = rows(out.read_text()) if suffix == "csv" else json.loads(out.read_text())
        assert len(table) == 9
        assert table[-1]["image"] == "blue/0.png"
        assert not any(value for name, value in table[-1].items() if name != "image")
        assert len(json.loads(run("adapt", images, "--json").out)["rows"]) == 8
