"""The page's routes on a small folder of pictures, from opening it to taking the labels away."""

from __future__ import annotations

import csv
import io
import shutil
from pathlib import Path
from typing import Any

import pytest

import kedge
from page_tools import EACH, NAMES, SHOWN, Page, page, pictures

CAT, DOG = NAMES.index("cat"), NAMES.index("dog")


def column(labels: Any, name: str) -> list[Any]:
    return list(labels["columns"][name])


def test_the_set_and_its_labels(tab: Page) -> None:
    shown, labels = tab.get("set"), tab.get("labels")
    n = EACH * len(SHOWN)
    assert (shown["name"], shown["encoder"], shown["work"]) == ("photos", "tiny", "photos.kedge")
    assert len(shown["images"]) == n
    assert shown["images"] == sorted(shown["images"])
    assert shown["simulated"]
    assert shown["true_labels"]
    assert shown["edit"]
    assert labels["phase"] == "labelled"
    assert labels["revision"] == shown["revision"]
    assert [each["name"] for each in labels["classes"]] == list(NAMES)
    assert all(len(values) == n for values in labels["columns"].values())
    assert sorted(column(labels, "rank")) == list(range(1, n + 1))
    assert sum(each["count"] for each in labels["classes"]) == n
    assert labels["accuracy"]["now"] > 0.5
    assert (labels["corrections"], labels["others"], labels["last"]) == (0, 0, None)
    assert not labels["can_undo"]


def test_labels_are_those_of_the_library(tab: Page) -> None:
    tab.label([0, 9], DOG)
    labels = tab.post("present", {"classes": [CAT], "present": False})
    features = kedge.FeatureSet.load(tab.workspace.task.work.features)
    present = [name for name in NAMES if name != "cat"]
    result = kedge.adapt(features, known={0: "dog", 9: "dog"}, present=present)
    assert column(labels, "label") == result.labels.tolist()
    assert column(labels, "probability") == pytest.approx(result.probs.amax(1).tolist(), abs=1e-4)
    assert labels["verdict"]["sentence"] == result.verdict.sentence
    assert labels["found"] == [each.number for each in result.classes]
    assert [labels["columns"]["rank"].index(rank + 1) for rank in range(5)] == result.review[:5].tolist()


def test_correct_see_others_change_undo_and_redo(tab: Page) -> None:
    before = tab.get("labels")
    cats = [i for i, label in enumerate(column(before, "label")) if label == CAT]
    told = cats[:-2]
    after = tab.label(told, DOG)
    assert [column(after, "label")[i] for i in told] == [DOG] * len(told)
    assert [column(after, "probability")[i] for i in told] == [1.0] * len(told)
    assert [column(after, "rank")[i] for i in told] == [0] * len(told)
    assert [column(after, "known")[i] for i in told] == [DOG] * len(told)
    moved = [i for i, (a, b) in enumerate(zip(column(before, "label"), column(after, "label"), strict=True)) if a != b]
    others = [i for i in moved if i not in told]
    assert others  # the rest follows
    assert after["last"] == {"what": f"{len(told)} images are dog", "changed": others}
    assert (after["corrections"], after["others"]) == (len(told), len(others))
    assert after["classes"][DOG]["known"] == len(told)
    assert after["version"] > before["version"]

    undone = tab.post("undo")
    assert undone["columns"] == before["columns"]
    assert undone["last"]["what"] == f"undone: {len(told)} images are dog"
    assert (undone["can_undo"], undone["can_redo"]) == (False, True)
    redone = tab.post("redo")
    assert redone["columns"] == after["columns"]
    assert tab.post("redo", status=409) == {"error": "there is nothing that could be done again."}
    assert column(tab.label(told, None), "known") == column(before, "known")


def test_untick_a_class_and_tick_it_again(tab: Page) -> None:
    before = tab.get("labels")
    assert CAT in column(before, "label")
    after = tab.post("present", {"classes": [CAT], "present": False})
    assert CAT not in column(after, "label")
    assert not after["classes"][CAT]["present"]
    assert after["last"]["what"] == "not here: cat"
    assert tab.post("present", {"classes": [CAT], "present": True})["columns"] == before["columns"]
    refused = tab.post("present", {"classes": list(range(len(NAMES))), "present": False}, status=400)
    assert "no class" in refused["error"]


