"""The whole workflow on the bundled model and pictures.

    made = demo(Path("kedge-demo"))
    print(made.table())

pictures → features → the StatA paper's methods, MOON and kedge in the paper's scenarios → table, report, contact
sheet, a stream over time. Everything is written to one folder. After an interruption, the same call continues where it
stopped.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from .benchmark.grid import Grid
from .benchmark.record import Record
from .benchmark.run import run
from .encoders.names import load_encoder
from .encoders.tiny import unpack
from .errors import FileError
from .features.extract import extract
from .features.feature_set import FeatureSet
from .files import check_writable, written_by_rename
from .images.folders import folder
from .images.image_set import ImageSet
from .labelling.classify import label
from .labelling.contact_sheet import contact_sheet
from .labelling.predictions import Predictions
from .methods.registry import build
from .methods.solve.compiling import warm_up
from .methods.tent import Tent
from .progress import notice
from .report import draw_stream, write_report
from .report.formats import FAILED, MISSING, aligned, render
from .report.losses import ALL_PRESENT, FEW_PRESENT, why
from .report.pivot import mean, order, pivot
from .report.score import Score
from .report.scores import calibration, tails
from .report.words import percent, points
from .words import count

DATASET = "drawings"
EACH, VIEWS = 4, 8  # of the part for ON_PART: pictures of each class, and views of a picture (64 in MTA's paper)
TENT_STEPS = 1  # per batch, as in TENT's paper; ten steps, as in the StatA paper, take seven times as long
COMPARED = (  # the StatA paper's methods, its successor MOON, and kedge: a table that one look holds
    *("zero-shot", "kedge", "stata", "transclip", "em-dirichlet", "zlap", "moon"),
    *("tda", "dmn", "oga", "mta", "tent"),
)
ON_PART = tuple(name for name in COMPARED if build(name).traits.needs != "features")  # views, or the encoder
SLOW = "em-dirichlet"  # which takes a second per batch
DRAWN = ("zero-shot", "stata", "kedge")  # along a stream


@dataclass(frozen=True)
class Size:
    """How much the demo runs. Tasks: of batches, and of streams."""

    batches: tuple[str, ...]
    streams: tuple[str, ...]
    tasks: tuple[int, int]
    slow_tasks: tuple[int, int]  # of EM-Dirichlet and ON_PART; 0: they do not run


FULL = Size(("very-low", "low", "medium", "medium-1000", "all"), ("stream-high", "stream-separate"), (60, 3), (5, 1))
QUICK = Size(("very-low", "all"), ("stream-high",), (20, 1), (2, 0))

SCORES = ("accuracy", "gain", "tail", "zero_shot_tail", "calibration_error", "zero_shot_calibration_error")  # written

COLUMNS = (
    "Accuracy in %, then the gain over zero-shot on the same images, in points. all: every image in one batch; "
    "stream-…: a stream in which classes come and go; the others: batches with few of the classes."
)
CHANGES = (
    "From zero-shot to the method, over all scenarios. Worst tenth: mean accuracy in % of the worst tenth of tasks (at "
    "least one, each by its own), where there is more than one task. Calibration error, in points: how far "
    "probabilities are from the share of correct labels."
)
WHY = why((*ALL_PRESENT, *FEW_PRESENT))
SIMULATED = (
    "The pictures are simulated: drawings of everyday things, photographed by a program. Each class has two "
    "drawings, so an image's neighbours are partly the same drawing again. To judge a method, use CLIP and real images."
)


@dataclass(frozen=True)
class Demo:
    """The results, and the files that were written."""

    size: Size
    records: list[Record]
    failed: tuple[Record, ...]
    features: FeatureSet
    part: FeatureSet  # of some images, with views: for ON_PART
    labelled: Predictions  # all images as one batch, as on the contact sheet
    files: dict[str, Path]

    def csv(self) -> str:
        """The scores of every method in every scenario."""
        everything = [*self.records, *self.failed]
        tables = [pivot(everything, cols="scenario", value=value) for value in SCORES]
        return render([table for found in tables for table in found], "csv")

    def table(self) -> str:
        """Accuracy and gain of every method in every scenario, tail and calibration, and what to know about them."""
        records = {(record.method, record.scenario): record for record in (*self.failed, *self.records)}
        methods = sorted({method for method, _ in records}, key=lambda method: order("method", method))
        scenarios = sorted({scenario for _, scenario in records}, key=lambda scenario: order("scenario", scenario))
        rows = [["method", *scenarios, "mean gain"]]
        changes = [["method", "worst tenth", "calibration error"]]
        for method in methods:
            found = [records.get((method, scenario)) for scenario in scenarios]
            average = mean([record.gain if record else None for record in found])
            name = method + ("*" if method in ON_PART else "†" if method == SLOW else "")
            changes.append([name, *_changes([r for r in found if r and r.error is None], method)])
            rows.append(
                [
                    name,
                    *map(_shown, found),
                    MISSING if average is None or method == "zero-shot" else points(average),
                ]
            )
        lines = aligned(rows)

        def filled(*notes: str) -> list[str]:
            return ["", *(textwrap.fill(note, len(lines[1])) for note in notes), ""]

        return "\n".join([*lines, *filled(COLUMNS, WHY, self._marks()), *aligned(changes), *filled(CHANGES)])

    def _marks(self) -> str:
        """What the marks in the table mean."""
        tasks, slow = self.size.tasks, self.size.slow_tasks
        streams = f"{slow[1]} of {count(tasks[1], 'stream')}" if slow[1] else "no streams"
        return (
            f"† Slow: {slow[0]} of {count(tasks[0], 'batch')} per scenario, {streams}. * Slow too, and only on "
            f"{len(self.part):,} of the {len(self.features):,} pictures, {EACH} of each class, with {VIEWS} views of "
            "each. Zero-shot on these images differs from the first row: compare gains."
        )


def _shown(record: Record | None) -> str:
    """A cell of the table: `69.7 +17.8`; zero-shot has no gain over itself."""
    if record is None or record.accuracy is None or record.gain is None:
        return MISSING if record is None else FAILED
    return f"{100 * record.accuracy:.1f} {'' if record.method == 'zero-shot' else points(record.gain):>5}"


def _changes(records: list[Record], method: str) -> list[str]:
    """Tail accuracy and calibration error, from zero-shot to the method: `31.2 → 45.0`; zero-shot has one of each."""
    both = tails(map(Score.of, records)), calibration(records)
    only = method == "zero-shot"
    return [MISSING if found is None else " → ".join(percent(value) for value in found[only:]) for found in both]


def demo(out: str | Path, quick: bool = False, jobs: int = 1, seed: int = 0) -> Demo:
    """Run the demo into the folder `out`. With jobs > 1, a script needs the guard `if __name__ == "__main__":`."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the model is too small to gain from threads
    try:
        return _demo(Path(out), QUICK if quick else FULL, jobs, seed)
    finally:
        torch.set_num_threads(threads)


