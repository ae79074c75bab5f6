"""Pictures for the page: right, made once, safe to delete."""

from __future__ import annotations

import io
import os
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from image_cases import picture
from kedge.errors import FileError
from kedge.images.pixels import open_image
from kedge.images.quiet import without_warnings
from kedge.serve.thumbnails import Thumbnails


@pytest.fixture
def thumbnails(tmp_path: Path) -> Thumbnails:
    (tmp_path / "kept").mkdir()
    return Thumbnails(tmp_path / "kept")


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    picture(640, 400).save(tmp_path / "photo\udcff.jpg", quality=95)
    return tmp_path / "photo\udcff.jpg"


def shown(data: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(data))
    assert image.format == "WEBP"
    return image


def kept(thumbnails: Thumbnails) -> list[Path]:
    return sorted(thumbnails.folder.iterdir())


def fail(*_: object, **__: object) -> None:
    pytest.fail("decoded")


def test_sizes_and_content(thumbnails: Thumbnails, photo: Path, tmp_path: Path) -> None:
    small = shown(thumbnails.small(photo))
    assert small.size == (256, 160)
    grey = np.asarray(open_image(photo).resize(small.size, Image.Resampling.LANCZOS).convert("L"), int)
    assert np.corrcoef(np.asarray(small.convert("L"), int).flat, grey.flat)[0, 1] > 0.97
    assert shown(thumbnails.large(photo)).size == (640, 400)  # never enlarged
    Image.new("RGB", (4000, 1000)).save(tmp_path / "wide.png")
    assert shown(thumbnails.large(tmp_path / "wide.png")).size == (1600, 400)
    assert len(kept(thumbnails)) == 1


def test_a_turned_photo_is_shown_upright(thumbnails: Thumbnails, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (2000, 1000)).save(tmp_path / "turned.jpg", exif=exif)
    assert shown(thumbnails.small(tmp_path / "turned.jpg")).size == (128, 256)


def test_a_large_photo_is_decoded_at_reduced_size(tmp_path: Path) -> None:
    Image.new("RGB", (2400, 1600)).save(tmp_path / "photo.jpg")
    assert open_image(tmp_path / "photo.jpg", enough=512).size == (1200, 800)
    assert open_image(tmp_path / "photo.jpg", enough=200).size == (300, 200)
    assert open_image(tmp_path / "photo.jpg").size == (2400, 1600)


def test_it_is_made_once(thumbnails: Thumbnails, photo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = thumbnails.small(photo)
    monkeypatch.setattr("kedge.serve.thumbnails.open_image", fail)
    assert thumbnails.small(photo) == first
    assert Thumbnails(thumbnails.folder).small(photo) == first


def test_an_image_that_changed_is_drawn_anew(thumbnails: Thumbnails, tmp_path: Path) -> None:
    photo = tmp_path / "photo.bmp"  # of the same size, whatever it shows
    picture(64, 40).save(photo)
    first = thumbnails.small(photo)
    picture(64, 40, seed=1).save(photo)
    os.utime(photo, ns=(0, 0))
    assert thumbnails.small(photo) != first


def test_a_damaged_or_missing_file_is_made_again(thumbnails: Thumbnails, photo: Path) -> None:
    first = thumbnails.small(photo)
    (file,) = kept(thumbnails)
    whole = file.read_bytes()
    for damaged in (b"", whole[:3], whole[:-100], whole[:50] + b"\0" * (len(whole) - 50)):
        file.write_bytes(damaged)
        assert thumbnails.small(photo) == first
        assert file.read_bytes() == whole
    file.unlink()
    assert thumbnails.small(photo) == first


def test_a_folder_that_is_gone_does_not_matter(tmp_path: Path, photo: Path) -> None:
    assert shown(Thumbnails(tmp_path / "gone").small(photo)).size == (256, 160)


def test_the_oldest_go_when_there_are_too_many(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    folder.mkdir()
    files = [tmp_path / f"{number}.png" for number in range(8)]
    size = 0
    for number, file in enumerate(files):
        picture(100, 100, seed=number).save(file)
        if not number:
            Thumbnails(folder).small(file)
            size = next(folder.iterdir()).stat().st_size
            os.utime(next(folder.iterdir()), (1, 1))
            first = next(folder.iterdir())
        Thumbnails(folder, most_bytes=4 * size).small(file)
        assert sum(each.stat().st_size for each in folder.iterdir()) <= 4 * size
    assert len(list(folder.iterdir())) >= 2
    assert not first.exists()


def test_files_of_others_are_never_deleted(tmp_path: Path) -> None:
    """A work folder from elsewhere may have a link to anywhere in the place of its folder of thumbnails."""
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "thesis.pdf").write_bytes(bytes(1000))
    (tmp_path / "thumbnails").symlink_to(tmp_path / "documents")
    picture(100, 100, seed=0).save(tmp_path / "image.png")
    Thumbnails(tmp_path / "thumbnails", most_bytes=1).small(tmp_path / "image.png")
    assert [each.name for each in (tmp_path / "documents").iterdir()] == ["thesis.pdf"]


def test_what_cannot_be_read_is_named(thumbnails: Thumbnails, tmp_path: Path) -> None:
    (tmp_path / "text.jpg").write_text("no image")
    for name in ("text.jpg", "gone.jpg", "a\0b.jpg"):
        for read in (thumbnails.small, thumbnails.large):
            with pytest.raises(FileError):
                read(tmp_path / name)
    assert kept(thumbnails) == []


def test_threads_get_the_same_pictures_and_leave_nothing_behind(thumbnails: Thumbnails, tmp_path: Path) -> None:
    files = []
    for number in range(4):
        files.append(tmp_path / f"{number}.jpg")
        picture(300, 300, seed=number).save(files[-1])
    expected = [Thumbnails(tmp_path / "none").small(file) for file in files]
    wrong: list[str] = []

    def work() -> None:
        for file, right in zip(files, expected, strict=True):
            if thumbnails.small(file) != right:
                wrong.append(file.name)

    before = list(warnings.filters)
    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(kept(thumbnails)) == 4
    assert list(warnings.filters) == before


def test_blocks_without_warnings_may_overlap() -> None:
    before = list(warnings.filters)
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with without_warnings():
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with without_warnings():
        thread.start()
        entered.wait(10)
    with warnings.catch_warnings(record=True) as caught:
        warnings.warn("still hidden: the other block is open", stacklevel=1)
    assert not caught
    leave.set()
    thread.join()
    assert list(warnings.filters) == before
