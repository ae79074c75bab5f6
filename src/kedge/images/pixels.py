"""From image files to the pixels that an encoder expects, with PIL and numpy only.

`open_image` reads a file as upright RGB; `Preprocessing` resizes, crops and normalises it.

The table shows how `open_image` reads each kind of image, and where transformers and open_clip differ. From the RGB
image on, all three agree within 2.4e-7 at every size (tests/images/test_pixels.py, tests/encoders/test_openclip.py).

| image                       | here                       | elsewhere                                               |
|-----------------------------|----------------------------|---------------------------------------------------------|
| greyscale                   | PIL's conversion           | the same                                                |
| CMYK                        | PIL's conversion           | the same; open_clip's is off by 1 of 255 at most, as it |
|                             |                            | converts after resizing                                 |
| 1-bit, palette              | its colours, then resized  | transformers: the same; open_clip resizes first, which  |
|                             |                            | picks nearest pixels                                    |
| transparent, also palettes  | on a white background      | transformers 5: the same; 4.57 and open_clip ignore     |
|                             |                            | transparency and show the hidden colours                |
| 16-bit greyscale            | divided by 257, rounded    | all values above 255 become white                       |
| EXIF orientation            | turned upright             | ignored                                                 |
| several frames              | the first                  | the same                                                |
| floating point              | an error: range unknown    | clipped to 0…255                                        |
| damaged or truncated        | a `FileError`              | an error                                                |
| a format not in `FORMATS`   | a `FileError`              | read; for EPS, PIL starts Ghostscript                   |
| more than PIL's pixel limit | a `FileError`              | a warning, up to twice the limit                        |
| more than 1 GiB of memory   | a `FileError`, by its size | read; a 16-bit PNG within PIL's limit can take 2 GB     |

Colour profiles are ignored, here and elsewhere. The memory that an image takes is estimated from its size, mode and
format before it is decoded. Conversion to RGB goes by bands of rows: it takes the decoded image, the RGB image, and a
second one if it has to be turned.
"""

from __future__ import annotations

import contextlib
import math
import os
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import torch
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from ..errors import FileError, InputError, SettingError, did_you_mean
from ..files import existing
from ..memory import check_memory, in_bytes
from .folders import FORMATS
from .quiet import without_warnings

Pixels = np.ndarray[Any, np.dtype[np.float32]]
INTERPOLATIONS = {mode.name.lower(): mode for mode in Image.Resampling}
TURNS = {  # by EXIF orientation; 1 is upright
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
IMAGE_BYTES = 1 << 30  # the most memory that one image may take
STORED = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2, "I;16L": 2, "I;16N": 2}  # PIL's bytes per pixel; others: 4
RGB_BYTES = 4  # PIL's bytes per pixel of an RGB image
DECODER_BYTES = {"JPEG": 6, "MPO": 6, "WEBP": 13, "TIFF": 4, "JPEG2000": 20, "AVIF": 8}  # per pixel, at most; measured
BAND = 1 << 20  # pixels that are converted to RGB at one time
VIEW_AREA = (0.08, 1.0)  # share of the image area, uniform
VIEW_RATIO = (3 / 4, 4 / 3)  # width : height, log-uniform
VIEW_TRIES = 10  # random crops to try until one fits into the image; then the largest central crop is used


def open_image(
    source: str | Path | IO[bytes], name: str = "", *, enough: int | None = None, most_pixels: int | None = None
) -> Image.Image:
    """Read an image file as upright RGB; raises FileError if it is unreadable, truncated or too large.

    name: what messages call the image, if it is not its path. enough: a JPEG may be decoded at half, quarter or eighth
    size, if its edges stay at least so long; that is quicker. most_pixels: a limit below PIL's.
    """
    if isinstance(source, (str, os.PathLike)):
        source = existing(source)
    name = name or str(source if isinstance(source, Path) else getattr(source, "name", "the image"))
    try:
        with without_warnings(), Image.open(source, formats=_formats()) as image:  # PIL's, about odd metadata
            _check_size(image, most_pixels)
            if enough is not None:
                image.draft(None, (enough, enough))
            image.load()  # decode everything now, so that a truncated file fails here
            return to_rgb(image)
    except Image.DecompressionBombError as error:
        raise FileError(
            f"{name} has more than {Image.MAX_IMAGE_PIXELS:,} pixels, the limit against decompression bombs. "
            "Make it smaller, or raise PIL.Image.MAX_IMAGE_PIXELS if you trust it."
        ) from error
    except UnidentifiedImageError as error:
        raise FileError(
            f"{name} is not an image that kedge can read ({', '.join(_formats())}). Remove it, or convert it to PNG."
        ) from error
    except InputError as error:
        raise FileError(f"{name}: {error}") from error
    except Exception as error:  # decoders raise OSError, SyntaxError, struct.error, … on damaged data
        if isinstance(error, FileError):
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        raise FileError(f"{name} is a damaged or truncated image: {reason}. Copy or make it again.") from error


