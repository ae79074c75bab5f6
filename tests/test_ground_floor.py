"""The helpers that every room uses: limits on memory, checks of what files say, text made safe to show."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kedge import memory
from kedge.errors import LONGEST, FileError, InputError, SettingError
from kedge.schema import Meta, checked, decoded
from kedge.words import neutral, printable, without_neutral


def test_memory_limit_is_a_share_of_the_machine_or_what_the_environment_says(monkeypatch):
    monkeypatch.delenv("KEDGE_MAX_BYTES", raising=False)
    assert 1 << 28 < memory.memory_limit() < 1 << 50
    monkeypatch.setenv("KEDGE_MAX_BYTES", "1000")
    memory.check_memory(1000, "this")
    with pytest.raises(InputError, match=r"this would take 2 kB of memory; the limit is 1 kB\. .* KEDGE_MAX_BYTES"):
        memory.check_memory(2000, "this")
    with pytest.raises(FileError):
        memory.check_memory(1e30, "this", FileError)


@pytest.mark.parametrize("value", ["", "0", "-1", "4GB", "²", "1e9"])
def test_a_wrong_limit_is_named(monkeypatch, value):
    monkeypatch.setenv("KEDGE_MAX_BYTES", value)
    with pytest.raises(SettingError, match="KEDGE_MAX_BYTES must be a number of bytes"):
        memory.memory_limit()


def test_a_container_with_less_memory_counts(monkeypatch, tmp_path):
    monkeypatch.delenv("KEDGE_MAX_BYTES", raising=False)
    (tmp_path / "max").write_text("4000000\n")
    monkeypatch.setattr(memory, "CONTAINER", tmp_path / "max")
    assert memory.memory_limit() == 2_000_000


@dataclass(frozen=True)
class Header:
    steps: Annotated[int, Meta(ge=0)]
    names: list[str]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"steps": -1, "names": []}', "Expected `int` >= 0, at `steps`"),
        ('{"steps": 1.5, "names": []}', "Expected `int`, got `float`"),
        ('{"steps": 1, "names": [1]}', r"at `names\[0?[.]*\]`"),
        ('{"steps": 1}', "missing required field `names`"),
        ('{"steps": NaN, "names": []}', "malformed"),
        ('{"steps": 1, "names": ["\\ud800"]}', "surrogate|truncated"),
        ("[" * 100_000, "got `array`"),
        ('{"x": ' + "[" * 100_000, "nested too deeply"),
        ("", "truncated"),
    ],
)
def test_what_does_not_fit_its_schema_is_one_line(text, reason):
    with pytest.raises(FileError, match=reason) as caught:
        decoded(text, Header, Path("x.json"), "plan")
    assert str(caught.value).startswith("x.json is not a kedge plan: ")
    assert "\n" not in str(caught.value)


def test_what_fits_its_schema_is_an_object():
    assert decoded(b'{"steps": 3, "names": ["a"]}', Header, Path("x"), "plan") == Header(3, ["a"])
    assert checked({"steps": 3, "names": ["a"]}, Header, Path("x"), "plan") == Header(3, ["a"])


def test_printable_shows_what_would_control_a_terminal():
    assert printable("cat\x1b[31m‮ \udcff\x07\u0085") == "cat\\x1b[31m\\u202e \\udcff\\x07\\x85"
    assert printable("Zürich, 東京, 🐈") == "Zürich, 東京, 🐈"


@given(st.text())
def test_neutral_fields_are_no_formulas_and_read_back(text):
    field = neutral(text)
    assert not field.startswith(("=", "+", "-", "@", "\t", "\r"))
    assert without_neutral(field) == text


@pytest.mark.parametrize("kind", [FileError, InputError, SettingError])
def test_whatever_a_message_quotes_it_is_one_line_of_bounded_length(kind):
    error = kind("no file a\nb\x1b[31m\u202e. Check the path.")
    assert str(error) == r"no file a\nb\x1b[31m\u202e. Check the path."
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    long = str(kind("unknown " + "y" * 10_000 + ". Choose another."))
    assert len(long) <= LONGEST
    assert long.startswith("unknown y")
    assert long.endswith("y. Choose another.")
