"""Images that are damaged, huge, odd, or no images, in a folder among good ones: left out, with one line each."""

from __future__ import annotations

import io
import json
import os
import struct
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from runner import Campaign, Fault, Random, Run

FORMATS = {"png": "PNG", "jpg": "JPEG", "webp": "WEBP", "bmp": "BMP", "gif": "GIF", "tif": "TIFF", "ppm": "PPM"}
MODES = ["1", "L", "LA", "P", "PA", "I;16", "I", "F", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "HSV"]
SIZES = [(1, 1), (2, 3), (1, 5_000), (5_000, 1), (50_000, 1), (1, 50_000), (64, 48)]
NAMES = [
    *("a\nb", "\x1b[31mred", "‮gnp", "=cmd|'x'!A0", "-o", "ä ö", "a" * 240, "'", '"', "a,b", "%s", "{}", " ", "$(id)"),
    *(os.fsdecode(b"\xff\xfe"), os.fsdecode(b"caf\xe9"), "\r", "\t", "a\\b", "nan"),
]
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n(touched) (w) file\n%%EOF\n"
OTHERS = [
    EPS,
    b"%PDF-1.4\n1 0 obj\n",
    b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>",
    b"",
    b"\0" * 1000,
    b"GIF89a",
    b"\x89PNG\r\n\x1a\n",
    b"\xff\xd8\xff\xe0",
    b"II*\0\x08\0\0\0\xff\xff",
    b"#!/bin/sh\nexit\n",
]


def picture(random: Random) -> Image.Image:
    """An image of some mode and size."""
    size = SIZES[random.integers(len(SIZES))]
    grey = Image.fromarray(random.integers(0, 256, (size[1], size[0]), dtype=np.uint8))
    mode = MODES[random.integers(len(MODES))]
    try:
        return grey.convert(mode) if mode != "I;16" else Image.fromarray(np.asarray(grey).astype(np.uint16) * 257)
    except ValueError:  # there is no way to this mode
        return grey.convert("RGB").convert(mode) if mode in ("LAB", "HSV") else grey


def encoded(random: Random) -> bytes:
    """A good image file, with one or more frames and perhaps with metadata that is rubbish."""
    kind = str(random.choice(list(FORMATS.values())))
    options: dict[str, object] = {}
    if kind in ("GIF", "WEBP", "TIFF", "PNG") and random.random() < 0.3:
        options = {"save_all": True, "append_images": [picture(random).convert("RGB") for _ in range(2)]}
    if kind in ("JPEG", "WEBP", "PNG") and random.random() < 0.4:
        options["exif"] = b"Exif\0\0" + b"II*\0\x08\0\0\0" * int(random.integers(0, 2)) + random.bytes(60)
    for image in (picture(random), Image.new("RGB", (9, 7), "red")):
        file = io.BytesIO()
        try:
            image.save(file, kind, **options)
        except Exception:  # this format cannot keep that mode or size
            continue
        return file.getvalue()
    return OTHERS[0]


def damaged(random: Random, content: bytes) -> bytes:
    """The bytes cut off, with bits turned, or with a part replaced."""
    if not content:
        return content
    at = int(random.integers(len(content)))
    match random.integers(4):
        case 0:
            return content[:at]
        case 1:
            return content[:at] + random.bytes(8) + content[at + 8 :]
        case 2:
            at = min(at, int(random.integers(1, 64)))  # in the header
            return content[:at] + random.bytes(2) + content[at + 2 :]
        case _:
            flipped = bytearray(content)
            for bit in random.integers(8 * len(content), size=random.integers(1, 20)):
                flipped[bit // 8] ^= 1 << bit % 8
            return bytes(flipped)


def bomb(random: Random) -> bytes:
    """A PNG that is small as a file and large in memory."""
    if random.random() < 0.5:
        return _black_png(
            9_400, *[(16, 0), (8, 6), (1, 0)][random.integers(3)], whole=True
        )  # PIL takes that many pixels
    side = int(random.choice([12_000, 30_000, 65_000, 2**31 - 1]))
    return _black_png(side, *[(8, 0), (16, 0), (8, 2), (16, 6), (1, 0)][random.integers(5)], whole=False)


@cache
def _black_png(side: int, depth: int, colours: int, *, whole: bool) -> bytes:
    """A black square; not `whole`: it ends early."""
    channels = {0: 1, 2: 3, 6: 4}[colours]
    size = side * (1 + side * channels * depth // 8) if whole else 1 << 20
    return (
        b"\x89PNG\r\n\x1a\n"
        + _chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, depth, colours, 0, 0, 0))
        + _chunk(b"IDAT", zlib.compress(bytes(size), 1))
        + _chunk(b"IEND", b"")
    )


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def odd_entry(random: Random, path: Path) -> None:
    """Something at this path that is not a file of its own."""
    match random.integers(7):
        case 0:
            os.mkfifo(path)
        case 1:
            path.symlink_to(
                str(random.choice(["/dev/zero", "/dev/full", "/dev/null", "/proc/self/mem", "/etc/passwd"]))
            )
        case 2:
            path.symlink_to(path.parent)
        case 3:
            path.symlink_to(path.name)
        case 4:
            path.symlink_to("nowhere.png")
        case 5:
            path.mkdir()
        case _:
            path.write_bytes(damaged(random, encoded(random)))
            path.chmod(0)


