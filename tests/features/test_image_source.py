"""Methods that adapt the encoder get the images of a feature file and the encoder it came from, and no others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from encoder_tools import build
from kedge import Batch, FeatureSet
from kedge.benchmark.cells import plan_cells
from kedge.benchmark.evaluate import evaluate
from kedge.benchmark.grid import Grid
from kedge.benchmark.run import Runner, run
from kedge.encoders.names import load_encoder
from kedge.errors import FileError, InputError, KedgeError, SettingError
from kedge.features import image_source
from kedge.features.extract import extract
from kedge.features.image_source import ImageSource
from kedge.images.folders import folder
from kedge.images.pixels import open_image
from pictures import colours, encoder, save_pictures
from toy_methods import Plain

__all__ = ["colours"]
pytestmark = pytest.mark.usefixtures("colours")


@pytest.fixture
def features(tmp_path: Path) -> FeatureSet:
    images = folder(save_pictures(tmp_path / "images"))
    return extract(images, encoder=encoder(), out=tmp_path / "f.safetensors", templates="a {}.")


@dataclass(frozen=True)
class Seeing(Plain):
    """Zero-shot from the images, by the encoder: the same as from the features if both are right."""

    name: ClassVar[str] = "seeing"
    traits = replace(Plain.traits, needs="encoder")

    def z(self, batch: Batch) -> Tensor:
        assert batch.images is not None
        assert batch.encoder is not None
        again = batch.encoder(batch.images)
        torch.testing.assert_close(again, batch.features, atol=1e-5, rtol=0)
        return Batch(again, batch.head).log_zero_shot.exp()


def test_pixels_are_those_of_the_files(features: FeatureSet) -> None:
    source = ImageSource.of(features)
    assert features.paths is not None
    root = Path(str(features.provenance["root"]))
    expected = [source.encoder.preprocessing(open_image(root / features.paths[i])) for i in (7, 0, 7)]
    for _ in range(2):  # decoded, then remembered
        torch.testing.assert_close(source.pixels([7, 0, 7]), torch.stack(expected), atol=0, rtol=0)


@pytest.mark.parametrize(("room", "opened"), [(1 << 30, 12), (5 * 3 * 8 * 8 * 4, 12 + 7), (0, 24)])
def test_pixels_are_kept_as_long_as_there_is_room(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch, room: int, opened: int
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr("kedge.images.pixels.open_image", lambda source: seen.append(source) or open_image(source))
    monkeypatch.setattr(image_source, "KEPT_BYTES", room)
    source = ImageSource.of(features)
    first, second = source.pixels(range(12)), source.pixels(range(12))
    assert len(seen) == opened
    assert (first == second).all()


def test_a_method_sees_the_images_of_its_batch(features: FeatureSet) -> None:
    record = evaluate(Seeing(), features, "stream:gamma=1,size=5", tasks=2)
    assert record.accuracy == record.zero_shot
    assert evaluate("zero-shot", features, "stream:gamma=1,size=5", tasks=2).accuracy == record.accuracy


def test_zero_shot_beside_tent_is_everybodys(features: FeatureSet) -> None:
    tent, plain = (evaluate(m, features, "stream:gamma=1,size=5", tasks=2) for m in ("tent", "zero-shot"))
    assert tent.zero_shot == plain.zero_shot
    assert tent.series.zero_shot == plain.series.zero_shot
    assert evaluate("tent", features, "all", steps=0).accuracy == plain.accuracy_per_image  # no step, no change


def gone(features: FeatureSet) -> FeatureSet:
    (Path(str(features.provenance["root"])) / "red" / "1.png").unlink()
    return features


def without(name: str) -> Callable[[FeatureSet], FeatureSet]:
    return lambda features: replace(
        features, provenance={key: value for key, value in features.provenance.items() if key != name}
    )


WRONG: dict[str, tuple[Callable[[FeatureSet], FeatureSet], type[KedgeError], str]] = {
    "image gone": (gone, FileError, r"1 of 12 images are not there, the first: .*red.1\.png\. Put them back"),
    "no root": (without("root"), FileError, "12 of 12 images are not there, the first: .*blue/0.png"),
    "no encoder": (without("encoder"), InputError, "do not record their encoder. Name it: --encoder NAME"),
    "no paths": (lambda f: replace(f, paths=None), InputError, "Make them with `kedge extract`"),
    "no hash": (without("weights_sha256"), InputError, "has no weights_sha256"),
    "other weights": (
        lambda f: replace(f, provenance={**f.provenance, "weights_sha256": "ab" * 32}),
        InputError,
        "weights_sha256 differ .*Extract",
    ),
    "other pixels": (
        lambda f: replace(f, provenance={**f.provenance, "preprocessing": {"resize": 9}}),
        InputError,
        "preprocessing differ",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_not_the_source_is_refused(features: FeatureSet, tmp_path: Path, case: str) -> None:
    change, error, message = WRONG[case]
    changed = change(features)
    with pytest.raises(error, match=message):
        evaluate("tent", changed, "all")
    changed.save(tmp_path / "changed.safetensors")
    grid = Grid.of([tmp_path / "changed.safetensors"], ["zero-shot", "tent"], ["all"], out=tmp_path / "out")
    with pytest.raises(SettingError, match=f"method 'tent' needs the images and their encoder, and .*{message}"):
        plan_cells(grid)
    planned = plan_cells(replace(grid, fitting=True))
    assert [cell.method.name for cell in planned.cells] == ["zero-shot"]
    assert "changed.safetensors: method 'tent' needs the images" in planned.left_out[0]


def test_a_benchmark_opens_the_encoder_once_and_only_if_needed(
    features: FeatureSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []
    monkeypatch.setattr("kedge.encoders.names.load_encoder", lambda name, **_: loaded.append(name) or encoder(name))
    file = tmp_path / "f.safetensors"
    grid = Grid.of([file], ["tent", "tent:steps=1"], ["all", "very-low"], tasks=2, out=tmp_path / "out")
    outcome = run(grid)
    assert (outcome.ran, outcome.failed, loaded) == (4, (), ["colours"])
    run(Grid.of([file], ["stata"], ["all"], out=tmp_path / "out"))
    assert loaded == ["colours"]


def test_a_model_on_the_hub_is_loaded_at_its_recorded_commit(
    features: FeatureSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []
    monkeypatch.setattr("kedge.encoders.names.load_encoder", lambda name, **_: loaded.append(name) or encoder())
    monkeypatch.setattr("kedge.encoders.hub._cached", lambda *_: tmp_path)
    for name in ("hf:some/model", "hf:some/model@v2"):
        ImageSource.of(replace(features, provenance={**features.provenance, "encoder": name, "revision": "12" * 20}))
    assert loaded == ["hf:some/model@" + "12" * 20] * 2


def test_an_image_that_goes_away_fails_its_cells_only(features: FeatureSet, tmp_path: Path) -> None:
    grid = Grid.of([tmp_path / "f.safetensors"], ["tent", "zero-shot"], ["all"], out=tmp_path / "out")
    cells = plan_cells(grid).cells
    gone(features)
    runner = Runner()
    errors = {cell.method.name: runner(cell).error for cell in cells}
    assert errors["zero-shot"] is None
    assert str(errors["tent"]).startswith("FileError: 1 of 12 images are not there")


def test_in_processes_with_a_real_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the small encoder: other processes would not have it
    model = load_encoder(f"hf:{build(tmp_path / 'model', 'clip')}")
    images = folder(save_pictures(tmp_path / "images"))
    extract(images, encoder=model, out=tmp_path / "f.safetensors", templates="a {}.", views=2)
    grid = Grid.of([tmp_path / "f.safetensors"], ["tent:steps=2", "mta"], ["stream:gamma=1,size=5"], tasks=1)
    apart, here = run(grid, tmp_path / "apart", jobs=2), run(grid, tmp_path / "here", jobs=1)
    assert (apart.failed, here.failed) == ((), ())
    for one, two in zip(apart.records(), here.records(), strict=True):
        assert (one.method, one.accuracy, one.zero_shot) == (two.method, two.accuracy, two.zero_shot)
