"""The page: one self-contained HTML file. It loads nothing, and its content security policy forbids loading."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path

from .comparison import comparison
from .contents import Entry, Part, contents
from .drawing import PALETTE
from .headline import heading, opening
from .html_tables import escaped, scrolling
from .provenance import failures, provenance
from .scores import Results
from .section import Placed, section


def page(results: Results, pictures: Sequence[Sequence[Placed]], sheets: Mapping[str, Path], note: str = "") -> str:
    """The whole page. pictures: the figures of each group. sheets: PNG files by title. note: a paragraph at the top."""
    script, sheet = _asset("report.js"), _colours() + _asset("report.css")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    failed = Part(Entry("failed", "Failed cells"), failures(results.failed))
    groups = zip(results.groups, pictures, strict=True)
    parts = [
        *(section(number, group, placed, results) for number, (group, placed) in enumerate(groups, 1)),
        Part(Entry("papers", "Against the papers"), comparison(results)),
        *(_sheet(number, title, path) for number, (title, path) in enumerate(sheets.items(), 1)),
        Part(Entry("provenance", "Settings, versions, hashes"), provenance(results)),
    ]
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>kedge report: {escaped(heading(results))}</title>
<style>{sheet}</style>
</head>
<body>
{failed.html}
<header>
<p class="over">kedge report</p>
{opening(results)}
{f'<p class="note">{escaped(note)}</p>' if note else ""}
</header>
{contents([part.entry for part in (failed, *parts) if part.html])}
<main>
{"".join(part.html for part in parts)}
</main>
<script>{script}</script>
</body>
</html>
"""


def _sheet(number: int, title: str, path: Path) -> Part:
    png = base64.b64encode(path.read_bytes()).decode()
    picture = scrolling(f'<img alt="{escaped(title)}" src="data:image/png;base64,{png}">', "scrollable picture")
    entry = Entry(f"sheet-{number}", escaped(title))
    return Part(
        entry, f'<section id="{entry.id}"><h2>{entry.name}</h2><figure class="sheet">{picture}</figure></section>'
    )


def _asset(name: str) -> str:
    return (files(__package__) / "assets" / name).read_text(encoding="utf-8")


def _colours() -> str:
    """The colours of the methods as CSS variables, for light and dark mode."""
    light, dark = (";".join(f"--m{n}:{pair[side]}" for n, pair in enumerate(PALETTE)) for side in (0, 1))
    return f":root{{{light}}}@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"
