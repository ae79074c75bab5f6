"""Measured parts → one table: what was measured, what was aimed at, and whether it was reached."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

from machine import sentence

SLOPE_N, SLOPE_K = 1.1, 1.05
GRAPH_SHARE = 0.6  # of the measured matrix-product peak
LARGE_SECONDS, LARGE_GB, LARGE_DIFFERENCE = 50.0, 3.0, 1e-4
MILLION_SECONDS, MILLION_GB, POINTS_LOST = 360.0, 7.0, 0.3
PRESET_MINUTES = 75.0

MET, MISSED, NO_AIM = "met", "MISSED", ""
TITLE = "kedge's speed (simulated features, d = 512)"
HEADER = ("what", "measured", "aim", "", "how")
HOW_WIDTH = 80


@dataclass(frozen=True)
class Row:
    """One line: a value in its unit, and the bound it has to keep, if any."""

    what: str
    value: float
    shown: str  # the value, for people
    aim: float | None = None
    least: bool = False  # the aim is a lower bound
    unit: str = ""
    how: str = ""

    @property
    def verdict(self) -> str:
        """Whether the aim is reached; what is not a number reaches none."""
        if self.aim is None:
            return NO_AIM
        reached = self.value >= self.aim if self.least else self.value <= self.aim
        return MET if reached else MISSED

    @property
    def cells(self) -> tuple[str, str, str, str, str]:
        """Under HEADER."""
        aim = "" if self.aim is None else f"{'≥' if self.least else '≤'} {self.aim:,g}{self.unit}"
        return self.what, self.shown, aim, self.verdict, self.how


def rows(parts: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    """The table's rows, of the parts that were measured; a quick part's aims are not judged."""
    found = []
    for name, of_part in OF_PART.items():
        if name in parts:
            quick = parts[name]["quick"]
            for row in of_part(parts[name]["result"]):
                found.append(Row(row.what, row.value, row.shown, how=row.how) if quick else row)
    return found


def text(parts: Mapping[str, Mapping[str, Any]]) -> str:
    """The table for a terminal, with the machine; the last column is folded."""
    lines = [HEADER, *(row.cells for row in rows(parts))]
    widths = [max(map(len, column)) for column in list(zip(*lines, strict=True))[:-1]]
    table = []
    for *cells, how in lines:
        margin = "".join(f"{cell.ljust(width)}  " for cell, width in zip(cells, widths, strict=True))
        first, *more = wrap(how, HOW_WIDTH) or [""]
        table += [(margin + first).rstrip(), *(" " * len(margin) + line for line in more)]
    rule = "─" * max(map(len, table))
    return "\n".join([TITLE, *about(parts), "", table[0], rule, *table[1:]])


def markdown(parts: Mapping[str, Mapping[str, Any]]) -> str:
    """The same as a Markdown page."""
    lines: list[Sequence[str]] = [HEADER, ["---"] * len(HEADER), *(row.cells for row in rows(parts))]
    table = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([f"# {TITLE}", "", *(f"{line}\n" for line in about(parts)), *table, ""])


def about(parts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A line per machine and day, naming its parts if there are several."""
    origins: dict[str, list[str]] = {}
    for name, part in parts.items():
        note = " QUICK: sizes are small, figures mean nothing." if part["quick"] else ""
        origins.setdefault(f"{part['measured']}, {sentence(part['machine'])}.{note}", []).append(name)
    if len(origins) == 1:
        return list(origins)
    return [f"{', '.join(names)}: {origin}" for origin, names in origins.items()]


def _peak(result: Any) -> Iterator[Row]:
    sizes = ", ".join(map(str, result["sizes"]))
    for threads, rate in result["gflops"].items():
        yield Row(
            f"matrix product, {_threads(int(threads))}", rate, f"{rate:.0f} GFLOP/s",
            how=f"fastest float32 product of square matrices of {sizes}",
        )  # fmt: skip


def _throughput(result: Any) -> Iterator[Row]:
    for row in result["sizes"]:
        times = {name: _time(value) for name, value in row["seconds"].items()}
        ratio = row["ratio"]
        memory = ""
        if "plain_reused" in times:  # else its arrays are so large that they are fresh from the system in any case
            faster = row["seconds"]["plain_reused"] / row["seconds"]["kedge"]
            fresh, reused = (f"{row['faults'][name]:,.0f}" for name in ("plain", "plain_reused"))
            memory = (
                f" with memory fresh from the system, as at larger sizes ({times['plain_reused']}, {faster:,.0f}×, "
                f"where the allocator reuses it: {reused} page faults, not {fresh})"
            )
        equal = "" if row["difference"] is None else f"; z differs by {row['difference']:.1g}"
        yield Row(
            f"{row['n']:,} images, {row['k']:,} classes, 1 thread", ratio["kedge"], f"{ratio['kedge']:,.0f}×",
            row["aim"], True, "×",
            f"plain form {times['plain']}{memory}, kedge {times['kedge']} over {row['tasks']} tasks "
            f"(with the scoring {times['wall']}, {ratio['wall']:,.0f}×); one call after the other "
            f"{times['single']}, {ratio['single']:,.0f}×; not compiled {times['torch']}, {ratio['torch']:,.0f}×{equal}",
        )  # fmt: skip


