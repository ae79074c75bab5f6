"""Our results against the papers': means over exactly the same datasets, and the differences summed up.

    rows = compare(results)          # a row per method and scenario
    sum_up(rows)                     # how far all cells are from their published figures

A cell is one method on one dataset in one scenario. Where all eleven datasets are there, the published mean is the one
that the paper prints; JPTA, of which nothing else is published, has a row only there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from ..words import count
from .published import (
    JPTA,
    MAIN_ENCODER,
    PAPER_ENCODERS,
    clip_name,
    dataset_name,
    published_average,
    published_for,
    reference,
)
from .scores import Cell, Group, Results, label_order, scenario_order, sweep
from .words import points

CLOSE = 0.01  # a difference of one point
SOFT = "stata beta=soft"
BATCHES, STREAMS, BETA = "Table 1, batches", "Table 2, streams", "Table 4, hard and soft β"
SUPPLEMENT = {BATCHES: "Supplement, batches", STREAMS: "Supplement, streams"}
_PLACES = (BATCHES, STREAMS, BETA, *SUPPLEMENT.values())


@dataclass(frozen=True)
class Compared:
    """A method in a scenario: our mean and the published one, over exactly the same datasets."""

    table: str  # of the paper
    encoder: str
    simulated: bool
    scenario: str
    label: str
    datasets: tuple[str, ...]
    ours: float | None  # None: kedge does not run it
    paper: float | None  # None: not published
    source: str
    differences: Mapping[str, float]  # dataset → ours − published

    @property
    def difference(self) -> float | None:
        """Our mean minus the published one; None if one of them is missing."""
        return None if self.ours is None or self.paper is None else self.ours - self.paper


@dataclass(frozen=True)
class Summary:
    """How far the cells that have a published figure are from it; shares, as in records."""

    cells: int
    mean_absolute: float
    within_a_point: int
    largest: float
    where: str  # the cell of the largest difference

    def __str__(self) -> str:
        return (
            f"{count(self.cells, 'cell')} can be compared with a published figure. The mean absolute difference is "
            f"{100 * self.mean_absolute:.1f} points; {self.within_a_point:,} of {self.cells:,} are within 1 point. "
            f"The largest difference is {points(self.largest)} points: {self.where}."
        )


@dataclass(frozen=True)
class Timed:
    """Table 3: seconds of StatA for one batch of ImageNet, here and in the paper."""

    batch_size: int
    ours: float
    machine: str
    paper: float
    hardware: str


def compare(results: Results) -> list[Compared]:
    """A row per method and scenario of Tables 1, 2 and 4 and of the supplement, in the paper's order."""
    rows = []
    for group in results.groups:
        for scenario in group.scenarios:
            place = _place(group, scenario)
            cells = _comparable(group.table(scenario), place) if place else {}
            found = [_compared(place, group, label, row) for label, row in cells.items()]
            rows += found + _jpta(group, scenario, found)
    return sorted(rows, key=lambda row: _PLACES.index(row.table))


def _comparable(cells: dict[str, dict[str, Cell]], place: str) -> dict[str, dict[str, Cell]]:
    """label → dataset → cell, of the datasets that have a published figure of some method; all if none has.

    The table of β has StatA with both and zero-shot, on the datasets that have both.
    """
    known = {name for row in cells.values() for name, cell in row.items() if published_for(cell.records[0])}
    if place == BETA:
        cells = {label: row for label, row in cells.items() if label in ("zero-shot", "stata", SOFT)}
        known = (known or set(cells["stata"])) & set(cells[SOFT])
    rows = {
        label: {name: cell for name, cell in row.items() if not known or name in known} for label, row in cells.items()
    }
    return {label: row for label, row in rows.items() if row}


def _place(group: Group, scenario: str) -> str:
    """The table of the paper in which a scenario is; "" if in none."""
    if sweep(scenario):
        both = {"stata", SOFT} <= group.table(scenario).keys()
        return BETA if both else ""
    if scenario_order(scenario)[0] >= scenario_order("")[0]:
        return ""  # not one of the paper's
    kind = STREAMS if scenario.startswith("stream-") else BATCHES
    return SUPPLEMENT[kind] if _clip(group) in PAPER_ENCODERS else kind


def _clip(group: Group) -> str | None:
    first = group.cells[0].records[0]
    return clip_name(first.encoder, first.weights)


