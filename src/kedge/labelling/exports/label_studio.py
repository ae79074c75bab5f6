"""Label Studio: tasks with predictions and the labelling configuration for them; and its exports, read back.

    kedge adapt photos --classes "cat, dog" --out photos.labelstudio.json     # writes photos.labelstudio.xml too
    kedge adapt photos --classes "cat, dog" --known export.json               # what Label Studio exported

A task has the image, and kedge's label as a prediction; a label that a person gave is an annotation. Tasks come in
review order: the images most worth a look are shown first. Beside the classes there is the choice "none of these".

Label Studio asks for an image by its URL: `image_url` and the image's path, quoted. The default is for files that it
serves itself from the folder above that of the images: /data/local-files/?d=photos/red/17.jpg

Exports are "JSON" (tasks with annotations) and "JSON-MIN" (a record for each annotation). Annotations that were skipped
do not count. Of several in one task, one marked as ground truth counts before others (JSON-MIN does not say which is),
and else the one updated last.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO
from urllib.parse import quote, unquote
from xml.sax.saxutils import quoteattr

from ..._version import __version__
from ...errors import FileError, InputError
from ...files import existing
from ...memory import check_memory
from ...methods.contract import UNKNOWN
from ...schema import fitted, parsed
from ...words import first_few, shown, write_json
from ..result import NO_CLASS, none_word
from .asked import Asked, as_utf8, check_named

if TYPE_CHECKING:
    from ..predictions import Predictions

CONTROL, OBJECT = "label", "image"  # what the configuration calls the choices and the image
CONTROLS = (CONTROL, "choice")  # the second is Label Studio's own name in its template
LOCAL_FILES = "/data/local-files/?d="
BYTES = 24  # of memory for a byte of JSON: 22 were measured for JSON-MIN, 10 for JSON
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def check_tasks(images: Sequence[str | int], class_names: Sequence[str]) -> None:
    """Raise InputError if Label Studio could not show these images or name these classes."""
    check_named(images)
    for name in class_names:
        if _NOT_XML.search(name):
            raise InputError(
                f"the class {name!r} has a character that no XML file can have, so Label Studio has no configuration "
                "for it. Rename the class, or write another kind of file."
            )


def tasks(predictions: Predictions, file: TextIO, asked: Asked) -> int:
    """An array of tasks, to be imported as it is."""
    prefix = _prefix(predictions) if asked.image_url is None else asked.image_url
    prefix += "" if prefix.endswith(("/", "=")) or not prefix else "/"
    names = predictions.features.head.class_names
    choices = (*names, none_word(names))  # the last one for −1
    labels, given = predictions.labels.tolist(), predictions.result.answer.given.tolist()
    model = f"kedge {__version__}, {predictions.result.info.get('method', 'unknown')}"
    in_order = sorted(
        (row["review_rank"] or len(labels) + 1, number, row["image"], row["probability"], row["none"])
        for number, row in asked.rows(predictions)
    )

    def task(number: int, image: str, probability: float, none: float) -> dict[str, Any]:
        found: dict[str, Any] = {"data": {OBJECT: prefix + quote(image, errors="surrogateescape")}}
        choice = choices[labels[number]]
        if choice is None:  # two classes have the names for none
            return found
        result = [{"from_name": CONTROL, "to_name": OBJECT, "type": "choices", "value": {"choices": [choice]}}]
        if given[number] != UNKNOWN:
            return {**found, "annotations": [{"result": result}]}
        score = none if labels[number] == NO_CLASS else probability
        return {**found, "predictions": [{"model_version": model, "score": score, "result": result}]}

    write_json(file, (task(*each) for _, *each in in_order))
    return len(in_order)


def _prefix(predictions: Predictions) -> str:
    """Label Studio's address of the folder of the images, if it serves the folder above."""
    features, root = predictions.features, predictions.root
    recorded = str(features.provenance.get("root") or "")
    if root is None and recorded and not recorded.startswith("hf:"):
        root = (features.path.parent if features.path else Path()) / recorded
    return LOCAL_FILES + quote("" if root is None else Path(os.path.abspath(root)).name, errors="surrogateescape")


def config(predictions: Predictions, file: TextIO, asked: Asked) -> int:
    """The labelling configuration that fits the tasks: an image, and one choice among the classes."""
    names = predictions.features.head.class_names
    file.write(f'<View>\n  <Image name="{OBJECT}" value="${OBJECT}"/>\n')
    file.write(f'  <Choices name="{CONTROL}" toName="{OBJECT}" choice="single" showInline="true">\n')
    for name in dict.fromkeys((*names, none_word(names))):  # classes may share a name
        if name is not None:
            file.write(f"    <Choice value={quoteattr(name)}/>\n")
    file.write("  </Choices>\n</View>\n")
    return len(predictions.features)


