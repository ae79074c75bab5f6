"""`kedge reproduce` on small generated trees in the datasets' own layouts, with the tiny model."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from command import run
from dataset_trees import drawn_tree
from jobs import check_written, written
from kedge.benchmark.estimate import Trial
from kedge.benchmark.record import load_records
from kedge.cli import main
from kedge.cli.reproduce import _names
from kedge.errors import FileError, SettingError
from kedge.features import shard_maker
from kedge.features.encode import encode
from kedge.features.feature_set import FeatureSet
from kedge.report import against, published
from kedge.report.scores import collect
from kedge.reproduce import Reproduced, estimate, prepare
from kedge.reproduce.summary import summary_text
from kedge.reproduce.tables import EXPERIMENTS

pytest.importorskip("transformers", reason='the bundled model is loaded by transformers: pip install "kedge[hf]"')
SCENARIOS = 7 + 4  # of Tables 1 and 2
SMALL = ("--encoder", "tiny", "--tables", "1,2", "--methods", "zero-shot,stata", "--tasks", 2)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three layouts, of which one is incomplete; eight datasets are missing."""
    place = tmp_path_factory.mktemp("data")
    drawn_tree(place, "dtd", classes=6, each=12)
    drawn_tree(place, "fgvc_aircraft", classes=5, each=12, seed=3)
    drawn_tree(place, "eurosat", classes=4, each=4)
    shutil.rmtree(place / "eurosat" / "2750" / sorted(os.listdir(place / "eurosat" / "2750"))[-1])
    return place


@pytest.fixture(autouse=True, scope="module")
def _short_trials() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(estimate, "ENCODED", 8)
        patched.setattr(estimate, "TOGETHER", 4)
        patched.setattr(estimate, "METHODS_BUDGET", 1.0)
        yield


