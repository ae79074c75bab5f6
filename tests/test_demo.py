"""The demo, on a few of the bundled images: its methods in real scenarios, and pictures of what was corrected."""

from __future__ import annotations

import csv
import errno
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from command import run
from kedge import FeatureSet, Predictions, Result, adapt
from kedge import demo as module
from kedge.answers.answer import Answer
from kedge.benchmark.record import load_records
from kedge.demo import COMPARED, ON_PART, SLOW, Demo, Size, demo
from kedge.encoders.names import load_encoder
from kedge.errors import FileError, InputError, MissingExtra
from kedge.labelling.contact_sheet import BAD, GOOD, contact_sheet
from kedge.report.words import points

pytest.importorskip("transformers", reason='the bundled model is loaded by transformers: pip install "kedge[hf]"')
CLASSES, EACH = 10, 14  # the first ones, and images of each: two batches of a stream
FEW = Size(("very-low", "all"), ("stream-high",), (3, 1), (2, 1))


def some(place: Path) -> Path:
    """The first images of the first classes."""
    unpacked(place)
    for number, folder in enumerate(sorted(place.iterdir())):
        for file in sorted(folder.iterdir())[EACH if number < CLASSES else 0 :]:
            file.unlink()
    return place


unpacked = module.unpack


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo") / "made" / "here"


@pytest.fixture(scope="module")
def order() -> list[str]:
    """What the demo called, of compiling and running."""
    return []


@pytest.fixture(scope="module")
def made(folder: Path, order: list[str]) -> Demo:
    def noted(name: str) -> Callable[..., Any]:
        call = getattr(module, name)
        return lambda *given, **named: (order.append(name), call(*given, **named))[1]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "unpack", some)
        patched.setattr(module, "QUICK", FEW)
        for name in ("warm_up", "run"):
            patched.setattr(module, name, noted(name), raising=False)
        return demo(folder, quick=True)


@pytest.mark.usefixtures("made")
def test_compiling_is_not_timed_as_a_method(order: list[str]) -> None:
    assert order == ["warm_up", "run"]


def test_every_method_in_every_scenario(made: Demo) -> None:
    assert made.failed == ()
    cells = [(record.method, record.scenario) for record in made.records]
    assert sorted(cells) == sorted((m, s) for m in COMPARED for s in ("very-low", "all", "stream-high"))
    assert all(record.simulated for record in made.records)
    counts = {(r.method in ON_PART, r.images) for r in made.records if r.scenario != "very-low"}
    assert counts == {(False, CLASSES * EACH), (True, CLASSES * module.EACH)}
    tasks = {(r.method in (SLOW, *ON_PART), r.tasks) for r in made.records if r.scenario == "very-low"}
    assert tasks == {(False, 3), (True, 2)}
    (tent, *_) = (record for record in made.records if record.method == "tent")
    assert tent.label == "tent steps=1"  # what is not the default is said


def test_the_numbers_are_those_of_adapt(made: Demo, folder: Path) -> None:
    features = FeatureSet.load(folder / "features.safetensors")
    assert features.hash == made.features.hash
    assert features.provenance["encoder"] == "tiny"
    result = adapt(features, method="kedge")
    accuracy = float((result.labels == features.labels).double().mean())
    (record,) = (r for r in made.records if (r.method, r.scenario) == ("kedge", "all"))
    assert record.accuracy == pytest.approx(accuracy)
    assert made.labelled.summary()["accuracy"] == pytest.approx(accuracy)


