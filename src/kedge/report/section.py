"""The section of one group on the page: summary, a table per scenario, figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from ..benchmark.record import Record
from ..words import count
from .contents import Entry, Part
from .drawing import Picture
from .headline import headline
from .html_tables import badge, escaped, scenario_table, summary_table
from .losses import LARGE, explained
from .scores import Cell, Group, Results, encoder_of, sweep

HOW_TO_READ = (
    "How to read the tables: accuracy in percent; then the gain over zero-shot on the same images, in points (green: "
    "better, red: worse, grey: the interval contains 0); in brackets, the 95 % bootstrap interval of the gain over "
    "tasks. The best accuracy of a column is bold, the second best underlined. Click a column's header to sort."
)
NOTES = {  # what to say if the tables have cells of this class
    "tail": "“Worst tenth of tasks” is the mean accuracy of the tenth of the tasks with the lowest accuracy (at least "
    "one), averaged over the datasets; after it, the difference from zero-shot’s own worst tenth, which may be other "
    "tasks. A scenario of one task has none.",
    "paper": "“paper” is the published accuracy; in parentheses, the accuracy here minus the published one. Splits and "
    "prompts may differ from the paper’s, so compare the direction and size of gains rather than accuracies.",
}
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


def section(number: int, group: Group, pictures: Sequence[Placed], results: Results) -> Part:
    """The whole section. number: of the group, from 1."""
    name, encoder = f"results-{number}", "unknown encoder" if group.encoder == "unknown" else escaped(group.encoder)
    failed = [r for r in results.failed if encoder_of(r) == group.encoder and r.simulated == group.simulated]
    summary = [_summary(name, group, results)] if group.adapted else []
    tables = [
        _table(f"{name}-scenario-{at}", scenario, group, results, failed)
        for at, scenario in enumerate(group.scenarios, 1)
    ]
    fixed = [each for each, scenario in zip(tables, group.scenarios, strict=True) if sweep(scenario)]
    others = [each for each in tables if each not in fixed]
    bars = [_figure(name, each, group) for each in pictures if each.picture.key == "bars"]
    figures = [_figure(name, each, group) for each in pictures if each.picture.key != "bars"]

    found = _joined(tables)
    notes = [HOW_TO_READ, *(said for style, said in NOTES.items() if f'class="{style}"' in found)]
    if any(cell.feedback for cell in group.cells):
        notes.append(FEEDBACK)
    title = f"Results: {encoder}{badge(group.simulated)}"
    html = [f'<section id="{name}"><h2>{title}</h2>']
    if len(results.groups) > 1:
        html.append(f'<p class="lede">{escaped(headline([group]))}.</p>')
    html += [_joined(summary), f'<div class="figures">{_joined(bars)}</div>']
    html += [f'<p class="note">{note}</p>' for note in notes]
    html.append(f'<div class="tables">{_joined(others)}</div>')
    if fixed:
        html.append(
            f"<details{' open' * (not others)}><summary>{count(len(fixed), 'table')} with a fixed number of classes "
            f'per batch</summary><div class="tables">{_joined(fixed)}</div></details>'
        )
    html.append(f'<div class="figures">{_joined(figures)}</div></section>')
    inside = [part.entry for part in (*summary, *bars, *others, *fixed, *figures)]
    return Part(Entry(name, title, inside), "".join(html))


def _joined(parts: Sequence[Part]) -> str:
    return "".join(part.html for part in parts)


def _summary(section: str, group: Group, results: Results) -> Part:
    entry = Entry(f"{section}-summary", "Summary")
    table = summary_table(group, results.colours) + _losses(group.adapted)
    return Part(entry, f'<div id="{entry.id}"><h3>Summary</h3>{table}</div>')


def _table(name: str, scenario: str, group: Group, results: Results, failed: Sequence[Record]) -> Part:
    """The table of a scenario, with the reason for large losses in it."""
    batch = sweep(scenario)
    entry = Entry(name, f"{count(batch.k_min, 'class')}, batches of {batch.size:,}" if batch else escaped(scenario))
    table = scenario_table(group, scenario, results.colours, failed)
    losses = _losses([cell for row in group.table(scenario).values() for cell in row.values()])
    return Part(entry, f'<div id="{name}"><h3>{escaped(scenario)}</h3>{table}{losses}</div>')


def _losses(cells: Sequence[Cell]) -> str:
    """A sentence on large losses among these cells; "" if there are none, or none that can be explained."""
    reason = explained(cells)
    start = f"Losses of more than {100 * LARGE:.0f} points:"
    return f'<p class="note loss"><strong>{start}</strong> {escaped(reason)}</p>' if reason else ""


def _figure(section: str, placed: Placed, group: Group) -> Part:
    picture = placed.picture
    entry = Entry(f"{section}-{picture.key}", SHORT.get(picture.key, escaped(picture.title)))
    panels = "".join(
        f'<div role="img" aria-label="{escaped(panel.says)}{", simulated" * group.simulated}">{svg}</div>'
        for panel, svg in zip(picture.panels, placed.svgs, strict=True)
    )
    links = ", ".join(f'<a href="{quote(name)}">{escaped(name.rpartition("/")[2])}</a>' for name in placed.files)
    return Part(
        entry,
        f'<div id="{entry.id}" style="--panels:{len(picture.panels)}">'
        f"<h3>{escaped(picture.title)}{badge(group.simulated)}</h3>"
        f'<figure data-picture="{picture.key}"><div class="panels">{panels}</div><figcaption>{escaped(picture.caption)}'
        f"<details><summary>Files</summary>{links}</details></figcaption></figure></div>",
    )
