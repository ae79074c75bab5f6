"""Writing that fails: one line, no half-written file, and what was done is continued."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import kedge
from cases import simulated
from kedge import FeatureSet, Stream
from kedge.benchmark.plan import draw
from kedge.benchmark.plan_view import draw_plan
from kedge.benchmark.record import Record
from kedge.errors import FileError
from kedge.features import shard_maker
from kedge.features.extract import done_before, extract
from kedge.features.unfinished import Unfinished
from kedge.files import check_writable, written_by_rename
from kedge.labelling.contact_sheet import contact_sheet
from kedge.labelling.predictions import Predictions
from kedge.labelling.sorting import sort_into
from kedge.report import write_report
from kedge.tensor_files import save_tensors
from pictures import encoder, save_pictures

resource = pytest.importorskip("resource", reason="this system has no limits on file sizes")

LABELS = np.arange(2000) % 5


@contextlib.contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file may grow beyond so many bytes, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture(scope="module")
def predictions(tmp_path_factory: pytest.TempPathFactory) -> Predictions:
    folder = tmp_path_factory.mktemp("sheet")
    features = extract(save_pictures(folder / "images"), encoder=encoder(), out=folder / "f.safetensors", workers=0)
    return Predictions(features, kedge.adapt(features, method="zero-shot"))


def features() -> FeatureSet:
    x, t = simulated(500, 4)
    return FeatureSet.from_arrays(x.float(), t.float())


WRITERS: dict[str, Callable[[Path], Any]] = {
    "features.safetensors": lambda path: features().save(path),
    "stream.safetensors": lambda path: Stream(simulated(500, 400)[1]).save(path),
    "plan.safetensors": lambda path: draw("all", LABELS).save(path),
    "plan.png": lambda path: draw_plan(draw("very-low", LABELS, tasks=50), LABELS, path, "birds"),
    "record.json": lambda path: Record("stata", {}, "d", "e", "low", 0, 8, error="x" * 5000).save(path),
    "report.html": lambda path: write_report([Record("stata", {}, "d", "e", "low", 0, 8, error="x")], path),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_write_that_fails_is_one_line(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / name)
    (tmp_path / name).unlink()
    with largest_file(1000), pytest.raises(FileError, match=rf"cannot write .*{name}: .*too large") as caught:
        WRITERS[name](tmp_path / name)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / name).exists()
    assert list(tmp_path.glob(".kedge-*")) == []


@pytest.mark.parametrize("name", ["labels.csv", "labels.json", "labels.parquet"])
def test_predictions_that_cannot_be_written(predictions: Predictions, tmp_path: Path, name: str) -> None:
    with largest_file(100), pytest.raises(FileError, match=f"cannot write .*{name}"):
        predictions.write(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_pictures_that_cannot_be_written_or_copied(predictions: Predictions, tmp_path: Path) -> None:
    with largest_file(100), pytest.raises(FileError, match=r"cannot write .*sheet\.png"):
        contact_sheet(predictions, tmp_path / "sheet.png", "title")
    with largest_file(100), pytest.raises(FileError, match="sorted"):
        sort_into(predictions, tmp_path / "sorted")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("size", [200, 1500, 8_000])
def test_an_extraction_continues_when_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """At 200 bytes the job is not written, at 1,500 no shard, at 8,000 the joined file has no room."""
    images = save_pictures(tmp_path / "images", each=4)
    monkeypatch.setattr(shard_maker, "SHARD_ROWS", 1)
    options: dict[str, Any] = {"encoder": encoder(), "views": 64, "batch_size": 128, "workers": 0}
    whole = extract(images, out=tmp_path / "whole.safetensors", **options)
    out = tmp_path / "f.safetensors"
    with largest_file(size), pytest.raises(FileError, match=r"cannot write .*too large"):
        extract(images, out=out, **options)
    assert done_before(out) == (12 if size == 8_000 else 0)
    assert not list(tmp_path.rglob("*.joined"))
    assert extract(images, out=out, **options).hash == whole.hash


def test_space_is_reserved_before_it_is_mapped(tmp_path: Path) -> None:
    """A file with holes would end the process (SIGBUS) where the disk is full."""
    parts = Unfinished(tmp_path / "f.safetensors.parts", {})
    parts.folder.mkdir()
    mapped = parts._map("features", (1000, 100))
    status = (parts.folder / "features.joined").stat()
    assert status.st_size == mapped.nbytes == 400_000
    assert status.st_blocks * 512 >= 400_000
    assert torch.equal(mapped, torch.zeros(1000, 100))


@pytest.mark.parametrize("device", ["/dev/full", "/dev/null"])
def test_devices_are_not_replaced(device: str) -> None:
    if not Path(device).exists():
        pytest.skip(f"no {device} here")
    with pytest.raises(FileError, match="it is a device or a pipe"):
        check_writable(device)


def test_a_temporary_file_of_a_killed_run_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / ".kedge-abc.tmp").write_text("left over")
    with written_by_rename(tmp_path / "f") as temporary:
        temporary.write_text("done")
    assert (tmp_path / "f").read_text() == "done"


def test_files_have_the_usual_permissions_and_nobody_touches_the_umask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To read the umask is to set it, for all threads: two at once can leave it at 0, and later files open to all."""
    monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("it was set"))
    (tmp_path / "plain").touch()
    with written_by_rename(tmp_path / "ours") as temporary:
        temporary.write_text("done")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode
    assert (tmp_path / "ours").read_text() == "done"
    save_tensors(tmp_path / "tensors", "kind", 1, {"x": torch.zeros(3)}, {})
    assert (tmp_path / "tensors").stat().st_mode == (tmp_path / "plain").stat().st_mode
