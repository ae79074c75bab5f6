"""The journal of the work on a set of images: every change a person made, in order, in one SQLite file.

    journal = Journal(folder.journal)
    journal.add(Label(("a/1.jpg",), 3))      # on disk when it returns, also if the process is killed
    said(names, journal.changes())
    journal.undo(), journal.redo()

A change can be redone until another one is added; then what was undone is deleted. Beside the changes, the file has
what the work is about, the text prototypes of prompts (to open it without the encoder), and what was exported.

The file proves nothing: every change is checked by its type and by those before it, and a prototype that is no unit
vector is not used.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from ..arrays import check_unit_rows
from ..errors import FileError, InputError
from ..features.text_head import texts
from ..schema import Whole, checked, parsed
from ..words import shown
from .journal_file import START_ANEW, JournalFile
from .said import AddClass, Change, DropClass, EditClass, Label, Present, Reject, said

T = TypeVar("T")

KINDS: dict[str, type[Change]] = {
    "label": Label,
    "present": Present,
    "reject": Reject,
    "add class": AddClass,
    "edit class": EditClass,
    "drop class": DropClass,
}


@dataclass(frozen=True)
class About:
    """What the work is about."""

    source: str  # the images: a folder, a table or a feature file
    encoder: str
    weights_sha256: str | None  # of the encoder, if it is known
    class_names: tuple[str, ...]  # at the start
    templates: tuple[str, ...]

    def __post_init__(self) -> None:
        texts([self.source, self.encoder], "the source and the encoder", file_names=True)
        texts([*self.class_names, *self.templates], "class names and templates")
        if not (self.class_names and self.templates):
            raise InputError("there are no class names, or no templates. Name at least one.")


@dataclass(frozen=True)
class Export:
    """Something that was exported: when (UTC), as what, how many images, and from which probability on."""

    time: str
    kind: str
    rows: Whole
    above: float | None


class Journal:
    """The journal at this path, made if it is not there. Any thread may use it; one process at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = JournalFile(path)
        self._done: list[Change] = []
        self._undone: list[Change] = []  # the next to be redone is the last
        try:
            self._read()
        except BaseException:
            self.close()
            raise

    def _read(self) -> None:
        """Take the content of the file into memory; raises FileError if a change cannot be understood."""
        for number, kind, body, undone in self._file.rows("SELECT id, kind, body, undone FROM changes ORDER BY id"):
            if kind not in KINDS:
                raise FileError(
                    f"{self.path} has a change of the kind {shown(kind)} (number {number}), which this kedge does not "
                    f"know. Install a newer kedge. {START_ANEW}"
                )
            change = self._object(body, KINDS[kind], f"change (number {number})")
            (self._undone if undone else self._done).append(change)
        self._undone.reverse()
        about = self._file.rows("SELECT body FROM about")
        self._about = self._object(about[0][0], About, "journal") if about else None
        if self._about is not None:
            try:
                said(self._about.class_names, [*self._done, *reversed(self._undone)])
            except InputError as error:
                raise FileError(f"{self.path} is damaged: its changes do not fit each other. {START_ANEW}") from error

    def _object(self, body: Any, kind: type[T], what: str) -> T:
        """A JSON text of the file as an object of this type. Paths may have lone surrogates."""
        try:
            value = parsed(body)
        except (ValueError, TypeError) as error:  # no JSON; no text
            raise FileError(f"{self.path} is damaged: its {what} is no JSON text ({error}). {START_ANEW}") from error
        return checked(value, kind, self.path, what)

    def about(self) -> About | None:
        """What the work is about; None in a new journal."""
        return self._about

    def set_about(self, about: About) -> None:
        """Write what the work is about."""
        with self._file.lock:
            with self._file.writing() as run:
                run("DELETE FROM about")
                run("INSERT INTO about VALUES (?)", json.dumps(asdict(about)))
            self._about = about

    def changes(self) -> list[Change]:
        """The changes in force, in order."""
        with self._file.lock:
            return list(self._done)

    @property
    def can_undo(self) -> bool:
        """Is there a change to undo?"""
        return bool(self._done)

    @property
    def can_redo(self) -> bool:
        """Is there a change to redo?"""
        return bool(self._undone)

    def add(self, change: Change) -> Callable[[], None]:
        """Add a change that fits (`said.check`). What was undone before can no longer be redone.

        Returns a function that takes the change back, as if nobody had made it, while it is the last in force.
        """
        kind = next(name for name, of in KINDS.items() if isinstance(change, of))
        with self._file.lock:
            gone, undone = self._file.rows("SELECT * FROM changes WHERE undone"), list(self._undone)
            with self._file.writing() as run:
                run("DELETE FROM changes WHERE undone")
                row = _now(), kind, json.dumps(asdict(change))
                run("INSERT INTO changes (time, kind, body, undone) VALUES (?, ?, ?, 0)", *row)
            self._done.append(change)
            self._undone.clear()

        def take_back() -> None:
            with self._file.lock:
                with self._file.writing() as run:
                    run("DELETE FROM changes WHERE id = (SELECT max(id) FROM changes WHERE NOT undone)")
                    for row in gone:
                        run("INSERT INTO changes VALUES (?, ?, ?, ?, ?)", *row)
                self._done.pop()
                self._undone[:] = undone

        return take_back

    def undo(self) -> Change | None:
        """Take the last change in force back and return it; None if there is none."""
        with self._file.lock:
            return self._move(self._done, self._undone, 1, "SELECT max(id) FROM changes WHERE NOT undone")

    def redo(self) -> Change | None:
        """Put the change that was undone last in force again and return it; None if there is none."""
        with self._file.lock:
            return self._move(self._undone, self._done, 0, "SELECT min(id) FROM changes WHERE undone")

    def _move(self, source: list[Change], target: list[Change], undone: int, which: str) -> Change | None:
        if not source:
            return None
        with self._file.writing() as run:
            run(f"UPDATE changes SET undone = ? WHERE id = ({which})", undone)
        target.append(source.pop())
        return target[-1]

    def prototype(self, prompts: Sequence[str], dimension: int | None = None) -> Tensor | None:
        """The unit prototype of these prompts by the encoder of this work, d; None if it is not there.

        dimension: the d that it must have.
        """
        rows = self._file.rows("SELECT vector FROM prototypes WHERE prompts = ?", self._key(prompts))
        found = rows[0][0] if rows else None
        if not isinstance(found, bytes) or not found or len(found) % 4:
            return None
        vector = torch.from_numpy(np.frombuffer(found, "<f4").astype(np.float32))
        try:
            check_unit_rows(vector[None], "a prototype")
        except InputError:  # damaged or forged: it is computed again
            return None
        return vector if dimension in (None, len(vector)) else None

    def keep_prototype(self, prompts: Sequence[str], prototype: Tensor) -> None:
        """Keep the prototype of these prompts."""
        vector = prototype.detach().cpu().numpy().astype("<f4").tobytes()
        with self._file.writing() as run:
            run("INSERT OR REPLACE INTO prototypes VALUES (?, ?)", self._key(prompts), vector)

    def _key(self, prompts: Sequence[str]) -> str:
        weights = self._about.weights_sha256 if self._about else None
        return hashlib.sha256(json.dumps([weights, *prompts]).encode()).hexdigest()

    def add_export(self, kind: str, rows: int, above: float | None) -> None:
        """Note that so many images were exported."""
        with self._file.writing() as run:
            run("INSERT INTO exports VALUES (?, ?, ?, ?)", _now(), kind, rows, above)

    def exports(self) -> list[Export]:
        """What was exported, in order."""
        names = ("time", "kind", "rows", "above")
        rows = self._file.rows(f"SELECT {', '.join(names)} FROM exports ORDER BY rowid")
        return [checked(dict(zip(names, row, strict=True)), Export, self.path, "export") for row in rows]

    def close(self) -> None:
        """Close the file; everything is in it already."""
        self._file.close()


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
