"""Extraction: the same file whatever interrupts it, and one that knows where it comes from."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import kedge
from command import run
from kedge import progress
from kedge.encoders.encoder import DEFAULT
from kedge.encoders.names import load_encoder
from kedge.errors import FileError, InputError, SettingError
from kedge.features import batch_size, shard_maker, unfinished
from kedge.features import extract as _extract
from kedge.features.encode import AHEAD, encode
from kedge.features.extract import check_same_encoder, done_before, extract
from kedge.features.feature_set import FeatureSet
from kedge.features.shard import save_shard
from kedge.images.folders import folder
from kedge.images.pixels import Preprocessing, open_image
from pictures import encoder as colour_encoder
from pictures import save_pictures
from tampering import opened

PIXELS = Preprocessing(resize=16, crop=(16, 16), mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
TEMPLATES = ("a {}.", "the {}.")


@dataclass
class Fake:
    """An encoder of fixed random weights: a product and a nonlinearity. Counts the pictures it has seen."""

    name: str = "fake"
    logit_scale: float = 50.0
    dimension: int = 8
    preprocessing: Preprocessing = PIXELS
    weights: int = 0
    pause: float = 0.0
    fast: None = None
    seen: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.device = torch.device("cpu")
        random = torch.Generator().manual_seed(self.weights)
        self.matrix = torch.randn(3 * 16 * 16, self.dimension, generator=random)

    @property
    def provenance(self) -> dict[str, Any]:
        return {
            "encoder": self.name,
            "weights_sha256": f"{self.weights:064d}",
            "preprocessing": self.preprocessing.describe(),
        }

    def encode_images(self, pixels: Tensor) -> Tensor:
        time.sleep(self.pause)
        self.seen.append(len(pixels))
        # in float64: a float32 product differs in its last bits with the number of threads, and tests compare bytes
        return nn.functional.normalize(torch.tanh(pixels.flatten(1)).double() @ self.matrix.double()).float()

    def encode_texts(self, texts: Sequence[str]) -> Tensor:
        seeds = [int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) for text in texts]
        return nn.functional.normalize(torch.tensor(np.stack([np.random.default_rng(s).normal(size=8) for s in seeds])))


def fake(**changes: Any) -> Any:
    return Fake(**changes)


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """30 pictures of noise in three class folders; two are no pictures, one is too large to be true."""
    root = tmp_path_factory.mktemp("images") / "zoo"
    random = np.random.default_rng(0)
    for i in range(30):
        path = root / ("ant", "bee", "polar_bear")[i // 10] / f"{i:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (20, 24, 3), dtype=np.uint8)).save(path)
    (root / "bee" / "13.png").write_bytes(b"no picture")
    whole = (root / "polar_bear" / "25.png").read_bytes()
    (root / "polar_bear" / "25.png").write_bytes(whole[: len(whole) // 2])
    bomb = Image.new("1", (10_000, 9_500))
    bomb.save(root / "polar_bear" / "29.png")
    return root


BAD = ["bee/13.png", "polar_bear/25.png", "polar_bear/29.png"]


def made(zoo: Path, out: Path, encoder: Any = None, **options: Any) -> FeatureSet:
    options = {"templates": TEMPLATES, "batch_size": 4, "workers": 0, **options}
    return extract(folder(zoo), encoder=encoder or fake(), out=out, **options)


def test_the_file_knows_all_about_itself(zoo: Path, tmp_path: Path) -> None:
    features = made(zoo, tmp_path / "f.safetensors")
    good = [path for path in folder(zoo).paths if path not in BAD]
    assert list(features.paths or ()) == good
    assert features.labels is not None
    assert features.labels.tolist() == [0] * 10 + [1] * 9 + [2] * 8
    assert features.head.class_names == ("ant", "bee", "polar bear")
    assert features.head.logit_scale == 50.0
    about = features.provenance
    assert about["encoder"] == "fake"
    assert about["weights_sha256"] == "0" * 64
    assert about["preprocessing"] == PIXELS.describe()
    assert about["templates"] == list(TEMPLATES)
    assert (about["dataset"], about["root"], about["images"]) == ("zoo", str(zoo), 30)
    assert [entry["path"] for entry in about["skipped"]] == BAD
    assert "pixels, the limit against decompression bombs" in about["skipped"][2]["reason"]
    pixels = torch.stack([PIXELS(Image.open(zoo / path)) for path in good])
    torch.testing.assert_close(features.image_features, fake().encode_images(pixels))
    assert not (tmp_path / "f.safetensors.parts").exists()


def test_views(zoo: Path, tmp_path: Path) -> None:
    plain = made(zoo, tmp_path / "p.safetensors")
    features = made(zoo, tmp_path / "f.safetensors", views=3)
    assert features.views is not None
    assert features.views.shape == (27, 3, 8)
    assert torch.equal(features.views[:, 0], features.image_features)
    torch.testing.assert_close(features.image_features, plain.image_features)
    other = made(zoo, tmp_path / "o.safetensors", views=3, seed=1)
    assert other.views is not None
    assert not torch.allclose(other.views[:, 1:], features.views[:, 1:])
    image = Image.open(zoo / "ant" / "05.png").convert("RGB")
    drawn = PIXELS.views(image, 3, np.random.default_rng((1, 5)))  # of (seed, position), whatever comes before
    torch.testing.assert_close(other.views[5], fake().encode_images(drawn))


def test_no_more_pictures_at_once_than_the_batch_size(zoo: Path, tmp_path: Path) -> None:
    for views, largest in ((0, 4), (3, 3), (10, 4)):
        encoder = fake()
        made(zoo, tmp_path / f"{views}.safetensors", encoder, views=views)
        assert max(encoder.seen) == largest
        assert sum(encoder.seen) == 27 * max(views, 1)


@pytest.mark.parametrize("views", [0, 2])
def test_the_same_file_for_any_workers_and_shards(
    zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, views: int
) -> None:
    whole = made(zoo, tmp_path / "a.safetensors", views=views)
    monkeypatch.setattr(shard_maker, "SHARD_ROWS", 1)
    made(zoo, tmp_path / "b.safetensors", views=views)
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    for workers in (1, 3):
        made(zoo, tmp_path / f"{workers}.safetensors", views=views, workers=workers)
        assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / f"{workers}.safetensors").read_bytes()
    assert FeatureSet.load(tmp_path / "a.safetensors").hash == whole.hash


def test_threads_decode_while_the_encoder_works_and_not_far_ahead(zoo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    started, both = threading.Event(), threading.Barrier(2, timeout=10)

    def watched(source: Any, name: str) -> Image.Image:
        thread = threading.current_thread().name
        first = thread not in opened
        opened.append(thread)
        if first:
            both.wait()  # or a quick thread might take all images
        if len(opened) > 4:
            started.set()
        return open_image(source, name)

    class Patient(Fake):
        def encode_images(self, pixels: Tensor) -> Tensor:
            assert started.wait(10)  # images of the next batch, while this one is encoded
            return super().encode_images(pixels)

    monkeypatch.setattr("kedge.features.encode.open_image", watched)
    batches = encode(folder(zoo), Patient(), batch_size=4, workers=2)  # type: ignore[arg-type]
    next(batches)
    time.sleep(0.2)
    assert 4 < len(opened) <= 4 * (1 + AHEAD)
    assert len(set(opened)) == 2
    assert threading.main_thread().name not in opened
    batches.close()  # type: ignore[attr-defined]
    assert not [thread for thread in threading.enumerate() if thread.name in opened]


class Stop(Exception):
    pass


class Stopping(Fake):
    """Fails at its fourth batch."""

    def encode_images(self, pixels: Tensor) -> Tensor:
        if len(self.seen) == 3:
            raise Stop
        return super().encode_images(pixels)


def stopped(zoo: Path, out: Path, **options: Any) -> None:
    """An extraction that ends after three batches of four images."""
    with pytest.raises(Stop):
        made(zoo, out, Stopping(), **options)
    assert done_before(out) == 12
    assert not out.exists()


@pytest.mark.parametrize("views", [0, 2])
def test_goes_on_where_it_stopped(zoo: Path, tmp_path: Path, views: int) -> None:
    out = tmp_path / "f.safetensors"
    made(zoo, tmp_path / "whole.safetensors", views=views, batch_size=4 * max(views, 1))
    stopped(zoo, out, views=views, batch_size=4 * max(views, 1))
    encoder = fake()
    made(zoo, out, encoder, views=views, batch_size=4 * max(views, 1))
    assert sum(encoder.seen) == 15 * max(views, 1)  # 30, without 12 done and 3 unreadable
    assert out.read_bytes() == (tmp_path / "whole.safetensors").read_bytes()
    assert done_before(out) == 0


def test_the_batch_size_is_measured_once_and_kept(zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, measured = tmp_path / "f.safetensors", []

    def fastest(encoder: Any, pictures: int) -> int:
        measured.append(pictures)
        return 4 + len(measured)

    monkeypatch.setattr(_extract, "fastest", fastest)
    with pytest.raises(Stop):
        made(zoo, out, Stopping(), batch_size=None)
    assert (measured, done_before(out)) == ([30], 15)
    made(zoo, out, encoder := fake(), batch_size=None)
    assert measured == [30]
    assert encoder.seen == [5, 5, 3]  # 30, without 15 done and 2 unreadable
    made(zoo, tmp_path / "whole.safetensors", batch_size=5)
    assert out.read_bytes() == (tmp_path / "whole.safetensors").read_bytes()
    made(zoo, tmp_path / "views.safetensors", fake(), batch_size=None, views=2)
    assert measured == [30, 60]  # pictures


def test_a_given_batch_size_wins(zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "f.safetensors"
    monkeypatch.setattr(_extract, "fastest", None)
    stopped(zoo, out)
    made(zoo, out, encoder := fake(), batch_size=9)
    assert encoder.seen == [8, 7]
    stopped(zoo, other := tmp_path / "g.safetensors")
    job = tmp_path / "g.safetensors.parts" / "job.json"
    job.write_text(job.read_text().replace('"batch_size": 4', '"batch_size": "many"'))
    with pytest.raises(FileError, match=r"no readable job\.json"):
        made(zoo, other, batch_size=None)


@pytest.mark.parametrize(("best", "found"), [(8, 8), (32, 32), (1000, 256)])
def test_the_batch_grows_while_that_is_faster(monkeypatch: pytest.MonkeyPatch, best: int, found: int) -> None:
    asked: list[int] = []

    def speed(encoder: Any, size: int) -> float:
        asked.append(size)
        return min(size, best) ** 0.1

    monkeypatch.setattr(batch_size, "pictures_per_second", speed)
    assert batch_size.fastest(fake(), batch_size.WORTH_MEASURING) == found
    assert asked == [8 * 2**i for i in range(len(asked))]
    assert asked[-1] == min(2 * found, 256)
    asked.clear()
    assert batch_size.fastest(fake(), batch_size.WORTH_MEASURING - 1) == batch_size.USUAL
    assert asked == []


def test_speed_is_of_the_whole_batch() -> None:
    assert 100 < batch_size.pictures_per_second(fake(pause=0.04), 8) < 200


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": 1}, r"another seed \(0 there, 1 now\)\. To continue it"),
        ({"views": 2}, r"another views \(0 there, 2 now\)"),
        ({"templates": ("x {}",)}, "another templates"),
        ({"encoder": fake(weights=7)}, r"another weights sha256\. To continue it, .*--force"),
        ({"encoder": fake(preprocessing=Preprocessing(18, (16, 16)))}, "another preprocessing"),
    ],
)
def test_another_job_is_refused(zoo: Path, tmp_path: Path, options: dict[str, Any], message: str) -> None:
    out = tmp_path / "f.safetensors"
    stopped(zoo, out)
    with pytest.raises(FileError, match=message):
        made(zoo, out, **options)
    assert done_before(out) == 12  # and what is done is still there


def test_other_images_or_classes_are_another_job(zoo: Path, tmp_path: Path) -> None:
    out = tmp_path / "f.safetensors"
    stopped(zoo, out)
    same = folder(zoo)
    turned = replace(same, paths=same.paths[::-1])
    renamed = replace(same, class_names=("ant", "bee", "cow"))
    for images in (turned, renamed, folder(zoo / "ant", ["x"])):
        with pytest.raises(FileError, match="is an unfinished extraction with another"):
            extract(images, encoder=fake(), out=out, templates=TEMPLATES)


def test_a_lost_shard_is_made_again(zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "f.safetensors"
    monkeypatch.setattr(shard_maker, "SHARD_ROWS", 1)
    made(zoo, tmp_path / "whole.safetensors")
    stopped(zoo, out)
    shards = sorted((tmp_path / "f.safetensors.parts").glob("*.safetensors"))
    assert len(shards) == 3
    shards[1].unlink()
    encoder = fake()
    made(zoo, out, encoder)
    assert sum(encoder.seen) == 15 + 4
    assert out.read_bytes() == (tmp_path / "whole.safetensors").read_bytes()


def cut_short(shard: Path) -> None:
    shard.write_bytes(shard.read_bytes()[:-1])


def changed_bit(shard: Path) -> None:
    damaged = bytearray(shard.read_bytes())
    damaged[-1] ^= 1
    shard.write_bytes(damaged)


def other_features(shard: Path) -> None:
    """Whole by its own hash, but of another shape."""
    tensors, _ = opened(shard)
    save_shard(shard, {**tensors, "image_features": tensors["image_features"][:, :-1]})


def other_images(shard: Path) -> None:
    tensors, _ = opened(shard)
    save_shard(shard, tensors, [(100, "it is empty")])


def labels_without_images(shard: Path) -> None:
    tensors, _ = opened(shard)
    save_shard(shard, {**tensors, "labels": tensors["labels"][0]})


@pytest.mark.parametrize("damage", [cut_short, changed_bit, other_features, other_images, labels_without_images])
@pytest.mark.parametrize("number", [0, 1])
def test_a_damaged_shard_is_made_again(
    zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], None], number: int
) -> None:
    out = tmp_path / "f.safetensors"
    monkeypatch.setattr(shard_maker, "SHARD_ROWS", 1)
    made(zoo, tmp_path / "whole.safetensors")
    stopped(zoo, out)
    damage(sorted((tmp_path / "f.safetensors.parts").glob("*.safetensors"))[number])
    encoder = fake()
    said: list[str] = []
    monkeypatch.setattr(unfinished, "notice", said.append)
    with progress.shown_by(lambda *_: contextlib.nullcontext(lambda done: None), said.append):
        made(zoo, out, encoder)
    assert sum(encoder.seen) == 15 + 4
    assert "damaged and made again" in said[0]
    assert said[1:] == ["continuing: 8 of 30 images are done"]
    assert out.read_bytes() == (tmp_path / "whole.safetensors").read_bytes()


def test_shards_of_another_job_are_cleared_by_force(zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the first shard is lost."""
    out = tmp_path / "f.safetensors"
    monkeypatch.setattr(shard_maker, "SHARD_ROWS", 1)
    stopped(zoo, out, seed=1, views=2, batch_size=8)
    shards = sorted((tmp_path / "f.safetensors.parts").glob("*.safetensors"))
    shards[0].unlink()
    with pytest.raises(FileError, match="is an unfinished extraction with another"):
        made(zoo, out)
    with pytest.raises(Stop):
        made(zoo, out, Stopping(), force=True)
    assert done_before(out) == 12
    assert len(list((tmp_path / "f.safetensors.parts").glob("*.safetensors"))) == 3
    made(zoo, tmp_path / "whole.safetensors")
    assert made(zoo, out).hash == FeatureSet.load(tmp_path / "whole.safetensors").hash


