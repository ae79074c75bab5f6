"""What a person does wrong, or does to the images behind the page's back, and how they get on."""

from __future__ import annotations

from pathlib import Path

import pytest

import kedge
from command import run
from kedge.serve.server import listen, opened
from kedge.serve.task import Options
from page_tools import NAMES, page, pictures


@pytest.fixture
def fresh(tmp_path: Path, quick_encoder: None) -> Path:
    """A folder of pictures that no server has seen."""
    return pictures(tmp_path / "photos", each=2)


def test_a_slip_at_the_first_start_is_mended_by_the_right_command(fresh: Path) -> None:
    with pytest.raises(kedge.SettingError, match="unknown encoder"), page(fresh, classes="cat, dgo", encoder="tinny"):
        pass
    with page(fresh, classes="cat, dog", encoder="tiny") as tab:
        assert [each["name"] for each in tab.get("labels")["classes"]] == ["cat", "dog"]
        assert tab.get("set")["encoder"] == "tiny"
    with page(fresh) as tab:  # it was kept
        assert tab.workspace.task.class_names == ("cat", "dog")
    with pytest.raises(kedge.SettingError, match="--classes"), page(fresh, classes="cat, bird"):  # now there is work
        pass


def test_what_was_said_at_the_first_start_is_kept_while_it_encodes(fresh: Path) -> None:
    with opened(fresh, Options("cat, dog", "tiny")):
        pass  # ended before anything was encoded
    with opened(fresh, Options()) as work:
        assert (work.workspace.task.class_names, work.workspace.task.encoder) == (("cat", "dog"), "tiny")


def test_a_failed_start_leaves_nothing_behind(fresh: Path, tmp_path: Path) -> None:
    for file in fresh.rglob("*.webp"):
        file.rename(fresh / f"{file.parent.name} {file.name}")
    for folder in list(fresh.iterdir()):
        if folder.is_dir():
            folder.rmdir()
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "diary").write_text("dear")
    before = sorted(tmp_path.iterdir())
    for source, work in ((fresh, None), (tmp_path / "nowhere", None), (fresh, mine)):
        with pytest.raises(kedge.KedgeError, match=r"classes .* are not known|no file"), page(source, work):
            pass
    assert sorted(tmp_path.iterdir()) == before
    assert [file.name for file in mine.iterdir()] == ["diary"]


def test_work_elsewhere_goes_on_with_a_renamed_folder(fresh: Path, tmp_path: Path) -> None:
    with page(fresh, tmp_path / "work", classes=NAMES, encoder="tiny") as tab:
        tab.label(0, 1)
    other = pictures(tmp_path / "other", each=1)
    with pytest.raises(kedge.SettingError, match="has the work on"), page(other, tmp_path / "work"):
        pass
    with page(fresh.rename(tmp_path / "renamed"), tmp_path / "work") as tab:
        assert tab.get("labels")["corrections"] == 1


def test_folders_are_exported_without_deleted_images(photos: Path) -> None:
    with page(photos) as tab:
        paths = tab.workspace.images.paths
        for path in paths[:2]:
            (photos / path).unlink()
        made = tab.post("export/folders", {"above": None})
        assert (made["images"], made["missing"]) == (len(paths) - 2, 2)
        for path in paths[2:]:
            (photos / path).unlink()
        assert "Put them back" in tab.post("export/folders", {"above": None}, status=400)["error"]


def test_options_of_own_images_do_not_go_with_kedge_s() -> None:
    for options in (["--classes", "cat"], ["--templates", "file"], ["--demo", "--encoder", "tiny"]):
        assert "Name their folder" in run("serve", *options).err
    assert "Leave --demo out" in run("serve", "photos", "--demo").err


def test_a_port_that_is_taken() -> None:
    with listen("127.0.0.1", None) as door, pytest.raises(kedge.SettingError) as caught:
        listen("127.0.0.1", door.getsockname()[1])
    assert "in use. Choose another" in str(caught.value)


def test_a_port_that_is_taken_leaves_no_folder_behind(fresh: Path) -> None:
    with listen("127.0.0.1", None) as door:
        ran = run("serve", fresh, "--classes", "cat, dog", "--encoder", "tiny", "--port", door.getsockname()[1])
    assert (ran.code, "in use" in ran.err) == (2, True)
    assert not (fresh.parent / "photos.kedge").exists()
