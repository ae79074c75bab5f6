"""Precisions of extraction: trust is measured, what is not near enough is not used, and two are never mixed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import kedge
from command import run
from kedge import progress
from kedge.encoders import precision as _precision
from kedge.encoders.encoder import Encoder
from kedge.encoders.precision import Machine, Precision
from kedge.errors import FileError, InputError, MissingExtra
from kedge.features import checked_encoder as _checked
from kedge.features.checked_encoder import CHECKED, checked_encoder, same_precision
from kedge.features.encode import Encoded
from kedge.features.extract import check_same_encoder, done_before, extract
from kedge.features.feature_set import FeatureSet
from kedge.features.precision_check import PrecisionCheck
from kedge.features.text_head import text_head
from kedge.images.folders import folder
from kedge.report import write_report
from kedge.serve.joining import joined
from pictures import colours, save_pictures
from pictures import encoder as colour_encoder

__all__ = ["colours"]  # a fixture
HALF = Precision("bfloat16")


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor with bfloat16, without OpenVINO, on which "auto" is worth while for any number of images."""
    monkeypatch.setattr(_precision, "this_machine", lambda: Machine(frozenset({"avx512_bf16"}), None, False))
    monkeypatch.setattr(_precision, "AUTO_FROM", 0)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """90 pictures in three classes."""
    return save_pictures(tmp_path_factory.mktemp("photos") / "photos", each=30)


def rough(monkeypatch: pytest.MonkeyPatch, noise: float) -> list[Precision]:
    """From here on a precision is float32 with noise. Returns what was asked for, as it comes."""
    asked: list[Precision] = []

    def in_precision(encoder: Encoder, wanted: Precision, calibration: Tensor | None = None) -> Encoder:
        asked.append(wanted)

        def fast(pixels: Tensor) -> Tensor:
            exact = encoder.visual(pixels)
            return torch.nn.functional.normalize(exact + noise * torch.cos(1000 * exact), dim=1)

        return replace(encoder, fast=fast, provenance={**encoder.provenance, **wanted.provenance})

    monkeypatch.setattr(_checked, "in_precision", in_precision)
    return asked


@contextmanager
def saying(said: list[str]) -> Iterator[None]:
    """Collect notices."""

    @contextmanager
    def display(*_: Any) -> Iterator[Callable[[int], None]]:
        yield lambda count: None

    with progress.shown_by(display, said.append):
        yield


def made(photos: Path, out: Path, **options: Any) -> FeatureSet:
    return extract(photos, encoder=colour_encoder(), out=out, **{"batch_size": 8, **options})


def test_the_check_is_kept_in_the_file(photos: Path, tmp_path: Path) -> None:
    said: list[str] = []
    with saying(said):
        features = made(photos, tmp_path / "f.safetensors", precision="bf16")
    check = features.precision_check
    assert check is not None
    assert (check.precision, check.engine, check.images, check.used) == ("bfloat16", "torch", CHECKED, True)
    assert check.mean_cosine > 0.99999
    assert check.same_labels == 1
    assert features.provenance["precision"] == "bfloat16"
    assert features.provenance["engine"] == "torch"
    assert features.provenance["precision_check"] == json.loads(json.dumps(asdict(check)))
    assert features.precision == f"bfloat16 by torch: {check}"
    assert f"bfloat16 by torch: {check}" in said
    exact = made(photos, tmp_path / "e.safetensors")
    assert (exact.precision_check, exact.provenance.get("engine")) == (None, None)


def test_few_images_are_all_checked(tmp_path: Path) -> None:
    check = made(save_pictures(tmp_path / "few", each=3), tmp_path / "f.safetensors", precision="bf16").precision_check
    assert check is not None
    assert check.images == 9


def test_images_that_cannot_be_read_are_not_checked(tmp_path: Path) -> None:
    place = save_pictures(tmp_path / "few", each=3)
    (place / "red" / "1.png").write_bytes(b"no picture")
    check = made(place, tmp_path / "f.safetensors", precision="bf16").precision_check
    assert check is not None
    assert check.images == 8


