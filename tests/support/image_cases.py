"""Image files of every awkward kind, and what may be expected of them: for the tests of pixels."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

Save = Callable[[Image.Image, io.BytesIO], None]


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """A picture with edges, gradients and noise, so that every resampling filter has something to do."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    waves = [127 + 90 * np.sin(x / (3 + c) + y / (7 - c)) + 60 * ((x // 5 + y // 3) % 2) for c in range(3)]
    noisy = np.stack(waves, axis=2) + rng.normal(0, 20, (height, width, 3))
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


def _alpha(image: Image.Image) -> Image.Image:
    image = image.convert("RGBA")
    image.putalpha(Image.linear_gradient("L").resize(image.size))
    return image


def _sixteen(image: Image.Image) -> Image.Image:
    grey = np.asarray(image.convert("L")).astype(np.uint16)
    return Image.fromarray(grey * 257)


def _turned(image: Image.Image, to: io.BytesIO) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be shown turned by 90° clockwise
    image.save(to, "JPEG", quality=95, exif=exif)


def _save(kind: str) -> Save:
    return lambda image, to: image.save(to, kind)


_png = _save("PNG")

# Files that both libraries' own conversion to RGB reads as open_image does.
PLAIN: dict[str, Callable[[], bytes]] = {}
# Files that are read better here (see the table in kedge.images): compared from the RGB image on.
BETTER: dict[str, Callable[[], bytes]] = {}


def _case(where: dict[str, Callable[[], bytes]], name: str, make: Callable[[], Image.Image], save: Save = _png) -> None:
    def encoded() -> bytes:
        to = io.BytesIO()
        save(make(), to)
        return to.getvalue()

    where[name] = encoded


for _size in [(224, 224), (333, 251), (225, 448), (7, 500), (31, 17), (640, 225), (35, 32)]:
    _case(PLAIN, f"odd {_size[0]}x{_size[1]}", lambda size=_size: picture(*size))
_case(PLAIN, "jpeg", lambda: picture(333, 251), _save("JPEG"))
_case(PLAIN, "greyscale", lambda: picture(150, 211).convert("L"))
_case(PLAIN, "1-bit", lambda: picture(150, 211).convert("1"))
_case(PLAIN, "cmyk", lambda: picture(150, 211).convert("CMYK"), _save("JPEG"))
_case(PLAIN, "palette", lambda: picture(150, 211).convert("P", palette=Image.Palette.ADAPTIVE))
_case(PLAIN, "1x1", lambda: picture(1, 1))
_case(PLAIN, "huge", lambda: picture(600, 400).resize((6000, 4000)), _save("JPEG"))
_case(BETTER, "rgba", lambda: _alpha(picture(150, 211)))
_case(BETTER, "grey with alpha", lambda: _alpha(picture(150, 211)).convert("LA"))
_case(
    BETTER,
    "palette with transparency",
    lambda: picture(150, 211).convert("P", palette=Image.Palette.ADAPTIVE),
    lambda image, to: image.save(to, "PNG", transparency=image.getpixel((0, 0))),
)
_case(BETTER, "16-bit", lambda: _sixteen(picture(150, 211)))
_case(BETTER, "exif-turned", lambda: picture(150, 211), _turned)


def write(folder: Path, name: str) -> Path:
    """The file of a case."""
    path = folder / "image"
    path.write_bytes((PLAIN | BETTER)[name]())
    return path
