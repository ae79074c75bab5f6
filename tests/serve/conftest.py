"""What the tests of the page share."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from page_tools import NAMES, Page, page, pictures, quick_encoder

__all__ = ["quick_encoder"]


@pytest.fixture(scope="session")
def encoded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of pictures, and beside it the work folder after the first opening. Copy it before you use it."""
    place = tmp_path_factory.mktemp("page")
    with page(pictures(place / "photos"), classes=NAMES, encoder="tiny"):
        pass
    return place


@pytest.fixture
def photos(encoded: Path, tmp_path: Path, quick_encoder: None) -> Path:
    """A folder of pictures that is encoded already."""
    for name in ("photos", "photos.kedge"):
        shutil.copytree(encoded / name, tmp_path / name)
    return tmp_path / "photos"


@pytest.fixture
def tab(photos: Path) -> Iterator[Page]:
    """The page on these pictures."""
    with page(photos) as found:
        yield found