@pytest.mark.parametrize("link", [True, False])
def test_parts_that_are_a_link_or_a_file_are_refused(zoo: Path, tmp_path: Path, link: bool) -> None:
    parts, elsewhere = tmp_path / "f.safetensors.parts", tmp_path / "elsewhere"
    elsewhere.mkdir()
    if link:
        parts.symlink_to(elsewhere)
    else:
        parts.write_text("mine")
    with pytest.raises(FileError, match="is a link or a file"):
        made(zoo, tmp_path / "f.safetensors")
    assert list(elsewhere.iterdir()) == []


def test_a_lock_that_is_a_link_is_not_followed(zoo: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "f.safetensors.parts").mkdir()
    (tmp_path / "f.safetensors.parts" / "lock").symlink_to(tmp_path / "mine")
    with pytest.raises(FileError, match="cannot write"):
        made(zoo, tmp_path / "f.safetensors")
    assert (tmp_path / "mine").read_text() == "mine"


def test_only_one_process_at_a_time(zoo: Path, tmp_path: Path) -> None:
    pytest.importorskip("fcntl", reason="locks are not used on this system")
    out = tmp_path / "f.safetensors"
    with (
        unfinished.Unfinished(tmp_path / "f.safetensors.parts", {}),
        pytest.raises(FileError, match="another process uses"),
    ):
        made(zoo, out)


