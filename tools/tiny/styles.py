"""The art: npm packages of drawings, their versions and licences.

A package of iconify has icons.json (name → body of an SVG file), for emoji chars.json too (code point → name), and
info.json with the licence. Art of one family shares outlines, so a family is never divided between training and test.
"""

from __future__ import annotations

from dataclasses import dataclass

NAMES = ("emojibase-data", "17.0.0")  # names and tags of emoji; MIT, Miles Johnson


@dataclass(frozen=True)
class Style:
    """One package of drawings."""

    name: str
    version: str
    licence: str
    author: str
    family: str
    use: str = "train"  # or "test"
    endings: tuple[str, ...] = ("",)  # of a drawing's name, if it is found by name: cat, cat-fill
    line: bool = False  # of one or two colours; never held out

    @property
    def package(self) -> str:
        """Its name in npm."""
        return f"@iconify-json/{self.name}"


STYLES = (
    Style("twemoji", "1.2.5", "CC-BY-4.0", "Twitter", "twemoji"),
    Style("noto", "1.2.9", "Apache-2.0", "Google", "noto"),
    Style("noto-v1", "1.2.5", "Apache-2.0", "Google", "noto"),
    Style("emojione", "1.2.3", "CC-BY-4.0", "Emoji One", "emojione"),
    Style("emojione-monotone", "1.2.1", "CC-BY-4.0", "Emoji One", "emojione", line=True),
    Style("fxemoji", "1.2.2", "Apache-2.0", "Mozilla", "fxemoji"),
    Style("streamline-emojis", "1.2.4", "CC-BY-4.0", "Streamline", "streamline", endings=("", "-1", "-2", "-3")),
    Style("icon-park", "1.2.4", "Apache-2.0", "ByteDance", "icon-park", line=True),
    Style("mdi", "1.2.3", "Apache-2.0", "Pictogrammers", "mdi", line=True),
    Style("ph", "1.2.2", "MIT", "Phosphor Icons", "ph", endings=("-fill", "-duotone"), line=True),
    Style("fluent-emoji", "1.2.7", "MIT", "Microsoft", "fluent", use="test"),
    Style("fluent-emoji-flat", "1.2.6", "MIT", "Microsoft", "fluent", use="test"),
)

# Drawings that do not show what their name says in concepts.csv: a logo, a flag, a roast chicken.
WRONG = {
    "fxemoji": ("bow", "gamedie"),
    "streamline-emojis": ("headphone", "turkey"),
    "icon-park": (
        *("anchor", "android", "apple", "bow", "chicken", "cooking", "egg", "fireworks", "football", "mouse", "phone"),
        *("ring", "seat", "sunset", "trumpet", "turkey"),
    ),
    "mdi": (
        *("android", "apple", "caravan", "clock", "creation", "lightning-bolt", "mouse", "oil", "purse", "satellite"),
    ),
    "ph": (
        *("champagne-duotone", "champagne-fill", "clock-duotone", "clock-fill", "diamond-duotone", "diamond-fill"),
        *("mouse-duotone", "mouse-fill"),
    ),
}
