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
from .comparison import comparison
from .drawing import PALETTE, Picture
from .html_tables import badge, escaped, scenario_table, summary_table
from .provenance import failures, provenance
from .scores import ZERO_SHOT, Group, Results, Score, encoder_of, sweep
from .words import points

HOW_TO_READ = (
    "How to read the tables: accuracy in percent; then the gain over zero-shot on the same images, in points (green: "
    "better, red: worse, grey: the interval contains 0); in brackets, the 95 % bootstrap interval of the gain over "
    "tasks. The best accuracy of a column is bold, the second best underlined. Click a column's header to sort."
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


@dataclass(frozen=True)
class Placed:
    """A figure on the page: its panels as inline SVG, and its files relative to the page."""

    picture: Picture
    svgs: list[str]
    files: list[str]


def page(results: Results, pictures: Sequence[Sequence[Placed]], sheets: Mapping[str, Path], note: str = "") -> str:
    """The whole page. pictures: the figures of each group. sheets: PNG files by title. note: a paragraph at the top."""
    script, sheet = _asset("report.js"), _colours() + _asset("report.css")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    title = headline(results.groups[0]) if results.groups else "No cell has a score"
    mark = badge(results.groups[0].simulated) if results.groups else ""
    sections = [
        _section(number, group, placed, results)
        for number, (group, placed) in enumerate(zip(results.groups, pictures, strict=True))
    ]
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>kedge report: {escaped(title)}</title>
<style>{sheet}</style>
</head>
<body>
{failures(results.failed)}
<header>
<p class="over">kedge report</p>
<h1>{escaped(title)}{mark}</h1>
{_compared(results)}
{f'<p class="note">{escaped(note)}</p>' if note else ""}
{_contents(results)}
</header>
<main>
{"".join(sections)}
{comparison(results)}
{"".join(_sheet(title, path) for title, path in sheets.items())}
{provenance(results)}
</main>
<script>{script}</script>
</body>
</html>
"""


def _sheet(title: str, path: Path) -> str:
    png = base64.b64encode(path.read_bytes()).decode()
    picture = f'<img alt="{escaped(title)}" src="data:image/png;base64,{png}">'
    return f'<section><h2>{escaped(title)}</h2><figure class="sheet">{picture}</figure></section>'


def _asset(name: str) -> str:
    return (files(__package__) / "assets" / name).read_text(encoding="utf-8")


def _colours() -> str:
    """The colours of the methods as CSS variables, for light and dark mode."""
    light, dark = (";".join(f"--m{n}:{pair[side]}" for n, pair in enumerate(PALETTE)) for side in (0, 1))
    return f":root{{{light}}}@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"


def headline(group: Group) -> str:
    """The main finding: the best mean gain among the methods that ran on the most cells, without feedback."""
    found = {label: [cell for cell in group.unaided if cell.label == label] for label in group.labels}
    most = max(map(len, found.values()))
    if most == 0:
        return "Only zero-shot was run"
    means = {label: Score.mean([c.score for c in cells]) for label, cells in found.items() if len(cells) == most}
    best = max(means, key=lambda label: means[label].gain)
    datasets, scenarios = ({getattr(cell, what) for cell in found[best]} for what in ("dataset", "scenario"))
    where = f"({count(most, 'cell')}: {count(len(datasets), 'dataset')}, {count(len(scenarios), 'scenario')})"
    gain = points(means[best].gain)
    if means[best].gain <= 0:
        return f"No method beats zero-shot on average: the best, {best}, changes accuracy by {gain} points {where}"
    return f"{best} gains {gain.removeprefix('+')} points over zero-shot on average {where}"


def _compared(results: Results) -> str:
    if not results.scored:
        return '<p class="lede">Every cell failed. The reasons are listed above.</p>'
    cells = [cell for group in results.groups for cell in group.cells]
    settings: dict[str, set[str]] = {}
    for cell in cells:
        settings.setdefault(cell.records[0].method, set()).add(cell.label)
    methods = [
        escaped(method) + (f" (in {len(labels)} settings)" if len(labels) > 1 else "")
        for method, labels in sorted(settings.items())
        if method != ZERO_SHOT
    ]
    datasets, scenarios = ({getattr(cell, what) for cell in cells} for what in ("dataset", "scenario"))
    encoders = {group.encoder for group in results.groups}
    said = (
        f"Methods compared with zero-shot: {', '.join(methods) or 'none'}; on {count(len(datasets), 'dataset')}, with "
        f"{count(len(encoders), 'encoder')}, in {count(len(scenarios), 'scenario')}. "
        f"{count(len(results.scored), 'run')}, {count(sum(r.images or 0 for r in results.scored), 'label')} scored."
    )
    if results.failed:
        said += f' <a href="#failed">{count(len(results.failed), "cell")} failed.</a>'
    if results.repeated:
        said += f" {count(results.repeated, 'duplicate record')} left out; the one with the most tasks is kept."
    if any(group.simulated for group in results.groups):
        said += (
            " Results marked “simulated” come from simulated features or pictures and say nothing about real images."
        )
    return f'<p class="lede">{said}</p>'


def _contents(results: Results) -> str:
    links = [f'<li><a href="#{_id(n)}">{_group_name(group)}</a></li>' for n, group in enumerate(results.groups)]
    if comparison(results):
        links.append('<li><a href="#papers">Against the papers</a></li>')
    links.append('<li><a href="#provenance">Settings, versions, hashes</a></li>')
    return f'<nav aria-label="contents"><ul>{"".join(links)}</ul></nav>'


def _id(number: int) -> str:
    return f"results-{number + 1}"


def _group_name(group: Group) -> str:
    encoder = "unknown encoder" if group.encoder == "unknown" else escaped(group.encoder)
    return f"Results: {encoder}{badge(group.simulated)}"


def _section(number: int, group: Group, pictures: Sequence[Placed], results: Results) -> str:
    failed = [r for r in results.failed if encoder_of(r) == group.encoder and r.simulated == group.simulated]

    def tables(scenarios: Sequence[str]) -> str:
        return "".join(f"<h3>{escaped(s)}</h3>{scenario_table(group, s, results.colours, failed)}" for s in scenarios)

    fixed = [scenario for scenario in group.scenarios if sweep(scenario)]
    html = [f'<section id="{_id(number)}"><h2>{_group_name(group)}</h2>']
    if number > 0:
        html.append(f'<p class="lede">{escaped(headline(group))}.</p>')
    if group.adapted:
        html.append(summary_table(group, results.colours))
    html += [_figure(placed, group) for placed in pictures if placed.picture.key == "bars"]
    html.append(f'<p class="note">{HOW_TO_READ}</p>')
    html.append(tables([scenario for scenario in group.scenarios if scenario not in fixed]))
    if fixed:
        html.append(
            f"<details{' open' * (len(fixed) == len(group.scenarios))}><summary>{count(len(fixed), 'table')} with a "
            f"fixed number of classes per batch</summary>{tables(fixed)}</details>"
        )
    if any('class="paper"' in part for part in html):
        html.append(f'<p class="note">{PAPER}</p>')
    if any(cell.feedback for cell in group.cells):
        html.append(f'<p class="note">{FEEDBACK}</p>')
    html += [_figure(placed, group) for placed in pictures if placed.picture.key != "bars"]
    return "".join(html) + "</section>"


def _figure(placed: Placed, group: Group) -> str:
    picture = placed.picture
    panels = "".join(
        f'<div role="img" aria-label="{escaped(panel.says)}{", simulated" * group.simulated}">{svg}</div>'
        for panel, svg in zip(picture.panels, placed.svgs, strict=True)
    )
    links = ", ".join(f'<a href="{quote(name)}">{escaped(name.rpartition("/")[2])}</a>' for name in placed.files)
    return (
        f'<h3>{escaped(picture.title)}{badge(group.simulated)}</h3><figure data-picture="{picture.key}">'
        f'<div class="panels">{panels}</div><figcaption>{escaped(picture.caption)}'
        f"<details><summary>Files</summary>{links}</details></figcaption></figure>"
    )