@pytest.fixture(scope="module")
def made(root: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """An undisturbed run."""
    out = tmp_path_factory.mktemp("made") / "out"
    return out, run("reproduce", "--root", root, *SMALL, "--out", out, "--json")


def test_end_to_end(made: tuple[Path, Any]) -> None:
    out, ran = made
    assert ran.code == 0, ran.err
    said = json.loads(ran.out)
    assert said["datasets"] == ["fgvc_aircraft", "dtd"]
    assert (said["cells"], said["run"], said["failed"], said["summary"]) == (2 * 2 * SCENARIOS, 44, [], None)
    records = load_records([out / "records"])
    assert {(r.dataset, r.method) for r in records} == {
        (d, m) for d in said["datasets"] for m in ("zero-shot", "stata")
    }
    assert all(record.simulated for record in records)  # the pictures are
    row = next(row for row in said["rows"] if (row["label"], row["scenario"]) == ("stata", "very-low"))
    mean = sum(r.accuracy or 0 for r in records if (r.label, r.scenario) == ("stata", "very-low")) / 2
    assert (row["table"], row["ours"], row["paper"]) == ("Table 1, batches", pytest.approx(mean), None)
    features = FeatureSet.load(out / "features" / "tiny" / "dtd.safetensors")
    assert (len(features), features.provenance["templates"]) == (72, ["{} texture."])
    page = (out / "report.html").read_text(encoding="utf-8")
    assert (
        "The StatA paper again: Table 1, batches; Table 2, streams; 2 tasks each. Datasets: fgvc_aircraft, dtd." in page
    )
    assert "Against the papers" not in page  # nothing published is about this model


def test_what_is_missing_is_named(made: tuple[Path, Any], root: Path) -> None:
    lines = made[1].err.splitlines()
    assert (
        f"not in {root}: imagenet, sun397, stanford_cars, food101, oxford_pets, oxford_flowers, caltech101, ucf101 "
        "(`kedge ls datasets` shows their folders)" in lines
    )
    (incomplete,) = (line for line in lines if line.startswith("eurosat is left out"))
    assert "incomplete: 4 of 16 test images are not there, the first:" in incomplete
    assert any(
        line.startswith("dtd is not the paper's test set: 72 images of 6 classes, in the paper") for line in lines
    )


def test_again_only_the_report_is_written(made: tuple[Path, Any], root: Path) -> None:
    out, _ = made
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    again = run("reproduce", "--root", root, *SMALL, "--out", out)
    assert again.code == 0
    assert "tiny: 132 images, all encoded" in again.err
    assert "44 cells, all done" in again.err
    changed = {path.relative_to(out).parts[0] for path in before if path.stat().st_mtime_ns != before[path]}
    assert changed == {"report.html", "report_figures"}
    title = "Table 2, streams · tiny · SIMULATED · mean accuracy in % over 2 of 11 datasets: fgvc_aircraft, dtd"
    assert title in again.out
    assert again.out.endswith(
        "No published figure fits: the papers have other encoders, or other versions of these datasets.\n"
    )


def child(argv: list[str]) -> None:
    torch.set_num_threads(1)
    shard_maker.SHARD_ROWS = 4
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    main([*argv, "--quiet"])


def killed(argv: list[str], when: Callable[[], bool]) -> None:
    """Start the command in a process of its own, and kill it at this moment."""
    process = multiprocessing.get_context("fork").Process(target=child, args=(argv,))
    process.start()
    deadline = time.monotonic() + 60
    while not when():
        assert process.is_alive(), "it was done before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.002)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert process.exitcode == -signal.SIGKILL


def test_killed_and_continued(
    made: tuple[Path, Any], root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, out = written(made[0]), tmp_path / "out"

    def noted(images: Any, *arguments: Any, ranges: Any, **options: Any) -> Any:
        with (tmp_path / "spared").open("a") as file:
            file.write(f"{len(images) - sum(map(len, ranges))}\n")
        return encode(images, *arguments, ranges=ranges, **options)

    monkeypatch.setattr("kedge.features.shard_maker.encode", noted)  # in the processes that are killed, too
    command = [str(word) for word in ("reproduce", "--root", root, *SMALL, "--out", out)]
    killed(command, lambda: any(out.glob("features/tiny/*.parts/*.safetensors")))
    assert not (out / "report.html").exists()
    check_written(written(out), expected, complete=False)
    done_before = re.search(r"132 images to encode, (\d+) of them done", run(*command, "--dry-run").err)
    assert done_before
    assert int(done_before[1]) > 0
    killed(command, lambda: len(list(out.glob("records/*.json"))) > 3)
    assert not (out / "report.html").exists()
    assert max(map(int, (tmp_path / "spared").read_text().split())) > 0  # not all images were encoded again
    done, times = written(out), {path: path.stat().st_mtime_ns for path in out.glob("*/*.json")}
    check_written(done, expected, complete=False)
    again = run(*command)
    assert again.code == 0, again.err
    assert f"{sum(name.startswith('records/') for name in done)} of 44 cells done" in again.err
    check_written(written(out), expected, complete=True)
    assert times == {path: path.stat().st_mtime_ns for path in times}  # no cell ran again


def test_dry_run_writes_nothing(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kedge.reproduce.PAPER_ENCODERS", {"RN50": "openclip:RN50/openai"})  # no hub
    tables = ("--tables", "1,alpha,beta,runtime,encoders", "--tasks", 2)
    ran = run(
        "reproduce", "--root", root, "--encoder", "tiny", *tables, "--out", tmp_path / "out", "--dry-run", "--json"
    )
    assert ran.code == 0, ran.err
    said = json.loads(ran.out)
    assert not (tmp_path / "out").exists()
    assert {(row["table"], row["dataset"]) for row in said["plan"]} == {
        *(("1", name) for name in ("fgvc_aircraft", "dtd")),
        ("alpha", "dtd"),
        *(("beta", name) for name in ("fgvc_aircraft", "dtd")),
    }
    assert said["encode"][0]["images"] == 132
    assert said["seconds"] > 0
    notes = "\n".join(said["notes"])
    assert "openclip:RN50/openai is left out: open_clip is not installed" in notes
    assert "Table 1, batches: without mta, em-dirichlet (mta needs views of every image" in notes
    assert (
        "Table 4, hard and soft β: the paper has it on imagenet, which is not here; it runs on fgvc_aircraft, dtd"
        in notes
    )
    assert "Figure 3, anchor weight α, dtd: 8 of 13 scenarios left out; they need more classes than the 6 that" in notes


def test_encoders_of_the_supplement(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kedge.reproduce.PAPER_ENCODERS", {"RN50": "openclip:RN50/openai", "tiny": "tiny"})
    plan = prepare(root, tables=["encoders"], datasets=["DTD"], tasks=2, out=tmp_path).plan
    assert {bench.encoder for bench in plan.benches} == {"tiny"}
    assert {method.name for bench in plan.benches for method in bench.grid.methods} == {"zero-shot", "stata", "kedge"}
    assert sum(len(bench.grid.scenarios) for bench in plan.benches) == SCENARIOS
    assert any("openclip:RN50/openai is left out: open_clip is not installed" in note for note in plan.notes)


def test_views_only_for_mta(root: Path, tmp_path: Path) -> None:
    def files(*methods: str) -> set[str]:
        prepared = prepare(root, ["tiny"], ["2"], methods, ["dtd"], 1, 1, tmp_path, views=3)
        return {path.name for path in prepared.plan.files}

    assert files("stata") == {"dtd.safetensors"}
    assert files("stata", "mta") == {"dtd-3views.safetensors"}
    assert files("paper") == {"dtd-3views.safetensors"}


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"tables": ["3"]}, SettingError, "unknown table '3'"),
        ({"tables": []}, SettingError, "no table is named"),
        ({"methods": ["statta"]}, SettingError, r"unknown method 'statta'; did you mean 'stata'\?"),
        ({"methods": []}, SettingError, "no method is named"),
        ({"encoders": []}, SettingError, "no encoder is named"),
        ({"datasets": ["sun397"]}, FileError, "sun397 cannot be used: no folder"),
        ({"datasets": ["eurosat", "dtd"]}, FileError, "eurosat cannot be used: incomplete: 4 of 16 test images"),
        ({"datasets": ["cifar"]}, SettingError, "unknown dataset 'cifar'"),
        ({"tasks": 0}, SettingError, "tasks"),
        ({"jobs": 0}, SettingError, "jobs"),
        ({"views": 0}, SettingError, "views"),
        ({"encoders": ["nothing"]}, SettingError, "unknown encoder 'nothing'"),
    ],
)
def test_what_is_refused(root: Path, tmp_path: Path, changes: dict[str, Any], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        prepare(**{"root": root, "encoders": ["tiny"], "out": tmp_path, **changes})


@pytest.mark.parametrize("option", ["--tables", "--methods", "--datasets"])
def test_a_list_without_a_name_is_refused(root: Path, tmp_path: Path, option: str) -> None:
    ran = run("reproduce", "--root", root, "--encoder", "tiny", option, ",", "--out", tmp_path / "out", "--dry-run")
    assert ran.code == 2
    assert f"error: no {option[2:-1]} is named." in ran.err


def test_compiling_takes_no_time_from_the_trials(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = prepare(root, ["tiny"], ["1"], ["zero-shot", "stata"], ["dtd"], 2, 2, tmp_path).plan
    now, threads = [0.0], []

    def slow(self: Trial, *_: Any) -> float:
        now[0] += 60.0  # of which the second call, the one that is timed, took hardly any
        threads.append(torch.get_num_threads())
        return 1e-6

    monkeypatch.setattr(Trial, "seconds_per_image", slow)
    monkeypatch.setattr(estimate.time, "monotonic", lambda: now[0])
    before = torch.get_num_threads()
    assert estimate.methods_time(plan.cells(), 2, dict.fromkeys(plan.files, 16)).by_method().keys() == {
        "zero-shot",
        "stata",
    }
    assert len(threads) == 4  # both methods, in batches of 64 and of 72
    assert set(threads) == {1}  # as in a process of --jobs 2
    assert torch.get_num_threads() == before


def test_no_dataset_at_all(tmp_path: Path) -> None:
    with pytest.raises(
        FileError, match=r"none of the eleven datasets is in .*; imagenet: no folder .* And 10 datasets more"
    ):
        prepare(tmp_path, ["tiny"])
    with pytest.raises(FileError, match=r"no folder .*nowhere"):
        prepare(tmp_path / "nowhere", ["tiny"])


def test_images_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    drawn_tree(tmp_path, "fgvc_aircraft", classes=3, each=8)
    (tmp_path / "fgvc_aircraft" / "images" / "0000004.jpg").write_bytes(b"no image")
    asked = ("--encoder", "tiny", "--tables", "1", "--methods", "zero-shot", "--tasks", 1, "--out", tmp_path / "out")
    ran = run("reproduce", "--root", tmp_path, *asked, "--json")
    assert ran.code == 0, ran.err
    assert [name.rpartition("/")[2] for name in json.loads(ran.out)["unreadable"]] == ["0000004.jpg"]
    assert "0000004.jpg" in ran.err


def test_another_jobs_features_are_not_replaced(root: Path, made: tuple[Path, Any], tmp_path: Path) -> None:
    shutil.copytree(made[0] / "features", tmp_path / "features")
    features = tmp_path / "features" / "tiny"
    (features / "fgvc_aircraft.safetensors").replace(features / "dtd.safetensors")
    ran = run("reproduce", "--root", root, *SMALL, "--datasets", "dtd", "--out", tmp_path)
    assert ran.code == 2
    assert "dtd.safetensors exists, with another dataset (fgvc_aircraft there, dtd now)" in ran.err
    assert "delete" in ran.err.splitlines()[-1]


def test_methods_of_the_paper_are_those_of_its_tables() -> None:
    """The tables of published figures have a figure of every method, and of no other."""
    tables = {"1": "very-low", "2": "stream-low"}
    for table, scenario in tables.items():
        known = {
            method
            for method in published.METHOD_ORDER
            if (found := published.published("dtd", "CLIP ViT-B/16", scenario, method))
            and found.source == "StatA paper"
        }
        assert known == set(EXPERIMENTS[table].paper)


def test_settings_keep_their_commas() -> None:
    assert _names(["stata:alpha=10,beta=soft,kedge", " tda "]) == ["stata:alpha=10,beta=soft", "kedge", "tda"]


def test_stdout_has_ours_the_papers_and_the_difference(made: tuple[Path, Any]) -> None:
    """The records as if of CLIP and of the paper's datasets: names and sizes decide what is compared."""
    classes = {row["name"]: int(row["classes"]) for row in published.reference("datasets")}
    records = [
        replace(r, simulated=False, encoder="CLIP ViT-B/16", classes=classes[r.dataset], available=None)
        for r in load_records([made[0] / "records"])
    ]
    rows = against.compare(collect(records))
    text = summary_text(
        Reproduced(None, Path(), records, (), rows, against.sum_up(rows), [], 0, {})  # type: ignore[arg-type]
    )
    first = text.splitlines()
    assert first[0].startswith("Table 1, batches · CLIP ViT-B/16 · mean accuracy in % over 2 of 11 datasets")
    ours, paper, difference = (
        [float(x.replace("−", "-")) for x in line.split()[at:]] for line, at in zip(first[4:7], (1, 2, 2), strict=True)
    )
    assert [line.split("  ")[0] for line in first[4:10]] == [
        "zero-shot",
        "zero-shot, paper",
        "zero-shot, difference",
        "stata",
        "stata, paper",
        "stata, difference",
    ]
    assert paper == [pytest.approx((24.7 + 43.5) / 2, abs=0.051)] * 7
    assert difference == pytest.approx([a - b for a, b in zip(ours, paper, strict=True)], abs=0.11)
    assert "44 cells can be compared with a published figure." in text
