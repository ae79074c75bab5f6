"""Captions of a drawing: its plain name, the emoji's label or tags, in a template.

A caption often says more than the class name, or less: "a sticker of a pizza slice, cheese".
"""

from __future__ import annotations

import random
from pathlib import Path

from concepts import read_concepts, read_emoji

PROMPT = "a photo of a {}."
TEMPLATES = (
    "a photo of {a}.",
    "a photo of {a}",
    "a picture of {a}.",
    "{a}",
    "{a} on a table",
    "a drawing of {a}",
    "an icon of {a}",
    "a sticker of {a}",
    "an image of {a}.",
    "a close-up of {a}",
    "a small picture of {a}",
    "this is {a}.",
    "{a}, isolated",
    "a photo of the {b}.",
    "my {b}",
    "the {b}",
)
PLAIN, TAGS_ONLY = 0.55, 0.15  # how often a caption is the plain name, and how often it does not have the name


class Captions:
    """Random captions of the concepts, by their number in concepts.csv."""

    def __init__(self, work: Path, seed: int) -> None:
        emoji = read_emoji(work)
        self.rng = random.Random(seed)
        self.names = []  # of each concept, the plain name first
        self.tags = []
        for concept in read_concepts():
            entry = emoji[concept.code]
            self.names.append(list(dict.fromkeys([concept.name, entry["label"].lower().replace("’", "'")])))
            self.tags.append([tag.lower() for tag in entry.get("tags", []) if tag.lower() != concept.name])

    def __call__(self, concept: int) -> str:
        """One caption."""
        rng, tags = self.rng, self.tags[concept]
        draw = rng.random()
        if draw < PLAIN or not tags:
            words = [self.names[concept][0]]
        elif draw < 1 - TAGS_ONLY:
            words = [rng.choice(self.names[concept]), *rng.sample(tags, min(len(tags), rng.choice((1, 1, 2))))]
        else:
            words = rng.sample(tags, min(len(tags), rng.choice((1, 2, 2, 3))))
        text = ", ".join(words)
        return rng.choice(TEMPLATES).format(a=f"{'an' if text[0] in 'aeiou' else 'a'} {text}", b=text)