def test_the_table_shows_accuracy_and_gain_and_marks_what_is_a_part(made: Demo) -> None:
    lines = made.table().splitlines()
    assert lines[0].split() == ["method", "very-low", "all", "stream-high", "mean", "gain"]
    rows = {line.split()[0]: line.split()[1:] for line in lines[2 : lines.index("")]}
    start = next(
        at for at, line in enumerate(lines) if line.split() == ["method", "worst", "tenth", "calibration", "error"]
    )
    changes = {line.split()[0]: line.split()[1:] for line in lines[start + 2 : lines.index("", start)]}
    assert changes.keys() == rows.keys()
    assert [part == "→" for part in changes["moon"]] == [False, True, False] * 2
    assert len(changes["zero-shot"]) == 2
    assert sorted(rows) == sorted(f"{m}*" if m in ON_PART else f"{SLOW}†" if m == SLOW else m for m in COMPARED)
    found = [next(r for r in made.records if (r.method, r.scenario) == ("moon", s)) for s in lines[0].split()[1:4]]
    gains = [record.gain or 0 for record in found]
    shown = [
        text for r, gain in zip(found, gains, strict=True) for text in (f"{100 * (r.accuracy or 0):.1f}", points(gain))
    ]
    assert rows["moon"] == [*shown, points(sum(gains) / 3)]
    assert len(rows["zero-shot"]) == 4  # no gain over itself
    notes = " ".join(lines)
    assert "medium" not in notes  # no word of a scenario that did not run
    assert "TransCLIP and ZLaP assume that all classes are present" in notes
    assert f"only on {CLASSES * module.EACH} of the {CLASSES * EACH} pictures" in notes
    assert "2 of 3 batches per scenario, 1 of 1 stream" in notes


def test_files(made: Demo, folder: Path) -> None:
    names = [path.name for path in made.files.values()]
    pictures, features = ["contact-sheet.png", "stream.png"], ["features.safetensors", "part.safetensors"]
    assert names == ["report.html", *pictures, "table.csv", *features]
    assert sorted(path.name for path in folder.iterdir()) == sorted([*names, "images", "records", "report_figures"])
    with (folder / "table.csv").open(encoding="utf-8") as file:
        rows = {(row["label"], row["value"]): row for row in csv.DictReader(file)}
    (record,) = (r for r in made.records if (r.method, r.scenario) == ("moon", "stream-high"))
    for value in ("accuracy", "gain", "tail", "calibration_error", "zero_shot_calibration_error"):
        assert float(rows["moon", value]["stream-high"]) == pytest.approx(100 * getattr(record, value), abs=1e-5)
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert len(re.findall('<img alt="Pictures whose label was corrected or broken', page)) == 1
    assert page.count("The pictures are simulated") == 1
    assert '<span class="badge">' in page  # as everywhere where figures of simulated pictures are shown


