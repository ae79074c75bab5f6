"""The figure of "which method when" and the table of all methods: their means are right, and the pages show them."""

from __future__ import annotations

import csv
import re
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

import kedge
from cases import ON_FEATURES

ROOT = Path(__file__).resolve().parents[1]
if not (ROOT / "benchmarks" / "draw_which.py").exists():
    pytest.skip("the folder benchmarks is no part of the source archive", allow_module_level=True)
sys.path.insert(0, str(ROOT / "benchmarks"))
draw_which = import_module("draw_which")
field2026 = import_module("field2026")


def record(dataset: str, gain: float, harmed: float, method: str = "kedge") -> kedge.Record:
    shares = {"accuracy": 0.5 + gain, "zero_shot": 0.5, "gain": gain, "harmed": harmed}
    return kedge.Record(method, {}, dataset, "made up", "very-low", 0, 3, simulated=True, **shares)


def test_a_row_is_the_mean_over_the_sets_and_the_lowest_of_them() -> None:
    (row,) = draw_which.summed([record("a", 0.1, 0), record("b", -0.04, 0.5)])
    assert (row["sets"], row["tasks"], row["zero_shot"]) == (2, 3, 50)
    assert (row["gain"], row["lowest_gain"], row["harmed"]) == (3, -4, 25)


def test_it_draws(tmp_path: Path) -> None:
    record("a", 0.1, 0).save(tmp_path / "a.json")
    record("a", -0.2, 1, "zlap").save(tmp_path / "b.json")
    draw_which.main(tmp_path, tmp_path / "out.csv", tmp_path / "out.png")
    assert [row["method"] for row in csv.DictReader((tmp_path / "out.csv").open())] == ["kedge", "zlap"]
    assert (tmp_path / "out.png").stat().st_size > 10_000


def test_the_numbers_of_the_page_are_those_of_the_table() -> None:
    """Every gain in points that the page's table shows."""
    with (ROOT / "benchmarks" / "results" / "which_method.csv").open(encoding="utf-8") as file:
        measured = {(row["method"], row["situation"]): row for row in csv.DictReader(file)}
    assert len(measured) == len(draw_which.METHODS) * len(draw_which.SITUATIONS)
    page = (ROOT / "docs" / "which_method.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \| `([\w-]+)` \| ([+−]?[\d.]+) \| ([+−]?[\d.]+) \| (\d+) % \|$", page, re.M)
    assert len(rows) > 5
    for situation, method, *shown in rows:
        row = measured[method, situation]
        found = [float(number.replace("−", "-")) for number in shown]
        digits = {"gain": 1, "lowest_gain": 1, "harmed": 0}
        assert found == [round(float(row[name]), places) for name, places in digits.items()]


def test_a_cell_of_all_methods_is_the_mean_over_the_sets_with_its_interval(tmp_path: Path) -> None:
    """Half widths 0.03 and 0.04 of two sets: of their mean √(0.03² + 0.04²)/2 = 0.025."""
    sets = {"a": (0.1, 0.03), "b": (-0.04, 0.04)}
    found = [
        replace(record(name, gain, 0), gain_low=gain - half, gain_high=gain + half, seconds_per_image=0.002)
        for name, (gain, half) in sets.items()
    ]
    (row,) = field2026.summed(found)
    assert (row["sets"], row["tasks"], row["zero_shot"], row["ms_per_image"]) == (2, 3, 50, 2)
    assert (row["gain"], row["low"], row["high"]) == (3, 0.5, 5.5)
    assert field2026.shown(row) == "+3.0 ±2.5"


def test_the_page_of_all_methods_has_the_table() -> None:
    with (ROOT / "benchmarks" / "results" / "field2026.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    page = (ROOT / "docs" / "field2026.md").read_text(encoding="utf-8")
    assert field2026.table(rows) in page
    assert {row["method"] for row in rows} == set(ON_FEATURES)
    assert {row["scenario"] for row in rows} == set(field2026.SCENARIOS)
