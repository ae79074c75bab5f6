"""The section "Against the papers" of the report: our means beside the published ones, and how far apart they are."""

from __future__ import annotations

from collections.abc import Sequence

from ..words import count
from .against import Compared, Timed, compare, datasets_shown, grouped, in_rows, runtimes, scenario_shown, sum_up
from .html_tables import NOTHING, Column, badge, escaped, table
from .published import JPTA
from .scores import Results
from .words import percent, points, rounded

CAPTION = (
    "Mean accuracy in percent over the datasets. Below it, the published mean over exactly the same datasets and, in "
    "parentheses, ours minus the published one in points."
)
TUNED = (
    "JPTA’s figures are published averages over the eleven datasets; its settings were tuned for each dataset on the "
    "test split, those of all other rows were not."
)


def comparison(results: Results) -> str:
    """The section "Against the papers"; "" if nothing published fits."""
    rows = compare(results)
    summary = sum_up(rows)
    if summary is None:
        return ""
    published = {(row.table, row.encoder) for row in rows if row.differences}
    blocks = [
        f"<h3>{escaped(place)}: {escaped(encoder)}</h3>{_table(in_place)}"
        for (place, encoder), in_place in grouped(rows).items()
        if (place, encoder) in published
    ]
    times = runtimes(results)
    return (
        f'<section id="papers"><h2>Against the papers</h2><p class="lede">{escaped(summary)}</p>{"".join(blocks)}'
        f"{_times(times) if times else ''}</section>"
    )


def _table(rows: Sequence[Compared]) -> str:
    scenarios, lines = in_rows(rows)
    datasets = datasets_shown(rows)
    html = []
    for label, line in lines.items():
        cells = "".join(_cell(line.get(scenario), len(datasets)) for scenario in scenarios)
        html.append(f'<tr><th scope="row"><span class="name">{escaped(label)}</span></th>{cells}</tr>')
    caption = f"{CAPTION} {count(len(datasets), 'dataset')}: {escaped(', '.join(datasets))}.{badge(rows[0].simulated)}"
    if JPTA in lines:
        caption += f" {TUNED}"
    columns: list[Column] = [("method", "text"), *((scenario_shown(scenario), "number") for scenario in scenarios)]
    return table(caption, columns, html, "papers")


def _cell(row: Compared | None, datasets: int) -> str:
    if row is None:
        return NOTHING
    fewer = f"<small>{count(len(row.datasets), 'dataset')}</small>" if len(row.datasets) < datasets else ""
    if row.ours is None:
        return f'<td data-value="{row.paper:.6f}"><small class="paper">paper {percent(row.paper or 0.0)}</small></td>'
    below = ""
    if row.paper is not None:
        title, difference = escaped(row.source), points(row.difference or 0.0)
        below = f'<small class="paper" title="published: {title}">paper {percent(row.paper)} ({difference})</small>'
    return f'<td data-value="{row.ours:.6f}">{percent(row.ours)}{below}{fewer}</td>'


def _times(times: Sequence[Timed]) -> str:
    html = [
        f'<tr><th scope="row">{timed.batch_size:,}</th><td data-value="{timed.ours:.6g}">{rounded(timed.ours)}</td>'
        f'<td data-value="{timed.paper}">{timed.paper:g}</td></tr>'
        for timed in times
    ]
    where = "; ".join(sorted({timed.machine for timed in times}))
    caption = f"Seconds of StatA for one batch of ImageNet, without the encoder. Here: {escaped(where)}."
    columns: list[Column] = [("batch size", "number"), ("here", "number"), (f"paper ({times[0].hardware})", "number")]
    return f"<h3>Table 3, runtime</h3>{table(caption, columns, html, 'papers')}"
