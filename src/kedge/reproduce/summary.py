"""The result of a reproduction as text, a table per table of the paper, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ..report.against import Compared, datasets_shown, grouped, in_rows, scenario_shown
from ..report.formats import MISSING, aligned
from ..report.published import reference
from ..report.words import percent, points, rounded
from ..words import printable
from . import Prepared, Reproduced
from .plan import Plan


def summary_text(made: Reproduced) -> str:
    """Method × scenario: our mean, the paper's, and the difference; then all differences summed up."""
    blocks = [_block(place, encoder, rows) for (place, encoder), rows in grouped(made.compared).items()]
    if made.times:
        blocks.append(_times(made))
    if made.summary:
        blocks.append(str(made.summary))
    elif made.compared:
        blocks.append("No published figure fits: the papers have other encoders, or other versions of these datasets.")
    return "\n\n".join(blocks) + "\n" if blocks else ""


def _block(place: str, encoder: str, rows: Sequence[Compared]) -> str:
    scenarios, lines = in_rows(rows)
    datasets = datasets_shown(rows)
    simulated = " · SIMULATED" if rows[0].simulated else ""
    of_all = f"{len(datasets)} of {len(reference('datasets'))} datasets"
    title = f"{place} · {encoder}{simulated} · mean accuracy in % over {of_all}: {', '.join(datasets)}"
    table = [["method", *map(scenario_shown, scenarios)]]
    fewer = False
    for label, line in lines.items():
        found = [line.get(scenario) for scenario in scenarios]
        short = [row is not None and len(row.datasets) < len(datasets) for row in found]
        fewer |= any(short)
        ours = [_percent(row.ours) if row else MISSING for row in found]
        kinds = {
            label: [text + "*" * less for text, less in zip(ours, short, strict=True)],
            f"{label}, paper": [_percent(row.paper) if row else MISSING for row in found],
            f"{label}, difference": [_points(row.difference) if row else MISSING for row in found],
        }
        table += [[name, *cells] for name, cells in kinds.items() if any(cell != MISSING for cell in cells)]
    note = ["* over fewer datasets: those that have a result"] if fewer else []
    return "\n".join(map(printable, [title, "", *aligned(table), *note]))


def _times(made: Reproduced) -> str:
    rows = [["batch size", "StatA here, s", f"paper ({made.times[0].hardware}), s"]]
    rows += [[f"{timed.batch_size:,}", rounded(timed.ours), f"{timed.paper:g}"] for timed in made.times]
    return "\n".join(["Table 3, runtime on ImageNet, without the encoder", "", *aligned(rows)])


def _percent(share: float | None) -> str:
    return MISSING if share is None else percent(share)


def _points(difference: float | None) -> str:
    return MISSING if difference is None else points(difference)


def as_json(made: Reproduced) -> dict[str, Any]:
    """The same for programs; accuracies are shares, as in records."""
    plan = made.plan
    return {
        "out": str(plan.asked.out),
        "report": str(made.report),
        "datasets": list(plan.found.images),
        "notes": list(plan.notes),
        "cells": len(made.records) + len(made.failed),
        "run": made.ran,
        "rows": [{**asdict(row), "difference": row.difference} for row in made.compared],
        "summary": None if made.summary is None else asdict(made.summary),
        "runtime": [asdict(timed) for timed in made.times],
        "failed": [
            {name: getattr(record, name) for name in ("label", "dataset", "encoder", "scenario", "error")}
            for record in made.failed
        ],
        "unreadable": made.skipped,
    }


def plan_rows(plan: Plan) -> list[dict[str, Any]]:
    """What is planned, a row per table, encoder and dataset."""
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    for bench in plan.benches:
        key = bench.table, bench.encoder, bench.images.name
        row = rows.setdefault(
            key,
            {"table": bench.table, "encoder": bench.encoder, "dataset": bench.images.name}
            | {"images": len(bench.images), "classes": len(bench.images.class_names), "cells": 0}
            | {"encoded": bench.file.exists()},
        )
        row["cells"] += len(bench.grid.methods) * len(bench.grid.scenarios)
    return list(rows.values())


def plan_json(prepared: Prepared) -> dict[str, Any]:
    """The plan for programs."""
    forecast = prepared.forecast
    return {
        "out": str(prepared.plan.asked.out),
        "plan": plan_rows(prepared.plan),
        "notes": list(prepared.plan.notes),
        "encode": [{**asdict(one), "seconds": one.seconds} for one in forecast.encodings],
        "cells": forecast.cells,
        "cells_done": forecast.cells_done,
        "seconds": forecast.seconds,
        "methods_seconds": forecast.methods.by_method() if forecast.methods else {},
    }
