"""The pictures of the report: what they show is counted from the records, and the same records give the same bytes."""

from __future__ import annotations

import base64
import dataclasses
import re
from io import BytesIO
from pathlib import Path
from statistics import fmean

import matplotlib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from kedge.benchmark.record import Record, Series
from kedge.report import write_report
from kedge.report.drawing import GREY, INK, PALETTE, coarser, spread
from report_tools import STREAM, Page, find, rows_of, scored, text


def test_a_picture_without_data_is_left_out_and_an_older_one_goes(tmp_path: Path, records: list[Record]) -> None:
    out, folder = tmp_path / "r.html", tmp_path / "r_figures"
    write_report([r for r in records if r.scenario == STREAM], out)
    assert list(folder.glob("*stream*"))
    (folder / "mine.png").write_bytes(b"")
    (folder / "notes-1-stream.csv").write_text("")
    page = Page(write_report([scored(0.6)], out))
    assert [e.get("data-picture") for e in page.root.iter("figure")] == ["bars"]  # no series, no time: nothing else
    left = {path.name for path in folder.iterdir()}
    assert left == {"1-bars.csv", "1-bars-low.svg", "1-bars-low.png", "mine.png", "notes-1-stream.csv"}


def test_bars_compare_only_what_was_run_on_the_same_datasets(tmp_path: Path) -> None:
    three = [scored(0.6, "a"), scored(0.7, "b"), scored(0.8, "b", dataset="cars"), scored(0.9, "c", dataset="planes")]
    write_report(three, tmp_path / "r.html")
    rows = rows_of(tmp_path / "r_figures" / "1-bars.csv")
    assert [(row["method"], row["accuracy"], row["datasets"]) for row in rows] == [("a", "0.6", "1"), ("b", "0.7", "1")]
    assert "1 method left out" in (tmp_path / "r_figures" / "1-bars-low.svg").read_text()


def test_the_line_of_zero_shot_is_that_of_each_methods_own_images(tmp_path: Path) -> None:
    """A method with fewer tasks moved it for all: a bar and its gain did not meet it."""
    few = dataclasses.replace(scored(0.4, "c"), zero_shot=0.2, gain=0.2)
    at = []
    for kind, records in (
        ("all", [scored(0.6, "a"), scored(0.7, "b")]),
        ("few", [scored(0.6, "a"), scored(0.7, "b"), few]),
    ):
        write_report(records, tmp_path / f"{kind}.html")
        svg = (tmp_path / f"{kind}_figures" / "1-bars-low.svg").read_text()
        at.append(re.findall(r"zero-shot \d+\.\d", svg))
        (dashed,) = re.findall(r'<path d="([^"]*)"[^>]*stroke-dasharray', svg)
        assert len(set(re.findall(r"[ML] (\S+)", dashed))) == 1 + (kind == "few")
    assert at[0] == at[1] != []


def test_the_share_made_worse_is_counted_from_the_batches(written: Path, records: list[Record]) -> None:
    cells = [r for r in records if r.label == "stata" and r.scenario in ("low", STREAM) and not r.error]
    after = np.concatenate([r.series.accuracy for r in cells])
    before = np.concatenate([r.series.zero_shot for r in cells])
    worse, better = (f"{100 * share.mean():.1f} %" for share in (after < before, after > before))
    svg = (written.parent / "report_figures" / "1-harm-stata.svg").read_text()
    assert f"worse: {worse}" in svg
    assert f"better: {better}" in svg
    counted = [int(row["batches"]) for row in rows_of(written.parent / "report_figures" / "1-harm.csv")]
    assert sum(counted) == 2 * len(after)  # of both methods


def test_alpha_has_a_line_per_weight(written: Path, records: list[Record]) -> None:
    rows = rows_of(written.parent / "report_figures" / "1-alpha.csv")
    assert {(row["dataset"], row["alpha"], row["k_eff"]) for row in rows} == {
        (name, alpha, k) for name in ("birds", "cars") for alpha in ("1.0", "10.0") for k in ("2", "6")
    }
    for row in rows:
        scenario = f"batches:size=32,k_min={row['k_eff']},k_max={row['k_eff']}"
        settings = {} if row["alpha"] == "1.0" else {"alpha": 10.0}
        record = find(records, scenario=scenario, settings=settings, dataset=row["dataset"], method="stata")
        assert float(row["accuracy"]) == record.accuracy
    svg = (written.parent / "report_figures" / "1-alpha-birds-32.svg").read_text()
    assert "α = 1<" in svg
    assert "α = 10<" in svg


def test_beta_compares_what_was_run_both_ways(written: Path, records: list[Record]) -> None:
    rows = {row["scenario"]: row for row in rows_of(written.parent / "report_figures" / "1-beta.csv")}
    assert set(rows) == {"low", STREAM}
    soft = fmean(r.accuracy or 0 for r in records if r.scenario == "low" and r.settings == {"beta": "soft"})
    assert float(rows["low"]["soft"]) == pytest.approx(soft)


def test_running_accuracy_ends_at_the_accuracy_of_the_stream(written: Path, records: list[Record]) -> None:
    rows = rows_of(written.parent / "report_figures" / "1-stream.csv")
    last = {row["method"]: float(row["accuracy_so_far"]) for row in rows}
    record = find(records, label="stata", scenario=STREAM, dataset=rows[0]["dataset"])
    first = np.array(record.series.episode) == 0
    images = np.array(record.series.images)[first]
    for label, values in (("stata", record.series.accuracy), ("zero-shot", record.series.zero_shot)):
        assert last[label] == pytest.approx(np.average(np.array(values)[first], weights=images))


