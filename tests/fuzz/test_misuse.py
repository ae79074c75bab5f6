"""Commands with nonsense, in odd environments, with signals at random moments."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer

from kedge.cli._app import COMMANDS, app
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
TABLES = {  # of labels that a person knows, and of classes
    "known.csv": "image,label\nred/0.png,red\ngreen/1.png,none\n",
    "contradiction.csv": "image,label\nred/0.png,red\nred/0.png,blue\n",
    "stranger.csv": "image,label\nred/0.png,purple\n",
    "elsewhere.csv": "image,label\n0.png,red\n/x/y.png,blue\n",
    "true_label.csv": "image,label,true_label\nred/0.png,blue,red\nred/1.png,red,\n",
    "export.json": '[{"id": 1, "data": {"image": "/data/local-files/?d=photos/red/0.png"}, "annotations": [{"result": '
    '[{"from_name": "label", "type": "choices", "value": {"choices": ["red"]}}]}]}]',
    "odd.json": '[{"id": 1, "image": "red/0.png", "label": {"choices": ["red", "blue"]}}, {"data": null}]',
    "ragged.csv": 'image,label\nred/0.png\n,\n"red\n',
    "found.csv": "class,count,evidence,example,present\nred,3,0.5,red/0.png,yes\nblue,1,0.1,blue/0.png,no\n",
}
FILES = [
    *(
        "features.safetensors",
        "features.npz",
        "stream.safetensors",
        "plan.safetensors",
        "grid.toml",
        "records",
        "photos",
        "folder",
        "embeddings",
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
        "rubbish.parquet",
        "empty.csv",
    ),
    *TABLES,
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
        "out/x.labelstudio.json",
        "out/x.fiftyone.json",
        "out/metadata.csv",
        "out/metadata.jsonl",
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
    "device": ["cpu", "auto", "cuda", "mps", "meta", "", "x", "cpu:7"],
    "cluster": ["127.0.0.1:1", "ray://127.0.0.1:1", "127.0.0.1:99999999", "x:1", "http://127.0.0.1:1"],
    "encoder": ["tiny", "tiny", "photos", "hf:x/y", "openclip:x/y", "", "x"],
    "classes": ["red,green,blue", "classes.txt", "red", "red,red", "a" * 500, "\udcff", "", "=1,+2,@3"],
}
KIND_OF = {  # parameters by name; of others, the metavar decides
    **{"--method": "method", "--set": "setting", "--scenario": "scenario", "--classes": "classes"},
    **{"--encoder": "encoder", "--device": "device", "--logit-scale": "number", "--format": "format"},
    **{"--present": "classes", "--absent": "classes", "--known": "file", "--reject": "number"},
    **dict.fromkeys(("--rows", "--cols", "--value"), "field"),
    **dict.fromkeys(
        ("--out", "--sort-into", "--keep-features", "--save", "--draw", "--classes-out", "target"), "output"
    ),
    **dict.fromkeys(("source", "images", "features", "results", "--text-from"), "file"),
    "--label-folder": "output",
    "--cluster": "cluster",
    "name": "method",
}
KIND_OF_METAVAR = {"N": "number", "FILE": "file", "DIR": "file"}
GOOD = [  # commands that work and take a moment, for signals and odd environments
    "adapt photos --encoder tiny --out out/labels.csv",
    "adapt features.safetensors",
    "adapt features.safetensors --json",
    "extract photos --encoder tiny -o out/x.safetensors",
    "features info features.safetensors",
    "features convert features.npz out/x.safetensors",
    "features split features.safetensors out/folder --images-per-shard 4",
    "features import embeddings out/folder --text-from features.safetensors",
    "adapt folder --label-folder out/labels --out out/labels.csv",
    "adapt folder --label-folder out/labels --json",
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


def commands(group: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command of kedge with its words; the demo takes too long."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*words, name))
        elif name != "demo":
            yield (*words, name), command


@cache
def all_commands() -> list[tuple[tuple[str, ...], Any]]:
    for module in COMMANDS:
        import_module(f"kedge.cli.{module}")
    return list(commands(typer.main.get_command(app)))


def nonsense(random: Random) -> list[str]:
    """A command with random options, some of which fit."""
    words, command = all_commands()[random.integers(len(all_commands()))]
    said = list(words)
    for parameter in command.params:
        name = parameter.opts[-1]
        kind = KIND_OF.get(name) or KIND_OF_METAVAR.get(parameter.metavar, "text")
        if parameter.param_type_name == "argument":
            said += [_value(kind, random) for _ in range(random.choice([0, 1, 1, 1, 1, 1, 2]))]
        elif random.random() < (0.6 if parameter.required else 0.3):
            said += [name] if parameter.is_flag else [name, _value(kind, random)]
    return said


def _value(kind: str, random: Random) -> str:
    anything = random.random() < 0.15
    return pick(KINDS[pick(list(KINDS), random) if anything else kind], random)


def odd_files(folder: Path) -> None:
    """Files that are none, damaged or forbidden, beside the good ones."""
    (folder / "empty").touch()
    (folder / "empty.csv").touch()
    for name, text in TABLES.items():
        (folder / name).write_text(text)
    for suffix in ("safetensors", "npz", "csv", "json", "parquet"):
        (folder / f"rubbish.{suffix}").write_bytes(b"\xff\0rubbish" * 100)
    os.mkfifo(folder / "fifo")
    (folder / "loop").symlink_to("loop")
    (folder / "unreadable").mkdir(mode=0)


def conduct_nonsense(random: Random, folder: Path, run: Run) -> None:
    """A command that makes little sense."""
    odd_files(folder)
    words = nonsense(random)
    ends = {"signal": int(signal.SIGINT), "after": 5.0} if words[0] == "serve" else {}  # a server ends at Ctrl-C only
    run(words, **ends)


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
    if (
        ran.sent == signal.SIGINT and ran.code == INTERRUPTED and len(ran.err.splitlines()) > 5
    ):  # two notes of the tiny model
        raise Fault(f"Ctrl-C gave {ran.err!r}")
    if ran.sent == signal.SIGTERM and ran.code in (INTERRUPTED, BROKEN_PIPE):
        raise Fault(f"SIGTERM gave exit code {ran.code}")


@pytest.mark.fuzz
def test_nonsense(campaign: Campaign) -> None:
    campaign("nonsense", conduct_nonsense, trials=80)


@pytest.mark.fuzz
def test_environments(campaign: Campaign) -> None:
    campaign("environments", conduct_environment, trials=5)


@pytest.mark.fuzz
def test_signals(campaign: Campaign) -> None:
    campaign("signals", conduct_signal, trials=8)
