"""kedge's speed and memory in one table: ratios, shares of the machine's peak, growth, and the paper's tables.

    make bench                                           all but the million: some 20 minutes
    python benchmarks/speed.py --quick                   everything small, a minute or two: to see that it runs
    python benchmarks/speed.py --only throughput growth  some parts again; the others are kept
    python benchmarks/speed.py --only million            a million images, which is slow; kept for later tables

Simulated features, d = 512. The table goes to stdout; the numbers and the table go to benchmarks/results, and a picture
to docs (--quick: all to build/bench/quick). A part is saved as soon as it is measured. Leave the machine alone
meanwhile.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import growth
import machine
import presets
import scale
import throughput
from aims import markdown, text
from draw_speed import draw
from measuring import FILES, ROOT, Result, say

from kedge.files import written_by_rename

PARTS: dict[str, Callable[[bool], Result]] = {
    "peak": machine.measure,
    "throughput": throughput.measure,
    "neighbours": scale.neighbours,
    "large": scale.large,
    "growth": growth.measure,
    "presets": presets.measure,
    "million": scale.million,
}
SLOW = ("million",)
BUSY = 0.5  # load average above which a measurement is not to be trusted


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the parts asked for, and show all that are known."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes; the figures mean nothing")
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--million", action="store_true", help="the million images too")
    parser.add_argument("--out", type=Path, help="folder for the results")
    given = parser.parse_args(arguments)
    out = given.out or (FILES / "quick" if given.quick else ROOT / "benchmarks" / "results")
    chosen = given.only or [name for name in PARTS if given.million or name not in SLOW]

    if (load := os.getloadavg()[0]) > BUSY:
        say(f"the machine is busy (load {load:.1f}): what is measured now is not to be trusted")
    for name in chosen:
        save(out, name, PARTS[name](given.quick), given.quick)
    parts = known(out)
    with written_by_rename(out / "speed.md") as temporary:
        temporary.write_text(markdown(parts), encoding="utf-8")
    draw(parts, (out if given.out or given.quick else ROOT / "docs") / "speed.png")
    print(text(parts))
    say(f"written to {out}")


def save(out: Path, name: str, result: Result, quick: bool) -> None:
    """Put a part beside those that are there."""
    out.mkdir(parents=True, exist_ok=True)
    today = datetime.date.today().isoformat()
    part = {"measured": today, "quick": quick, "machine": machine.describe(), "result": result}
    parts = {**known(out), name: part}
    with written_by_rename(out / "speed.json") as temporary:
        temporary.write_text(json.dumps({"simulated": True, "parts": parts}, indent=1), encoding="utf-8")


def known(out: Path) -> dict[str, Result]:
    """The parts measured so far, in the table's order."""
    path = out / "speed.json"
    parts: dict[str, Result] = json.loads(path.read_text(encoding="utf-8"))["parts"] if path.exists() else {}
    return {name: parts[name] for name in PARTS if name in parts}


if __name__ == "__main__":
    main()
