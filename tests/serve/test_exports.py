"""What the page hands out can be read again, here and elsewhere."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
import torch

import kedge
from cases import simulated
from kedge import FeatureSet, Predictions
from kedge.errors import KedgeError
from kedge.labelling.known_file import read_known
from kedge.serve.exports import accepted, content, into_folders

NAMES = ["=cat", "dog", "none", "polar bear"]
PATHS = [f"a/{number} ä.jpg" for number in range(6)] + [
    "-b.jpg",
    "'=c.jpg",
    "\udcff.jpg",
    "e,f.jpg",
    '"g".jpg',
    "h.jpg",
]
KNOWN = {0: 0, 3: kedge.NONE, 6: 2, 7: 0, 8: 1, 9: kedge.NONE, 10: 3}


def predictions(known: dict[int, int] | None = None, reject: float | None = None) -> Predictions:
    x, t = simulated(len(PATHS), len(NAMES), 16, noise=1.0)
    features = FeatureSet.from_arrays(x, t, class_names=NAMES, paths=PATHS, logit_scale=20.0)
    return Predictions(features, kedge.Session(features).solve(known=known, reject=reject))


def exported(kind: str, made: Predictions, above: float | None = None) -> tuple[int, str]:
    text, rows = content(kind, made, above)
    return rows, text.decode()


def test_known_labels_are_read_back_as_they_were(tmp_path: Path) -> None:
    made = predictions(KNOWN)
    rows, text = exported("known.csv", made)
    assert rows == len(KNOWN)
    (tmp_path / "known.csv").write_text(text)
    assert read_known(tmp_path / "known.csv", PATHS, made.features.head) == KNOWN
    assert exported("known.csv", predictions())[1] == "image,label\n"


def test_the_labels_are_those_that_predictions_write(tmp_path: Path) -> None:
    made = predictions(KNOWN)
    for kind in ("labels.csv", "labels.json"):
        made.write(tmp_path / kind)
        assert exported(kind, made) == (len(PATHS), (tmp_path / kind).read_text())


def test_only_what_is_known_or_probable_enough_is_accepted() -> None:
    made = predictions(KNOWN, reject=0.3)
    probability = made.result.probs.amax(dim=1)
    above = float(probability.median())
    expected = [i for i in range(len(PATHS)) if i in KNOWN or (probability[i] >= above and made.result.labels[i] != -1)]
    assert len(KNOWN) < len(expected) < len(PATHS)
    assert accepted(made, above) == expected
    rows, text = exported("labels.json", made, above)
    assert [row["image"] for row in json.loads(text)] == [PATHS[i] for i in expected]
    assert rows == len(expected)
    assert exported("labels.csv", made, above)[0] == rows
    assert accepted(made, None) == list(range(len(PATHS)))
    for wrong in (2.0, -1.0, float("nan")):
        with pytest.raises(KedgeError):
            accepted(made, wrong)


def test_rejected_images_are_not_accepted_however_probable() -> None:
    made = predictions(reject=1e-9)
    rejected = (made.result.labels == -1).nonzero().flatten().tolist()
    assert rejected
    assert not set(accepted(made, 0.0)) & set(rejected)


def test_nothing_accepted_is_still_a_table() -> None:
    made = predictions()
    assert exported("labels.json", made, 1.0) == (0, "[\n]\n")
    assert json.loads(exported("labels.json", made, 1.0)[1]) == []
    assert exported("labels.csv", made, 1.0)[1].count("\n") == 1


def test_metadata_has_the_columns_of_an_imagefolder_and_no_images_of_no_class() -> None:
    made = predictions(KNOWN)
    rows, text = exported("metadata.csv", made)
    table = list(csv.DictReader(io.StringIO(text)))
    assert rows == len(table) == len(PATHS) - 2
    assert table[0] == {"file_name": PATHS[0], "label": "=cat", "probability": "1.0"}  # as they are: a program reads it
    assert {PATHS[3], PATHS[9]}.isdisjoint(row["file_name"] for row in table)


def test_an_unknown_kind_is_refused() -> None:
    made = predictions(KNOWN)
    with pytest.raises(KedgeError, match=r"did you mean 'labels\.csv'"):
        content("label.csv", made)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for path in PATHS:
        file = tmp_path / "photos" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(path.encode(errors="backslashreplace").decode())
    (tmp_path / "exports").mkdir()
    return tmp_path / "photos"


def copies(folder: Path) -> dict[str, set[str]]:
    return {each.name: {file.read_text() for file in each.iterdir()} for each in folder.iterdir()}


def test_folders_by_label(photos: Path, tmp_path: Path) -> None:
    made = predictions(KNOWN)
    folder = into_folders(made, tmp_path / "exports", photos)
    assert folder.parent == tmp_path / "exports"
    assert folder.name.startswith("sorted-20")
    found = copies(folder)
    assert sum(map(len, found.values())) == len(PATHS)
    assert found["none of these"] == {PATHS[3], PATHS[9]}
    others = [into_folders(made, tmp_path / "exports", photos) for _ in range(2)]
    assert len({folder, *others}) == 3
    assert all(copies(other) == found for other in others)


def test_folders_of_accepted_images_alone(photos: Path, tmp_path: Path) -> None:
    made = predictions(KNOWN)
    folder = into_folders(made, tmp_path / "exports", photos, above=1.0)
    expected = {PATHS[i].encode(errors="backslashreplace").decode() for i in KNOWN}
    assert set().union(*copies(folder).values()) == expected
    with pytest.raises(KedgeError, match="no image has a label"):
        into_folders(predictions(), tmp_path / "exports", photos, above=1.0)
    assert len(list((tmp_path / "exports").iterdir())) == 1
    assert torch.equal(made.labels, predictions(KNOWN).labels)
