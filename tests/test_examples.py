"""What a build of the documentation, which runs the examples, does not show."""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

import pytest

import kedge

EXAMPLES = sorted((Path(__file__).resolve().parents[1] / "examples").glob("*.py"))
each = pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)


def prose(code: str) -> str:
    """What the page says beside the code: the docstring and the comments."""
    tokens = tokenize.generate_tokens(io.StringIO(code).readline)
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    return "\n".join([ast.get_docstring(ast.parse(code)) or "", *comments])


def private(code: str) -> list[str]:
    """What the code uses of kedge that is not public: modules below it, names outside of `kedge.__all__`, _names."""
    found = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found += [name.name for name in node.names if name.name.startswith("kedge.")]
        elif isinstance(node, ast.ImportFrom) and node.module == "kedge":
            found += [name.name for name in node.names if name.name not in kedge.__all__]
        elif isinstance(node, ast.ImportFrom) and str(node.module).startswith("kedge."):
            found.append(str(node.module))
        elif isinstance(node, ast.Attribute):
            of_kedge = isinstance(node.value, ast.Name) and node.value.id == "kedge"
            if node.attr.startswith("_") or (of_kedge and node.attr not in kedge.__all__):
                found.append(node.attr)
    return found


def test_every_task_has_a_page() -> None:
    tasks = "label_a_folder few_classes_of_many a_stream correct_and_continue unknown_images compare_methods"
    assert {*tasks.split(), "a_million_images", "write_a_method"} <= {script.stem for script in EXAMPLES}


@each
def test_the_page_says_that_its_data_is_simulated(script: Path) -> None:
    assert "simulated" in prose(script.read_text(encoding="utf-8"))


@each
def test_only_what_is_public_is_used(script: Path) -> None:
    assert private(script.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "code",
    ["import kedge.words", "from kedge.words import count", "from kedge import words", "kedge.words", "x._head"],
)
def test_what_is_not_public_is_noticed(code: str) -> None:
    assert private(code)


@each
def test_nothing_is_hidden(script: Path) -> None:
    """A reader sees all the code, and every warning it gives."""
    code = script.read_text(encoding="utf-8")
    for word in ("warnings", "sphinx_gallery_start_ignore", "devnull", "redirect_std"):
        assert word not in code
