"""The work of a label folder is continued, used by one process at a time, and never anybody else's files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

import kedge
from command import run
from kedge import LabelFolder, adapt_folder
from kedge.features.folder import FeatureFolder, split
from kedge.features.simulate import simulate
from kedge.files import lock_file
from kedge.labelling import adapt_folder as solving
from kedge.labelling import label_work
from kedge.labelling.label_work import ARRANGED, LOCK, WORK
from kedge.methods.solve.parts import Here, PartLost


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> FeatureFolder:
    return split(simulate(300, 20, d=32, seed=1), tmp_path_factory.mktemp("features") / "f", 70)


def labels_of(found: LabelFolder) -> list[int]:
    return torch.cat([shard["labels"] for shard in found.shards()]).tolist()


def stop(*arguments: Any) -> None:
    raise KeyboardInterrupt


def interrupted(folder: FeatureFolder, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run in two parts that ends before any label is written."""
    with monkeypatch.context() as patched:
        patched.setattr(solving, "save_shard", stop)
        with pytest.raises(KeyboardInterrupt):
            adapt_folder(folder, out, parts=2)


@pytest.mark.parametrize("parts", [None, 2])
def test_an_interrupted_run_goes_on_from_the_arranged_images(
    parts: int | None, folder: FeatureFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In as many parts as it began with. It may have been killed while it wrote a shard."""
    interrupted(folder, tmp_path / "labels", monkeypatch)
    (tmp_path / "labels" / ".tmpmEMvPH").write_bytes(b"half of a shard")
    with monkeypatch.context() as patched:
        patched.setattr(label_work, "arrange", stop)  # it is not done again
        labels = adapt_folder(folder, tmp_path / "labels", parts=parts)
    assert labels.summary["parts"] == 2
    assert labels_of(labels) == labels_of(adapt_folder(folder, tmp_path / "other"))
    assert not [name for name in os.listdir(tmp_path / "labels") if name.startswith(".")]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parts": 3}, r"parts \(2 there, 3 now\)"),
        ({"neighbours": 5}, r"neighbours \(3 there, 5 now\)"),
    ],
    ids=str,
)
def test_another_run_is_not_continued(
    change: dict[str, Any], message: str, folder: FeatureFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(folder, tmp_path / "labels", monkeypatch)
    with pytest.raises(kedge.FileError, match=f"has the beginning of a run that differs in {message}. Name"):
        adapt_folder(folder, tmp_path / "labels", **change)
    assert (tmp_path / "labels" / WORK / ARRANGED).exists()


def test_files_of_others_stay(folder: FeatureFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / "project"
    (project / "work").mkdir(parents=True)
    (project / "work" / "thesis.txt").write_text("mine")
    with pytest.raises(kedge.FileError, match="has other files"):
        adapt_folder(folder, project)
    assert (project / "work" / "thesis.txt").read_text() == "mine"
    interrupted(folder, tmp_path / "labels", monkeypatch)
    (tmp_path / "labels" / "notes.txt").write_text("mine")
    with pytest.raises(kedge.FileError, match="has other files"):
        adapt_folder(folder, tmp_path / "labels")


def test_a_run_that_was_stopped_at_its_very_end(folder: FeatureFolder, tmp_path: Path) -> None:
    done = labels_of(adapt_folder(folder, tmp_path / "labels"))
    (tmp_path / "labels" / WORK).mkdir()
    (tmp_path / "labels" / WORK / "part-00000.rows").write_bytes(b"rows")
    (tmp_path / "labels" / ".tmpmEMvPH").write_bytes(b"half of a shard")
    assert labels_of(adapt_folder(folder, tmp_path / "labels")) == done
    assert not [name for name in os.listdir(tmp_path / "labels") if name.startswith(".")]


@pytest.mark.parametrize(
    ("method", "settings"), [("kedge", {}), ("stata", {"alpha": float("inf")}), ("kedge", {"known": {3: 1}})], ids=str
)
def test_a_complete_job_is_not_done_again(
    method: str, settings: dict[str, Any], folder: FeatureFolder, tmp_path: Path
) -> None:
    done = adapt_folder(folder, tmp_path / "labels", method, **settings)
    before = sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))
    again = adapt_folder(folder, tmp_path / "labels", method, **settings)
    assert labels_of(again) == labels_of(done)
    for other, message in (
        ({"method": "stata", "alpha": 2.0}, "is a label folder already, which differs in (method|settings)"),
        ({"method": method, **settings, "known": {5: 3}}, "differs in known labels\\. Name another"),
        ({"method": method, **settings, "present": [1, 2, 3]}, "differs in classes that can occur\\. Name another"),
    ):
        with pytest.raises(kedge.FileError, match=message):
            adapt_folder(folder, tmp_path / "labels", **other)  # type: ignore[arg-type]
    assert sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*")) == before


def test_a_table_of_labels_that_were_complete(folder: FeatureFolder, tmp_path: Path) -> None:
    words = ["adapt", folder.path, "--label-folder", tmp_path / "labels"]
    assert run(*words).code == 0
    again = run(*words, "--out", tmp_path / "labels.csv")
    assert again.code == 0
    assert f"already done: {tmp_path / 'labels'}" in again.err
    assert len((tmp_path / "labels.csv").read_text().splitlines()) == 301


def test_one_process_at_a_time(folder: FeatureFolder, tmp_path: Path) -> None:
    (tmp_path / "labels" / WORK).mkdir(parents=True)
    lock = lock_file(tmp_path / "labels" / WORK / LOCK)
    assert lock is not None
    with lock, pytest.raises(kedge.FileError, match=r"another process uses .*labels\. Wait until it is done"):
        adapt_folder(folder, tmp_path / "labels")
    assert len(adapt_folder(folder, tmp_path / "labels")) == 300


def test_parts_that_are_lost_while_images_are_arranged(folder: FeatureFolder, tmp_path: Path) -> None:
    losses = [2]

    class Losing(Here):
        def each(self, call: str, *shared: Any, **more: Any) -> list[Any]:
            if call == "settle" and losses[0]:
                losses[0] -= 1
                raise PartLost("gone")
            return super().each(call, *shared, **more)

    labels = adapt_folder(
        folder, tmp_path / "labels", engine=lambda make, places: Losing([make(*place) for place in places])
    )
    assert losses == [0]
    assert len(labels) == 300
    losses[0] = 3
    with pytest.raises(PartLost):
        adapt_folder(folder, tmp_path / "more", engine=lambda make, places: Losing([make(*place) for place in places]))
    assert not (tmp_path / "more").exists()  # nothing to go on from


def test_memory_is_checked_before_work_begins(
    folder: FeatureFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEDGE_MAX_BYTES", "100000")
    with pytest.raises(kedge.InputError, match=r"the solve of 300 images on one machine would take .* of memory"):
        adapt_folder(folder, tmp_path / "labels")
    assert not (tmp_path / "labels").exists()


def test_settings_that_need_all_images_are_refused_before_work_begins(folder: FeatureFolder, tmp_path: Path) -> None:
    with pytest.raises(kedge.SettingError, match="by lists of candidates has no tol"):
        adapt_folder(folder, tmp_path / "labels", "stata", tol=0.1)
    assert not (tmp_path / "labels").exists()


def test_a_name_that_no_system_takes(folder: FeatureFolder, tmp_path: Path) -> None:
    with pytest.raises(kedge.FileError, match="cannot"):
        adapt_folder(folder, tmp_path / ("long" * 100))
