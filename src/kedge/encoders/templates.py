"""Prompt templates: what is said of a class to the text encoder.

templates_for("dtd")                   ("{} texture.",), the paper's
read_templates("templates.txt")        an ensemble: one template per line, with {} for the class
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..errors import FileError, InputError
from ..files import text_lines
from ..images.datasets import find_dataset

DEFAULT = "a photo of a {}."


def templates_for(dataset: str | None = None) -> tuple[str, ...]:
    """The paper's template for a dataset; without one, CLIP's plain `a photo of a {}.`"""
    return (DEFAULT if dataset is None else find_dataset(dataset).prompt,)


def read_templates(path: str | Path) -> tuple[str, ...]:
    """Templates from a file, one per line; empty lines are left out."""
    lines = text_lines(path)
    if not lines:
        raise FileError(f"{path} has no templates. Write one per line, with {{}} for the class name.")
    for number, line in lines:
        if line.count("{}") != 1:
            raise FileError(
                f"{path}, line {number}: {line!r} has {line.count('{}') or 'no'} {{}} for the class name. "
                "Write it exactly once."
            )
    return tuple(line for _, line in lines)


def as_templates(given: str | Sequence[str]) -> tuple[str, ...]:
    """Templates that were passed from Python, one or several; each must say once where the class name goes."""
    templates = (given,) if isinstance(given, str) else tuple(given)
    for template in templates:
        if template.count("{}") != 1:
            raise InputError(f"the template {template!r} must have {{}} for the class name exactly once. Correct it.")
    return templates
