"""Encodes images in a thread: first all images of a folder, later those that are new in it.

The page is there all the while, and hears of the progress. A closed page stops nothing. A server that is killed goes on
where it was when it starts again (`features.extract`). New images are encoded into a file of their own, which is then
joined to the others; if the server is killed in between, the next start joins it.
"""

from __future__ import annotations

import contextlib
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from .. import progress
from ..encoders.precision import usual
from ..errors import InputError, KedgeError
from ..features.checked_encoder import same_precision
from ..features.encode import Encoded
from ..features.extract import extract
from ..features.feature_set import FeatureSet
from ..features.text_head import TextHead
from ..images.image_set import ImageSet
from ..methods.solve.compiling import warm_up
from ..words import count, printable
from .events import Event
from .image_list import NotNow
from .joining import joined
from .progress_events import ProgressEvents
from .workspace import Workspace

LOOK_EVERY = 10.0  # seconds between two looks for new images, while a tab is open
STOP_SECONDS = 10.0  # that the end of the server waits for the batch under way


class _Stopped(Exception):
    """The server ends."""


class Encoding:
    """Opens a workspace, and looks after new images.

    workers: see `extract`.
    """

    def __init__(self, workspace: Workspace, workers: int | None = None) -> None:
        self.workspace, self.workers = workspace, workers
        self.failed: Callable[[], None] = lambda: None  # called if the workspace cannot be opened
        self.task, self.events = workspace.task, workspace.events
        self.error: Exception | None = None  # why the workspace could not be opened
        self._progress = ProgressEvents(self.events)
        self._new = 0
        self._stop = threading.Event()
        self._working = threading.Lock()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Open the workspace, and watch the folder, in threads."""
        for work in (warm_up, self._open, self._watch):
            self._begin(work)

    def stop(self) -> None:
        """End the threads; what is encoded is kept."""
        self._stop.set()
        until = time.monotonic() + STOP_SECONDS
        for thread in self._threads[1:]:  # the first compiles, which nothing can stop
            thread.join(max(0.0, until - time.monotonic()))

    def wait(self, seconds: float) -> bool:
        """Wait until nothing is being encoded; False if it takes longer."""
        if not self._working.acquire(timeout=seconds):
            return False
        self._working.release()
        return True

    def first(self) -> Iterator[Event]:
        """What a tab hears when it connects."""
        yield "version", self.workspace.version
        if self._progress.last is not None:
            yield "progress", self._progress.last
        if self._new:
            yield "new", {"count": self._new}
        if self.error is not None:
            yield "failed", {"error": _one_line(self.error)}

    def encode_new(self) -> None:
        """Begin to encode the images that are new in the folder, unless that is under way."""
        if self.task.listing is None:
            raise NotNow("a feature file has its images once and for all. Serve their folder instead.")
        self.workspace.check_labelled()
        if self._working.acquire(blocking=False):
            self._begin(self._encode_new)

    def look(self) -> None:
        """Tell the tabs how many new images there are."""
        found = len(self._fresh()[1])
        if found != self._new:
            self._new = found
            self.events.publish("new", {"count": found})

    def _begin(self, work: Callable[[], None]) -> None:
        if work == self._open:
            self._working.acquire()
        thread = threading.Thread(target=work, daemon=True, name=f"kedge {work.__name__}")
        self._threads.append(thread)
        thread.start()

    def _open(self) -> None:
        """Encode what is not encoded, solve, and load the encoder."""
        task, workspace = self.task, self.workspace
        try:
            with self._shown():
                if task.listing is not None:
                    workspace.use_encoder(task.load)
                features = task.features
                if features is None:
                    assert task.images is not None
                    features = self._encoded(task.images, task.work.features, workspace.encoded)
                if task.work.new_features.exists():  # of a server that was killed
                    features = self._join(features, FeatureSet.load(task.work.new_features), {})
                workspace.open(features)
                self._load_encoder()
        except _Stopped:
            pass
        except Exception as error:
            self.error = error  # whoever started the server says it on standard error
            self.events.publish("failed", {"error": _one_line(error)})
            self.failed()
        finally:
            self._working.release()

    def _load_encoder(self) -> None:
        """Load the encoder ahead of its use; without it, classes cannot be added or changed."""
        try:
            self.task.load()
            self.workspace.use_encoder(self.task.load)
        except KedgeError as error:
            progress.notice(f"note: classes cannot be added or changed, since the encoder cannot be used: {error}")
            self.workspace.use_encoder(None)

    def _encode_new(self) -> None:
        skipped: dict[str, str] = {}
        try:
            with self._shown():
                images, fresh = self._fresh()
                if fresh:
                    some = replace(images, paths=tuple(fresh), labels=None, class_names=images.class_names[:1])

                    def note(batch: Encoded, head: TextHead) -> None:
                        skipped.update((fresh[i], reason) for i, reason in batch.skipped)

                    old, new = FeatureSet.load(self.task.work.features), None
                    try:
                        new = self._encoded(some, self.task.work.new_features, note, old)
                    except InputError:
                        if len(skipped) < len(fresh):  # else none of them can be read
                            raise
                    self.workspace.open(self._join(old, new, skipped))
                    progress.notice(f"{count(len(fresh) - len(skipped), 'new image')} labelled")
                self.look()
        except _Stopped:
            pass
        except Exception as error:
            if isinstance(error, KedgeError):
                progress.tell(f"error: {error}")
            else:
                traceback.print_exception(error)
            self.events.publish("failed", {"error": _one_line(error)})
        finally:
            self._working.release()

    def _encoded(
        self,
        images: ImageSet,
        out: Path,
        each: Callable[[Encoded, TextHead], None],
        more: FeatureSet | None = None,
    ) -> FeatureSet:
        """Encode images into a file, or go on with that; more: in the precision of these features."""
        encoder = self.task.load()
        if more is not None:
            encoder = same_precision(encoder, more, self._listed())
        journal = self.workspace.journal
        about = journal.about()
        if about is not None and about.weights_sha256 is None:
            journal.set_about(replace(about, weights_sha256=encoder.provenance.get("weights_sha256")))

        def watched(batch: Encoded, head: TextHead) -> None:
            if self._stop.is_set():
                raise _Stopped
            each(batch, head)

        # force: unfinished work on another list of images is begun anew
        return extract(
            images,
            encoder=encoder,
            out=out,
            templates=self.task.templates,
            workers=self.workers,
            precision=(self.task.precision or usual(len(images))) if more is None else "fp32",  # else it has it already
            keep_precision=self.task.keep_precision,
            force=True,
            each=watched,
        )

    def _listed(self) -> ImageSet:
        assert self.task.listing is not None
        return self.task.listing()

    def _fresh(self) -> tuple[ImageSet, list[str]]:
        """The images in the folder, and the paths of those that are neither encoded nor known to be unreadable."""
        images = self._listed()
        there = {*self.workspace.images.paths, *self.workspace.skipped}
        same = images.root == self.task.root  # of a table, it may have become another
        return images, [path for path in images.paths if path not in there] if same else []

    def _join(self, old: FeatureSet, new: FeatureSet | None, skipped: dict[str, str]) -> FeatureSet:
        """Join new features to the file of the old ones; then the file of the new ones goes."""
        joined(old, new, skipped, self._listed()).save(self.task.work.features)
        self.task.work.new_features.unlink(missing_ok=True)
        return FeatureSet.load(self.task.work.features)

    def _watch(self) -> None:
        """Look for new images now and then, while a tab is open."""
        while self.task.listing is not None and not self._stop.wait(LOOK_EVERY):
            if len(self.events) and not self._working.locked():
                with contextlib.suppress(KedgeError, OSError):  # the folder is not there at the moment
                    self.look()

    @contextlib.contextmanager
    def _shown(self) -> Iterator[None]:
        """Show progress and notices on standard error and to the tabs."""

        def say(text: str) -> None:
            self.events.publish("notice", {"text": printable(text)})

        with progress.on_stderr(), progress.also_shown_by(self._progress.display, say):
            yield


def _one_line(error: Exception) -> str:
    """An error for the page; what kedge did not foresee is for the terminal."""
    return str(error) if isinstance(error, KedgeError) else "kedge failed; the terminal where it runs says why."
