"""The README's blocks run as written, in order, and print what it shows.

One reader runs all of them once, also with several workers; then each block is a case. A block after one that failed is
not run.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from kedge.files import lock_file
from markdown_blocks import Block, Reader, blocks, missing

README = Path(__file__).resolve().parents[1] / "README.md"
BLOCKS = blocks(README.read_text(encoding="utf-8"))


def read(page: Sequence[Block], folder: Path) -> dict[str, tuple[bool, str]]:
    """Run the blocks until one fails: the line each begins in → did it succeed, and what did it print?"""
    reader, outcomes = Reader(folder), {}
    for block in page:
        if not block.skipped:
            outcomes[str(block.line)] = good, _ = reader.run(block)
            if not good:
                break
    reader.close()
    return outcomes


@pytest.fixture(scope="session")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[bool, str]]:
    place = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        place = place.parent  # which all workers share: the first one here runs the blocks, others wait
    while (lock := lock_file(place / "readme.lock")) is None:
        time.sleep(0.1)
    with lock:
        kept = place / "readme.json"
        if not kept.exists():
            kept.write_text(json.dumps(read(BLOCKS, tmp_path_factory.mktemp("reader"))), encoding="utf-8")
        return json.loads(kept.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(
            block,
            id=f"{block.language}-line-{block.line}",
            marks=[pytest.mark.skip(reason=f"README.md, line {block.line}: {block.skipped}")] if block.skipped else [],
        )
        for block in BLOCKS
    ],
)
def test_a_block_runs_and_prints_what_is_shown(block: Block, outcomes: dict[str, tuple[bool, str]]) -> None:
    if str(block.line) not in outcomes:
        pytest.skip("an earlier block failed")
    good, output = outcomes[str(block.line)]
    assert good, output
    assert not missing(block.shown, output), output


@pytest.mark.parametrize("page", sorted((README.parent / "docs" / "guide").glob("*.md")), ids=lambda page: page.stem)
def test_the_guide_has_blocks_of_the_same_form(page: Path) -> None:
    """They are not run here: that takes minutes."""
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.language == "python":
            compile(block.code, f"{page.name}, line {block.line}", "exec")


PAGE = """
<!-- not run: needs a server -->
```bash
kedge serve
```

```bash
echo "3 images, 71.4 % right in 2 s" > said.txt
cat said.txt
```
```text
3 images, 71.3 % right …
```

Words.

```python
here = open("said.txt").read()
```

```python
print(here.upper())
```
"""


def test_blocks_are_found_with_their_marks_and_output() -> None:
    serve, echo, read_it, shout = blocks(PAGE)
    assert (serve.skipped, echo.skipped) == ("needs a server", None)
    assert echo.shown == ("3 images, 71.3 % right …",)
    assert [block.language for block in (read_it, shout)] == ["python", "python"]
    assert PAGE.splitlines()[echo.line - 1] == "```bash"


@pytest.mark.parametrize(
    ("page", "why"),
    [
        ("```\nkedge\n```\n", "no language"),
        ("```{code-block} bash\nkedge\n```\n", "code-block"),
        ("```text\nshown of nothing\n```\n", "text"),
        ("<!-- not run: why -->\n\nWords.\n", "above no block"),
        ("Words:\n\n    kedge ls methods\n", "indented"),
        ("- Words:\n\n  ```bash\n  kedge ls methods\n  ```\n", "indented"),
        ("~~~bash\nkedge ls methods\n~~~\n", "no ```"),
    ],
)
def test_nothing_is_left_out_silently(page: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        blocks(page)


def test_blocks_share_a_folder_and_python_its_names(tmp_path: Path) -> None:
    done = list(read(blocks(PAGE), tmp_path).values())
    assert [good for good, _ in done] == [True] * 3
    assert done[2][1] == "3 IMAGES, 71.4 % RIGHT IN 2 S\n\n"


@pytest.mark.parametrize(
    ("language", "wrong", "output"),
    [("bash", "false | cat\necho on", ""), ("python", "print(1 / 0)\nprint('on')", "ZeroDivisionError")],
    ids=["bash", "python"],
)
def test_a_failure_is_the_last_that_is_run(language: str, wrong: str, output: str, tmp_path: Path) -> None:
    page = f"```{language}\n{wrong}\n```\n\n```bash\necho later\n```\n"
    ((good, printed),) = read(blocks(page), tmp_path).values()
    assert not good
    assert output in printed
    assert not printed.endswith("on\n")


@pytest.mark.parametrize(
    ("shown", "absent"),
    [
        (["accuracy: 57.2 % zero-shot, 73.8 % adapted"], False),
        (["accuracy: 57.2 % zero-shot, 74.1 % adapted"], False),  # an image or two
        (["accuracy: 57.2 % zero-shot, 75.8 % adapted"], True),
        (["accuracy: 57.2 % zero-shot, 73.8 % corrected"], True),
        (["kedge +15.9", "accuracy: 57.2 % …"], True),  # the order counts
        (["accuracy: 57.2 % …", "kedge +15.9"], False),
        (["kedge -15.9"], True),
    ],
)
def test_numbers_may_drift_a_little(shown: list[str], absent: bool) -> None:
    output = "accuracy: 57.2 % zero-shot, 73.8 % adapted; 400 images\nmethod  gain\nkedge      +15.9\n"
    assert bool(missing(shown, output)) == absent
