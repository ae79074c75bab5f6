"""Records with feedback: never in one mean with others, never the headline, never compared with published figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kedge.report import write_report
from kedge.report.ablations import alpha, beta
from kedge.report.drawing import look
from kedge.report.pivot import pivot
from kedge.report.published import published_for
from kedge.report.scores import collect
from report_tools import Page, scored, text

KNOWN: dict[str, Any] = {"known": 5, "known_by": "review", "unaided": 0.7}
RECORDS = [
    scored(0.7),
    scored(0.8, **KNOWN),
    scored(0.75, **{**KNOWN, "known": 1}),
    scored(0.9, oracle_classes="found", unaided=0.7, classes_shown=4.0, classes_unticked=1.5),
]
LABELS = ["stata", "stata + 1 known (review)", "stata + 5 known (review)", "stata + found classes"]


@pytest.mark.parametrize("rows", ["label", "method"])
def test_rows_of_a_table_do_not_mix_feedback(rows: str) -> None:
    (table,) = pivot(RECORDS, rows)
    assert [(line.name, line.entries) for line in table.lines] == [
        (label, (pytest.approx(value),)) for label, value in zip(LABELS, (70, 75, 80, 90), strict=True)
    ]


def test_settings_as_rows_name_the_feedback() -> None:
    (table,) = pivot(RECORDS, "settings")
    assert [line.name for line in table.lines] == ["1 known (review)", "5 known (review)", "defaults", "found classes"]


def test_tables_without_methods_do_not_mix_feedback() -> None:
    tables = pivot(RECORDS, "scenario")
    assert [table.about["label"] for table in tables] == LABELS
    assert [table.lines[0].average for table in tables] == pytest.approx([70, 75, 80, 90])


@pytest.mark.parametrize(
    ("value", "entries"),
    [
        ("feedback_gain", [None, 5, 10, 20]),
        ("unaided", [None, 70, 70, 70]),
        ("classes_shown", [None, None, None, 4]),
        ("classes_unticked", [None, None, None, 1.5]),
    ],
)
def test_what_feedback_is_worth(value: str, entries: list[float | None]) -> None:
    (table,) = pivot(RECORDS, value=value)
    assert [line.entries[0] for line in table.lines] == [e if e is None else pytest.approx(e) for e in entries]
    assert not any(line.failed[0] for line in table.lines)  # what has no such value did not fail


def test_the_page_shows_rows_of_their_own_and_says_what_they_are(tmp_path: Path) -> None:
    page = Page(write_report(RECORDS, tmp_path / "report.html"))
    assert list(page.table("low")) == ["zero-shot", *LABELS]
    (title,) = page.root.iter("h1")
    assert text(title).startswith("stata gains 20.0 points")  # without feedback, though others gain more
    assert any("these images are not scored" in text(note) for note in page.root.iter("p"))
    unaided = Page(write_report(RECORDS[:1], tmp_path / "report.html"))
    assert not any("these images are not scored" in text(note) for note in unaided.root.iter("p"))


def test_the_page_repeats_a_run_with_its_feedback(tmp_path: Path) -> None:
    record = scored(0.8, **KNOWN, oracle_classes="found")
    page = Page(write_report([record], tmp_path / "report.html"))
    said = [text(e) for e in page.root.iter("pre")]
    assert any("--known 5 --known-by review --oracle-classes found --out again" in each for each in said)
    (title,) = page.root.iter("h1")
    assert text(title).startswith("stata + 5 known (review) + found classes gains 30.0 points")  # all there is


def test_feedback_is_no_setting_of_an_ablation_and_not_what_a_paper_did() -> None:
    fixed = [f"batches:size=32,k_min={k},k_max={k}" for k in (2, 6)]
    told = [scored(0.8, scenario=s, settings=settings, **KNOWN) for s in fixed for settings in ({}, {"beta": "soft"})]
    (group,) = collect(told).groups
    assert alpha(group) is None
    assert beta(group, lambda label: look(label, {})) is None
    paper = {"dataset": "dtd", "encoder": "hf:openai/clip-vit-base-patch16", "classes": 47, "scenario": "very-low"}
    assert published_for(scored(0.4, **paper)) is not None
    assert published_for(scored(0.4, **paper, **KNOWN)) is None
