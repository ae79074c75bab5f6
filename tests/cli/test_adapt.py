"""The command line on small feature files: what it writes is what `kedge.adapt` returns."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import kedge
from command import NAMES, npz, run, small
from kedge.cli import main
from kedge.labelling import predictions
from kedge.labelling.exports import tables

COLUMNS = [
    "image", "label", "probability", "runner_up", "margin", "none", "review_rank",
    "zero_shot_label", "zero_shot_probability", "changed", "true_label",
]  # fmt: skip


def read_csv(text: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = list(csv.DictReader(io.StringIO(text)))
    for row in rows:
        for name in ("probability", "margin", "none", "zero_shot_probability"):
            row[name] = float(row[name])
        row["review_rank"] = int(row["review_rank"])
        row["true_label"] = row["true_label"] or None
        row["changed"] = {"true": True, "false": False}[row["changed"]]
        row["image"] = int(row["image"]) if row["image"].isdigit() else row["image"]
    return rows


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_every_format_says_what_adapt_returns(tmp_path: Path, dtype: type) -> None:
    file = npz(tmp_path, dtype=dtype)
    result = kedge.adapt(kedge.FeatureSet.load(file), method="kedge")
    probs, zero_shot = result.probs.numpy(), result.zero_shot.numpy()
    labels, before = probs.argmax(axis=1), zero_shot.argmax(axis=1)
    assert (labels != before).any()  # else the test would not see the columns mixed up
    assert (labels == before).any()

    parsed = {}
    parsed["csv on stdout"] = read_csv(run("adapt", file).out)
    assert run("adapt", file, "--out", tmp_path / "rows.csv").out == ""
    parsed["csv"] = read_csv((tmp_path / "rows.csv").read_text(encoding="utf-8"))
    assert run("adapt", file, "--out", tmp_path / "rows.JSON").code == 0
    parsed["json"] = json.loads((tmp_path / "rows.JSON").read_text(encoding="utf-8"))
    parsed["json on stdout"] = json.loads(run("adapt", file, "--json").out)["rows"]
    parquet = pytest.importorskip("pyarrow.parquet", reason="parquet output needs pyarrow")
    assert run("adapt", file, "--out", tmp_path / "rows.parquet").code == 0
    parsed["parquet"] = parquet.read_table(tmp_path / "rows.parquet").to_pylist()

    for kind, rows in parsed.items():
        assert list(rows[0]) == COLUMNS, kind
        assert [row["image"] for row in rows] == list(range(len(labels))), kind
        assert [row["label"] for row in rows] == [NAMES[j] for j in labels], kind
        assert [row["zero_shot_label"] for row in rows] == [NAMES[j] for j in before], kind
        assert [row["changed"] for row in rows] == (labels != before).tolist(), kind
        assert [row["runner_up"] for row in rows] == [NAMES[j] for j in result.runner_up], kind
        assert [row["true_label"] for row in rows] == [None] * len(labels), kind
        order = sorted(range(len(labels)), key=lambda i: rows[i]["review_rank"])
        assert order == result.review.tolist(), kind
        for name, expected in (
            ("probability", probs.max(axis=1)),
            ("margin", result.margin.numpy()),
            ("none", result.none.numpy()),
            ("zero_shot_probability", zero_shot.max(axis=1)),
        ):
            written = np.array([row[name] for row in rows]).astype(expected.dtype)
            assert (written == expected).all(), (kind, name)  # to the last bit
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [
        "features.npz", "rows.JSON", "rows.csv", "rows.parquet",
    ]  # fmt: skip


def test_probabilities_have_no_more_digits_than_they_need(tmp_path: Path) -> None:
    rows = csv.DictReader(io.StringIO(run("adapt", npz(tmp_path)).out))
    assert max(len(row["probability"]) for row in rows) <= len("0.123456789")  # nine digits name any float32


def test_images_are_named_by_path_where_known(tmp_path: Path) -> None:
    paths = [f"birds, big/{i}.jpg" for i in range(60)]
    rows = read_csv(run("adapt", npz(tmp_path, paths=np.array(paths))).out)
    assert [row["image"] for row in rows] == paths


def test_changed_compares_classes_not_names(tmp_path: Path) -> None:
    file = npz(tmp_path, class_names=np.array(["crane"] * 5))
    report = json.loads(run("adapt", file, "--json").out)
    assert report["changed"] > 0
    assert sum(row["changed"] for row in report["rows"]) == report["changed"]


def test_summary_numbers(tmp_path: Path) -> None:
    file = npz(tmp_path)
    arrays = small()
    result = kedge.adapt(arrays["image_features"], arrays["text_features"], "kedge", logit_scale=10.0)
    before, after = result.zero_shot.argmax(axis=1), result.labels
    share = result.probs.mean(axis=0)
    report = json.loads(run("adapt", file, "--json").out)

    assert (report["images"], report["classes"], report["method"]) == (60, 5, "kedge")
    assert report["changed"] == (before != after).sum()
    assert report["zero_shot_accuracy"] == pytest.approx((before == arrays["labels"]).mean())
    assert report["accuracy"] == pytest.approx((after == arrays["labels"]).mean())
    assert report["accuracy"] > report["zero_shot_accuracy"]
    assert report["effective_classes"] == pytest.approx(np.exp(-(share * np.log(share)).sum()), rel=1e-5)
    assert report["sha256"] == kedge.FeatureSet.load(file).hash
    assert 0 < report["seconds"] < 60

    told = run("adapt", file).err
    assert "60 images, 5 classes, method kedge" in told
    assert f"{report['changed']} labels changed ({100 * report['changed'] / 60:.1f} %)" in told
    before_after = f"{100 * report['zero_shot_accuracy']:.1f} % zero-shot, {100 * report['accuracy']:.1f} % adapted"
    assert f"accuracy: {before_after}" in told


def test_one_image_and_one_class_are_not_plural(tmp_path: Path) -> None:
    one = tmp_path / "one.npz"
    np.savez(one, image_features=np.eye(1, 16), text_features=np.eye(1, 16))
    assert run("adapt", one).err.startswith("1 image, 1 class, method kedge: 0 labels changed (0.0 %), ")
    assert run("features", "convert", one, tmp_path / "one.safetensors").err.startswith("1 image, 1 class → ")


def test_what_was_approximated_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = npz(tmp_path)
    assert "approximate" not in run("adapt", file, "--method", "stata").err
    monkeypatch.setattr("kedge.methods.stata.DENSE_ENTRIES", 10)
    ran = run("adapt", file, "--method", "stata", "--set", "search=approximate", "--json")
    report = json.loads(ran.out)
    told = run("adapt", file, "--method", "stata", "--set", "search=approximate").err
    assert f"approximate neighbour search, recall {100 * report['recall']:.1f} %" in told
    assert f"5 candidate classes per image, {100 * report['outside']:.1f} % of the probability outside" in told


def test_without_labels_there_is_no_accuracy(tmp_path: Path) -> None:
    file = npz(tmp_path, labels=None)
    ran = run("adapt", file, "--json")
    assert json.loads(ran.out)["accuracy"] is None
    assert "accuracy" not in ran.err


def test_quiet_json_and_out_go_together(tmp_path: Path) -> None:
    ran = run("adapt", npz(tmp_path), "--quiet", "--json", "--out", tmp_path / "rows.csv")
    assert ran.err == ""
    assert "rows" not in json.loads(ran.out)  # they are in the file
    assert len(read_csv((tmp_path / "rows.csv").read_text(encoding="utf-8"))) == 60


def test_settings_reach_the_method(tmp_path: Path) -> None:
    file = npz(tmp_path)
    features = kedge.FeatureSet.load(file)
    settings = ("--set", "alpha=inf", "--set", "beta=soft", "--set", "unit-means=no")
    ran = run("adapt", file, "--json", "--method", "stata", *settings)
    report = json.loads(ran.out)
    assert report["settings"]["alpha"] == "inf"  # JSON has no infinity
    assert report["settings"]["beta"] == "soft"
    assert report["settings"]["unit_means"] is False
    expected = (
        kedge.adapt(features, method="stata", alpha=float("inf"), beta="soft", unit_means=False)
        .probs.numpy()
        .max(axis=1)
    )
    assert np.array([row["probability"] for row in report["rows"]], np.float32).tolist() == expected.tolist()
    assert expected.tolist() != kedge.adapt(features, method="stata").probs.numpy().max(axis=1).tolist()


def test_zero_shot_changes_nothing(tmp_path: Path) -> None:
    report = json.loads(run("adapt", npz(tmp_path), "--method", "zero-shot", "--json").out)
    assert report["changed"] == 0
    assert report["accuracy"] == report["zero_shot_accuracy"]


def test_a_solve_that_has_not_settled_says_so(tmp_path: Path) -> None:
    file = npz(tmp_path)
    told = run("adapt", file, "--method", "stata", "--set", "iterations=1").err
    assert re.search(r"after 1 iteration probabilities still moved by 0\.\d+\n", told)
    assert "converge" not in run("adapt", file, "--method", "stata", "--set", "iterations=200").err


def test_normalize_makes_rows_unit(tmp_path: Path) -> None:
    plain = run("adapt", npz(tmp_path, dtype=np.float64)).out
    longer = npz(tmp_path, dtype=np.float64, image_features=2 * small(dtype=np.float64)["image_features"])
    assert run("adapt", longer).code == 2
    scaled = run("adapt", longer, "--normalize")
    assert scaled.code == 0
    expected, found = read_csv(plain), read_csv(scaled.out)
    assert [row["label"] for row in found] == [row["label"] for row in expected]
    np.testing.assert_allclose([r["probability"] for r in found], [r["probability"] for r in expected], rtol=1e-9)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, out = npz(tmp_path), tmp_path / "rows.csv"
    out.write_text("precious")

    def fail(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tables, "write_csv", fail)
    ran = run("adapt", file, "--out", out, "--quiet")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert ran.err.startswith(f"error: cannot write {out}: No space left on device. Make room")
    assert out.read_text() == "precious"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["features.npz", "rows.csv"]


def test_an_unexpected_error_keeps_its_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(predictions.Predictions, "summary", fail)
    with pytest.raises(ZeroDivisionError, match="a bug"):
        main(["adapt", str(npz(tmp_path))])


def test_ctrl_c_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(predictions.Predictions, "summary", interrupt)
    ran = run("adapt", npz(tmp_path), "--out", tmp_path / "rows.csv")
    assert (ran.code, ran.out, ran.err) == (130, "", "stopped\n")
    assert not (tmp_path / "rows.csv").exists()


@pytest.mark.skipif(os.name == "nt", reason="a closed pipe is another error on Windows")
def test_a_closed_pipe_is_quiet(tmp_path: Path) -> None:
    file = npz(tmp_path, n=5000)  # more rows than a pipe holds
    command = [sys.executable, "-m", "kedge", "adapt", str(file), "--quiet", "--set", "iterations=1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().decode().startswith("image,label")
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 128 + signal.SIGPIPE


def test_stdout_is_utf8_whatever_the_locale(tmp_path: Path) -> None:
    file = npz(tmp_path, class_names=np.array(["Ä"] * 5))
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    with contextlib.redirect_stdout(stdout), pytest.raises(SystemExit) as ended:
        main(["adapt", str(file), "--quiet"])
    assert ended.value.code == 0
    assert read_csv(stdout.buffer.getvalue().decode("utf-8"))[0]["label"] == "Ä"


def test_features_info(tmp_path: Path) -> None:
    arrays = small(meta=np.array(json.dumps({"encoder": "simulated"})))
    np.savez(tmp_path / "features.npz", **arrays)
    file = tmp_path / "features.npz"
    features = kedge.FeatureSet.load(file)
    about = json.loads(run("features", "info", file, "--json").out)
    accuracy = (kedge.adapt(features, method="zero-shot").labels.numpy() == arrays["labels"]).mean()
    assert about.pop("zero_shot_accuracy") == pytest.approx(accuracy)
    assert about == {
        "file": str(file),
        "images": 60,
        "classes": 5,
        "dimension": 16,
        "dtype": "float32",
        "labels": True,
        "paths": False,
        "views": 0,
        "logit_scale": 10.0,
        "class_names": NAMES,
        "provenance": {"source": "features.npz", "encoder": "simulated"},
        "sha256": features.hash,
    }
    shown = run("features", "info", file).out
    assert f"zero shot accuracy  {100 * accuracy:.1f} %\n" in shown
    assert features.hash in shown


def test_features_info_of_a_file_without_the_optional_parts(tmp_path: Path) -> None:
    views = np.repeat(small()["image_features"][:, None], 3, axis=1)
    names = np.array([f"c{j}" for j in range(5)])
    text = small()["text_features"]
    changes = {"labels": None, "views": views, "text_features": np.concatenate([text, text])}
    shown = run("features", "info", npz(tmp_path, **changes, class_names=np.concatenate([names, names]))).out
    assert "labels              false\n" in shown
    assert "zero shot accuracy  unknown\n" in shown
    assert "views               3\n" in shown
    assert "class names         c0, c1, c2, c3, c4, … (5 more)\n" in shown


def test_convert_keeps_the_content(tmp_path: Path) -> None:
    file, out = npz(tmp_path), tmp_path / "features.safetensors"
    ran = run("features", "convert", file, out)
    assert (ran.code, ran.out) == (0, "")
    assert kedge.FeatureSet.load(out).hash == kedge.FeatureSet.from_npz(file).hash
    assert kedge.FeatureSet.load(out).hash in ran.err
    assert run("adapt", out).out == run("adapt", file).out
    assert run("features", "convert", out, out).code == 0  # onto itself
    assert kedge.FeatureSet.load(out).hash == kedge.FeatureSet.from_npz(file).hash


def test_convert_with_another_scale(tmp_path: Path) -> None:
    file, out = npz(tmp_path), tmp_path / "features.safetensors"
    assert run("features", "convert", file, out, "--logit-scale", 50).code == 0
    converted, plain = kedge.FeatureSet.load(out), kedge.FeatureSet.load(file)
    assert (plain.head.logit_scale, converted.head.logit_scale) == (10, 50)
    assert converted.head.class_names == plain.head.class_names
    assert (converted.head.features == plain.head.features).all()
    assert (converted.image_features == plain.image_features).all()


def test_ls_methods() -> None:
    rows = json.loads(run("ls", "methods", "--json").out)["methods"]
    by_name = {row["name"]: row for row in rows}
    traits = {"paper": "StatA", "year": 2025, "scope": "batch", "memory": "none", "needs": "features", "known": True}
    traits |= {"by_class": False, "graded": True}
    assert by_name["stata"] == {"name": "stata", **traits}
    shown = run("ls", "methods").out
    assert all(name in shown for name in by_name)


def test_ls_methods_shows_a_plugin_that_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = EntryPoint("broken", "a_package_that_is_not_there:Method", "kedge.methods")
    monkeypatch.setattr("kedge.methods.registry._plugins", lambda: {"broken": broken})
    ran = run("ls", "methods")
    assert ran.code == 0
    row = next(line for line in ran.out.splitlines() if "broken" in line)
    assert "No module named 'a_package_that_is_not_there'" in row
    assert "StatA" in ran.out
    assert json.loads(run("ls", "methods", "--json").out)["methods"][-1]["name"] == "broken"
    assert run("adapt", "x.npz", "--method", "broken").code == 2


def test_ls_one_method_shows_its_settings() -> None:
    settings = {row["name"]: row for row in json.loads(run("ls", "methods", "stata", "--json").out)["settings"]}
    assert settings["alpha"]["default"] == 1.0
    assert settings["alpha"]["values"] == "number ≥ 0 or inf"
    assert settings["temperature"]["values"] == "number ≥ 0.001 or inf"
    assert settings["beta"]["values"] == "hard or soft"
    assert settings["neighbours"]["values"] == "whole number ≥ 1, ≤ 1,000"
    shown = run("ls", "methods", "stata").out
    for row in settings.values():
        assert row["meaning"]
        assert row["meaning"] in shown  # in one piece: not cut, not wrapped
    assert "no settings" in run("ls", "methods", "zero-shot").out


def test_demo_shows_what_the_demo_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    record = kedge.Record("stata", {}, "birds", "tiny", "very-low", 0, 1, accuracy=0.625, gain=0.1)

    def stand_in(out: Path, *, quick: bool, jobs: int) -> Any:
        asked.append((out, quick, jobs))
        return SimpleNamespace(
            records=[record], failed=failed, files={"report": out / "report.html"}, table=lambda: "the table\n"
        )

    monkeypatch.setitem(sys.modules, "kedge.demo", SimpleNamespace(demo=stand_in, SIMULATED="simulated pictures"))
    failed: tuple[kedge.Record, ...] = ()
    shown, data = run("demo", "--out", tmp_path), run("demo", "--out", tmp_path, "--quick", "--jobs", 1, "--json")
    assert asked == [(tmp_path, False, min(2, os.cpu_count() or 1)), (tmp_path, True, 1)]
    assert (shown.code, shown.out) == (0, "the table\n")
    assert f"simulated pictures\nreport → {tmp_path / 'report.html'}" in shown.err
    *_, adapt, bench, photos = map(shlex.split, shown.err.splitlines())
    folders = [str(tmp_path / "images" / name) for name in ("cherries", "orange", "strawberry")]
    assert adapt[-12:-7] == ["adapt", *folders, "--classes"]
    assert bench[-8:-6] == ["bench", str(tmp_path / "features.safetensors")]
    assert photos[-6:-4] == ["adapt", "photos"]
    report = json.loads(data.out)
    assert report["records"][0]["accuracy"] == 0.625
    assert report["files"] == {"report": str(tmp_path / "report.html")}
    failed = (kedge.Record("tent", {}, "birds", "tiny", "all", 0, 1, error="ValueError: no"),)
    ran = run("demo", "--out", tmp_path)
    assert ran.code == 1
    assert "failed: tent, all: ValueError: no" in ran.err


@pytest.mark.parametrize("start", [["-c", "from kedge.cli import main; main()"], ["-m", "kedge"]])
def test_version(start: list[str]) -> None:
    ran = subprocess.run([sys.executable, *start, "--version"], capture_output=True, text=True, check=True)
    assert (ran.stdout, ran.stderr) == (f"kedge {kedge.__version__}\n", "")


def test_help_needs_nothing_heavy() -> None:
    program = (
        "import sys; from kedge.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'scipy', 'matplotlib', 'safetensors', 'rich'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    for command in ("adapt", "demo", "features", "ls"):
        assert command in ran.stdout


@pytest.mark.parametrize("command", ["adapt", "features info", "features convert", "ls methods", "demo"])
def test_every_command_has_an_example(command: str) -> None:
    assert f"Example: kedge {command} " in run(*command.split(), "--help").out


@pytest.mark.parametrize("argv", [["adpt"], ["adapt"], ["adapt", "x.npz", "--nonsense"], ["features"]])
def test_usage_errors(argv: list[str]) -> None:
    assert run(*argv).code == 2
