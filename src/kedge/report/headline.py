"""The top of the page: the main finding over all encoders, where it holds, and what was compared."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from ..words import count, first_few
from .html_tables import badge, escaped
from .score import Score
from .scores import ZERO_SHOT, Cell, Group, Results
from .words import points

EXCEPTIONS = 3  # that are named


class _Best(NamedTuple):
    """The method with the best mean gain among those that ran on the most cells, and these cells by group."""

    label: str
    cells: list[tuple[Group, Cell]]
    gain: float
    others: bool  # did other methods run, on fewer cells?


def heading(results: Results) -> str:
    """The title of the page: the finding on real features, if there are any, over all encoders."""
    groups = _real(results) or results.groups
    return headline(groups) if groups else "No cell has a score"


def opening(results: Results) -> str:
    """The title, where it holds, what was found on simulated features, and what was compared, as HTML."""
    real = _real(results)
    simulated = [group for group in results.groups if group.simulated]
    title = escaped(heading(results)).replace(ZERO_SHOT, f'<span class="whole">{ZERO_SHOT}</span>')  # on one line
    html = [f"<h1>{title}{badge(bool(simulated) and not real)}</h1>"]
    if where := _holds(real or simulated):
        html.append(f'<p class="lede">{escaped(where)}</p>')
    if real and simulated:
        html.append(f'<p class="lede">On simulated features: {escaped(headline(simulated))}.{badge(True)}</p>')
    return "".join(html) + _compared(results)


def headline(groups: Sequence[Group]) -> str:
    """The main finding over these groups: the best mean gain among the methods on the most cells, without feedback."""
    best = _best(groups)
    if best is None:
        return "Only zero-shot was run"
    kinds = [count(len(_values(best, what)), what) for what in ("dataset", "scenario")]
    if len(groups) > 1:
        kinds.append(count(len(_values(best, "encoder")), "encoder"))
    where = f"({count(len(best.cells), 'cell')}: {', '.join(kinds)})"
    gain = points(best.gain)
    if best.gain <= 0:
        which = "method that ran on the most cells" if best.others else "method"
        return (
            f"No {which} beats zero-shot on average: the best, {best.label}, changes accuracy by {gain} points {where}"
        )
    return f"{best.label} gains {gain.removeprefix('+')} points over zero-shot on average {where}"


def _real(results: Results) -> list[Group]:
    return [group for group in results.groups if not group.simulated]


def _best(groups: Sequence[Group]) -> _Best | None:
    found: dict[str, list[tuple[Group, Cell]]] = defaultdict(list)
    for group in groups:
        for cell in group.unaided:
            found[cell.label].append((group, cell))
    most = max(map(len, found.values()), default=0)
    ran = [
        _Best(
            label,
            cells,
            Score.mean([cell.score for _, cell in cells]).gain,
            any(len(each) < most for each in found.values()),
        )
        for label, cells in found.items()
        if len(cells) == most
    ]
    return max(ran, key=lambda each: each.gain, default=None)


def _values(best: _Best, what: str) -> dict[str, list[Score]]:
    """The scores by encoder, dataset or scenario."""
    found: dict[str, list[Score]] = defaultdict(list)
    for group, cell in best.cells:
        found[group.encoder if what == "encoder" else getattr(cell, what)].append(cell.score)
    return found


def _holds(groups: Sequence[Group]) -> str:
    """Does the gain hold with every encoder, on every dataset, in every scenario? "" if there is one of each."""
    best = _best(groups)
    if best is None or best.gain <= 0:
        return ""
    parts = []
    for preposition, what in (("with", "encoder"), ("on", "dataset"), ("in", "scenario")):
        means = {name: Score.mean(scores).gain for name, scores in _values(best, what).items()}
        if len(means) == 1:
            continue
        low, high = points(min(means.values())), points(max(means.values()))
        without = sorted((name for name, gain in means.items() if gain <= 0), key=lambda name: means[name])
        if without:
            named = first_few([f"{name} {points(means[name])}" for name in without], EXCEPTIONS)
            parts.append(f"{preposition} {len(means) - len(without)} of {count(len(means), what)} (not {named})")
        else:
            parts.append(f"{preposition} every {what} ({low} to {high})")
    *first, last = parts or [""]
    return f"On average it gains {' and '.join(filter(None, [', '.join(first), last]))}." if last else ""


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
    return f"<p>{said}</p>"
