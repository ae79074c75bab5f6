"""Commands with nonsense, in odd environments, with signals at random moments."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from runner import BROKEN_PIPE, INTERRUPTED, Campaign, Fault, Random, Run

NUMBERS = ["0", "-1", "1", "2", "999999999999", "9" * 400, "1e308", "nan", "inf", "-inf", "0x10", "1_0", "٣", "1.5", ""]
TEXTS = [
    *(
        "",
        " ",
        "x",
        "-",
        "--",
        "=",
        "a=b=c",
        ":",
        "::",
        ",",
        "a,,b",
        "*",
        "[",
        "{}",
        "~",
        "$HOME",
        "%s%n",
        "/",
        ".",
        "..",
    ),
    *("\x1b[31m", "‮", "𝔘", "\n", "a\nb", "\r", "'; id", "y" * 1_000, os.fsdecode(b"\xff"), "../../../x", "s3://a/b"),
    *("http://127.0.0.1:1/x", "hf:", "hf:x/y", "hf:../x", "openclip:", "openclip:x/y", "tiny", "None", "true"),
]
FILES = [
    *(
        "features.safetensors",
        "features.npz",
        "stream.safetensors",
        "plan.safetensors",
        "grid.toml",
        "records",
        "photos",
    ),
    *(
        "classes.txt",
        "photos/red/0.png",
        "missing",
        "missing/x",
        "empty",
        "unreadable",
        "/dev/null",
        "/dev/zero",
        "/",
        ".",
    ),
    *(
        "/proc/self/mem",
        "fifo",
        "loop",
        "rubbish.safetensors",
        "rubbish.npz",
        "rubbish.csv",
        "rubbish.json",
        "empty.csv",
    ),
]
OUTPUTS = [
    *("out/x.safetensors", "out/x.csv", "out/x.json", "out/x.parquet", "out/x.html", "out/x.png", "out/new", "out"),
    *(
        "features.safetensors/x",
        "/dev/full",
        "/dev/null",
        "/proc/x.csv",
        "missing/x.csv",
        "loop",
        "-",
        "",
        "out/a\nb.csv",
    ),
]
METHODS = [
    "stata",
    "kedge",
    "zero-shot",
    "stata:alpha=2",
    "tempered:stata",
    "all",
    "mta",
    "tent",
    "tda:",
    "Stata",
    "stat",
]
SCENARIOS = ["very-low", "all", "stream-high", "batches:size=4,k_min=2,k_max=2", "whole", "stream:gamma=0", "separate"]
SETTINGS = [
    "alpha=2",
    "alpha=nan",
    "alpha=",
    "=1",
    "iterations=-1",
    "iterations=99999999999",
    "x=y",
    "beta=soft",
    "alpha",
]
FIELDS = ["label", "dataset", "scenario", "accuracy", "gain", "seconds", "series", "error", "settings", "__class__"]
KINDS = {  # what a value of an option can be
    "number": NUMBERS,
    "text": TEXTS,
    "file": FILES,
    "output": OUTPUTS,
    "method": METHODS,
    "scenario": SCENARIOS,
    "setting": SETTINGS,
    "field": FIELDS,
    "format": ["text", "md", "csv", "json", "latex", "x"],
    "encoder": ["tiny", "tiny", "photos", "hf:x/y", "openclip:x/y", "", "x"],
    "classes": ["red,green,blue", "classes.txt", "red", "red,red", "a" * 500, "\udcff", "", "=1,+2,@3"],
}
COMMANDS = {  # its arguments, and its options with the kind of their values; None: a flag
    "adapt": (
        "file",
        {
            "--method": "method",
            "--set": "setting",
            "--classes": "classes",
            "--encoder": "encoder",
            "--templates": "file",
        }
        | {"--views": "number", "--keep-features": "output", "--out": "output", "--sort-into": "output"}
        | {"--normalize": None, "--json": None, "--quiet": None},
    ),
    "extract": (
        "file",
        {"-o": "output", "--classes": "classes", "--encoder": "encoder", "--templates": "file", "--views": "number"}
        | {"--batch-size": "number", "--workers": "number", "--seed": "number", "--dataset": "text", "--root": "file"}
        | {"--device": "text", "--split": "text", "--strict": None, "--json": None, "--quiet": None},
    ),
    "bench": (
        "file",
        {"--method": "method", "--scenario": "scenario", "--seed": "number", "--tasks": "number", "--preset": "text"}
        | {"--grid": "file", "--out": "output", "--dry-run": None, "--json": None, "--quiet": None},
    ),
    "table": ("file", {"--rows": "field", "--cols": "field", "--value": "field", "--format": "format"}),
    "report": ("file", {"-o": "output"}),
    "plan": (
        "file",
        {"--scenario": "scenario", "--seed": "number", "--tasks": "number", "--save": "output", "--draw": "output"}
        | {"--json": None},
    ),
    "features info": ("file", {"--normalize": None, "--json": None}),
    "features convert": ("file", {"--normalize": None, "--logit-scale": "number"}),
    "ls methods": ("method", {"--json": None}),
    "ls scenarios": ("text", {"--json": None}),
    "": ("text", {"--version": None, "--help": None}),
}
GOOD = [  # commands that work and take a moment, for signals and odd environments
    "adapt photos --encoder tiny --out out/labels.csv",
    "adapt features.safetensors",
    "adapt features.safetensors --json",
    "extract photos --encoder tiny -o out/x.safetensors",
    "features info features.safetensors",
    "features convert features.npz out/x.safetensors",
    "bench --grid grid.toml --out out/records",
    "bench --grid grid.toml --out out/records --jobs 2",
    "table records",
    "table records --format csv",
    "plan features.safetensors --scenario very-low --json",
    "ls methods",
    "ls scenarios --json",
    "--version",
    "--help",
    "adapt missing.safetensors",
    "adapt photos --encoder x",
]
ENVIRONMENTS: list[dict[str, str | None]] = [
    {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    {"HOME": None},
    {"HOME": "/nonexistent", "XDG_CACHE_HOME": "/nonexistent"},
    {"TMPDIR": "/nonexistent"},
    {"PATH": ""},
    {"TERM": "dumb", "COLUMNS": "1"},
    {"COLUMNS": "-5", "LINES": "x"},
    {"PYTHONIOENCODING": "ascii"},
    {"KEDGE_MAX_BYTES": None},
    *({"KEDGE_MAX_BYTES": value} for value in ("", "x", "-1", "0", "1", "1e9", "٣", "9" * 400, "1000")),
]
STREAMS = ["stdout.txt", "closed", "/dev/full", "broken"]


def pick(options: list[str], random: Random) -> str:
    return options[random.integers(len(options))]


def nonsense(random: Random) -> list[str]:
    """A command with random options, some of which fit."""
    name = pick(list(COMMANDS), random)
    argument, options = COMMANDS[name]
    words = name.split()
    words += [_value(argument, random) for _ in range(random.choice([0, 1, 1, 1, 1, 2, 3]))]
    if name == "features convert":
        words.append(_value("output", random))
    chosen = random.permutation(list(options))[: random.integers(len(options) + 1)]
    for option in map(str, chosen):
        kind = options[option]
        words += [option] if kind is None else [option, _value(kind, random)]
    return words


def _value(kind: str, random: Random) -> str:
    anything = random.random() < 0.15
    return pick(KINDS[pick(list(KINDS), random) if anything else kind], random)


def odd_files(folder: Path) -> None:
    """Files that are none, damaged or forbidden, beside the good ones."""
    (folder / "empty").touch()
    (folder / "empty.csv").touch()
    for suffix in ("safetensors", "npz", "csv", "json"):
        (folder / f"rubbish.{suffix}").write_bytes(b"\xff\0rubbish" * 100)
    os.mkfifo(folder / "fifo")
    (folder / "loop").symlink_to("loop")
    (folder / "unreadable").mkdir(mode=0)


def conduct_nonsense(random: Random, folder: Path, run: Run) -> None:
    """A command that makes little sense."""
    odd_files(folder)
    run(nonsense(random))


def conduct_environment(random: Random, folder: Path, run: Run) -> None:
    """A command that makes sense, in an odd environment, as a process of its own."""
    command = pick(GOOD, random).split()
    streams = ["/dev/null", "stdout.txt", "stderr.txt"]
    if random.random() < 0.6:
        odd = pick(STREAMS, random)
        which = random.integers(3)
        streams[which] = odd if odd != "stdout.txt" else streams[which]
        if which == 0 and odd in ("broken", "/dev/full"):
            streams[0] = "closed"
    before = ""
    if random.random() < 0.1:
        before = "os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')"
    environment = ENVIRONMENTS[random.integers(len(ENVIRONMENTS))] if random.random() < 0.6 else {}
    run(command, fresh=True, streams=streams, before=before, environment=environment)


def conduct_signal(random: Random, folder: Path, run: Run) -> None:
    """A signal at a random moment, from the first line on."""
    number = int(random.choice([signal.SIGINT, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE]))
    fresh = random.random() < 0.5
    after = random.uniform(0.03, 5 if fresh else 1)
    ran = run(pick(GOOD, random).split(), fresh=fresh, signal=number, after=after)
    if ran.sent == signal.SIGINT and ran.code == INTERRUPTED and len(ran.err.splitlines()) > 3:
        raise Fault(f"Ctrl-C gave {ran.err!r}")
    if ran.sent == signal.SIGTERM and ran.code in (INTERRUPTED, BROKEN_PIPE):
        raise Fault(f"SIGTERM gave exit code {ran.code}")


@pytest.mark.fuzz
def test_nonsense(campaign: Campaign) -> None:
    campaign("nonsense", conduct_nonsense, trials=120)


@pytest.mark.fuzz
def test_environments(campaign: Campaign) -> None:
    campaign("environments", conduct_environment, trials=6)


@pytest.mark.fuzz
def test_signals(campaign: Campaign) -> None:
    campaign("signals", conduct_signal, trials=8)
