"""A path that the system cannot take (too long, with a NUL) is one line wherever a path can be given."""

from __future__ import annotations

from pathlib import Path

import pytest

import kedge
from command import npz
from kedge.errors import KedgeError
from kedge.images.sources import dataset_images

LONG, NUL = "y" * 10_000, "a\0b"


@pytest.mark.parametrize("name", [LONG, NUL, LONG + ".safetensors", LONG + ".txt", f"{LONG}/{LONG}"])
def test_paths_that_the_system_cannot_take(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    npz(tmp_path).rename("x.npz")
    features = kedge.FeatureSet.load("x.npz")
    for call in (
        lambda: kedge.FeatureSet.load(name),
        lambda: features.save(name),
        lambda: kedge.load_records([name]),
        lambda: kedge.load_encoder(name),
        lambda: kedge.load_encoder("hf:" + name),
        lambda: kedge.classify(name, ["a", "b"], encoder="tiny"),
        lambda: kedge.extract([name], ["a", "b"], encoder="tiny"),
        lambda: dataset_images("dtd", name),
        lambda: kedge.Grid.of([name], scenarios=["low"], out=name),
        lambda: kedge.run(kedge.Grid.of(["x.npz"], scenarios=["low"], tasks=1), out=name),
        lambda: kedge.Stream(features.head).save(name),
        lambda: kedge.Stream.load(name),
    ):
        with pytest.raises(KedgeError) as caught:
            call()
        assert len(str(caught.value)) < 1100
        assert "\n" not in str(caught.value)
