"""Bad input, as people make it: one line that says what, got and fix; exit code 2; nothing left behind.

The text of each case is what its one line must match. The same mistakes through Python are at the end.
"""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

import kedge
from command import npz, run, small, unit
from kedge.labelling.exports.kinds import check_output

X, T, Y = small()["image_features"], small()["text_features"], small()["labels"]
T8 = unit(T[:, :8])
Make = Callable[[Path], Path]


def feature_file(folder: Path) -> Path:
    """A good one, as safetensors."""
    file = folder / "features.safetensors"
    kedge.FeatureSet.load(npz(folder)).save(file)
    (folder / "features.npz").unlink()
    return file


def flipped(folder: Path) -> Path:
    file = feature_file(folder)
    content = bytearray(file.read_bytes())
    content[-100] ^= 1  # among the tensors: safetensors puts its header first
    file.write_bytes(content)
    return file


def cut(make: Make, keep: float) -> Make:
    def made(folder: Path) -> Path:
        file = make(folder)
        content = file.read_bytes()
        file.write_bytes(content[: int(keep * len(content))])
        return file

    return made


def holding(name: str, content: bytes) -> Make:
    def made(folder: Path) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    return made


def arrays(**changes: Any) -> Make:
    """An npz with these arrays changed (None: left out)."""
    return lambda folder: npz(folder, **changes)


def keys(**stored: Any) -> Make:
    """An npz of exactly these arrays."""

    def made(folder: Path) -> Path:
        np.savez(folder / "features.npz", **stored)
        return folder / "features.npz"

    return made


def row(i: int, factor: float) -> np.ndarray:
    """The image features, with one row multiplied."""
    x = X.copy()
    x[i] *= factor
    return x


def folder_of_that_name(folder: Path) -> Path:
    (folder / "features.safetensors").mkdir()
    return folder / "features.safetensors"


def stream_file(folder: Path) -> Path:
    kedge.Stream(T, "stata").save(folder / "stream.safetensors")
    return folder / "stream.safetensors"


def foreign_file(folder: Path) -> Path:
    save_file({"image_features": X, "text_features": T}, folder / "foreign.safetensors")
    return folder / "foreign.safetensors"


BAD_FILES: dict[str, tuple[Make, str]] = {
    "missing": (lambda folder: folder / "none.npz", "no file .*none.npz. Check the path"),
    "folder": (folder_of_that_name, "is a folder.* Name a file in it"),
    "empty": (holding("features.safetensors", b""), r"is empty \(0 bytes\). Make it again"),
    "empty npz": (holding("features.npz", b""), r"is empty \(0 bytes\). Make it again"),
    "truncated tensors": (
        cut(feature_file, 0.5),
        "not a readable safetensors file .truncated.* Make it again",
    ),
    "truncated header": (
        cut(feature_file, 0.01),
        "not a readable safetensors file .truncated.* Make it again",
    ),
    "flipped bit": (flipped, "damaged: its content does not match its own hash. Copy or make it again"),
    "text": (holding("features.safetensors", b"text\n" * 9), "not a readable safetensors.*of another kind"),
    "a stream": (stream_file, "not a kedge features file: found a kedge stream file.*Pass another file"),
    "another program's": (
        foreign_file,
        "no kedge metadata .tensors: image_features, text_features.*with kedge",
    ),
    "truncated npz": (cut(npz, 0.5), "not a.* npz file .truncated.* Make it again"),
    "other keys": (
        keys(foo=X, bar=T),
        "no array 'image_features'; found bar, foo.* needs image_features and text",
    ),
    "dimension": (
        arrays(text_features=T8),
        "image_features has dimension 16, text_features has 8.*same encoder",
    ),
    "few labels": (arrays(labels=Y[:-1]), "labels has 59 entries for 60 image features. Pass one per image"),
    "labels from 2": (arrays(labels=Y + 2), "labels must be from 0 to 4; row .* has 5. Count classes from 0"),
    "float labels": (arrays(labels=1.0 * Y), "labels must be whole numbers; got float64.*Count classes"),
    "few names": (
        arrays(class_names=np.array(["a"])),
        "1 class names for 5 text features. Pass one name per row",
    ),
    "few paths": (
        arrays(paths=np.array(["a"])),
        "paths has 1 entries for 60 image features. Pass one per image",
    ),
    "NaN": (arrays(image_features=row(7, np.nan)), r"NaN in 1 row, first in row 7. .*features again"),
    "Inf": (arrays(image_features=row(9, np.inf)), r"Inf in 1 row, first in row 9. .*features again"),
    "zero row": (arrays(image_features=row(3, 0)), r"1 all-zero row, first row 3, .*features again"),
    "norm": (arrays(image_features=row(5, 0.83)), "image_features needs .*row 5 has norm 0.83 .*--normalize"),
    "text norm": (arrays(text_features=2 * T), "text_features needs .*row 0 has norm 2 .*--normalize"),
    "no images": (
        arrays(image_features=X[:0], labels=None),
        r"image_features is empty: shape \(0, 16\). Pass",
    ),
    "no classes": (
        arrays(text_features=T[:0], class_names=None),
        r"text_features is empty: shape \(0, 16\). Pass",
    ),
    "integers": (
        arrays(image_features=(9 * X).astype(int)),
        "floating point; got int64. Convert it to float32",
    ),
    "complex": (
        arrays(image_features=X.astype(complex)),
        "floats; got dtype complex128. Convert it to float32",
    ),
    "one image": (arrays(image_features=X[0]), r"2-dimensional \(n×d\); got shape \(16,\). .*batch of one"),
    "logit scale": (
        arrays(logit_scale=np.array(-1.0)),
        "logit_scale must be a number from .* got -1.0. CLIP's is 100",
    ),
}


