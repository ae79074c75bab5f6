"""Where the work is kept, and that one server has it at a time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kedge.errors import FileError
from kedge.serve.work_folder import WorkFolder


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos.v2"
    folder.mkdir()
    return folder


def test_it_lies_beside_the_images_or_where_it_is_named(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = WorkFolder.of(photos)
    assert made.path == photos.with_name("photos.v2.kedge")
    assert made == WorkFolder.of(photos)
    assert all(folder.is_dir() for folder in (made.thumbnails, made.exports, made.streams))
    names = [file.name for file in (made.features, made.new_features, made.journal)]
    assert names == ["features.safetensors", "new.safetensors", "work.sqlite"]
    file = photos.with_name("birds.safetensors")
    file.write_bytes(b"features")
    assert WorkFolder.of(file).path == photos.with_name("birds.kedge")
    assert WorkFolder.of(photos, photos.with_name("mine")).path == photos.with_name("mine")
    monkeypatch.chdir(photos)
    assert WorkFolder.of(Path(".")) == made


def test_a_place_that_cannot_be_used_is_named_with_the_option(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos.with_name("a file").touch()
    places = photos / "inside", photos, photos.with_name("a file"), photos / "none" / "there", Path("\0")
    for place in places:
        with pytest.raises(FileError, match=r"--work DIR|Check the path"):
            WorkFolder.of(photos, place)
    with pytest.raises(FileError, match="--work DIR"):
        WorkFolder.of(Path("/"))
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(FileError, match=r"permission denied\. .*--work DIR"):
        WorkFolder.of(photos)


def test_one_process_at_a_time(photos: Path) -> None:
    folder = WorkFolder.of(photos)
    script = (
        "import sys; from pathlib import Path; from kedge.serve.work_folder import WorkFolder\n"
        "with WorkFolder(Path(sys.argv[1])).locked(): print('mine', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", script, str(folder.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout
    assert other.stdout.readline() == "mine\n"
    with pytest.raises(FileError, match="another `kedge serve` works in"), folder.locked():
        pass
    other.kill()
    other.communicate()
    with folder.locked():
        pass
    with folder.locked():  # it was given back
        pass


def test_a_lock_that_is_a_link_is_not_followed(photos: Path) -> None:
    folder = WorkFolder.of(photos)
    (folder.path / "lock").symlink_to(photos / "elsewhere")
    with pytest.raises(FileError), folder.locked():
        pass
    assert not (photos / "elsewhere").exists()
