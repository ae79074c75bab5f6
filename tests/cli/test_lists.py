"""`kedge ls encoders`, `kedge ls datasets`, and what is suggested for a name that is not known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command import run
from kedge.encoders.encoder import DEFAULT, TINY
from kedge.errors import did_you_mean
from kedge.images.datasets import dataset_names


def test_ls_datasets() -> None:
    rows = json.loads(run("ls", "datasets", "--json").out)["datasets"]
    assert [row["name"] for row in rows] == list(dataset_names())
    assert rows[5] == {"name": "food101", "classes": 101, "test_images": 30300, "folder": "DIR/food-101"}
    assert "DIR/caltech-101" in run("ls", "datasets").out


def test_ls_encoders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(hub, "HF_HUB_CACHE", str(tmp_path))
    snapshots = tmp_path / "models--some--clip" / "snapshots"
    snapshots.mkdir(parents=True)
    (snapshots / "0123").symlink_to(TINY, target_is_directory=True)
    (tmp_path / "models--half--done" / "snapshots" / "4567").mkdir(parents=True)
    said = json.loads(run("ls", "encoders", "--json").out)
    needs = {row["name"]: row["needs"] for row in said["encoders"]}
    assert list(needs) == ["tiny", "hf:OWNER/NAME", "openclip:MODEL/TAG", "DIR", DEFAULT, "hf:some/clip"]
    assert needs["hf:some/clip"] == "in the hub's cache"
    assert needs[DEFAULT] == "a download at first use"
    assert said["default"] == DEFAULT


@pytest.mark.parametrize("command", ["ls encoders", "ls datasets"])
def test_examples(command: str) -> None:
    assert f"Example: kedge {command}" in run(*command.split(), "--help").out


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("ucf10", "ucf101"),
        ("food1O1", "food101"),
        ("eurosatt", "eurosat"),
        ("imagnet", "imagenet"),
        ("sun39", "sun397"),
    ],
)
def test_a_slip_is_understood(word: str, near: str) -> None:
    assert did_you_mean(word, dataset_names()) == f"; did you mean {near!r}?"


@pytest.mark.parametrize("word", ["cifar10", "cifar100", "mnist", "coco", "svhn"])
def test_another_name_is_not_taken_for_a_slip(word: str) -> None:
    assert did_you_mean(word, dataset_names()).startswith("; choose from imagenet, sun397")
    ran = run("extract", "--dataset", word)
    assert ran.code == 2
    assert ran.err.startswith(f"error: unknown dataset '{word}'; choose from imagenet, ")
    assert ran.err.endswith("ucf101, hf:NAME from Hugging Face, or a folder of images.\n")


@pytest.mark.parametrize("argv", [["adapt", "s3://bucket/x.npz"], ["features", "info", "https://host/x.npz"]])
def test_an_address_is_no_file(argv: list[str]) -> None:
    ran = run(*argv)
    assert ran.code == 2
    assert ran.err.startswith(f"error: {argv[-1]} is an address, ")
