"""The demo of the page."""

from __future__ import annotations

from pathlib import Path

from kedge.encoders.tiny import bundled_classes, unknown_names
from kedge.images.folders import in_folder
from kedge.serve.demo_set import demo_images


def test_one_of_the_classes_shown_is_not_named(tmp_path: Path) -> None:
    folder, names = demo_images(tmp_path / "images")
    images = in_folder(folder)
    assert len(images) == 400
    assert len(images.class_names) == 20
    assert len(names) == len(set(names)) == 177
    assert len(set(images.class_names) - set(names)) == 1
    assert unknown_names(names) == []
    assert len(bundled_classes()) == 178
    assert demo_images(folder) == (folder, names)  # again: nothing more
    assert len(in_folder(folder)) == 400


def test_another_seed_draws_other_classes(tmp_path: Path) -> None:
    assert demo_images(tmp_path / "a")[1] != demo_images(tmp_path / "b", seed=1)[1]