@pytest.mark.usefixtures("made")
def test_again_runs_nothing_twice(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stamps = {path: path.stat().st_mtime_ns for path in (folder / "records").iterdir()}
    next((folder / "images" / "american football").iterdir()).unlink()  # comes back
    monkeypatch.setattr(module, "unpack", some)
    monkeypatch.setattr(module, "QUICK", FEW)
    again = demo(folder, quick=True)
    assert {path: path.stat().st_mtime_ns for path in (folder / "records").iterdir()} == stamps
    assert len(again.records) == len(load_records([folder / "records"])) == len(stamps)


def test_what_is_bundled_is_unpacked_whole(tmp_path: Path) -> None:
    unpacked(tmp_path / "images")
    assert len(list((tmp_path / "images").glob("*/*.webp"))) >= 2000
    (damaged, other, *_) = sorted((tmp_path / "images").glob("*/*.webp"))
    content, stamp = damaged.read_bytes(), other.stat().st_mtime_ns
    damaged.write_bytes(content[:50])
    unpacked(tmp_path / "images")
    assert damaged.read_bytes() == content
    assert other.stat().st_mtime_ns == stamp


def test_threads_are_left_alone(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        (tmp_path / "file").write_text("")
        with pytest.raises(FileError, match="cannot make the folder"):
            demo(tmp_path / "file" / "inside")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_refuses_a_place_it_can_not_write_before_working(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "unpack", lambda place: pytest.fail("worked before it looked"))
    (tmp_path / "contact-sheet.png").mkdir()
    with pytest.raises(FileError, match="is a folder"):
        demo(tmp_path)


def test_without_the_extra_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    ran = run("demo", "--out", tmp_path / "out")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert 'pip install "kedge[hf]"' in ran.err
    assert not (tmp_path / "out").exists()
    with pytest.raises(MissingExtra):
        load_encoder("tiny")


class TestContactSheet:
    @pytest.fixture
    def written(self, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
        from matplotlib.figure import Figure

        seen: list[tuple[str, str]] = []
        text = Figure.text
        monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)
        monkeypatch.setattr(
            Figure, "text", lambda self, x, y, s, **look: seen.append((s, look["color"])) or text(self, x, y, s, **look)
        )
        return seen

    def test_what_it_says(self, made: Demo, tmp_path: Path, written: list[tuple[str, str]]) -> None:
        found = made.labelled
        assert found.features.labels is not None
        truth, before, after = found.features.labels, found.zero_shot_labels, found.labels
        corrected, broken = (before != truth) & (after == truth), (before == truth) & (after != truth)
        contact_sheet(found, tmp_path / "sheet.png", "a $title$")
        lines = [text for text, _ in written]
        assert lines[0] == "a $title$"
        assert lines[1].startswith(f"{int((before == after).sum())} of {CLASSES * EACH} labels did not change; ")
        assert lines[1].endswith("in bold.")
        assert f"{int(corrected.sum())} corrected" in "\n".join(lines)
        assert f"{int(broken.sum())} broken" in "\n".join(lines)
        now = [colour for text, colour in written if text.startswith("now ")]
        assert now == [GOOD] * min(16, int(corrected.sum())) + [BAD] * min(16, int(broken.sum()))
        first = int(corrected.nonzero()[0])
        names = found.features.head.class_names
        at = lines.index(f"now {names[after[first]]}")
        assert lines[at - 2 : at] == [names[truth[first]], f"was {names[before[first]]}"]
        assert "matplotlib.pyplot" not in sys.modules
        with Image.open(tmp_path / "sheet.png") as image:
            pixels = np.asarray(image.convert("RGB"))
        assert (pixels[:8] == 255).all()
        assert (pixels[:, -8:] == 255).all()  # nothing is cut off

    def test_many_are_drawn_at_random_with_a_seed(self, made: Demo, tmp_path: Path) -> None:
        features = made.features
        assert features.labels is not None
        right, wrong = torch.eye(10)[features.labels], torch.eye(10)[(features.labels + 1) % 10]
        answer = Answer(features.image_features, features.head, wrong, right)
        corrected = Predictions(features, Result(right, features.labels, wrong, {}, answer))  # every image
        sheets = {}
        for name, seed in (("one", 0), ("same", 0), ("other", 1)):
            sheets[name] = contact_sheet(corrected, tmp_path / f"{name}.png", "t", seed).read_bytes()
        assert sheets["one"] == sheets["same"]
        assert sheets["one"] != sheets["other"]

    def test_fewer_columns_have_larger_words_on_a_phone(self, made: Demo, tmp_path: Path) -> None:
        sizes = []
        for columns, rows in ((8, 1), (4, 2)):  # the same images
            with Image.open(contact_sheet(made.labelled, tmp_path / "s.png", "t", columns=columns, rows=rows)) as image:
                sizes.append(image.size)
        assert sizes[0][0] / 2 < sizes[1][0] < sizes[0][0] * 0.6
        assert sizes[1][1] > sizes[0][1]
        with Image.open(tmp_path / "s.png") as image:
            assert (np.asarray(image.convert("RGB"))[:, -8:] == 255).all()  # nothing is cut off

    def test_it_needs_images_and_labels(self, made: Demo, tmp_path: Path) -> None:
        from dataclasses import replace

        bare = replace(made.labelled, features=replace(made.features, labels=None))
        with pytest.raises(InputError, match="true labels"):
            contact_sheet(bare, tmp_path / "sheet.png", "t")


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(FileError, match=r"cannot write .*images: No space left on device"):
        module.unpack(tmp_path / "images")
    assert not list(tmp_path.rglob("*.webp"))  # a file that exists is complete
