"""Names are foreign text: no formula reaches a spreadsheet, no escape code a terminal, no markup a table."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kedge
from command import npz, run, small
from kedge import progress
from kedge.cli import main
from kedge.features.simulate import simulate
from kedge.images.folders import folder
from kedge.words import write_csv

HOSTILE = ["=cmd|' /C calc'!A0", "+1\r2", "-x\ry", "@sum(1,2)", "a\x1b[31m\u202eb\nc"]


class Terminal(io.StringIO):
    """Text on a terminal."""

    def isatty(self) -> bool:
        return True


def on_a_terminal(*argv: object) -> tuple[str, str]:
    out, err = Terminal(), Terminal()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit):
        main([str(word) for word in argv])
    return out.getvalue(), err.getvalue()


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    return npz(tmp_path, class_names=np.array(HOSTILE), paths=np.array([f"={i}.jpg" for i in range(60)]))


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


@pytest.mark.parametrize("place", ["file", "stdout"])
def test_no_formula_leaves_in_csv(hostile: Path, tmp_path: Path, place: str) -> None:
    out = tmp_path / "labels.csv"

    def labels(*flags: str) -> list[dict[str, str]]:
        ran = run("adapt", hostile, "--quiet", *flags, *(["--out", out] if place == "file" else []))
        return read(out.read_bytes().decode() if place == "file" else ran.out)

    found, raw = labels(), labels("--raw-csv")
    assert len(found) == len(raw) == 60
    assert not any(row[name].startswith(tuple("=+-@\r\t")) for row in found for name in ("image", "label"))
    assert {row["label"] for row in raw} <= set(HOSTILE)
    assert [row["image"] for row in raw] == [f"={i}.jpg" for i in range(60)]
    assert [row["image"] for row in found] == [f"'={i}.jpg" for i in range(60)]
    assert [row["probability"] for row in found] == [row["probability"] for row in raw]


def test_every_row_is_one_record_whatever_is_in_it() -> None:
    rows: list[dict[str, Any]] = [{"a": text, "b": -1.5} for text in ("x\ry", 'x"y', "x,y", "x\ny", "\r", "", "=1")]
    file = io.StringIO(newline="")
    write_csv(file, ["a", "b"], rows, raw=True)
    assert "\r\n" not in file.getvalue()
    assert [row["a"] for row in read(file.getvalue())] == [row["a"] for row in rows]
    assert {row["b"] for row in read(file.getvalue())} == {"-1.5"}


def test_a_table_of_labels_reads_back(tmp_path: Path) -> None:
    (tmp_path / "=1.png").touch()
    (tmp_path / "labels.csv").write_text("path,label\n'=1.png,'-cat\n=1.png,-cat\n")
    assert folder(tmp_path).paths == ("=1.png", "=1.png")
    assert folder(tmp_path).class_names == ("-cat",)


@pytest.mark.parametrize("flags", [[], ["--json"], ["--raw-csv"]])
def test_no_escape_code_reaches_a_terminal(hostile: Path, flags: list[str]) -> None:
    out, err = on_a_terminal("adapt", hostile, "--method", "zero-shot", "--quiet", *flags)
    assert "\\u202e" in out
    assert not {"\x1b", "\u202e", "\r"} & set(out + err)


def test_names_in_messages_are_printable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = run("adapt", "no\x1b]0;x\x07\u202e.npz")
    assert ran.err.startswith("error: no file no\\x1b]0;x\\x07\\u202e.npz")
    facts = run("features", "info", npz(tmp_path, class_names=np.array(HOSTILE))).out
    assert "a\\x1b[31m\\u202eb\\nc" in facts
    monkeypatch.chdir(tmp_path)
    simulate(60, 3, 8).save("\x1b[31m[bold]x.safetensors")
    bench = ["bench", "\x1b[31m[bold]x.safetensors", "--scenario", "low", "--tasks", "1", "--method", "zero-shot"]
    assert "\\x1b[31m[bold]x" in run(*bench, "--dry-run").out
    assert run(*bench).code == 0
    for form in ("text", "md", "latex"):
        assert "\x1b" not in run("table", "kedge-bench", "--format", form).out
    table = json.loads(run("table", "kedge-bench", "--format", "json").out)["tables"][0]
    assert list(table["rows"][0]["values"]) == ["\\x1b[31m[bold]x"]  # the dataset is named after the file


def test_bars_and_notices_show_names_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    err = Terminal()
    with contextlib.redirect_stderr(err), progress.on_stderr():
        progress.notice("read \x1b[31m[/oops] :cat:")
        assert list(progress.track([1, 2], "[/oops]\x1b[31m")) == [1, 2]
    assert "read \\x1b[31m[/oops] :cat:" in err.getvalue()


def test_lone_surrogates_do_not_stop_the_output(tmp_path: Path) -> None:
    features = kedge.FeatureSet.from_arrays(
        small()["image_features"], small()["text_features"], paths=[os.fsdecode(b"\xff.jpg")] * 60
    )
    predictions = kedge.Predictions(features, kedge.adapt(features, method="zero-shot"))
    for name in ("labels.csv", "labels.json"):
        predictions.write(tmp_path / name)
        assert "\\udcff.jpg" in (tmp_path / name).read_text(encoding="utf-8")
    assert json.loads((tmp_path / "labels.json").read_text(encoding="utf-8"))[0]["image"] == "\udcff.jpg"


@pytest.mark.parametrize("suffix", ["csv", "json", "parquet"])
def test_file_names_that_are_not_utf8_are_written(tmp_path: Path, suffix: str) -> None:
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    features = dataclasses.replace(simulate(3, 2, 16), paths=("a\udcff.jpg", "b.jpg", "c.jpg"))
    out = tmp_path / f"labels.{suffix}"
    kedge.Predictions(features, kedge.adapt(features, method="zero-shot")).write(out)
    assert b"a\\udcff.jpg" in out.read_bytes()
