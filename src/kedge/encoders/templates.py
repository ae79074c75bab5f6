"""Prompt templates: sentences for the text encoder, with {} for the class name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..errors import FileError, InputError
from ..files import text_lines

PLAIN_TEMPLATE = "a photo of a {}."


def read_templates(path: str | Path) -> tuple[str, ...]:
    """Templates from a file with one per line; empty lines are ignored."""
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
    """Check one template or several: each must have {} exactly once."""
    templates = (given,) if isinstance(given, str) else tuple(given)
    for template in templates:
        if template.count("{}") != 1:
            raise InputError(f"the template {template!r} must have {{}} for the class name exactly once. Correct it.")
    return templates
