"""The errors kedge raises. Each message says in one line what was wrong, what was found and what to do.

KedgeError
├── InputError     (ValueError)      an invalid array: shape, dtype, NaN, norms, empty
├── SettingError   (ValueError)      an unknown method or setting, or a value out of range
├── FileError      (OSError)         a file that is missing, damaged, of another kind, or not writable
├── MissingExtra   (ImportError)     an optional dependency that is not installed
└── ContractError  (AssertionError)  a method that breaks the contract (see `kedge.check_method`)
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from .words import first_few, printable, without_middle

CLOSE = 0.65  # from 0 to 1: how alike two words must be for one to be suggested for the other
LISTED = 30  # options that a message names
LONGEST = 1000  # characters of a message, whatever is quoted in it


class KedgeError(Exception):
    """Base class of all errors kedge raises. Text from files and users cannot break the line or control a terminal."""

    def __init__(self, message: str = "") -> None:
        super().__init__(without_middle(printable(message), LONGEST))


class InputError(KedgeError, ValueError):
    """An array that is not valid input."""


class SettingError(KedgeError, ValueError):
    """An unknown method or setting, or a value out of range."""


class FileError(KedgeError, OSError):
    """A file that is missing, damaged, of another kind, or not writable."""


class MissingExtra(KedgeError, ImportError):
    """An optional dependency is not installed; the message gives the pip command."""


class ContractError(KedgeError, AssertionError):
    """A method breaks the contract of methods. The message has a line for each check that failed."""

    def __init__(self, message: str = "") -> None:
        AssertionError.__init__(self, message)


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """`"; did you mean 'stata'?"` if an option is close to the word, else a list of the first options."""
    options = list(options)
    for spelling in (word.lower().replace("_", "-"), word.lower()):
        for near in difflib.get_close_matches(spelling, options, cutoff=CLOSE):
            given, known = (re.sub(r"\d", "", text) for text in (spelling, near))
            if difflib.SequenceMatcher(None, given, known).ratio() >= CLOSE:  # unlike cifar10 and ucf101
                return f"; did you mean {near!r}?"
    return f"; choose from {first_few(options, LISTED)}" if options else ""
