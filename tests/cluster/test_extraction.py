"""Extraction on three nodes gives the bytes of one machine, whatever is killed on the way."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from clusters import MATRIX, first_pid, slow_encoder, started, until
from kedge.cluster.extraction import map_shards
from kedge.errors import FileError
from kedge.features.extract import done_before, extract, extract_folder
from kedge.features.folder import FeatureFolder
from pictures import save_pictures

OPTIONS: dict[str, Any] = {"batch_size": 4, "workers": 0}
SHARDS = {**OPTIONS, "images_per_shard": 4}
IMAGES = 24


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Pictures in three class folders; one cannot be read."""
    root = save_pictures(tmp_path / "images", each=IMAGES // 3)
    (root / "green" / "3.png").write_bytes(b"no picture")
    return root


def whole(images: Path, tmp_path: Path) -> FeatureFolder:
    encoder = slow_encoder(tmp_path / "here", 0)
    return extract_folder(images, encoder=encoder, out=tmp_path / "one", images_per_shard=4, **OPTIONS)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_file_is_that_of_one_machine(nodes: Any, images: Path, tmp_path: Path) -> None:
    one, three = tmp_path / "one.safetensors", tmp_path / "three.safetensors"
    extract(images, encoder=slow_encoder(tmp_path / "here", 0), out=one, **OPTIONS)
    features = extract(images, encoder=slow_encoder(tmp_path / "there"), out=three, map_shards=map_shards, **OPTIONS)
    assert list(features.skipped) == ["green/3.png"]
    assert one.read_bytes() == three.read_bytes()
    assert len(set((tmp_path / "there").read_text().split())) > 1  # several actors
    assert str(os.getpid()) not in (tmp_path / "there").read_text().split()


@MATRIX
def test_what_cannot_be_read_is_an_error_of_one_line_if_strict(nodes: Any, images: Path, tmp_path: Path) -> None:
    encoder = slow_encoder(tmp_path / "there", 0)
    with pytest.raises(FileError, match=r"^image 12 of 24: .*green/3\.png is not an image") as caught:
        extract_folder(
            images,
            encoder=encoder,
            out=tmp_path / "f",
            images_per_shard=4,
            strict=True,
            map_shards=map_shards,
            **OPTIONS,
        )
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("lost", ["worker", pytest.param("node", marks=MATRIX)])
def test_a_lost_worker_or_node_loses_nothing(nodes: Any, images: Path, tmp_path: Path, lost: str) -> None:
    expected, pids = content(whole(images, tmp_path).path), tmp_path / "there"
    made: list[int] = []

    def watched(*arguments: Any) -> Any:
        for done in map_shards(*arguments):
            made.append(done)
            if len(made) == 1 and lost == "worker":
                os.kill(first_pid(pids), signal.SIGKILL)
            elif len(made) == 1:
                nodes.remove_node(nodes.list_all_nodes()[-1], allow_graceful=False)
            yield done

    try:
        three = extract_folder(
            images,
            encoder=slow_encoder(pids, 0.3),
            out=tmp_path / "f",
            images_per_shard=4,
            map_shards=watched,
            **OPTIONS,
        )
    finally:
        if lost == "node":
            nodes.add_node(num_cpus=1, object_store_memory=100 << 20)
            nodes.wait_for_nodes()
    assert sum(made) == IMAGES
    assert content(three.path) == expected
    assert list(three.provenance["skipped"]) == [
        {"path": "green/3.png", "reason": three.provenance["skipped"][0]["reason"]}
    ]


DRIVER = """
import sys
from pathlib import Path
from clusters import slow_encoder
from kedge.cluster.connect import connected
from kedge.cluster.extraction import map_shards
from kedge.features.extract import extract_folder
address, images, out, pids = sys.argv[1:]
with connected(address):
    encoder = slow_encoder(Path(pids), 1.0)
    options = {"images_per_shard": 4, "batch_size": 4, "workers": 0}
    extract_folder(images, encoder=encoder, out=out, map_shards=map_shards, **options)
"""


def test_a_killed_driver_is_started_again(nodes: Any, images: Path, tmp_path: Path) -> None:
    expected, out, pids = content(whole(images, tmp_path).path), tmp_path / "f", tmp_path / "there"
    driver = started(DRIVER, nodes.address, images, out, pids)
    until(lambda: out.is_dir() and done_before(out) >= 4)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    before = {path.name: path.stat().st_mtime_ns for path in out.glob("0*.safetensors")}
    assert 4 <= done_before(out) < IMAGES
    again = tmp_path / "again"
    three = extract_folder(
        images, encoder=slow_encoder(again, 0), out=out, images_per_shard=4, map_shards=map_shards, **OPTIONS
    )
    assert content(three.path) == expected
    assert {name: (out / name).stat().st_mtime_ns for name in before} == before
    assert len(again.read_text().split()) <= IMAGES // 4 - len(before)  # a batch each


def test_only_what_looks_like_an_address_is_one() -> None:
    from kedge.cli._app import _with_address

    assert _with_address(["--cluster"]) == ["--cluster", "auto"]
    assert _with_address(["--cluster", "photos"]) == ["--cluster", "auto", "photos"]
    assert _with_address(["--cluster", "10.0.0.1:6379", "photos"]) == ["--cluster", "10.0.0.1:6379", "photos"]
    assert _with_address(["--cluster", "--json"]) == ["--cluster", "auto", "--json"]
