"""From class names to text prototypes: templates, ensembles, and the text head they make.

    templates("dtd")                                  ("{} texture.",), the paper's
    read_templates("templates.txt")                   an ensemble: one template per line, with {} for the class
    class_names("cat, dog")                           a list, a text, or a file with one name per line
    text_head(encoder, ["cat", "dog"], templates())   a TextHead

The prototype of a class c is t_c = unit(Σ_p unit(text(p(c)))), over all templates p: the mean of the unit prompt
features, brought back to unit norm.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ._files import existing
from .datasets.known import find
from .errors import FileError, InputError

if TYPE_CHECKING:
    from .encoders import Encoder
    from .features import TextHead

DEFAULT = "a photo of a {}."
PROMPTS_TOGETHER = 1024  # prompt features held at one time


def templates(dataset: str | None = None) -> tuple[str, ...]:
    """The paper's template for a dataset; without one, CLIP's plain `a photo of a {}.`"""
    return (DEFAULT if dataset is None else find(dataset).prompt,)


def read_templates(path: str | Path) -> tuple[str, ...]:
    """Templates from a file, one per line; empty lines are left out."""
    lines = _lines(path)
    if not lines:
        raise FileError(f"{path} has no templates. Write one per line, with {{}} for the class name.")
    for number, line in lines:
        if line.count("{}") != 1:
            raise FileError(
                f"{path}, line {number}: {line!r} has {line.count('{}') or 'no'} {{}} for the class name. "
                "Write it exactly once."
            )
    return tuple(line for _, line in lines)


def class_names(given: str | Path | Sequence[str]) -> tuple[str, ...]:
    """Class names from a list, from a text with commas between them, or from a file with one per line.

    A text is a file's name if that file exists, or if it looks like one: it has no comma, and a / or .txt in it.
    """
    if isinstance(given, str | Path):
        text = str(given)
        like_file = "," not in text and (os.sep in text or text.lower().endswith(".txt"))
        if isinstance(given, Path) or like_file or (len(text) < 256 and Path(text).is_file()):
            names = [line for _, line in _lines(text)]
        else:
            names = text.split(",")
    else:
        names = list(map(str, given))
    names = [" ".join(name.split()) for name in names if name.strip()]
    if not names:
        raise InputError(
            f"no class names in {given!r}. Pass a list, a text like 'cat, dog', or a file of one per line."
        )
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise InputError(f"the class {twice[0]!r} is named more than once. Name each class once.")
    return tuple(names)


def as_templates(given: str | Sequence[str]) -> tuple[str, ...]:
    """Templates that were passed from Python, one or several; each must say once where the class name goes."""
    templates = (given,) if isinstance(given, str) else tuple(given)
    for template in templates:
        if template.count("{}") != 1:
            raise InputError(f"the template {template!r} must have {{}} for the class name exactly once. Correct it.")
    return templates


def text_head(encoder: Encoder, class_names: Sequence[str], templates: str | Sequence[str]) -> TextHead:
    """The prototypes of the classes by this encoder, k×d, with its logit scale."""
    import torch

    from .arrays import unit
    from .features import TextHead
    from .progress import track

    templates = as_templates(templates)
    if not class_names or not templates:
        raise InputError(f"{len(class_names)} class names and {len(templates)} templates. Pass at least one of each.")
    step = max(1, PROMPTS_TOGETHER // len(templates))
    chunks = [class_names[start : start + step] for start in range(0, len(class_names), step)]
    prototypes = []
    for chunk in track(chunks, "prompts"):
        features = encoder.encode_texts([template.replace("{}", name) for name in chunk for template in templates])
        prototypes.append(unit(features.float().cpu().reshape(len(chunk), len(templates), -1).mean(dim=1)))
    return TextHead.from_arrays(torch.cat(prototypes), encoder.logit_scale, class_names)


def _lines(path: str | Path) -> list[tuple[int, str]]:
    """The lines of a text file that have something in them, with their numbers."""
    try:
        text = existing(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(f"{path} is not UTF-8 text: {error}. Save it as UTF-8.") from error
    return [(number, line.strip()) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
