"""Feature folders: the same features in shards, whole or refused, and never a file elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import kedge
from command import run
from feature_sets import K, N, arrays, made, same
from kedge import FeatureSet
from kedge.benchmark.grid import Grid
from kedge.errors import FileError, InputError
from kedge.features import folder as _folder
from kedge.features.folder import FeatureFolder, split, write_folder
from kedge.images.image_set import MANIFEST
from kedge.tensor_files import load_tensors, save_tensors
from tampering import opened


@pytest.mark.parametrize("changes", [{}, {"labels": None}, {"views": None, "paths": None}, {"provenance": None}])
@pytest.mark.parametrize("size", [1, 4, 100])
def test_gathered_is_what_was_split(tmp_path: Path, changes: dict[str, Any], size: int) -> None:
    features = made(**changes)
    folder = split(features, tmp_path / "birds", size)
    assert len(folder) == N
    assert [len(shard) for shard in folder.shards] == [min(size, N - start) for start in range(0, N, size)]
    for found in (folder.gather(), FeatureSet.load(tmp_path / "birds")):
        assert same(found, features)
        assert found.hash == features.hash
        assert found.dataset == "birds"


def test_a_shard_is_a_feature_set_of_some_images(tmp_path: Path) -> None:
    features = made()
    shard = split(features, tmp_path / "birds", 4).shards[1]
    for _ in range(2):  # the second time its content is not hashed again
        assert same(shard.open(), features.take(slice(4, 8)))
        assert shard.open().image_features.dtype == torch.float16


def test_a_shard_is_hashed_once_until_its_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = split(made(), tmp_path / "birds", 4).shards[0]
    hashed: list[bool] = []

    def watched(*args: Any, verified: bool = False) -> Any:
        hashed.append(not verified)
        return load_tensors(*args, verified=verified)

    monkeypatch.setattr("kedge.features.shard.load_tensors", watched)
    shard.open()
    shard.open()
    os.utime(shard.path, ns=(1, 1))
    shard.open()
    assert hashed == [True, False, True]


def test_commands_take_a_folder_for_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    kedge.simulate(60, 4, 16, seed=1).save("f.safetensors")
    assert run("features", "split", "f.safetensors", "f", "--shards", "7").code == 0
    assert len(FeatureFolder.open("f").shards) == 7
    for command in (
        ["features", "info", "{}", "--json"],
        ["adapt", "{}", "--method", "stata"],
        ["plan", "{}", "--scenario", "low", "--tasks", "2"],
    ):
        one, two = (run(*(word.format(name) for word in command)) for name in ("f.safetensors", "f"))
        assert (one.code, two.code) == (0, 0)
        if command[0] != "features":
            assert one.out.replace("f.safetensors", "f") == two.out
    assert '"shards": 7' in run("features", "info", "f", "--json").out
    assert run("features", "convert", "f", "g.safetensors").code == 0
    assert Path("f.safetensors").read_bytes() == Path("g.safetensors").read_bytes()
    records = [
        kedge.run(Grid.of([name], methods=["stata"], scenarios=["low"], tasks=2), tmp_path / name[1:]).records()
        for name in ("f.safetensors", "f")
    ]
    assert records[0][0].features_hash == records[1][0].features_hash
    assert records[0][0].accuracy == records[1][0].accuracy
    mixed = run("adapt", "f", "f.safetensors", "--classes", "a, b")
    assert (mixed.code, "is a feature folder, not an image" in mixed.err) == (2, True)


def test_normalize_scales_the_rows(tmp_path: Path) -> None:
    split(made(), tmp_path / "birds", 4)
    found = FeatureSet.load(tmp_path / "birds", normalize=True)
    made().save(tmp_path / "birds.safetensors")
    assert same(found, FeatureSet.load(tmp_path / "birds.safetensors", normalize=True))
    assert found.image_features.dtype == torch.float32


class Stop(Exception):
    pass


def test_an_interrupted_split_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    features, written = made(), []

    def save(path: Path, tensors: Any) -> str:
        if len(written) == 2:
            raise Stop
        written.append(path.name)
        return saving(path, tensors)

    saving = _folder.save_shard
    monkeypatch.setattr(_folder, "save_shard", save)
    with pytest.raises(Stop):
        split(features, tmp_path / "birds", 2)
    with pytest.raises(FileError, match=r"birds is not a feature folder: it has no manifest\.safetensors"):
        FeatureFolder.open(tmp_path / "birds")
    before = list(written)
    (tmp_path / "birds" / before[1]).write_bytes(b"damaged")
    (tmp_path / "birds" / ".tmpmEMvPH").write_bytes(b"half of a shard")  # safetensors was killed
    written.clear()
    monkeypatch.setattr(_folder, "save_shard", lambda path, tensors: written.append(path.name) or saving(path, tensors))
    assert same(split(features, tmp_path / "birds", 2).gather(), features)
    assert before[0] not in written
    assert before[1] in written
    assert len(written) == 4
    assert set(os.listdir(tmp_path / "birds")) == {*before, *written, MANIFEST}


def test_a_complete_split_is_not_done_again(tmp_path: Path) -> None:
    features = made()
    split(features, tmp_path / "birds", 4)
    before = sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))
    assert same(split(features, tmp_path / "birds", 4).gather(), features)
    for other, size in ((features, 3), (features.take(slice(0, 4)), 4), (made(provenance=None), 4)):
        with pytest.raises(FileError, match=r"is a feature folder already, with other features or shards"):
            split(other, tmp_path / "birds", size)
    assert sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*")) == before


def test_no_shard_of_an_earlier_split_stays(tmp_path: Path) -> None:
    split(made(), tmp_path / "birds", 4)
    (tmp_path / "birds" / MANIFEST).unlink()
    split(made(), tmp_path / "birds", 3)
    assert len(list((tmp_path / "birds").iterdir())) == 4
    assert same(FeatureSet.load(tmp_path / "birds"), made())


def test_parts_must_be_alike(tmp_path: Path) -> None:
    parts = [made(), made(labels=None)]
    with pytest.raises(InputError, match="the part from image 9 on has other arrays"):
        write_folder(tmp_path / "birds", parts, parts[0].head, {})
    with pytest.raises(InputError, match="there are no features"):
        write_folder(tmp_path / "empty", [], parts[0].head, {})


def a_file(path: Path) -> None:
    path.write_text("mine")


def a_folder_with_a_file(path: Path) -> None:
    path.mkdir()
    (path / "mine.jpg").write_text("mine")


def a_feature_folder(path: Path) -> None:
    split(made(), path, 4)


@pytest.mark.parametrize("there", [a_file, a_folder_with_a_file, a_feature_folder])
def test_what_is_there_is_not_overwritten(tmp_path: Path, there: Callable[[Path], None]) -> None:
    there(tmp_path / "birds")
    before = sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))
    with pytest.raises(FileError, match="birds"):
        split(made(), tmp_path / "birds", 3)
    assert sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*")) == before


def resealed(folder: Path, **changes: Any) -> None:
    """The manifest with other entries and a correct hash."""
    tensors, meta = opened(folder / MANIFEST)
    save_tensors(folder / MANIFEST, meta.pop("kind"), meta.pop("version"), tensors, {**meta, **changes})


@pytest.mark.parametrize(
    "name",
    ["../x.safetensors", "/etc/passwd", "a/000000000-000000004.safetensors", "000000000-000000004.safetensors\n"],
)
def test_a_manifest_cannot_name_files_elsewhere(tmp_path: Path, name: str) -> None:
    split(made(), tmp_path / "birds", 4)
    _, meta = opened(tmp_path / "birds" / MANIFEST)
    resealed(tmp_path / "birds", shards=[{**meta["shards"][0], "name": name}])
    with pytest.raises(FileError, match="is not a kedge feature folder"):
        FeatureFolder.open(tmp_path / "birds")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": 3}, "does not have the arrays"),
        ({"images": 5}, "cannot have 5 images"),
        ({"images": 10**17, "name": "000000000-999999999999999999.safetensors"}, "would take"),
        ({"sha256": "0" * 64}, "their hashes differ"),
        ({"name": "000000000-000000005.safetensors"}, "are not in order"),
        ({"name": "000000000-000000003.safetensors", "images": 3}, "no file"),
    ],
)
def test_a_manifest_that_does_not_fit_its_shards_is_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    folder = split(made(), tmp_path / "birds", 4).path
    _, meta = opened(folder / MANIFEST)
    rest = [] if "would take" in message else meta["shards"][1:]
    resealed(folder, shards=[{**meta["shards"][0], **change}, *rest])
    with pytest.raises(FileError, match=message):
        FeatureSet.load(folder)


def test_a_shard_with_other_features_is_refused(tmp_path: Path) -> None:
    """Whole by its own hash, and listed, but its rows have no unit norm."""
    folder = split(made(), tmp_path / "birds", 4)
    shard = folder.shards[1]
    tensors, meta = opened(shard.path)
    tensors["image_features"] *= 2
    sha256 = save_tensors(shard.path, meta.pop("kind"), meta.pop("version"), tensors, meta)
    with pytest.raises(FileError, match="their hashes differ"):
        shard.open()
    _, meta = opened(folder.path / MANIFEST)
    meta["shards"][1]["sha256"] = sha256
    resealed(folder.path, shards=meta["shards"])
    with pytest.raises(
        InputError, match=r"000000004-000000008\.safetensors: image_features needs unit-norm rows; row 0"
    ):
        FeatureSet.load(folder.path)


def test_too_much_to_gather_is_refused_and_can_be_read_in_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = split(made(), tmp_path / "birds", 4)
    monkeypatch.setenv("KEDGE_MAX_BYTES", "1000")
    with pytest.raises(FileError, match=r"birds, all 9 images of it, would take 1\.15 kB of memory"):
        folder.gather()
    assert sum(len(shard.open()) for shard in folder.shards) == N
    assert run("features", "info", folder.path).code == 0


def test_an_example_of_every_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez(
        "f.npz", **{name: np.asarray(value) for name, value in arrays(provenance=None).items() if value is not None}
    )
    assert run("features", "split", "f.npz", "f", "--images-per-shard", "2").code == 0
    assert FeatureFolder.open("f").head.k == K
    both = run("features", "split", "f.npz", "g", "--images-per-shard", "2", "--shards", "2")
    assert (both.code, "were both given" in both.err) == (2, True)
