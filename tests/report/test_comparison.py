"""Our means beside the papers': the same datasets on both sides, sums that are right, JPTA marked and never mixed."""

from __future__ import annotations

from typing import Any

import pytest

from kedge.benchmark.record import Record
from kedge.report.against import Compared, compare, runtimes, sum_up
from kedge.report.comparison import comparison
from kedge.report.published import JPTA, published_average, reference
from kedge.report.scores import Results, collect
from report_tools import scored

CLIP = "hf:openai/clip-vit-base-patch16"
CLASSES = {row["name"]: int(row["classes"]) for row in reference("datasets")}


def cell(accuracy: float, label: str, dataset: str, scenario: str = "low", **changes: Any) -> Record:
    return scored(
        accuracy,
        label,
        **{"dataset": dataset, "scenario": scenario, "encoder": CLIP, "classes": CLASSES[dataset], **changes},
    )


def printed(method: str, dataset: str, scenario: str = "Low", size: str = "64") -> float:
    """A figure of the StatA paper, as a share."""
    (found,) = (
        float(row["accuracy"]) / 100
        for row in reference("stata_paper_tables")
        if (row["encoder"], row["method"], row["dataset"]) == ("ViT-B/16", method, dataset)
        and (row["scenario"], row["batch_size"]) in ((scenario, size), ("any", "any"))
    )
    return found


def row_of(results: Results, label: str, encoder: str = "CLIP ViT-B/16") -> Compared:
    (found,) = (row for row in compare(results) if (row.label, row.encoder) == (label, encoder))
    return found


def test_means_are_over_exactly_the_same_datasets() -> None:
    own = cell(0.9, "stata", "dtd", classes=46)  # another version of the dataset: not the paper's
    results = collect(
        [
            cell(printed("StatA", "dtd") + 0.004, "stata", "dtd"),
            cell(printed("StatA", "eurosat") - 0.03, "stata", "eurosat"),
            cell(0.5, "kedge", "dtd"),
            cell(0.7, "kedge", "eurosat"),
            scored(0.99, "kedge", dataset="birds", encoder=CLIP),
            scored(0.99, "stata", dataset="birds", encoder=CLIP),
            scored(0.99, "stata", dataset="dtd", encoder="tiny", classes=47),
        ]
    )
    stata = row_of(results, "stata")
    assert set(stata.datasets) == {"dtd", "eurosat"}
    assert stata.paper == pytest.approx((printed("StatA", "dtd") + printed("StatA", "eurosat")) / 2)
    assert stata.difference == pytest.approx(-0.013)
    assert stata.differences == pytest.approx({"dtd": 0.004, "eurosat": -0.03})
    kedge = row_of(results, "kedge")
    assert (kedge.ours, kedge.paper, kedge.difference) == (pytest.approx(0.6), None, None)  # without birds
    other = row_of(results, "stata", "tiny")
    assert (other.paper, other.difference) == (None, None)
    assert sum_up(compare(collect([own]))) is None


@pytest.mark.parametrize(
    ("dataset", "classes", "images", "compared"),
    [
        ("caltech101", 100, 2465, True),  # CoOp's split; the paper prints 101 classes
        ("caltech101", 101, None, True),
        ("caltech101", 99, 2465, False),
        ("dtd", 47, 1692, True),
        ("dtd", 47, 1690, True),  # two cannot be read
        ("dtd", 47, 1880, False),  # another test split
        ("eurosat", 10, 100, False),  # a part of it
    ],
)
def test_only_the_papers_test_sets_are_compared(dataset: str, classes: int, images: int | None, compared: bool) -> None:
    ours = cell(0.5, "stata", dataset, classes=classes, available=images)
    assert (sum_up(compare(collect([ours]))) is not None) == compared


def test_the_differences_are_summed_up() -> None:
    rows = compare(
        collect(
            [
                cell(printed("StatA", "dtd") + 0.004, "stata", "dtd"),
                cell(printed("StatA", "eurosat") - 0.03, "stata", "eurosat"),
                cell(printed("StatA", "ucf101") + 0.01, "stata", "ucf101"),
                cell(printed("CLIP", "dtd"), "zero-shot", "dtd"),
            ]
        )
    )
    found = sum_up(rows)
    assert found is not None
    assert (found.cells, found.within_a_point) == (4, 3)
    assert found.mean_absolute == pytest.approx((0.004 + 0.03 + 0.01) / 4)
    assert found.largest == pytest.approx(-0.03)
    assert str(found) == (
        "4 cells can be compared with a published figure. The mean absolute difference is 1.1 points; 3 of 4 are "
        "within 1 point. The largest difference is −3.0 points: stata on eurosat in low, CLIP ViT-B/16."
    )


