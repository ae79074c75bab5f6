"""The experiments of the StatA paper on your copy of its datasets, in one call.

    made = reproduce("data", tables=["1", "2"])
    print(summary_text(made))

datasets → features → benches → a report with the papers' figures beside ours. Everything is written to one folder:

    features/ENCODER/DATASET.safetensors     encoded images
    records/                                 a file per cell
    report.html, report_figures/             tables, figures, and the section "Against the papers"

After an interruption, the same call continues where it stopped; if nothing is left to do, it writes the report again.

    tables      the paper's experiments      datasets    which are there
    plan        what to encode and to run    estimate    how long it takes here
    summary     the result as text and JSON
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..benchmark.grid import MOST_JOBS
from ..benchmark.record import Record
from ..benchmark.run import run
from ..benchmark.scenarios import MOST_TASKS
from ..encoders.encoder import DEFAULT, Encoder
from ..encoders.names import load_encoder
from ..errors import FileError, KedgeError, SettingError
from ..features.encode import MOST_VIEWS
from ..features.extract import extract
from ..features.unfinished import OtherJob
from ..files import check_writable, writing
from ..methods.registry import build
from ..progress import notice
from ..ranges import whole
from ..report import write_report
from ..report.against import Compared, Summary, Timed, compare, runtimes, sum_up
from ..report.published import PAPER_ENCODERS
from ..report.scores import collect
from ..words import count
from .datasets import find_datasets
from .estimate import Encoding, Forecast, encoding, forecast
from .plan import Asked, Bench, Plan, make_plan
from .tables import DEFAULT_TABLES, EXPERIMENTS, PAPER, find_tables

__all__ = ["Prepared", "Reproduced", "prepare", "reproduce"]

BATCH_SIZE = 64  # fixed, not measured: the same features at every repetition


@dataclass(frozen=True)
class Prepared:
    """The plan, and how long it will take."""

    plan: Plan
    forecast: Forecast


@dataclass(frozen=True)
class Reproduced:
    """The results."""

    plan: Plan
    report: Path
    records: list[Record]
    failed: tuple[Record, ...]
    compared: list[Compared]
    summary: Summary | None  # None: nothing published fits
    times: list[Timed]
    ran: int  # cells run now
    skipped: dict[str, str]  # images that cannot be read: dataset/path → reason


def prepare(
    root: str | Path,
    encoders: Sequence[str] = (DEFAULT,),
    tables: Iterable[str] = DEFAULT_TABLES,
    methods: Sequence[str] | None = None,
    datasets: Sequence[str] | None = None,
    tasks: int | None = None,
    jobs: int = 1,
    out: str | Path = "kedge-reproduce",
    views: int = 64,
    device: str = "auto",
) -> Prepared:
    """Check everything, plan it, and time the encoders and methods on a few images. Writes nothing.

    root: the folder that contains the datasets, in CoOp's layout.
    encoders: of all tables but `encoders`, which has four of its own.
    tables: of `EXPERIMENTS`. methods: of Tables 1, 2 and the encoders'; "paper" stands for all of the paper's table.
    datasets: these only; all of them must be there. None: those of the eleven that are there.
    tasks: per scenario; None: the paper's number. views: of each image, if MTA is among the methods.
    """
    chosen = find_tables(tables)
    for method in methods or ():
        if method != PAPER:
            build(method)
    if methods is not None and not methods:
        raise SettingError("no method is named. Name at least one, or leave the methods out.")
    if not encoders:
        raise SettingError("no encoder is named. Name at least one, or leave the encoders out.")
    more = tuple(PAPER_ENCODERS.values()) if "encoders" in chosen else ()
    asked = Asked(
        tables=chosen,
        encoders=tuple(dict.fromkeys(encoders)) if chosen != ("encoders",) else (),
        more_encoders=more,
        methods=None if methods is None else tuple(methods),
        tasks=None if tasks is None else whole("tasks", tasks, 1, MOST_TASKS),
        jobs=whole("jobs", jobs, 1, MOST_JOBS),
        views=whole("views", views, 1, MOST_VIEWS),
        out=Path(out),
    )
    found = find_datasets(root, datasets)
    return _timed(make_plan(asked, found), device)


def _timed(plan: Plan, device: str) -> Prepared:
    """The plan without encoders that cannot be loaded, and its forecast. An encoder that was named must load."""
    encodings: list[Encoding] = []
    dimensions: dict[Path, int] = {}
    absent: dict[str, str] = {}
    for name, files in _by_encoder(plan).items():
        try:
            encoder = load_encoder(name, device=device)
        except KedgeError as error:
            if name in plan.asked.encoders:
                raise
            absent[name] = str(error)
            continue
        encodings.append(encoding(encoder, name, files))
        dimensions |= dict.fromkeys(files, encoder.dimension)
    benches = tuple(bench for bench in plan.benches if bench.encoder not in absent)
    notes = (*plan.notes, *(f"{name} is left out: {reason}" for name, reason in absent.items()))
    if not benches:
        raise SettingError(f"nothing is left to run. {' '.join(notes)}")
    plan = Plan(plan.asked, plan.found, benches, notes)
    return Prepared(plan, forecast(plan, encodings, dimensions))


def _by_encoder(plan: Plan) -> dict[str, dict[Path, Bench]]:
    """Encoder → its feature files, with one of the benches that use each."""
    found: dict[str, dict[Path, Bench]] = {}
    for path, bench in plan.files.items():
        found.setdefault(bench.encoder, {})[path] = bench
    return found


def reproduce(prepared: Prepared, device: str = "auto", workers: int | None = None) -> Reproduced:
    """Do what was prepared: encode, run, write the report. What is done already is not done again.

    workers: threads that decode images, see `kedge.extract`. With jobs, a script needs `if __name__ == "__main__":`.
    """
    plan = prepared.plan
    out = plan.asked.out
    report = out / "report.html"
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    check_writable(report)
    skipped: dict[str, str] = {}
    for name, files in _by_encoder(plan).items():
        encoder = load_encoder(name, device=device)
        for path, bench in files.items():
            skipped |= _extract(bench, path, encoder, workers)
        del encoder  # before the next one is loaded
    together = [bench.grid for bench in plan.benches if not bench.adapts_encoder]
    alone = [[bench.grid] for bench in plan.benches if bench.adapts_encoder]  # each has its own images
    outcomes = [run(grids, estimate=False) for grids in ([together] if together else []) + alone]
    done = {cell.path(outcome.folder) for outcome in outcomes for cell in outcome.cells}
    records = [Record.load(path) for path in sorted(done) if path.exists()]
    failed = tuple(record for outcome in outcomes for record in outcome.failed)
    write_report([*records, *failed], report, note=_about(plan))
    results = collect(records)
    rows = compare(results)
    return Reproduced(
        plan=plan,
        report=report,
        records=records,
        failed=failed,
        compared=rows,
        summary=sum_up(rows),
        times=runtimes(results),
        ran=sum(outcome.ran for outcome in outcomes),
        skipped=skipped,
    )


def _extract(bench: Bench, path: Path, encoder: Encoder, workers: int | None) -> dict[str, str]:
    """Encode a dataset, unless it is done; the images that cannot be read: dataset/path → reason."""
    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        notice(f"encoding {bench.images.name}: {count(len(bench.images), 'image')} …")
    try:
        features = extract(
            bench.images, encoder=encoder, out=path, views=bench.views, batch_size=BATCH_SIZE, workers=workers
        )
    except OtherJob as error:
        raise FileError(f"{error} Here: delete {path} and {path.name}.parts, or choose another --out.") from error
    return {f"{bench.images.name}/{image}": reason for image, reason in features.skipped.items()}


def _about(plan: Plan) -> str:
    """What the page says at its top: which of the paper's tables it has, on what."""
    found = plan.found
    tasks = "the paper’s number of tasks" if plan.asked.tasks is None else f"{count(plan.asked.tasks, 'task')} each"
    said = f"The StatA paper again: {'; '.join(EXPERIMENTS[table].title for table in plan.asked.tables)}; {tasks}."
    lists = (
        ("Datasets", list(found.images)),
        ("Not here or incomplete", list(found.missing)),
        ("Not the paper’s test set", list(found.other)),
    )
    return " ".join([said, *(f"{what}: {', '.join(names)}." for what, names in lists if names)])