def assert_refused(folder: Path, message: str, *argv: object) -> None:
    """Exit code 2, nothing on stdout, one line on stderr that matches, and the folder as it was."""
    before = snapshot(folder)
    ran = run(*argv)
    assert ran.code == 2, ran
    assert ran.out == ""
    assert ran.err.startswith("error: ")
    assert ran.err.count("\n") == 1
    assert ran.err.endswith("\n")
    assert re.search(message, ran.err), ran.err
    assert snapshot(folder) == before


def snapshot(folder: Path) -> list[tuple[str, int]]:
    return sorted((str(entry), entry.stat().st_size) for entry in folder.rglob("*"))


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_feature_files(tmp_path: Path, case: str) -> None:
    make, message = BAD_FILES[case]
    file = make(tmp_path)
    assert_refused(tmp_path, message, "adapt", file, "--out", tmp_path / "rows.csv")
    assert_refused(tmp_path, message, "features", "convert", file, tmp_path / "out.safetensors")
    assert_refused(tmp_path, message, "features", "info", file)


def saved_as(name: str, stored: np.ndarray) -> Make:
    """A file of a single array, whatever its name says."""

    def made(folder: Path) -> Path:
        with (folder / name).open("wb") as file:
            np.save(file, stored)
        return folder / name

    return made


WORSE_FILES: dict[str, tuple[Make, str]] = {
    "near-miss key": (keys(image_feature=X, text_features=T), "no array 'image_features'.*'image_feature'"),
    "only text": (keys(text_features=T), "no array 'image_features'; found text_features(?!.*did you mean)"),
    "text as npz": (holding("features.npz", b"text\n" * 9), "not an? .*npz file(?!.*pickle)"),
    "array as npz": (saved_as("features.npz", X), "not an? .*npz.*np.savez"),
    "text labels": (arrays(labels=np.array(["oak"] * 60)), "whole numbers; got <U3.*Count classes"),
    "two scales": (arrays(logit_scale=np.ones(2)), r"logit_scale must be .*; got .*1.* 1"),
    "long name": (lambda folder: folder / ("a" * 300), "a: File name too long"),
}


@pytest.mark.parametrize("case", WORSE_FILES)
def test_worse_feature_files(tmp_path: Path, case: str) -> None:
    make, message = WORSE_FILES[case]
    assert_refused(tmp_path, message, "adapt", make(tmp_path), "--out", tmp_path / "rows.csv")


