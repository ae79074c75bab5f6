"""`kedge pictures`: bundled pictures as a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

import kedge
from command import run
from kedge.images.folders import in_folder


def test_some_classes_of_those_named(tmp_path: Path) -> None:
    folder, names = tmp_path / "photos", tmp_path / "names.txt"
    for _ in range(2):  # the second time, nothing is left to do
        done = run("pictures", folder, "--names", names, "--classes", 3)
        assert done.code == 0
        assert "simulated" in done.err
        images = in_folder(folder)
        assert len(images) == 60
        assert len(images.class_names) == 3
    everything = names.read_text(encoding="utf-8").splitlines()
    assert len(set(everything)) == 178
    assert set(images.class_names) < set(everything)


def test_names_that_cannot_be_written_leave_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(kedge.FileError, match="no folder"):
        kedge.pictures(tmp_path / "photos", classes=2, names=tmp_path / "absent" / "names.txt")
    assert not (tmp_path / "photos").exists()


def test_it_goes_on_after_a_kill(tmp_path: Path) -> None:
    (tmp_path / ".kedge-unpacking.tmp").write_bytes(b"half a picture")
    assert len(in_folder(kedge.pictures(tmp_path, classes=1))) == 20


def test_names_and_pictures_have_two_places(tmp_path: Path) -> None:
    with pytest.raises(kedge.FileError, match="the pictures go there"):
        kedge.pictures(tmp_path / "photos", classes=1, names=tmp_path / "photos")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(kedge.FileError, match="it is a file"):
        kedge.pictures(tmp_path / "file", classes=1)
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_another_seed_draws_other_classes(tmp_path: Path) -> None:
    first, second = (kedge.pictures(tmp_path / str(seed), classes=2, seed=seed) for seed in (0, 1))
    assert in_folder(first).class_names != in_folder(second).class_names


def test_nothing_is_unpacked_among_other_files(tmp_path: Path) -> None:
    (tmp_path / "mine.jpg").write_bytes(b"")
    done = run("pictures", tmp_path)
    assert done.code == 2
    assert "it has 'mine.jpg', which is not one of them. Name a new folder." in done.err
    assert [file.name for file in tmp_path.iterdir()] == ["mine.jpg"]


@pytest.mark.parametrize("classes", [0, 179])
def test_as_many_classes_as_there_are(tmp_path: Path, classes: int) -> None:
    assert "classes" in run("pictures", tmp_path / "photos", "--classes", classes).err