def test_none_of_these_and_reject(tab: Page) -> None:
    after = tab.label(4, kedge.NONE)
    assert column(after, "label")[4] == -1
    assert column(after, "known")[4] == -2
    assert after["last"]["what"] == "1 image is none of these"
    scores = sorted(column(after, "none"))
    threshold = round((scores[-3] + scores[-4]) / 2, 4)
    rejected = tab.post("reject", {"threshold": threshold})
    assert rejected["reject"] == threshold
    assert column(rejected, "label").count(-1) in (3, 4)  # perhaps that image is among the highest
    assert tab.post("reject", {"threshold": None})["columns"] == after["columns"]
    assert "threshold" in tab.post("reject", {"threshold": 7}, status=400)["error"]


def test_add_rename_and_drop_a_class(tab: Page) -> None:
    added = tab.post("classes", {"name": "  tea   pot ", "prompt": "a photo of a teapot."})
    number = added["classes"][-1]["id"]
    assert added["classes"][-1]["name"] == "tea pot"
    assert (number, added["classes"][-1]["prompt"]) == (len(NAMES), "a photo of a teapot.")
    assert tab.label(0, number)["classes"][-1]["known"] == 1
    renamed = tab.post(f"classes/{number}", {"name": "kettle"}, method="PATCH")
    assert renamed["classes"][-1]["name"] == "kettle"
    assert renamed["classes"][-1]["prompt"] == "a photo of a teapot."
    plain = tab.post(f"classes/{number}", {"prompt": None}, method="PATCH")
    assert plain["classes"][-1]["prompt"] is None
    assert "already" in tab.post("classes", {"name": "Kettle"}, status=400)["error"]
    assert "empty" in tab.post("classes", {"name": " "}, status=400)["error"]
    dropped = tab.post(f"classes/{number}", method="DELETE")
    assert [each["id"] for each in dropped["classes"]] == list(range(len(NAMES)))
    assert dropped["corrections"] == 0
    assert tab.post("undo")["corrections"] == 1
    assert "no class" in tab.post("classes/99", {"name": "x"}, status=400, method="PATCH")["error"]
    tab.post(f"classes/{CAT}", {"name": "frog"}, method="PATCH")
    # the head is that of a set that had these classes from the start
    features = kedge.FeatureSet.load(tab.workspace.task.work.features)
    from kedge.features.text_head import text_head
    from page_tools import tiny

    head = text_head(tiny(), [*("frog" if name == "cat" else name for name in NAMES), "kettle"], "a photo of a {}.")
    same = kedge.Session(features).solve(known={0: number}, head=head)
    assert column(tab.get("labels"), "label") == same.labels.tolist()


def test_a_restart_keeps_everything(photos: Path) -> None:
    with page(photos) as tab:
        tab.label([1, 2], DOG)
        tab.post("classes", {"name": "teapot"})
        tab.post("present", {"classes": [CAT], "present": False})
        tab.post("undo")
        before = tab.get("labels")
    with page(photos) as tab:
        after = tab.get("labels")
        assert after["version"] > before["version"]  # tabs that are open fetch it
        for name in before.keys() - {"version", "last", "seconds"}:
            assert after[name] == before[name], name
        assert not tab.post("redo")["classes"][CAT]["present"]


