"""Forged single files, and what kedge does with them; see `forging`."""

from __future__ import annotations

import dataclasses
import io
import json
import tempfile
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import kedge
from cases import simulated
from exported import NAMES, PATHS, annotation
from feature_sets import arrays, made
from kedge import FeatureSet, Stream, TextHead
from kedge.benchmark.evaluate import evaluate
from kedge.benchmark.grid import Grid
from kedge.benchmark.plan import Plan, draw
from kedge.benchmark.plan_view import plan_facts, ribbon
from kedge.benchmark.record import Record, as_argument
from kedge.labelling.known_file import read_known
from kedge.methods.given import NONE, names_alone
from kedge.methods.registry import build, list_methods
from kedge.report.formats import FORMATS
from kedge.report.pivot import pivot
from pictures import Tower
from tampering import DEEP, Random, as_json, changed, changed_tensors, damaged, opened, pick, tensor_file, without


@cache
def scratch() -> Path:
    """A folder that is deleted at the end."""
    _folders.append(tempfile.TemporaryDirectory(prefix="kedge-forging-"))
    return Path(_folders[-1].name)


_folders: list[Any] = []


@cache
def _good(kind: str) -> list[tuple[dict[str, Tensor], dict[str, Any]]]:
    """Good tensor files of this kind."""
    path = scratch() / "good.safetensors"
    files = []
    for save_good in GOOD[kind]():
        save_good(path)
        files.append(opened(path))
    return files


def _good_features() -> list[Callable[[Path], Any]]:
    about = {
        **{"dataset": "birds", "encoder": "colours", "root": "birds", "images": 10, "seed": 0, "views": 3},
        **{"weights_sha256": "0" * 64, "templates": ["a {}."], "preprocessing": {"crop": [224, 224]}},
        "skipped": [{"path": "x.jpg", "reason": "it is empty"}],
    }
    return [made(provenance=about).save, made(labels=None, views=None, paths=None, provenance=None).save]


def _good_streams() -> list[Callable[[Path], Any]]:
    return [_stream(name).save for name in list_methods()]


def _good_plans() -> list[Callable[[Path], Any]]:
    return [draw(scenario, LABELS, seed=1, tasks=3).save for scenario in ("very-low", STREAM, "all")]


GOOD = {"features": _good_features, "stream": _good_streams, "plan": _good_plans}
LABELS = np.arange(40) % 5
STREAM = "stream:gamma=0.1,size=8,drop_last=False"


def _forger_of_tensors(kind: str) -> Callable[[Random, Path], Path]:
    def forge(random: Random, folder: Path) -> Path:
        path = folder / f"{kind}.safetensors"
        path.write_bytes(tensor_file(*pick(_good(kind), random), random))
        return path

    return forge


def _forge_npz(random: Random, folder: Path) -> Path:
    path = folder / "features.npz"
    full = arrays()
    meta = json.dumps(full.pop("provenance"))
    content: dict[str, Any] = {name: np.asarray(value) for name, value in full.items()} | {"meta": np.array(meta)}
    change = random.random()
    if change < 0.5:
        numbers = {name: torch.from_numpy(value.copy()) for name, value in content.items() if value.dtype.kind in "fi"}
        texts = {name: value for name, value in content.items() if value.dtype.kind not in "fi"}
        tensors = changed_tensors(numbers, random)
        tensors = {name: t.float() if t.dtype == torch.bfloat16 else t for name, t in tensors.items()}
        content = {**texts, **{name: t.numpy() for name, t in tensors.items()}}
    elif change < 0.7:
        content["meta"] = np.array(as_json(changed(json.loads(meta), random)))
    elif change < 0.85:
        name = pick(["class_names", "paths", "meta", "labels", "logit_scale"], random)
        content[name] = pick(ODD_ARRAYS, random)
    bombed = pick(["labels", "paths", "meta", "image_features"], random) if 0.85 <= change < 0.93 else ""
    file = io.BytesIO()
    pick([np.savez, np.savez_compressed], random)(file, **without(content, bombed))
    if bombed:
        with zipfile.ZipFile(file, "a", zipfile.ZIP_DEFLATED) as more:
            more.writestr(f"{bombed}.npy", bomb(random))
    whole = file.getvalue()
    path.write_bytes(damaged(whole, random) if change >= 0.93 else whole)
    return path


def bomb(random: Random) -> bytes:
    """An .npy file that claims to be larger than it is."""
    dtype = pick(["<f4", "<i8", "<U100000000", "|S1000000000", "<f8"], random)
    shape = pick([(10**12,), (10**9, 10**9), (9,), (2**63,), (10**5, 10**5)], random)
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue() + bytes(int(random.integers(1000)))


ODD_ARRAYS: list[Any] = [
    np.array(["a", None], dtype=object),
    np.array([b"a\xff", b"b", b"c", b"d"]),
    np.array(["a\0b", "b", "c", "d"]),
    np.array(["\udcff", "b", "c", "d"]),
    np.array(["a", "b"]),
    np.array([["a", "b"], ["c", "d"]]),
    np.array(3),
    np.array("["),
    np.array([]),
    np.array([1 + 2j]),
    np.array(["2020-01-01"], dtype="datetime64[D]"),
    np.zeros(3, dtype=[("a", "f4")]),
    np.array([float("nan")]),
]


