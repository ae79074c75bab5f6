"""The benchmark of corrections runs, on tiny sets, and its figures fit together."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import kedge

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
corrections = pytest.importorskip("corrections", reason="the folder benchmarks is no part of the source archive")

KIND = corrections.Kind("simulated", "none", 60, 5, 1)


@pytest.fixture(scope="module")
def features() -> kedge.FeatureSet:
    return kedge.simulate(200, 10, 32, accuracy=0.6, seed=3)


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_a_set_has_the_images_and_names_asked_for(features: kedge.FeatureSet) -> None:
    chosen, truth = corrections.drawn(features, KIND, 7)
    assert len(chosen) == len(truth) == 60
    assert chosen.labels is None  # nothing but `truth` has them
    assert len(chosen.image_features.unique(dim=0)) == 60
    assert len(truth.unique()) == 5
    assert (truth == kedge.NONE).any()
    assert features.labels is not None
    listed = chosen.head.class_names
    for row, label in zip(chosen.image_features, truth.tolist(), strict=True):
        image = int((features.image_features == row).all(dim=1).nonzero())
        name = features.head.class_names[int(features.labels[image])]
        assert (listed[label] == name) if label != kedge.NONE else (name not in listed)
    other, _ = corrections.drawn(features, KIND, 8)
    assert not torch.equal(chosen.image_features, other.image_features)


def test_a_person_unticks_what_is_found_and_not_there(features: kedge.FeatureSet) -> None:
    chosen, truth = corrections.drawn(features, KIND, 7)
    person = corrections.Person(kedge.Session(chosen), truth, 7)
    wrong = {each.number for each in kedge.adapt(chosen).classes} - set(truth.tolist())
    assert wrong
    assert person.present("all names") == set(range(9))
    assert person.present("unticked") == set(range(9)) - wrong
    assert person.present("only these") <= set(truth.tolist())
    labels = {names: torch.cat([r.labels for _, r in person.corrected(names, "random")]) for names in corrections.LISTS}
    assert wrong & set(labels["all names"].tolist())
    assert not wrong & set(labels["unticked"].tolist())
    assert not wrong & set(labels["only these"].tolist())


def test_the_review_order_is_computed_again_after_each_label(features: kedge.FeatureSet) -> None:
    chosen, truth = corrections.drawn(features, KIND, 7)
    person = corrections.Person(kedge.Session(chosen), truth, 7)
    known: dict[int, int] = {}
    for _ in range(5):
        image = int(kedge.adapt(chosen, known=known).review[0])
        known[image] = int(truth[image])
    steps = list(person.corrected("all names", "review"))
    assert [len(given) for given, _ in steps] == list(corrections.STEPS)
    assert steps[1][0] == known


def test_corrections(features: kedge.FeatureSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                     capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    monkeypatch.setattr(corrections, "KINDS", (KIND,))
    monkeypatch.setattr(corrections, "loaded", lambda file, place: features)
    out = tmp_path / "rows.json"
    corrections.main(["--seeds", "0", "1", "--out", str(out)])
    assert "accuracy in %, images not corrected" in capsys.readouterr().out
    rows = [corrections.Row(**row) for row in json.loads(out.read_text())]
    assert len(rows) == 2 * 3 * 2 * 5  # seeds, lists, orders, steps
    for row in rows:
        start = next(r for r in rows if (r.seed, r.names, r.corrections) == (row.seed, row.names, 0))
        assert row.total == pytest.approx(start.total + row.own + row.spread)
        left = row.images - row.corrections
        assert row.total * row.images == pytest.approx(row.left * left + row.corrections)  # those corrected are right
        assert (row.left - row.left_before) * left == pytest.approx(row.right - row.wrong)
        assert row.right + row.wrong <= row.changed
    assert any(row.changed for row in rows)
    pytest.importorskip("matplotlib")
    drawing = pytest.importorskip("draw_corrections")
    monkeypatch.setattr(drawing, "KINDS", (KIND,))
    drawing.main(out, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_the_interval_is_students() -> None:
    assert corrections.mean([1.0, 2.0, 3.0]) == pytest.approx((2.0, 4.3027 / 3**0.5), abs=1e-4)
