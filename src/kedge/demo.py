"""The whole workflow on the bundled model and images.

    made = demo(Path("kedge-demo"))

images → features with views → every method in the StatA paper's scenarios → table, report, contact sheet. Everything
is written to one folder. After an interruption, the same call continues where it stopped.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from .benchmark.grid import Grid
from .benchmark.record import Record
from .benchmark.run import run
from .encoders.encoder import TINY
from .encoders.names import load_encoder
from .errors import FileError
from .features.extract import extract
from .features.feature_set import FeatureSet
from .files import check_writable, writing, written_by_rename
from .images.folders import folder
from .labelling.classify import label
from .labelling.contact_sheet import contact_sheet
from .labelling.predictions import Predictions
from .methods.registry import build
from .methods.tent import Tent
from .report import write_report
from .report.formats import render
from .report.pivot import pivot

IMAGES, DATASET = TINY.parent / "images.zip", "drawings"
VIEWS, QUICK_VIEWS = 16, 4  # per image; MTA's paper uses 64, which takes four times as long
TENT_STEPS = 1  # per batch, as in TENT's paper; ten steps, as in the StatA paper, take seven times as long
# The paper's scenarios that work with ten classes, and the number of tasks of each.
FULL = ((("very-low", "low", "all"), 40), (("stream-low", "stream-medium", "stream-high", "stream-separate"), 1))
QUICK = ((("very-low", "all"), 5), (("stream-high",), 1))


@dataclass(frozen=True)
class Demo:
    """The results, and the files that were written."""

    records: list[Record]
    failed: tuple[Record, ...]
    features: FeatureSet
    labelled: Predictions  # of all images as one batch, as on the contact sheet
    files: dict[str, Path]

    def table(self, format: str = "text") -> str:
        """Accuracy of every method in every scenario."""
        return render(pivot([*self.records, *self.failed], rows="label", cols="scenario"), format)


def demo(out: str | Path, quick: bool = False, jobs: int = 1, seed: int = 0) -> Demo:
    """Run the demo into the folder `out`. With jobs > 1, a script needs the guard `if __name__ == "__main__":`."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the model is too small to gain from threads
    try:
        return _demo(Path(out), quick, jobs, seed)
    finally:
        torch.set_num_threads(threads)


def _demo(out: Path, quick: bool, jobs: int, seed: int) -> Demo:
    encoder = load_encoder("tiny")  # first: fails at once if transformers is missing
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot make the folder {out}: {error.strerror}. Choose another place.") from error
    made = {
        "report": out / "report.html",
        "table": out / "table.csv",
        "contact sheet": out / "contact-sheet.png",
        "features": out / ("features-quick.safetensors" if quick else "features.safetensors"),
    }
    for path in made.values():
        check_writable(path)
    images = replace(folder(_unpacked(out / "images")), name=DATASET)
    features = extract(
        images,
        encoder=encoder,
        out=made["features"],
        views=QUICK_VIEWS if quick else VIEWS,
        workers=1 if jobs > 1 else 0,
        seed=seed,
        force=True,
    )
    outcomes = [
        run(_grid(made["features"], scenarios, tasks, out / "records", jobs, seed))
        for scenarios, tasks in (QUICK if quick else FULL)
    ]
    records = [record for outcome in outcomes for record in outcome.records()]
    failed = tuple(record for outcome in outcomes for record in outcome.failed)
    labelled = label(features, build("kedge"))
    title = "All images labelled together by kedge: labels before and after"
    contact_sheet(labelled, made["contact sheet"], title, seed)
    sheets = {"Images whose label was corrected or broken": made["contact sheet"]}
    write_report([*records, *failed], made["report"], sheets)
    done = Demo(records, failed, features, labelled, made)
    with written_by_rename(made["table"]) as temporary:
        temporary.write_text(done.table("csv"), encoding="utf-8")
    return done


def _grid(features: Path, scenarios: Sequence[str], tasks: int, out: Path, jobs: int, seed: int) -> Grid:
    """The grid of all methods in these scenarios."""
    grid = Grid.of([features], ["all"], scenarios, [seed], tasks, jobs, out)
    return replace(grid, methods=tuple(Tent(steps=TENT_STEPS) if m.name == "tent" else m for m in grid.methods))


def _unpacked(place: Path) -> Path:
    """Unpack the bundled images into folders by class, skipping files that are there already.

    By rename, but not flushed to disk one by one: that takes long, and a file of the wrong size is unpacked again.
    """
    unfinished = place / ".kedge-unpacking.tmp"
    with writing(place), zipfile.ZipFile(IMAGES) as archive:
        for entry in archive.infolist():
            file = place / entry.filename
            if not (file.is_file() and file.stat().st_size == entry.file_size):
                file.parent.mkdir(parents=True, exist_ok=True)
                unfinished.write_bytes(archive.read(entry))
                unfinished.replace(file)
    return place
