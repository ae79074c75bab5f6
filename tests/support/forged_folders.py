"""Forged folders, and what kedge does with them; see `forging`."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import torch
from pyarrow import parquet
from safetensors import safe_open
from torch import Tensor

from feature_sets import made
from forged_files import GOOD, bomb, scratch, use_features
from kedge import FeatureSet
from kedge.features import shard_maker
from kedge.features.embeddings import import_embeddings
from kedge.features.extract import extract
from kedge.features.folder import FeatureFolder, split
from kedge.images.image_set import MANIFEST
from kedge.labelling.adapt_folder import adapt_folder, open_rows
from kedge.labelling.label_folder import MANIFEST as LABEL_MANIFEST
from kedge.labelling.label_folder import LabelFolder
from kedge.labelling.label_work import WORK
from kedge.methods.solve.parts import Here, here
from pictures import Tower, encoder, save_pictures
from tampering import Random, as_json, changed, changed_tensors, damaged, opened, pick, sealed, tensor_file


class _Stop(Exception):
    pass


class _Stopping(Tower):
    """Fails at the fourth batch."""

    calls = 0

    def forward(self, pixels: Tensor) -> Tensor:
        self.calls += 1
        if self.calls > 3:
            raise _Stop
        return super().forward(pixels)


@cache
def _good_folders() -> list[dict[str, bytes]]:
    """The files of feature folders of three shards."""
    found = []
    for number, save_good in enumerate(GOOD["features"]()):
        save_good(scratch() / "whole.safetensors")
        made_here = split(FeatureSet.load(scratch() / "whole.safetensors"), scratch() / f"folder{number}", 4)
        found.append({path.name: path.read_bytes() for path in made_here.path.iterdir()})
    return found


@cache
def _good_label_folders() -> list[dict[str, bytes]]:
    """The files of their label folders."""
    found = []
    for number, files in enumerate(_good_folders()):
        place = scratch() / f"with-labels{number}"
        place.mkdir()
        for name, content in files.items():
            (place / name).write_bytes(content)
        labels = adapt_folder(place, place.with_name(f"labels{number}"))
        found.append({path.name: path.read_bytes() for path in labels.path.iterdir()})
    return found


def _forge_folder(random: Random, folder: Path) -> Path:
    return _forged_folder(random, folder / "features", MANIFEST, _good_folders())


def _forge_labels(random: Random, folder: Path) -> Path:
    return _forged_folder(random, folder / "labels", LABEL_MANIFEST, _good_label_folders())


def _forged_folder(random: Random, path: Path, manifest_name: str, good: list[dict[str, bytes]]) -> Path:
    """A manifest or a shard is changed; the manifest may list the changed shard, as its author would have it."""
    path.mkdir(exist_ok=True)
    for there in path.iterdir():
        there.unlink()
    for name, content in pick(good, random).items():
        (path / name).write_bytes(content)
    manifest, shard = path / manifest_name, pick(sorted(path.glob("0*.safetensors")), random)
    tensors, meta = opened(manifest)
    change = random.random()
    if change < 0.5:
        manifest.write_bytes(tensor_file(tensors, meta, random))
    elif change < 0.8:
        shard.write_bytes(tensor_file(*opened(shard), random))
        if random.random() < 0.8:
            with contextlib.suppress(Exception):  # of a file that is no tensor file
                with safe_open(shard, framework="pt") as file:
                    sha256 = json.loads(file.metadata()["kedge"])["sha256"]
                listed = next(entry for entry in meta["shards"] if entry["name"] == shard.name)
                listed["sha256"] = sha256
                manifest.write_bytes(sealed(tensors, meta))
    elif change < 0.9:
        elsewhere = ["../0-4.safetensors", "/etc/passwd", "000000000-000000004.safetensors\n", "a/../b", "lock"]
        meta["shards"][0]["name"] = pick(elsewhere, random)
        manifest.write_bytes(sealed(tensors, meta))
    else:
        shard.rename(path / pick(["000000020-000000024.safetensors", "0-0.safetensors", ".x"], random))
    return path


@cache
def _good_arranged() -> list[dict[str, bytes]]:
    """The work folders of solves in one and in two parts that were stopped when the images were arranged."""
    found = []
    for parts in (1, 2):
        out = scratch() / f"arranged{parts}"
        with contextlib.suppress(_Stop):
            adapt_folder(_features_to_label(), out, parts=parts, engine=_stopping)
        found.append({path.name: path.read_bytes() for path in (out / WORK).iterdir()})
    return found


def _features_to_label() -> Path:
    _good_label_folders()
    return scratch() / "with-labels0"


def _stopping(make: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> Here:
    if make is open_rows:
        raise _Stop
    return here(make, arguments)


def _forge_arranged(random: Random, folder: Path) -> Path:
    """The features that were to be labelled are beside it, in `to-label`."""
    path = folder / "arranged"
    for place in (path, folder / "to-label"):
        shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(_features_to_label(), folder / "to-label")
    (path / WORK).mkdir(parents=True)
    for name, content in pick(_good_arranged(), random).items():
        (path / WORK / name).write_bytes(content)
    changes = int(random.integers(10))
    if changes < 7:
        file = pick(sorted((path / WORK).glob("*.safetensors")), random)
        file.write_bytes(tensor_file(*opened(file), random))
        return path
    rows = pick(sorted((path / WORK).glob("*.rows")), random)
    if changes == 7:
        rows.unlink()
    elif changes == 8:
        rows.write_bytes(damaged(rows.read_bytes(), random))
    else:
        numbers = np.fromfile(rows, np.float32)
        numbers[random.integers(len(numbers))] = pick([float("nan"), float("inf"), 1e30, -3.0], random)
        numbers.tofile(rows)
    return path


@cache
def _good_embeddings() -> dict[str, Any]:
    """By name below the folder: arrays, and columns of names."""
    x = np.asarray(made().image_features, np.float32)
    halves = np.array_split(x.astype(np.float16), 2)
    names = [[f"{number}/{i}.jpg" for i in range(len(half))] for number, half in enumerate(halves)]
    arrays = {f"img_emb/img_emb_{number}.npy": half for number, half in enumerate(halves)}
    return {
        **arrays,
        **{f"metadata/metadata_{number}.parquet": {"image_path": each} for number, each in enumerate(names)},
    }


def _forge_embeddings(random: Random, folder: Path) -> Path:
    """The prototypes are beside it, in `prototypes.safetensors`."""
    path = folder / "embeddings"
    shutil.rmtree(path, ignore_errors=True)
    made().save(folder / "prototypes.safetensors")
    content = _good_embeddings()
    forged = pick(sorted(content), random)
    change = random.random()
    for name, value in content.items():
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(value, dict):
            columns = _odd_columns(value, random) if name == forged and change < 0.6 else value
            parquet.write_table(pyarrow.table(columns), file)
        else:
            x = torch.from_numpy(value)
            x = changed_tensors({"x": x}, random).get("x", x) if name == forged and change < 0.6 else x
            np.save(file, (x.float() if x.dtype == torch.bfloat16 else x).numpy())
    file = path / forged
    if change >= 0.9:
        file.rename(file.with_name(pick(["img_emb_00.npy", "img_emb_7.npy", "metadata_9.parquet", "x.npy"], random)))
    elif change >= 0.8 and file.suffix == ".npy":
        file.write_bytes(bomb(random))
    elif change >= 0.6:
        file.write_bytes(damaged(file.read_bytes(), random))
    return path


def _odd_columns(columns: dict[str, Any], random: Random) -> dict[str, Any]:
    """A table with one column changed."""
    name = pick(sorted(columns), random)
    n = len(columns[name])
    texts = [None, "x", "../../etc/passwd", "/etc/passwd", "\x1b[31m\u202e", "a\0b", ""]
    values = [*texts, 1.5, b"\xff\0", ["a"], {"bytes": b"x"}, 2**63 - 1, -1]
    column = [pick(values, random)] * n
    if random.random() < 0.2:
        return {pick(["x", "key", "image", "label"], random): columns[name]}
    return {**columns, name: column}


@cache
def _good_table() -> dict[str, Any]:
    """Encoded pictures and their labels."""
    pictures = sorted(save_pictures(scratch() / "encoded", each=2).rglob("*.png"))
    return {"image": [path.read_bytes() for path in pictures], "label": [path.parent.name for path in pictures]}


def _forge_table(random: Random, folder: Path) -> Path:
    path = folder / "images.parquet"
    columns, change = _good_table(), random.random()
    if change < 0.5:
        columns = _odd_columns(columns, random)
    elif change < 0.7:
        columns = {**columns, "image": [damaged(each, random) for each in columns["image"]]}
    parquet.write_table(pyarrow.table(columns), path, row_group_size=pick([1, 4, 100], random))
    if change >= 0.7:
        path.write_bytes(damaged(path.read_bytes(), random))
    return path


@cache
def _good_parts() -> dict[str, bytes]:
    """The files of an extraction that was stopped after three shards of four images."""
    out, rows = scratch() / "f.safetensors", shard_maker.SHARD_ROWS
    images = save_pictures(scratch() / "images", each=6)
    shard_maker.SHARD_ROWS = 1
    try:
        extract(
            images, encoder=dataclasses.replace(encoder(), visual=_Stopping().eval()), out=out, batch_size=4, workers=0
        )
    except _Stop:
        pass
    finally:
        shard_maker.SHARD_ROWS = rows
    return {path.name: path.read_bytes() for path in sorted(Path(f"{out}.parts").iterdir())}


def _forge_parts(random: Random, folder: Path) -> Path:
    parts = folder / "f.safetensors.parts"
    parts.mkdir(exist_ok=True)
    for path in parts.iterdir():
        path.unlink()
    for name, content in _good_parts().items():
        (parts / name).write_bytes(content)
    shard = pick(sorted(parts.glob("*.safetensors")), random)
    change = random.random()
    if change < 0.6:
        shard.write_bytes(tensor_file(*opened(shard), random))
    elif change < 0.75:
        job = parts / "job.json"
        text = as_json(changed(json.loads(job.read_text()), random)).encode()
        job.write_bytes(damaged(text, random) if random.random() < 0.3 else text)
    elif change < 0.85:
        shard.rename(parts / pick(["000000000-000000012.safetensors", "0-0.safetensors", "1-x.safetensors"], random))
    else:
        (parts / pick(["features.joined", ".kedge-x.tmp", "9-99.safetensors", "lock"], random)).write_bytes(b"x")
    return parts


FORGERS: dict[str, Callable[[Random, Path], Path]] = {
    "folder": _forge_folder,
    "labels": _forge_labels,
    "parts": _forge_parts,
    "arranged": _forge_arranged,
    "embeddings": _forge_embeddings,
    "table": _forge_table,
}


def _use_folder(path: Path) -> None:
    folder = FeatureFolder.open(path)
    repr(folder)
    assert all(shard.path.parent == path.absolute() for shard in folder.shards)
    gathered = folder.gather()
    assert len(gathered) == len(folder) == sum(len(shard.open()) for shard in folder.shards)
    use_features(path)


def _use_labels(path: Path) -> None:
    labels = LabelFolder.open(path)
    repr(labels)
    assert len(list(labels.rows())) == len(labels)
    labels.write(path.with_name("labels.csv"))


def _use_parts(path: Path) -> None:
    out = path.with_suffix("")
    out.unlink(missing_ok=True)
    features = extract(scratch() / "images", encoder=encoder(), out=out, batch_size=4, workers=0)
    assert len(features) == 18
    assert not path.exists()


def _use_arranged(path: Path) -> None:
    shutil.copytree(path, whole := path.with_name("whole"), dirs_exist_ok=True)
    parts = len(list((path / WORK).glob("*.rows"))) or 1
    try:
        labels = adapt_folder(path.with_name("to-label"), whole, parts=parts)
        assert len(list(labels.rows())) == len(labels)
    finally:
        shutil.rmtree(whole)


def _use_embeddings(path: Path) -> None:
    head = FeatureSet.load(path.with_name("prototypes.safetensors")).head
    target = path.with_name("imported")
    shutil.rmtree(target, ignore_errors=True)
    folder = import_embeddings(path, target, head)
    assert len(folder.gather()) == len(folder)
    _use_folder(target)


def _use_table(path: Path) -> None:
    out = path.with_suffix(".safetensors")
    out.unlink(missing_ok=True)
    features = extract(path, "red, green, blue", encoder(), out, workers=0)
    assert bool(features.image_features.isfinite().all())


USES: dict[str, Callable[[Path], None]] = {
    "folder": _use_folder,
    "labels": _use_labels,
    "parts": _use_parts,
    "arranged": _use_arranged,
    "embeddings": _use_embeddings,
    "table": _use_table,
}
