"""Standard streams that are closed or full, Ctrl-C at any moment, and odd environments: one line, no traceback."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from PIL import Image

import kedge
from command import npz, run

KEDGE = f'"{sys.executable}" -m kedge'
NO_ROOM = "error: cannot write to stdout: No space left on device. Write to a file, or make room.\n"
CLOSED = "error: cannot write to stdout: Bad file descriptor. Write to a file, or make room.\n"

pytestmark = pytest.mark.skipif(os.name == "nt", reason="uses a POSIX shell and signals")


def shell(command: str, cwd: Path) -> tuple[int, str, str]:
    ran = subprocess.run(["bash", "-c", command], cwd=cwd, capture_output=True, text=True, check=False, timeout=60)
    assert "Traceback" not in ran.stderr
    assert "Exception ignored" not in ran.stderr
    return ran.returncode, ran.stdout, ran.stderr


@pytest.mark.parametrize(
    ("redirected", "code", "err"),
    [
        (">/dev/full", 2, NO_ROOM),
        (">&-", 2, CLOSED),
        ("--json >/dev/full", 2, NO_ROOM),
        ("--json >&-", 2, CLOSED),
        ("2>/dev/full", 0, ""),  # messages that nobody can read are no failure
        ("2>&-", 0, ""),
        ("<&- >&- 2>&-", 2, ""),
        (">/dev/full 2>/dev/full", 2, ""),
        ("| true; exit ${PIPESTATUS[0]}", 141, ""),
    ],
)
def test_streams_that_cannot_be_written(tmp_path: Path, redirected: str, code: int, err: str) -> None:
    ran = shell(f"{KEDGE} ls scenarios {redirected}", tmp_path)
    assert (ran[0], ran[2]) == (code, err)


def test_rows_that_cannot_be_written(tmp_path: Path) -> None:
    file = npz(tmp_path)
    assert shell(f"{KEDGE} adapt {file} --quiet >/dev/full", tmp_path) == (2, "", NO_ROOM)


@pytest.mark.parametrize("command", ["--help", "--version", "adapt --help"])
@pytest.mark.parametrize("place", ["/dev/full", "&-"])
def test_help_that_cannot_be_written(tmp_path: Path, command: str, place: str) -> None:
    code, _, err = shell(f"{KEDGE} {command} >{place}", tmp_path)
    assert code == 2
    assert err.startswith("error: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("wrong", ["adapt --nonsense", "table none"])
@pytest.mark.parametrize("place", ["/dev/full", "&-"])
def test_errors_that_cannot_be_told(tmp_path: Path, wrong: str, place: str) -> None:
    assert shell(f"{KEDGE} {wrong} 2>{place}", tmp_path) == (2, "", "")


def test_a_closed_stdout_gives_its_number_to_no_other_file(tmp_path: Path) -> None:
    """Otherwise whatever a library prints would be written into that file."""
    program = "import kedge.cli as c, os; c._open_streams(); print(open(os.devnull).fileno(), file=open('number', 'w'))"
    shell(f'"{sys.executable}" -c "{program}" <&- >&- 2>&-', tmp_path)
    assert int((tmp_path / "number").read_text()) > 2


def test_a_deleted_folder(tmp_path: Path) -> None:
    ran = shell(f"mkdir gone; cd gone; rmdir ../gone; {KEDGE} ls methods", tmp_path)
    assert ran[::2] == (
        2,
        "error: the current folder cannot be used: No such file or directory. Change to another folder.\n",
    )


@pytest.mark.parametrize(
    "environment",
    ["COLUMNS=1", "TERM=dumb", "NO_COLOR=1", "LC_ALL=C PYTHONIOENCODING=ascii", "env -u HOME", "TMPDIR=/none"],
)
def test_odd_environments(tmp_path: Path, environment: str) -> None:
    code, out, err = shell(f"{environment} {KEDGE} ls scenarios", tmp_path)
    assert (code, err) == (0, "")
    assert "very-low" in out


def test_an_error_of_the_system_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **options: object) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(kedge.FeatureSet, "load", fail)
    ran = run("adapt", npz(tmp_path))
    assert (ran.code, ran.err) == (2, "error: reading or writing failed: Resource temporarily unavailable\n")


ANNOUNCED = """
import shutil
import signal
def announced(*handler, before=signal.signal):
    before(*handler)
    print("go", flush=True)
signal.signal = announced
from kedge.cli import main
main()
"""


def interrupted(delay: float, folder: Path) -> tuple[int, str, float]:
    """Send SIGINT this many seconds after it is handled; returns the exit code, stderr and seconds until the end."""
    command = [sys.executable, "-c", ANNOUNCED, "bench", "x.npz", "--scenario", "stream-low", "--tasks", "1000000"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"go\n"
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        start = time.monotonic()
        code = process.wait(60)
        return code, process.stderr.read().decode(), time.monotonic() - start


def test_nothing_is_imported_before_ctrl_c_is_handled() -> None:
    program = "import sys; before = set(sys.modules); import kedge.cli; print(*set(sys.modules) - before)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"typing", "re", "typer", "contextlib", "pathlib"} & set(ran.stdout.split())


def test_ctrl_c_at_any_moment(tmp_path: Path) -> None:
    npz(tmp_path).rename(tmp_path / "x.npz")
    delays = [0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9, 1.2, 2.0]
    with ThreadPoolExecutor(2) as threads:
        for delay, (code, err, seconds) in zip(
            delays, threads.map(lambda delay: interrupted(delay, tmp_path), delays), strict=True
        ):
            assert (delay, code) == (delay, 130)
            assert err.splitlines()[-1].startswith("stopped"), delay
            assert "Traceback" not in err
            assert seconds < 20


def test_ctrl_c_while_threads_decode(tmp_path: Path) -> None:
    Image.new("RGB", (3000, 3000)).save(tmp_path / "0.png")
    for i in range(1, 100):
        shutil.copyfile(tmp_path / "0.png", tmp_path / f"{i}.png")
    command = ["extract", ".", "--classes", "a, b", "--encoder", "tiny", "--workers", "2"]
    with subprocess.Popen(
        [sys.executable, "-m", "kedge", *command],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        begun, deadline = tmp_path / "features.safetensors.parts" / "job.json", time.monotonic() + 60
        while not begun.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        assert process.stderr is not None
        err = process.stderr.read().decode()
        assert process.wait(60) == 130
    assert "Traceback" not in err
    assert "stopped. Finished work is in features.safetensors.parts" in err
    assert not (tmp_path / "features.safetensors").exists()
