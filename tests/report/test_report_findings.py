"""What the page says in words: the headline over all encoders, tail accuracy, large losses, and its contents."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from kedge.benchmark.record import Record, Series
from kedge.report import write_report
from kedge.report.headline import headline
from kedge.report.losses import explained, why
from kedge.report.score import Score
from kedge.report.scores import collect, tails
from report_tools import Page, scored, text

ALL_PRESENT = "assume that all classes are present"


def ledes(page: Page) -> list[str]:
    (header,) = page.root.iter("header")
    return [text(e) for e in header.iter("p") if e.get("class") == "lede"]


def title(page: Page) -> str:
    (found,) = page.root.iter("h1")
    return text(found)


class TestHeadline:
    def test_it_covers_all_encoders(self, tmp_path: Path) -> None:
        records = [
            scored(0.8, "kedge", encoder="A"),
            scored(0.7, "kedge", encoder="A", dataset="cars"),
            scored(0.6, "kedge", encoder="B"),
            scored(0.84, "moon", encoder="A"),
            scored(0.64, "moon", encoder="A", dataset="cars"),
            scored(0.75, "moon", encoder="B"),
            scored(0.99, "stata", encoder="A"),  # on fewer cells than the others
        ]
        page = Page(write_report(records, tmp_path / "r.html"))
        # kedge gains (30 + 20) / 2 with A, but (30 + 20 + 10) / 3 over all; moon (34 + 14) / 2 and (34 + 14 + 25) / 3
        assert title(page) == (
            "moon gains 24.3 points over zero-shot on average (3 cells: 2 datasets, 1 scenario, 2 encoders)"
        )
        assert ledes(page) == [
            "On average it gains with every encoder (+24.0 to +25.0) and on every dataset (+14.0 to +29.5)."
        ]
        each = [text(e) for e in page.root.iter("p") if e.get("class") == "lede"][1:]
        assert each == [
            "kedge gains 25.0 points over zero-shot on average (2 cells: 2 datasets, 1 scenario).",
            "moon gains 25.0 points over zero-shot on average (1 cell: 1 dataset, 1 scenario).",
        ]

    def test_exceptions_are_named(self, tmp_path: Path) -> None:
        records = [
            scored(a, encoder=e, scenario=s) for a, e, s in ((0.9, "A", "low"), (0.47, "A", "all"), (0.6, "B", "low"))
        ]
        (said,) = ledes(Page(write_report(records, tmp_path / "r.html")))
        assert said == "On average it gains with every encoder (+10.0 to +18.5) and in 1 of 2 scenarios (not all −3.0)."

    def test_simulated_is_never_mixed_in_and_is_named(self, tmp_path: Path) -> None:
        records = [scored(0.6), scored(0.9, "kedge", encoder="tiny", simulated=True)]
        page = Page(write_report(records, tmp_path / "r.html"))
        assert title(page).startswith("stata gains 10.0 points")
        assert "simulated" not in title(page)
        assert ledes(page) == [
            "On simulated features: kedge gains 40.0 points over zero-shot on average (1 cell: 1 dataset, 1 scenario)."
            " simulated"
        ]

    def test_nothing_gained(self, tmp_path: Path) -> None:
        page = Page(write_report([scored(0.4, encoder=e) for e in "AB"], tmp_path / "r.html"))
        assert title(page).startswith(
            "No method beats zero-shot on average: the best, stata, changes accuracy by −10.0"
        )
        assert ledes(page) == []

    def test_nothing_is_said_of_methods_with_fewer_cells(self) -> None:
        found = headline(collect([scored(0.4), scored(0.4, scenario="all"), scored(0.9, "tda")]).groups)
        assert found.startswith("No method that ran on the most cells beats zero-shot on average: the best, stata,")


class TestTail:
    def test_a_mean_has_a_tail_only_if_all_have(self) -> None:
        one, two = Score(0.6, 0.5, 0.1, 0.1, 0.1, 0.4, 0.3), Score(0.6, 0.5, 0.1, 0.1, 0.1, 0.2, 0.2)
        none = Score(0.6, 0.5, 0.1, 0.1, 0.1)
        mean = Score.mean([one, two], [3, 1])
        assert (mean.tail, mean.zero_shot_tail) == pytest.approx((0.35, 0.275))
        assert Score.mean([one, none]).tail is None
        assert (one.before.tail, one.before.zero_shot_tail) == (0.3, 0.3)
        assert tails([one, none, two]) == pytest.approx((0.25, 0.3))
        assert tails([none]) is None

    def test_one_task_has_no_tail(self) -> None:
        given = {"tail": 0.6, "zero_shot_tail": 0.5}
        assert Score.of(scored(0.6, tasks=1, **given)).tail is None
        assert Score.of(scored(0.6, tasks=2, **given)).tail == 0.6

    def test_the_tables_say_what_the_records_say(self, tmp_path: Path) -> None:
        records = [
            scored(0.6, tail=0.3, zero_shot_tail=0.2),
            scored(0.8, dataset="cars", tail=0.5, zero_shot_tail=0.45),
            scored(0.8, "tda", dataset="cars", tail=0.5, zero_shot_tail=0.45),
            scored(0.7, scenario="all", tasks=1, tail=0.7, zero_shot_tail=0.5),
        ]
        page = Page(write_report(records, tmp_path / "r.html"))
        table = page.table("low")
        heads = list(table["stata"])
        assert [head.removesuffix(" ↕") for head in heads] == ["average", "worst tenth of tasks", "birds", "cars"]
        found = {label: text(row["worst tenth of tasks"]) for label, row in table.items()}
        assert found == {"zero-shot": "32.5", "stata": "40.0 +7.5", "tda": "–"}  # tda: not on all datasets
        assert "worst tenth of tasks" not in page.table("all")["stata"]
        summary = page.table("Summary")
        assert text(summary["stata"]["worst tenth of tasks, %"]) == "32.5 → 40.0"  # without the scenario of one task
        assert text(summary["tda"]["worst tenth of tasks, %"]) == "45.0 → 50.0"
        assert any("zero-shot’s own worst tenth" in text(note) for note in page.root.iter("p"))

    def test_zero_shot_alone_has_no_average_and_no_tail(self, tmp_path: Path) -> None:
        tail = {"tail": 0.3, "zero_shot_tail": 0.2}
        apart = [scored(0.6, **tail), scored(0.8, "tda", dataset="cars", **tail)]
        page = Page(write_report(apart, tmp_path / "r.html"))
        assert list(page.table("low")["zero-shot"]) == ["birds", "cars"]
        alone = [scored(0.5, "zero-shot", dataset=name, **tail) for name in ("birds", "cars")]
        page = Page(write_report(alone, tmp_path / "r.html"))
        assert list(page.table("low")["zero-shot"]) == ["average", "worst tenth of tasks", "birds", "cars"]

    def test_records_without_tails_have_no_column(self, tmp_path: Path) -> None:
        page = Page(write_report([scored(0.6)], tmp_path / "r.html"))
        assert list(page.table("low")["stata"]) == ["birds"]
        assert text(page.table("Summary")["stata"]["worst tenth of tasks, %"]) == "–"
        assert not any("zero-shot’s own worst tenth" in text(note) for note in page.root.iter("p"))


def test_calibration_is_shown_before_and_after(tmp_path: Path) -> None:
    errors = {"images": 10, "calibration_error": 0.041, "zero_shot_calibration_error": 0.12}
    page = Page(write_report([scored(0.6, **errors)], tmp_path / "r.html"))
    assert text(page.table("Summary")["stata"]["calibration error, points"]) == "12.0 → 4.1"


def met(label: str, gain: float, classes: int, of: int = 10) -> Record:
    """A record whose batches have so many of the classes."""
    one = [1]
    series = Series([0], one, [classes], [0.5 + gain], [0.5])
    return scored(0.5 + gain, label, classes=of, series=series)


class TestLosses:
    def test_the_sentence_follows_the_methods(self) -> None:
        assert ALL_PRESENT in why(["zlap", "transclip"])
        assert why(["zlap", "transclip"]).startswith("TransCLIP and ZLaP assume ")
        assert why(["zlap"]).startswith("ZLaP assumes that all classes are present: where a batch has few, it gives ")
        assert why(["em-dirichlet"]) == (
            "EM-Dirichlet assumes that few classes are present: where there are many, it merges them."
        )
        assert why(["kedge"]) == why([]) == ""

    @pytest.mark.parametrize(
        ("record", "said"),
        [
            (met("zlap", -0.3, 2), "ZLaP"),
            (met("zlap", -0.3, 10), ""),  # all classes are there: something else is wrong
            (met("zlap", -0.09, 2), ""),
            (met("calibrated:transclip", -0.3, 2), "TransCLIP"),
            (met("em-dirichlet", -0.3, 8), "EM-Dirichlet"),
            (met("em-dirichlet", -0.3, 3), ""),
            (met("stata", -0.3, 2), ""),
            (scored(0.1, "zlap"), "ZLaP"),  # of which the classes are not known
        ],
    )
    def test_only_where_the_assumption_fails(self, record: Record, said: str) -> None:
        (group,) = collect([record]).groups
        assert explained(group.cells).partition(" ")[0] == said

    def test_it_stands_where_the_losses_are(self, tmp_path: Path) -> None:
        fine: dict[str, Any] = {"scenario": "all", "tasks": 1}
        records = [scored(0.1, "zlap"), scored(0.1, "transclip"), scored(0.6, "zlap", **fine)]
        page = Page(write_report(records, tmp_path / "r.html"))
        where = {e.get("id"): text(e) for e in page.root.iter("div") if e.get("id", "").startswith("results-1-s")}
        said = {name: ALL_PRESENT in words for name, words in where.items()}
        assert said == {"results-1-summary": True, "results-1-scenario-1": True, "results-1-scenario-2": False}
        assert "Losses of more than 10 points" in where["results-1-scenario-1"]


def test_the_contents_name_every_section_scenario_and_figure(written: Path) -> None:
    page = Page(written)
    (nav,) = page.root.iter("nav")
    links = [(e.get("href") or "").removeprefix("#") for e in nav.iter("a")]
    assert len(links) == len(set(links))
    sections = [e.get("id") for e in page.root.iter("section")]
    inside = re.findall(r'<div id="(results-[^"]*)"', written.read_text())
    assert set(links) == {*sections, *inside}
    assert [link for link in links if link in sections] == ["failed", "results-1", "provenance"]
    names = [text(e) for e in nav.iter("a")]
    assert [n for n in names if n in ("Summary", "low", "2 classes, batches of 32", "Calibration")] == [
        "Summary",
        "low",
        "2 classes, batches of 32",
        "Calibration",
    ]