def test_what_is_not_near_enough_is_not_used(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = made(photos, tmp_path / "exact.safetensors")
    rough(monkeypatch, 0.1)
    said: list[str] = []
    with saying(said):
        features = made(photos, tmp_path / "f.safetensors", precision="bf16")
    check = features.precision_check
    assert check is not None
    assert not check.used
    assert check.mean_cosine < 0.999
    assert torch.equal(features.image_features, exact.image_features)
    assert features.provenance["precision"] == "float32"
    assert features.precision.startswith("float32, since bfloat16 was not near enough: on 64 images")
    assert any("bfloat16 is not exact enough for this model: the mean cosine is 0.99" in line for line in said)
    kept = made(photos, tmp_path / "kept.safetensors", precision="bf16", keep_precision=True)
    assert (kept.image_features - exact.image_features).abs().max() > 0.01
    assert kept.provenance["precision"] == "bfloat16"


GOOD = PrecisionCheck("int8", "OpenVINO 2026.1", 64, 0.995, 0.98, 0.95, 50, 1, True)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({}, ""),
        ({"mean_cosine": 0.9899}, "the mean cosine is 0.9899, and at least 0.99 is wanted"),
        ({"changed": 2}, "2 of 50 clear labels change, and at most 3.0 % may"),
        ({"clear": 0, "changed": 0}, ""),
        ({"precision": "bfloat16", "mean_cosine": 0.9995, "changed": 0}, ""),
        ({"precision": "bfloat16", "mean_cosine": 0.9995}, "1 of 50 clear labels change, and none may"),
        ({"precision": "float16", "mean_cosine": 0.9985, "changed": 0}, "at least 0.999 is wanted"),
    ],
)
def test_bounds(change: dict[str, Any], fault: str) -> None:
    assert fault in replace(GOOD, **change).faults()
    assert bool(fault) == bool(replace(GOOD, **change).faults())


def test_only_clear_labels_count(photos: Path) -> None:
    """An encoder that turns every label changes the unclear ones too, and those are no fault."""
    images, exact = folder(photos), colour_encoder()
    head = text_head(exact, images.class_names, "a {}.")
    turned = replace(exact, fast=lambda pixels: exact.visual(pixels.roll(1, dims=1)))
    pixels, _ = _checked._pixels(images, exact, range(90))
    for scale, clear in ((10.0, 90), (0.001, 0)):
        found = _checked._measured(exact, turned, HALF, pixels, replace(head, logit_scale=scale))
        assert (found.same_labels, found.clear, found.changed) == (0, clear, clear)


class Stop(Exception):
    pass


def stopped_after(images: int) -> Callable[[Encoded, Any], None]:
    def each(batch: Encoded, head: Any) -> None:
        if batch.stop >= images:
            raise Stop

    return each


@pytest.mark.parametrize("noise", [0.0, 0.1], ids=["used", "not near enough"])
def test_stopped_and_continued(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noise: float) -> None:
    """The same file, and the check is not made again."""
    out = tmp_path / "f.safetensors"
    rough(monkeypatch, noise)
    made(photos, tmp_path / "whole.safetensors", precision="bf16")
    with pytest.raises(Stop):
        made(photos, out, precision="bf16", each=stopped_after(40))
    assert done_before(out) == 40
    with pytest.raises(FileError, match=r"another precision \(bfloat16 there, float32 now\)"):
        made(photos, out)
    monkeypatch.setattr(_checked, "_measured", lambda *_: pytest.fail("checked again"))
    made(photos, out, precision="bf16")
    assert out.read_bytes() == (tmp_path / "whole.safetensors").read_bytes()


