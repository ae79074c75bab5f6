"""A disk that is full at a random size: one line, exit code 2. With space again, the job ends as an undisturbed one."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from jobs import ADAPT, BENCH, DEMO, EXTRACT, FEATURES, LABELS, PLAN, REPORT, SORT, Job, check_written, written
from runner import Campaign, Fault, Random, Run

JOBS = [EXTRACT, EXTRACT, *FEATURES, LABELS, PLAN, SORT, BENCH, *ADAPT]
SLOW = [DEMO, REPORT]  # seconds each
SHARE_SLOW = 0.1
PAGE = 4096


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """A file system of its own at this folder, if it can be mounted: is it?"""
    mounted = os.geteuid() == 0 and _mount("-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder))
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _mount(*words: str) -> bool:
    return subprocess.run(["mount", *words], capture_output=True).returncode == 0


def conduct(random: Random, folder: Path, run: Run) -> None:
    """Run a job with too little space, then with enough."""
    jobs = SLOW if random.random() < SHARE_SLOW else JOBS
    job, out = jobs[random.integers(len(jobs))], folder / "out"
    with small_disk(out) as mounted:
        expected = _undisturbed(job, out, run)
        needed = sum(map(len, expected.values()))
        for _ in range(random.integers(1, 3)):
            size = int(random.uniform(0.02, 1.3) * needed)
            if mounted and random.random() < 0.7:
                _mount("-o", f"remount,size={max(PAGE, size)}", str(out))
                ran = run(job.words(), before=job.before)
                _mount("-o", "remount,size=64m", str(out))
            else:
                largest = max(map(len, expected.values()))
                ran = run(job.words(), before=job.before, file_bytes=int(random.uniform(0.01, 1.1) * largest) + PAGE)
            check_written(written(out), expected, complete=ran.code == 0)
            if job is SORT and ran.code == 0:
                return  # it never sorts into a folder that is not empty
        if job is SORT:
            shutil.rmtree(out / "sorted", ignore_errors=True)  # complete, and only labels.csv found no space
        again = run(job.words(), before=job.before)
        if again.code:
            raise Fault(f"with space again it failed: {again.err}")
        check_written(written(out), expected, complete=True)


def _undisturbed(job: Job, out: Path, run: Run) -> dict[str, bytes]:
    """What the job writes; it is deleted again."""
    ran = run(job.words(), before=job.before)
    if ran.code:
        raise Fault(f"the undisturbed run failed: {ran.err}")
    found = written(out)
    for path in out.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return found


@pytest.mark.fuzz
def test_full_disk(campaign: Campaign) -> None:
    campaign("full-disk", conduct, trials=14)
