"""All methods side by side: the table of docs/field2026.md, from records of `kedge bench`.

    F=../shared/features; BENCH="kedge bench --seed 24 --out field2026"
    SETS="$F/cifar10_500_vitb32.npz $F/dtd_test_vitb32.npz $F/whurs19_clip_vitb32.npz"
    for m in zero-shot kedge stata moon transclip zlap gda-clip adapt-nips25 tda dmn oga bca onlab
    do FAST="$FAST --method $m"; done
    SLOW="--method ecalp --method adapt-nips25-online --method dota --method em-dirichlet"
    SMALL="--scenario very-low --scenario low --scenario medium"
    LARGE="--scenario medium-1000 --scenario high --scenario very-high"
    STREAMS="--scenario stream-low --scenario stream-medium --scenario stream-high --scenario stream-separate"
    $BENCH $SETS $FAST --tasks 20 $SMALL && $BENCH $SETS $FAST --tasks 3 $LARGE && $BENCH $SETS $FAST --tasks 2 $STREAMS
    $BENCH $SETS $SLOW --tasks 5 $SMALL
    $BENCH $SETS --method ecalp --tasks 2 $LARGE $STREAMS
    $BENCH $SETS --method adapt-nips25-online --method dota --method em-dirichlet --tasks 1 $LARGE $STREAMS
    python benchmarks/field2026.py field2026 benchmarks/results/field2026.csv

It writes the numbers as CSV and prints the table. A number is the mean gain over the feature sets, in points. Its
interval is 95 %, from the bootstrap intervals over the tasks of each set; one task has none.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kedge import Record, load_records
from kedge.report.published import METHOD_ORDER
from kedge.report.score import Score

SCENARIOS = (
    *("very-low", "low", "medium", "medium-1000", "high", "very-high"),
    *("stream-low", "stream-medium", "stream-high", "stream-separate"),
)


def summed(records: Iterable[Record]) -> list[dict[str, Any]]:
    """A row per method and scenario that has all sets: means over them, in percent."""
    cells: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        cells[record.method, record.scenario].append(record)
    sets = len({record.dataset for each in cells.values() for record in each})
    rows = []
    for method in METHOD_ORDER:
        for scenario in SCENARIOS:
            found = cells.get((method, scenario), [])
            if len({record.dataset for record in found}) == sets:
                score = Score.mean([Score.of(record) for record in found])
                row = {"method": method, "scenario": scenario}
                row |= {"sets": len({r.dataset for r in found}), "tasks": min(r.tasks for r in found)}
                for name in ("zero_shot", "gain", "low", "high"):
                    row[name] = round(100 * getattr(score, name), 2)
                milliseconds = [1e3 * r.seconds_per_image for r in found if r.seconds_per_image is not None]
                rows.append({**row, "ms_per_image": round(sum(milliseconds) / len(milliseconds), 3)})
    return rows


def shown(row: dict[str, Any]) -> str:
    """`+12.3 ±1.0`; the half width is that of the wider side. Without an interval `+12.3`."""
    gain, low, high = (float(row[name]) for name in ("gain", "low", "high"))
    interval = f" ±{max(gain - low, high - gain):.1f}" if int(row["tasks"]) > 1 else ""
    return f"{gain:+.1f}{interval}".replace("-", "−")


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown: methods × scenarios; first zero-shot's accuracy in %."""
    cells = {(row["method"], row["scenario"]): row for row in rows}
    head = ["method", *SCENARIOS]
    zero_shot = [f"{float(cells['zero-shot', s]['zero_shot']):.1f}" for s in SCENARIOS]
    lines = [head, ["---"] * len(head), ["accuracy of zero-shot, %", *zero_shot]]
    for method in dict.fromkeys(row["method"] for row in rows if row["method"] != "zero-shot"):
        found = (cells.get((method, scenario)) for scenario in SCENARIOS)
        lines.append([f"`{method}`", *(shown(row) if row else "–" for row in found)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(folder: Path, path: Path) -> None:
    """Write the numbers as CSV, and print the table."""
    rows = summed(load_records([folder]))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(table(rows))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
