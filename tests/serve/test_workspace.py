"""The workspace: one solve for a burst of clicks, nothing kept of a solve that fails, nothing lost by a kill."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kedge
from kedge.labelling.session import Session
from kedge.serve import encoding as encoding_module
from kedge.serve.events import WAITING, Events
from kedge.serve.journal import Journal
from kedge.serve.said import Label, Reject
from kedge.serve.server import opened
from kedge.serve.task import Options
from kedge.serve.work_folder import WorkFolder
from page_tools import EACH, NAMES, SHOWN, Page, page, pictures

DOG = NAMES.index("dog")


class Slow:
    """Session.solve that waits until it may go on, and counts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls, self.begun, self.go_on = 0, threading.Event(), threading.Event()
        solve = Session.solve

        def slow(session: Session, *given: Any) -> Any:
            self.calls += 1
            self.begun.set()
            assert self.go_on.wait(30)
            return solve(session, *given)

        monkeypatch.setattr(Session, "solve", slow)


def until(reached: Callable[[], bool]) -> None:
    """Wait for something that is about to happen."""
    end = time.monotonic() + 30
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.001)


def in_threads(work: Any, *given: Any) -> list[threading.Thread]:
    threads = [threading.Thread(target=work, args=(each,)) for each in given]
    for thread in threads:
        thread.start()
    return threads


