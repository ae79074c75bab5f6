"""Every error kedge raises on purpose. Each message says what was wrong, what was found and what to do.

KedgeError
├── InputError     (ValueError)      an array: shape, dtype, NaN, norms, emptiness
├── SettingError   (ValueError)      an unknown method or setting, or a value out of its range
├── FileError      (OSError)         a file that is missing, damaged, of another kind, or not writable
├── MissingExtra   (ImportError)     an optional dependency that is not installed
└── ContractError  (AssertionError)  a method that breaks the contract of `kedge.checks`
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class KedgeError(Exception):
    """Root of every error raised on purpose."""


class InputError(KedgeError, ValueError):
    """An array that a method can not work with."""


class SettingError(KedgeError, ValueError):
    """An unknown method or setting, or a value out of its range."""


class FileError(KedgeError, OSError):
    """A file that is missing, damaged, of another kind, or can not be written."""


class MissingExtra(KedgeError, ImportError):
    """An optional dependency is not installed; the message names the pip command."""


class ContractError(KedgeError, AssertionError):
    """A method breaks the contract."""


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """`"; did you mean 'stata'?"` for the nearest option, else the list of all of them."""
    options = list(options)
    near = difflib.get_close_matches(word.lower().replace("_", "-"), options, n=1) or difflib.get_close_matches(
        word.lower(), options, n=1
    )
    if near:
        return f"; did you mean {near[0]!r}?"
    return "; choose from " + ", ".join(options) if options else ""