@cache
def _good_records() -> list[dict[str, Any]]:
    features = kedge.simulate(60, 4, 16, seed=1)
    records = [evaluate("stata", features, scenario, tasks=2) for scenario in ("low", STREAM)]
    records.append(evaluate("stata", features, "low", tasks=2, known=2, known_by="review", oracle_classes="found"))
    nested = {"method": {"name": "stata", "alpha": 10.0}, "strength": 2.0}
    records.append(dataclasses.replace(records[0], method="tempered", settings=nested))
    records.append(Record("stata", {}, "planes", "unknown", "low", 0, 8, error="it broke", simulated=True))
    return [json.loads(json.dumps(dataclasses.asdict(record))) for record in records]


def _forge_record(random: Random, folder: Path) -> Path:
    path = folder / "record.json"
    record: Any = pick(_good_records(), random)
    for _ in range(int(random.integers(1, 3))):
        record = changed(record, random)
    text = as_json(record).encode()
    path.write_bytes(damaged(text, random) if random.random() < 0.1 else text)
    return path


GRID = {
    "methods": ["zero-shot", "stata:beta=soft", {"name": "stata", "alpha": 10}],
    "features": ["birds.safetensors"],
    "scenarios": ["very-low", "batches:size=64,k_min=5,k_max=5"],
    "seeds": [0, 1],
    "tasks": 100,
    "known": 5,
    "known_by": "review",
    "oracle_classes": "found",
    "preset": "table1",
    "out": "results",
    "jobs": 2,
}


def _forge_grid(random: Random, folder: Path) -> Path:
    path = folder / "grid.toml"
    grid = changed(GRID, random)
    if random.random() < 0.5:
        grid = changed(grid, random)
    entries = grid.items() if isinstance(grid, dict) else [("methods", grid)]
    lines = [f"{json.dumps(name)} = {_toml(value)}" for name, value in entries]
    text = "\n".join(lines).replace(json.dumps(DEEP), as_json(DEEP)).encode()
    path.write_bytes(damaged(text, random) if random.random() < 0.15 else text)
    return path


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(name)} = {_toml(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return str(value) if isinstance(value, float) else json.dumps(value)


TASKS = [
    {"id": number, "data": {"image": f"/data/local-files/?d=set/a%20b/{number}.jpg"}, "annotations": [annotation(name)]}
    for number, name in enumerate((*NAMES, "none of these"))
]
RECORDS = [{"id": 1, "image": "b/0.jpg", "label": "cat", "updated_at": "2026"}, {"image": "a b/1.jpg", "choice": "NA"}]


def _forge_export(random: Random, folder: Path) -> Path:
    path = folder / "export.json"
    entries: Any = pick([TASKS, RECORDS], random)
    for _ in range(int(random.integers(1, 4))):
        entries = changed(entries, random)
    text = as_json(entries).encode()
    path.write_bytes(damaged(text, random) if random.random() < 0.1 else text)
    return path


FORGERS: dict[str, Callable[[Random, Path], Path]] = {
    **{kind: _forger_of_tensors(kind) for kind in GOOD},
    "npz": _forge_npz,
    "record": _forge_record,
    "grid": _forge_grid,
    "export": _forge_export,
}


# What kedge does with a file


def use_features(path: Path) -> None:
    features = FeatureSet.load(path)
    repr(features)
    features.zero_shot_accuracy()
    result = kedge.adapt(features.image_features, features.head)
    assert bool(result.probs.isfinite().all())
    again = path.with_name("again.safetensors")
    written = features.save(again)  # never writes what `load` refuses
    assert FeatureSet.load(again).hash == written


def _stream(name: str) -> Stream:
    stream = Stream(TextHead(simulated(1, 5)[1].float(), 10.0, tuple("abcde")), name)
    for _ in range(2):
        _step(stream)
    return stream


def _step(stream: Stream) -> None:
    head, needs = stream.head, stream.method.traits.needs
    x = torch.nn.functional.normalize(torch.randn(8, head.d, generator=torch.Generator().manual_seed(0)))
    if needs == "views":
        result = stream.step(x, torch.stack([x, x.flip(1)], dim=1))
    elif needs == "encoder":
        pixels = torch.rand(8, 3, 4, 4, generator=torch.Generator().manual_seed(0))
        result = stream.step(_Widened(head.d)(pixels).detach(), images=pixels, encoder=_Widened(head.d))
    else:
        result = stream.step(x)
    assert bool(result.probs.isfinite().all())


class _Widened(Tower):
    """The small tower, with features of any dimension."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.d = d
        self.eval()

    def forward(self, pixels: Tensor) -> Tensor:
        found: Tensor = torch.nn.functional.pad(super().forward(pixels), (0, self.d - 3))
        return found


def _use_stream(path: Path) -> None:
    stream = Stream.load(path)
    repr(stream)
    _step(stream)
    stream.save(path.with_name("again.safetensors"))
    Stream.load(path.with_name("again.safetensors"))


def _use_plan(path: Path) -> None:
    plan = Plan.load(path)
    assert plan.hash
    plan_facts(plan, LABELS)
    ribbon(plan, LABELS)


def _use_record(path: Path) -> None:
    record = Record.load(path)
    as_argument(record.method, record.settings).encode()
    for write in FORMATS.values():
        write(pivot([record])).encode()
    record.save(path.with_name("again.json"))
    assert Record.load(path.with_name("again.json")) == record


def _use_grid(path: Path) -> None:
    grid = Grid.load(path)
    assert all(build(method) for method in grid.methods)


def _use_export(path: Path) -> None:
    known = read_known(path, PATHS, names_alone(NAMES))
    assert all(0 <= image < len(PATHS) and NONE <= label < len(NAMES) for image, label in known.items())


USES: dict[str, Callable[[Path], None]] = {
    "features": use_features,
    "npz": use_features,
    "stream": _use_stream,
    "plan": _use_plan,
    "record": _use_record,
    "grid": _use_grid,
    "export": _use_export,
}