def test_a_folder_that_is_refused_is_not_kept_locked(tmp_path: Path) -> None:
    pytest.importorskip("fcntl", reason="locks are not used on this system")
    parts = tmp_path / "f.safetensors.parts"
    parts.mkdir()
    (parts / "000000000-000000004.safetensors").write_bytes(b"x")
    errors = []  # they are alive, and with them all that they refer to
    for _ in range(2):
        with pytest.raises(FileError, match=r"job\.json") as caught, unfinished.Unfinished(parts, {}):
            pass
        errors.append(caught.value)


KILLED = """
import sys
from pathlib import Path
from kedge.features import shard_maker
from test_extract import Fake, made
shard_maker.SHARD_ROWS = 1
made(Path(sys.argv[1]), Path(sys.argv[2]), Fake(pause=0.1), views=2, batch_size=4, workers=int(sys.argv[3]))
"""


def test_killed_and_resumed_gives_the_same_file(zoo: Path, tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(KILLED)
    out, whole = tmp_path / "f.safetensors", tmp_path / "whole.safetensors"

    def start(workers: int) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(
                (
                    str(Path(__file__).parent),
                    str(Path(__file__).parents[1] / "support"),
                    os.environ.get("PYTHONPATH", ""),
                )
            ),
        }
        return subprocess.Popen([sys.executable, script, zoo, out, str(workers)], env=environment)

    job = start(1)
    deadline = time.monotonic() + 60
    while done_before(out) < 6 and time.monotonic() < deadline:
        time.sleep(0.01)
    job.send_signal(signal.SIGKILL)
    assert job.wait() == -signal.SIGKILL
    assert 6 <= done_before(out) < 30
    assert not out.exists()
    assert start(0).wait() == 0
    made(zoo, whole, views=2, batch_size=4)
    assert out.read_bytes() == whole.read_bytes()
    assert not (tmp_path / "f.safetensors.parts").exists()


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    """A folder and a file of such names go through extraction, also one that is continued."""
    root, odd = tmp_path / os.fsdecode(b"zoo\xff"), os.fsdecode(b"\xfe.png")
    try:
        save_pictures(root)
    except OSError:
        pytest.skip("this file system has only names that are UTF-8")
    (root / "red" / "0.png").rename(root / "red" / odd)
    (root / "red" / f"1{odd}").write_bytes(b"no picture")
    out, options = tmp_path / "f.safetensors", {"batch_size": 4, "workers": 0}
    with pytest.raises(Stop):
        extract(root, encoder=Stopping(dimension=8), out=out, **options)  # type: ignore[arg-type]
    features = extract(root, encoder=fake(), out=out, **options)
    assert features.provenance["root"] == str(root)
    assert features.provenance["skipped"][0]["path"] == f"red/1{odd}"
    assert f"red/{odd}" in (features.paths or ())
    assert all((root / path).is_file() for path in features.paths or ())
    assert features.dataset == "zoo\\udcff"
    assert kedge.adapt(features).probs.shape == (12, 3)


