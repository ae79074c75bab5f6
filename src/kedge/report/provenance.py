"""HTML for failed cells, versions, settings and hashes, and the command that repeats a run."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from .._version import __version__
from ..benchmark.record import Record, as_argument
from ..words import count
from .html_tables import Column, badge, escaped, table
from .scores import ZERO_SHOT, Results

HASH_SHOWN = 12


def failures(failed: Sequence[Record]) -> str:
    """A table of failed cells with the reasons; "" if none failed."""
    if not failed:
        return ""
    rows = (
        "<tr>"
        + "".join(f"<td>{escaped(value)}</td>" for value in (r.label, r.dataset, r.encoder, r.scenario, r.seed))
        + f'<td class="long"><pre>{_lines(r.error or "no score and no error message")}</pre></td></tr>'
        for r in failed
    )
    columns: list[Column] = [
        ("method", "text"),
        ("dataset", "text"),
        ("encoder", "text"),
        ("scenario", "text"),
        ("seed", "text"),
        ("reason", "text"),
    ]
    listing = table("These cells are not in any result below.", columns, rows, "words")
    return f'<section class="failed" id="failed"><h2>{count(len(failed), "cell")} failed</h2>{listing}</section>'


def provenance(results: Results) -> str:
    """The last section of the page: everything the results depend on."""
    everything = [*results.scored, *results.failed]

    def distinct(values: Iterable[object]) -> str:
        return escaped("; ".join(sorted({str(value) for value in values if value != ""})) or "not recorded")

    facts = {
        "kedge": distinct(r.kedge for r in everything),
        "torch": distinct(r.torch for r in everything),
        "machine": distinct(r.machine for r in everything),
        "seeds": distinct(r.seed for r in everything),
        "report made with": f"kedge {escaped(__version__)}",
    }
    listed = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in facts.items())
    return f"""<section id="provenance"><h2>Settings, versions, hashes</h2>
<dl>{listed}</dl>
{_feature_files(everything)}
<details><summary>All {count(len(everything), "run")}</summary>{_runs(everything)}</details>
<h3>How to repeat a run</h3>
<p>The same features, scenario, seed and number of tasks give the same plan. The same plan gives the same scores up to
floating-point rounding.</p>
<pre>{_again(everything)}</pre>
</section>"""


def _feature_files(records: Sequence[Record]) -> str:
    found = sorted(
        {
            (r.dataset, r.encoder, r.classes, r.simulated, r.precision, r.features_hash)
            for r in records
            if r.features_hash
        }
    )
    columns: list[Column] = [
        ("dataset", "text"),
        ("encoder", "text"),
        ("classes", "number"),
        ("precision of the encoder", "text"),
        ("sha256", "text"),
    ]
    rows = (
        f"<tr><td>{escaped(dataset)}{badge(simulated)}</td><td>{escaped(encoder)}</td>"
        f'<td data-value="{classes}">{classes}</td><td class="long">{escaped(precision) or "not recorded"}</td>'
        f'<td class="long"><code>{escaped(sha256)}</code></td></tr>'
        for dataset, encoder, classes, simulated, precision, sha256 in found
    )
    return table("Feature files. Equal hashes mean equal features, text prototypes and labels.", columns, rows, "words")


def _runs(records: Sequence[Record]) -> str:
    columns: list[Column] = [
        ("method", "text"),
        ("dataset", "text"),
        ("encoder", "text"),
        ("scenario", "text"),
        ("seed", "number"),
        ("tasks", "number"),
        ("images", "number"),
        ("seconds", "number"),
        ("features", "text"),
        ("plan", "text"),
        ("kedge", "text"),
        ("torch", "text"),
        ("machine", "text"),
    ]
    caption = "The plan lists the images of every batch. Methods with the same plan were scored on the same tasks."
    return table(caption, columns, map(_run, records), "words")


def _run(r: Record) -> str:
    numbers = ((r.seed, "{}"), (r.tasks, "{:,}"), (r.images, "{:,}"), (r.seconds, "{:.2f}"))
    cells = [f"<td>{escaped(r.label)}</td><td>{escaped(r.dataset)}{badge(r.simulated)}</td>"]
    cells += [f"<td>{escaped(value)}</td>" for value in (r.encoder, r.scenario)]
    cells += [
        f'<td data-value="{"" if value is None else value}">{"–" if value is None else shown.format(value)}</td>'
        for value, shown in numbers
    ]
    cells += [
        f'<td title="{escaped(sha256)}"><code>{escaped(sha256[:HASH_SHOWN]) or "–"}</code></td>'
        for sha256 in (r.features_hash, r.plan_hash)
    ]
    cells += [f"<td>{escaped(value)}</td>" for value in (r.kedge, r.torch, r.machine)]
    return f"<tr>{''.join(cells)}</tr>"


def _again(records: Sequence[Record]) -> str:
    """The commands that repeat one cell of this report."""
    r = next((r for r in records if r.method != ZERO_SHOT), records[0])
    words = ["--method", as_argument(r.method, r.settings), "--scenario", r.scenario]
    words += ["--seed", str(r.seed), "--tasks", str(r.tasks)]
    words += ["--known", str(r.known), "--known-by", str(r.known_by)] if r.known else []
    words += ["--oracle-classes", r.oracle_classes] if r.oracle_classes else []
    words += ["--out", "again"]
    sha256 = r.features_hash[:HASH_SHOWN] or "not recorded"
    return _lines(
        f"# FEATURES: the feature file of {r.dataset} ({r.encoder}), sha256 {sha256}…\n"
        f"kedge bench FEATURES {shlex.join(words)}\n"
        "kedge report again -o again.html"
    )


def _lines(text: str) -> str:
    return "\n".join(escaped(line) for line in text.splitlines())