class Said(NamedTuple):
    """What a person said of one image."""

    place: str  # where: the number of a task, or of a line
    image: str  # path, or the end of a URL
    label: str


@dataclass(frozen=True)
class _Value:
    choices: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Region:
    type: str = ""
    from_name: str = ""
    value: _Value = _Value()


@dataclass(frozen=True)
class _Annotation:
    result: list[_Region] | None = None
    was_cancelled: bool | None = None
    skipped: bool | None = None  # in older versions
    ground_truth: bool | None = None
    created_at: str | None = None
    updated_at: str | None = None

    @property
    def choices(self) -> dict[str, list[str]]:
        """What was chosen, by the name of the choices; nothing if the annotator skipped the task."""
        if self.was_cancelled or self.skipped:
            return {}
        return {each.from_name: each.value.choices for each in self.result or () if each.type == "choices"}

    @property
    def rank(self) -> tuple[bool, str]:
        """The annotation with the largest counts."""
        return bool(self.ground_truth), self.updated_at or self.created_at or ""


@dataclass(frozen=True)
class _Data:
    image: str


@dataclass(frozen=True)
class _Task:
    """A task of an export "JSON"."""

    data: _Data
    annotations: list[_Annotation] = field(default_factory=list)


@dataclass(frozen=True)
class _Record:
    """An annotation of an export "JSON-MIN"; the name of the choices is a key."""

    image: str
    label: str | _Value | None = None
    choice: str | _Value | None = None
    created_at: str | None = None
    updated_at: str | None = None

    @property
    def task(self) -> _Task:
        chosen = {name: getattr(self, name) for name in CONTROLS if getattr(self, name) is not None}
        regions = [
            _Region("choices", name, _Value([value]) if isinstance(value, str) else value)
            for name, value in chosen.items()
        ]
        dated = _Annotation(regions, created_at=self.created_at, updated_at=self.updated_at)
        return _Task(_Data(self.image), [dated])


def read_export(path: str | Path) -> Iterator[Said]:
    """The labels of an export, one for each task that has any."""
    path = existing(path)
    check_memory(BYTES * path.stat().st_size, f"{path}, read,", FileError)
    try:
        entries = parsed(path.read_bytes())
    except ValueError as error:  # also of text that is not UTF-8
        raise FileError(f"{path} is not JSON: {error}. Export it from Label Studio again, as JSON.") from error
    if not isinstance(entries, list):
        raise FileError(f"{path} is not an export of Label Studio, which is a list of tasks. Export it as JSON.")
    found: dict[str, _Task] = {}
    for number, entry in enumerate(entries, start=1):
        own = entry.get("id") if isinstance(entry, dict) else None
        name = str(own) if isinstance(own, int | str) else f"number {number}"
        task = _task(entry, f"{path}, task {name}")
        if name in found and found[name].data == task.data:  # JSON-MIN has an entry for each annotation
            task = _Task(task.data, [*found[name].annotations, *task.annotations])
        elif name in found:
            raise FileError(f"{path}, task {name}: it is there twice, with other images. Export it again.")
        found[name] = task
    for name, task in found.items():
        if label := _label(task, f"{path}, task {name}"):
            yield Said(name, image_path(task.data.image), label)


def _task(entry: Any, where: str) -> _Task:
    """The checked form of an entry of either export."""
    if isinstance(entry, dict) and "zero_shot_label" in entry:
        raise FileError(
            f"{where} has a label that kedge predicted. Labels that are known are in a .csv file with the columns "
            "image and label, or in an export of Label Studio."
        )
    try:
        if isinstance(entry, dict) and "data" not in entry:
            return fitted(entry, _Record).task
        return fitted(entry, _Task)
    except ValueError as error:
        raise FileError(f"{where}: {error}. Export it from Label Studio again, as JSON or JSON-MIN.") from error


def _label(task: _Task, where: str) -> str | None:
    """The choice that counts; None if nobody chose."""
    annotations = [each for each in task.annotations if any(each.choices.values())]
    if not annotations:
        return None
    choices = max(reversed(annotations), key=lambda each: each.rank).choices  # of equals, the last one
    names = [name for name in CONTROLS if name in choices] or list(choices)
    if names[0] not in CONTROLS and len(names) > 1:
        raise FileError(
            f"{where} has several choices: {first_few(names)}. Call the one with the classes {CONTROL!r} in the "
            "labelling configuration."
        )
    chosen = choices[names[0]]
    if len(chosen) > 1:
        raise FileError(f"{where}: {shown(chosen)} are {len(chosen)} choices, and an image has one label. Choose one.")
    return chosen[0] if chosen else None


def image_path(url: str) -> str:
    """The path in a URL, without quotes: photos/a b.jpg of /data/local-files/?d=photos/a%20b.jpg"""
    _, local, path = url.partition("?d=")
    if not local:
        path = url.split("?")[0] if "://" in url else url
    return as_utf8(unquote(path, errors="surrogateescape"))
