"""Docstrings for Sphinx. kedge's are plain text with habits of Markdown; autodoc wants reStructuredText.

| in a docstring                          | on the page                                              |
|-----------------------------------------|----------------------------------------------------------|
| `code`, `kedge.name`                    | code; a link to the name                                 |
| a line `name: …` or `name, name: …`     | a parameter, if the function has it; lines below go on   |
| rows that begin with |                  | a table                                                  |
| four spaces after an empty line         | a block of code                                          |
| fields of a dataclass, with comments    | a table of fields                                        |
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer

import kedge


def rest(text: str, parameters: Collection[str] = ()) -> list[str]:
    """The lines of a docstring as reStructuredText."""
    out: list[str] = []
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        lines = block.split("\n")
        if all(line.startswith("    ") for line in lines):
            out += ["::", "", *lines, ""]
        elif all(line.lstrip().startswith("|") for line in lines):
            out += table([[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines])
        else:
            out += [line for part in _parts(lines, parameters) for line in (*part, "")]
    return out


def _parts(lines: Iterable[str], parameters: Collection[str]) -> Iterator[list[str]]:
    """Paragraphs, list items and parameters; each is one line, or a name and what it means."""
    parts: list[str] = []
    for line in lines:
        if not parts or line.startswith("- ") or _named(line, parameters):
            parts.append(line)
        else:
            parts[-1] += " " + line.strip()
    for part in parts:
        names = _named(part, parameters)
        yield [f"**{names}**", f"    {inline(part[len(names) + 2 :])}"] if names else [inline(part)]


def _named(line: str, parameters: Collection[str]) -> str:
    """The names of the parameters that a line is about; empty if it is about something else."""
    names = re.match(r"\w+(, \w+)*(?=: )", line)
    return names[0] if names and {*names[0].split(", ")} <= {*parameters} else ""


def inline(text: str) -> str:
    """Text in which `code` is code, and every other special character means itself."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"[\\*|]|_(?!\w)", r"\\\g<0>", part) for part in parts[::2]]
    parts[1::2] = [_code(part) for part in parts[1::2]]
    return "".join(parts)


def _code(text: str) -> str:
    name = re.fullmatch(r"kedge\.(\w+)(\(\))?", text)
    return f":py:obj:`{text} <kedge.{name[1]}>`\\ " if name and name[1] in kedge.__all__ else f"``{text}``\\ "


def table(rows: list[list[str]]) -> list[str]:
    """A table of Markdown: its first row is the head; a row of dashes is left out."""
    out = [".. list-table::", "   :header-rows: 1", ""]
    for row in rows:
        if not all(set(cell) <= set(":-") for cell in row):
            first, *others = map(inline, row)
            out += [f"   * - {first}", *(f"     - {cell}" for cell in others)]
    return [*out, ""]


def fields(cls: type) -> list[list[str]]:
    """A row for each field of a dataclass: name, type, default, and its meaning: a setting's own, or the comment."""
    source = textwrap.dedent(inspect.getsource(cls))
    found = {}
    for node in ast.parse(source).body[0].body:  # type: ignore[attr-defined]
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            after = source.splitlines()[(node.end_lineno or 1) - 1].encode()[node.end_col_offset or 0 :].decode()
            found[node.target.id] = ast.unparse(node.annotation), after.partition("#")[2].strip()
    rows = []
    for field in dataclasses.fields(cls):
        kind, comment = found.get(field.name, ("", ""))
        default = "" if field.default is dataclasses.MISSING else f"`{field.default!r}`"
        rows.append([f"`{field.name}`", f"`{kind}`" if kind else "", default, field.metadata.get("doc", comment)])
    return rows


def process(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Replace the lines that autodoc found."""
    parameters: Collection[str] = ()
    with contextlib.suppress(TypeError, ValueError):
        parameters = inspect.signature(obj).parameters
    lines[:] = rest("\n".join(lines), parameters)
    if what == "class" and dataclasses.is_dataclass(obj) and dataclasses.fields(obj):
        lines += ["", *table([["field", "type", "default", "meaning"], *fields(obj)])]


def plain_signature(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Names of types as they stand in the source; no signature of a dataclass, which has a table of its fields.

    Autodoc has a wrapper around names that it must not resolve.
    """

    def plain(text: str | None) -> str | None:
        return text and re.sub(r"TypeAliasForwardRef\('(\w+)'\)", r"\1", text)

    return ("" if dataclasses.is_dataclass(obj) else plain(signature)), plain(returns)


def one_signature(app: Sphinx) -> None:
    """Show the signature of the function itself, with all its parameters, and not those of its overloads."""
    for module in {f"kedge.{name}" for name in kedge._MODULE_OF.values()}:
        analyzer = ModuleAnalyzer.for_module(module)
        analyzer.analyze()
        analyzer.overloads.clear()


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to Sphinx; the page is made anew each time."""
    app.connect("env-get-outdated", lambda *_: ["reference/python"])
    app.connect("builder-inited", one_signature)
    app.connect("autodoc-process-docstring", process)
    app.connect("autodoc-process-signature", plain_signature)
    return {"parallel_read_safe": True}
