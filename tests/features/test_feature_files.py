"""Feature files: whole, or refused; and npz files that others made."""

from __future__ import annotations

import functools
import io
import json
import os
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import kedge
from feature_sets import D, N, arrays, made, same
from kedge import FeatureSet
from kedge.tensor_files import save_tensors


def test_saved_and_loaded_is_the_same(tmp_path: Path) -> None:
    features = made()
    written = features.save(tmp_path / "f.safetensors")
    loaded = FeatureSet.load(tmp_path / "f.safetensors")
    assert same(loaded, features)
    assert written == features.hash == loaded.hash
    assert [p.name for p in tmp_path.iterdir()] == ["f.safetensors"]  # no temporary file is left
    assert not same(loaded, made(labels=None))


@pytest.mark.parametrize("without", ["labels", "views", "paths", "provenance"])
def test_what_is_not_there_stays_away(tmp_path: Path, without: str) -> None:
    features = made(**{without: None})
    features.save(tmp_path / "f.safetensors")
    assert same(FeatureSet.load(tmp_path / "f.safetensors"), features)


def test_arrays_that_share_memory_are_saved(tmp_path: Path) -> None:
    """Images whose only view is the image itself."""
    views = torch.from_numpy(arrays()["views"])[:, :1].contiguous()
    features = made(image_features=views[:, 0], views=views)
    features.save(tmp_path / "f.safetensors")
    assert same(FeatureSet.load(tmp_path / "f.safetensors"), features)


def test_one_empty_path(tmp_path: Path) -> None:
    features = made(paths=[""] * N).take([0])
    features.save(tmp_path / "f.safetensors")
    assert FeatureSet.load(tmp_path / "f.safetensors").paths == ("",)


CHANGES: dict[str, Any] = {
    "image_features": arrays()["image_features"][::-1],
    "text_features": arrays()["text_features"][::-1],
    "class_names": ["grass", "brick", "käse", "a  b"],
    "labels": np.zeros(N, dtype=int),
    "views": None,
    "paths": [str(i) for i in range(N)],
    "logit_scale": 51.0,
    "provenance": {"encoder": "another"},
}


@pytest.mark.parametrize("change", CHANGES)
def test_hash_sees_every_change(change: str) -> None:
    assert made(**{change: CHANGES[change]}).hash != made().hash


def test_hash_is_of_the_content() -> None:
    assert made().hash == made().hash
    assert made(image_features=np.asfortranarray(arrays()["image_features"])).hash == made().hash
    assert made(image_features=arrays()["image_features"].astype(np.float32)).hash != made().hash
    assert made().take(slice(0, N)).hash == made().hash
    assert made().take([0]).hash != made().hash


def test_loading_maps_the_file_and_slices_keep_the_map(tmp_path: Path) -> None:
    made().save(tmp_path / "mapped.safetensors")
    loaded = FeatureSet.load(tmp_path / "mapped.safetensors")
    part = loaded.take(slice(4, 8))
    assert part.image_features.data_ptr() == loaded.image_features.data_ptr() + 4 * D * 2
    if sys.platform == "linux":
        assert "mapped.safetensors" in Path("/proc/self/maps").read_text()


