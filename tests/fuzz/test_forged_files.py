"""Forged files of every kind, through the library's loaders and through the commands that read them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from forging import KINDS
from runner import Campaign, Random, Run

FORGE = """
import numpy
from forging import forged, use
path = forged({kind!r}, numpy.random.default_rng({seed}), Path("."))
"""
USE = """
from kedge import KedgeError
try:
    use({kind!r}, path)
except KedgeError as error:
    assert "\\n" not in str(error), "a message of several lines"
"""
COMMANDS = {  # of each kind of file; {} is its path
    "features": [
        "features info {}",
        "features info {} --json",
        "adapt {} --out out/labels.csv",
        "adapt {} --method stata --json",
        "adapt {} --method mta --out out/labels.json",
        "adapt {} --method tent --out out/labels.csv",
        "adapt {} --sort-into out/sorted",
        "plan {} --scenario very-low --tasks 2 --save out/plan.safetensors",
        "plan {} --scenario stream-high --tasks 1 --json",
        "bench {} --scenario very-low --tasks 1 --out out/records",
        "features convert {} out/x.safetensors",
    ],
    "record": [
        "table {}",
        "table {} --format csv",
        "table {} --format json",
        "table {} --format latex",
        "table {} records --format md --rows method --cols scenario",
        "report {} -o out/report.html",
    ],
    "grid": ["bench --grid {} --out out/records", "bench --grid {} --dry-run", "bench --grid {} --dry-run --json"],
    "stream": ["features info {}", "adapt {}", "table {}"],
    "plan": ["features info {}", "plan {} --scenario very-low"],
    "export": [
        "adapt features.safetensors --known {} --out out/labels.csv",
        "adapt features.safetensors --known {} --json",
    ],
    "parts": ["extract photos --encoder tiny -o f.safetensors"],
    "arranged": ["adapt to-label --label-folder {} --out out/labels.csv", "adapt to-label --label-folder {} --json"],
    "embeddings": ["features import {} out/folder --text-from prototypes.safetensors"],
    "table": [
        "adapt {} --encoder tiny --classes red,green,blue --out out/labels.csv",
        "adapt {} --encoder tiny",
        "extract {} --encoder tiny -o out/x.safetensors",
        "extract {} --encoder tiny -o out/folder --images-per-shard 2",
    ],
}
COMMANDS["labels"] = COMMANDS["stream"]
COMMANDS["npz"] = COMMANDS["features"]
COMMANDS["folder"] = [
    *COMMANDS["features"],
    "features split {} out/folder --images-per-shard 3",
    "adapt {} --label-folder out/labels --out out/labels.csv",
    "adapt {} --label-folder out/labels --method stata --json",
]
SLOW = ("report", "--grid {} --out")  # seconds each


def conduct_loading(random: Random, folder: Path, run: Run) -> None:
    """Forge a file, load it and work with it."""
    kind = str(random.choice(KINDS))
    run(before=(FORGE + USE).format(kind=kind, seed=int(random.integers(2**31))))


def conduct_command(random: Random, folder: Path, run: Run) -> None:
    """Forge a file and name it in a command."""
    kind = str(random.choice(KINDS))
    forge = FORGE.format(kind=kind, seed=int(random.integers(2**31)))
    ran = run(before=forge + "print(path)")
    path = ran.out.strip()
    if kind == "grid":
        shutil.copy(folder / "features.safetensors", folder / "birds.safetensors")
    commands = COMMANDS[kind]
    command = commands[random.integers(len(commands))]
    if any(word in command for word in SLOW) and random.random() < 0.8:
        command = commands[0]
    run([path if word == "{}" else word for word in command.split()])


@pytest.mark.fuzz
def test_forged_files(campaign: Campaign) -> None:
    campaign("forged", conduct_loading, trials=200)


@pytest.mark.fuzz
def test_commands_on_forged_files(campaign: Campaign) -> None:
    campaign("forged-commands", conduct_command, trials=50)