def test_new_images_are_encoded_on_request(photos: Path) -> None:
    with page(photos) as tab:
        tab.label([0, 8], DOG)
        before, paths = tab.get("set"), tab.get("set")["images"]
        pictures(photos, each=1, first=EACH)
        (photos / "cat" / "broken.png").write_bytes(b"no picture")
        tab.work.encoding.look()
        assert ("new", {"count": len(SHOWN) + 1}) in list(tab.work.encoding.first())
        tab.post("encode-new", status=202)
        assert tab.work.encoding.wait(60)
        shown, labels = tab.get("set"), tab.get("labels")
        assert shown["revision"] != before["revision"]
        assert shown["images"] == sorted(shown["images"])
        assert len(shown["images"]) == len(paths) + len(SHOWN)
        assert [each["path"] for each in shown["skipped"]] == ["cat/broken.png"]
        known = {shown["images"][i]: label for i, label in enumerate(column(labels, "known")) if label != -1}
        assert known == {paths[0]: DOG, paths[8]: DOG}  # by path
        assert [name for name, _ in tab.work.encoding.first()] == ["version"]  # none is new any more
        stale = {"images": [3], "label": CAT, "of": before["list"]}
        assert "has changed" in tab.post("label", stale, status=409)["error"]
        assert tab.get(f"images/3/small?of={before['list']}", status=409)
    features = kedge.FeatureSet.load(photos.parent / "photos.kedge" / "features.safetensors")
    whole = kedge.extract(photos, NAMES, "tiny", out=photos.parent / "all.safetensors", device="cpu")
    assert features.paths == whole.paths
    assert features.labels is not None
    assert features.labels.tolist() == whole.labels.tolist()  # type: ignore[union-attr]
    assert (features.image_features - whole.image_features).abs().max() < 1e-5


def test_new_images_that_nobody_can_read_are_left_out_for_good(photos: Path) -> None:
    (photos / "cat" / "broken.png").write_bytes(b"no picture")
    with page(photos) as tab:
        n = len(tab.get("set")["images"])
        tab.post("encode-new", status=202)
        assert tab.work.encoding.wait(60)
        assert len(tab.get("set")["images"]) == n
        assert [each["path"] for each in tab.get("set")["skipped"]] == ["cat/broken.png"]
        tab.work.encoding.look()
        assert [name for name, _ in tab.work.encoding.first()] == ["version"]


def test_an_image_that_is_gone_or_unreadable(tab: Page) -> None:
    first = tab.workspace.file(0)
    assert tab.client.get("/api/images/0/small").headers["content-type"] == "image/webp"
    first.unlink()
    assert "cannot read" in tab.get("images/0/small", status=404)["error"]
    tab.workspace.file(1).write_bytes(b"no picture")
    assert "not an image" in tab.get("images/1/large", status=404)["error"]
    assert tab.get("images/0")["path"] == tab.workspace.images.paths[0]  # what is known of it stays
    assert "no image 999" in tab.get("images/999", status=400)["error"]
    assert "no image -1" in tab.post("label", {"images": [-1], "label": 0}, status=400)["error"]


def test_pictures_may_be_kept_by_the_browser(tab: Page) -> None:
    answer = tab.client.get(f"/api/images/2/small?of={tab.get('set')['list']}")
    assert "immutable" in answer.headers["cache-control"]
    answer = tab.client.get("/api/images/2/large")
    assert answer.content[8:12] == b"WEBP"
    assert answer.headers["cache-control"] == "no-store"  # after new images, 2 is perhaps another


def test_an_image_and_its_neighbours(tab: Page) -> None:
    shown, labels = tab.get("images/3"), tab.get("labels")
    assert shown["top"][0]["id"] == column(labels, "label")[3]
    assert shown["top"][0]["probability"] == column(labels, "probability")[3]
    assert len(shown["top"]) == len(NAMES)
    near = [each["similarity"] for each in shown["neighbours"]]
    assert len(near) == 8
    assert near == sorted(near, reverse=True)
    assert 3 not in [each["image"] for each in shown["neighbours"]]


def test_a_feature_file(photos: Path) -> None:
    file = photos.parent / "birds.safetensors"
    shutil.copy(photos.parent / "photos.kedge" / "features.safetensors", file)
    with page(file, images=photos) as tab:
        assert tab.get("set")["edit"]
        assert tab.label(0, DOG)["corrections"] == 1
        assert tab.post("classes", {"name": "teapot"})["classes"][-1]["name"] == "teapot"
        assert tab.client.get("/api/images/0/small").status_code == 200
        tab.post("encode-new", status=409)
    assert (photos.parent / "birds.kedge").is_dir()
    with pytest.raises(kedge.SettingError, match="--classes is for images"), page(file, images=photos, classes="a, b"):
        pass


