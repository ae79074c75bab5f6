"""Pixels: our preprocessing against transformers' own PIL processors, file by file, and what is refused.

The largest difference of a normalised pixel, over all files: 2.4e-7 with CLIP's processor and 6e-8 with SigLIP's, in
transformers 4.57 and 5 alike: the rounding of float32, which is done once here and three times there.
"""

from __future__ import annotations

import io
import os
import struct
import tracemalloc
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from encoder_tools import FIVE, pixels, processor
from image_cases import BETTER, PLAIN, picture, write
from kedge.encoders.hf import CLIP_MEAN, CLIP_STD
from kedge.errors import FileError, InputError, SettingError
from kedge.images.folders import FORMATS
from kedge.images.pixels import Preprocessing, open_image, to_rgb

OURS = {
    "clip": Preprocessing(224, (224, 224), mean=CLIP_MEAN, std=CLIP_STD),
    "siglip": Preprocessing((224, 224), None, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)),
}
TOLERANCE = 5e-7
WHITE_TOO = [name for name in BETTER if "alpha" in name or "transparency" in name or name == "rgba"]


@pytest.mark.parametrize("kind", OURS)
@pytest.mark.parametrize("name", [*PLAIN, *BETTER])
def test_pixels_are_the_processors(name: str, kind: str, tmp_path: Path) -> None:
    path = write(tmp_path, name)
    ours = OURS[kind](open_image(path))
    theirs = pixels(processor(kind), open_image(path) if name in BETTER else Image.open(path))
    assert ours.dtype == torch.float32
    assert (ours - theirs).abs().max() <= TOLERANCE


@pytest.mark.skipif(not FIVE, reason="transformers 4 drops the transparency instead of laying the image on white")
@pytest.mark.parametrize("name", WHITE_TOO)
def test_transparent_images_are_laid_on_white_as_in_transformers_5(name: str, tmp_path: Path) -> None:
    path = write(tmp_path, name)
    assert (OURS["clip"](open_image(path)) - pixels(processor("clip"), Image.open(path))).abs().max() <= TOLERANCE


@pytest.mark.parametrize("filter_", ["nearest", "lanczos", "bilinear", "bicubic", "box", "hamming"])
def test_every_filter_is_the_processors(filter_: str) -> None:
    image = picture(97, 61)
    theirs = pixels(processor("clip", resample=Image.Resampling[filter_.upper()]), image)
    ours = Preprocessing(224, (224, 224), interpolation=filter_, mean=CLIP_MEAN, std=CLIP_STD)(image)
    assert (ours - theirs).abs().max() <= TOLERANCE


@pytest.mark.parametrize("crop", [(31, 50), (90, 20), (81, 99)])
def test_a_crop_beyond_the_image_is_black_as_the_processors(crop: tuple[int, int]) -> None:
    image = picture(70, 52)
    theirs = pixels(
        processor("clip", size={"shortest_edge": 40}, crop_size={"height": crop[0], "width": crop[1]}), image
    )
    assert (Preprocessing(40, crop, mean=CLIP_MEAN, std=CLIP_STD)(image) - theirs).abs().max() <= TOLERANCE


def test_an_odd_margin_is_split_to_even_for_open_clip() -> None:
    ramp = Image.fromarray(np.arange(7 * 4 * 3, dtype=np.uint8).reshape(4, 7, 3))  # 3 columns too many
    down, even = (Preprocessing(None, (4, 4), rescale=1.0, centre=centre)(ramp) for centre in ("down", "even"))
    assert down[0, 0, 0] == 1 * 3
    assert even[0, 0, 0] == 2 * 3  # 1.5 is rounded to the even number


def test_sixteen_bits_keep_their_greys() -> None:
    values = np.array([[0, 256, 32768, 65535]], dtype=np.uint16)
    assert np.asarray(to_rgb(Image.fromarray(values)))[0, :, 0].tolist() == [0, 1, 128, 255]
    assert np.asarray(to_rgb(Image.fromarray(values.astype(np.int32))))[0, :, 1].tolist() == [0, 1, 128, 255]


def test_exif_turns_the_image(tmp_path: Path) -> None:
    lying = Image.open(write(tmp_path, "exif-turned"))
    shown = open_image(tmp_path / "image")
    assert (lying.size, shown.size) == ((150, 211), (211, 150))
    assert np.array_equal(np.asarray(shown), np.rot90(np.asarray(lying), k=-1))
    assert to_rgb(shown).size == (211, 150)  # turned once


@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_orientation_is_pils(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    picture(20, 31).save(file, "PNG", exif=exif)
    assert np.array_equal(np.asarray(open_image(file)), np.asarray(ImageOps.exif_transpose(Image.open(file))))


def test_an_image_is_turned_even_if_the_rest_of_its_exif_block_is_broken() -> None:
    def entry(tag: int, kind: int, value: bytes) -> bytes:
        return struct.pack(">HHL", tag, kind, 1) + value

    broken = entry(0x0112, 3, b"\0\x06\0\0") + entry(0x0111, 1, b"\xff\xff\xff\xff")  # an offset that is a byte
    file = io.BytesIO()
    picture(20, 31).save(file, "PNG", exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x02" + broken + b"\0\0\0\0")
    with pytest.raises(struct.error):
        ImageOps.exif_transpose(Image.open(file))
    assert np.array_equal(np.asarray(open_image(file)), np.rot90(np.asarray(picture(20, 31)), k=-1))


def test_an_exif_block_that_is_none_does_not_lose_the_image() -> None:
    file = io.BytesIO()
    picture(20, 31).save(file, "PNG", exif=b"garbage")
    assert open_image(file).size == (20, 31)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "TIFF"])
