"""The time a benchmark will take, its progress without a terminal, and feature files that change under it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from kedge import progress
from kedge.benchmark.cells import plan_cells
from kedge.benchmark.estimate import Estimate, Trial, slowest
from kedge.benchmark.grid import Grid
from kedge.benchmark.run import Runner, run
from kedge.features.feature_set import FeatureSet
from kedge.features.simulate import simulate
from kedge.methods.registry import build
from kedge.words import duration


@pytest.fixture
def birds(tmp_path: Path) -> Path:
    path = tmp_path / "birds.safetensors"
    simulate(120, 6, 16).save(path)
    return path


def grid(birds: Path, **changes: Any) -> Grid:
    given = {"methods": ["zero-shot", "tda"], "scenarios": ["low", "stream-low", "all"], "tasks": 3, **changes}
    return Grid.of([birds], out=birds.parent / "out", **given)


def test_an_estimate_is_time_per_image_times_images(birds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kedge.benchmark.estimate.BUDGET", 1e9)
    cells = plan_cells(grid(birds)).cells
    estimate = Estimate(cells, jobs=2)
    for item in estimate.before_cells():
        if isinstance(item, Trial):
            estimate.add(item, 10.0 if item.cell.label == "tda" else 1.0)
    images = 3 * 64 + 3 * 120 + 120  # three batches, three streams, the whole set
    assert str(estimate) == f"about {duration(images * 11 / 2)} for 6 cells, of these {duration(images * 5)} for tda"


def test_trials_end_when_their_time_is_over(birds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every method has had its first; of the four pairs of method and size of batch, two have none."""
    monkeypatch.setattr("kedge.benchmark.estimate.BUDGET", 0.0)
    estimate = Estimate(plan_cells(grid(birds)).cells, jobs=1)
    for item in estimate.before_cells():
        if isinstance(item, Trial):
            estimate.add(item, 10.0 if item.cell.label == "tda" else None)  # zero-shot's fails
    assert {label for label, *_ in estimate.measured} == {"tda"}
    assert len(estimate.measured) == 1
    assert str(estimate).endswith("for 6 cells, without zero-shot")


def test_methods_that_take_half_of_the_time_are_named() -> None:
    assert slowest({"a": 10.0, "b": 10.0}) == ["a"]
    assert slowest({"a": 1.0, "b": 4.0, "c": 3.0, "d": 3.0}) == ["b", "c"]
    assert slowest({"a": 1.0}) == ["a"]


@pytest.mark.parametrize(
    ("first", "each", "calls", "expected"),
    [
        (0.01, 0.001, [16, 64, 120], 0.01 + 120 * 0.001),  # quick: the whole batch is tried
        (2.0, 0.1, [16, 64, 16], 2 + 120 * 0.1),  # slow: 12 s more for the whole batch, which is not tried
        (6.0, 0.0, [16, 64, 16], 6.0),  # slow, however few images there are
    ],
)
def test_a_slow_method_is_tried_on_few_images(
    birds: Path, monkeypatch: pytest.MonkeyPatch, first: float, each: float, calls: list[int], expected: float
) -> None:
    (cell,) = plan_cells(grid(birds, methods=["zero-shot"], scenarios=["all"])).cells
    now, seen = [0.0], []

    def evaluated(method: Any, features: Any, batch: Any, **_: Any) -> None:
        seen.append(batch.size)
        now[0] += first + each * batch.size + 60.0 * (len(seen) == 1)  # the first call compiles

    monkeypatch.setattr("kedge.benchmark.estimate.evaluate", evaluated)
    monkeypatch.setattr("kedge.benchmark.estimate.time.perf_counter", lambda: now[0])
    found = Trial(cell).seconds_per_image(FeatureSet.load(birds), None)
    assert seen == calls
    assert found * 120 == pytest.approx(expected)


def test_compiling_takes_no_time_from_the_trials(birds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("kedge.benchmark.estimate.time.monotonic", lambda: now[0])
    estimate = Estimate(plan_cells(grid(birds)).cells, jobs=1)
    for item in estimate.before_cells():
        if isinstance(item, Trial):
            now[0] += 60.0  # of which the second call, the one that is timed, took hardly any
            estimate.add(item, 1e-6)
    assert len(estimate.measured) == 4  # both methods, in batches of 64 and of 120


def test_a_trial_takes_little_of_methods_that_need_the_encoder(birds: Path) -> None:
    (cell,) = plan_cells(grid(birds, methods=["zero-shot"], scenarios=["all"])).cells
    assert Trial(cell).size == 120
    tent = build("tent")
    assert Trial(type(cell)(tent, cell.file, cell.scenario, 0, 1)).size == 2


def test_the_estimate_comes_before_the_first_cell(birds: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with progress.on_stderr():
        run(grid(birds))
    assert re.fullmatch(r"about \d+ s for 6 cells\n", capsys.readouterr().err)
    with progress.on_stderr():
        run(grid(birds))
    run(grid(birds), birds.parent / "silent")
    assert capsys.readouterr().err == ""  # nothing to do, or nobody to tell


def test_lines_without_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with progress.on_stderr(), progress.counting(1000, "images", "images") as advance:
        for _ in range(1000):
            now[0] += 0.1
            advance(1)
    quick = capsys.readouterr().err.splitlines()
    assert quick[0] == "images: 100 of 1,000 (10.0 %), 10.0 images/s, about 90 s left"
    assert len(quick) == 9
    with progress.on_stderr():
        for _ in progress.track(range(1000), "cells"):
            now[0] += 20
    slow = capsys.readouterr().err.splitlines()
    assert slow[0].startswith("cells: 2 of 1,000 (0.2 %), about ")
    assert 400 < len(slow) < 600  # one every 40 seconds
    with progress.on_stderr():
        for _ in progress.track(range(100), "cells"):
            now[0] += 0.01
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("change", ["truncated", "replaced", "gone"])
def test_a_changed_feature_file_is_the_failure_of_its_cells(birds: Path, change: str) -> None:
    first, second, *_ = plan_cells(grid(birds)).cells
    runner = Runner()
    assert runner.record(first).error is None
    if change == "truncated":
        os.truncate(birds, 1000)  # under the memory map: reading on would end the process
    elif change == "replaced":
        simulate(120, 6, 16, seed=1).save(birds)
    else:
        birds.unlink()
    error = runner.record(second).error
    assert error == f"FileError: {birds} has changed since the benchmark began. Start it again."
