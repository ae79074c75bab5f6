"""Which concepts the model knows, and which drawings show them.

    python tools/tiny/concepts.py WORK --seed 0

concepts.csv lists the concepts: an emoji's code point, a plain name, a kind, and whether it is one of the test classes.
This script finds the drawings of each, by code point, else by name, and fixes the split:

- test: all drawings of the test style's family
- held-out: one drawing each of 150 concepts in a training style; other drawings of its family are left out
- train: all the others

Writes WORK/drawings.json.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from collect import package_folder
from styles import NAMES, STYLES, WRONG, Style

HELD_OUT = 150
FEWEST = 4  # training styles, lines not counted, that a concept with a held-out drawing has


@dataclass(frozen=True)
class Concept:
    """Something the model knows."""

    code: str  # code points in hexadecimal, joined by "-"
    name: str
    kind: str
    use: str  # "test" if it is a test class too, else "vocabulary"


@dataclass(frozen=True)
class Drawing:
    """One picture in a package."""

    concept: str  # its name
    style: str
    icon: str  # its name in the package
    part: str  # train, held-out, test or unused


def read_concepts() -> list[Concept]:
    """The concepts in the order of concepts.csv."""
    with Path(__file__).with_name("concepts.csv").open(encoding="utf-8", newline="") as file:
        return [Concept(**row) for row in csv.DictReader(file)]


def read_drawings(work: Path) -> list[Drawing]:
    """The drawings that this script chose."""
    return [Drawing(**row) for row in json.loads((work / "drawings.json").read_text())]


def read_emoji(work: Path) -> dict[str, dict[str, Any]]:
    """Code → emojibase's entry, with a label and tags; `short` has its short names."""
    folder = package_folder(work, *NAMES) / "package" / "en"
    lists = [json.loads(path.read_text()) for path in sorted((folder / "shortcodes").glob("*.json"))]
    emoji = {}
    for entry in json.loads((folder / "data.json").read_text()):
        short = [found.get(entry["hexcode"], []) for found in lists]
        names = [name for names in short for name in ([names] if isinstance(names, str) else names)]
        emoji[_code(entry["hexcode"])] = {**entry, "short": list(dict.fromkeys(names))}
    return emoji


def find(style: Style, work: Path, concepts: list[Concept], emoji: dict[str, dict[str, Any]]) -> Iterator[Drawing]:
    """A style's drawings of the concepts, each drawing once."""
    folder = package_folder(work, style.package, style.version) / "package"
    icons = json.loads((folder / "icons.json").read_text())
    parents = {name: alias["parent"] for name, alias in icons.get("aliases", {}).items()}
    by_name = {_letters(name): parents.get(name, name) for name in [*parents, *icons["icons"]]}
    by_code = {
        _code(code): parents.get(name, name) for code, name in json.loads((folder / "chars.json").read_text()).items()
    }
    free = set(icons["icons"]) - set(WRONG.get(style.name, ()))
    for concept in concepts:
        names = [concept.name, emoji[concept.code]["label"], *emoji[concept.code]["short"]]
        found = [by_code[concept.code]] if concept.code in by_code else []
        for ending in () if found else style.endings:
            found += [by_name[key] for name in names if (key := _letters(name + ending)) in by_name][:1]
        for icon in found:
            if icon in free:
                free.remove(icon)
                yield Drawing(concept.name, style.name, icon, style.use)


def split(drawings: list[Drawing], seed: int) -> list[Drawing]:
    """Hold out one drawing each of some concepts, and leave out its family."""
    styles = {style.name: style for style in STYLES}
    choices: dict[str, list[Drawing]] = {}
    for drawing in drawings:
        if drawing.part == "train" and not styles[drawing.style].line:
            choices.setdefault(drawing.concept, []).append(drawing)
    rng = random.Random(seed)
    enough = [name for name, found in choices.items() if len({drawing.style for drawing in found}) >= FEWEST]
    held = {name: rng.choice(choices[name]) for name in rng.sample(enough, HELD_OUT)}

    def part(drawing: Drawing) -> str:
        out = held.get(drawing.concept)
        if out is None or styles[drawing.style].family != styles[out.style].family:
            return drawing.part
        return "held-out" if drawing == out else "unused"

    return [replace(drawing, part=part(drawing)) for drawing in drawings]


def _code(text: str) -> str:
    return text.lower().removesuffix("-fe0f").replace("-fe0f-", "-")


def _letters(name: str) -> str:
    return re.sub("[^a-z0-9]", "", name.lower().replace("&", "and"))


def main() -> None:
    """Find and split the drawings."""
    parser = argparse.ArgumentParser(description="Find the drawings of each concept.")
    parser.add_argument("work", type=Path)
    parser.add_argument("--seed", type=int, default=0, help="of the held-out drawings")
    options = parser.parse_args()
    concepts, emoji = read_concepts(), read_emoji(options.work)
    found = [drawing for style in STYLES for drawing in find(style, options.work, concepts, emoji)]
    drawings = split(found, options.seed)
    (options.work / "drawings.json").write_text(json.dumps([asdict(drawing) for drawing in drawings], indent=0))
    for style in STYLES:
        print(style.name, dict(Counter(drawing.part for drawing in drawings if drawing.style == style.name)))
    print(f"{len(concepts)} concepts, drawings: {dict(Counter(drawing.part for drawing in drawings))}")
    number = Counter(Counter(drawing.concept for drawing in drawings if drawing.part == "train").values())
    print(f"concepts by their number of training drawings: {dict(sorted(number.items()))}")


if __name__ == "__main__":
    main()
