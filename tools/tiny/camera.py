"""Photograph the drawings of the test style with a simulated camera.

    python tools/tiny/camera.py WORK --strength 0.7 --seed 0

Each drawing lies as a sticker on a surface (paper, wood, card, cloth or a wall), seen from the side, in uneven light of
some colour, by a camera that is slightly out of focus and noisy. Each effect has a random degree. With u ~ U(0, 1),
drawn separately each time, and s the overall strength:

| step        | drawn                                                              | what                          |
|-------------|--------------------------------------------------------------------|-------------------------------|
| place       | turn N(0, 13°·s); size 0.62 to 0.86; shift up to 0.13·s            | of the sticker                |
| perspective | N(0, 0.085·s) for each corner                                      | seen from the side            |
| shadow      | darkness 0.35 u, shifted by up to 3 pixels                         | of the sticker                |
| light       | slope 0.45 u·s, darker edges 0.18 u·s, in 40 % a shadow of 0.4 u·s | from one side                 |
| its colour  | N(0, 0.14·s) from blue to red, N(0, 0.06·s) from magenta to green  |                               |
| exposure    | N(1 − 0.12 s, 0.2·s); saturation N(1 − 0.1 s, 0.2·s)               | of the camera                 |
| haze        | 0.1 u·s                                                            | towards grey                  |
| focus       | σ = (0.15 + 1.25 u^1.5)·s pixels                                   | Gaussian blur                 |
| sensor      | noise of σ = (0.008 + 0.04 u)·s·√(0.3 + brightness)                | shot and read noise           |

The strength is chosen by the model's zero-shot accuracy alone. The same seed gives the same bytes. Writes
WORK/images/CLASS/NUMBER.webp.
"""

from __future__ import annotations

import argparse
import colorsys
import shutil
from pathlib import Path

import numpy as np
from concepts import read_concepts, read_drawings
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

SIDE, PER_CLASS, QUALITY = 96, 20, 75
SQUARE = np.array([[-1.0, -1.0], [1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]])  # the corners of a drawing
DOWN, ACROSS = np.mgrid[-1 : 1 : SIDE * 1j, -1 : 1 : SIDE * 1j]
WOODS = np.array([[0.72, 0.52, 0.33], [0.55, 0.36, 0.22], [0.82, 0.68, 0.5], [0.38, 0.26, 0.18]])
Pixels = NDArray[np.float64]


def photograph(drawing: NDArray[np.uint8], strength: float, rng: np.random.Generator) -> NDArray[np.uint8]:
    """A drawing (4×128×128, see render.py) as the camera sees it (96×96×3)."""
    sticker = placed(drawing, strength, rng)
    opacity = sticker[..., 3]
    shadow = ndimage.shift(ndimage.gaussian_filter(opacity, rng.uniform(1.5, 3.5)), rng.uniform(-3, 3, 2), order=1)
    ground = surface(rng) * (1 - 0.35 * rng.random() * shadow)[..., None]
    scene = sticker[..., :3] + (1 - opacity[..., None]) * ground
    scene = coloured(scene * light(strength, rng)[..., None], strength, rng)
    focus = (0.15 + 1.25 * rng.random() ** 1.5) * strength * rng.uniform(0.7, 1.3, 2)
    scene = ndimage.gaussian_filter(scene, (*focus, 0)).clip(0, 1)
    noise = 1.6 * ndimage.gaussian_filter(rng.standard_normal(scene.shape), (0.5, 0.5, 0))
    scene += (0.008 + 0.04 * rng.random()) * strength * np.sqrt(0.3 + scene) * noise
    return np.rint(255 * scene.clip(0, 1)).astype(np.uint8)


def placed(drawing: NDArray[np.uint8], strength: float, rng: np.random.Generator) -> Pixels:
    """The drawing turned, moved and seen from the side (96×96×4, 0 to 1)."""
    turn, size = np.deg2rad(np.clip(rng.normal(0, 13 * strength), -40, 40)), rng.uniform(0.62, 0.86)
    rotation = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
    corners = size * SQUARE @ rotation + rng.uniform(-0.13, 0.13, 2) * strength
    corners += rng.normal(0, 0.085 * strength, (4, 2))
    fine = 2 * SIDE  # four samples per pixel
    down, across = np.mgrid[-1 : 1 : fine * 1j, -1 : 1 : fine * 1j]
    x, y, w = homography(corners, SQUARE) @ np.stack([across.ravel(), down.ravel(), np.ones(fine * fine)])
    at = [(1 + v / w) / 2 * len(drawing[0]) - 0.5 for v in (y, x)]
    seen = [ndimage.map_coordinates(channel / 255, at, order=1) for channel in drawing]
    return np.stack(seen, axis=-1).reshape(SIDE, 2, SIDE, 2, 4).mean(axis=(1, 3))


def homography(source: Pixels, target: Pixels) -> Pixels:
    """The projective map (3×3) that takes four points to four points."""
    rows = []
    for (x, y), (u, v) in zip(source, target, strict=True):
        rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
    return np.append(np.linalg.solve(rows, target.ravel()), 1).reshape(3, 3)


