"""Extraction by OpenVINO: the bundled model in every precision, and a model whose 8-bit form is no good."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

if find_spec("openvino") is None or find_spec("nncf") is None:  # not imported here: it would report that to Intel
    pytest.skip('OpenVINO or NNCF is not installed: pip install "kedge[openvino]"', allow_module_level=True)

from safetensors.torch import load_file, save_file

import kedge
from kedge.encoders.encoder import TINY, Encoder
from kedge.encoders.names import load_encoder
from kedge.encoders.tiny import pictures
from kedge.features import checked_encoder as _checked
from kedge.features.encode import Encoded
from kedge.features.extract import check_same_encoder, done_before
from kedge.features.feature_set import FeatureSet
from kedge.images.folders import folder


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache of converted models for the tests alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """80 of the bundled pictures, of four classes (simulated)."""
    return pictures(tmp_path_factory.mktemp("pictures") / "photos", classes=4)


@pytest.fixture(scope="module")
def tiny() -> Encoder:
    return load_encoder("tiny", device="cpu")


@pytest.fixture(scope="module")
def exact(tiny: Encoder, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> FeatureSet:
    return kedge.extract(photos, encoder=tiny, out=tmp_path_factory.mktemp("exact") / "f.safetensors")


class Stop(Exception):
    pass


def stop(batch: Encoded, head: Any) -> None:
    if batch.stop >= 48:
        raise Stop


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_labels_stay_and_an_interruption_changes_nothing(
    precision: str, tiny: Encoder, photos: Path, exact: FeatureSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"encoder": tiny, "precision": precision, "batch_size": 16}
    features = kedge.extract(photos, out=tmp_path / "whole.safetensors", **options)
    check = features.precision_check
    assert check is not None
    assert (check.used, check.images) == (True, 64)
    assert "OpenVINO" in features.precision
    assert (features.image_features * exact.image_features).sum(dim=1).mean() > (0.999 if precision == "bf16" else 0.99)
    assert torch.equal(features.head.features, exact.head.features)
    assert (kedge.adapt(features).labels == kedge.adapt(exact).labels).float().mean() > 0.95
    if precision == "int8":
        assert len(check.calibrated_on) == 64
        assert check.calibration_sha256
    with pytest.raises(Stop):
        kedge.extract(photos, out=tmp_path / "f.safetensors", each=stop, **options)
    assert done_before(tmp_path / "f.safetensors") == 48
    monkeypatch.setattr(_checked, "_measured", lambda *_: pytest.fail("checked again"))
    kedge.extract(photos, out=tmp_path / "f.safetensors", **options)
    assert (tmp_path / "f.safetensors").read_bytes() == (tmp_path / "whole.safetensors").read_bytes()


def with_outliers(to: Path, factor: float = 100.0) -> Path:
    """The bundled model with every 20th channel before its two downsampling layers 100 times as large.

    The weights that these channels are multiplied by are as much smaller, so that the function is the same.
    """
    shutil.copytree(TINY, to)
    weights = {name: value.float() for name, value in load_file(TINY / "model.safetensors").items()}
    for norm in [name.removesuffix(".weight") for name in weights if name.endswith("downsampling_layer.0.weight")]:
        for part in ("weight", "bias"):
            weights[f"{norm}.{part}"][::20] *= factor
        weights[f"{norm.removesuffix('0')}1.weight"][:, ::20] /= factor
    save_file(weights, to / "model.safetensors", {"format": "pt"})
    return to


def test_outliers_make_a_bad_int8_model_which_is_not_used(photos: Path, exact: FeatureSet, tmp_path: Path) -> None:
    encoder = load_encoder(str(with_outliers(tmp_path / "model")), device="cpu")
    features = kedge.extract(photos, encoder=encoder, out=tmp_path / "f.safetensors", precision="int8")
    torch.testing.assert_close(features.image_features, exact.image_features, atol=1e-5, rtol=0)  # float32
    check = features.precision_check
    assert check is not None
    assert not check.used
    assert check.mean_cosine < 0.97
    assert features.provenance["precision"] == "float32"
    kept = kedge.extract(
        photos, encoder=encoder, out=tmp_path / "kept.safetensors", precision="int8", keep_precision=True
    )
    assert (kept.image_features * exact.image_features).sum(dim=1).mean() < 0.97  # it is as bad as was said
    half = kedge.extract(photos, encoder=encoder, out=tmp_path / "half.safetensors", precision="bf16")
    assert half.precision_check is not None
    assert half.precision_check.used


def test_more_images_need_the_ones_that_int8_was_calibrated_on(tiny: Encoder, photos: Path, tmp_path: Path) -> None:
    old = kedge.extract(photos, encoder=tiny, out=tmp_path / "old.safetensors", precision="int8")
    images = folder(photos)
    fast = _checked.same_precision(tiny, old, images)
    new = kedge.extract(photos, encoder=fast, out=tmp_path / "new.safetensors")
    check_same_encoder(old, new)
    assert torch.equal(old.image_features, new.image_features)
    fewer = folder(min(photos.iterdir()), ["apple"])
    with pytest.raises(kedge.InputError, match="the images that int8 was calibrated on have changed"):
        _checked.same_precision(tiny, old, fewer)
