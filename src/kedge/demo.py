"""What adaptation gains, seen in seconds without any data: zero-shot against StatA on simulated features.

    rows = demo(Path("kedge-demo"))        # writes report.html, demo.csv, demo.png and records/ there

The features are simulated, and that is said wherever their numbers appear: a demonstration, not a benchmark.
How much there is to gain is a setting of the simulation (`shared_errors`).
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from ._files import check_writable, written_by_rename
from .errors import FileError
from .evaluate import evaluate
from .features import FeatureSet
from .progress import track
from .report import write_report
from .results import Record, Series
from .scenarios import SCENARIOS, Batches
from .simulate import simulate

IMAGES, CLASSES, ACCURACY = 10_000, 100, 0.65  # some 100 images per class, so that 64 can be of one class
BATCHES = {"very-low": 20, "medium": 20, "high": 5, "all": 1}  # how many of each scenario
STREAMS = ("stream-low", "stream-high")  # one pass each, for the report
METHODS = ("zero-shot", "stata")

ZERO_SHOT_COLOUR, STATA_COLOUR, INK = "#b8bdc4", "#0072b2", "#25292e"  # told apart by lightness alone


@dataclass(frozen=True)
class DemoRow:
    """One scenario's outcome on simulated features; the last four in percent."""

    scenario: str
    images: int  # per batch
    classes: str  # per batch, "1-4"
    batches: int
    zero_shot: float  # accuracy, mean over batches
    stata: float
    gain: float  # stata − zero_shot
    made_worse: float  # share of the batches that lost accuracy


def demo(out: Path, seed: int = 0) -> list[DemoRow]:
    """Run every scenario; write `report.html`, `demo.csv`, `demo.png` and the records into the folder `out`."""
    records = out / "records"
    try:
        records.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"can not make the folder {out}: {error.strerror}. Choose another place.") from error
    table, picture = check_writable(out / "demo.csv"), check_writable(out / "demo.png")
    page = check_writable(out / "report.html")

    features = simulate(IMAGES, CLASSES, accuracy=ACCURACY, seed=seed)
    cells = [(method, name) for name in (*BATCHES, *STREAMS) for method in METHODS]
    found = {cell: _run(*cell, features, seed) for cell in track(cells, "scenarios")}
    for (method, name), record in found.items():
        record.save(records / f"{method}-{name}.json")
    rows = [_row(name, found["stata", name].series) for name in BATCHES]
    _write_table(rows, seed, table)
    _draw(rows, picture)
    write_report(found.values(), page)
    return rows


def _run(method: str, name: str, features: FeatureSet, seed: int) -> Record:
    return evaluate(method, features, name, seed, tasks=BATCHES.get(name, 1))


def _row(name: str, batches: Series) -> DemoRow:
    scenario = SCENARIOS[name]
    zero_shot, stata = _percent(batches.zero_shot), _percent(batches.accuracy)
    return DemoRow(
        scenario=name,
        images=batches.images[0],
        classes=f"{scenario.k_min}-{scenario.k_max}" if isinstance(scenario, Batches) else str(CLASSES),
        batches=len(batches.images),
        zero_shot=zero_shot,
        stata=stata,
        gain=round(stata - zero_shot, 1),  # of the rounded numbers, so that the table adds up
        made_worse=_percent([a < b for a, b in zip(batches.accuracy, batches.zero_shot, strict=True)]),
    )


def _percent(shares: Sequence[float]) -> float:
    """The mean, with the one digit that this many images can carry."""
    return round(100 * sum(shares) / len(shares), 1)


def _write_table(rows: Sequence[DemoRow], seed: int, path: Path) -> None:
    """The rows as CSV, each with its origin, so that a line that is copied out still says it is simulated."""
    origin = {"data": "simulated", "seed": seed}
    columns = [*origin, *(field.name for field in fields(DemoRow))]
    with written_by_rename(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows({**origin, **asdict(row)} for row in rows)


def _draw(rows: Sequence[DemoRow], path: Path) -> None:
    """Bars, zero-shot beside StatA, a pair per scenario. No pyplot: a caller's figures are left alone."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), facecolor="white")
    axes = figure.add_axes((0.04, 0.16, 0.92, 0.64))
    width = 0.4

    def write(x: float, y: float, text: str, size: int = 12, colour: str = INK, weight: str = "normal") -> None:
        axes.text(x, y, text, ha="center", va="baseline", fontsize=size, color=colour, fontweight=weight)

    for at, row in enumerate(rows):
        zero_shot, stata = at - width / 2 - 0.01, at + width / 2 + 0.01
        axes.bar(zero_shot, row.zero_shot, width, color=ZERO_SHOT_COLOUR)
        axes.bar(stata, row.stata, width, color=STATA_COLOUR)
        write(zero_shot, row.zero_shot + 1.5, f"{row.zero_shot:.1f}")
        write(stata, row.stata + 1.5, f"{row.stata:.1f}")
        write(stata, row.stata - 6.5, f"{row.gain:+.1f}", 16, "white", "bold")
        if at == 0:  # named once, where the eye starts
            write(zero_shot, 3, "zero-shot", 11)
            write(stata, 3, "StatA", 11, "white")
        batches = f"{row.batches} batches" if row.batches > 1 else "one batch"
        write(at, -6, f"{row.classes.replace('-', '–')} classes", 13, weight="bold")
        write(at, -11, f"{batches} of {row.images:,}")
    axes.set_ylim(0, max(max(row.zero_shot, row.stata) for row in rows) + 5)
    axes.set_xlim(-0.5, len(rows) - 0.5)
    axes.set_axis_off()
    axes.axhline(0, color=INK, linewidth=1.5)
    figure.text(0.04, 0.925, "Images labelled right, on simulated features", fontsize=17, fontweight="bold", color=INK)
    note = f"Percent; every image may be any of {CLASSES} classes, and no method knows which are in its batch"
    figure.text(0.04, 0.865, note, fontsize=12, color=INK)
    with written_by_rename(path) as temporary:
        figure.savefig(temporary, format="png", dpi=160)
