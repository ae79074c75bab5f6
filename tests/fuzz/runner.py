"""The campaign: random hostile trials of kedge, all judged by one function.

A part of the campaign is a function that conducts one trial. It gets random numbers, a folder of its own with good
files of every kind (see `conftest.py`), and `run`, which starts kedge in another process and judges how that ended:

    def conduct(random, folder, run):
        run(["features", "info", random.choice(FILES)])

    @pytest.mark.fuzz
    def test_something(campaign):
        campaign("something", conduct, trials=100)

Trial i of a part depends on the seed, the part and i, and on nothing else. So each can be repeated alone:

    FUZZ_SEED=17 FUZZ_TRIAL=something:3 python -m pytest tests/fuzz

With FUZZ_MINUTES the parts share that time, with another seed on each call, instead of a fixed number of trials.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from signal import SIGINT, SIGPIPE, SIGTERM, SIGXCPU
from typing import Any

import numpy as np
from safetensors.torch import load_file

import kedge

SEED = 17  # of the trials in CI
WORKERS = 2
CPU_SECONDS = 10.0
RSS_BYTES = 1_500_000_000
MAX_BYTES = 300_000_000  # KEDGE_MAX_BYTES of a trial: a share of a small machine's memory
REFUSED, INTERRUPTED, BROKEN_PIPE = 2, 130, 141
CODES = {0, 1, REFUSED, INTERRUPTED, BROKEN_PIPE}
SHOWN = 20  # failed trials
STREAMS = ("/dev/null", "/dev/full", "closed", "broken")  # beside files

UNWANTED = re.compile(r"Traceback|Exception ignored|Fatal Python error|Segmentation|Warning:|core dumped")
# Python's own words in a process that was starting when its parent was ended
ORPHAN = re.compile(
    r"Traceback(?:(?!Traceback).)*multiprocessing(?:(?!Traceback).)*\nEOFError: Ran out of input\n", re.DOTALL
)
ADDRESS = re.compile(r"http://127\.0\.0\.1:[0-9]+/\?token=\S+\n")
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
NAN = re.compile(r"(?<![\w'\"/])-?nan(?![\w'\"/])", re.IGNORECASE)
ERROR = re.compile(r"error: ", re.IGNORECASE)

Random = np.random.Generator


class Fault(AssertionError):
    """What a trial did wrong."""


@dataclass(frozen=True)
class Trial:
    """A command of kedge, or some code, in a process of its own."""

    command: Sequence[str] = ()
    before: str = ""  # Python code that runs first, in the same process
    folder: str = "."
    environment: Mapping[str, str | None] = field(default_factory=dict)  # None: the variable is unset
    streams: Sequence[str] = ("/dev/null", "stdout.txt", "stderr.txt")  # or "closed", "broken"
    file_bytes: int | None = None  # no file may become larger
    signal: int | None = None
    after: float = 0.0  # seconds until the signal
    fresh: bool = False  # a new interpreter, as a user's; otherwise kedge is imported already

    def shown(self) -> str:
        """The trial for people."""
        odd = {**asdict(self), "command": shlex.join(["kedge", *self.command]) if self.command else None}
        odd["streams"] = [target if target in STREAMS else "…" for target in self.streams]
        usual = {**asdict(Trial()), "folder": self.folder, "streams": ["/dev/null", "…", "…"]}
        return ", ".join(f"{name}={value!r:.300}" for name, value in odd.items() if value not in (None, usual[name]))


@dataclass(frozen=True)
class Ran:
    """How a trial ended."""

    trial: Trial
    code: int
    sent: int | None  # the signal, if it was sent before the end
    hangs: bool
    seconds: float
    cpu_seconds: float
    rss_bytes: int
    left_processes: bool
    out: str
    err: str


def judge(ran: Ran) -> None:
    """Raise Fault unless the trial ended as kedge promises, whatever was asked of it."""

    def refuse(what: str) -> None:
        raise Fault(f"{what}\n    {ran.trial.shown()}\n    exit code {ran.code}; stderr: {ran.err[-500:]!r}")

    captured = [
        each for each, target in zip((ran.out, ran.err), ran.trial.streams[1:], strict=True) if ".txt" in target
    ]
    if ran.hangs or ran.code == -SIGXCPU or ran.cpu_seconds > CPU_SECONDS:
        refuse(f"it hangs: {ran.seconds:.0f} s, {ran.cpu_seconds:.0f} s of processor time")
    if ran.rss_bytes > RSS_BYTES:
        refuse(f"it took {ran.rss_bytes / 1e9:.1f} GB of memory")
    if ran.left_processes:
        refuse("it left processes behind")
    allowed = CODES if ran.sent in (None, SIGPIPE) else {*CODES, -ran.sent}  # a shell shows -SIGINT as 130 too
    if ran.code not in allowed:
        refuse(f"exit code {ran.code}")
    if ran.code == INTERRUPTED and ran.sent != SIGINT:
        refuse("exit code 130 without Ctrl-C")
    for text in captured:
        text = ORPHAN.sub("", text) if ran.sent == SIGTERM else text
        if found := UNWANTED.search(text):
            refuse(f"it printed {found[0]!r}")
    if found := CONTROL.search(ran.err):  # names in data stay as they are, unless stdout is a terminal
        refuse(f"the control character {found[0]!r} on stderr")
    if found := NAN.search(ran.out):
        refuse(f"NaN on stdout: {ran.out[max(found.start() - 60, 0) : found.end() + 20]!r}")
    if ran.code == REFUSED:
        _judge_message(ran, refuse)
    elif ran.code == 0 and "--json" in ran.trial.command and ran.out:
        json.loads(ran.out, parse_constant=refuse)


def _judge_message(ran: Ran, refuse: Callable[[str], None]) -> None:
    """A refusal is one line on stderr that names the cause, and nothing on stdout."""
    if ran.trial.streams[2].endswith(".txt"):
        lines = [line for line in ran.err.splitlines() if ERROR.match(line)]
        if len(lines) != 1 or ran.err.splitlines()[-1] != lines[0]:
            refuse("exit code 2, and stderr does not end with one line that begins with 'error:'")
        if len(lines[0]) < len("error: ") + 10 or len(lines[0]) > 2000:
            refuse(f"a message of {len(lines[0])} characters")
    if ADDRESS.sub("", ran.out):  # a page may be open when its images turn out to be unusable
        refuse(f"exit code 2 with {ran.out[:200]!r} on stdout")


def judge_files(folder: Path) -> None:
    """Raise Fault if a file that kedge wrote is no file of its kind, or has a NaN in it."""
    for path in sorted(folder.rglob("*")):
        unfinished = any(part.startswith(".") or part.endswith(".parts") for part in path.parts)
        if path.is_file() and not unfinished and path.suffix in HAS_NAN and HAS_NAN[path.suffix](path):
            raise Fault(f"NaN in {path.name}")


def _json_has_nan(path: Path) -> bool:
    found: list[str] = []
    json.loads(path.read_text("utf-8"), parse_constant=found.append)
    return bool(found)


def _text_has_nan(path: Path) -> bool:
    return bool(NAN.search(path.read_text("utf-8")))


def _tensors_have_nan(path: Path) -> bool:
    return not all(tensor.isfinite().all() for tensor in load_file(path).values())


HAS_NAN: dict[str, Callable[[Path], bool]] = {
    ".json": _json_has_nan,
    ".csv": _text_has_nan,
    ".html": _text_has_nan,
    ".safetensors": _tensors_have_nan,
}


class Run:
    """Starts the trials of one worker, and judges them."""

    def __init__(self) -> None:
        here = Path(__file__).parent
        path = [str(Path(kedge.__file__).parents[1]), str(here.parent / "support"), str(here)]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path),
            "OMP_NUM_THREADS": "1",
            "KEDGE_MAX_BYTES": str(MAX_BYTES),
            "HF_HUB_OFFLINE": "1",
            "MPLBACKEND": "agg",
        }
        self.server = subprocess.Popen(
            [sys.executable, str(here / "server.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.folder = Path()

    def __call__(self, command: Sequence[object] = (), **knobs: Any) -> Ran:
        """Run a command, or only the code `before`, in the folder of the trial; raises Fault."""
        knobs.setdefault("folder", str(self.folder))
        with tempfile.TemporaryDirectory(prefix="kedge-fuzz-") as outside:
            names = [Path(outside, name) for name in ("stdout.txt", "stderr.txt")]
            given = knobs.pop("streams", Trial.streams)
            streams = [given[0]] + [
                str(path) if target == path.name else target for target, path in zip(given[1:], names, strict=True)
            ]
            trial = Trial(command=tuple(map(str, command)), streams=streams, **knobs)
            assert self.server.stdin
            assert self.server.stdout
            self.server.stdin.write(json.dumps(asdict(trial)) + "\n")
            self.server.stdin.flush()
            answer = json.loads(self.server.stdout.readline())
            out, err = (path.read_text("utf-8", "surrogateescape") if path.exists() else "" for path in names)
        ran = Ran(trial, **answer, out=out, err=err)
        judge(ran)
        judge_files(self.folder / "out")
        return ran

    def close(self) -> None:
        """End the server."""
        assert self.server.stdin
        self.server.stdin.close()
        self.server.wait()


Conduct = Callable[[Random, Path, Run], None]


@dataclass
class Count:
    """The trials of one part."""

    tried: int = 0
    failed: list[str] = field(default_factory=list)
    seconds: float = 0.0


class Campaign:
    """Conducts the trials of every part, and counts them."""

    def __init__(self, material: Path, place: Path, parts: int) -> None:
        self.material, self.place, self.parts = material, place, parts
        self.counts: dict[str, Count] = {}
        self.minutes = float(os.environ.get("FUZZ_MINUTES", 0))
        self.seed = int(os.environ.get("FUZZ_SEED") or (time.time_ns() % 10**9 if self.minutes else SEED))
        self.only, _, self.number = os.environ.get("FUZZ_TRIAL", "").partition(":")
        self.runs = [Run() for _ in range(WORKERS)]

    def __call__(self, part: str, conduct: Conduct, trials: int) -> None:
        """Conduct the trials of one part; an AssertionError lists those that failed."""
        if self.only not in ("", part):
            return
        count = self.counts.setdefault(part, Count())
        start, lock = time.monotonic(), threading.Lock()
        numbers = self._numbers(trials)

        def work(run: Run) -> None:
            while True:
                with lock:
                    i = next(numbers, None)
                if i is None:
                    break
                fault = self._fault(part, conduct, i, run)
                with lock:
                    count.tried += 1
                    count.failed += [fault] if fault else []

        with ThreadPoolExecutor(WORKERS) as pool:
            list(pool.map(work, self.runs))
        count.seconds = time.monotonic() - start
        if count.failed:
            shown = "\n".join(count.failed[:SHOWN])
            raise AssertionError(f"{len(count.failed)} of {count.tried} trials failed; the first:\n{shown}")

    def _numbers(self, trials: int) -> Iterator[int]:
        if self.number:
            return iter([int(self.number)])
        if not self.minutes:
            return iter(range(trials))
        deadline = time.monotonic() + 60 * self.minutes / self.parts
        return itertools.takewhile(lambda _: time.monotonic() < deadline, itertools.count())

    def _fault(self, part: str, conduct: Conduct, i: int, run: Run) -> str:
        """Conduct trial i of a part; what it did wrong and how to repeat it, or ""."""
        random = np.random.default_rng([self.seed, zlib.crc32(part.encode()), i])
        folder = self.place / f"{part}-{i}"
        shutil.copytree(self.material, folder, symlinks=True)
        (folder / "out").mkdir()
        run.folder = folder
        try:
            conduct(random, folder, run)
        except Exception as error:
            what = str(error) if isinstance(error, Fault) else traceback.format_exc()
            return f"  FUZZ_SEED={self.seed} FUZZ_TRIAL={part}:{i} python -m pytest tests/fuzz\n    {what}"
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return ""

    def close(self) -> None:
        """End the servers."""
        for run in self.runs:
            run.close()

    def table(self) -> Iterator[str]:
        """The counts of every part, for people."""
        yield f"{'part':<20}{'tried':>10}{'survived':>10}{'failed':>10}{'seconds':>10}   seed {self.seed}"
        for part, count in self.counts.items():
            failed = len(count.failed)
            yield f"{part:<20}{count.tried:>10,}{count.tried - failed:>10,}{failed:>10,}{math.ceil(count.seconds):>10,}"