def test_strict_stops_at_what_can_not_be_read(zoo: Path, tmp_path: Path) -> None:
    out = tmp_path / "f.safetensors"
    with pytest.raises(FileError, match=r"image 14 of 30: .*bee/13\.png is not an image"):
        made(zoo, out, strict=True)
    assert done_before(out) == 12
    made(zoo, out)  # without strict it goes on
    assert len(FeatureSet.load(out)) == 27


def test_strict_minds_what_an_earlier_run_left_out(zoo: Path, tmp_path: Path) -> None:
    out = tmp_path / "f.safetensors"

    class Late(Fake):
        def encode_images(self, pixels: Tensor) -> Tensor:
            if len(self.seen) == 7:
                raise Stop
            return super().encode_images(pixels)

    with pytest.raises(Stop):
        made(zoo, out, Late())
    assert done_before(out) == 28
    (zoo / "polar_bear" / "29.png").rename(kept := zoo.parent / "kept.png")
    try:
        Image.new("RGB", (20, 20)).save(zoo / "polar_bear" / "29.png")
        with pytest.raises(FileError, match=r"an earlier run left out 2 images: .*bee/13\.png.* delete .*\.parts"):
            made(zoo, out, strict=True)
    finally:
        kept.replace(zoo / "polar_bear" / "29.png")