BAD_OPTIONS = {
    "--method kedge --set beta=soft": "method 'kedge' has no setting 'beta'; choose from alpha",
    "--method stat": "unknown method 'stat'; did you mean 'stata'",
    "--method nonsense": "unknown method 'nonsense'; choose from zero-shot, kedge, stata",
    "--set alhpa=1": "method 'stata' has no setting 'alhpa'; did you mean 'alpha'",
    "--set xyz=1": "method 'stata' has no setting 'xyz'; choose from alpha, beta",
    "--method zero-shot --set alpha=1": "method 'zero-shot' has no setting 'alpha'; it has no settings",
    "--set alpha=-1": "alpha must be at least 0; got -1",
    "--set alpha=abc": "alpha must be a number; got 'abc'",
    "--set alpha=nan": "alpha must be a finite number; got nan",
    "--set temperature=0": "temperature must be at least 0.001; got 0",
    "--set laplacian=1e308": "laplacian must be at most 1e6; got 1e",
    "--set iterations=9223372036854775808": "iterations must be at most 1,000; got 9223372036854775808",
    "--method tda --set positive_slots=3000000": "positive_slots must be at most 1,000; got 3000000",
    "--set neighbours=2.5": "neighbours must be a whole number; got '2.5'",
    "--set unit_means=maybe": "unit_means must be true or false; got 'maybe'",
    "--set beta=medium": "beta must be one of 'hard', 'soft'; got 'medium'",
    "--set alpha": "a setting is written name=value; got 'alpha'",
    "--set =1": "a setting is written name=value; got '=1'",
    "--out {}/none/rows.csv": "cannot write .*rows.csv: there is no folder .*none. Create it first",
    "--out {}/features.safetensors/rows.csv": "there is no folder .*safetensors. Create it first",
    "--out {}": "cannot write .*: it is a folder. Name a file in it",
    "--out {}/rows.txt": "rows.txt: it has the suffix '.txt'. Choose from .csv, .json, .parquet, .*metadata.jsonl, or -",
    "--out {}/rows": "cannot write .*rows: it has no suffix. Choose from .csv, .json, .parquet",
}


@pytest.mark.parametrize("given", BAD_OPTIONS)
def test_bad_options(tmp_path: Path, given: str) -> None:
    file = feature_file(tmp_path)
    options = [word.format(tmp_path) for word in given.split()]
    options += [] if "--method" in options else ["--method", "stata"]
    out = [] if "--out" in options else ["--out", tmp_path / "rows.csv"]
    assert_refused(tmp_path, BAD_OPTIONS[given], "adapt", file, *options, *out)


@pytest.mark.parametrize("option", ["--out {}/none/rows.csv", "--out {}/rows.txt", "--set alpha=-1", "--method no"])
def test_bad_options_are_refused_before_any_work(tmp_path: Path, option: str) -> None:
    options = [word.format(tmp_path) for word in option.split()]
    ran = run("adapt", tmp_path / "not-even-read.npz", *options)
    assert ran.code == 2
    assert "not-even-read" not in ran.err


def test_a_message_of_several_lines_becomes_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "chatty_plugin.py").write_text("raise ImportError('first line\\nsecond line')")
    monkeypatch.syspath_prepend(tmp_path)
    chatty = EntryPoint("chatty", "chatty_plugin:Method", "kedge.methods")
    monkeypatch.setattr("kedge.methods.registry._plugins", lambda: {"chatty": chatty})
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # the folder is to stay as it was
    message = "method 'chatty' of another package does not load: first line second line"
    assert_refused(tmp_path, message, "adapt", feature_file(tmp_path), "--method", "chatty")


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # as if it were not installed
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    message = r'pyarrow is not installed. Install it with: pip install "kedge\[parquet\]"'
    assert_refused(tmp_path, message, "adapt", npz(tmp_path), "--out", tmp_path / "rows.parquet")
    with pytest.raises(kedge.MissingExtra):
        check_output(tmp_path / "rows.parquet")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("{}/out.npz", "cannot write .*out.npz: the name of a feature file ends in .safetensors. Rename it"),
        ("{}/none/out.safetensors", "cannot write .*: there is no folder .*none. Create it first"),
    ],
)
def test_bad_targets_of_convert(tmp_path: Path, target: str, message: str) -> None:
    for source in (npz(tmp_path), tmp_path / "not-even-read.npz"):
        assert_refused(tmp_path, message, "features", "convert", source, target.format(tmp_path))


@pytest.mark.parametrize("scale", ["-1", "0", "nan", "inf"])
def test_bad_logit_scale_of_convert(tmp_path: Path, scale: str) -> None:
    message = f"logit_scale must be a number from 0.001 to 1,000,000; got {float(scale)}. CLIP's is 100"
    target = tmp_path / "out.safetensors"
    assert_refused(tmp_path, message, "features", "convert", npz(tmp_path), target, "--logit-scale", scale)