def surface(rng: np.random.Generator) -> Pixels:
    """What the sticker lies on (96×96×3, 0 to 1)."""
    kind = rng.choice(["paper", "wood", "card", "cloth", "wall"], p=[0.25, 0.22, 0.23, 0.15, 0.15])
    if kind == "paper":
        colour = np.array([0.93, 0.92, 0.88]) + rng.normal(0, 0.03, 3)
        texture = 0.02 * blotches(rng, 0.8) + 0.015 * blotches(rng, 6)
    elif kind == "wood":
        colour = rng.choice(WOODS) + rng.normal(0, 0.03, 3)
        texture = 0.09 * blotches(rng, (0.5, 8)) + 0.05 * np.sin(6 * blotches(rng, (2, 20)) + 4 * DOWN)
        texture = texture.T if rng.random() < 0.5 else texture
    elif kind == "card":
        colour = some_colour(rng, (0.15, 0.7), (0.45, 0.95))
        texture = 0.012 * blotches(rng, 0.7)
    elif kind == "cloth":
        colour = some_colour(rng, (0.1, 0.5), (0.4, 0.9))
        threads = rng.uniform(18, 30) * np.pi
        texture = 0.07 * np.sin(threads * ACROSS) + 0.07 * np.sin(threads * DOWN) + 0.04 * blotches(rng, 5)
    else:
        colour = rng.uniform(0.35, 0.95, 3)
        texture = 0.02 * blotches(rng, 2) + rng.normal(0, 0.12) * DOWN
    return (colour * (1 + texture[..., None])).clip(0, 1)


def some_colour(rng: np.random.Generator, saturation: tuple[float, float], value: tuple[float, float]) -> Pixels:
    """A random colour of any hue."""
    return np.array(colorsys.hsv_to_rgb(rng.random(), rng.uniform(*saturation), rng.uniform(*value)))


def blotches(rng: np.random.Generator, size: float | tuple[float, float]) -> Pixels:
    """Smooth noise of standard deviation 1 (96×96); the size in pixels, or height and width."""
    noise = ndimage.gaussian_filter(rng.standard_normal((SIDE, SIDE)), size, mode="wrap")
    return np.asarray(noise / noise.std())


def light(strength: float, rng: np.random.Generator) -> Pixels:
    """How bright the light is in each place (96×96)."""

    def towards() -> Pixels:
        angle = rng.uniform(0, 2 * np.pi)
        return np.asarray(np.cos(angle) * ACROSS + np.sin(angle) * DOWN)

    bright = 1 + 0.45 * strength * rng.random() * towards()
    bright -= 0.18 * strength * rng.random() * (ACROSS**2 + DOWN**2)
    if rng.random() < 0.4:
        bright *= 1 - 0.4 * strength * rng.random() / (1 + np.exp(-8 * (towards() - rng.uniform(-0.4, 0.6))))
    return np.asarray(bright)


def coloured(scene: Pixels, strength: float, rng: np.random.Generator) -> Pixels:
    """The scene in light of some colour, with the camera's exposure and saturation, and haze."""
    warm, green = rng.normal(0, 0.14 * strength), rng.normal(0, 0.06 * strength)
    exposure = np.clip(1 + rng.normal(-0.12, 0.2) * strength, 0.35, 1.4)
    scene = scene * np.array([1 + warm, 1 + green, 1 - warm]) * exposure
    grey = scene.mean(axis=2, keepdims=True)
    scene = grey + (scene - grey) * np.clip(1 + rng.normal(-0.1, 0.2) * strength, 0.3, 1.5)
    return np.asarray(scene + 0.1 * strength * rng.random() * (0.6 - scene))


def main() -> None:
    """Write the pictures of all test classes."""
    parser = argparse.ArgumentParser(description="Photograph the drawings of the test style.")
    parser.add_argument("work", type=Path)
    parser.add_argument("--strength", type=float, default=0.7)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    drawings, pixels = read_drawings(options.work), np.load(options.work / "drawings.npy", mmap_mode="r")
    images = options.work / "images"
    shutil.rmtree(images, ignore_errors=True)
    classes = [concept.name for concept in read_concepts() if concept.use == "test"]
    for number, name in enumerate(classes):
        rows = [i for i, drawing in enumerate(drawings) if drawing.concept == name and drawing.part == "test"]
        (images / name).mkdir(parents=True)
        for j in range(PER_CLASS):
            rng = np.random.default_rng((options.seed, number, j))
            picture = photograph(pixels[rows[j % len(rows)]], options.strength, rng)
            Image.fromarray(picture).save(images / name / f"{j:02d}.webp", quality=QUALITY, method=6)
    size = sum(path.stat().st_size for path in images.rglob("*.webp"))
    print(f"{len(classes)} classes, {len(classes) * PER_CLASS:,} pictures, {size:,} bytes")


if __name__ == "__main__":
    main()