def test_another_decision_starts_over(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards in float32, because bfloat16 was not near enough, are of no use to somebody who wants it all the same."""
    out = tmp_path / "f.safetensors"
    rough(monkeypatch, 0.1)
    with pytest.raises(Stop):
        made(photos, out, precision="bf16", each=stopped_after(40))
    kept = made(photos, out, precision="bf16", keep_precision=True)
    made(photos, tmp_path / "whole.safetensors", precision="bf16", keep_precision=True)
    assert kept.hash == FeatureSet.load(tmp_path / "whole.safetensors").hash


def test_a_file_of_another_precision_is_another_job(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "f.safetensors"
    whole = made(photos, out, precision="bf16")
    for again in ("bf16", "auto"):
        assert made(photos, out, precision=again).hash == whole.hash
    with pytest.raises(FileError, match=r"exists, with another precision \(bfloat16 there, float32 now\)"):
        made(photos, out)
    rough(monkeypatch, 0.1)
    whole = made(photos, out, precision="bf16", force=True)  # float32 in the end
    monkeypatch.setattr("kedge.features.extract.checked_encoder", lambda *_: pytest.fail("encoded again"))
    for again in ("bf16", "fp32"):
        assert made(photos, out, precision=again).hash == whole.hash
    with pytest.raises(FileError, match=r"with another precision \(float32 there, bfloat16 now\)"):
        made(photos, out, precision="bf16", keep_precision=True)


def test_two_precisions_are_not_mixed(photos: Path, tmp_path: Path) -> None:
    exact = made(photos, tmp_path / "e.safetensors")
    half = made(photos, tmp_path / "h.safetensors", precision="bf16")
    check_same_encoder(half, colour_encoder())  # its text tower, and its weights
    check_same_encoder(half, half)
    with pytest.raises(InputError, match=r"of two precisions \(bfloat16 and float32\)"):
        check_same_encoder(half, exact)
    with pytest.raises(InputError, match="of two precisions"):
        joined(half, exact, {}, folder(photos))
    others = [replace(GOOD, calibration_sha256=sha256) for sha256 in ("a", "b")]
    int8 = [
        replace(exact, provenance={**exact.provenance, "precision": "int8", "precision_check": asdict(check)})
        for check in others
    ]
    check_same_encoder(int8[0], int8[0])
    with pytest.raises(InputError, match="calibrated on other images"):
        check_same_encoder(*int8)


def test_new_images_are_encoded_as_the_old_ones_were(photos: Path, tmp_path: Path) -> None:
    images = folder(photos)
    for precision, fast in (("bf16", True), ("fp32", False)):
        old = made(photos, tmp_path / f"{precision}.safetensors", precision=precision)
        encoder = same_precision(colour_encoder(), old, images)
        assert (encoder.fast is not None) == fast
        new = extract(photos, encoder=encoder, out=tmp_path / f"new-{precision}.safetensors", batch_size=8)
        check_same_encoder(old, new)
        assert torch.equal(old.image_features, new.image_features)


def test_int8_needs_the_extra(photos: Path, tmp_path: Path, colours: None) -> None:
    with pytest.raises(MissingExtra, match=r"pip install 'kedge\[openvino\]'"):
        made(photos, tmp_path / "f.safetensors", precision="int8")
    for command in ("extract", "adapt"):
        more = ("-o", str(tmp_path / "f.safetensors")) if command == "extract" else ()
        ended = run(command, str(photos), "--encoder", "tiny", "--precision", "int8", *more)
        assert ended.code == 2
        assert ended.err.splitlines()[-1].startswith("error: int8 needs openvino, which is not installed")
    assert list(tmp_path.iterdir()) == []


def test_a_tower_that_cannot_be_converted_stays_in_float32(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Encoder:
        raise kedge.SettingError("OpenVINO cannot run the image tower.")

    monkeypatch.setattr(_checked, "in_precision", refuse)
    features = made(photos, tmp_path / "f.safetensors", precision="auto")
    assert features.provenance["precision"] == "float32"
    assert features.precision_check is not None
    assert (features.precision_check.images, features.precision_check.used) == (0, False)
    with pytest.raises(kedge.SettingError, match="cannot run"):
        made(photos, tmp_path / "g.safetensors", precision="auto", keep_precision=True)
    checked_encoder(colour_encoder(), _precision.EXACT, folder(photos), features.head)


def test_commands_and_the_report_show_it(photos: Path, tmp_path: Path, colours: None) -> None:
    out = tmp_path / "f.safetensors"
    ended = run("extract", str(photos), "--encoder", "tiny", "--precision", "bf16", "-o", str(out), "--json")
    summary = json.loads(ended.out)
    assert summary["precision"].startswith("bfloat16 by torch: on 64 images, the cosine to float32 is 1.00000")
    assert summary["precision_check"]["used"] is True
    assert "bfloat16 by torch: on 64 images" in ended.err
    assert run("extract", str(photos), "--encoder", "tiny", "--precision", "fp32", "-o", str(out)).code == 2
    adapted = run("adapt", str(photos), "--encoder", "tiny", "--json", "--out", str(tmp_path / "labels.csv"))
    assert json.loads(adapted.out)["precision"] == summary["precision"]  # auto is the default
    refused = run("adapt", str(out), "--precision", "fp32")
    assert refused.code == 2
    assert "--precision is for images" in refused.err
    assert run("bench", str(out), "--scenario", "all", "--method", "zero-shot", "--out", str(tmp_path / "r")).code == 0
    records = kedge.load_records([tmp_path / "r"])
    assert {record.precision for record in records} == {summary["precision"]}
    page = write_report(records, tmp_path / "report.html").read_text()
    assert summary["precision"] in page


def test_a_forged_check_is_refused(photos: Path, tmp_path: Path) -> None:
    features = made(photos, tmp_path / "f.safetensors", precision="bf16")
    for wrong in ({"mean_cosine": 3.0}, {"precision": "int3"}, {"images": "many"}, {"used": None}):
        check = {**features.provenance["precision_check"], **wrong}
        with pytest.raises(InputError, match="provenance cannot be kept"):
            FeatureSet.from_arrays(
                features.image_features, features.head, provenance={**features.provenance, "precision_check": check}
            )
