"""The page of the report: its tables say what the records say, and names from files cannot break it."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from statistics import fmean
from urllib.parse import unquote

import numpy as np
import pytest

from kedge.benchmark.record import Record, Series
from kedge.errors import FileError, InputError
from kedge.report import write_report
from kedge.report.figures import KEYS
from kedge.report.scores import Score, collect
from report_tools import STREAM, Page, find, real, rows_of, scored, text

HOSTILE = "$\\frac{<b>&amp; \"'</td><script>alert(1)</script> \x00\u202e\ud800 ../../etc 文"


def test_every_picture_is_on_the_page_in_order(written: Path) -> None:
    assert [e.get("data-picture") for e in Page(written).root.iter("figure")] == list(KEYS)


def test_the_page_needs_nothing_from_outside(written: Path) -> None:
    page = Page(written).root
    addresses = [e.get(name) for e in page.iter() for name in ("src", "href", "xlink:href") if e.get(name)]
    outside = [a for a in addresses if a and not a.startswith(("#", "data:", "report_figures/"))]
    assert outside == []
    assert not re.search(r"@import|url\((?!#)|(?<!xmlns=\")(?<!xlink=\")https?://", written.read_text())


def test_the_report_needs_neither_methods_nor_torch(tmp_path: Path) -> None:
    """Records from another machine are shown where torch is not even installed."""
    scored(0.6).save(tmp_path / "one.json")
    code = f"""
import sys
sys.modules["torch"] = None
import kedge.report
from kedge.benchmark.record import load_records
from kedge.report.formats import render
from kedge.report.pivot import pivot
records = load_records([{str(tmp_path)!r}])
render(pivot(records))
kedge.report.write_report(records, {str(tmp_path / "report.html")!r})
assert not [name for name in sys.modules if name.startswith("kedge.methods")]
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert (tmp_path / "report.html").is_file()


def test_every_linked_file_is_there_and_readable(written: Path) -> None:
    links = [e.get("href") or "" for e in Page(written).root.iter("a")]
    files = [written.parent / unquote(link) for link in links if link.startswith("report_figures/")]
    assert {path.suffix for path in files} == {".svg", ".png", ".csv"}
    assert sorted(files) == sorted((written.parent / "report_figures").iterdir())
    for path in files:
        if path.suffix == ".png":
            assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
        elif path.suffix == ".svg":
            assert ET.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"
        else:
            assert rows_of(path)


def test_ids_are_unique_and_references_lead_somewhere(written: Path) -> None:
    html = written.read_text()
    ids = re.findall(r'\bid="([^"]*)"', html)
    assert len(ids) == len(set(ids)) > 100
    assert set(re.findall(r'href="#([^"]*)"|url\(#([^)]*)\)', html)) <= {(i, "") for i in ids} | {("", i) for i in ids}


def test_a_table_says_what_the_records_say(written: Path, records: list[Record]) -> None:
    row = Page(written).table("low")["stata"]
    both = [find(records, label="stata", scenario="low", dataset=name) for name in ("birds", "cars")]
    for record in both:
        assert record.accuracy is not None
        cell = row[record.dataset]
        assert float(cell.get("data-value") or "") == pytest.approx(record.accuracy, abs=1e-6)
        numbers = [float(n) for n in re.findall(r"[+-]?\d+\.\d", text(cell).replace("\N{MINUS SIGN}", "-"))]
        expected = [record.accuracy, record.gain, record.gain_low, record.gain_high]
        assert numbers == [pytest.approx(100 * (value or 0), abs=0.0501) for value in expected]
    mean = fmean(record.accuracy or 0 for record in both)
    assert float(row["average"].get("data-value") or "") == pytest.approx(mean, abs=1e-6)
    assert "failed" not in row


def test_zero_shot_has_a_row_where_it_was_not_run(written: Path, records: list[Record]) -> None:
    cell = Page(written).table(STREAM)["zero-shot"]["birds"]
    expected = find(records, scenario=STREAM, dataset="birds").zero_shot
    assert float(cell.get("data-value") or "") == pytest.approx(expected, abs=1e-6)


def test_zero_shot_is_filled_in_where_it_was_not_run(tmp_path: Path) -> None:
    three = [scored(0.5, "zero-shot"), scored(0.6), scored(0.7, dataset="cars")]
    row = Page(write_report(three, tmp_path / "r.html")).table("low")["zero-shot"]
    assert [text(row[name]) for name in ("average", "birds", "cars")] == ["50.0"] * 3


def test_failed_cells_come_first(written: Path) -> None:
    page = Page(written).root
    first = next(e for e in page.iter() if e.tag in ("section", "h1", "figure"))
    assert first.get("id") == "failed"
    assert "1 cell failed" in text(first)
    assert "it broke" in text(first)