def test_saving_again_replaces_the_file_and_spares_who_has_it_open(tmp_path: Path) -> None:
    path = tmp_path / "f.safetensors"
    made().save(path)
    first = FeatureSet.load(path)
    made(labels=None).save(path)
    assert FeatureSet.load(path).labels is None
    assert same(first, made())


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f.safetensors"
    made().save(path)

    def full_disk(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("kedge.tensor_files.save_file", full_disk)
    with pytest.raises(kedge.FileError, match="No space left on device"):
        made(labels=None).save(path)
    assert same(FeatureSet.load(path), made())
    assert [p.name for p in tmp_path.iterdir()] == ["f.safetensors"]


def test_places_that_can_not_be_written(tmp_path: Path) -> None:
    with pytest.raises(kedge.FileError, match="is a folder"):
        made().save(tmp_path)
    with pytest.raises(kedge.FileError, match="Create it first"):
        made().save(tmp_path / "nowhere" / "f.safetensors")


def test_truncated_file_is_refused(tmp_path: Path) -> None:
    made().save(tmp_path / "whole.safetensors")
    content = (tmp_path / "whole.safetensors").read_bytes()
    for length in (0, 1, 8, 100, len(content) // 2, len(content) - 1):
        (tmp_path / "part.safetensors").write_bytes(content[:length])
        with pytest.raises(kedge.FileError, match="Make it again"):
            FeatureSet.load(tmp_path / "part.safetensors")


def test_every_changed_byte_is_noticed(tmp_path: Path) -> None:
    made(views=None).save(tmp_path / "whole.safetensors")
    content = (tmp_path / "whole.safetensors").read_bytes()
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 0x10
        (tmp_path / "damaged.safetensors").write_bytes(damaged)
        with pytest.raises(kedge.KedgeError):
            FeatureSet.load(tmp_path / "damaged.safetensors")


def tensors_of(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    with safe_open(path, framework="pt") as file:
        names = file.keys()
        return {name: file.get_tensor(name) for name in names}, json.loads(file.metadata()["kedge"])


def test_other_kinds_of_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "f.safetensors"
    made().save(path)
    tensors, meta = tensors_of(path)
    save_file(tensors, path)
    with pytest.raises(kedge.FileError, match="no kedge metadata"):
        FeatureSet.load(path)
    save_file(tensors, path, metadata={"kedge": json.dumps({**meta, "version": 99})})
    with pytest.raises(kedge.FileError, match="format 99; this kedge reads format 1"):
        FeatureSet.load(path)
    kedge.Stream(arrays()["text_features"], "zero-shot").save(path)
    with pytest.raises(kedge.FileError, match="found a kedge stream file"):
        FeatureSet.load(path)
    path.write_text("image,label\n")
    with pytest.raises(kedge.FileError, match="not a readable safetensors file"):
        FeatureSet.load(path)


def test_files_of_the_right_kind_that_lack_something_are_refused(tmp_path: Path) -> None:
    """Whole by their own hash, but not written by `FeatureSet.save`."""
    path = tmp_path / "f.safetensors"
    made().save(path)
    tensors, meta = tensors_of(path)
    fields = {name: meta[name] for name in ("logit_scale", "class_names", "provenance")}
    save_tensors(path, "features", 1, {"image_features": tensors["image_features"]}, fields)
    with pytest.raises(kedge.FileError, match="no array 'text_features'"):
        FeatureSet.load(path)
    for missing in fields:
        save_tensors(path, "features", 1, tensors, {k: v for k, v in fields.items() if k != missing})
        with pytest.raises(kedge.FileError, match=missing):
            FeatureSet.load(path)
    save_tensors(path, "features", 1, {**tensors, "labels": torch.full((N,), 77)}, fields)
    with pytest.raises(kedge.InputError, match=r"f\.safetensors: labels must be from 0 to 3"):
        FeatureSet.load(path)


# npz


def npz(path: Path, **content: Any) -> Path:
    plain = {name: np.asarray(value) for name, value in content.items() if value is not None}
    np.savez(path, **plain)
    return path


def npz_content(**changes: Any) -> dict[str, Any]:
    content = arrays(**changes)
    return {
        **{k: v for k, v in content.items() if k != "provenance"},
        "meta": json.dumps(content["provenance"]),
    }


def test_npz_import(tmp_path: Path) -> None:
    path = npz(tmp_path / "f.npz", **npz_content(), unknown=np.zeros(3))
    loaded = FeatureSet.load(path)
    expected = made(provenance={"source": "f.npz", **arrays()["provenance"]})
    assert same(loaded, expected)
    assert loaded.hash == expected.hash
    assert FeatureSet.from_npz(path, logit_scale=20.0).head.logit_scale == 20.0


def test_npz_with_the_least(tmp_path: Path) -> None:
    given = arrays()
    loaded = FeatureSet.load(npz(tmp_path / "f.npz", **{k: given[k] for k in ("image_features", "text_features")}))
    assert loaded.head.logit_scale == 100.0
    assert (loaded.labels, loaded.views, loaded.paths) == (None, None, None)
    assert loaded.provenance == {"source": "f.npz"}
    noted = FeatureSet.load(npz(tmp_path / "g.npz", **npz_content() | {"meta": "just a note"}))
    assert noted.provenance == {"source": "g.npz", "meta": "just a note"}


def pickled(path: Path) -> None:
    names = np.array(["a", None, "b", "c"], dtype=object)
    np.savez(path, **{**npz_content(), "class_names": names})


def single_array(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.zeros((3, 3)))


def truncated(path: Path) -> None:
    npz(path, **npz_content())
    path.write_bytes(path.read_bytes()[:-50])


def damaged(path: Path) -> None:
    npz(path, **npz_content())
    content = bytearray(path.read_bytes())
    content[200:260] = bytes(60)
    path.write_bytes(content)


BAD_NPZ: list[tuple[Callable[[Path], Any], str]] = [
    (pickled, "pickled objects"),
    (single_array, "not an npz"),
    (truncated, "npz file .*damaged"),
    (damaged, "npz"),
    (lambda path: path.write_bytes(b""), "is empty"),
    (lambda path: path.write_text("hello"), "npz|pickled"),
    (lambda path: npz(path, **npz_content(text_features=None)), "no array 'text_features'"),
    (lambda path: npz(path, image_feature=np.zeros(3)), "'image_feature'"),
    (lambda path: npz(path, **npz_content(logit_scale=[1.0, 2.0])), "logit_scale"),
    (lambda path: npz(path, **npz_content(labels=[9] * N)), "labels must be from 0 to 3"),
]


@pytest.mark.parametrize(("make", "message"), BAD_NPZ)
def test_bad_npz(tmp_path: Path, make: Callable[[Path], Any], message: str) -> None:
    make(tmp_path / "f.npz")
    with pytest.raises(kedge.KedgeError, match=message) as caught:
        FeatureSet.load(tmp_path / "f.npz")
    assert "f.npz" in str(caught.value)


def test_missing_files(tmp_path: Path) -> None:
    for path in (tmp_path / "no.npz", tmp_path / "no.safetensors"):
        with pytest.raises(kedge.FileError, match="no file"):
            FeatureSet.load(path)
    with pytest.raises(kedge.FileError, match="is a folder"):
        FeatureSet.load(tmp_path)


def npy(dtype: str, shape: tuple[int, ...], content: bytes = b"") -> bytes:
    """An .npy file with this header and these bytes."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue() + content


BOMBS = {  # large when unpacked; or only said to be
    "zeros": ("labels", npy("<f4", (1 << 12, 1 << 10), bytes(1 << 24))),
    "wide strings": ("class_names", npy("<U1048576", (4,), bytes(1 << 24))),
    "claimed": ("labels", npy("<f4", (10**9, 10**9), bytes(100))),
    "claimed wide": ("paths", npy("|S1000000000", (10**9,), bytes(100))),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_npz_bombs_are_refused_before_they_are_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bomb: str
) -> None:
    name, array = BOMBS[bomb]
    path = npz(tmp_path / "f.npz", **{key: value for key, value in npz_content().items() if key != name})
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as file:
        file.writestr(f"{name}.npy", array)
    assert path.stat().st_size < 1 << 16
    monkeypatch.setenv("KEDGE_MAX_BYTES", str(1 << 23))
    with pytest.raises(kedge.FileError, match=r"f\.npz.* (would take|claims)"):
        FeatureSet.load(path)


def test_a_memory_mapped_file_is_not_refused_for_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made().save(tmp_path / "f.safetensors")
    monkeypatch.setenv("KEDGE_MAX_BYTES", "100")
    assert same(FeatureSet.load(tmp_path / "f.safetensors"), made())


def test_shapes_that_a_header_only_claims_take_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "f.safetensors"
    made().save(path)
    content = path.read_bytes()
    claimed = content.replace(b"[9,16]", b"[9999999999999,16]")
    size = int.from_bytes(content[:8], "little") + len(claimed) - len(content)
    path.write_bytes(size.to_bytes(8, "little") + claimed[8:])
    with pytest.raises(kedge.FileError, match="not a readable safetensors file"):
        FeatureSet.load(path)


# Names


def test_file_names_that_are_not_utf8_are_kept(tmp_path: Path) -> None:
    """In Python such bytes are lone surrogates."""
    name = os.fsdecode(b"\xff.jpg")
    about = {"root": f"/{name}", "dataset": name, "skipped": [{"path": name, "reason": "it is empty"}]}
    features = made(paths=[f"{i}{name}" for i in range(N)], provenance=about)
    features.save(tmp_path / "f.safetensors")
    loaded = FeatureSet.load(tmp_path / "f.safetensors")
    assert same(loaded, features)
    assert loaded.hash == features.hash
    assert loaded.dataset == "\\udcff.jpg"  # in tables and records


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"class_names": ["a\0b", "b", "c", "d"]}, r"class_names has 'a\\x00b' in row 0, with a NUL"),
        ({"class_names": ["a", "\udcff", "c", "d"]}, r"class_names has '\\udcff' in row 1, which is not valid Unicode"),
        ({"class_names": "abcd"}, "class_names must be a list of text; got 'abcd'"),
        ({"class_names": 3}, "class_names must be a list of text"),
        ({"class_names": np.array([b"a", b"b", b"c", b"d"])}, "class_names must be a list of text; it has .*b'a'"),
        ({"paths": ["\0"] * N}, "paths has .* NUL"),
        ({"paths": ["\ud800"] * N}, "paths has .* not valid Unicode"),
        ({"paths": np.array("x")}, "paths must be a list of text"),
        ({"provenance": {"accuracy": float("nan")}}, "provenance cannot be kept in a file: the number nan"),
        ({"provenance": {"n": 1 << 70}}, "more than 64 bits"),
        ({"provenance": {3: 4}}, "the key 3 is not text"),
        ({"provenance": {"encoder": 3}}, "Expected `str`, got `int`, at `encoder`"),
        ({"provenance": {"skipped": [{"path": "x"}]}}, "missing required field `reason`"),
        ({"provenance": {"x": functools.reduce(lambda inner, _: [inner], range(99), 0)}}, "nested too deeply"),
    ],
)
def test_what_a_file_cannot_keep_is_refused_before_it_is_written(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(kedge.InputError, match=message):
        made(**changes)


def test_npz_with_deep_or_infinite_meta_is_refused(tmp_path: Path) -> None:
    for meta in ("[" * 100_000, '{"x": 1e999}', '{"x": NaN}'):
        path = npz(tmp_path / "f.npz", **npz_content() | {"meta": meta})
        with pytest.raises(kedge.FileError, match=r"f\.npz: meta is "):
            FeatureSet.load(path)


def test_a_path_that_safetensors_cannot_open_is_named(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"\xff.safetensors")
    with pytest.raises(kedge.FileError, match="only paths that are UTF-8"):
        made().save(path)
    path.write_bytes(b"x")
    with pytest.raises(kedge.FileError, match="only paths that are UTF-8"):
        FeatureSet.load(path)
