"""The code blocks of a Markdown page: found, run in order as a reader would, and compared with what the page shows.

A block is fenced, and says that it is `bash` or `python`. A `text` block right after it shows lines of its output. A
comment just above it, <!-- not run: REASON -->, says that it is not run, and why. Directives of MyST (```{name}) are
no code.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

MARK = re.compile(r"<!-- not run: (.+) -->")
FENCE = re.compile(r"```(\{?[\w-]*\}?)")
NUMBER = re.compile(r"[-+−]?\d+(?:[.,]\d+)*")
LANGUAGES = ("bash", "python")
OTHER = re.compile(r" {4}|\s+```|~~~")  # forms of a block that are not read
NO_CODE = ("{toctree}",)  # directives of the site
SECONDS = 300  # that a block may take on a very busy machine
DRIFT, SHARE = 0.6, 0.01  # by which a number may differ from the one shown: on another CPU an image may turn
END = "end of the block 5f1c9e"
READER = f"""
import json, sys
space = {{"__name__": "__main__"}}
for line in sys.stdin:
    exec(compile(json.loads(line), "block", "exec"), space)
    print({END!r}, flush=True)
"""


@dataclass(frozen=True)
class Block:
    """A block of a page: the line it begins in, its code, why it is not run, and lines of its output."""

    line: int
    language: str
    code: str
    skipped: str | None = None
    shown: tuple[str, ...] = ()


def blocks(text: str) -> list[Block]:
    """The blocks of a page in order. ValueError for one that would neither be run nor be reported as skipped."""
    found: list[Block] = []
    lines = iter(enumerate(text.splitlines(), start=1))
    reason, after = None, False  # of the next block; does only white space lie between here and the last one?
    for number, line in lines:
        if fence := FENCE.match(line):
            inside = list(_until_fence(lines))
            if fence[1] == "text" and after:
                found[-1] = replace(found[-1], shown=tuple(filter(str.strip, inside)))
            elif fence[1] in LANGUAGES:
                found.append(Block(number, fence[1], "\n".join(inside) + "\n", reason))
            elif fence[1] not in NO_CODE:
                raise ValueError(f"line {number}: a block of {fence[1] or 'no language'!r}, which nothing runs")
            reason, after = None, fence[1] in LANGUAGES
        elif mark := MARK.fullmatch(line):
            reason, after = mark[1], False
        elif line.strip():
            if reason:
                raise ValueError(f"line {number}: the mark above stands above no block")
            if OTHER.match(line):
                raise ValueError(f"line {number}: a block that is indented or has no ```, which nothing runs")
            after = False
    return found


def _until_fence(lines: Iterator[tuple[int, str]]) -> Iterator[str]:
    for _, line in lines:
        if line.startswith("```"):
            return
        yield line


class Reader:
    """Runs blocks in one folder: each shell block in a bash that stops at errors, all Python blocks in one process."""

    def __init__(self, folder: Path) -> None:
        path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])  # as after `activate`
        self.folder, self.environment = folder, {**os.environ, "PATH": path, "PYTHONUNBUFFERED": "1"}
        self.python: subprocess.Popen[str] | None = None

    def run(self, block: Block) -> tuple[bool, str]:
        """Did it succeed, and what did it print, on stdout and stderr?"""
        if block.language == "python":
            return self._in_python(block.code)
        process = self._start(["bash", "-euo", "pipefail", "-c", block.code])
        with _killed_after(process, SECONDS):
            output, _ = process.communicate()
        return process.returncode == 0, output

    def close(self) -> None:
        if self.python:
            self.python.communicate()  # it ends with its input
            self.python = None

    def _start(self, command: Sequence[str]) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environment,
            stdin=pipe,
            stdout=pipe,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
        )

    def _in_python(self, code: str) -> tuple[bool, str]:
        self.python = self.python or self._start([sys.executable, "-c", READER])
        assert self.python.stdin
        assert self.python.stdout
        output: list[str] = []
        with _killed_after(self.python, SECONDS):
            self.python.stdin.write(json.dumps(code) + "\n")
            self.python.stdin.flush()
            for line in self.python.stdout:
                if line.rstrip("\n") == END:
                    return True, "".join(output)
                output.append(line)
        return False, "".join(output)  # it ended: the block raised an error


@contextlib.contextmanager
def _killed_after(process: subprocess.Popen[str], seconds: float) -> Iterator[None]:
    """Kill a process that has not come to the end of the `with` in so many seconds."""
    timer = threading.Timer(seconds, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def missing(shown: Sequence[str], output: str) -> list[str]:
    """The lines shown that are not in the output, in this order.

    A line is there if its words are, and each number is near the one shown. … stands for anything, and white space for
    any other white space.
    """
    rest, absent = output.splitlines(), []
    for line in shown:
        at = next((i for i, printed in enumerate(rest) if _same(line, printed)), None)
        if at is None:
            absent.append(line)
        else:
            rest = rest[at + 1 :]
    return absent


def _same(line: str, printed: str) -> bool:
    words = " ".join(line.split())
    parts = re.split(f"({NUMBER.pattern}|…| )", words)
    pattern = {"…": ".*", " ": r"\s+"}
    form = "".join(
        pattern.get(part, f"({NUMBER.pattern})" if NUMBER.fullmatch(part) else re.escape(part)) for part in parts
    )
    found = re.search(form, printed)
    pairs = zip(map(_value, NUMBER.findall(words)), map(_value, found.groups()), strict=True) if found else ()
    return bool(found) and all(abs(a - b) <= max(DRIFT, SHARE * abs(a)) for a, b in pairs)


def _value(number: str) -> float:
    return float(number.replace(",", "").replace("−", "-"))
