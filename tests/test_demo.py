"""The demo runs, writes what it returns, and says that its features are simulated."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kedge import adapt
from kedge import demo as module
from kedge.demo import DemoRow, demo
from kedge.errors import FileError
from kedge.results import load_records
from kedge.simulate import simulate


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo") / "made" / "here"


@pytest.fixture(scope="module")
def rows(folder: Path) -> list[DemoRow]:
    return demo(folder)


def test_numbers_agree_with_each_other(rows: list[DemoRow]) -> None:
    assert [(row.scenario, row.images, row.classes, row.batches) for row in rows] == [
        ("very-low", 64, "1-4", 20),
        ("medium", 64, "5-25", 20),
        ("high", 1000, "25-50", 5),
        ("all", 10_000, "100", 1),
    ]
    for row in rows:
        assert row.gain == pytest.approx(row.stata - row.zero_shot, abs=1e-9)
        assert row.gain > 0
        assert 40 < row.zero_shot < 90
        worse = row.made_worse * row.batches / 100
        assert worse == pytest.approx(round(worse), abs=0.05)


def test_numbers_are_those_of_adapt(rows: list[DemoRow]) -> None:
    features = simulate(10_000, 100, accuracy=0.65)
    result = adapt(features, method="stata")
    for found, labels in (
        (rows[-1].stata, result.labels),
        (rows[-1].zero_shot, result.zero_shot.argmax(dim=1)),
    ):
        assert found == round(100 * float((labels == features.labels).double().mean()), 1)


def test_report_and_records_are_of_the_same_numbers(rows: list[DemoRow], folder: Path) -> None:
    records = load_records([folder / "records"])
    assert {record.method for record in records} == {"zero-shot", "stata"}
    assert all(record.simulated for record in records)
    accuracy = {record.scenario: record.accuracy for record in records if record.method == "stata"}
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "simulated" in page
    for row in rows:
        assert row.stata == round(100 * accuracy[row.scenario], 1)
        assert f"{row.stata:.1f}" in page


def test_table_says_simulated_on_every_line(rows: list[DemoRow], folder: Path) -> None:
    with (folder / "demo.csv").open(newline="", encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    assert [line["data"] for line in table] == ["simulated"] * len(rows)
    for line, row in zip(table, rows, strict=True):
        assert (line["scenario"], line["classes"]) == (row.scenario, row.classes)
        for name in ("images", "batches", "zero_shot", "stata", "gain", "made_worse"):
            assert float(line[name]) == getattr(row, name)


@pytest.mark.usefixtures("rows")
def test_picture_has_both_bars_and_nothing_cut_off(folder: Path) -> None:
    with Image.open(folder / "demo.png") as image:
        pixels = np.asarray(image.convert("RGB"))
    assert pixels.shape == (800, 1440, 3)
    for colour in (module.ZERO_SHOT_COLOUR, module.STATA_COLOUR):
        exact = tuple(bytes.fromhex(colour[1:]))
        assert (pixels == exact).all(axis=2).mean() > 0.05
    edge = np.concatenate(
        [
            pixels[:8].reshape(-1, 3),
            pixels[-8:].reshape(-1, 3),
            pixels[:, :8].reshape(-1, 3),
            pixels[:, -8:].reshape(-1, 3),
        ]
    )
    assert (edge == 255).all()
    made = ["demo.csv", "demo.png", "records", "report.html", "report_figures"]
    assert sorted(path.name for path in folder.iterdir()) == made  # and no temporary file


def test_picture_says_simulated(rows: list[DemoRow], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.figure import Figure

    written: list[str] = []
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)
    text = Figure.text
    monkeypatch.setattr(Figure, "text", lambda self, x, y, s, **rest: written.append(s) or text(self, x, y, s, **rest))
    module._draw(rows, tmp_path / "again.png")
    assert any("simulated features" in line for line in written)
    assert "matplotlib.pyplot" not in sys.modules


def test_refuses_a_place_it_can_not_write_before_working(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "simulate", lambda *_, **__: pytest.fail("worked before it looked"))
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="can not make the folder"):
        demo(tmp_path / "file" / "inside")
    (tmp_path / "demo.png").mkdir()
    with pytest.raises(FileError, match="is a folder"):
        demo(tmp_path)
