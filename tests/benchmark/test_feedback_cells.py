"""Feedback is part of a cell: in grids and their files, names, records, the estimate, the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from command import run as command
from kedge.benchmark.cells import plan_cells
from kedge.benchmark.estimate import Trial
from kedge.benchmark.grid import Grid
from kedge.benchmark.record import Record, load_records
from kedge.benchmark.run import run
from kedge.errors import FileError, SettingError
from kedge.features.feature_set import FeatureSet
from kedge.features.simulate import simulate
from kedge.methods.registry import build, list_methods

FEEDBACK: list[dict[str, Any]] = [
    {},
    {"known": 2},
    {"known": 2, "known_by": "review"},
    {"known": 3},
    {"oracle_classes": "true"},
    {"oracle_classes": "found"},
    {"known": 2, "oracle_classes": "found"},
]


@pytest.fixture
def birds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    simulate(120, 6, 16).save(tmp_path / "birds.safetensors")
    return tmp_path / "birds.safetensors"


def grid(birds: Path, **changes: Any) -> Grid:
    return Grid.of([birds], **{"methods": ["stata"], "scenarios": ["very-low"], "tasks": 2, "out": "out", **changes})


def test_each_feedback_is_a_cell_of_its_own(birds: Path) -> None:
    for feedback in FEEDBACK:
        assert run(grid(birds, **feedback)).ran == 1
        assert run(grid(birds, **feedback)).already == 1
    records = load_records(["out"])
    assert {record.label for record in records} == {
        "stata",
        "stata + 2 known (random)",
        "stata + 2 known (review)",
        "stata + 3 known (random)",
        "stata + true classes",
        "stata + found classes",
        "stata + 2 known (random) + found classes",
    }
    assert len({record.plan_hash for record in records}) == 1
    names = [plan_cells(grid(birds, **feedback)).cells[0].name for feedback in FEEDBACK]
    assert len({name.rpartition("__")[2] for name in names}) == len(FEEDBACK)  # the hash alone tells them apart
    random = {"known": 2, "known_by": "random"}  # said or not
    assert plan_cells(grid(birds, **random)).cells[0].name == plan_cells(grid(birds, known=2)).cells[0].name


def test_a_failed_cell_keeps_its_feedback(birds: Path) -> None:
    (cell,) = plan_cells(grid(birds, known=2, known_by="review", oracle_classes="found")).cells
    failed = cell.failed("it broke")
    assert failed.label == cell.label == "stata + 2 known (review) + found classes"


def test_methods_that_cannot_be_told_are_refused_if_named_and_else_left_out(birds: Path) -> None:
    with pytest.raises(SettingError, match="'tda' does not use known labels"):
        plan_cells(grid(birds, methods=["stata", "tda"], known=2))
    with pytest.raises(SettingError, match="'tda' cannot take other classes with each batch of a stream"):
        plan_cells(grid(birds, methods=["tda"], scenarios=["stream-low"], oracle_classes="true"))
    assert plan_cells(grid(birds, methods=["tda"], oracle_classes="true")).cells
    every = plan_cells(grid(birds, methods=["all"], known=2))
    knowing = {name for name in list_methods() if build(name).traits.known}
    assert {cell.method.name for cell in every.cells} == knowing
    assert any("'tda' does not use known labels" in reason for reason in every.left_out)
    with pytest.raises(SettingError, match=r"64 known \(random\) leaves nothing to score: a batch has 64 images"):
        plan_cells(grid(birds, known=64))


def test_the_default_methods_are_those_that_use_what_is_known(birds: Path) -> None:
    assert [method.name for method in grid(birds, methods=None).methods] == ["zero-shot", "stata", "kedge"]
    assert "zero-shot" not in [method.name for method in grid(birds, methods=None, known=1).methods]


def test_a_trial_has_feedback_too(birds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cell,) = plan_cells(grid(birds, scenarios=["all"], known=30, known_by="review")).cells
    told: list[Any] = []
    monkeypatch.setattr("kedge.benchmark.estimate.LARGEST", 20)
    monkeypatch.setattr("kedge.benchmark.estimate.evaluate", lambda *_, **given: told.append(given))
    Trial(cell).seconds_per_image(FeatureSet.load(birds), None)
    assert [(each["known"], each["known_by"]) for each in told] == [(15, "review"), (19, "review")]  # one is scored


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"known": -1}, "at `known`"),
        ({"known": 2, "known_by": None}, "labels are known, and `known_by` is missing"),
        ({"known_by": "review"}, "no labels are known"),
        ({"oracle_classes": "some"}, "at `oracle_classes`"),
        ({"unaided": 2.0}, "at `unaided`"),
        ({"classes_shown": -1.0}, "at `classes_shown`"),
    ],
)
def test_records_whose_feedback_does_not_fit(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    path = tmp_path / "record.json"
    Record("stata", {}, "birds", "E", "low", 0, 8).save(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(FileError, match=reason):
        Record.load(path)


def test_the_command_line_and_a_grid_file(birds: Path) -> None:
    words = ["bench", birds, "--scenario", "very-low", "--tasks", 2, "--method", "stata", "--out", "out"]
    assert command(*words, "--known", 3, "--known-by", "review", "--oracle-classes", "found").code == 0
    Path("grid.toml").write_text('scenarios = ["very-low"]\nmethods = ["stata"]\ntasks = 2\nknown = 3\nout = "out"\n')
    assert command("bench", birds, "--grid", "grid.toml", "--known", 1).code == 0
    both, fewer = sorted(load_records(["out"]), key=lambda record: -record.known)
    assert (both.known, both.known_by, both.oracle_classes) == (3, "review", "found")
    assert (fewer.known, fewer.known_by, fewer.oracle_classes) == (1, "random", None)
    table = json.loads(command("table", "out", "--value", "feedback_gain", "--format", "json").out)["tables"][0]
    gain = 100 * ((both.accuracy or 0) - (both.unaided or 0))
    assert [row["label"] for row in table["rows"]] == [fewer.label, both.label]
    assert table["rows"][1]["values"]["birds"] == pytest.approx(gain, abs=1e-5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--known", "2", "--method", "tda"], "birds.safetensors: method 'tda' does not use known labels"),
        (["--known-by", "review"], "known_by is 'review', but no labels are known. Say how many: known=5 (--known 5)."),
        (["--known", "2", "--known-by", "luck"], "known_by must be 'random' or 'review'; got 'luck'."),
        (["--oracle-classes", "all"], "oracle_classes must be 'found' or 'true'; got 'all'."),
        (["--known", "-2"], "known must be at least 0; got -2."),
    ],
)
def test_what_the_command_line_refuses(birds: Path, words: list[str], message: str) -> None:
    ran = command("bench", birds.name, "--scenario", "very-low", *words)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"error: {message}")
    assert ran.err.count("\n") == 1
