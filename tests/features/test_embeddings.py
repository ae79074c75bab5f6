"""Embeddings of clip-retrieval: the same rows and names, in the same precision; or one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from command import run, small, unit
from kedge import FeatureSet
from kedge.features.folder import FeatureFolder
from kedge.tensor_files import save_tensors

pyarrow = pytest.importorskip("pyarrow", reason="needs pyarrow (extra parquet)")
from pyarrow import parquet  # noqa: E402

SIZES = (7, 3, 5, 2, 4, 1, 6, 2, 3, 8, 9)  # eleven files: 10 comes after 9, not after 1
D = 16


def write(path: Path, **columns: Any) -> None:
    parquet.write_table(pyarrow.table(columns), path)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Embeddings and prototypes (simulated), in the current folder."""
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    for name in ("img_emb", "metadata"):
        (tmp_path / "emb" / name).mkdir(parents=True)
    for number, size in enumerate(SIZES):
        x = unit(draw.normal(size=(size, D))).astype(np.float16)
        np.save(f"emb/img_emb/img_emb_{number}.npy", x)
        names = [f"{number}/{i}.jpg" for i in range(size)]
        write(Path(f"emb/metadata/metadata_{number}.parquet"), caption=["…"] * size, image_path=names)
    np.savez("text.npz", **small(d=D))
    return Path("emb")


def imported(*more: object) -> Any:
    return run("features", "import", "emb", "made", "--text-from", "text.npz", *more)


def rows_of(source: Path) -> np.ndarray:
    return np.concatenate([np.load(source / f"img_emb/img_emb_{number}.npy") for number in range(len(SIZES))])


@pytest.mark.parametrize("given", ["emb", "emb/img_emb"])
def test_each_file_becomes_a_shard(source: Path, given: str) -> None:
    ran = run("features", "import", given, "made", "--text-from", "text.npz")
    assert (ran.code, ran.out) == (0, "")
    made = FeatureFolder.open("made")
    assert tuple(map(len, made.shards)) == SIZES
    found, text = made.gather(), FeatureSet.load("text.npz")
    assert found.image_features.dtype == torch.float16
    assert np.array_equal(found.image_features.numpy(), rows_of(source))
    assert found.paths == tuple(f"{number}/{i}.jpg" for number, size in enumerate(SIZES) for i in range(size))
    assert torch.equal(found.head.features, text.head.features)
    assert found.head.class_names == text.head.class_names
    assert run("adapt", "made", "--out", "labels.csv").code == 0


def test_an_interrupted_import_goes_on(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert imported().code == 0
    whole = FeatureFolder.open("made").hash
    Path("made").rename("whole")
    saved: list[str] = []

    def dies(path: Path, *more: Any) -> str:
        if len(saved) == 2:
            saved.clear()
            raise KeyboardInterrupt
        saved.append(path.name)
        return save_tensors(path, *more)

    with monkeypatch.context() as patched:
        patched.setattr("kedge.features.shard.save_tensors", dies)
        assert imported().code == 130
    assert len(list(Path("made").glob("0*.safetensors"))) == 2
    assert not Path("made/manifest.safetensors").exists()
    stays = {path: path.stat().st_mtime_ns for path in Path("made").iterdir()}
    assert imported().code == 0
    assert {path: path.stat().st_mtime_ns for path in stays} == stays
    assert FeatureFolder.open("made").hash == whole


def test_prototypes_from_class_names(source: Path) -> None:
    from kedge.encoders.names import load_encoder

    d = load_encoder("tiny").dimension
    x = unit(np.random.default_rng(0).normal(size=(6, d))).astype(np.float32)
    Path("flat").mkdir()
    np.save("flat/img_emb_0000.npy", x)
    ran = run("features", "import", "flat", "made", "--classes", "cat, dog", "--encoder", "tiny")
    assert ran.code == 0
    assert "have no names" in ran.err
    found = FeatureFolder.open("made").gather()
    assert found.head.class_names == ("cat", "dog")
    assert found.image_features.dtype == torch.float32
    assert found.paths is None
    assert found.provenance["text_encoder"] == "tiny"


def test_rows_are_scaled_if_asked(source: Path) -> None:
    file = source / "img_emb/img_emb_2.npy"
    np.save(file, np.load(file) * np.float16(3))
    assert "--normalize" in imported().err
    assert imported("--normalize").code == 0
    x = FeatureFolder.open("made").gather().image_features
    assert x.dtype == torch.float16
    assert float((x.float().norm(dim=1) - 1).abs().max()) < 2e-3


def damaged(path: str, content: bytes) -> Callable[[], object]:
    return lambda: Path(path).write_bytes(content)


HOSTILE: dict[str, tuple[Callable[[], object], str]] = {
    "other dimension": (lambda: np.save("emb/img_emb/img_emb_9.npy", np.ones((8, 8), "f4")), "have 16"),
    "one dimension": (lambda: np.save("emb/img_emb/img_emb_9.npy", np.ones(8, "f4")), "must be an n×d array"),
    "whole numbers": (lambda: np.save("emb/img_emb/img_emb_9.npy", np.ones((8, 16), int)), "array of floats"),
    "no rows": (lambda: np.save("emb/img_emb/img_emb_9.npy", np.ones((0, 16), "f4")), "of shape (0, 16)"),
    "other type": (lambda: np.save("emb/img_emb/img_emb_9.npy", np.ones((8, 16)) / 4), "of float64"),
    "objects": (
        lambda: np.save("emb/img_emb/img_emb_9.npy", np.array([[{}]]), allow_pickle=True),
        "is not a readable array",
    ),
    "text": (damaged("emb/img_emb/img_emb_9.npy", b"rows"), "is not a readable array"),
    "empty": (damaged("emb/img_emb/img_emb_9.npy", b""), "is empty"),
    "no metadata": (lambda: Path("emb/metadata/metadata_3.parquet").unlink(), "no file of the same number"),
    "twice": (lambda: np.save("emb/img_emb/img_emb_03.npy", np.ones((2, 16))), "have the same number"),
    "damaged metadata": (damaged("emb/metadata/metadata_9.parquet", b"PAR1"), "is not a readable Parquet file"),
    "fewer names": (lambda: write(Path("emb/metadata/metadata_9.parquet"), url=["a"]), "has 1 row, "),
    "no names": (lambda: write(Path("emb/metadata/metadata_9.parquet"), caption=["a"] * 8), "has no column of text"),
    "numbers": (lambda: write(Path("emb/metadata/metadata_9.parquet"), key=list(range(8))), "key .int64."),
    "null": (lambda: write(Path("emb/metadata/metadata_9.parquet"), key=["a"] * 7 + [None]), "row 8: no key"),
    "no folder": (lambda: Path("emb").rename("other"), "emb is not a folder"),
    "no arrays": (lambda: Path("emb/img_emb").rename("other"), "has no embeddings"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files(source: Path, case: str) -> None:
    spoil, message = HOSTILE[case]
    spoil()
    ran = imported()
    assert (ran.code, ran.out) == (2, "")
    last = ran.err.splitlines()[-1]
    assert last.startswith("error: ")
    assert message.replace(".int64.", "(int64)") in last
    assert not Path("made/manifest.safetensors").exists()


@pytest.mark.parametrize(
    "words", [[], ["--classes", "cat, dog"], ["--encoder", "tiny"], ["--text-from", "text.npz", "--classes", "a, b"]]
)
def test_prototypes_come_from_one_place(source: Path, words: list[str]) -> None:
    ran = run("features", "import", "emb", "made", *words)
    assert ran.code == 2
    assert "either --classes and --encoder" in ran.err
