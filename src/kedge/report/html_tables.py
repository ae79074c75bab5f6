"""The result tables as HTML. All text that comes from a record is escaped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from html import escape
from statistics import median
from typing import Literal

from ..benchmark.record import Record
from ..benchmark.scenarios import in_words
from .drawing import PALETTE, shortened
from .published import published_for
from .score import Score
from .scores import ZERO_SHOT, Cell, Group, calibration, dataset_order, tails
from .words import percent, plain, points, rounded

Column = tuple[str, Literal["number", "text"]]
SIMULATED = '<span class="badge">simulated</span>'
NAME_SHOWN = 36  # characters in the head of a column
TAIL = "worst tenth of tasks"
NOTHING = '<td data-value="">–</td>'


def escaped(text: object) -> str:
    """Printable text, escaped for HTML."""
    return escape(plain(str(text)))


def badge(simulated: bool) -> str:
    """The mark for results of simulated features or pictures."""
    return f" {SIMULATED}" if simulated else ""


def scrolling(content: str, name: str) -> str:
    """A box that scrolls sideways where its content is wider than the window; name: for screen readers."""
    return f'<div class="box"><div class="scroll" tabindex="0" role="group" aria-label="{name}">{content}</div></div>'


def table(caption: str, columns: Sequence[Column], rows: Iterable[str], style: str = "") -> str:
    """A table in a scrolling box, with headers that sort. rows: complete `<tr>` elements."""
    heads = "".join(
        f'<th scope="col" data-kind="{kind}" title="{escaped(name)}">'
        f'<button type="button">{escaped(shortened(name, NAME_SHOWN))}</button></th>'
        for name, kind in columns
    )
    return scrolling(
        f'<table class="{style}"><caption><span>{caption}</span></caption>'
        f"<thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>",
        "scrollable table",
    )


def scenario_table(group: Group, scenario: str, colours: dict[str, int], failed: Sequence[Record]) -> str:
    """The table of one scenario as in the paper: methods × datasets, the average first."""
    cells = group.table(scenario)
    scores = {label: {dataset: cell.score for dataset, cell in row.items()} for label, row in cells.items()}
    datasets = sorted({dataset for row in scores.values() for dataset in row}, key=dataset_order)
    before = {d: next(row[d].before for row in scores.values() if d in row) for d in datasets}
    scores = {
        ZERO_SHOT: before
    } | scores  # every record has zero-shot on its own images: used where zero-shot was not run
    scores[ZERO_SHOT] = before | scores[ZERO_SHOT]
    average = "average"
    whole = {  # an average over fewer datasets could not be compared
        label: Score.mean(list(row.values())) for label, row in scores.items() if len(row) == len(datasets)
    }
    if whole.keys() == {ZERO_SHOT} < scores.keys():
        whole = {}  # zero-shot's averages alone compare with nothing
    if len(datasets) > 1:
        for label, score in whole.items():
            scores[label][average] = score
    columns = [average, *datasets] if whole and len(datasets) > 1 else datasets
    has_tail, place = any(score.tail is not None for score in whole.values()), 1 + (average in columns)
    ranks = {c: _ranks({label: row[c].accuracy for label, row in scores.items() if c in row}) for c in columns}
    usual = group.usual_plans(scenario)
    broken = {(plain(r.label), plain(r.dataset)) for r in failed if plain(r.scenario) == scenario}
    rows, odd = [], False
    for label, row in scores.items():
        html = [_name(label, colours)]
        for column in columns:
            cell = cells.get(label, {}).get(column)
            other = cell is not None and cell.plans != usual[column]
            odd |= other
            if column in row:
                marks = "†" * other, _paper(cell) if cell else ""
                html.append(_score(row[column], ranks[column].get(label), label, column == average, *marks))
            elif (label, column) in broken:
                html.append('<td data-value=""><a href="#failed">failed</a></td>')
            else:
                html.append(NOTHING)
        if has_tail:
            html.insert(place, _tail(whole.get(label), label))
        rows.append(f"<tr>{''.join(html)}</tr>")
    tasks = sorted({sum(r.tasks for r in cell.records) for found in cells.values() for cell in found.values()})
    number = " or ".join(f"{each:,}" for each in tasks)
    about = [in_words(scenario), f"{number} {'task' if tasks == [1] else 'tasks'} per dataset"]
    caption = f"{escaped('; '.join(filter(None, about)))}.{badge(group.simulated)}"
    if odd:
        caption += " † scored on different tasks from the rest of the column: compare gains, not accuracies."
    shown: list[Column] = [("method", "text"), *((column, "number") for column in columns)]
    if has_tail:
        shown.insert(place, (TAIL, "number"))
    return table(caption, shown, rows)


def _ranks(accuracies: dict[str, float]) -> dict[str, int]:
    """label → 1 (best) or 2 (second best), by accuracy as shown; empty for fewer than two methods."""
    shown = {label: percent(value) for label, value in accuracies.items()}
    values = sorted(set(shown.values()), key=float, reverse=True)
    if len(shown) < 2:
        return {}
    return {label: values.index(text) + 1 for label, text in shown.items() if text in values[:2]}


def _name(label: str, colours: dict[str, int]) -> str:
    turn, number = divmod(colours.get(label, 0), len(PALETTE))
    colour = "var(--zero)" if label == ZERO_SHOT else f"var(--m{number})"
    hatched = " hatched" * (turn > 0)  # like its bars
    swatch = f'<span class="swatch{hatched}" style="--colour:{colour}" aria-hidden="true"></span>'
    return f'<th scope="row"><span class="name">{swatch}{escaped(label)}</span></th>'


def _score(score: Score, rank: int | None, label: str, average: bool, mark: str, below: str) -> str:
    """One cell: accuracy, gain, a mark, interval, published figure."""
    accuracy = percent(score.accuracy)
    if rank == 1:
        accuracy = f"<strong>{accuracy}</strong>"
    elif rank == 2:
        accuracy = f"<u>{accuracy}</u>"
    html = accuracy + mark if label == ZERO_SHOT else f"{accuracy} {_gain(score)}{mark}{_interval(score)}"
    return f'<td{" class=mean" * average} data-value="{score.accuracy:.6f}">{html}{below}</td>'


def _tail(score: Score | None, label: str) -> str:
    """One cell: accuracy of the worst tenth of tasks, and how far it is from that of zero-shot's own worst tenth."""
    if score is None or score.tail is None or score.zero_shot_tail is None:
        return NOTHING
    gain = "" if label == ZERO_SHOT else f' <span class="gain">{points(score.tail - score.zero_shot_tail)}</span>'
    return f'<td class="tail" data-value="{score.tail:.6f}">{percent(score.tail)}{gain}</td>'


