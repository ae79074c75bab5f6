"""An extraction whose file exists: done already, another job, or not a feature file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import kedge
from command import run
from kedge.errors import FileError
from kedge.features.extract import done_before, extract
from kedge.features.feature_set import FeatureSet
from kedge.features.unfinished import Unfinished
from pictures import encoder as colour_encoder
from pictures import save_pictures


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("kedge.encoders.names.load_encoder", lambda *names, **options: colour_encoder())
    return save_pictures(tmp_path / "images")


def test_the_same_job_is_done_already(images: Path) -> None:
    first = run("extract", images)
    assert first.err.endswith("→ features.safetensors\n")
    written = Path("features.safetensors").stat()
    again = run("extract", images)
    assert (again.code, again.out, again.err) == (0, "", "already done: features.safetensors\n")
    assert Path("features.safetensors").stat().st_mtime_ns == written.st_mtime_ns
    said = json.loads(run("extract", images, "--json", "--quiet").out)
    assert (said["already_done"], said["images_per_second"]) == (True, None)
    assert json.loads(run("extract", images, "--json", "--force").out)["already_done"] is False


def test_nothing_is_encoded_again(images: Path) -> None:
    extract(images, encoder=colour_encoder())
    encoder = colour_encoder()
    object.__setattr__(encoder, "visual", None)
    object.__setattr__(encoder, "text", None)
    assert len(extract(images, encoder=encoder)) > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--views", 2], "features.safetensors exists, with another views (0 there, 2 now). Name another file"),
        (["--classes", "x, y, z"], "features.safetensors exists, with another files sha256"),
    ],
)
def test_another_job_needs_force(images: Path, options: list[Any], message: str) -> None:
    run("extract", images)
    before = Path("features.safetensors").read_bytes()
    refused = run("extract", images, "--quiet", *options)
    assert refused.code == 2
    assert refused.err.startswith(f"error: {message}")
    assert "--force" in refused.err
    assert refused.err.count("\n") == 1
    assert Path("features.safetensors").read_bytes() == before
    assert run("extract", images, "--force", *options).code == 0
    assert Path("features.safetensors").read_bytes() != before


@pytest.mark.parametrize("content", [b"", b"my thesis", "truncated"])
def test_what_is_no_feature_file_is_not_replaced(images: Path, content: bytes | str) -> None:
    file = Path("features.safetensors")
    if content == "truncated":
        extract(images, encoder=colour_encoder())
        content = file.read_bytes()[:-10]
    assert isinstance(content, bytes)
    file.write_bytes(content)
    with pytest.raises(FileError, match=r"^features.safetensors exists and would be replaced: .*force=True"):
        extract(images, encoder=colour_encoder())
    assert file.read_bytes() == content
    assert len(extract(images, encoder=colour_encoder(), force=True)) > 0


def test_strict_minds_what_the_file_leaves_out(images: Path) -> None:
    (images / "red" / "broken.png").write_bytes(b"no picture")
    extract(images, encoder=colour_encoder())
    with pytest.raises(FileError, match=r"exists, and leaves out 1 image: .*force=True"):
        extract(images, encoder=colour_encoder(), strict=True)


def test_force_drops_unfinished_work_of_another_job(images: Path) -> None:
    def stop(*args: object) -> None:
        raise KeyboardInterrupt

    out = Path("features.safetensors")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Unfinished, "joined", stop)
        with pytest.raises(KeyboardInterrupt):
            extract(images, encoder=colour_encoder(), seed=1)
    assert done_before(out) > 0
    with pytest.raises(FileError, match=r"another seed .*--force"):
        extract(images, encoder=colour_encoder())
    assert extract(images, encoder=colour_encoder(), force=True).provenance["seed"] == 0
    assert not Path("features.safetensors.parts").exists()


def test_work_left_by_a_kill_at_the_very_end_is_cleared(images: Path) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Unfinished, "remove", lambda parts: None)
        extract(images, encoder=colour_encoder())
    assert Path("features.safetensors.parts").exists()
    extract(images, encoder=colour_encoder())
    assert not Path("features.safetensors.parts").exists()


def test_classify_keeps_features_by_the_same_rules(images: Path) -> None:
    def classify(classes: list[str], **options: Any) -> kedge.Predictions:
        kept = {"keep_features": "kept.safetensors", **options}
        return kedge.classify(images, classes, colour_encoder(), "zero-shot", **kept)

    names = ["blue", "green", "red"]
    assert classify(names).features.hash == classify(names).features.hash
    with pytest.raises(FileError, match=r"kept.safetensors exists, with another"):
        classify([*names, "grey"])
    assert classify([*names, "grey"], force=True).features.head.k == FeatureSet.load("kept.safetensors").head.k == 4