def test_all_failed(tmp_path: Path) -> None:
    bad = [Record("stata", {}, "birds", "E", "low", 0, 8, error="no memory"), scored(float("nan"))]
    page = Page(write_report(bad, tmp_path / "r.html"))
    assert "2 cells failed" in text(page.root)
    assert "No cell has a score" in text(next(page.root.iter("h1")))
    assert list(page.root.iter("figure")) == []


def test_simulated_is_said_wherever_its_numbers_are(written: Path, tmp_path: Path, records: list[Record]) -> None:
    section = next(e for e in Page(written).root.iter("section") if e.get("id") == "results-1")
    for element in section.iter():
        if element.tag in ("h2", "caption"):
            assert "simulated" in text(element)
        if element.get("role") == "img":
            assert "simulated" in (element.get("aria-label") or "")
    assert "simulated" in text(next(Page(written).root.iter("h1")))
    for path in (written.parent / "report_figures").glob("*.svg"):
        assert "SIMULATED" in path.read_text()
    assert {row["simulated"] for row in rows_of(written.parent / "report_figures" / "1-bars.csv")} == {"true"}
    really = write_report([real(r) for r in records if r.scenario == "low" and not r.error], tmp_path / "real.html")
    assert "simulated" not in re.sub(r"<style>.*?</style>", "", really.read_text(), flags=re.DOTALL).lower()


def test_simulated_and_real_are_never_averaged(records: list[Record]) -> None:
    low = [r for r in records if r.scenario == "low" and not r.error]
    groups = collect([*low, *(real(r, encoder="unknown") for r in low)]).groups
    assert [group.simulated for group in groups] == [False, True]
    assert all(
        record.simulated == group.simulated for group in groups for cell in group.cells for record in cell.records
    )


def test_two_spellings_of_an_encoder_are_one() -> None:
    two = [scored(0.6, encoder="CLIP ViT-B-32"), scored(0.7, encoder="openai/clip-vit-base-patch32", dataset="cars")]
    assert [group.encoder for group in collect(two).groups] == ["CLIP ViT-B/32"]


def test_best_is_bold_and_second_underlined_by_the_number_shown(tmp_path: Path) -> None:
    values = {"zero-shot": 0.5, "a": 0.70004, "b": 0.69996, "c": 0.6}  # a and b are both shown as 70.0
    page = Page(write_report([scored(value, label) for label, value in values.items()], tmp_path / "r.html"))
    cells = {label: row["birds"] for label, row in page.table("low").items()}
    assert [label for label, cell in cells.items() if cell.find("strong") is not None] == ["a", "b"]
    assert [label for label, cell in cells.items() if cell.find("u") is not None] == ["c"]


@pytest.mark.parametrize(
    ("low", "high", "style"), [(0.01, 0.03, "gain up"), (-0.01, 0.05, "gain"), (-0.05, -0.01, "gain down")]
)
def test_a_gain_has_a_sign_and_a_colour_only_if_its_interval_has_one(
    tmp_path: Path, low: float, high: float, style: str
) -> None:
    gain = (low + high) / 2
    record = scored(0.5 + gain, gain=gain, gain_low=low, gain_high=high)
    cell = Page(write_report([record], tmp_path / "r.html")).table("low")["stata"]["birds"]
    found = cell.find("span")
    assert found is not None
    assert found.get("class") == style
    assert text(found).startswith("+" if gain > 0 else "\N{MINUS SIGN}")


def test_no_average_over_other_datasets_than_the_rest_of_the_column(tmp_path: Path) -> None:
    three = [scored(0.6), scored(0.8, dataset="cars"), scored(0.9, "tda", dataset="cars")]
    table = Page(write_report(three, tmp_path / "r.html")).table("low")
    assert text(table["tda"]["average"]) == text(table["tda"]["birds"]) == "–"
    assert text(table["stata"]["average"]).startswith("70.0")
    assert [row["datasets"] for row in rows_of(tmp_path / "r_figures" / "1-bars.csv")] == ["1", "1"]


def test_a_failed_cell_is_named_in_its_table(tmp_path: Path) -> None:
    three = [scored(0.6), scored(0.8, "tda", dataset="cars"), Record("tda", {}, "birds", "E", "low", 0, 9, error="x")]
    assert text(Page(write_report(three, tmp_path / "r.html")).table("low")["tda"]["birds"]) == "failed"


def test_other_tasks_than_the_rest_are_marked(tmp_path: Path) -> None:
    three = [scored(0.6, plan_hash="1"), scored(0.7, "tda", plan_hash="1"), scored(0.9, "dmn", plan_hash="2")]
    table = Page(write_report(three, tmp_path / "r.html")).table("low")
    assert [label for label, row in table.items() if "†" in text(row["birds"])] == ["dmn"]