def _gain(score: Score) -> str:
    """`+4.1`, green or red; grey if the interval contains 0."""
    style = {1: " up", -1: " down", 0: ""}[score.sign]
    return f'<span class="gain{style}">{points(score.gain)}</span>'


def _interval(score: Score) -> str:
    return f"<small>[{points(score.low)}, {points(score.high)}]</small>" if score.has_interval else ""


def _paper(cell: Cell) -> str:
    """The published accuracy for this cell and the difference from it."""
    found = published_for(cell.records[0])
    if found is None:
        return ""
    difference = points(cell.score.accuracy - found.accuracy)
    return (
        f'<small class="paper" title="published: {escaped(found.source)}">'
        f"paper {percent(found.accuracy)} ({difference})</small>"
    )


def summary_table(group: Group, colours: dict[str, int]) -> str:
    """One row per method over all its cells: gain, tail accuracy, harm, calibration, time."""
    columns: list[Column] = [
        ("method", "text"),
        ("mean gain, points", "number"),
        ("cells better, unclear, worse", "number"),
        (f"{TAIL}, %", "number"),
        ("batches made worse, %", "number"),
        ("worst batch, points", "number"),
        ("calibration error, points", "number"),
        ("ms per image", "number"),
    ]
    labels = [label for label in group.labels if any(cell.label == label for cell in group.adapted)]
    rows = [_summary(label, [cell for cell in group.adapted if cell.label == label], colours) for label in labels]
    caption = (
        "Each method over all its cells. A cell is one dataset in one scenario. It counts as better or worse if the "
        "95 % interval of its gain excludes 0, otherwise as unclear. Arrows lead from zero-shot to the method on the "
        "same images. “Worst tenth of tasks” is the mean accuracy of each one’s own worst tasks, in cells of more than "
        "one task; the calibration error says how far probabilities are from the share of correct labels."
    )
    if len(set(Counter(cell.label for cell in group.adapted).values())) > 1:
        caption += " The methods did not run on the same cells, so compare them in the tables below."
    return table(caption + badge(group.simulated), columns, rows, "summary")


def _summary(label: str, cells: Sequence[Cell], colours: dict[str, int]) -> str:
    records = [record for cell in cells for record in cell.records]
    score = Score.mean([cell.score for cell in cells])
    signs = [cell.score.sign for cell in cells]
    times = [1000 * r.seconds_per_image for r in records if r.seconds_per_image is not None]
    worst = [r.worst for r in records if r.worst is not None]
    return (
        f'<tr>{_name(label, colours)}<td data-value="{score.gain:.6f}">{_gain(score)}{_interval(score)}</td>'
        f'<td data-value="{sum(signs)}">{signs.count(1)}, {signs.count(0)}, {signs.count(-1)}</td>'
        + _change(tails(cell.score for cell in cells))
        + _number(_harmed(records), percent)
        + _number(min(worst, default=None), points)
        + _change(calibration(records))
        + _number(median(times) if times else None, rounded)
        + "</tr>"
    )


def _harmed(records: Sequence[Record]) -> float | None:
    """The share of all batches that became worse."""
    known = [(r.harmed, r.batches or 1) for r in records if r.harmed is not None]
    return sum(share * batches for share, batches in known) / sum(batches for _, batches in known) if known else None


def _number(value: float | None, shown: Callable[[float], str]) -> str:
    return NOTHING if value is None else f'<td data-value="{value:.6g}">{shown(value)}</td>'


def _change(found: tuple[float, float] | None) -> str:
    """From zero-shot to the method: `12.0 → 4.1`."""
    if found is None:
        return NOTHING
    before, after = found
    return f'<td data-value="{after:.6g}">{percent(before)} → {percent(after)}</td>'
