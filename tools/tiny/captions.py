"""Captions for Fashion-MNIST: a class name or a synonym, adjectives measured from the pixels, and a template.

The adjectives describe brightness, pattern, shape, sleeves, height and handle. So a caption says more than the class,
and two images of one class rarely have the same caption.
"""

from __future__ import annotations

import random

import numpy as np
from numpy.typing import NDArray

# The class name comes first. Synonyms follow, because captions on the web rarely use the class names of a benchmark.
NOUNS = (
    ("t-shirt", "tee", "t-shirt top", "tee shirt", "crew neck tee", "undershirt"),
    ("trouser", "trousers", "pants", "pair of trousers", "slacks", "pair of pants", "leggings"),
    ("pullover", "sweater", "jumper", "sweatshirt", "knitted sweater", "knit pullover"),
    ("dress", "gown", "frock", "summer dress", "evening dress"),
    ("coat", "jacket", "overcoat", "winter coat", "outdoor jacket"),
    ("sandal", "sandals", "strappy shoe", "open shoe", "flip flop", "heeled sandal"),
    ("shirt", "blouse", "button-up shirt", "tunic", "collared shirt", "dress shirt"),
    ("sneaker", "trainer", "running shoe", "sports shoe", "gym shoe", "sneakers"),
    ("bag", "handbag", "purse", "tote", "shoulder bag", "clutch"),
    ("ankle boot", "boot", "bootie", "leather boot", "high-top boot", "ankle boots"),
)
KINDS = (
    ("top", "garment"),
    ("garment", "item of clothing"),
    ("top", "warm top"),
    ("garment", "women's garment"),
    ("warm garment", "outerwear"),
    ("shoe", "footwear"),
    ("top", "garment"),
    ("shoe", "footwear"),
    ("accessory", "item"),
    ("shoe", "footwear"),
)
TOPS, SHOES, BAG, TROUSER = {0, 2, 3, 4, 6}, {5, 7, 9}, 8, 1

TEMPLATES = (
    "a photo of {a}",
    "a photo of {a}.",
    "a picture of {a}",
    "an image of {a}, front view",
    "{a}",
    "{a} on a plain background",
    "{a} from the new collection",
    "{a}, isolated",
    "product photo of {a}",
    "catalogue picture of {a}",
    "studio shot of {a}",
    "a grey scale picture of {a}",
    "a small picture of {a}.",
    "this is {a}",
    "buy {a} online",
    "new in: {a}",
    "for sale: {a}",
    "{a}, as good as new",
    "a low resolution photo of {a}",
    "a close-up of {a}.",
    "the shop sells {a}",
    "fashion: {a}",
)
PLAIN_NAME, KIND_ONLY = 0.3, 0.12  # how often the first noun is used, and how often only the kind of thing


def attributes(images: NDArray[np.uint8], labels: NDArray[np.int64]) -> list[list[str]]:
    """Adjectives for each image (n×28×28); those in brackets follow the noun: "(with a handle)"."""
    x = images.astype(np.float32)
    inside = x > 20
    area = inside.sum((1, 2)).clip(1)
    brightness = (x * inside).sum((1, 2)) / area
    across = np.abs(np.diff(x, axis=2)) * (inside[:, :, 1:] & inside[:, :, :-1])  # change along a row: vertical stripes
    down = np.abs(np.diff(x, axis=1)) * (inside[:, 1:] & inside[:, :-1])
    across, down = across.sum((1, 2)) / area, down.sum((1, 2)) / area
    pattern = (across + down) / brightness.clip(1)
    rows, columns = inside.any(2).sum(1), inside.any(1).sum(1)
    outer = inside[:, :, [3, 4, 5, 22, 23, 24]]
    sleeves = np.where(outer[:, 14:23].mean((1, 2)) > 0.3, 2, outer[:, 4:11].mean((1, 2)) > 0.3)
    handle = inside[:, :9].mean((1, 2)) < 0.6 * inside[:, 14:24].mean((1, 2))
    legs = inside[:, 18:26, 13:15].mean((1, 2)) < 0.5

    found = []
    for i, label in enumerate(labels.tolist()):
        words = [("black", "dark", "grey", "light", "white")[int(np.searchsorted((60, 110, 160, 205), brightness[i]))]]
        if pattern[i] < 0.12:
            words.append("plain")
        elif pattern[i] > 0.4:
            ratio = across[i] / max(down[i], 1e-6)
            words.append("patterned" if 0.5 < ratio < 2 else "striped" if ratio <= 0.5 else "vertically striped")
        if label in TOPS:
            words.append(("sleeveless", "short-sleeved", "long-sleeved")[int(sleeves[i])])
            words += ["slim"] if columns[i] <= 15 else ["wide"] if columns[i] >= 26 else []
        elif label in SHOES:
            words.append("flat" if rows[i] <= 11 else "high" if rows[i] >= 20 else "low")
        elif label == BAG:
            words.append("large" if area[i] > 480 else "small" if area[i] < 280 else "medium")
            words += ["(with a handle)"] if handle[i] else []
        elif label == TROUSER:
            words.append("slim" if columns[i] <= 11 else "loose" if columns[i] >= 16 else "straight")
            words += ["(with long legs)"] if legs[i] else []
        found.append(words)
    return found


def caption(label: int, adjectives: list[str], rng: random.Random) -> str:
    """One caption: up to three adjectives, a noun of the class, a template."""
    words = rng.sample(adjectives, min(len(adjectives), rng.choice((0, 1, 1, 2, 2, 3))))
    first, *others = NOUNS[label]
    draw = rng.random()
    noun = first if draw < PLAIN_NAME else rng.choice(KINDS[label] if draw > 1 - KIND_ONLY else others)
    before = [word for word in words if not word.endswith(")")]
    after = [word.strip("()") for word in words if word.endswith(")")]
    phrase = " ".join([*before, noun, *after])
    return rng.choice(TEMPLATES).format(a=f"{'an' if phrase[0] in 'aeiou' else 'a'} {phrase}")