def test_seeds_are_pooled_and_a_repeated_run_counts_once(tmp_path: Path) -> None:
    runs = [scored(0.6, tasks=10), scored(0.9, seed=1, tasks=30), scored(0.1, tasks=5)]  # the last: seed 0 again
    results = collect(runs)
    (cell,) = results.groups[0].cells
    assert cell.score.accuracy == pytest.approx((10 * 0.6 + 30 * 0.9) / 40)
    assert results.repeated == 1
    assert "1 duplicate record left out" in text(Page(write_report(runs, tmp_path / "r.html")).root)


def test_a_mean_of_independent_scores_is_surer_than_each() -> None:
    one = Score(0.6, 0.5, 0.1, 0.1 - 0.02, 0.1 + 0.04)
    four = Score.mean([one] * 4)
    assert (four.gain, four.gain - four.low, four.high - four.gain) == pytest.approx((0.1, 0.01, 0.02))


def test_the_published_number_is_marked_as_the_papers(tmp_path: Path) -> None:
    known = {"dataset": "dtd", "encoder": "CLIP ViT-B/16", "scenario": "very-low", "classes": 47}
    records = [scored(0.5, **known), scored(0.6, **known, settings={"alpha": 3.0})]
    table = Page(write_report(records, tmp_path / "r.html")).table("very-low")
    assert "paper 46.1 (+3.9)" in text(table["stata"]["dtd"])
    assert "paper" not in text(table[records[1].label]["dtd"])
    simulated = [dataclasses.replace(record, simulated=True) for record in records]
    assert "paper" not in text(Page(write_report(simulated, tmp_path / "s.html")).table("very-low")["stata"]["dtd"])


def test_names_from_files_can_not_break_the_page(tmp_path: Path, records: list[Record]) -> None:
    low = [r for r in records if r.scenario in ("low", STREAM) and r.dataset == "birds"]
    hostile = [dataclasses.replace(r, dataset=HOSTILE, encoder=HOSTILE, machine=HOSTILE, kedge=HOSTILE) for r in low]
    hostile += [scored(0.6, HOSTILE, scenario=HOSTILE, encoder=HOSTILE, simulated=True)]
    hostile += [Record(HOSTILE, {}, HOSTILE, HOSTILE, HOSTILE, 0, 8, error=HOSTILE + "\n" + HOSTILE)]
    out = write_report(hostile, tmp_path / "r.html")
    page = Page(out).root
    assert len(list(page.iter("script"))) == 1
    assert list(page.iter("b")) == []
    assert "alert(1)" not in (next(page.iter("script")).text or "")
    assert "$\\frac{<b>&amp; \"'</td><script>alert(1)" in text(page)  # shown as it is
    for path in (tmp_path / "r_figures").glob("*.svg"):
        assert not list(ET.parse(path).getroot().iter("{http://www.w3.org/2000/svg}script"))
    assert {path.name for path in tmp_path.iterdir()} == {"r.html", "r_figures"}


def test_two_files_that_share_a_name_are_two_columns() -> None:
    two = [scored(0.6, features_hash="aaaaaaaaaa"), scored(0.7, features_hash="bbbbbbbbbb")]
    assert collect(two).groups[0].datasets == ["birds (aaaaaa)", "birds (bbbbbb)"]


def test_scenarios_and_methods_of_other_packages_are_shown(tmp_path: Path) -> None:
    out = write_report([scored(0.6, "theirs", scenario="market:day=3")], tmp_path / "r.html")
    assert text(Page(out).table("market:day=3")["theirs"]["birds"]).startswith("60.0")


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at least one record"):
        write_report([], tmp_path / "r.html")
    with pytest.raises(FileError, match="it is a folder"):
        write_report([scored(0.6)], tmp_path)
    (tmp_path / "r_figures").write_text("in the way")
    with pytest.raises(FileError, match="r_figures"):
        write_report([scored(0.6)], tmp_path / "r.html")


def test_a_large_report_stays_small(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    records = []
    for dataset in range(50):
        for label in range(4):
            before, after = random.random((2, 1000)).tolist()
            bins = {"count": [1.0] * 15, "confidence": [0.5] * 15, "correct": [0.5] * 15}
            series = Series([*range(1000)], [64] * 1000, [3] * 1000, after, before, bins, bins)
            errors = {"calibration_error": 0.1, "zero_shot_calibration_error": 0.1, "seconds_per_image": 1e-4}
            records.append(scored(0.6, f"method{label}", dataset=f"set{dataset}", series=series, **errors))
    assert len(records) == 200
    assert write_report(records, tmp_path / "r.html").stat().st_size < 5e6
