"""What the tests of the report share: records of every kind, and a reader of pages."""

from __future__ import annotations

import csv
import dataclasses
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from kedge.benchmark.evaluate import evaluate
from kedge.benchmark.record import Record
from kedge.features.feature_set import FeatureSet
from kedge.features.simulate import simulate

STREAM = "stream:gamma=0.01,size=32,drop_last=False"
VOID = {"meta", "link", "br", "img"}


@cache
def some_records() -> tuple[Record, ...]:
    """Simulated features, every kind of cell a picture needs, and one that failed. Two datasets, so averages differ."""
    records = []
    for name, seed in (("birds", 1), ("cars", 2)):
        made = simulate(300, 12, 64, seed=seed)
        features = dataclasses.replace(made, provenance={**made.provenance, "dataset": name})
        records += _cells(features)
    return *records, Record("stata", {}, "planes", "unknown", "low", 0, 8, error="it broke", simulated=True)


def _cells(features: FeatureSet) -> list[Record]:
    records = [
        evaluate("zero-shot", features, "low", tasks=8),
        evaluate("stata", features, "low", tasks=8),
        evaluate("stata", features, "low", tasks=8, beta="soft"),
        evaluate("stata", features, STREAM, tasks=2),
        evaluate("stata", features, STREAM, tasks=2, beta="soft"),
    ]
    fixed = [f"batches:size=32,k_min={k},k_max={k}" for k in (2, 6)]
    return records + [evaluate("stata", features, s, tasks=4, alpha=alpha) for s in fixed for alpha in (1.0, 10.0)]


class Page(HTMLParser):
    """A page as a tree (ElementTree), refusing tags that are not closed or closed twice."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.root = ET.Element("page")
        self._open = [self.root]
        self.feed(path.read_text(encoding="utf-8"))
        assert [element.tag for element in self._open] == ["page"]

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        element = ET.SubElement(self._open[-1], tag, {name: value or "" for name, value in attrs})
        if tag not in VOID:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        ET.SubElement(self._open[-1], tag, {name: value or "" for name, value in attrs})

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        last = self._open[-1]
        if len(last):
            last[-1].tail = (last[-1].tail or "") + data
        else:
            last.text = (last.text or "") + data

    def table(self, scenario: str) -> dict[str, dict[str, ET.Element]]:
        """The first table under this heading: row → column → cell."""
        body = list(self.root.iter())
        start = next(at for at, e in enumerate(body) if e.tag == "h3" and text(e).startswith(scenario))
        found = next(e for e in body[start:] if e.tag == "table")
        columns = [text(cell) for cell in found.find("thead/tr") or ()]
        return {text(row[0]): dict(zip(columns[1:], row[1:], strict=True)) for row in found.findall("tbody/tr")}


def text(element: ET.Element) -> str:
    return "".join(element.itertext()).strip()


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def find(records: Sequence[Record], **wanted: Any) -> Record:
    return next(r for r in records if all(getattr(r, name) == value for name, value in wanted.items()))


def real(record: Record, **changes: Any) -> Record:
    """The record as if of real features, for what is done only with those."""
    return dataclasses.replace(record, **{"simulated": False, "encoder": "CLIP ViT-B/16", **changes})


def scored(accuracy: float, label: str = "stata", **changes: Any) -> Record:
    """A record with a score and nothing else."""
    given: dict[str, Any] = {
        "settings": {},
        "dataset": "birds",
        "encoder": "E",
        "scenario": "low",
        "seed": 0,
        "tasks": 9,
    }
    gain = {"zero_shot": 0.5, "gain": accuracy - 0.5, "gain_low": accuracy - 0.51, "gain_high": accuracy - 0.48}
    return Record(**{"method": label, "accuracy": accuracy, **given, **gain, **changes})
