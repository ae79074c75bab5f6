"""The benchmarks run, on tiny sizes, and what they make of their figures is right."""

from __future__ import annotations

import json
import os
import platform
import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kedge.benchmark.record import Record

pytest.importorskip("numba", reason="the benchmarks compare the compiled solver, the extra `fast`")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
pytest.importorskip("measuring", reason="the folder benchmarks is no part of the source archive")

import aims
import draw_extraction
import extraction
import growth
import machine
import measuring
import page_latency
import presets
import scale
import speed
import throughput


@pytest.fixture(autouse=True)
def own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Feature files of their own; and no processes of their own, as each would take seconds to start."""

    def here(work: Callable[..., Any], *arguments: Any) -> Any:
        return work(*arguments)

    monkeypatch.setattr(measuring, "FILES", tmp_path)
    for module in (measuring, machine, scale):
        monkeypatch.setattr(module, "alone", here)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def part(result: dict[str, Any], quick: bool = False) -> dict[str, Any]:
    return {"measured": "2026-01-01", "quick": quick, "machine": machine.describe(), "result": result}


def ratios(kedge: float, aim: float | None = 300) -> dict[str, Any]:
    """Throughput of one size, so many times faster than the plain form."""
    times = {"plain": 1.0, "kedge": 1 / kedge, "wall": 2 / kedge, "torch": 0.1, "single": 0.01}
    ratio = {name: 1 / value for name, value in times.items() if name != "plain"}
    size = throughput.Size(64, 100, 10, 10_000, 200, 20, 5, aim)
    return {"sizes": [{**size._asdict(), "seconds": times, "ratio": ratio, "difference": 1e-6}]}


def record(dataset: str, scenario: str, tasks: int, seconds: float) -> Record:
    return Record("stata", {}, dataset, "simulated", scenario, 0, tasks, seconds=seconds)


def test_slope_is_the_power_of_the_growth() -> None:
    sizes = [100, 200, 400, 800]
    assert measuring.slope(sizes, [3e-5 * size**1.25 for size in sizes]) == pytest.approx(1.25)
    noisy = [1.1 * 100, 200 / 1.1, 400 / 1.1, 1.1 * 800]  # symmetric in logarithms: the line is not moved
    assert measuring.slope(sizes, noisy) == pytest.approx(1.0)


def test_alone_is_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert measuring.alone(os.getpid) != os.getpid()


def test_a_file_of_another_size_is_refused() -> None:
    path = measuring.simulated(20, 4)
    with pytest.raises(ValueError, match="Delete it"):
        measuring.load(path, 21, 4)


def test_extrapolation_takes_sampled_cells_twenty_times_and_whole_ones_once() -> None:
    records = [record("a", "low", 50, 6.0), record("a", "all", 1, 8.0), record("b", "low", 50, 4.0)]
    found = presets.extrapolated(records, wall=12.0, start_up=2.0, jobs=2)
    assert (found["factor"], found["whole"]) == (20, 8.0)
    # 12 s of wall are 2 s of start-up, 8/2 s of `all`, and 6 s that all tasks need 20 times
    assert found["by_wall"] == pytest.approx(2 + 4 + 20 * 6)
    # One process has 20·6 s of a's tasks; the other 8 s of `all`, then 20·4 s of b's
    assert found["by_cells"] == pytest.approx(2 + 120)
    assert found["total"] == found["by_wall"]


def test_extrapolation_is_never_below_what_the_cells_need() -> None:
    found = presets.extrapolated([record("a", "low", 50, 6.0)], wall=8.0, start_up=3.0, jobs=2)
    assert found["total"] == found["by_cells"] == pytest.approx(3 + 20 * 6)


def test_extrapolation_of_a_whole_run_is_the_run() -> None:
    records = [record("a", "stream-low", 100, 3.0), record("a", "stream-high", 100, 3.0)]
    assert presets.extrapolated(records, wall=9.0, start_up=1.0, jobs=2)["total"] == pytest.approx(9.0)


def test_records_are_put_in_the_order_of_the_command() -> None:
    names = [("b", "all"), ("a", "very-low"), ("b", "very-low"), ("a", "all")]
    ordered = presets.in_order([record(d, s, 1, 1.0) for d, s in names], "table1", [Path("b.x"), Path("a.x")])
    assert [(r.dataset, r.scenario) for r in ordered] == [
        ("b", "very-low"),
        ("b", "all"),
        ("a", "very-low"),
        ("a", "all"),
    ]


def test_the_datasets_are_the_papers() -> None:
    sizes = presets.dataset_sizes()
    assert len(sizes) == 11
    assert ("imagenet", 50_000, 1000) in sizes
    assert sum(n for _, n, _ in sizes) == 133_696


@pytest.mark.parametrize(("ratio", "verdict"), [(299.0, "MISSED"), (300.0, "met"), (float("nan"), "MISSED")])
def test_the_table_says_whether_an_aim_is_met(ratio: float, verdict: str) -> None:
    parts = {"throughput": part(ratios(ratio))}
    assert [row.verdict for row in aims.rows(parts)] == [verdict]
    for table in (aims.text(parts), aims.markdown(parts)):
        assert verdict in table
        assert "simulated" in table
        assert machine.describe()["torch"] in table


def test_an_upper_bound_is_missed_above_it() -> None:
    assert aims.Row("memory", 4.1, "4.1 GB", 4.0).verdict == "MISSED"
    assert aims.Row("memory", 3.9, "3.9 GB", 4.0).verdict == "met"


def test_quick_figures_are_not_judged() -> None:
    parts = {"throughput": part(ratios(1.0), quick=True)}
    assert [row.verdict for row in aims.rows(parts)] == [""]
    assert "QUICK" in aims.text(parts)


def test_machines_are_named_apart() -> None:
    other = part(ratios(400.0))
    other["machine"] = {**other["machine"], "cpu": "another"}
    lines = aims.about({"throughput": part(ratios(400.0)), "growth": other})
    assert [line.partition(":")[0] for line in lines] == ["throughput", "growth"]


def test_operations_are_counted() -> None:
    # 2n²d is 8, 2nkd is 12 and counts three times, 4nad is 8 and counts twice in one iteration
    assert scale.flop(n=2, k=3, d=1, active=1, iterations=1) == 2 * 4 + 3 * 12 + 2 * 8


def test_differences_are_found_in_every_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "COMPARED_ROWS", 2)
    z = np.full((5, 2), (0.75, 0.25), np.float32)
    np.save(tmp_path / "a.npy", z)
    z[2] = 0.25, 0.75  # neither in the first block nor in the last
    np.save(tmp_path / "b.npy", z)
    assert scale.differences(tmp_path / "a.npy", tmp_path / "b.npy") == {"difference": 0.5, "same_labels": 0.8}


def test_throughput() -> None:
    size = throughput.Size(32, 20, 4, 500, 3, 2, 1, None)
    found = throughput.compare(size)
    assert found["difference"] < 1e-4
    assert set(found["ratio"]) == {"kedge", "wall", "torch", "single"}
    assert found["ratio"]["kedge"] == pytest.approx(found["seconds"]["plain"] / found["seconds"]["kedge"])
    assert 0 < found["seconds"]["kedge"] < found["seconds"]["wall"]  # the scoring is in the second alone
    assert set(found["faults"]) == {"plain", "plain_reused"}
    if platform.libc_ver()[0] == "glibc":  # elsewhere the environment changes nothing
        pages = size.array // resource.getpagesize()
        assert found["faults"]["plain"] > 10 * pages  # a solve makes 66 such arrays; fewer faults if pages are huge
        assert found["faults"]["plain_reused"] < found["faults"]["plain"] / 2
    assert "MALLOC_MMAP_THRESHOLD_" not in os.environ
    (row,) = aims.rows({"throughput": part({"sizes": [found]})})
    assert row.value == found["ratio"]["kedge"]  # the aim is judged by fresh memory, and the other is named beside it
    assert f"{found['seconds']['plain_reused'] / found['seconds']['kedge']:,.0f}×, where the allocator" in row.how


def test_memory_is_reused_only_where_glibc_can() -> None:
    thresholds = [size.thresholds for size in throughput.SIZES]
    assert ["plain_reused" in found for found in thresholds] == [True, False, False, False]
    for size, found in zip(throughput.SIZES, thresholds, strict=True):
        smaller = 4 * max(size.n, size.k) ** 2, 4 * max(size.n, size.k) * measuring.DIMENSION  # n×n, n×k, n×d, k×d
        mmap, trim = found["plain"]
        assert max(smaller) < mmap < trim <= size.array  # only arrays of n×k×d are fresh
        assert all(mmap <= 32 * 2**20 for mmap, _ in found.values())  # glibc refuses more


def test_growth_is_timed_without_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    searched = []
    for name, module in list(sys.modules.items()):
        if name.startswith("kedge.methods.") and hasattr(module, "nearest_neighbours"):

            def noted(*arguments: Any, _search: Any = module.nearest_neighbours, **settings: Any) -> Any:
                searched.append(len(arguments[0]))
                return _search(*arguments, **settings)

            monkeypatch.setattr(module, "nearest_neighbours", noted)
    batch = measuring.load(measuring.simulated(50, 4), 50, 4)
    found = growth.series([20, 50], [batch.take(slice(20)), batch], "n", {"k": 4})
    assert searched == [20, 50]  # once per size, however many runs
    assert found["slope"] == pytest.approx(measuring.slope([20, 50], found["seconds"]))


def test_operations_of_products_are_counted() -> None:
    a, b = torch.ones(2, 3), torch.ones(3, 5)
    product, done = scale.counted(lambda: a @ b)
    assert done == 2 * 2 * 3 * 5
    assert product.shape == (2, 5)


def test_a_large_solve_is_the_same_in_small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "QUICK_LARGE", (1500, 5))
    found = scale.large(quick=True)
    assert found["small_blocks"]["difference"] < 1e-4
    assert found["small_blocks"]["same_labels"] > 0.999
    assert 0 < found["share_done"] <= 1.01 * found["share"]  # no more than the equations need, but for ragged blocks
    assert 0 < found["peak_gb"] < 4
    assert found["accuracy"] > 0.5


def test_the_approximate_graph_is_compared_with_the_exact_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "QUICK_MILLION", (300, 5))
    monkeypatch.setattr(scale, "QUICK_COMPARED", (400, 5))
    found = scale.million(quick=True)
    exact, approximate = found["compared"]["exact"], found["compared"]["approximate"]
    assert (found["n"], exact["n"], approximate["n"]) == (300, 400, 400)
    assert "recall" not in exact["info"]
    assert 0.5 < approximate["info"]["recall"] <= 1
    assert found["compared"]["points_lost"] == pytest.approx(100 * (exact["accuracy"] - approximate["accuracy"]))
    rows = aims.rows({"million": part({**found, "info": approximate["info"]})})
    assert "recall" in rows[0].how
    assert rows[1].verdict == "met"


def test_presets_run_the_command(tmp_path: Path) -> None:
    file = measuring.simulated(60, 4, tmp_path / "simulated-some.safetensors")
    found = presets.sampled("table2", [file], tasks=1, jobs=1)
    assert (found["cells"], found["factor"]) == (4, 100)
    assert 0 < found["in_method"] < found["wall"]


def test_parts_are_saved_one_by_one_and_shown_together(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                                       monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setitem(speed.PARTS, "throughput", lambda quick: ratios(400.0, None))
    out = tmp_path / "results"
    speed.main(["--quick", "--only", "throughput", "--out", str(out)])
    speed.main(["--quick", "--only", "peak", "neighbours", "growth", "--out", str(out)])
    saved = json.loads((out / "speed.json").read_text())
    assert saved["simulated"] is True
    assert set(saved["parts"]) == {"peak", "throughput", "neighbours", "growth"}
    assert saved["parts"]["peak"]["result"]["gflops"]["1"] > 0
    shares = [row["share"] for row in saved["parts"]["neighbours"]["result"]["sizes"]]
    assert len(shares) == 2
    assert min(shares) > 0
    shown = capsys.readouterr().out.split(aims.TITLE)[-1]
    assert "400×" in shown
    assert "exact neighbours" in shown
    assert "growth with k" in (out / "speed.md").read_text()
    assert (out / "speed.png").read_bytes().startswith(b"\x89PNG")


def test_clicks_on_the_page_are_summed_up_by_part() -> None:
    slow = dict(zip(("total", *page_latency.PARTS), (0.3, 0.0, 0.2, 0.05, 0.01, 0.01, 0.03), strict=True))
    quick = {part: seconds / 3 for part, seconds in slow.items()}
    times = {"some": 0.5, "all": 0.9}
    shown = page_latency.table(1000, {"clicks": [quick, quick, slow], "start": {"first": times, "again": times}})
    assert "| median | 100 | 0 | 67 | 17 | 3 | 3 | 10 |" in shown
    assert "| 90 % | 260 |" in shown
    assert "start, first: 500 ms; all in sight 900 ms" in shown


def extraction_row(name: str, speed: float, **more: float) -> dict[str, Any]:
    speeds = {"alone": speed, "small": 0.9 * speed, "large": 0.8 * speed}
    return {"name": name, "converting": 0.0, **speeds, "memory_mb": 900.0, "of_peak": 0.5, "cosine": 0.9999, **more}


def test_extraction_is_compared_with_torch_and_with_before(tmp_path: Path) -> None:
    rows = [
        extraction_row("torch float32", 5.0),
        extraction_row("OpenVINO int8", 25.0, converting=40.0),
        extraction_row(extraction.BEFORE, 5.0, small=4.0, large=3.0),
    ]
    about = {"measured": "2026-01-01", "quick": False, "machine": {**machine.describe(), "openvino": "1"}}
    result = {**about, "threads": 2, "gflops": 200.0, "gflop_per_image": 35.0, "rows": rows, "growth": 1.02}
    result["decoding"] = {"small": 0.004, "large": 0.02}
    shown = extraction.table(result)
    assert "| OpenVINO int8 | 25.0 | 5.00 | 50% | 22.5 | 20.0 | 90 %, 80 % | 94 %, 100 % | 900 | 0.99990 |" in shown
    # 1,000 images: before 250 s; int8 44.4 s, 40 s to convert, 64 images in float32 and once more: 15.4 s
    assert extraction.job_seconds(rows[2], rows[0], "small", 1000) == pytest.approx(250)
    assert extraction.job_seconds(rows[1], rows[0], "small", 1000) == pytest.approx(1000 / 22.5 + 40 + 64 / 5 + 64 / 25)
    assert "| OpenVINO int8 | ≥ 4.0 | 5.62 | 6.67 | 2.50 |" in shown
    extraction.write(result, tmp_path)
    assert shown in (tmp_path / "extraction.md").read_text(encoding="utf-8")
    assert json.loads((tmp_path / "extraction.json").read_text(encoding="utf-8"))["growth"] == 1.02
    assert (tmp_path / "extraction.png").read_bytes().startswith(b"\x89PNG")
    draw_extraction.draw({**result, "rows": rows[:1]}, tmp_path / "one.png")


def test_extraction_is_measured_from_files(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="a random model is made with it")
    from encoder_tools import build

    build(tmp_path / "model", "clip")
    for name in extraction.SIZES:
        extraction.simulated_files(tmp_path / name, 4, (50, 40))
    images = extraction.listed(tmp_path / "small", 10)
    assert (len(images), images.paths[0], images.paths[4]) == (10, images.paths[4], images.paths[8])
    torch_row = extraction.Row("torch float32", "float32", False, 6)
    found = extraction.measure(torch_row, tmp_path)
    assert min(found["alone"], found["small"], found["large"], found["memory_mb"]) > 0
    extraction.measure(extraction.Row("torch bfloat16", "bfloat16", False, 6), tmp_path)
    assert extraction.cosine(tmp_path, torch_row) == pytest.approx(1, abs=1e-6)
    assert 0.99 < extraction.cosine(tmp_path, extraction.ROWS[1]) < 1 - 1e-6
    assert extraction.operations(tmp_path) > 1000
    assert set(extraction.decoding(tmp_path)) == set(extraction.SIZES)
