"""The reference of the command line, from the program itself: it takes the place of MARK in a page."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import typer
from sphinx.application import Sphinx

from kedge.cli import _app

MARK = "<!-- commands -->"
PAGE = "reference/command_line"


def commands() -> Iterator[tuple[str, Any]]:
    """(`kedge ls methods`, its click command) for each command, in the order of `kedge --help`."""
    for name in _app.COMMANDS:  # each registers itself
        import_module(f"kedge.cli.{name}")
    root = typer.main.get_command(_app.app)
    yield "kedge", root
    for name, command in root.commands.items():
        parts = getattr(command, "commands", None)
        yield f"kedge {name}", command
        for part, below in (parts or {}).items():
            yield f"kedge {name} {part}", below


def described(name: str, command: Any) -> str:
    """One command in Markdown: usage, help and a table of its arguments and options."""
    with command.context_class(command, info_name=name) as context:
        usage = " ".join([name, *command.collect_usage_pieces(context)])
        rows = [_row(param, context) for param in command.get_params(context) if not _is_help(param)]
    level = "##" if name.count(" ") < 2 else "###"
    parts = [f"{level} {name}", f"```text\n{usage}\n```", prose(command.help or "")]
    if rows:
        parts.append("\n".join(["| option | meaning |", "|---|---|", *rows]))
    return "\n\n".join(parts)


def prose(text: str) -> str:
    """Help text in Markdown: a block after `\\b`, which click prints as it is, becomes a code block."""
    blocks = re.split(r"\n\s*\n", inspect.cleandoc(text).replace("\f", ""))
    return "\n\n".join(_block(block) for block in blocks)


def _block(block: str) -> str:
    if not block.startswith("\b"):
        return _escaped(block)
    lines = block.split("\n")[1:]
    if all(line.startswith("Example: ") for line in lines):
        return "```bash\n" + "\n".join(line.removeprefix("Example: ") for line in lines) + "\n```"
    return "```text\n" + "\n".join(lines) + "\n```"


def _row(param: Any, context: Any) -> str:
    shown, meaning = param.get_help_record(context)
    if param.param_type_name == "argument":
        shown = param.metavar or param.name.upper()
    meaning = re.sub(r"\s*\[(default: [^\]]+|required)\]$", lambda note: f" ({note[1]})", meaning)
    return "| `{}` | {} |".format(shown.replace("|", r"\|"), _escaped(meaning).replace("\n", " "))


def _is_help(param: Any) -> bool:
    return "--help" in param.opts


def _escaped(text: str) -> str:
    """Text in which special characters of Markdown mean themselves; `code` stays, and --option becomes code."""
    parts = re.split(r"(`[^`]*`)", text)
    parts[::2] = [re.sub(r"([*_<>|\\\[\]])", r"\\\1", part) for part in parts[::2]]
    parts[::2] = [re.sub(r"(?<![\w-])--[a-z][\w-]*", r"`\g<0>`", part) for part in parts[::2]]
    return "".join(parts)


def fill(app: Sphinx, page: str, source: list[str]) -> None:
    """Put the commands in the place of the mark."""
    if page == PAGE:
        source[0] = source[0].replace(MARK, "\n\n".join(described(*each) for each in commands()))


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to Sphinx; the page is made anew each time."""
    app.connect("source-read", fill)
    app.connect("env-get-outdated", lambda *_: [PAGE])
    return {"parallel_read_safe": True}
