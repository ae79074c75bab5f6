"""What kedge writes, in the hands of Label Studio's SDK and of FiftyOne: `make test-tools` installs them.

FiftyOne keeps its data sets in a database, which is not needed for this: its importer is what `Dataset.from_dir` runs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import kedge
from exported import NAMES, PATHS, annotation, export, predictions
from kedge.labelling.known_file import read_known
from kedge.methods.given import NONE, names_alone

KNOWN = {0: 1, 5: NONE}
SDK = "label-studio-sdk is not installed: make test-tools"
FIFTYONE = "fiftyone is not installed: make test-tools"


@pytest.fixture
def tasks(tmp_path: Path) -> list[dict[str, Any]]:
    predictions(known=KNOWN, reject=0.2).write(tmp_path / "x.labelstudio.json")
    found: list[dict[str, Any]] = json.loads((tmp_path / "x.labelstudio.json").read_text(encoding="utf-8"))
    return found


def test_label_studio_takes_the_tasks_and_the_configuration(tmp_path: Path, tasks: list[dict[str, Any]]) -> None:
    interface = pytest.importorskip("label_studio_sdk.label_interface", reason=SDK)
    labels = interface.LabelInterface((tmp_path / "x.labelstudio.xml").read_text(encoding="utf-8"))
    labels.validate()
    (choices,) = labels.labels
    assert list(choices) == [*NAMES, "none of these"]
    for task in tasks:
        assert labels.validate_task({"data": task["data"]})
        for prediction in task.get("predictions", ()):
            assert labels.validate_prediction(prediction, return_errors=True) == []
        for made in task.get("annotations", ()):
            assert labels.validate_annotation(made)
    assert sum("annotations" in task for task in tasks) == len(KNOWN)
    wrong = {"result": [{**tasks[0]["predictions"][0]["result"][0], "value": {"choices": ["mouse"]}}]}
    assert not labels.validate_prediction(wrong)  # it does look


@pytest.mark.usefixtures("tasks")
def test_what_label_studio_converts_to_json_min_is_read(tmp_path: Path) -> None:
    converter = pytest.importorskip("label_studio_sdk.converter", reason=SDK)
    said = {
        "a%20b/1.jpg": [annotation("ölf", "2026-02"), annotation("cat", "2026-01")],
        "a%20b/2.jpg": [annotation("none of these")],
        "a%20b/3.jpg": [annotation("cat", was_cancelled=True)],
        "a%20b/4.jpg": [],
        "x%2By%26z.png": [annotation('say "hi"')],
    }
    exported = export(tmp_path / "x.labelstudio.json", said)
    (tmp_path / "export.json").write_text(json.dumps(exported), encoding="utf-8")
    config = (tmp_path / "x.labelstudio.xml").read_text(encoding="utf-8")
    made = converter.Converter(config, project_dir=None)
    made.convert_to_json_min(str(tmp_path / "export.json"), str(tmp_path), is_dir=False)
    expected = {1: 5, 2: NONE, 9: 2}
    for file in ("export.json", "result.json"):
        assert read_known(tmp_path / file, PATHS, names_alone(NAMES)) == expected
    records = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert sum(record["image"].endswith("a%20b/1.jpg") for record in records) == 2


def test_fiftyone_imports_the_labels(tmp_path: Path) -> None:
    importers = pytest.importorskip("fiftyone.utils.data.importers", reason=FIFTYONE)
    made = predictions(known=KNOWN)
    made.write(tmp_path / "x.fiftyone.json")
    for path in PATHS:
        (tmp_path / "photos" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "photos" / path).touch()
    importer = importers.FiftyOneImageClassificationDatasetImporter(
        data_path=str(tmp_path / "photos"), labels_path=str(tmp_path / "x.fiftyone.json")
    )
    with importer:
        found = {str(Path(path).relative_to(tmp_path / "photos")): label for path, _, label in importer}
        assert importer.get_dataset_info() == {"classes": [*NAMES, "none of these"]}
    assert set(found) == set(PATHS)
    assert [found[path].label for path in PATHS] == made.names
    assert found[PATHS[1]].confidence == pytest.approx(float(made.result.probs[1].max()))
    assert found[PATHS[1]].margin == pytest.approx(float(made.result.margin[1]))
    assert found[PATHS[0]].true_label == NAMES[1]
    assert isinstance(made, kedge.Predictions)
