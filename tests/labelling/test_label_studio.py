"""Label Studio's files: what is written, what its exports say, and the way there and back."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

import pytest

import kedge
from command import run
from exported import NAMES, PATHS, annotation, export, predictions
from kedge.errors import KedgeError
from kedge.labelling.exports.label_studio import image_path
from kedge.labelling.known_file import read_known
from kedge.methods.given import NONE, names_alone

HEAD = names_alone(NAMES)
KNOWN = {0: 1, 5: NONE}


def written(folder: Path, made: kedge.Predictions, **how: Any) -> list[dict[str, Any]]:
    made.write(folder / "x.labelstudio.json", **how)
    tasks: list[dict[str, Any]] = json.loads((folder / "x.labelstudio.json").read_text(encoding="utf-8"))
    return tasks


def read(folder: Path, entries: Any, **how: Any) -> dict[int, int]:
    file = folder / "export.json"
    file.write_text(entries if isinstance(entries, str) else json.dumps(entries), encoding="utf-8")
    return read_known(file, PATHS, HEAD, **how)


class TestTasks:
    def test_a_task_has_the_form_that_label_studio_imports(self, tmp_path: Path) -> None:
        made = predictions()
        tasks = written(tmp_path, made)
        number = int(made.result.review[0])
        assert tasks[0] == {
            "data": {"image": f"/data/local-files/?d={PATHS[number].replace(' ', '%20')}"},
            "predictions": [
                {
                    "model_version": f"kedge {kedge.__version__}, stata",
                    "score": pytest.approx(float(made.result.probs[number].max())),
                    "result": [
                        {
                            "from_name": "label",
                            "to_name": "image",
                            "type": "choices",
                            "value": {"choices": [made.names[number]]},
                        }
                    ],
                }
            ],
        }

    def test_all_images_are_there_in_review_order(self, tmp_path: Path) -> None:
        made = predictions()
        found = [image_path(task["data"]["image"]) for task in written(tmp_path, made)]
        order = [PATHS[i] for i in made.result.review.tolist()]
        assert found == [path.encode(errors="backslashreplace").decode() for path in order]

    def test_what_a_person_said_is_an_annotation_and_comes_last(self, tmp_path: Path) -> None:
        *others, first, second = written(tmp_path, predictions(known=KNOWN))
        assert all("annotations" not in task and "predictions" in task for task in others)
        chosen = [task["annotations"][0]["result"][0]["value"]["choices"] for task in (first, second)]
        assert chosen == [["dog & <fox>"], ["none of these"]]
        assert "predictions" not in first
        assert read_known(tmp_path / "x.labelstudio.json", PATHS, HEAD) == KNOWN

    def test_a_rejected_image_has_the_score_that_rejected_it(self, tmp_path: Path) -> None:
        made = predictions(reject=1e-9)
        found = written(tmp_path, made)[0]["predictions"][0]
        number = int(made.result.review[0])
        assert found["result"][0]["value"]["choices"] == ["none of these"]
        assert found["score"] == pytest.approx(float(made.result.none[number]))

    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            ("https://host/set", "https://host/set/b/0.jpg"),
            ("/data/local-files/?d=", "/data/local-files/?d=b/0.jpg"),
            ("/data/local-files/?d=sets/photos", "/data/local-files/?d=sets/photos/b/0.jpg"),
            ("", "b/0.jpg"),
        ],
    )
    def test_the_user_says_what_comes_before_the_path(self, tmp_path: Path, given: str, expected: str) -> None:
        assert expected in [task["data"]["image"] for task in written(tmp_path, predictions(), image_url=given)]

    def test_the_configuration_has_every_class_and_none_of_these(self, tmp_path: Path) -> None:
        written(tmp_path, predictions())
        view = ElementTree.parse(tmp_path / "x.labelstudio.xml").getroot()
        image, choices = list(view)
        assert (image.tag, image.attrib) == ("Image", {"name": "image", "value": "$image"})
        assert (choices.tag, choices.get("name"), choices.get("toName")) == ("Choices", "label", "image")
        assert choices.get("choice") == "single"
        assert [choice.get("value") for choice in choices] == [*NAMES, "none of these"]

    def test_classes_that_are_called_none(self, tmp_path: Path) -> None:
        names = ("cat", "none of these", "cat")
        tasks = written(tmp_path, predictions(names, known={0: NONE, 1: 1}))
        values = [each.get("value") for each in ElementTree.parse(tmp_path / "x.labelstudio.xml").iter("Choice")]
        assert values == ["cat", "none of these", "none"]
        assert len(tasks) == len(PATHS)
        assert read_known(tmp_path / "x.labelstudio.json", PATHS, names_alone(names)) == {0: NONE, 1: 1}
        both = ("none", "none of these", "cat")
        tasks = written(tmp_path, predictions(both, known={0: NONE}))
        assert list(tasks[-1]) == ["data"]  # there is no word for it

    def test_what_label_studio_could_not_show_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(KedgeError, match=r"the class 'a\\x01' has a character that no XML file can have"):
            written(tmp_path, predictions(("a\x01", "b")))
        with pytest.raises(KedgeError, match="the features do not have the paths of their images"):
            written(tmp_path, predictions(paths=None))
        assert list(tmp_path.iterdir()) == []


class TestExports:
    def test_there_and_back(self, tmp_path: Path) -> None:
        written(tmp_path, predictions())
        expected = {number: number % len(NAMES) for number in range(len(PATHS))} | {3: NONE}
        choices = {number: "none of these" if label == NONE else NAMES[label] for number, label in expected.items()}
        said = {image_url(path): [annotation(choices[number])] for number, path in enumerate(PATHS)}
        assert read(tmp_path, export(tmp_path / "x.labelstudio.json", said)) == expected

    def test_the_annotation_that_counts(self, tmp_path: Path) -> None:
        written(tmp_path, predictions())
        early, late = "2026-01-01T10:00:00.000000Z", "2026-02-01T10:00:00.000000Z"
        said = {
            "a%20b/0.jpg": [annotation("=sum", late), annotation("cat", early)],  # the last one
            "a%20b/1.jpg": [annotation("=sum", late), annotation("cat", early, ground_truth=True)],
            "a%20b/2.jpg": [annotation("=sum", late, was_cancelled=True), annotation("cat", early)],
            "a%20b/3.jpg": [annotation("cat", was_cancelled=True)],
            "a%20b/4.jpg": [
                annotation("cat", late, result=[]),
                annotation("=sum", early),
            ],  # submitted without a choice
            "a%20b/5.jpg": [annotation("cat"), annotation("=sum")],  # at the same time
            "a%20b/6.jpg": [],
        }
        assert read(tmp_path, export(tmp_path / "x.labelstudio.json", said)) == {0: 3, 1: 0, 2: 0, 4: 3, 5: 3}

    def test_json_min(self, tmp_path: Path) -> None:
        dates = {"created_at": "2026-01-01T10:00:00Z", "updated_at": "2026-01-01T10:00:00Z"}
        more = {"annotator": 1, "annotation_id": 3, "lead_time": 1.5, **dates}
        entries = [
            {
                "image": "/data/local-files/?d=photos/a%20b/0.jpg",
                "id": 1,
                "label": "=sum",
                **more,
                "updated_at": "2027",
            },
            {"image": "/data/local-files/?d=photos/a%20b/0.jpg", "id": 1, "label": "cat", **more},
            {"image": "/data/local-files/?d=photos/a%20b/1.jpg", "id": 2, "choice": "None of these", **more},
            {"image": "/data/local-files/?d=photos/a%20b/2.jpg", "id": 3, **more},
        ]
        assert read(tmp_path, entries) == {0: 3, 1: NONE}

    @pytest.mark.parametrize(
        ("url", "path"),
        [
            ("/data/local-files/?d=photos/a%20b.jpg", "photos/a b.jpg"),
            ("http://localhost:8080/data/local-files/?d=a/b.jpg", "a/b.jpg"),
            ("https://host/a/b%25.jpg?token=1", "https://host/a/b%.jpg"),
            ("s3://bucket/a/b.jpg", "s3://bucket/a/b.jpg"),
            ("a/what?.jpg", "a/what?.jpg"),
            ("%FF.jpg", "\\udcff.jpg"),
        ],
    )
    def test_paths_in_urls(self, url: str, path: str) -> None:
        assert image_path(url) == path

    def test_own_projects_may_call_their_choices_as_they_like(self, tmp_path: Path) -> None:
        region = annotation("cat")["result"][0]
        other = {**region, "from_name": "light", "value": {"choices": ["bright"]}}
        box = {**region, "from_name": "box", "type": "rectanglelabels", "value": {"x": 1, "rectanglelabels": ["a"]}}

        def task(*result: Any) -> list[dict[str, Any]]:
            return [{"id": 1, "data": {"image": "b/0.jpg"}, "annotations": [annotation("", result=list(result))]}]

        assert read(tmp_path, task(box, {**region, "from_name": "kind"})) == {8: 0}
        assert read(tmp_path, task(other, region)) == {8: 0}
        with pytest.raises(KedgeError, match=r"task 1 has several choices: light, kind\. Call the one"):
            read(tmp_path, task(other, {**region, "from_name": "kind"}))

    def test_images_that_could_not_be_read_are_left_out(self, tmp_path: Path) -> None:
        task = {"id": 1, "data": {"image": "x/gone.jpg"}, "annotations": [annotation("cat")]}
        assert read(tmp_path, [task], skipped=["gone.jpg"]) == {}


def image_url(path: str) -> str:
    return "?d=" + quote(path, errors="surrogateescape")


def entry(image: Any = "b/0.jpg", choice: Any = "cat", **more: Any) -> dict[str, Any]:
    return {"id": 17, "data": {"image": image}, "annotations": [annotation(choice)], **more}


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ("{", "export.json is not JSON: Expecting property name"),
        ("[" * 100_000, "export.json is not JSON: nested too deeply. Export it"),
        ([[[[]]]], "export.json, task number 1: Expected `object`, got `array`"),
        ({"a": 1}, "export.json is not an export of Label Studio, which is a list of tasks"),
        ("7", "export.json is not an export of Label Studio"),
        ([entry(), 3], "export.json, task number 2: Expected `object`, got `int`"),
        ([{"id": 17}], "task 17: Object missing required field `image`"),
        ([entry(image=3)], "task 17: Expected `str`, got `int`, at `data.image`"),
        ([entry(annotations={})], "task 17: Expected `array`, got `object`, at `annotations`"),
        ([entry(choice=3)], "task 17: Expected `str`, got `int`, at `annotations[0].result[0].value.choices[0]`"),
        ([entry(choice="mouse")], "export.json, task 17 has 'mouse', which is no class"),
        ([entry(image="b/9.jpg")], "export.json, task 17: there is no image 'b/9.jpg'"),
        ([entry(image="x/0.jpg")], "export.json, task 17: there is no image 'x/0.jpg'"),
        ([entry(image="0.jpg")], "task 17: '0.jpg' could be 2 images, among them 'a b/0.jpg' and 'b/0.jpg'"),
        (
            [entry(), entry(choice="=sum", id=18)],
            "tasks 17 and 18: the image 'b/0.jpg' is 'cat' and '=sum'. Remove one of the tasks.",
        ),
        ([entry(), entry(image="a b/1.jpg")], "task 17: it is there twice, with other images"),
        (
            [entry(annotations=[annotation("", result=[{"type": "choices", "value": {"choices": ["cat", "=sum"]}}])])],
            "task 17: ['cat', '=sum'] are 2 choices, and an image has one label",
        ),
        ([{"id": 17, "image": "b/0.jpg", "label": ["cat"]}], "task 17: Expected `str | object`, got `array`"),
        ([{"image": "b/0.jpg", "label": "cat", "zero_shot_label": "cat"}], "has a label that kedge predicted"),
        ([{**entry(), "id": 1e400}], "export.json is not JSON: the number inf is not finite"),
        ([entry(choice="cat\x1b[31m\n")], "task 17 has 'cat\\x1b[31m\\n', which is no class"),
    ],
)
def test_what_is_refused(tmp_path: Path, entries: Any, message: str) -> None:
    with pytest.raises(KedgeError, match=re.escape(message)) as caught:
        read(tmp_path, entries)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) <= 1000


def test_bytes_and_sizes_that_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "export.json").write_bytes(b'[{"id": "\xff"}]')
    with pytest.raises(KedgeError, match="is not JSON: 'utf-8' codec can't decode"):
        read_known(tmp_path / "export.json", PATHS, HEAD)
    monkeypatch.setenv("KEDGE_MAX_BYTES", "1000")
    with pytest.raises(KedgeError, match=r"export\.json, read, would take .* of memory; the limit is 1 kB"):
        read(tmp_path, [entry()])


def test_from_labels_to_label_studio_and_back_to_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Label; hand the tasks to Label Studio; correct some of them there; label again with what was exported."""
    monkeypatch.chdir(tmp_path)
    made = predictions()
    made.features.save("f.safetensors")
    first = run("adapt", "f.safetensors", "--method", "stata", "--out", "x.labelstudio.json")
    assert "→ x.labelstudio.json\n→ x.labelstudio.xml\n" in first.err
    wrong = [number for number in range(8) if made.names[number] != "cat"][:2]
    said = {f"a%20b/{wrong[0]}.jpg": [annotation("cat")], f"a%20b/{wrong[1]}.jpg": [annotation("none of these")]}
    Path("export.json").write_text(json.dumps(export(Path("x.labelstudio.json"), said)), encoding="utf-8")
    again = run("adapt", "f.safetensors", "--method", "stata", "--known", "export.json", "--out", "y.labelstudio.json")
    assert "known: 2 labels\n" in again.err
    report = json.loads(run("adapt", "f.safetensors", "--method", "stata", "--known", "export.json", "--json").out)
    assert [report["rows"][number]["label"] for number in wrong] == ["cat", "none of these"]
    known = {wrong[0]: 0, wrong[1]: NONE}
    expected = kedge.adapt(made.features, method="stata", known=known)
    assert [row["label"] for row in report["rows"]] == kedge.Predictions(made.features, expected).names
    assert read_known("y.labelstudio.json", PATHS, HEAD) == known  # the second round begins with the first