def _check_size(image: Image.Image, most_pixels: int | None) -> None:
    """Raise an error if the image has too many pixels, or if making it upright RGB would take too much memory."""
    if image.width * image.height > (Image.MAX_IMAGE_PIXELS or math.inf):  # PIL itself refuses twice as many
        raise Image.DecompressionBombError
    each = STORED.get(image.mode, 4) + max(DECODER_BYTES.get(image.format or "", 0), 2 * RGB_BYTES)
    what = f"an image of {image.width}×{image.height} pixels ({image.format}, mode {image.mode})"
    needed = each * image.width * image.height
    if most_pixels is not None and image.width * image.height > most_pixels:
        raise InputError(f"{what} is too large; the limit is {most_pixels:,} pixels. Make it smaller.")
    if needed > IMAGE_BYTES:
        raise InputError(
            f"{what} would take {in_bytes(needed)} of memory; the limit for one image is {in_bytes(IMAGE_BYTES)}. "
            "Make it smaller."
        )
    check_memory(needed, what)


@cache
def _formats() -> list[str]:
    """Those of `FORMATS` that this version of PIL has. The content decides, whatever the file's name is."""
    Image.init()
    return [name for name in FORMATS if name in Image.OPEN]


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert a PIL image to upright RGB (see the module's table)."""
    turn = _turn(image)
    if image.mode != "RGB" or image.has_transparency_data:
        rgb, rows = Image.new("RGB", image.size), max(1, BAND // image.width)
        for top in range(0, image.height, rows):
            rgb.paste(_band_to_rgb(image.crop((0, top, image.width, min(top + rows, image.height)))), (0, top))
        image = rgb
    if turn is not None:
        image = image.transpose(turn)
        image.info.clear()  # its EXIF block would have it turned again
    return image


def _band_to_rgb(band: Image.Image) -> Image.Image:
    """Convert some rows of an image to RGB."""
    if band.mode.startswith("I"):  # 16 bits per pixel; older PIL versions use 32
        values = np.asarray(band)
        if values.min() < 0 or values.max() > 0xFFFF:
            raise InputError(
                f"pixels from {values.min()} to {values.max()}; 16-bit images have 0 to 65535. Save it with 8 bits."
            )
        band = Image.fromarray(((values.astype(np.uint32) + 128) // 257).astype(np.uint8))
    elif band.mode == "F":
        raise InputError("floating-point pixels, whose range is unknown. Save it with 8 or 16 bits.")
    elif band.has_transparency_data:
        band = band.convert("RGBA")
        band = Image.alpha_composite(Image.new("RGBA", band.size, "white"), band)
    return band.convert("RGB")


def as_picture(image: Any) -> Image.Image:
    """A PIL image or a uint8 array (h×w, h×w×3 or h×w×4) as a PIL image."""
    if isinstance(image, Image.Image):
        return image
    plain = isinstance(image, np.ndarray) and not isinstance(image, np.ma.MaskedArray)
    if plain and image.dtype == np.uint8 and image.size and image.shape[2:] in ((), (3,), (4,)) and image.ndim > 1:
        return Image.fromarray(np.ascontiguousarray(image))
    if plain:
        found = f"an array of {image.dtype} and shape {image.shape}"
    elif isinstance(image, Tensor):
        found = "a torch tensor; pass image.cpu().numpy() with channels last, or features to kedge.adapt"
    else:
        found = type(image).__name__
    wanted = "paths, PIL images or numpy arrays of uint8 (0 to 255), h×w, h×w×3 or h×w×4"
    raise InputError(f"images must be {wanted}; got {found}.")


def _turn(image: Image.Image) -> Image.Transpose | None:
    """The rotation in the EXIF block. (PIL's own function fails if the rest of the block is broken.)"""
    with contextlib.suppress(Exception):
        return TURNS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    return None


@dataclass(frozen=True)
class Preprocessing:
    """From an RGB image to the input of an encoder: resize, centre crop, (value · rescale − mean) / std.

    | field         | meaning                                                                                    |
    |---------------|--------------------------------------------------------------------------------------------|
    | resize        | length of the shorter edge, or exact (height, width); None: no resize                      |
    | crop          | (height, width) of the centre crop, padded with black; None: no crop                       |
    | interpolation | a PIL filter: "bicubic", "bilinear", "lanczos", …                                          |
    | centre        | rounding of an odd margin m: "down" (transformers, ⌊m/2⌋) or "even" (open_clip)            |
    """

    resize: int | tuple[int, int] | None
    crop: tuple[int, int] | None
    interpolation: str = "bicubic"
    rescale: float = 1 / 255
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    std: tuple[float, float, float] = (1.0, 1.0, 1.0)
    centre: Literal["down", "even"] = "down"

    def __post_init__(self) -> None:
        if self.interpolation not in INTERPOLATIONS:
            raise SettingError(
                f"unknown interpolation {self.interpolation!r}{did_you_mean(self.interpolation, INTERPOLATIONS)}"
            )
        if self.crop is None and not isinstance(self.resize, tuple):
            raise SettingError(
                f"resize={self.resize} without a crop gives images of different sizes. Set an exact size or a crop."
            )
        if min(self.size) < 1 or (isinstance(self.resize, int) and self.resize < 1) or min(self.std) <= 0:
            raise SettingError(f"sizes and std must be positive: resize={self.resize}, crop={self.crop}, {self.std=}.")

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the output."""
        size = self.crop or self.resize
        assert isinstance(size, tuple)
        return size

    def __call__(self, image: Image.Image) -> Tensor:
        """Preprocess an image: 3×h×w float32."""
        return torch.from_numpy(self._central(image))

    def _central(self, image: Image.Image) -> Pixels:
        image = self._resized(to_rgb(image))
        if self.crop:
            height, width = self.crop
            top, left = self._margin(image.height - height), self._margin(image.width - width)
            image = image.crop((left, top, left + width, top + height))
        return self._normalised(image)

    def views(self, image: Image.Image, count: int, rng: np.random.Generator) -> Tensor:
        """count×3×h×w: view 0 is the image itself; the others are random crops, resized and half of them mirrored.

        A crop has 8 to 100 % of the image area, and 3/4 to 4/3 of the aspect ratio of the output.
        """
        image = to_rgb(image)
        height, width = self.size
        shown = [self._central(image)]
        for _ in range(count - 1):
            box = _random_box(image.size, width / height, rng)
            view = image.resize((width, height), INTERPOLATIONS[self.interpolation], box=box)
            shown.append(self._normalised(ImageOps.mirror(view) if rng.random() < 0.5 else view))
        return torch.from_numpy(np.stack(shown))  # torch would start threads of its own in every decoding thread

    def describe(self) -> dict[str, Any]:
        """All fields, as JSON types."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    def _resized(self, image: Image.Image) -> Image.Image:
        if self.resize is None:
            return image
        if isinstance(self.resize, tuple):
            height, width = self.resize
        else:
            short = min(image.size)
            width, height = (
                int(self.resize * edge / short) for edge in image.size
            )  # rounded down, as in transformers and open_clip
            if width * height > (Image.MAX_IMAGE_PIXELS or math.inf):
                raise InputError(
                    f"an image of {image.width}×{image.height} pixels is too long and thin: with a shorter edge of "
                    f"{self.resize} it would have {width * height:,} pixels. Crop it."
                )
        return image.resize((width, height), INTERPOLATIONS[self.interpolation])

    def _margin(self, pixels: int) -> int:
        """Pixels before the crop, if the image has this many more than the crop (or, if negative, fewer)."""
        return pixels // 2 if self.centre == "down" else round(pixels / 2)

    @cached_property
    def _table(self) -> Pixels:
        """256×3: the normalised value of each 8-bit value in each channel, rounded once."""
        values = np.arange(256, dtype=np.float64)[:, None] * self.rescale
        table: np.ndarray[Any, Any] = (values - np.array(self.mean)) / np.array(self.std)
        return table.astype(np.float32)

    def _normalised(self, image: Image.Image) -> Pixels:
        channels = np.asarray(image).transpose(2, 0, 1)
        return np.stack([self._table[:, c][channels[c]] for c in range(3)])


def _random_box(size: tuple[int, int], ratio: float, rng: np.random.Generator) -> tuple[float, float, float, float]:
    """(left, top, right, bottom) of a random crop inside an image of (width, height)."""
    width, height = size
    for _ in range(VIEW_TRIES):
        area = width * height * rng.uniform(*VIEW_AREA)
        stretch = ratio * np.exp(rng.uniform(*np.log(VIEW_RATIO)))
        w, h = round(np.sqrt(area * stretch)), round(np.sqrt(area / stretch))
        if 0 < w <= width and 0 < h <= height:
            left, top = rng.integers(width - w, endpoint=True), rng.integers(height - h, endpoint=True)
            return float(left), float(top), float(left + w), float(top + h)
    w, h = min(width, height * ratio), min(height, width / ratio)
    return (width - w) / 2, (height - h) / 2, (width + w) / 2, (height + h) / 2