def test_nothing_readable(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.png").write_bytes(b"x")
    with pytest.raises(InputError, match=r"none of 1 image can be read; the first: .*a\.png is not an image"):
        extract(tmp_path / "in", ["cat"], fake(), tmp_path / "f.safetensors")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


def test_a_picture_too_long_and_thin_is_left_out(tmp_path: Path) -> None:
    """It can be opened, but not be resized: a shorter edge of 16 makes the other one 640 million pixels."""
    (tmp_path / "thin").mkdir()
    Image.new("1", (40_000_000, 1)).save(tmp_path / "thin" / "0.png")
    Image.new("L", (20, 20)).save(tmp_path / "thin" / "1.png")
    images = folder(tmp_path, ("thin", "thick"))
    features = extract(images, encoder=fake(), out=tmp_path / "f.safetensors")
    assert features.paths == ("thin/1.png",)
    assert "too long and thin" in features.provenance["skipped"][0]["reason"]


def test_a_failure_before_the_first_shard_leaves_nothing(zoo: Path, tmp_path: Path) -> None:
    class Mute(Fake):
        def encode_texts(self, texts: Sequence[str]) -> Tensor:
            raise Stop

    with pytest.raises(Stop):
        made(zoo, tmp_path / "f.safetensors", Mute())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1; got 0"),
        ({"views": -1}, "views must be at least 0"),
        ({"views": 123456789012}, "views must be at most 10,000; got 123456789012"),
        ({"batch_size": 2**63}, "batch_size must be at most 1,000,000"),
        ({"workers": 1.5}, "workers must be a whole number; got 1.5"),
        ({"seed": True}, "seed must be a whole number; got True"),
        ({"workers": -1}, "workers must be at least 0"),
        ({"seed": -1}, "seed must be at least 0"),
    ],
)
def test_bad_options(zoo: Path, tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        made(zoo, tmp_path / "f.safetensors", **options)
    assert list(tmp_path.iterdir()) == []


def test_encoders_are_not_mixed_up(zoo: Path, tmp_path: Path) -> None:
    features = made(zoo, tmp_path / "f.safetensors")
    check_same_encoder(features, fake())
    check_same_encoder(features, features)
    with pytest.raises(InputError, match="fake and other: their weights_sha256 differ"):
        check_same_encoder(features, fake(name="other", weights=1))
    with pytest.raises(InputError, match="their preprocessing differ"):
        check_same_encoder(features, fake(preprocessing=Preprocessing(18, (16, 16))))
    with pytest.raises(InputError, match="has no weights_sha256"):
        check_same_encoder(FeatureSet.from_arrays(features.image_features, features.head), fake())


def test_progress_counts_images_and_shows_a_rate(
    zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "f.safetensors"
    stopped(zoo, out)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    with progress.on_stderr():
        made(zoo, out, fake(pause=0.05))
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().err)
    assert re.search(r"images .* (1[2-9]|2\d|30)/30 ", shown)
    assert re.search(r"\d images/s", shown)
    assert not re.search(r"\b[0-9]/30", shown)  # the bar starts with what was done before


def test_encode_alone(zoo: Path) -> None:
    batches = list(encode(folder(zoo), fake(), batch_size=10, workers=0, ranges=[range(5, 30)]))
    assert [(batch.start, batch.stop) for batch in batches] == [(5, 15), (15, 25), (25, 30)]
    assert [len(batch.positions) for batch in batches] == [9, 10, 3]
    assert [i for batch in batches for i, _ in batch.skipped] == [13, 25, 29]


def test_it_takes_what_classify_takes(tmp_path: Path) -> None:
    files = sorted(save_pictures(tmp_path / "images").glob("*/*.png"))
    expected = extract(tmp_path / "images", encoder=colour_encoder(), out=tmp_path / "f.safetensors")
    assert expected.head.class_names == ("blue", "green", "red")
    assert expected.provenance["templates"] == ["a photo of a {}."]
    assert expected.views is None
    many: list[Any] = [files, list(map(str, files)), f"{tmp_path}/images/*/*.png", [Image.open(file) for file in files]]
    for images in many:
        found = extract(images, "blue, green, red", colour_encoder(), tmp_path / "g.safetensors", force=True)
        torch.testing.assert_close(found.image_features, expected.image_features)
        assert torch.equal(found.head.features, expected.head.features)
        assert found.labels is None
    assert found.paths is None  # PIL images have none
    assert len(extract(files[0], ["red", "blue"], colour_encoder(), tmp_path / "h.safetensors")) == 1


def test_encoders_by_name_on_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(
        "kedge.features.extract.load_encoder", lambda name, device: asked.append((name, device)) or colour_encoder()
    )
    monkeypatch.chdir(tmp_path)
    images = save_pictures(tmp_path / "images")
    extract(images)
    extract(images, device="cpu", encoder="tiny")
    assert asked == [(DEFAULT, "auto"), ("tiny", "cpu")]
    assert (tmp_path / "features.safetensors").exists()
    monkeypatch.undo()
    with pytest.raises(SettingError, match="a loaded encoder stays on its device; got device 'cuda'"):
        extract(images, encoder=colour_encoder(), out=tmp_path / "f.safetensors", device="cuda")


NO_GUARD = """
import sys, kedge
from pictures import encoder
print(len(kedge.extract(sys.argv[1], ["red", "green", "blue"], encoder(), sys.argv[2])))
"""


def test_a_script_needs_no_guard(tmp_path: Path) -> None:
    """With worker processes, a script without `if __name__ == "__main__":` fails."""
    save_pictures(tmp_path / "images")
    (tmp_path / "script.py").write_text(NO_GUARD)
    places = Path(__file__).parents[1] / "support", Path(kedge.__file__).parents[1]
    ran = subprocess.run(
        [sys.executable, tmp_path / "script.py", tmp_path / "images", tmp_path / "f.safetensors"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (0, "12\n"), ran.stderr


# The command


@pytest.fixture
def at_hand(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`--encoder` gives the fake; asked for by name."""
    asked: list[tuple[str, str]] = []

    def load(name: str, *, device: str = "auto") -> Any:
        asked.append((name, device))
        return fake(name=name)

    monkeypatch.setattr("kedge.encoders.names.load_encoder", load)
    return asked


def test_command(zoo: Path, tmp_path: Path, at_hand: Any) -> None:
    out = tmp_path / "f.safetensors"
    ran = run("extract", zoo, "--encoder", "some", "--views", 2, "--seed", 3, "-o", out)
    assert (ran.code, ran.out, at_hand) == (0, "", [("some", "auto")])
    assert [line.partition(": ")[0] for line in ran.err.splitlines()[:3]] == ["left out"] * 3
    assert BAD[0] in ran.err
    features = FeatureSet.load(out)
    logits = features.image_features @ features.head.features.T
    right = 100 * (logits.argmax(dim=1) == features.labels).float().mean()
    summary = rf"27 images, 3 classes, 3 left out, [\d,.]+ images/s, zero-shot accuracy {right:.1f} %"
    assert re.fullmatch(summary, ran.err.splitlines()[3])
    assert ran.err.splitlines()[4] == f"→ {out}"
    about = features.provenance
    assert (about["views"], about["seed"], about["templates"]) == (2, 3, ["a photo of a {}."])


def test_command_for_programs(zoo: Path, tmp_path: Path, at_hand: Any) -> None:
    templates = tmp_path / "templates.txt"
    templates.write_text("one {}\ntwo {}\n")
    out = tmp_path / "f.safetensors"
    options = ("--classes", "dog, cat", "--templates", templates, "--json", "-o", out)
    ran = run("extract", zoo, *options)
    said = json.loads(ran.out)
    features = FeatureSet.load(out)
    assert (said["images"], said["classes"], said["zero_shot_accuracy"]) == (27, 2, None)
    assert [entry["path"] for entry in said["skipped"]] == BAD
    assert said["sha256"] == features.hash
    assert said["encoder"] == DEFAULT
    assert features.provenance["templates"] == ["one {}", "two {}"]
    assert "labels are unknown: the sub-folders 'ant', 'bee', 'polar_bear' are not among the classes" in ran.err
    assert run("extract", zoo, "--quiet", "--force", "-o", out).err == ""


def test_command_on_a_benchmark(tmp_path: Path, at_hand: Any) -> None:
    from dataset_trees import zhou_tree

    zhou_tree(tmp_path, "dtd")
    out = tmp_path / "f.safetensors"
    assert run("extract", "--dataset", "DTD", "--root", tmp_path, "-o", out).code == 0
    features = FeatureSet.load(out)
    assert (features.provenance["dataset"], features.provenance["templates"]) == ("dtd", ["{} texture."])
    ran = run("extract", "--dataset", "DTD", "--root", tmp_path, "--classes", "x, y, z", "-o", out, "--force")
    assert ran.code == 0
    assert FeatureSet.load(out).head.class_names == ("x", "y", "z")


def test_command_on_files(zoo: Path, tmp_path: Path, at_hand: Any) -> None:
    out = tmp_path / "f.safetensors"
    files = zoo / "bee" / "10.png", zoo / "ant" / "03.png"
    assert run("extract", *files, "--classes", "ant, bee", "-o", out).code == 0
    assert FeatureSet.load(out).paths == ("bee/10.png", "ant/03.png")


def test_command_says_what_was_done_before(zoo: Path, tmp_path: Path, at_hand: Any) -> None:
    out = tmp_path / "f.safetensors"
    ran = run("extract", zoo, "--strict", "--batch-size", 4, "-o", out)
    assert ran.code == 2
    assert ran.err.startswith("error: image 14 of 30: ")
    assert ran.err.count("\n") == 1
    ran = run("extract", zoo, "--batch-size", 4, "-o", out)
    assert ran.err.startswith("continuing: 12 of 30 images are done\n")
    assert "images/s" not in ran.err  # the time is that of the rest


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "needs either IMAGES or --dataset; got neither."),
        (("zoo", "--dataset", "dtd"), "needs either IMAGES or --dataset; got both."),
        (("--dataset", "dtd"), "the folder of the dataset dtd is not given. Name it: --root DIR."),
        (("--dataset", "dttd", "--root", "."), "unknown dataset 'dttd'; did you mean 'dtd'?"),
        (("nowhere",), "no file nowhere."),
        (("zoo", "--templates", "nowhere.txt"), "no file nowhere.txt."),
        (("zoo", "-o", "f.npz"), "cannot write f.npz: the name of a feature file ends in .safetensors."),
    ],
)
def test_command_refuses_in_one_line(
    zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_hand: Any, options: Sequence[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = run("extract", *(zoo if option == "zoo" else option for option in options))
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert message in ran.err
    assert list(tmp_path.iterdir()) == []


# With a model


def test_with_a_clip_of_random_weights(zoo: Path, tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason='transformers is not installed: pip install "kedge[hf]"')
    from encoder_tools import build

    clip, other = (build(tmp_path / f"clip{seed}", "clip", seed) for seed in (0, 1))
    out = tmp_path / "f.safetensors"
    ran = run("extract", zoo, "--encoder", clip, "--views", 2, "--device", "cpu", "-o", out)
    assert ran.code == 0, ran.err
    features, encoder = FeatureSet.load(out), load_encoder(str(clip), device="cpu")
    pixels = torch.stack([encoder.preprocessing(Image.open(zoo / path)) for path in features.paths or ()])
    torch.testing.assert_close(features.image_features, encoder.encode_images(pixels), rtol=0, atol=1e-5)
    assert features.head.logit_scale == encoder.logit_scale
    check_same_encoder(features, encoder)
    with pytest.raises(InputError, match="their weights_sha256 differ"):
        check_same_encoder(features, load_encoder(str(other), device="cpu"))