def test_clicks_during_a_solve_share_the_next_one(tab: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: dict[int, Any] = {}
    slow = Slow(monkeypatch)

    def click(image: int) -> None:
        answers[image] = tab.workspace.change(Label((tab.workspace.images.paths[image],), DOG))

    first = in_threads(click, 0)
    assert slow.begun.wait(30)
    others = in_threads(click, *range(1, 6))
    until(lambda: len(tab.workspace.journal.changes()) == 6)  # all are written, and wait
    slow.go_on.set()
    for thread in first + others:
        thread.join(30)
    assert slow.calls == 2
    for image, answer in answers.items():
        assert answer["columns"]["known"][image] == DOG  # each has its own change
    assert answers[0]["corrections"] == 1
    assert {answers[image]["corrections"] for image in range(1, 6)} == {6}
    assert answers[3]["last"]["what"] == "5 changes"


def test_a_solve_that_fails_leaves_everything_as_it_was(tab: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    before = tab.label(0, DOG)
    solve, fail = Session.solve, True

    def failing(session: Session, *given: Any) -> Any:
        if fail:
            raise kedge.InputError("it does not converge.")
        return solve(session, *given)

    monkeypatch.setattr(Session, "solve", failing)
    assert tab.post("label", {"images": [1], "label": 0}, status=400) == {"error": "it does not converge."}
    assert tab.post("undo", status=400)
    assert len(tab.workspace.journal.changes()) == 1
    assert not tab.workspace.journal.can_redo
    assert tab.get("labels") == before
    fail = False
    assert tab.label(1, 0)["corrections"] == 2


def test_all_who_wait_for_a_solve_that_fails_hear_of_it(tab: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, errors = Slow(monkeypatch), []
    solve = Session.solve

    def failing(session: Session, *given: Any) -> Any:
        found = solve(session, *given)
        if slow.calls == 1:
            raise RuntimeError("no memory")
        return found

    monkeypatch.setattr(Session, "solve", failing)

    def click(image: int) -> None:
        try:
            tab.workspace.change(Label((tab.workspace.images.paths[image],), DOG))
        except RuntimeError as error:
            errors.append(str(error))

    first = in_threads(click, 0)
    assert slow.begun.wait(30)
    others = in_threads(click, 1, 2)
    until(lambda: len(tab.workspace.journal.changes()) == 3)
    slow.go_on.set()
    for thread in first + others:
        thread.join(30)
    assert errors == ["no memory"] * 3  # also those that came later: they would be in the wrong place of the journal
    assert not tab.workspace.journal.changes()


def test_undo_and_a_change_for_one_solve_that_fails(tab: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was undone comes back, although the change after it had made it impossible to redo."""
    workspace, paths = tab.workspace, tab.workspace.images.paths
    for image in (0, 1, 2):
        tab.label(image, DOG)
    tab.post("undo")  # the third can be redone
    before = workspace.journal.changes()
    slow = Slow(monkeypatch)
    solve = Session.solve

    def failing(session: Session, *given: Any) -> Any:
        solve(session, *given)
        raise kedge.InputError("it does not converge.")

    monkeypatch.setattr(Session, "solve", failing)

    def do(work: Callable[[], Any]) -> None:
        with pytest.raises(kedge.InputError):
            work()

    first = in_threads(do, lambda: workspace.change(Reject(0.9)))
    assert slow.begun.wait(30)
    undo = in_threads(do, workspace.undo)
    until(lambda: len(workspace.journal.changes()) == 2)
    last = in_threads(do, lambda: workspace.change(Label((paths[3],), 0)))
    until(lambda: len(workspace.journal.changes()) == 3)
    slow.go_on.set()
    for thread in first + undo + last:
        thread.join(30)
    monkeypatch.undo()
    assert workspace.journal.changes() == before
    assert tab.post("redo")["corrections"] == 3


def test_one_who_asks_in_between_sees_one_version(tab: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def can_undo(journal: Journal) -> bool:  # asked while the next answer is put together
        seen.append(tab.workspace.labels())
        return True

    monkeypatch.setattr(Journal, "can_undo", property(can_undo))
    before = tab.get("labels")
    after = tab.label(0, DOG)
    assert seen == [before]
    assert tab.get("labels") == after
    tab.workspace.use_encoder(None)
    assert tab.get("labels")["revision"] == tab.get("set")["revision"] != after["revision"]


def test_labels_without_corrections_are_solved_once(tab: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(monkeypatch)
    slow.go_on.set()
    tab.label(0, DOG)
    tab.label(1, DOG)
    assert slow.calls == 2  # what it is without them was known
    tab.workspace.change(Reject(0.9))
    assert slow.calls == 4  # with and without
    tab.post("undo")
    assert slow.calls == 5


def test_the_first_opening_shows_zero_shot_batch_by_batch(tmp_path: Path, quick_encoder: None) -> None:
    photos = pictures(tmp_path / "photos", each=3)
    told: list[tuple[str, Any]] = []
    with opened(photos, Options(classes=NAMES, encoder="tiny"), workers=0) as work:
        workspace = work.workspace
        workspace.events.publish = lambda name, data: told.append((name, data))  # type: ignore[method-assign]
        client = Page(work)
        labels = client.get("labels")
        assert labels["phase"] == "encoding"
        assert set(labels["columns"]["label"]) == {-3}
        assert "still being encoded" in client.post("label", {"images": [0], "label": 0}, status=409)["error"]
        client.post("encode-new", status=409)
        client.get("export/labels.csv", status=409)
        assert client.get("images/0") == {"path": workspace.images.paths[0], "top": [], "neighbours": []}
        assert client.client.get("/api/images/0/small").status_code == 200
        work.encoding.start()
        assert work.encoding.wait(60)
        assert client.get("labels")["phase"] == "labelled"
    batches = [data for name, data in told if name == "batch"]
    assert len(batches) == 2
    assert [i for batch in batches for i in batch["images"]] == list(range(3 * len(SHOWN)))
    assert [label for batch in batches for label in batch["zero_shot"]] == client.get("labels")["columns"]["zero_shot"]
    done = [(data["done"], data["total"]) for name, data in told if name == "progress"]
    assert done[-1] == (3 * len(SHOWN), 3 * len(SHOWN))
    assert told[-1][0] == "version"


def test_an_image_that_cannot_be_read_is_left_out(tmp_path: Path, quick_encoder: None) -> None:
    photos = pictures(tmp_path / "photos", each=3)
    (photos / "cat" / "00.webp").write_bytes(b"no picture")
    with page(photos, classes=NAMES, encoder="tiny") as tab:
        shown = tab.get("set")
        assert [each["path"] for each in shown["skipped"]] == ["cat/00.webp"]
        assert "cat/00.webp" not in shown["images"]
        assert len(tab.get("labels")["columns"]["label"]) == 3 * len(SHOWN) - 1


def test_names_that_are_not_utf_8(photos: Path) -> None:
    odd, damaged = (os.fsdecode(name) for name in (b"caf\xe9.webp", b"damaged\xe9.webp"))
    shutil.copy(photos / "cat" / "00.webp", photos / "cat" / odd)
    (photos / "cat" / damaged).write_bytes(b"no picture")
    with page(photos) as tab:
        tab.post("encode-new", status=202)
        assert tab.work.encoding.wait(60)
        image = tab.workspace.images.paths.index(f"cat/{odd}")
        assert tab.get("set")["images"][image] == "cat/caf\\udce9.webp"
        assert [each["path"] for each in tab.get("set")["skipped"]] == ["cat/damaged\\udce9.webp"]
        assert tab.client.get(f"/api/images/{image}/small").status_code == 200
        assert tab.label(image, DOG)["corrections"] == 1
        assert "caf" in tab.client.get("/api/export/known.csv").text
        assert tab.post("export/folders", {})["images"] == len(tab.workspace.images.paths)
    with page(photos) as tab:
        assert tab.get("labels")["columns"]["known"][image] == DOG


def test_stopped_while_encoding_it_goes_on_later(
    tmp_path: Path, quick_encoder: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = pictures(tmp_path / "photos", each=3)
    small = encoding_module.extract

    def in_small_batches(*given: Any, **options: Any) -> Any:
        return small(*given, batch_size=4, **options)

    monkeypatch.setattr(encoding_module, "extract", in_small_batches)
    with opened(photos, Options(classes=NAMES, encoder="tiny"), workers=0) as work:
        first = work.workspace.encoded
        monkeypatch.setattr(work.workspace, "encoded", lambda *batch: (first(*batch), work.encoding._stop.set()))
        work.encoding.start()
        assert work.encoding.wait(60)
        assert not work.workspace.task.work.features.exists()
    with opened(photos, Options(), workers=0) as work:  # without the options: it goes on with its own
        encoded: list[Any] = []
        first = work.workspace.encoded
        monkeypatch.setattr(work.workspace, "encoded", lambda *batch: (encoded.append(batch[0].start), first(*batch)))
        work.encoding.start()
        assert work.encoding.wait(60)
        assert encoded == [0, 8, 12, 16]  # what was done comes in one piece
        assert work.workspace.labels()["phase"] == "labelled"
    assert kedge.FeatureSet.load(tmp_path / "photos.kedge" / "features.safetensors").head.class_names == NAMES


def test_killed_before_new_images_were_joined(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with page(photos) as tab:
        tab.label(0, DOG)
        labelled = tab.workspace.images.paths[0]
        pictures(photos, each=2, first=EACH)

        def killed(*given: Any) -> Any:
            raise kedge.FileError("as if it were killed here.")

        monkeypatch.setattr(tab.work.encoding, "_join", killed)
        tab.post("encode-new", status=202)
        assert tab.work.encoding.wait(60)
        assert tab.workspace.task.work.new_features.exists()
        assert len(tab.workspace.images.paths) == EACH * len(SHOWN)
    with page(photos) as tab:
        assert not tab.workspace.task.work.new_features.exists()
        assert len(tab.workspace.images.paths) == (EACH + 2) * len(SHOWN)
        assert tab.get("labels")["columns"]["known"][tab.workspace.images.paths.index(labelled)] == DOG


def test_a_folder_that_was_moved_goes_on(photos: Path, tmp_path: Path) -> None:
    with page(photos) as tab:
        tab.label(0, DOG)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("photos", "photos.kedge"):
        shutil.move(tmp_path / name, elsewhere / name)
    with page(elsewhere / "photos") as tab:
        assert tab.get("labels")["corrections"] == 1
        assert tab.client.get("/api/images/0/small").status_code == 200
    other = pictures(tmp_path / "other", each=1)
    with pytest.raises(kedge.SettingError, match="has the work on"), page(other, elsewhere / "photos.kedge"):
        pass


@pytest.mark.parametrize("file", ["features", "new_features"])
@pytest.mark.parametrize("outside", ["cat/../../secret.webp", "/secret.webp"])
def test_a_forged_work_folder_shows_no_images_of_other_folders(photos: Path, file: str, outside: str) -> None:
    folder = WorkFolder.of(photos)
    features = kedge.FeatureSet.load(folder.features)
    assert features.paths is not None
    replace(features, paths=(outside, *features.paths[1:])).save(getattr(folder, file))
    with pytest.raises(kedge.InputError, match="which is not in"), page(photos):
        pass


def test_folders_that_are_no_class_are_strangers_in_the_demo(photos: Path) -> None:
    with page(photos) as tab:
        tab.post("classes/0", method="DELETE")
        assert tab.get("labels")["accuracy"] is None  # not all images have a class
    with page(photos, strangers=True) as tab:
        before = tab.get("labels")["accuracy"]["now"]
        none = [i for i, path in enumerate(tab.workspace.images.paths) if path.startswith(SHOWN[0])]
        assert tab.get("labels")["columns"]["label"][none[0]] != -1
        assert tab.label(none[:-1], kedge.NONE)["accuracy"]["now"] > before


def test_a_method_that_uses_no_known_labels_is_refused(photos: Path) -> None:
    with pytest.raises(kedge.SettingError, match="known labels"), page(photos, method="zero-shot"):
        pass
    with page(photos, method="stata:alpha=2") as tab:
        assert tab.get("set")["method"] == "stata"
        assert tab.label(0, DOG)["columns"]["label"][0] == DOG


def test_events_reach_every_tab_and_end() -> None:
    async def tabs() -> list[list[bytes]]:
        events = Events()
        heard: list[list[bytes]] = [[], []]

        async def listen(to: list[bytes]) -> None:
            async for message in events.stream(lambda: [("version", {"version": 1})]):
                to.append(message)

        tasks = [asyncio.create_task(listen(each)) for each in heard]
        while len(events) < 2:
            await asyncio.sleep(0)
        await asyncio.to_thread(events.publish, "new", {"count": 3})
        while any(len(each) < 2 for each in heard):
            await asyncio.sleep(0.001)
        events.close()
        await asyncio.wait_for(asyncio.gather(*tasks), 10)
        assert len(events) == 0
        return heard

    first, second = asyncio.run(tabs())
    assert first == second == [b'event: version\ndata: {"version":1}\n\n', b'event: new\ndata: {"count":3}\n\n']


def test_a_tab_that_does_not_read_is_let_go() -> None:
    async def behind() -> int:
        events, heard = Events(), 0
        stream = events.stream(lambda: [("version", {})])
        await anext(stream)
        for _ in range(WAITING + 100):
            events.publish("new", {"count": 1})
        await asyncio.sleep(0)
        async for _ in stream:
            heard += 1
        return heard

    assert asyncio.run(asyncio.wait_for(behind(), 10)) == WAITING