def test_truncated_images_are_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "cut"
    whole = io.BytesIO()
    picture(150, 211).save(whole, kind)
    path.write_bytes(whole.getvalue()[: len(whole.getvalue()) // 2])
    with pytest.raises(FileError, match=r"cut is (a damaged or truncated image|not an image)") as caught:
        open_image(path)
    assert "\n" not in str(caught.value)


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("not an image")
    (tmp_path / "empty.png").touch()
    for name, words in [("text.png", "not an image"), ("empty.png", "is empty"), ("none.png", "no file")]:
        with pytest.raises(FileError, match=words):
            open_image(tmp_path / name)
    Image.fromarray(np.ones((2, 2), np.float32)).save(tmp_path / "float.tiff")
    with pytest.raises(FileError, match=r"float.tiff: floating-point pixels"):
        open_image(tmp_path / "float.tiff")
    Image.fromarray(np.full((2, 2), 70000, np.int32)).save(tmp_path / "wide.tiff")
    with pytest.raises(FileError, match=r"wide.tiff: pixels from 70000 to 70000"):
        open_image(tmp_path / "wide.tiff")


@pytest.mark.parametrize(("kind", "name"), [("EPS", "a.jpg"), ("TGA", "a.png"), ("ICO", "a.png"), ("PCX", "a.gif")])
def test_unwanted_formats_are_refused_whatever_their_name(
    kind: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PIL would hand an EPS file to Ghostscript, which is a program that runs what it reads."""
    picture(20, 31).save(tmp_path / name, kind)
    monkeypatch.setattr("subprocess.Popen.__init__", lambda *_, **__: pytest.fail("started a program"))
    for source in (tmp_path / name, io.BytesIO((tmp_path / name).read_bytes())):
        with pytest.raises(FileError, match=r"is not an image that kedge can read \(JPEG, PNG, .* convert it to PNG"):
            open_image(source)


@pytest.mark.parametrize("content", [b"%PDF-1.7\n%%EOF\n", b"%!PS-Adobe-3.0 EPSF-3.0\n", b"8BPS\0\1" + bytes(40)])
def test_beginnings_of_other_formats_are_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(FileError, match="is not an image that kedge can read"):
        open_image(tmp_path / "a.png")


def test_every_listed_format_is_read(tmp_path: Path) -> None:
    Image.init()
    for kind, suffixes in FORMATS.items():
        for suffix in suffixes if kind in Image.OPEN else ():
            picture(20, 31).save(tmp_path / f"a{suffix}", kind)
            assert open_image(tmp_path / f"a{suffix}").size == (20, 31)
    picture(20, 31).save(tmp_path / "b.jpg", "MPO", save_all=True, append_images=[picture(20, 31)])  # of some cameras
    assert open_image(tmp_path / "b.jpg").size == (20, 31)


@pytest.mark.parametrize("pixels_", [1001, 5000])  # PIL warns above its limit, and refuses above twice of it
def test_bombs_are_refused_not_warned_of(pixels_: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("L", (pixels_, 1)).save(tmp_path / "bomb.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(FileError, match=r"bomb.png has more than 1,000 pixels"):
            open_image(tmp_path / "bomb.png")


def test_an_image_that_would_take_too_much_memory_is_refused_before_it_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture(60, 50).save(tmp_path / "a.jp2")
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("decoded"))
    monkeypatch.setattr("kedge.images.pixels.IMAGE_BYTES", 50_000)
    with pytest.raises(FileError, match=r"a.jp2: an image of 60×50 pixels .* 72 kB of memory; the limit for one image"):
        open_image(tmp_path / "a.jp2")
    monkeypatch.setattr("kedge.images.pixels.IMAGE_BYTES", 100_000)
    monkeypatch.setenv("KEDGE_MAX_BYTES", "50000")
    with pytest.raises(FileError, match=r"a.jp2: an image of 60×50 .* the limit is 50 kB. Use less, or set KEDGE_MAX"):
        open_image(tmp_path / "a.jp2")


def test_conversion_takes_no_more_memory_than_the_images_themselves() -> None:
    """A 16-bit PNG of 9,400×9,400 pixels took 2 GB; numpy's share of it was 26 bytes per pixel."""
    sixteen = Image.fromarray(np.full((2000, 2000), 256, np.uint16))
    tracemalloc.start()
    try:
        shown = to_rgb(sixteen)
        assert tracemalloc.get_traced_memory()[1] < 5 * 2000 * 2000
    finally:
        tracemalloc.stop()
    assert shown.getextrema() == ((1, 1),) * 3


@pytest.mark.parametrize("name", ["rgba", "grey with alpha", "palette with transparency", "16-bit", "cmyk", "1-bit"])
def test_bands_do_not_show(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, name)
    whole = np.asarray(open_image(path))
    monkeypatch.setattr("kedge.images.pixels.BAND", 1000)  # six rows
    assert np.array_equal(np.asarray(open_image(path)), whole)


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


ZIP_BOMB = zlib.compress(bytes(20_000_000))
ODD_CHUNKS = {
    "huge profile": chunk(b"iCCP", b"x\0\0" + ZIP_BOMB),
    "huge text": chunk(b"zTXt", b"x\0\0" + ZIP_BOMB),
    "much text": b"".join(chunk(b"tEXt", b"k%d\0" % i + bytes(900_000)) for i in range(80)),
    "huge exif": chunk(b"eXIf", b"MM\0*\0\0\0\x08\xff\xff" + bytes(12 * 65535)),
    "exif in a loop": chunk(
        b"eXIf", b"MM\0*\0\0\0\x08\0\x01" + struct.pack(">HHLL", 0x8769, 4, 1, 8) + struct.pack(">L", 8)
    ),
}


@pytest.mark.parametrize("name", ODD_CHUNKS)
def test_odd_metadata_is_passed_over_or_one_line(name: str) -> None:
    file = io.BytesIO()
    picture(20, 31).save(file, "PNG")
    whole = file.getvalue()
    odd = whole[:33] + ODD_CHUNKS[name] + whole[33:]  # after the header
    if "exif" in name:
        assert open_image(io.BytesIO(odd)).size == (20, 31)
        return
    with pytest.raises(FileError, match=r"is a damaged or truncated image: .*MAX_TEXT.*\. Copy or make it again\.$"):
        open_image(io.BytesIO(odd))


@pytest.mark.parametrize("kind", ["GIF", "PNG", "TIFF", "WEBP"])
def test_of_several_frames_the_first_is_read(kind: str) -> None:
    file = io.BytesIO()
    frames = [Image.new("RGB", (16, 16), colour) for colour in ("white", "black", "red")]
    frames[0].save(file, kind, save_all=True, append_images=frames[1:])
    assert open_image(file).getextrema() == ((255, 255),) * 3


@pytest.mark.skipif(os.name == "nt", reason="no named pipes in folders on Windows")
def test_pipes_and_devices_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.jpg")  # to open it would wait for ever
    for path in (tmp_path / "a.jpg", Path("/dev/zero")):
        with pytest.raises(FileError, match="is not a regular file"):
            open_image(path)


def test_a_long_thin_image_is_not_blown_up() -> None:
    with pytest.raises(InputError, match="too long and thin"):
        OURS["clip"](Image.new("RGB", (1, 20000)))
    assert OURS["siglip"](Image.new("RGB", (1, 20000))).shape == (3, 224, 224)


def test_views_begin_with_the_image_and_repeat_with_the_seed() -> None:
    ours = Preprocessing(32, (32, 24))
    image = picture(90, 61)
    views = ours.views(image, 6, np.random.default_rng(3))
    assert views.shape == (6, 3, 32, 24)
    assert torch.equal(views[0], ours(image))
    assert torch.equal(views, ours.views(image, 6, np.random.default_rng(3)))
    assert not torch.equal(views[1:], ours.views(image, 6, np.random.default_rng(4))[1:])
    assert len(torch.unique(views, dim=0)) == 6
    assert ours.views(image, 1, np.random.default_rng(0)).shape[0] == 1


def test_views_are_crops_of_the_image_half_of_them_mirrored() -> None:
    ramp = Image.fromarray(np.repeat(np.arange(0, 240, 2, dtype=np.uint8)[None, :, None], 80, 0).repeat(3, 2))
    views = Preprocessing((20, 20), None).views(ramp, 401, np.random.default_rng(0))[1:, 0]
    rising = views[:, 10, -3] > views[:, 10, 2]
    assert 0.4 < rising.float().mean() < 0.6
    width = (views[:, 10, 17] - views[:, 10, 2]).abs() * 255 / 2 / 15 * 20  # columns of the image seen
    assert width.min() > 0.8 * np.sqrt(0.08 * 80 * 120 * 3 / 4)
    assert width.max() < 1.2 * np.sqrt(80 * 120 * 4 / 3)
    assert width.max() > 2 * width.min()


@pytest.mark.parametrize("size", [(1, 1), (1, 300), (300, 2)])
def test_views_of_images_that_hold_no_crop(size: tuple[int, int]) -> None:
    views = Preprocessing((8, 8), None).views(picture(*size), 5, np.random.default_rng(0))
    assert views.shape == (5, 3, 8, 8)
    assert views.isfinite().all()


def test_settings_that_can_not_be_are_refused() -> None:
    with pytest.raises(SettingError, match="did you mean 'bicubic'"):
        Preprocessing(32, (32, 32), interpolation="bicubik")
    with pytest.raises(SettingError, match="without a crop"):
        Preprocessing(32, None)
    with pytest.raises(SettingError, match="must be positive"):
        Preprocessing(0, (32, 32))
