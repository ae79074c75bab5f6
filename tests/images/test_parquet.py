"""Parquet files of images: the same features as from a folder, read in pieces; or one line."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from command import run
from kedge import FeatureSet
from kedge.errors import FileError, InputError, KedgeError
from kedge.features.folder import FeatureFolder
from kedge.images.parquet import ROWS, ParquetImages
from kedge.images.sources import image_set

pyarrow = pytest.importorskip("pyarrow", reason="needs pyarrow (extra parquet)")
from pyarrow import parquet  # noqa: E402

N = 2 * ROWS + 5
CLASSES = "cat, dog"


def write(name: str, *, group: int = 20, **columns: Any) -> Path:
    parquet.write_table(pyarrow.table(columns), name, row_group_size=group)
    return Path(name)


@pytest.fixture
def encoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Images of noise, in a folder `photos` and as bytes."""
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    draw = np.random.default_rng(0)
    found = []
    for i in range(N):
        path = Path(f"photos/{i:02d}.png")
        Image.fromarray(draw.integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(path)
        found.append(path.read_bytes())
    return found


def hugging(encoded: list[bytes], labels: list[int] | None = None) -> Any:
    """A table as Hugging Face's library writes it."""
    columns = {"image": [{"bytes": each, "path": None} for each in encoded], "label": labels or [0] * len(encoded)}
    about = {"info": {"features": {"label": {"names": ["Polar_bear", "cat"], "_type": "ClassLabel"}}}}
    kind = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    table = pyarrow.table({**columns, "image": pyarrow.array(columns["image"], kind)})
    return table.replace_schema_metadata({"huggingface": json.dumps(about)})


def content(images: Any) -> list[bytes]:
    return [images.source(i).read() for i in range(len(images))]


@pytest.mark.parametrize("group", [1, 7, ROWS, 20, 1000])
def test_rows_in_any_order(encoded: list[bytes], group: int) -> None:
    images = image_set(write("x.parquet", jpg=encoded, group=group), CLASSES)
    assert isinstance(images, ParquetImages)
    assert images.paths[:2] == ("x.parquet/0", "x.parquet/1")
    assert images.labels is None
    for i in (0, N - 1, 3, 3, 30, 25, *range(N)):
        source: Any = images.source(i)
        assert source.read() == encoded[i]
    part = pickle.loads(pickle.dumps(images.part(range(18, 30))))  # as a cluster sends it
    assert content(part) == encoded[18:30]
    assert content(part.part(range(2, 4))) == encoded[20:22]


def test_each_row_is_read_once(encoded: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    original = parquet.ParquetFile.iter_batches

    def watched(self: Any, size: int, **options: Any) -> Any:
        for batch in original(self, size, **options):
            read.append(len(batch))
            yield batch

    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", watched)
    assert content(image_set(write("x.parquet", bytes=encoded, group=1000), CLASSES)) == encoded
    assert sum(read) == N
    assert max(read) == ROWS  # at one time


def test_a_large_row_group_is_not_in_memory(tmp_path: Path) -> None:
    large = [np.random.default_rng(i).bytes(100_000) for i in range(200)]  # 20 MB
    table = pyarrow.table({"image": large})
    parquet.write_table(table, tmp_path / "x.parquet", use_dictionary=False, write_batch_size=8)
    del table
    images: Any = image_set(tmp_path / "x.parquet", CLASSES)
    before = pyarrow.total_allocated_bytes()
    taken = []
    for i in range(len(large)):
        assert images.source(i).read() == large[i]
        taken.append(pyarrow.total_allocated_bytes() - before)
    assert max(taken) < 8e6


def test_features_are_those_of_a_folder(encoded: list[bytes]) -> None:
    for i in (0, 1):
        write(f"x-{i}.parquet", image=encoded[i * 20 : (i + 1) * 20 if not i else N])
    options = ["--classes", CLASSES, "--encoder", "tiny"]
    assert run("extract", "photos", *options, "-o", "one.safetensors").code == 0
    assert run("extract", "x-*.parquet", *options, "-o", "two.safetensors").code == 0
    one, two = (FeatureSet.load(f"{name}.safetensors") for name in ("one", "two"))
    assert np.array_equal(one.image_features.numpy(), two.image_features.numpy())
    assert two.paths is not None
    assert (two.paths[0], two.paths[20]) == ("x-0.parquet/0", "x-1.parquet/0")
    assert "already done" in run("extract", "x-*.parquet", *options, "-o", "two.safetensors").err
    assert run("extract", "x-1.parquet", *options, "-o", "made", "--images-per-shard", "10").code == 0
    assert len(FeatureFolder.open("made")) == N - 20
    ran = run("adapt", "two.safetensors", "--sort-into", "sorted")
    assert (ran.code, "in a Parquet file" in ran.err) == (2, True)


def test_adapt(encoded: list[bytes]) -> None:
    broken = [*encoded[:3], None, b"no image", *encoded[3:]]
    write("x.parquet", image=pyarrow.array(broken, pyarrow.binary()))
    ran = run("adapt", "x.parquet", "--classes", CLASSES, "--encoder", "tiny")
    assert ran.code == 0
    assert ran.out.count("x.parquet/") == N
    assert "x.parquet/3" in ran.err  # left out
    assert "x.parquet/4" in ran.err
    ran = run("adapt", "x.parquet", "--classes", CLASSES, "--encoder", "tiny", "--sort-into", "sorted")
    assert (ran.code, "--sort-into is for image files" in ran.err) == (2, True)


def test_labels(encoded: list[bytes]) -> None:
    few = encoded[:4]
    images = image_set(write("x.parquet", image=few, label=["dog", "Cat", "dog", "cat"]), CLASSES)
    assert images.labels == (1, 0, 1, 0)
    images = image_set(write("x.parquet", image=few, label=["b", "a", "b", "c"]))
    assert (images.labels, images.class_names) == ((1, 0, 1, 2), ("a", "b", "c"))
    assert image_set(write("x.parquet", image=few, label=[1, 0, 1, 1]), CLASSES).labels == (1, 0, 1, 1)


def test_hugging_face_names_its_classes(encoded: list[bytes]) -> None:
    parquet.write_table(hugging(encoded, [i % 2 for i in range(N)]), "x.parquet")
    images = image_set("x.parquet")
    assert images.class_names == ("Polar bear", "cat")
    assert images.labels == tuple(i % 2 for i in range(N))
    assert content(images) == encoded
    parquet.write_table(hugging(encoded, [-1] * N), "x.parquet")
    assert image_set("x.parquet").labels is None
    table = hugging(encoded).replace_schema_metadata({"huggingface": '{"info": {"features": [1]}}'})
    parquet.write_table(table, "x.parquet")
    assert image_set("x.parquet").class_names == ("0",)


def test_paths(encoded: list[bytes]) -> None:
    names = [f"photos/{i:02d}.png" for i in range(N)]
    images = image_set(write("x.parquet", image_path=names, label=["a", *"b" * (N - 1)]))
    assert images.paths == tuple(names)
    assert images.labels == (0, *[1] * (N - 1))
    path: Any = images.source(3)
    assert path.read_bytes() == encoded[3]
    both = image_set(["x.parquet", write("photos/y.parquet", image_path=["00.png"], label=["a"])])
    assert both.paths == (*names, "photos/00.png")


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../x.png", "photos/../../x.png", "link/x.png", "x\0.png", "", "l.png"]
)
def test_paths_stay_in_the_folder(encoded: list[bytes], path: str, tmp_path: Path) -> None:
    Path("in").mkdir()
    Path("in/link").symlink_to(tmp_path / "photos")
    Path("in/l.png").symlink_to(tmp_path / "photos/00.png")
    with pytest.raises(InputError, match="not in the folder of the file"):
        image_set(write("in/x.parquet", path=[path]), CLASSES)


def cut(file: Path) -> Path:
    """The same footer, and nothing of the images."""
    data = file.read_bytes()
    file.write_bytes(data[:4] + bytes(len(data) // 2) + data[4 + len(data) // 2 :])
    return file


def damaged(name: str, data: bytes) -> str:
    Path(name).write_bytes(data)
    return name


HOSTILE: dict[str, tuple[Callable[[list[bytes]], Any], str]] = {
    "text": (lambda x: damaged("x.parquet", b"PAR1 and more PAR1"), "not a readable Parquet file"),
    "empty": (lambda x: damaged("x.parquet", b""), "is empty"),
    "absent": (lambda x: "x.parquet", "no file x.parquet|no file .*x.parquet"),
    "no rows": (lambda x: write("x.parquet", image=pyarrow.array([], pyarrow.binary())), "has no rows"),
    "no column": (lambda x: write("x.parquet", pixels=x), r"no column of images.*found pixels \(binary\)"),
    "wrong type": (lambda x: write("x.parquet", image=[1.5] * 4), r"found image \(double\)"),
    "null path": (lambda x: write("x.parquet", path=["a.png", None]), "row 2: no path"),
    "null label": (lambda x: write("x.parquet", image=x[:2], label=["a", None]), "row 2: no label"),
    "empty label": (lambda x: write("x.parquet", image=x[:2], label=["cat", ""]), "row 2: no label"),
    "odd label": (lambda x: write("x.parquet", image=x[:2], label=[1.5, 2.5]), "neither names nor whole numbers"),
    "strange label": (lambda x: write("x.parquet", image=x[:2], label=["cat", "cow"]), "image 2 .* 'cow' is not among"),
    "number too large": (lambda x: write("x.parquet", image=x[:2], label=[0, 7]), "'7' is not among"),
    "mixed": (lambda x: [write("x.parquet", image=x), "photos"], "got 1 Parquet file and other images"),
    "two columns": (
        lambda x: [write("x.parquet", image=x), write("y.parquet", jpg=x)],
        "in different columns: image, jpg",
    ),
    "labels of some": (
        lambda x: [write("x.parquet", image=x), write("y.parquet", image=x[:1], label=["cat"])],
        "others have none",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files(encoded: list[bytes], case: str) -> None:
    make, message = HOSTILE[case]
    with pytest.raises(KedgeError, match=message) as raised:
        image_set(make(encoded), CLASSES)
    assert "\n" not in str(raised.value)


def test_a_column_that_unpacks_to_much(encoded: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    file = write("x.parquet", path=["photos/00.png" + "/." * 5000] * 5000)
    assert file.stat().st_size < 1_000_000
    monkeypatch.setenv("KEDGE_MAX_BYTES", "20000000")
    with pytest.raises(FileError, match=r"the column 'path' of .* would take"):
        image_set(file, CLASSES)


def test_damaged_rows(encoded: list[bytes]) -> None:
    images = image_set(cut(write("x.parquet", image=encoded)), CLASSES)
    with pytest.raises(FileError, match="not a readable Parquet file") as raised:
        content(images)
    assert "\n" not in str(raised.value)


def test_a_file_may_change_while_it_is_read(encoded: list[bytes]) -> None:
    images = image_set(write("x.parquet", image=encoded, group=ROWS), CLASSES)
    images.source(0)
    write("x.parquet", image=encoded[:20], group=ROWS)
    with pytest.raises(FileError):
        images.source(N - 1)


def test_classes_must_be_known(encoded: list[bytes]) -> None:
    with pytest.raises(InputError, match=r"the classes are not known .*the table has no labels"):
        image_set(write("x.parquet", image=encoded))


def test_without_pyarrow(encoded: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    write("x.parquet", image=encoded)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    ran = run("extract", "x.parquet", "--classes", CLASSES)
    assert ran.code == 2
    assert 'pip install "kedge[parquet]"' in ran.err
