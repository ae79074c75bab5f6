"""The files of the page: they find each other, and need no more than the content security policy allows."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

PAGE = {file.name: file.read_text(encoding="utf-8") for file in (files("kedge.serve") / "page").iterdir()}
INDEX = PAGE["index.html"]
SCRIPTS = sorted(name for name in PAGE if name.endswith(".js"))


def test_index_names_every_file_and_only_files_that_are_there() -> None:
    named = set(re.findall(r'(?:href|src)="/page/([^"]+)"', INDEX))
    assert named == set(PAGE) - {"index.html"}


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_a_script_imports_is_exported(name: str) -> None:
    for names, source in re.findall(r'^import \{([^}]+)\} from "\./([\w.]+)";', PAGE[name], flags=re.MULTILINE):
        exported = set(re.findall(r"^export (?:async )?(?:function|const|class) (\w+)", PAGE[source], re.MULTILINE))
        assert {word.strip() for word in names.split(",")} <= exported, f"{name} imports from {source}"


@pytest.mark.parametrize("name", SCRIPTS)
def test_foreign_text_cannot_become_html_and_elements_are_there(name: str) -> None:
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", PAGE[name])
    ids = set(re.findall(r'byId\("([\w-]+)"\)', PAGE[name]))
    assert ids <= set(re.findall(r'\bid="([\w-]+)"', INDEX))


def test_index_has_no_inline_script_or_style() -> None:
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\bstyle=|\bon\w+=|https?://", INDEX)
    assert not any(re.search(r"url\(|@import", text) for name, text in PAGE.items() if name.endswith(".css"))


def test_files_are_short() -> None:
    assert {name: text.count("\n") for name, text in PAGE.items() if text.count("\n") > 250} == {}