def _all_eleven(datasets: Iterable[str]) -> bool:
    """Are these exactly the datasets of the paper?"""
    return sorted(dataset_name(name) or "" for name in datasets) == sorted(row["name"] for row in reference("datasets"))


def _compared(place: str, group: Group, label: str, cells: Mapping[str, Cell]) -> Compared:
    figures = {dataset: found for dataset, cell in cells.items() if (found := published_for(cell.records[0]))}
    same = {dataset: cell for dataset, cell in cells.items() if dataset in figures} or dict(cells)
    scenario = next(iter(cells.values())).scenario
    paper = fmean(found.accuracy for found in figures.values()) if figures else None
    if _all_eleven(figures) and (printed := published_average(_clip(group) or "", scenario, label)):
        paper = printed.accuracy
    return Compared(
        table=place,
        encoder=group.encoder,
        simulated=group.simulated,
        scenario=scenario,
        label=label,
        datasets=tuple(dataset for dataset in group.datasets if dataset in same),
        ours=fmean(cell.score.accuracy for cell in same.values()),
        paper=paper,
        source="; ".join(sorted({found.source for found in figures.values()})),
        differences={name: same[name].score.accuracy - found.accuracy for name, found in figures.items()},
    )


def _jpta(group: Group, scenario: str, rows: Sequence[Compared]) -> list[Compared]:
    """JPTA's published average, beside a mean over all eleven datasets; else nothing."""
    beside = next((row for row in rows if _all_eleven(row.differences)), None)
    found = published_average(_clip(group) or "", scenario, JPTA)
    if beside is None or found is None:
        return []
    return [replace(beside, label=JPTA, ours=None, paper=found.accuracy, source=found.source, differences={})]


def sum_up(rows: Iterable[Compared]) -> Summary | None:
    """All cells with a published figure together; None if there is none."""
    cells = {
        f"{row.label} on {dataset} in {row.scenario}, {row.encoder}": difference
        for row in rows
        for dataset, difference in row.differences.items()
    }
    if not cells:
        return None
    where = max(cells, key=lambda name: abs(cells[name]))
    return Summary(
        cells=len(cells),
        mean_absolute=fmean(map(abs, cells.values())),
        within_a_point=sum(abs(difference) <= CLOSE + 1e-9 for difference in cells.values()),
        largest=cells[where],
        where=where,
    )


def runtimes(results: Results) -> list[Timed]:
    """Table 3, where StatA ran on ImageNet with the paper's main encoder."""
    printed = {row["batch_size"]: row for row in reference("stata_paper_runtime")}
    found = []
    for record in results.scored:
        known = printed.get({"very-high": "1000", "all": "50000"}.get(record.scenario, ""))
        main = clip_name(record.encoder, record.weights) == MAIN_ENCODER and dataset_name(record.dataset) == "imagenet"
        if known and main and record.label == "stata" and published_for(record) and record.seconds and record.batches:
            seconds = record.seconds / record.batches
            paper, hardware = float(known["stata_s"]), known["hardware"]
            found.append(Timed(int(known["batch_size"]), seconds, record.machine, paper, hardware))
    return sorted({timed.batch_size: timed for timed in found}.values(), key=lambda timed: timed.batch_size)


def grouped(rows: Iterable[Compared]) -> dict[tuple[str, str], list[Compared]]:
    """(table, encoder) → its rows."""
    found: dict[tuple[str, str], list[Compared]] = {}
    for row in rows:
        found.setdefault((row.table, row.encoder), []).append(row)
    return found


def in_rows(rows: Sequence[Compared]) -> tuple[list[str], dict[str, dict[str, Compared]]]:
    """One table's scenarios, and label → scenario → row; JPTA last."""
    scenarios = sorted({row.scenario for row in rows}, key=scenario_order)
    labels = sorted({row.label for row in rows}, key=lambda label: (label == JPTA, label_order(label)))
    return scenarios, {label: {row.scenario: row for row in rows if row.label == label} for label in labels}


def scenario_shown(scenario: str) -> str:
    """The name of a scenario as the head of a column; of a fixed number of classes: `1,000: 5 classes`."""
    fixed = sweep(scenario)
    return f"{fixed.size:,}: {count(fixed.k_min, 'class')}" if fixed else scenario


def datasets_shown(rows: Sequence[Compared]) -> tuple[str, ...]:
    """The datasets of a table: those of the row with the most."""
    return max((row.datasets for row in rows), key=len)