def hostile(random: Random, folder: Path) -> None:
    """One more hostile entry in the folder."""
    stem = str(NAMES[random.integers(len(NAMES))]) if random.random() < 0.3 else f"x{random.integers(10**6)}"
    path = folder / f"{stem}.{random.choice(list(FORMATS))}"
    makers: list[Callable[[], bytes]] = [
        lambda: encoded(random),
        lambda: damaged(random, encoded(random)),
        lambda: damaged(random, encoded(random)),
        lambda: bomb(random),
        lambda: OTHERS[random.integers(len(OTHERS))],
    ]
    try:
        if random.random() < 0.15:
            odd_entry(random, path)
        else:
            path.write_bytes(makers[random.integers(len(makers))]())
    except FileExistsError:
        return


def conduct(random: Random, folder: Path, run: Run) -> None:
    """Put hostile entries into the folder of photos and label it."""
    photos = folder / "photos"
    if random.random() < 0.1:
        (photos / os.fsdecode(b"caf\xe9")).mkdir()
    if random.random() < 0.2:  # folders that link to each other
        for one in ("red", "green", "blue"):
            for two in ("red", "green", "blue"):
                (photos / one / two).symlink_to(photos / two)
    places = [
        photos / "red",
        photos / "green",
        *(path for path in photos.iterdir() if path.name not in ("red", "green")),
    ]
    for _ in range(random.integers(1, 6)):
        hostile(random, places[random.integers(len(places))])
    words = [["--encoder", "tiny"], ["--encoder", "tiny", "--classes", "red,green,blue"]][random.integers(2)]
    commands = [
        ["adapt", "photos", "--out", "out/labels.csv"],
        ["adapt", "photos", "--out", "out/labels.json", "--sort-into", "out/sorted"],
        ["adapt", "photos", "--json"],
        ["adapt", "photos"],
        ["extract", "photos", "-o", "out/x.safetensors", "--json"],
        ["extract", "photos", "-o", "out/x.safetensors", "--views", "2"],
        ["extract", "photos", "-o", "out/x.safetensors", "--strict"],
        ["extract", "photos", "-o", "out/x.safetensors", "--workers", "1"],
    ]
    command = commands[random.integers(len(commands))]
    ran = run([*command, *words])
    if (folder / "touched").exists():
        raise Fault("the EPS file ran")
    if ran.code == 0 and command[0] == "extract" and "--json" in command and json.loads(ran.out)["images"] < 12:
        raise Fault("a good image was left out")
    for entry in (folder / "out").glob("sorted/**/*"):
        if entry.is_symlink() or not (entry.is_file() or entry.is_dir()):
            raise Fault(f"{entry} was copied, and is no file")


def conduct_opening(random: Random, folder: Path, run: Run) -> None:
    """Open one hostile image by the library."""
    hostile(random, folder / "out")
    run(
        before="""
from kedge import KedgeError
from kedge.images.pixels import open_image
for path in Path("out").iterdir():
    try:
        open_image(path)
    except KedgeError as error:
        assert "\\n" not in str(error), "a message of several lines"
"""
    )


@pytest.mark.fuzz
def test_hostile_images(campaign: Campaign) -> None:
    campaign("images", conduct, trials=24)


@pytest.mark.fuzz
def test_opening_hostile_images(campaign: Campaign) -> None:
    campaign("images-opened", conduct_opening, trials=150)
