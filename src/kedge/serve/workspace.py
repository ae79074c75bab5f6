"""The work on one set of images: features, what a person said of them, and the labels that follow.

    workspace = Workspace(task, journal, events)
    workspace.open(features)                        # the first solve; until then images are being encoded
    workspace.change(Label(("a/1.jpg",), 3))        # checked, written to the journal, solved: as GET /api/labels

Any thread may call it. While one solve runs, further changes wait, and one common solve serves them all. If a solve
fails, the changes it was for are taken back, and everything stays as it was.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError
from ..features.encode import Encoded
from ..features.feature_set import FeatureSet
from ..features.text_head import TextHead
from ..labelling.predictions import Predictions
from ..labelling.session import Session
from ..methods.contract import UNKNOWN
from ..words import count, printable
from .bursts import Bursts, Done
from .events import Events
from .image_list import ImageList, NotNow
from .journal import Journal
from .prompts import LazyEncoder, Prompts
from .said import Change, Said, check, said
from .shown import NOT_YET, Numbers, Solved, as_rows, in_words, known_labels, true_labels, true_names, waiting
from .task import Task

NEIGHBOURS, KEPT = 8, 8  # that are shown of an image; solves without known labels, for undo and redo


@dataclass(frozen=True, eq=False)
class _State:
    """Everything that is replaced when the features are."""

    session: Session
    true_names: list[str] | None
    solved: Solved
    without: Mapping[object, Numbers]  # labels if nothing was known, by what they depend on


class Workspace:
    """The images of a task, and the labels that a person and kedge give them."""

    def __init__(self, task: Task, journal: Journal, events: Events) -> None:
        self.task, self.journal, self.events = task, journal, events
        self.skipped: dict[str, str] = {}
        self._bursts = Bursts(self._said, self._serve)
        self.images = ImageList(task.root, task.paths, False, edit=task.listing is not None)
        self._encoded = np.full(len(task.paths), NOT_YET), np.zeros(len(task.paths), dtype=np.float32)
        self._prompts: Prompts | None = None
        self._encoder: LazyEncoder | None = None
        self._state: _State | None = None
        self._version = int(1000 * time.time())  # newer than those of an earlier server
        self._shown: dict[str, Any] = {}  # replaced as a whole, so that whoever reads it sees one version

    @property
    def version(self) -> dict[str, Any]:
        """The number of the last answer, and of the list of images."""
        return {"version": self._version, "revision": self.images.revision}

    def set(self) -> dict[str, Any]:
        """GET /api/set."""
        state, images = self._state, self.images
        names = None if state is None else state.true_names
        return {
            "name": printable(self.task.name),
            "encoder": printable(self.task.encoder),
            "simulated": images.simulated,
            "revision": images.revision,
            "list": images.name,
            "images": [printable(path) for path in images.paths],
            "skipped": [{"path": printable(path), "reason": printable(why)} for path, why in self.skipped.items()],
            "true_labels": true_labels(names, self._said(), self.task.strangers) is not None,
            "edit": images.edit,
            "templates": list(self.task.templates),
            "method": self.task.method.name,
            "work": printable(self.task.work.path.name),
        }

    def labels(self) -> dict[str, Any]:
        """GET /api/labels."""
        return self._shown or {**self.version, **waiting(self.task.class_names, *self._encoded)}

    def encoded(self, batch: Encoded, head: TextHead) -> None:
        """Show zero-shot of a batch, before all are encoded."""
        if not batch.positions:
            return
        values, classes = head.log_zero_shot(batch.features).exp().max(dim=1)
        labels, probabilities = self._encoded
        labels[batch.positions], probabilities[batch.positions] = classes.numpy(), values.numpy()
        data = {"zero_shot": classes.tolist(), "zero_shot_probability": [round(value, 4) for value in values.tolist()]}
        self.events.publish("batch", {"images": batch.positions, **data})

    def open(self, features: FeatureSet) -> None:
        """Take these features of the images, and solve. Labels that were given stay, by path."""
        paths = features.paths
        assert paths is not None
        with self._bursts.solving:
            session = Session(features, self.task.method)
            if self._prompts is None:
                self._prompts = Prompts(features, self.task.templates, self.journal)
                self._prompts.encoder = self._encoder
            state, shown = self._solved(session, true_names(features), paths, self._said(), {})
            self.skipped = features.skipped
            self.images = replace(self.images, paths=paths, simulated=features.simulated)
            self._show(state, shown, last=None)

    def use_encoder(self, encoder: LazyEncoder | None) -> None:
        """Add and change classes with this encoder; None: not at all."""
        with self._bursts.solving:
            self._encoder = encoder
            if self._prompts is not None:
                self._prompts.encoder = encoder
            self.images = replace(self.images, edit=encoder is not None)
            self._shown = self._shown and {**self._shown, **self.version}
        self.events.publish("version", self.version)

    def change(self, change: Change) -> dict[str, Any]:
        """Do what a person says: as GET /api/labels."""

        def add() -> Done:
            before = self._said()
            check(change, before)
            after = said(self.task.class_names, [*self.journal.changes(), change])
            assert self._prompts is not None
            self._prompts.head(after.classes)  # it may not be possible
            return _in_words(change, before, after), self.journal.add(change)

        self.check_labelled()
        return self._bursts.do(add)

    def undo(self) -> dict[str, Any]:
        """Take the last change back: as GET /api/labels."""
        return self._move(self.journal.undo, self.journal.redo, "undone")

    def redo(self) -> dict[str, Any]:
        """Do again what was undone last: as GET /api/labels."""
        return self._move(self.journal.redo, self.journal.undo, "done again")

    def _move(self, move: Callable[[], Change | None], back: Callable[[], object], what: str) -> dict[str, Any]:
        def moved() -> Done:
            before, change = self._said(), move()
            if change is None:
                raise NotNow(f"there is nothing that could be {what}.")
            return f"{what}: {_in_words(change, before, self._said())}", back

        self.check_labelled()
        return self._bursts.do(moved)

    def _said(self) -> Said:
        """All that the journal has."""
        return said(self.task.class_names, self.journal.changes())

    def _serve(self, now: Said, done: list[str]) -> dict[str, Any]:
        """Solve for changes that were done."""
        before = self._state
        assert before is not None
        state, shown = self._solved(before.session, before.true_names, before.solved.paths, now, before.without)
        changed = state.solved.differing(before.solved.labels).tolist()
        what = done[0] if len(done) == 1 else count(len(done), "change")
        self._show(state, shown, {"what": what, "changed": changed})
        return self._shown

    def _solved(
        self,
        session: Session,
        true_names: list[str] | None,
        paths: Sequence[str],
        now: Said,
        without: Mapping[object, Numbers],
    ) -> tuple[_State, dict[str, Any]]:
        """The next state, and what is shown of it."""
        solved = self._solve(session, paths, now)
        depends = now.classes, now.absent, now.reject
        if depends not in without:
            nothing_known = not (solved.known != UNKNOWN).any()
            plain = solved if nothing_known else self._solve(session, paths, replace(now, known={}))
            without = {**dict(list(without.items())[1 - KEPT :]), depends: plain.labels}
        shown = {
            **solved.shown(),
            "phase": "labelled",
            "accuracy": solved.accuracy(true_labels(true_names, now, self.task.strangers)),
            "others": len(solved.differing(without[depends])),
        }
        return _State(session, true_names, solved, without), shown

    def _solve(self, session: Session, paths: Sequence[str], now: Said) -> Solved:
        assert self._prompts is not None
        head = self._prompts.head(now.classes)
        present = [row for row, each in enumerate(now.classes) if each.id not in now.absent] if now.absent else None
        known = known_labels(now, paths)
        given = as_rows(known, now) if (known != UNKNOWN).any() else None
        start = time.perf_counter()
        result = session.solve(given, present, now.reject, head)
        return Solved(now, paths, head, result, time.perf_counter() - start)

    def _show(self, state: _State, shown: dict[str, Any], last: dict[str, Any] | None) -> None:
        """Replace what is shown, and tell all tabs."""
        self._state, self._version = state, self._version + 1
        can = {"can_undo": self.journal.can_undo, "can_redo": self.journal.can_redo}
        self._shown = {**self.version, **shown, "last": last, **can}
        self.events.publish("version", self.version)

    def image(self, image: int) -> dict[str, Any]:
        """GET /api/images/{i}: its most probable classes and its nearest neighbours."""
        path, state = printable(self.images.path(image)), self._state
        if state is None or image >= len(state.solved.paths):
            return {"path": path, "top": [], "neighbours": []}
        near = state.session.neighbours(image, NEIGHBOURS)
        neighbours = [{"image": other, "similarity": round(value, 4)} for other, value in near]
        return {"path": path, "top": state.solved.top(image), "neighbours": neighbours}

    def file(self, image: int, name: str | None = None) -> Path:
        """The file of an image; name: of the list that the number is from."""
        images = self.images.of(name)
        return images.root / images.path(image)

    def check_labelled(self) -> None:
        """Raise NotNow before the first solve."""
        if self._state is None:
            raise NotNow("the images are still being encoded. Wait until they are labelled.")

    def said_of(self, number: int) -> tuple[str, str | None]:
        """The name and the prompt of a class."""
        found = self._said().by_id.get(number)
        if found is None:
            raise InputError(f"there is no class {number}. Load the page again.")
        return found.name, found.prompt

    def predictions(self) -> Predictions:
        """The labels as they are, to write them."""
        self.check_labelled()
        state = self._state
        assert state is not None
        features = replace(state.session.features, head=state.solved.head, labels=None)
        return Predictions(features, state.solved.result, folders=(self.task.root,))


def _in_words(change: Change, before: Said, after: Said) -> str:
    return in_words(change, {each.id: each.name for each in (*before.classes, *after.classes)})
