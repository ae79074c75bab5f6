"""The page: one self-contained HTML file. It loads nothing, and its content security policy forbids loading."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote

from ..words import count
from .contents import Entry, contents
from .drawing import PALETTE, Picture
from .headline import heading, headline, opening
from .html_tables import badge, escaped, scenario_table, summary_table
from .losses import LARGE, explained
from .provenance import failures, provenance
from .scores import Cell, Group, Results, encoder_of, sweep

HOW_TO_READ = (
    "How to read the tables: accuracy in percent; then the gain over zero-shot on the same images, in points (green: "
    "better, red: worse, grey: the interval contains 0); in brackets, the 95 % bootstrap interval of the gain over "
    "tasks. The best accuracy of a column is bold, the second best underlined. Click a column's header to sort."
)
TAIL = (
    "“Worst tenth of tasks” is the mean accuracy of the tenth of the tasks with the lowest accuracy (at least one), "
    "averaged over the datasets; after it, the difference from zero-shot’s own worst tenth, which may be other tasks. "
    "A scenario of one task has none."
)
PAPER = (
    "“paper” is the published accuracy; in parentheses, the accuracy here minus the published one. Splits and prompts "
    "may differ from the paper’s, so compare the direction and size of gains rather than accuracies."
)
FEEDBACK = (
    "A method with “+ 5 known” was given the labels of 5 images of every batch, drawn at random or first in the order "
    "of review; these images are not scored, not for zero-shot either. With “+ found classes” it was told which of the "
    "classes it found are not there; with “+ true classes”, exactly which classes are there."
)
SHORT = {  # figures in the contents; one without a short name is named by its title
    "bars": "Accuracy by scenario",
    "harm": "Batches made worse",
    "alpha": "Anchor weight α",
    "beta": "Hard and soft β",
    "stream": "Along a stream",
    "correlation": "Similarity of batches",
    "reliability": "Calibration",
    "time": "Time per image",
}


@dataclass(frozen=True)
class Placed:
    """A figure on the page: its panels as inline SVG, and its files relative to the page."""

    picture: Picture
    svgs: list[str]
    files: list[str]


@dataclass(frozen=True)
class Part:
    """A section of the page with its entry in the contents. A part without HTML is left out."""

    entry: Entry
    html: str


def page(results: Results, pictures: Sequence[Sequence[Placed]], sheets: Mapping[str, Path], note: str = "") -> str:
    """The whole page. pictures: the figures of each group. sheets: PNG files by title. note: a paragraph at the top."""
    script, sheet = _asset("report.js"), _colours() + _asset("report.css")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    failed = Part(Entry("failed", "Failed cells"), failures(results.failed))
    parts = [
        *(
            _section(n, group, placed, results)
            for n, (group, placed) in enumerate(zip(results.groups, pictures, strict=True))
        ),
        *(_sheet(number, title, path) for number, (title, path) in enumerate(sheets.items())),
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
    picture = f'<img alt="{escaped(title)}" src="data:image/png;base64,{png}">'
    entry = Entry(f"sheet-{number + 1}", escaped(title))
    return Part(
        entry, f'<section id="{entry.id}"><h2>{entry.name}</h2><figure class="sheet">{picture}</figure></section>'
    )


def _asset(name: str) -> str:
    return (files(__package__) / "assets" / name).read_text(encoding="utf-8")


def _colours() -> str:
    """The colours of the methods as CSS variables, for light and dark mode."""
    light, dark = (";".join(f"--m{n}:{pair[side]}" for n, pair in enumerate(PALETTE)) for side in (0, 1))
    return f":root{{{light}}}@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"


def _section(number: int, group: Group, pictures: Sequence[Placed], results: Results) -> Part:
    """The results of a group: summary, a table per scenario, figures."""
    name, encoder = f"results-{number + 1}", "unknown encoder" if group.encoder == "unknown" else escaped(group.encoder)
    failed = [r for r in results.failed if encoder_of(r) == group.encoder and r.simulated == group.simulated]
    ids = {scenario: f"{name}-scenario-{at}" for at, scenario in enumerate(group.scenarios, 1)}
    fixed = {scenario: batch for scenario in group.scenarios if (batch := sweep(scenario))}
    others = [scenario for scenario in group.scenarios if scenario not in fixed]
    drawn = {each.picture.key: _figure(each, group, name) for each in pictures}

    def tables(scenarios: Sequence[str]) -> str:
        blocks = (
            f'<div id="{ids[s]}"><h3>{escaped(s)}</h3>{scenario_table(group, s, results.colours, failed)}'
            f"{_losses([cell for row in group.table(s).values() for cell in row.values()])}</div>"
            for s in scenarios
        )
        return f'<div class="tables">{"".join(blocks)}</div>' if scenarios else ""

    title = f"Results: {encoder}{badge(group.simulated)}"
    html = [f'<section id="{name}"><h2>{title}</h2>']
    if len(results.groups) > 1:
        html.append(f'<p class="lede">{escaped(headline([group]))}.</p>')
    inside = []
    if group.adapted:
        inside.append(Entry(f"{name}-summary", "Summary"))
        table = summary_table(group, results.colours) + _losses(group.adapted)
        html.append(f'<div id="{name}-summary"><h3>Summary</h3>{table}</div>')
    html.append(drawn.get("bars", ""))
    html.append(f'<p class="note">{HOW_TO_READ}</p>{tables(others)}')
    if fixed:
        html.append(
            f"<details{' open' * (len(fixed) == len(group.scenarios))}><summary>{count(len(fixed), 'table')} with a "
            f"fixed number of classes per batch</summary>{tables(list(fixed))}</details>"
        )
    if any('class="tail"' in part for part in html):
        html.append(f'<p class="note">{TAIL}</p>')
    if any('class="paper"' in part for part in html):
        html.append(f'<p class="note">{PAPER}</p>')
    if any(cell.feedback for cell in group.cells):
        html.append(f'<p class="note">{FEEDBACK}</p>')
    html += [figure for key, figure in drawn.items() if key != "bars"]
    inside += [Entry(f"{name}-{key}", SHORT["bars"]) for key in drawn if key == "bars"]
    inside += [Entry(ids[s], escaped(s)) for s in others]
    inside += [Entry(ids[s], f"{count(b.k_min, 'class')}, batches of {b.size:,}") for s, b in fixed.items()]
    inside += [
        Entry(f"{name}-{each.picture.key}", SHORT.get(each.picture.key, escaped(each.picture.title)))
        for each in pictures
        if each.picture.key != "bars"
    ]
    return Part(Entry(name, title, inside), "".join(html) + "</section>")


def _losses(cells: Sequence[Cell]) -> str:
    """A sentence on large losses among these cells; "" if there are none, or none that can be explained."""
    reason = explained(cells)
    start = f"Losses of more than {100 * LARGE:.0f} points:"
    return f'<p class="note loss"><strong>{start}</strong> {escaped(reason)}</p>' if reason else ""


def _figure(placed: Placed, group: Group, section: str) -> str:
    picture = placed.picture
    panels = "".join(
        f'<div role="img" aria-label="{escaped(panel.says)}{", simulated" * group.simulated}">{svg}</div>'
        for panel, svg in zip(picture.panels, placed.svgs, strict=True)
    )
    links = ", ".join(f'<a href="{quote(name)}">{escaped(name.rpartition("/")[2])}</a>' for name in placed.files)
    return (
        f'<h3 id="{section}-{picture.key}">{escaped(picture.title)}{badge(group.simulated)}</h3>'
        f'<figure data-picture="{picture.key}"><div class="panels">{panels}</div><figcaption>{escaped(picture.caption)}'
        f"<details><summary>Files</summary>{links}</details></figcaption></figure>"
    )