def test_correlation_is_the_cosine_of_class_shares(tmp_path: Path) -> None:
    series = Series([0] * 3, [4] * 3, [1, 1, 2], [0.5] * 3, [0.5] * 3, composition=[[1, 0], [1, 0], [0.5, 0.5]])
    write_report([scored(0.6, scenario="stream-low", series=series)], tmp_path / "r.html")
    rows = rows_of(tmp_path / "r_figures" / "1-correlation.csv")
    found = {(row["batch"], row["other"]): float(row["cosine"]) for row in rows}
    assert found[("2", "1")] == pytest.approx(1)
    assert found[("3", "1")] == found[("3", "2")] == pytest.approx(np.sqrt(0.5))


def test_reliability_adds_up_the_bins(written: Path, records: list[Record]) -> None:
    cells = [r for r in records if r.label == "stata" and r.scenario in ("low", STREAM) and not r.error]
    rows = [r for r in rows_of(written.parent / "report_figures" / "1-reliability.csv") if r["method"] == "stata"]
    for labels, which in (("adapted", "accuracy"), ("zero-shot", "zero_shot")):
        mine = [row for row in rows if row["labels"] == labels]
        assert sum(int(row["images"]) for row in mine) == sum(r.images or 0 for r in cells)
        right = sum(float(row["accuracy"]) * int(row["images"]) for row in mine)
        assert right == pytest.approx(sum(np.dot(getattr(r.series, which), r.series.images) for r in cells))


def test_time_is_in_milliseconds(written: Path, records: list[Record]) -> None:
    rows = rows_of(written.parent / "report_figures" / "1-time.csv")
    found = {float(row["ms_per_image"]) for row in rows if row["method"] == "zero-shot"}
    assert found == {1000 * (r.seconds_per_image or 0) for r in records if r.method == "zero-shot"}


def test_a_method_has_one_colour_in_all_pictures(written: Path) -> None:
    folder, row_heads = written.parent / "report_figures", Page(written).root.iter("th")
    swatches = {text(head): head.find("span/span") for head in row_heads if head.get("scope") == "row"}
    seen = set()
    for label in ("stata", "stata beta=soft"):
        name = label.replace(" ", "-")
        swatch = swatches[label]
        assert swatch is not None
        (number,) = re.findall(r"--m(\d)", swatch.get("style") or "")
        colour = PALETTE[int(number)][0]
        seen.add(colour)
        assert f"stroke: {colour}" in (folder / f"1-reliability-{name}.svg").read_text()
        (png,) = re.findall(r"data:image/png;base64,([^\"]*)", (folder / f"1-harm-{name}.svg").read_text())
        pixels = np.array(Image.open(BytesIO(base64.b64decode(png))).convert("RGBA")).reshape(-1, 4)
        (found,) = np.unique(pixels[pixels[:, 3] > 0][:, :3], axis=0)
        assert bytes(found.tolist()).hex() == colour[1:]
    assert len(seen) == 2


def test_in_the_page_colours_follow_the_style_sheet(written: Path) -> None:
    page = written.read_text()
    assert "fill: currentColor" in page
    assert "fill: var(--m0)" in page
    for colour in (INK, GREY, *(light for light, _ in PALETTE)):
        assert f": {colour}" not in re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL)


def test_the_same_records_give_the_same_bytes(tmp_path: Path, records: list[Record]) -> None:
    few = [r for r in records if r.label == "stata" and r.scenario in ("low", STREAM) and r.dataset == "birds"]
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one, two = write_report(few, tmp_path / "a" / "r.html"), write_report(few, tmp_path / "b" / "r.html")
    assert one.read_bytes() == two.read_bytes()
    for path in (tmp_path / "a" / "r_figures").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / "r_figures" / path.name).read_bytes()


def test_the_readers_own_plot_settings_are_neither_used_nor_changed(tmp_path: Path, written: Path) -> None:
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red"}):
        write_report([scored(0.6)], tmp_path / "mine.html")
        assert matplotlib.rcParams["font.size"] == 30
    write_report([scored(0.6)], tmp_path / "usual.html")
    names = [tmp_path / f"{kind}_figures" / "1-bars-low.png" for kind in ("mine", "usual")]
    assert names[0].read_bytes() == names[1].read_bytes()


@given(st.lists(st.floats(0, 100), min_size=1, max_size=12), st.floats(0.1, 10))
def test_spread_labels_do_not_touch_and_keep_their_order(values: list[float], gap: float) -> None:
    moved = spread(values, gap)
    order = np.argsort(values, kind="stable")
    assert np.diff(np.array(moved)[order]).min(initial=np.inf) >= gap * (1 - 1e-6)
    assert fmean(moved) == pytest.approx(fmean(values))
    if np.diff(np.sort(values)).min(initial=np.inf) >= gap:
        assert moved == pytest.approx(values)


def test_coarser_keeps_the_mean_and_the_small() -> None:
    values = np.arange(512.0 * 3).reshape(512, 3)
    assert coarser(values, 0).shape == (256, 3)
    assert coarser(values, 0).mean() == pytest.approx(values.mean())
    assert coarser(values, 1) is values