def _neighbours(result: Any) -> Iterator[Row]:
    for row in result["sizes"]:
        yield Row(
            f"exact neighbours, n={row['n']:,}, {_threads(row['threads'])}", 100 * row["share"],
            f"{100 * row['share']:.0f} % of peak", 100 * GRAPH_SHARE, True, " %",
            f"{row['seconds']:.2f} s, {row['gflops']:.0f} of {row['product_gflops']:.0f} GFLOP/s, all pairs counted "
            f"(2n²d); {100 * row['share_done']:.0f} % if only what was multiplied counts",
        )  # fmt: skip


def _large(result: Any) -> Iterator[Row]:
    what = f"n={result['n']:,}, k={result['k']:,}, {_threads(result['threads'])}"
    small = result["small_blocks"]
    yield Row(
        what, result["seconds"], f"{result['seconds']:.1f} s", LARGE_SECONDS, unit=" s",
        how=f"with neighbours; {100 * result['share']:.0f} % of {result['product_gflops']:.0f} GFLOP/s, all that the "
        f"equations multiply counted; {100 * result['share_done']:.0f} % if only what was multiplied counts",
    )  # fmt: skip
    yield Row(what, result["peak_gb"], f"{result['peak_gb']:.2f} GB", LARGE_GB, unit=" GB", how="peak of the process")
    yield Row(
        what, small["difference"], f"{small['difference']:.1g}", LARGE_DIFFERENCE,
        how=f"largest difference of z from the solve in small blocks ({small['seconds']:.1f} s); "
        f"{100 * small['same_labels']:.3f} % of labels the same",
    )  # fmt: skip


def _million(result: Any) -> Iterator[Row]:
    what = f"n={result['n']:,}, k={result['k']:,}, {_threads(result['threads'])}"
    recall, both = result["info"].get("recall"), result["compared"]
    found = "" if recall is None else f"neighbours' recall {100 * recall:.1f} %"
    yield Row(what, result["seconds"], f"{result['seconds']:.0f} s", MILLION_SECONDS, unit=" s", how=found)
    yield Row(
        what, result["peak_gb"], f"{result['peak_gb']:.2f} GB", MILLION_GB, unit=" GB",
        how="peak of the process, the mapped file's pages included",
    )  # fmt: skip
    yield Row(
        f"approximate graph, n={both['exact']['n']:,}", both["points_lost"], f"{both['points_lost']:+.2f} points",
        POINTS_LOST, unit=" points",
        how=f"accuracy lost to the exact graph: {100 * both['exact']['accuracy']:.2f} → "
        f"{100 * both['approximate']['accuracy']:.2f} %; {both['exact']['seconds']:.0f} → "
        f"{both['approximate']['seconds']:.0f} s",
    )  # fmt: skip


def _growth(result: Any) -> Iterator[Row]:
    names = {"n": ("n", SLOPE_N), "k": ("k", SLOPE_K), "k_all": ("k", SLOPE_K)}
    for name, (symbol, aim) in names.items():
        row = result[name]
        fixed = ", ".join(f"{key}={row[key]:,}" for key in ("n", "k") if key in row)
        present = f", {row['present']} classes present" if "present" in row else ", all classes present"
        yield Row(
            f"growth with {symbol}", row["slope"], f"{symbol}^{row['slope']:.2f}", aim,
            how=f"{symbol} from {row['sizes'][0]:,} to {row['sizes'][-1]:,} at {fixed}{present}: "
            f"{_time(row['seconds'][0])} to {_time(row['seconds'][-1])}; graph apart, 1 thread",
        )  # fmt: skip


def _presets(result: Any) -> Iterator[Row]:
    for name, row in result["presets"].items():
        yield Row(
            f"kedge bench --preset {name}", row["total"] / 60, f"{row['total'] / 60:.1f} min",
            how=f"StatA, {row['jobs']} processes; extrapolated from {row['tasks']} tasks per cell in "
            f"{row['wall']:.0f} s: by the wall clock {row['by_wall'] / 60:.1f} min, by the seconds in the method "
            f"{row['by_cells'] / 60:.1f} min",
        )  # fmt: skip
    yield Row("both tables", result["minutes"], f"{result['minutes']:.1f} min", PRESET_MINUTES, unit=" min",
              how="extrapolated")  # fmt: skip


def _time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def _threads(count: int) -> str:
    return f"{count} thread{'s' * (count > 1)}"


OF_PART = {
    "peak": _peak,
    "throughput": _throughput,
    "neighbours": _neighbours,
    "large": _large,
    "million": _million,
    "growth": _growth,
    "presets": _presets,
}
