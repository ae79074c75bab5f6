"""A benchmark that is stopped, killed, changed or given impossible work; features are simulated."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from kedge import Batch, FeatureSet, StatA
from kedge.benchmark.cells import plan_cells
from kedge.benchmark.grid import PRESETS, Grid, merged, read_options
from kedge.benchmark.record import Record, load_records
from kedge.benchmark.run import Runner, run
from kedge.benchmark.scenarios import Batches, DirichletStream, Whole
from kedge.errors import FileError, InputError, SettingError
from kedge.features.simulate import simulate
from kedge.methods.registry import list_methods
from toy_methods import Plain, Viewing

on_linux = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="children are looked up in /proc")


def save(folder: Path, name: str = "birds", *, seed: int = 0, **changes: Any) -> Path:
    """A small simulated feature file."""
    features = simulate(120, 6, 16, seed=seed)
    path = folder / f"{name}.safetensors"
    replace(features, **changes).save(path)
    return path


def small(folder: Path, **changes: Any) -> Grid:
    """Two methods, two scenarios, two seeds: 6 cells, since the whole set has no seeds."""
    given: dict[str, Any] = {
        "features": [folder / "birds.safetensors"],
        "methods": ["zero-shot", "stata"],
        "scenarios": ["very-low", "all"],
        "seeds": [0, 1],
    }
    return Grid.of(**{**given, "tasks": 3, "out": folder / "out", **changes})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(tmp_path)
    return tmp_path


def stamps(folder: Path) -> dict[str, int]:
    """When each record was written."""
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("*.json")}


def scores(records: list[Record]) -> list[dict[str, Any]]:
    """All but time and place."""
    other = ("seconds", "seconds_per_image", "machine")
    return [{name: value for name, value in record.row().items() if name not in other} for record in records]


def names(grid: Grid) -> set[str]:
    return {cell.name for cell in plan_cells(grid).cells}


def digests(grid: Grid) -> set[str]:
    """The part of the names that alone must tell cells apart, since the readable part is cut off somewhere."""
    return {name.rpartition("__")[2] for name in names(grid)}


class TestCells:
    def test_one_record_per_cell(self, folder: Path) -> None:
        outcome = run(small(folder))
        assert (outcome.ran, outcome.already, outcome.failed, outcome.left_out) == (6, 0, (), ())
        assert set(stamps(folder / "out")) == {cell.path(folder).name for cell in outcome.cells}
        records = outcome.records()
        assert [(r.label, r.scenario, r.seed, r.tasks) for r in records] == [
            ("zero-shot", "very-low", 0, 3), ("stata", "very-low", 0, 3),
            ("zero-shot", "very-low", 1, 3), ("stata", "very-low", 1, 3),
            ("zero-shot", "all", 0, 1), ("stata", "all", 0, 1),
        ]  # fmt: skip
        assert all(record.dataset == "birds" and record.simulated and record.accuracy for record in records)
        assert len({record.plan_hash for record in records}) == 3  # both methods see the same images

    def test_a_record_does_not_depend_on_what_ran_before_it(self, folder: Path) -> None:
        """To the bit, with everything that pictures show."""
        chosen = {"scenarios": ["very-low", "stream-high"], "seeds": [0]}
        together = run(small(folder, methods=["tda", "kedge", "stata", "transclip"], **chosen)).records()
        for method in ("stata", "kedge"):
            alone = run(small(folder, methods=[method], **chosen, out=folder / method)).records()
            same = [record for record in together if record.method == method]
            assert scores(alone) == scores(same)
            assert [record.series for record in alone] == [record.series for record in same]

    def test_names_can_be_read(self, folder: Path) -> None:
        (name, *_) = names(
            small(folder, methods=["stata:alpha=10,beta=soft"], scenarios=["stream:gamma=0.5"], seeds=[4])
        )
        *readable, digest = name.split("__")
        assert readable == ["birds", "stream-gamma=0.5-size=128-drop_last=False", "stata-alpha=10-beta=soft", "seed4"]
        assert len(digest) == 12

    def test_whatever_changes_makes_another_cell(self, folder: Path) -> None:
        plain = {"methods": ["stata"], "scenarios": [Batches(64, 1, 4)], "seeds": [0], "tasks": 3}
        changes: list[dict[str, Any]] = [
            {"methods": ["stata:alpha=2"]},
            {"methods": ["stata:tol=1e-9"]},
            {"methods": ["zero-shot"]},
            {"scenarios": [Batches(63, 1, 4)]},
            {"scenarios": [DirichletStream(0.1)]},
            {"scenarios": [DirichletStream(0.1, drop_last=True)]},
            {"seeds": [1]},
            {"tasks": 4},
        ]
        found = [digests(small(folder, **{**plain, **change})) for change in [{}, *changes]]
        save(folder, seed=1)
        found.append(digests(small(folder, **plain)))  # other content in the same file
        save(folder, "wrens", seed=1)
        found.append(digests(small(folder, **plain, features=[folder / "wrens.safetensors"])))  # the same, renamed
        assert len(set.union(*found)) == len(found) == 11

    def test_what_is_the_same_is_one_cell(self, folder: Path) -> None:
        plain = {"methods": ["stata"], "seeds": [0]}
        once = names(small(folder, **plain))
        same = ["stata", "stata:alpha=1", {"name": "stata", "alpha": 1}, StatA(beta="hard")]
        assert names(small(folder, **{**plain, "methods": same})) == once
        assert names(small(folder, **{**plain, "scenarios": ["very-low", "batches:size=64,k_max=4", "whole"]})) == once
        own = Batches.default_tasks  # said or not
        assert names(small(folder, **plain, tasks=own)) == names(small(folder, **plain, tasks=None))

    def test_the_whole_set_has_no_seeds(self, folder: Path) -> None:
        assert names(small(folder, scenarios=[Whole()], seeds=[5, 6])) == names(
            small(folder, scenarios=["all"], seeds=[0])
        )

    def test_datasets_are_named_by_provenance_before_the_file(self, folder: Path) -> None:
        save(folder, "a", provenance={"dataset": "dtd", "encoder": "CLIP ViT-B/32", "weights_sha256": "ab"})
        (cell, *_) = plan_cells(small(folder, features=[folder / "a.safetensors"])).cells
        assert (cell.file.dataset, cell.file.encoder, cell.file.simulated) == ("dtd", "CLIP ViT-B/32", False)
        assert cell.failed("it broke").weights == "ab"


class TestResume:
    def test_nothing_is_repeated(self, folder: Path) -> None:
        run(small(folder))
        before = stamps(folder / "out")
        again = run(small(folder))
        assert (again.ran, again.already) == (0, 6)
        assert stamps(folder / "out") == before
        more = run(small(folder, methods=["zero-shot", "stata", "stata:alpha=3"]))
        assert (more.ran, more.already) == (3, 6)
        assert before.items() <= stamps(folder / "out").items()
        assert len(more.records()) == 9

    def test_what_is_missing_is_run(self, folder: Path) -> None:
        outcome = run(small(folder))
        before = stamps(folder / "out")
        lost = outcome.cells[3].path(folder / "out")
        lost.unlink()
        assert run(small(folder)).ran == 1
        assert {name for name, stamp in stamps(folder / "out").items() if before[name] != stamp} == {lost.name}

    def test_unfinished_files_of_killed_runs_are_harmless_and_swept_up(self, folder: Path) -> None:
        out = folder / "out"
        out.mkdir()
        for name in (".kedge-old.tmp", ".kedge-new.tmp", "notes.txt"):
            (out / name).write_text('{"half')
        long_ago = time.time() - 7200
        os.utime(out / ".kedge-old.tmp", (long_ago, long_ago))
        os.utime(out / "notes.txt", (long_ago, long_ago))
        run(small(folder))
        assert len(load_records([out])) == 6
        left = {path.name for path in out.iterdir() if path.suffix != ".json"}
        assert left == {".kedge-new.tmp", "notes.txt"}  # the new one may be another run's

    @on_linux
    @pytest.mark.parametrize("jobs", [1, 2])
    def test_killed_and_started_again(self, folder: Path, jobs: int) -> None:
        methods = ["--method", "zero-shot", "--method", "stata"]
        settings = [*methods, "--scenario", "very-low", "--tasks", "40", "--out", str(folder / "out")]
        seeds = [word for seed in range(4) for word in ("--seed", str(seed))]
        command = [sys.executable, "-m", "kedge", "bench", str(folder / "birds.safetensors"), *settings, *seeds]
        process = subprocess.Popen([*command, "--jobs", str(jobs)], stderr=subprocess.DEVNULL)
        try:
            wait_until(lambda: len(stamps(folder / "out")) >= 2)
            children = children_of(process.pid)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait(10)
        before = stamps(folder / "out")
        assert 2 <= len(before) < 8  # it was killed in the middle
        assert len(children) >= (jobs if jobs > 1 else 0)
        wait_until(lambda: not any(map(is_running, children)))  # nobody works on for a parent that is gone
        assert stamps(folder / "out") == before
        assert all(record.error is None for record in load_records([folder / "out"]))  # all of them whole

        grid = small(folder, scenarios=["very-low"], tasks=40, seeds=range(4))
        again = run(grid)
        assert (again.ran, again.already) == (8 - len(before), len(before))
        assert before.items() <= stamps(folder / "out").items()
        assert scores(again.records()) == scores(run(grid, folder / "elsewhere").records())  # as if never killed


def wait_until(true: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def children_of(process: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@dataclass(frozen=True)
class Moody(Plain):
    """Fails as long as a file is there; in what way, the file says."""

    name: ClassVar[str] = "moody"
    file: str = ""

    def z(self, batch: Batch) -> Tensor:
        if os.path.exists(self.file):
            what = Path(self.file).read_text()
            if what == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            if what == "interrupt":
                raise KeyboardInterrupt
            raise ZeroDivisionError(f"in a mood\nand {what}")
        assert not what_is_on_the_way(batch)
        return super().z(batch)


def what_is_on_the_way(batch: Batch) -> list[Any]:
    """Anything in a batch that looks like labels."""
    return [value for value in vars(batch).values() if isinstance(value, Tensor) and not value.is_floating_point()]


class TestFailures:
    def test_a_failing_cell_is_recorded_and_run_again(self, folder: Path) -> None:
        mood = folder / "mood"
        mood.write_text("angry")
        grid = small(folder, methods=["zero-shot", Moody(file=str(mood)), "stata"], seeds=[0])
        outcome = run(grid)
        assert outcome.ran == 6
        assert [record.label.split()[0] for record in outcome.failed] == ["moody", "moody"]
        assert outcome.failed[0].error == "ZeroDivisionError: in a mood and angry"
        assert outcome.failed[0].accuracy is None
        assert len(outcome.records()) == 4  # the others went on
        saved = [record for record in load_records([folder / "out"]) if record.error]
        assert [(record.scenario, record.error) for record in saved] == [
            ("all", "ZeroDivisionError: in a mood and angry"),
            ("very-low", "ZeroDivisionError: in a mood and angry"),
        ]

        mood.unlink()
        before = stamps(folder / "out")
        again = run(grid)
        assert (again.ran, again.already, again.failed) == (2, 4, ())
        assert len(again.records()) == 6
        assert not list((folder / "out").glob("*.failed.json"))
        kept = {name: stamp for name, stamp in before.items() if not name.endswith(".failed.json")}
        assert kept.items() <= stamps(folder / "out").items()

    def test_a_failure_that_is_no_longer_true_goes_away(self, folder: Path) -> None:
        outcome = run(small(folder))
        cell = outcome.cells[0]  # as if killed between writing the record and removing the failure
        cell.failed("an old story").save(cell.failure(folder / "out"))
        assert run(small(folder)).ran == 0
        assert not cell.failure(folder / "out").exists()

    def test_an_interrupt_is_no_failure(self, folder: Path) -> None:
        mood = folder / "mood"
        mood.write_text("interrupt")
        with pytest.raises(KeyboardInterrupt):
            run(small(folder, methods=["zero-shot", Moody(file=str(mood)), "stata"], seeds=[0]))
        assert [record.label for record in load_records([folder / "out"])] == ["zero-shot"]

    def test_a_file_that_changes_while_it_runs(self, folder: Path) -> None:
        (cell, *_) = plan_cells(small(folder)).cells
        save(folder, seed=5)
        record = Runner()(cell)
        assert record.error is not None
        assert record.error.startswith("FileError:")
        assert "has changed since the benchmark began" in record.error


class TestProcesses:
    def test_processes_give_the_same_records(self, folder: Path) -> None:
        apart, here = run(small(folder), folder / "apart", jobs=2), run(small(folder), folder / "here", jobs=1)
        assert scores(apart.records()) == scores(here.records())
        assert {record.machine.rpartition(", ")[2] for record in apart.records()} == {"1 thread"}

    def test_one_that_dies_takes_only_its_cell_along(self, folder: Path) -> None:
        mood = folder / "mood"
        mood.write_text("die")
        outcome = run(small(folder, methods=[Moody(file=str(mood)), "zero-shot"], seeds=[0]), jobs=2)
        assert outcome.ran == 4
        assert [record.method for record in outcome.records()] == ["zero-shot", "zero-shot"]
        assert [record.method for record in outcome.failed] == ["moody", "moody"]
        assert "ended by SIGKILL" in str(outcome.failed[0].error)

    def test_what_can_not_be_sent(self, folder: Path) -> None:
        @dataclass(frozen=True)
        class Local(Plain):
            name: ClassVar[str] = "local"

        with pytest.raises(SettingError, match="cannot be sent to another process"):
            run(small(folder, methods=[Local()]), jobs=2)
        assert run(small(folder, methods=[Local()])).ran == 3

    @on_linux
    def test_ctrl_c_stops_them_all(self, folder: Path) -> None:
        command = [sys.executable, "-m", "kedge", "bench", str(folder / "birds.safetensors"), "--jobs", "2"]
        command += ["--scenario", "very-low", "--tasks", "5000", "--out", str(folder / "out")]
        process = subprocess.Popen(
            command,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background job ignores it
        )
        try:
            wait_until(lambda: len(children_of(process.pid)) >= 3)  # two, and the one that tracks resources
            time.sleep(0.3)
            children = children_of(process.pid)
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does
            _, err = process.communicate(timeout=30)
        finally:
            process.kill()
        assert process.returncode == 130
        assert err == f"stopped. Finished cells are in {folder / 'out'}; run the same command to continue.\n"
        wait_until(lambda: not any(map(is_running, children)))
        assert not list((folder / "out").glob(".kedge-*"))


@dataclass(frozen=True)
class NeedsEncoder(Plain):
    name: ClassVar[str] = "needs-encoder"
    traits = replace(Plain.traits, needs="encoder")


class TestRefusals:
    """Before any work: the output folder is not even made."""

    @pytest.fixture(autouse=True)
    def _nothing_is_made(self, folder: Path) -> Iterator[None]:
        yield
        assert not (folder / "out").exists()

    def test_views(self, folder: Path) -> None:
        with pytest.raises(SettingError, match=r"birds\.safetensors: method 'viewing' needs augmented views"):
            run(small(folder, methods=["stata", Viewing()]))

    def test_encoder(self, folder: Path) -> None:
        with pytest.raises(SettingError, match="method 'needs-encoder' needs the images and their encoder"):
            run(small(folder, methods=["stata", NeedsEncoder()]))

    def test_labels(self, folder: Path) -> None:
        save(folder, "mute", labels=None)
        with pytest.raises(InputError, match=r"mute\.safetensors has no labels"):
            run(small(folder, features=[folder / "birds.safetensors", folder / "mute.safetensors"]))

    def test_files(self, folder: Path) -> None:
        with pytest.raises(FileError, match="no file"):
            run(small(folder, features=[folder / "birds.safetensors", folder / "none.npz"]))

    def test_a_place_that_can_not_be_written(self, folder: Path) -> None:
        (folder / "taken").write_text("")
        with pytest.raises(FileError, match="cannot make the folder"):
            run(small(folder), folder / "taken")

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"methods": ["stat"]}, "unknown method 'stat'; did you mean 'stata'"),
            ({"methods": ["stata:alfa=1"]}, "no setting 'alfa'; did you mean 'alpha'"),
            ({"methods": ["stata:alpha=-1"]}, "alpha must be at least 0"),
            ({"methods": [{"name": "stata", "beta": "firm"}]}, "beta must be one of"),
            ({"methods": [{"alpha": 1}]}, "a method with settings is written"),
            ({"methods": [3]}, "a method is a registered name"),
            ({"methods": []}, "no methods"),
            ({"scenarios": ["hihg"]}, "unknown scenario 'hihg'; did you mean 'high'"),
            ({"scenarios": []}, "no scenarios"),
            ({"features": []}, "no feature files"),
            ({"seeds": []}, "no seeds"),
            ({"seeds": [-1]}, "a seed must be at least 0; got -1"),
            ({"seeds": ["a"]}, "a seed must be a whole number"),
            ({"tasks": 0}, "tasks must be at least 1"),
            ({"jobs": 0}, "jobs must be at least 1"),
        ],
    )
    def test_settings(self, folder: Path, changes: dict[str, Any], message: str) -> None:
        with pytest.raises(SettingError, match=message):
            small(folder, **changes)

    def test_jobs_of_run(self, folder: Path) -> None:
        with pytest.raises(SettingError, match="jobs must be at least 1; got 0"):
            run(small(folder), jobs=0)


class TestGridFiles:
    def write(self, folder: Path, text: str) -> Path:
        (folder / "grid.toml").write_text(text, encoding="utf-8")
        return folder / "grid.toml"

    def test_everything_it_can_say(self, folder: Path) -> None:
        save(folder, "birds2")
        (folder / "sub").mkdir()
        path = self.write(
            folder / "sub",
            """
            methods = ["zero-shot", "stata:beta=soft", {name = "stata", alpha = 10}]
            features = ["../birds*.safetensors", "../birds.safetensors"]
            scenarios = ["very-low", "batches:size=64,k_min=5,k_max=5"]
            seeds = [0, 3]
            tasks = 7
            jobs = 2
            out = "results"
            """,
        )
        grid = Grid.load(path)
        assert grid.methods[1:] == (StatA(beta="soft"), StatA(alpha=10))
        assert [file.resolve() for file in grid.features] == [
            folder / "birds.safetensors", folder / "birds2.safetensors", folder / "birds.safetensors",
        ]  # fmt: skip
        assert grid.scenarios == (Batches(64, 1, 4), Batches(64, 5, 5))
        assert (grid.seeds, grid.tasks, grid.jobs, grid.out) == ((0, 3), 7, 2, folder / "sub" / "results")
        assert len(plan_cells(grid).cells) == 3 * 2 * 2 * 2  # the file that is named twice counts once

    def test_arguments_replace_what_it_says(self, folder: Path) -> None:
        path = self.write(folder, 'features = ["birds.safetensors"]\nscenarios = ["low"]\ntasks = 7')
        grid = Grid.load(path, scenarios=["high"], seeds=[5])
        assert (grid.scenarios, grid.seeds, grid.tasks) == ((Batches(1000, 25, 50),), (5,), 7)

    @pytest.mark.parametrize(
        ("text", "error", "message"),
        [
            ("method = []", SettingError, "unknown key 'method'; did you mean 'methods'"),
            ("colour = 3", SettingError, "unknown key 'colour'; choose from methods, features"),
            ("seeds = 3", SettingError, "Expected `array`, got `int`, at `seeds`"),
            ("tasks = true", SettingError, "Expected `int`, got `bool`, at `tasks`"),
            ('tasks = "9"', SettingError, "Expected `int`, got `str`, at `tasks`"),
            ("features = [3]", SettingError, r"Expected `str`, got `int`, at `features\[0\]`"),
            ("seeds = [-1]", SettingError, r"Expected `int` >= 0, at `seeds\[0\]`"),
            ('out = "a\\u0000b"', SettingError, "at `out`"),
            (f"seeds = {'[' * 5000}", FileError, "is not TOML: nested too deeply"),
            (f"seeds = [{'1' * 5000}]", FileError, "is not TOML: "),
            ('features = ["bats*.npz"]', FileError, r"no file fits the pattern 'bats\*\.npz'"),
            ('preset = "table3"', SettingError, "unknown preset 'table3'; did you mean 'table1'|did you mean 'table2'"),
            ("methods = [", FileError, "is not TOML"),
        ],
    )
    def test_what_is_refused(self, folder: Path, text: str, error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=message):
            merged(read_options(self.write(folder, text)))

    def test_messages_name_the_file(self, folder: Path) -> None:
        path = self.write(folder, "seed = 3")
        with pytest.raises(SettingError) as caught:
            read_options(path)
        assert str(caught.value) == f"{path}: unknown key 'seed'; did you mean 'seeds'?"

    def test_a_file_named_like_a_pattern(self, folder: Path) -> None:
        save(folder, "birds[1]")
        options = read_options(self.write(folder, 'features = ["birds[1].safetensors"]'))
        assert options["features"] == [folder / "birds[1].safetensors"]

    def test_a_preset_says_only_what_nothing_else_does(self, folder: Path) -> None:
        options = merged({"preset": "runtime", "tasks": 3}, {"methods": ["stata"]})
        assert options == {"methods": ["stata"], "scenarios": ["very-high", "all"], "tasks": 3}
        assert merged({"preset": "runtime"}, {"preset": "table2"})["scenarios"][0] == "stream-low"


class TestPresets:
    @pytest.mark.parametrize("preset", PRESETS)
    def test_each_makes_cells(self, folder: Path, preset: str) -> None:
        planned = plan_cells(Grid.of([folder / "birds.safetensors"], **PRESETS[preset]))
        assert planned.cells
        assert {cell.method.name for cell in planned.cells} >= {"zero-shot", "stata"}

    def test_the_tables_have_every_method_that_fits(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        points = {
            "viewing": EntryPoint("viewing", "toy_methods:Viewing", "kedge.methods"),
            "broken": EntryPoint("broken", "toy_methods:NotThere", "kedge.methods"),
        }
        monkeypatch.setattr("kedge.methods.registry._plugins", lambda: points)
        save(folder, "seen", views=simulate(120, 6, 16).image_features[:, None].repeat(1, 2, 1))
        files = [folder / "birds.safetensors", folder / "seen.safetensors"]
        planned = plan_cells(Grid.of(files, **PRESETS["table1"]))
        fitting = {(cell.file.dataset, cell.method.name) for cell in planned.cells}
        assert ("seen", "viewing") in fitting
        assert ("birds", "viewing") not in fitting
        assert {name for _, name in fitting} <= set(list_methods())
        left_out = "\n".join(planned.left_out)
        assert f"{files[0]}: method 'viewing' needs augmented views" in left_out
        assert "method 'broken' of another package does not load" in left_out

    def test_ablations_leave_out_more_classes_than_there_are(self, folder: Path) -> None:
        planned = plan_cells(Grid.of([folder / "birds.safetensors"], **PRESETS["alpha"]))  # 6 classes
        sizes = {(cell.scenario.size, cell.scenario.k_min) for cell in planned.cells}  # type: ignore[attr-defined]
        assert sizes == {(64, 1), (64, 2), (64, 3), (64, 5), (1000, 5)}
        assert len(planned.left_out) == 8  # once each, not once per method
        assert "needs 100 classes, and 6 have images" in planned.left_out[-1]

    def test_nothing_left(self, folder: Path) -> None:
        grid = Grid.of([folder / "birds.safetensors"], **{**PRESETS["alpha"], "scenarios": ["batches:k_min=9,k_max=9"]})
        with pytest.raises(SettingError, match="nothing is left to run"):
            plan_cells(grid)

    def test_published_scenarios(self) -> None:
        table1 = Grid.of(["x"], **PRESETS["table1"]).scenarios
        assert [(s.size, s.k_min, s.k_max) for s in table1[:-1]] == [  # type: ignore[attr-defined]
            (64, 1, 4), (64, 2, 10), (64, 5, 25), (1000, 5, 25), (1000, 25, 50), (1000, 50, 100),
        ]  # fmt: skip
        assert [m.alpha for m in Grid.of(["x"], **PRESETS["alpha"]).methods[1:]] == [0.1, 0.3, 1, 3, 10, 30]  # type: ignore[attr-defined]


def test_threads_are_left_alone(folder: Path) -> None:
    before = torch.get_num_threads(), os.environ.get("OMP_NUM_THREADS"), signal.getsignal(signal.SIGINT)
    run(small(folder, methods=["zero-shot"], scenarios=["all"]), jobs=2)
    assert (torch.get_num_threads(), os.environ.get("OMP_NUM_THREADS"), signal.getsignal(signal.SIGINT)) == before


def test_a_feature_file_is_opened_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Path] = []
    load = FeatureSet.load
    monkeypatch.setattr(FeatureSet, "load", lambda path: opened.append(path) or load(path))
    run(small(folder))
    assert opened == [folder / "birds.safetensors"]


def test_a_link_to_itself_is_no_record(tmp_path: Path) -> None:
    (tmp_path / "loop.json").symlink_to("loop.json")
    with pytest.raises(FileError, match=r"cannot use .*loop\.json"):
        load_records([tmp_path])
