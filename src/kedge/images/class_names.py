"""Class names from a list, a string or a file."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ..errors import InputError
from ..files import text_lines


def class_names(given: str | Path | Sequence[str]) -> tuple[str, ...]:
    """Class names from a list, from a string with commas, or from a file with one name per line.

    A string names a file if that file exists, or if it has no comma and contains / or ends in .txt.
    """
    if isinstance(given, str | Path):
        text = str(given)
        like_file = "," not in text and (os.sep in text or text.lower().endswith(".txt"))
        if isinstance(given, Path) or like_file or os.path.isfile(text):
            names = [line for _, line in text_lines(text)]
        else:
            names = text.split(",")
    else:
        names = list(map(str, given))
    names = [" ".join(name.split()) for name in names if name.strip()]
    if not names:
        raise InputError(
            f"no class names in {given!r}. Pass a list, a string like 'cat, dog', or a file with one name per line."
        )
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise InputError(f"the class {twice[0]!r} is named more than once. Name each class once.")
    return tuple(names)