def test_output_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = feature_file(tmp_path)
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)  # root may write anywhere
    message = "cannot write .*rows.csv: permission denied. Choose another place"
    assert_refused(tmp_path, message, "adapt", file, "--out", tmp_path / "rows.csv")


class Bomb:
    """Its pickle writes a file when it is loaded."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self.target), "w")


def test_pickles_are_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "exploded"
    names = np.array([Bomb(mark)] * 5, dtype=object)
    file = npz(tmp_path, class_names=names)
    for command in (["adapt"], ["features", "info"]):
        assert_refused(tmp_path, "has pickled objects, which can run code.*Save plain arrays", *command, file)
    file = npz(tmp_path, something_else=names)  # not an array kedge knows: never read
    assert run("adapt", file).code == 0
    bare = holding("bare.npz", pickle.dumps(Bomb(mark)))(tmp_path)
    assert run("adapt", bare).code == 2
    assert not mark.exists()
    np.load(file, allow_pickle=True)["something_else"]  # the bomb is a real one
    assert mark.exists()


@pytest.fixture(params=["file", "option"])
def bad_command(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    file = cut(feature_file, 0.5)(tmp_path) if request.param == "file" else feature_file(tmp_path)
    return ["adapt", str(file), "--set", "alpha=-1" if request.param == "option" else "alpha=1"]


def test_a_real_process_says_one_line(tmp_path: Path, bad_command: list[str]) -> None:
    command = [sys.executable, "-m", "kedge", *bad_command, "--out", str(tmp_path / "rows.csv")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("error: ")
    assert ran.stderr.count("\n") == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["features.safetensors"]


BAD_CALLS: dict[str, tuple[dict[str, Any], str]] = {
    "NaN": ({"image_features": row(7, np.nan)}, "NaN in 1 row.*row 7"),
    "Inf": ({"image_features": row(9, -np.inf)}, "Inf in 1 row.*row 9"),
    "zero row": ({"image_features": row(3, 0)}, "all-zero row.*row 3"),
    "norm": ({"image_features": row(5, 0.83)}, "row 5 has norm 0.83.*normalize=True"),
    "no images": ({"image_features": X[:0]}, "image_features is empty"),
    "integers": ({"image_features": (9 * X).astype(int)}, "got int64.*Convert it to float32"),
    "one image": ({"image_features": X[0]}, r"got shape \(16,\).*batch of one"),
    "dimension": ({"text_features": T8}, "image_features has dimension 16, text_features has 8"),
    "no text": ({"text_features": None}, "text_features is missing"),
    "text norm": ({"text_features": 2 * T}, "text_features needs unit-norm rows; row 0 has norm 2"),
    "scale": ({"logit_scale": 0}, "logit_scale must be a number from 0.001 to 1,000,000; got 0"),
    "method": ({"method": "stat"}, "unknown method 'stat'; did you mean 'stata'"),
    "an array as method": ({"method": X}, r"a method is a registered name .*; got array\(|; got tensor\("),
    "a path": (
        {"image_features": "features.npz", "text_features": None},
        r"got a path, 'features.npz'. Load the file: FeatureSet.load\(path\)",
    ),
    "setting": ({"alhpa": 1}, "no setting 'alhpa'; did you mean 'alpha'"),
    "alpha": ({"alpha": -1}, "alpha must be at least 0; got -1"),
    "alpha's type": ({"alpha": "abc"}, "alpha must be a number; got 'abc'"),
    "beta": ({"beta": "medium"}, "beta must be one of 'hard', 'soft'; got 'medium'"),
}


@pytest.mark.parametrize("as_torch", [False, True], ids=["numpy", "torch"])
@pytest.mark.parametrize("case", BAD_CALLS)
def test_bad_input_through_python(case: str, as_torch: bool) -> None:
    changes, message = BAD_CALLS[case]
    given = {"image_features": X, "text_features": T, "method": "stata", **changes}
    if as_torch:
        given = {k: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for k, v in given.items()}
    with pytest.raises(kedge.KedgeError, match=message) as caught:
        kedge.adapt(**given)
    assert isinstance(caught.value, ValueError)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("case", ["missing", "flipped bit", "truncated npz", "other keys"])
def test_bad_files_through_python(tmp_path: Path, case: str) -> None:
    make, message = BAD_FILES[case]
    with pytest.raises(kedge.FileError, match=message) as caught:
        kedge.FeatureSet.load(make(tmp_path))
    assert isinstance(caught.value, OSError)