def _demo(out: Path, size: Size, jobs: int, seed: int) -> Demo:
    encoder = load_encoder("tiny")  # first: fails at once if transformers is missing
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot make the folder {out}: {error.strerror}. Choose another place.") from error
    made = {
        "report": out / "report.html",
        "contact sheet": out / "contact-sheet.png",
        "stream": out / "stream.png",
        "table": out / "table.csv",
        "features": out / "features.safetensors",
        "features with views": out / "part.safetensors",
    }
    for path in made.values():
        check_writable(path)
    images = replace(folder(unpack(out / "images")), name=DATASET)
    notice(
        f"encoding {count(len(images), 'picture')} of {count(len(images.class_names), 'class')} with the tiny model …"
    )
    features = extract(images, encoder=encoder, out=made["features"], seed=seed, force=True)
    some = _part(images)
    notice(f"encoding {VIEWS} views each of {count(len(some), 'picture')} …")
    part = extract(some, encoder=encoder, out=made["features with views"], views=VIEWS, seed=seed, force=True)
    warm_up()  # here: not in each process, and not in the time per image of the first cells
    methods, scenarios = len(COMPARED), len(size.batches + size.streams)
    notice(f"running {count(methods, 'method')} in {count(scenarios, 'scenario')} …")
    grids = _grids(made["features"], made["features with views"], size, out / "records", jobs, seed)
    outcome = run(grids, estimate=False)  # trials of slow methods take long
    records = outcome.records()
    notice("labelling all pictures together with kedge, drawing pictures, writing the report …")
    labelled = label(features, build("kedge"))
    title = f"{len(features):,} simulated photographs labelled together by kedge: before and after"
    contact_sheet(labelled, made["contact sheet"], title, seed)
    drawn = [r for r in records if (r.dataset, r.scenario) == (DATASET, size.streams[-1]) and r.method in DRAWN]
    draw_stream(drawn, made["stream"])
    sheets = {"Pictures whose label was corrected or broken": made["contact sheet"]}
    write_report([*records, *outcome.failed], made["report"], sheets, SIMULATED)
    done = Demo(size, records, outcome.failed, features, part, labelled, made)
    with written_by_rename(made["table"]) as temporary:
        temporary.write_text(done.csv(), encoding="utf-8")
    return done


def _part(images: ImageSet) -> ImageSet:
    """The first pictures of each class."""
    assert images.labels is not None
    first = [i for i, label in enumerate(images.labels) if i < images.labels.index(label) + EACH]
    return replace(
        images,
        name=f"{DATASET}-part",
        paths=tuple(images.paths[i] for i in first),
        labels=tuple(images.labels[i] for i in first),
    )


def _grids(features: Path, part: Path, size: Size, out: Path, jobs: int, seed: int) -> list[Grid]:
    """Every method, those that take long at the end."""
    fast = [name for name in COMPARED if name not in (SLOW, *ON_PART)]
    on_part = [Tent(steps=TENT_STEPS) if name == "tent" else build(name) for name in ON_PART]
    runs = (features, fast, size.tasks), (part, on_part, size.slow_tasks), (features, [SLOW], size.slow_tasks)
    return [
        Grid.of([file], methods, scenarios, [seed], number, jobs, out)
        for file, methods, tasks in runs
        for scenarios, number in zip((size.batches, size.streams), tasks, strict=True)
        if number
    ]
