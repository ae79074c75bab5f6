"""The report: one HTML page made from records alone, with its figures as files.

    write_report(load_records(["results"]), Path("report.html"))

The page works offline. The folder `report_figures/` beside it has every figure as SVG and PNG, and its data as CSV.
A figure without data is left out.

    published     published figures that match a record
    pivot         records → tables of any field against any other; formats: as text, Markdown, LaTeX, CSV, JSON
    score         a score with its interval; scores: records → groups and cells
    figures       all figures of a group; ablations, batches and streams draw some of them; drawing: style and export
    html_tables   the tables of the page; losses: why some methods lose much; provenance: versions, settings, hashes
    page          the page: headline, contents, a section per group; assets/ has its style sheet and its script
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..benchmark.record import Record
from ..errors import FileError, InputError
from ..files import check_writable, written_by_rename
from ..words import write_csv
from .drawing import Picture, as_png, as_svg, inlined, look, on_white, style
from .figures import KEYS, all_figures
from .page import page
from .scores import Group, collect
from .section import Placed
from .streams import along_streams

__all__ = ["draw_stream", "write_report"]


def write_report(
    records: Iterable[Record], out: str | Path, sheets: Mapping[str, Path] | None = None, note: str = ""
) -> Path:
    """Write the page to `out` and its figures beside it; returns the page's path. Files are written by rename.

    sheets: more pictures (title → PNG file) to show after the results.
    note: a paragraph at the top of the page.
    """
    out = check_writable(out)
    records = list(records)
    if not records:
        raise InputError("a report needs at least one record; got none. Run `kedge bench` first.")
    results = collect(records)
    folder = out.with_name(f"{out.stem}_figures")
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot make the folder {folder}: {error.strerror}. Choose another place.") from error
    with style():
        placed = [
            [_place(picture, number, group, folder) for picture in all_figures(group, results.colours)]
            for number, group in enumerate(results.groups, 1)
        ]
    _write(out, page(results, placed, sheets or {}, note).encode())
    _remove_older(folder, {Path(name).name for pictures in placed for one in pictures for name in one.files})
    return out


def draw_stream(records: Iterable[Record], out: str | Path) -> Path:
    """Draw accuracy along one stream as PNG: zero-shot, and every method of the records, which share one scenario."""
    results = collect(records)
    with style():
        picture = along_streams(results.groups[0], lambda label: look(label, results.colours))
        if picture is None:
            raise InputError("a stream's figure needs records of a stream; got none. Choose a stream scenario.")
        figure = picture.panels[0].figure
        as_svg(figure)  # computes the layout
        _write(Path(out), as_png(figure))
    return Path(out)


def _place(picture: Picture, number: int, group: Group, folder: Path) -> Placed:
    """Write the files of a figure and return what the page shows of it."""
    svgs: list[str] = []
    names: list[str] = []
    for panel in picture.panels:
        stem = _file_name(f"{number}-{panel.name}", names)
        svg = as_svg(panel.figure)
        svgs.append(inlined(svg, f"p{number}-{picture.key}-{len(svgs)}"))
        _write(folder / f"{stem}.svg", on_white(svg).encode())
        _write(folder / f"{stem}.png", as_png(panel.figure))
        names += [f"{stem}.svg", f"{stem}.png"]
    names.append(f"{number}-{picture.key}.csv")
    origin = {"simulated": group.simulated, "encoder": group.encoder}
    _write_csv(folder / names[-1], [origin | row for row in picture.rows])
    return Placed(picture, svgs, [f"{folder.name}/{name}" for name in names])


def _file_name(name: str, taken: list[str]) -> str:
    """A file name that is valid on every file system and unique among `taken`."""
    stem = re.sub(r"[^A-Za-z0-9.=_-]+", "-", name).strip("-.")[:80]
    while f"{stem}.svg".lower() in map(str.lower, taken):  # some file systems ignore case
        stem += "_"
    return stem


def _write(path: Path, content: bytes) -> None:
    with written_by_rename(path) as temporary:
        temporary.write_bytes(content)


def _write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    with written_by_rename(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        write_csv(file, list(rows[0]), rows)


def _remove_older(folder: Path, written: set[str]) -> None:
    """Delete figures that an earlier report left in the folder. Other files stay."""
    ours = re.compile(rf"\d+-({'|'.join(KEYS)})\b.*\.(svg|png|csv)")
    for path in folder.iterdir():
        if path.name not in written and ours.fullmatch(path.name):
            path.unlink()
