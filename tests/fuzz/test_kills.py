"""SIGKILL at a random moment: what exists is complete, and running again ends as an undisturbed run does."""

from __future__ import annotations

import shutil
from pathlib import Path
from signal import SIGKILL

import pytest

from jobs import BENCH, BENCH_JOBS, DEMO, EXTRACT, FEATURES, LABELS, PLAN, REPORT, SORT, check_written, written
from runner import Campaign, Fault, Random, Run

JOBS = [EXTRACT, EXTRACT, EXTRACT, BENCH, BENCH, *FEATURES, LABELS, LABELS, PLAN, SORT, SORT]
SLOW = [BENCH_JOBS, DEMO, REPORT]  # seconds each
SHARE_SLOW = 0.1
WRITERS = {  # two contents that replace each other, until the process is killed
    "stream.safetensors": """
import kedge
f = kedge.FeatureSet.load("features.safetensors")
streams = [kedge.Stream(f.head, "kedge"), kedge.Stream(f.head, "kedge")]
streams[0].step(f.image_features)
def write(i, path): streams[i % 2].save(path)
""",
    "labels.csv": """
import kedge
f = kedge.FeatureSet.load("features.safetensors")
found = [kedge.Predictions(f, kedge.adapt(f, method=name)) for name in ("zero-shot", "stata")]
def write(i, path): found[i % 2].write(path)
""",
}
REPLACING = """
for i in (0, 1): write(i, f"out/{i}{name}")
for i in range(limit): write(i, f"out/{name}")
"""


def conduct(random: Random, folder: Path, run: Run) -> None:
    """Kill a command."""
    jobs = SLOW if random.random() < SHARE_SLOW else JOBS
    job, out = jobs[random.integers(len(jobs))], folder / "out"
    undisturbed = run(job.words(), before=job.before)
    if undisturbed.code:
        raise Fault(f"the undisturbed run failed: {undisturbed.err}")
    expected = written(out)
    shutil.rmtree(out)
    out.mkdir()
    for _ in range(random.integers(1, 4)):
        run(job.words(), before=job.before, signal=int(SIGKILL), after=random.uniform(0, undisturbed.seconds))
        check_written(written(out), expected, complete=False)
        if job is SORT and (out / "sorted").is_dir():
            return  # it is done, and never sorts into a folder that is not empty
    again = run(job.words(), before=job.before)
    if again.code:
        raise Fault(f"running again failed: {again.err}")
    check_written(written(out), expected, complete=True)


def conduct_writing(random: Random, folder: Path, run: Run) -> None:
    """Kill a process that replaces one file again and again."""
    name = str(random.choice(list(WRITERS)))
    before = f"{WRITERS[name]}\nname, limit = {name!r}, 10**9\n{REPLACING}"
    run(before=before, signal=int(SIGKILL), after=random.uniform(0.05, 1))
    found = written(folder / "out")
    if name in found and found[name] not in (found["0" + name], found["1" + name]):
        raise Fault(f"{name} is neither the old nor the new content")


@pytest.mark.fuzz
def test_kills(campaign: Campaign) -> None:
    campaign("kills", conduct, trials=6)


@pytest.mark.fuzz
def test_kills_while_writing(campaign: Campaign) -> None:
    campaign("kills-writing", conduct_writing, trials=12)