def eleven(offset: float = 0.002) -> list[Record]:
    return [cell(printed("StatA", name) + offset, "stata", name) for name in CLASSES]


def test_printed_averages_and_jpta_only_beside_all_eleven() -> None:
    full = compare(collect([*eleven(), *(cell(0.8, "kedge", name) for name in CLASSES)]))
    stata = next(row for row in full if row.label == "stata")
    assert stata.paper == printed("StatA", "average")
    (jpta,) = (row for row in full if row.label == JPTA)
    assert (jpta.ours, jpta.paper, jpta.differences) == (None, 0.802, {})
    assert "tuned per dataset on the test split" in jpta.label
    counted = sum_up(full)
    assert counted is not None
    assert counted.cells == 11  # JPTA and kedge have no difference
    ten = compare(collect(eleven()[:-1]))
    assert [row.label for row in ten] == ["stata"]
    assert ten[0].paper == pytest.approx(sum(printed("StatA", name) for name in list(CLASSES)[:-1]) / 10)
    other = [cell(0.5, "stata", name, encoder="hf:openai/clip-vit-base-patch32") for name in CLASSES]
    assert JPTA not in {row.label for row in compare(collect(other))}  # published for ViT-B/16 only


def test_published_average() -> None:
    found = published_average("ViT-B/16", "stream-separate", JPTA)
    assert found is not None
    assert (found.accuracy, found.source) == (0.751, "JPTA’s README")
    assert published_average("ViT-B/16", "low", "kedge") is None
    assert published_average("RN50", "low", JPTA) is None


def test_tables_of_the_paper() -> None:
    beta = "batches:size=1000,k_min=5,k_max=5"
    soft = {"settings": {"beta": "soft"}}
    records = [
        cell(0.5, "stata", "dtd", "stream-high"),
        cell(0.5, "stata", "dtd", encoder="openclip:RN50/openai"),
        cell(0.713, "stata", "imagenet", beta),
        cell(0.713, "stata", "dtd", beta),
        cell(0.693, "stata", "imagenet", beta, **soft),
        cell(0.5, "stata", "dtd", "batches:size=64,k_min=3,k_max=3"),  # a point of Figure 3
        cell(0.5, "stata", "dtd", "batches:size=64,k_min=3,k_max=5"),  # in no table
    ]
    rows = compare(collect(records))
    assert [(row.table, row.label) for row in rows] == [
        ("Table 2, streams", "stata"),
        ("Table 4, hard and soft β", "stata"),
        ("Table 4, hard and soft β", "stata beta=soft"),
        ("Supplement, batches", "stata"),
    ]
    hard, soft_row = rows[1:3]
    assert (hard.datasets, hard.difference) == (("imagenet",), pytest.approx(0))
    assert soft_row.difference == pytest.approx(-0.01)


def test_hard_and_soft_beta_on_the_same_datasets() -> None:
    given = {"scenario": "batches:size=1000,k_min=5,k_max=5"}  # of an encoder that is not in the paper
    hard = [scored(0.5, dataset="dtd", **given), scored(0.7, dataset="imagenet", **given)]
    rows = compare(collect([*hard, scored(0.6, dataset="dtd", settings={"beta": "soft"}, **given)]))
    assert [(row.datasets, row.ours) for row in rows] == [(("dtd",), 0.5), (("dtd",), 0.6)]


def test_runtime_of_imagenet_only() -> None:
    timed = {"seconds": 4.0, "batches": 20, "machine": "a laptop"}
    results = collect(
        [
            cell(0.7, "stata", "imagenet", "very-high", **timed),
            cell(0.7, "stata", "dtd", "very-high", **timed),
            cell(0.7, "zero-shot", "imagenet", "very-high", **timed),
        ]
    )
    (found,) = runtimes(results)
    assert (found.batch_size, found.ours, found.paper, found.hardware) == (1000, 0.2, 0.1, "RTX 3090")
    assert "Table 3, runtime" in comparison(results)


def test_the_section() -> None:
    html = comparison(collect([*eleven(), *(cell(0.8, "kedge", name) for name in CLASSES)]))
    assert html.startswith('<section id="papers"><h2>Against the papers</h2>')
    assert "11 of 11 are within 1 point" in html
    assert f'<span class="name">{JPTA}</span></th><td data-value="0.802000"><small class="paper">paper 80.2' in html
    assert "tuned for each dataset on the test split, those of all other rows were not" in html
    assert f"paper {100 * printed('StatA', 'average'):.1f} (+0." in html


def test_nothing_published_no_section() -> None:
    assert comparison(collect([scored(0.5), scored(0.6, dataset="dtd", encoder="tiny", classes=47)])) == ""
    simulated = [cell(0.5, "stata", "dtd", simulated=True)]
    assert comparison(collect(simulated)) == ""
