"""Starts trials. Importing kedge takes seconds, so this process does it once and forks itself for every trial.

It reads one trial per line from stdin, as JSON (see `runner.Trial`), and answers with one line about how it ended.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import resource
import select
import signal
import sys
import tempfile
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import torch

CPU_SECONDS, WALL_SECONDS = 10, 60  # more processor time is a hang; so is waiting for longer, for what never comes
DATA_BYTES = 4 << 30  # no trial may harm the machine; what kedge may take is judged by the runner
LINGER_SECONDS = 20.0  # processes that a trial started end at the latest so long after it: they import torch first
PR_SET_CHILD_SUBREAPER = 36


def serve() -> None:
    """Fork a process per trial and watch it."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)  # processes that a trial left behind become children of this one
    for line in sys.stdin:
        trial = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _run(trial)
        print(json.dumps(_watched(pid, trial["signal"], trial["after"])), flush=True)


def _watched(pid: int, number: int | None, after: float) -> dict[str, Any]:
    """Wait for the process, send it a signal on the way, and say how it ended."""
    start, ended = time.monotonic(), os.pidfd_open(pid)

    def ends_within(seconds: float) -> bool:
        return bool(select.select([ended], [], [], max(seconds, 0))[0])

    sent = None
    if number is not None and not ends_within(after):
        sent = number
        os.killpg(pid, number) if number == signal.SIGINT else os.kill(pid, number)  # Ctrl-C goes to the whole group
    hangs = not ends_within(WALL_SECONDS - (time.monotonic() - start))
    if hangs:
        os.kill(pid, signal.SIGKILL)
    _, status, usage = os.wait4(pid, 0)
    os.close(ended)
    return {
        "code": os.waitstatus_to_exitcode(status),
        "sent": sent,
        "hangs": hangs,
        "seconds": time.monotonic() - start,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "rss_bytes": usage.ru_maxrss * 1024,
        "left_processes": _left_processes(pid),
    }


def _left_processes(group: int) -> bool:
    """Do processes of the trial live on? They are ended."""
    deadline = time.monotonic() + LINGER_SECONDS
    while True:
        try:
            pid, _ = os.waitpid(-group, os.WNOHANG)
        except ChildProcessError:
            return False
        if time.monotonic() > deadline:
            os.killpg(group, signal.SIGKILL)
            return True
        if pid == 0:
            time.sleep(0.01)


def _run(trial: dict[str, Any]) -> NoReturn:
    """In the new process: prepare everything as asked for, and run the command or the code."""
    os.setpgid(0, 0)
    os.chdir(trial["folder"])
    for name, value in trial["environment"].items():
        os.environ.pop(name, None) if value is None else os.environ.update({name: value})
    for descriptor, target in enumerate(trial["streams"]):
        _redirect(descriptor, target)
    for name, limit in {"CPU": CPU_SECONDS, "DATA": DATA_BYTES, "CORE": 0, "FSIZE": trial["file_bytes"]}.items():
        if limit is not None:
            kind = getattr(resource, f"RLIMIT_{name}")
            resource.setrlimit(kind, (limit, limit + 1))  # at the first SIGXCPU, at the second SIGKILL
    torch.set_num_threads(1)  # torch's own threads do not survive a fork
    code = 1
    try:
        exec(trial["before"], {"Path": Path, "os": os})
        if trial["fresh"]:
            os.execv(sys.executable, [sys.executable, "-m", "kedge", *map(os.fsencode, trial["command"])])
        if trial["command"]:
            from kedge.cli import main

            main(trial["command"])
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1 if ended.code else 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        threading._shutdown()  # as Python does at its end; the rest of that takes a second and changes nothing
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:
                code = code or 120
        os._exit(code)


def _redirect(descriptor: int, target: str) -> None:
    """Standard input, output or error into a file; "closed", or "broken" for a pipe that nobody reads."""
    if target == "closed":
        os.close(descriptor)
        return
    if target == "broken":
        reader, file = os.pipe()
        os.close(reader)
    else:
        file = os.open(target, os.O_RDONLY if descriptor == 0 else os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(file, descriptor)
    os.close(file)


def prepare() -> None:
    """Import everything that trials need, and make what they share."""
    for module in ("kedge.cli", "kedge.demo", "transformers", "pyarrow.parquet", "matplotlib.pyplot"):
        import_module(module)
    import numpy as np

    import forging
    import kedge
    import sweeping
    from kedge.encoders.names import load_encoder

    torch.set_num_threads(1)
    kedge.warm_up()
    load_encoder("tiny")  # for its imports
    with tempfile.TemporaryDirectory() as place:
        for kind in forging.KINDS:
            forging.forged(kind, np.random.default_rng(0), Path(place))  # makes the good files that it forges
    sweeping.hostile_inputs()
    gc.collect()
    gc.freeze()  # the collector would copy every page that is shared with the trials


if __name__ == "__main__":
    prepare()
    serve()