def test_a_feature_file_without_its_encoder(photos: Path) -> None:
    there = kedge.FeatureSet.load(photos.parent / "photos.kedge" / "features.safetensors")
    file = photos.parent / "birds.safetensors"
    about = {**there.provenance, "encoder": "hf:/nowhere/model"}
    kedge.FeatureSet.from_arrays(there.image_features, there.head, paths=there.paths, provenance=about).save(file)
    with page(file, images=photos) as tab:
        assert not tab.get("set")["edit"]
        assert tab.label(0, DOG)["corrections"] == 1
        assert "encoder" in tab.post("classes", {"name": "teapot"}, status=400)["error"]
        assert not tab.post(f"classes/{CAT}", method="DELETE")["columns"]["label"].count(CAT)


@pytest.mark.parametrize("options", [{"classes": "a, b"}, {"encoder": "hf:x/y"}, {"templates": ("a {}",)}])
def test_options_that_contradict_the_work(photos: Path, options: dict[str, Any]) -> None:
    with pytest.raises(kedge.SettingError, match=r"Leave --\w+ out to go on with it"), page(photos, **options):
        pass
    with page(photos, classes=NAMES, encoder="tiny") as tab:  # what the work began with is no contradiction
        assert tab.get("labels")["phase"] == "labelled"


def test_two_servers_on_one_folder(tab: Page) -> None:
    with pytest.raises(kedge.FileError, match="another `kedge serve`"), page(tab.workspace.task.source):
        pass


def test_exports(tab: Page) -> None:
    tab.label([0, 1], DOG)
    tab.label(2, kedge.NONE)
    paths = tab.workspace.images.paths
    known = tab.client.get("/api/export/known.csv")
    assert "attachment" in known.headers["content-disposition"]
    rows = [(row["image"], row["label"]) for row in csv.DictReader(io.StringIO(known.text))]
    assert rows == [(paths[0], "dog"), (paths[1], "dog"), (paths[2], "none")]
    labels = tab.get("export/labels.json")
    assert [row["image"] for row in labels] == list(paths)
    sure = csv.DictReader(io.StringIO(tab.client.get("/api/export/metadata.csv?above=0.99").text))
    assert 2 <= len(list(sure)) < len(paths)
    made = tab.post("export/folders", {"above": None})
    assert made["images"] == len(paths)
    assert (Path(made["folder"]) / "dog").is_dir()
    assert next(each.kind for each in tab.workspace.journal.exports()) == "known.csv"
    assert "no export" in tab.get("export/all.zip", status=404)["error"]
    tab.get("export/labels.csv?above=7", status=422)


def test_the_page_itself(tab: Page) -> None:
    index = tab.client.get("/")
    assert index.headers["content-type"].startswith("text/html")
    assert index.headers["cache-control"] == "no-cache"
    again = tab.client.get("/", headers={"If-None-Match": index.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    for name in ("nothing.js", "__init__.py", "%2e%2e/server.py"):
        assert tab.client.get(f"/page/{name}").status_code == 404


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"images": [], "label": 0},
        {"images": ["photos/cat/1.webp"], "label": 0},
        {"images": [0], "label": "cat"},
        {"images": [0]},
        {"images": [True], "label": 0},
        {"images": [0], "label": 0, "path": "/etc/passwd"},
    ],
)
def test_a_label_must_be_as_described(tab: Page, body: Any) -> None:
    version = tab.get("labels")["version"]
    assert "error" in tab.post("label", body, status=422)
    assert tab.get("labels")["version"] == version


def test_a_label_that_does_not_fit_changes_nothing(tab: Page) -> None:
    assert "no class 99" in tab.post("label", {"images": [0], "label": 99}, status=400)["error"]
    assert tab.get("labels")["corrections"] == 0
    assert not tab.workspace.journal.changes()
