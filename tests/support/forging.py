"""Forged files: good files of every kind, changed at random as by hand or by damage.

    random = np.random.default_rng(7)
    path = forged("plan", random, folder)      # writes a forged plan below the folder
    use("plan", path)                          # loads it and works with it

Whatever is forged, `use` either succeeds or raises a KedgeError; anything else is a fault. The same seed gives the same
forgery. A forgery changes entries of the header or the JSON (other types, missing, huge, negative, NaN, deep) or arrays
(type, shape, values, missing, extra), with a correct content hash; or it changes bytes of the file.

| kind     | what `forged` writes and returns                                                 |
|----------|----------------------------------------------------------------------------------|
| features | a feature file                                                                   |
| npz      | an .npz file of arrays, some of which claim to be larger than any memory         |
| stream   | the saved stream of some method, after two batches                               |
| plan     | a plan                                                                           |
| record   | the record of a cell, of a stream or of single batches                           |
| grid     | a grid file (TOML)                                                               |
| export   | what Label Studio exported, as JSON or JSON-MIN                                  |
| folder   | a feature folder, with its manifest and its shards                               |
| labels   | a label folder, likewise                                                         |
| parts    | the folder of an unfinished extraction, `FILE.parts`, with its job and its shards |
"""

from __future__ import annotations

import contextlib
import copy
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
from safetensors import safe_open
from safetensors.torch import save
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
from kedge.features import shard_maker
from kedge.features.extract import extract
from kedge.features.folder import FeatureFolder, split
from kedge.images.image_set import MANIFEST
from kedge.labelling.adapt_folder import adapt_folder
from kedge.labelling.known_file import read_known
from kedge.labelling.label_folder import MANIFEST as LABEL_MANIFEST
from kedge.labelling.label_folder import LabelFolder
from kedge.methods.given import NONE, names_alone
from kedge.methods.registry import build, list_methods
from kedge.report.formats import FORMATS
from kedge.report.pivot import pivot
from kedge.tensor_files import content_hash
from pictures import Tower, encoder, save_pictures

Random = np.random.Generator

DEEP = "@deep@"  # stands for a list of lists of lists …
DEPTH = 100_000
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 7, 2**31, 2**63, 2**64, -(2**70), 10**400),
    *(0.5, -0.5, 1e-320, 1e308, float("nan"), float("inf"), float("-inf")),
    *("", "x", "a\0b", "\udcff", "\x1b[31m", "‮", "inf", "../../x", "/", "y" * 10_000),
    *([], {}, [1], [[]], [None], ["a", "b"], [["a", 1]], {"a": 1}, {"name": 3}, {"name": "stata"}, DEEP),
]
DTYPES = [
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.int32),
    *(torch.uint8, torch.bool),
]


def forged(kind: str, random: Random, folder: Path) -> Path:
    """Write a forged file of this kind below the folder and return its path."""
    return FORGERS[kind](random, folder)


def use(kind: str, path: Path) -> None:
    """Load a file of this kind and do with it what kedge does; a result that cannot be right is an AssertionError."""
    USES[kind](path)


# Headers and other JSON


def changed(value: Any, random: Random) -> Any:
    """JSON with one change at a random place."""
    value = copy.deepcopy(value)
    places = list(_places(value))
    if not places or random.random() < 0.02:
        return pick(VALUES, random)
    holder, key = pick(places, random)
    change = random.random()
    if change < 0.15:
        del holder[key]
    elif change < 0.25:
        new = pick(VALUES, random)
        if isinstance(holder, dict):
            holder[pick(["x", "name", "method", "skipped", "root", ""], random)] = new
        else:
            holder.insert(key, new)
    elif change < 0.4 and isinstance(holder[key], int | float):
        holder[key] = pick([-holder[key], holder[key] + 1, holder[key] * 10**6, str(holder[key])], random)
    elif change < 0.5 and isinstance(holder[key], list):
        holder[key] = pick([holder[key] * 2, holder[key][1:], [holder[key]]], random)
    else:
        holder[key] = pick(VALUES, random)
    return value


def _places(value: Any) -> Any:
    """Every entry of JSON, as its dict or list and its key; only the first entries of long lists."""
    keys = list(value) if isinstance(value, dict) else range(min(len(value), 3)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])


def as_json(value: Any) -> str:
    nested = "[" * DEPTH + "]" * DEPTH
    return json.dumps(value).replace(json.dumps(DEEP), nested)


# Arrays


def changed_tensors(tensors: dict[str, Tensor], random: Random) -> dict[str, Tensor]:
    """Tensors with one change: a type, a shape, a value, one missing, one more."""
    name = pick(sorted(tensors), random)
    found, tensors = tensors[name], dict(tensors)
    change = random.random()
    if change < 0.1:
        del tensors[name]
    elif change < 0.2:
        tensors[pick(["x", "views", "labels", "paths", "state.x", "state.mean", ""], random)] = found.clone()
    elif change < 0.4:
        tensors[name] = found.to(pick(DTYPES, random))
    elif change < 0.65:
        tensors[name] = pick(SHAPES, random)(found).clone()
    elif found.numel():
        new = found.clone().flatten()
        if found.is_floating_point():
            values = [float("nan"), float("inf"), -float("inf"), 0.0, -1.0, 1e30, 1e-30, 3.0]
        else:
            values = [-1, 0, 1, 255, 10**6, 2**62, -(2**62)]
        limits = None if found.is_floating_point() or found.dtype == torch.bool else torch.iinfo(found.dtype)
        value = pick(values, random)
        new[random.integers(len(new), size=int(random.integers(1, 4)))] = (
            value if limits is None else max(limits.min, min(limits.max, value))
        )
        tensors[name] = new.reshape(found.shape)
    return tensors


SHAPES: list[Callable[[Tensor], Tensor]] = [
    lambda t: t.flatten(),
    lambda t: t[None],
    lambda t: t.mT if t.dim() > 1 else t[..., None],
    lambda t: t[:-1] if t.dim() else t[None],
    lambda t: t[..., :-1] if t.dim() else t[None],
    lambda t: torch.cat([t, t]) if t.dim() else t[None],
    lambda t: t[:0] if t.dim() else t[None],
    lambda t: t.flatten()[:1].squeeze(),
]


# Bytes


def damaged(content: bytes, random: Random) -> bytes:
    """Bytes with some of them changed, cut off or added."""
    at, length = int(random.integers(len(content))), int(random.integers(1, 64))
    change = pick(["flip", "cut", "zero", "insert", "remove", "digit"], random)
    if change == "flip":
        return content[:at] + bytes([content[at] ^ 1 << int(random.integers(8))]) + content[at + 1 :]
    if change == "cut":
        return content[:at]
    if change == "zero":
        return content[:at] + bytes(length) + content[at + length :]
    if change == "insert":
        return content[:at] + random.bytes(length) + content[at:]
    if change == "remove":
        return content[:at] + content[at + length :]
    digits = [i for i, byte in enumerate(content[:2000]) if chr(byte).isdigit()]  # of shapes and sizes, mostly
    at = pick(digits, random) if digits else at
    return content[:at] + str(int(random.integers(10))).encode() + content[at + 1 :]


# One forger per kind


def tensor_file(tensors: dict[str, Tensor], meta: Any, random: Random) -> bytes:
    """A kedge tensor file after one or two changes."""
    if random.random() < 0.15:
        return damaged(_sealed(tensors, meta), random)
    for _ in range(int(random.integers(1, 3))):
        if random.random() < 0.55:
            meta = changed(meta, random)
        elif tensors:
            tensors = changed_tensors(tensors, random)
    return _sealed(tensors, meta)


def _sealed(tensors: dict[str, Tensor], meta: Any) -> bytes:
    """The bytes of a tensor file, with a correct content hash."""
    plain = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    if isinstance(meta, dict):
        meta = {**meta, "sha256": content_hash(plain, meta)}
    return save(plain, metadata={"kedge": as_json(meta)})


def opened(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the header of a tensor file."""
    with safe_open(path, framework="pt") as file:
        names = file.keys()
        meta = json.loads(file.metadata()["kedge"])
        return {name: file.get_tensor(name).clone() for name in names}, without(meta, "sha256")


def without(entries: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in entries.items() if name not in names}


@cache
def _folder() -> Path:
    """A folder that is deleted at the end."""
    _folders.append(tempfile.TemporaryDirectory(prefix="kedge-forging-"))
    return Path(_folders[-1].name)


_folders: list[Any] = []


@cache
def _good(kind: str) -> list[tuple[dict[str, Tensor], dict[str, Any]]]:
    """Good tensor files of this kind."""
    path = _folder() / "good.safetensors"
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
    bomb = pick(["labels", "paths", "meta", "image_features"], random) if 0.85 <= change < 0.93 else ""
    file = io.BytesIO()
    pick([np.savez, np.savez_compressed], random)(file, **without(content, bomb))
    if bomb:
        with zipfile.ZipFile(file, "a", zipfile.ZIP_DEFLATED) as more:
            more.writestr(f"{bomb}.npy", _bomb(random))
    whole = file.getvalue()
    path.write_bytes(damaged(whole, random) if change >= 0.93 else whole)
    return path


def _bomb(random: Random) -> bytes:
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


@cache
def _good_folders() -> list[dict[str, bytes]]:
    """The files of feature folders of three shards."""
    found = []
    for number, save_good in enumerate(GOOD["features"]()):
        save_good(_folder() / "whole.safetensors")
        made_here = split(FeatureSet.load(_folder() / "whole.safetensors"), _folder() / f"folder{number}", 4)
        found.append({path.name: path.read_bytes() for path in made_here.path.iterdir()})
    return found


@cache
def _good_label_folders() -> list[dict[str, bytes]]:
    """The files of their label folders."""
    found = []
    for number, files in enumerate(_good_folders()):
        place = _folder() / f"with-labels{number}"
        place.mkdir()
        for name, content in files.items():
            (place / name).write_bytes(content)
        labels = adapt_folder(place, place.with_name(f"labels{number}"))
        found.append({path.name: path.read_bytes() for path in labels.path.iterdir()})
    return found


def _forge_folder(random: Random, folder: Path) -> Path:
    return _forged_folder(random, folder / "features", MANIFEST, _good_folders())


def _forge_labels(random: Random, folder: Path) -> Path:
    return _forged_folder(random, folder / "labels", LABEL_MANIFEST, _good_label_folders())


def _forged_folder(random: Random, path: Path, manifest_name: str, good: list[dict[str, bytes]]) -> Path:
    """A manifest or a shard is changed; the manifest may list the changed shard, as its author would have it."""
    path.mkdir(exist_ok=True)
    for there in path.iterdir():
        there.unlink()
    for name, content in pick(good, random).items():
        (path / name).write_bytes(content)
    manifest, shard = path / manifest_name, pick(sorted(path.glob("0*.safetensors")), random)
    tensors, meta = opened(manifest)
    change = random.random()
    if change < 0.5:
        manifest.write_bytes(tensor_file(tensors, meta, random))
    elif change < 0.8:
        shard.write_bytes(tensor_file(*opened(shard), random))
        if random.random() < 0.8:
            with contextlib.suppress(Exception):  # of a file that is no tensor file
                with safe_open(shard, framework="pt") as file:
                    sha256 = json.loads(file.metadata()["kedge"])["sha256"]
                listed = next(entry for entry in meta["shards"] if entry["name"] == shard.name)
                listed["sha256"] = sha256
                manifest.write_bytes(_sealed(tensors, meta))
    elif change < 0.9:
        elsewhere = ["../0-4.safetensors", "/etc/passwd", "000000000-000000004.safetensors\n", "a/../b", "lock"]
        meta["shards"][0]["name"] = pick(elsewhere, random)
        manifest.write_bytes(_sealed(tensors, meta))
    else:
        shard.rename(path / pick(["000000020-000000024.safetensors", "0-0.safetensors", ".x"], random))
    return path


class _Stop(Exception):
    pass


class _Stopping(Tower):
    """Fails at the fourth batch."""

    calls = 0

    def forward(self, pixels: Tensor) -> Tensor:
        self.calls += 1
        if self.calls > 3:
            raise _Stop
        return super().forward(pixels)


@cache
def _good_parts() -> dict[str, bytes]:
    """The files of an extraction that was stopped after three shards of four images."""
    out, rows = _folder() / "f.safetensors", shard_maker.SHARD_ROWS
    images = save_pictures(_folder() / "images", each=6)
    shard_maker.SHARD_ROWS = 1
    try:
        extract(
            images, encoder=dataclasses.replace(encoder(), visual=_Stopping().eval()), out=out, batch_size=4, workers=0
        )
    except _Stop:
        pass
    finally:
        shard_maker.SHARD_ROWS = rows
    return {path.name: path.read_bytes() for path in sorted(Path(f"{out}.parts").iterdir())}


def _forge_parts(random: Random, folder: Path) -> Path:
    parts = folder / "f.safetensors.parts"
    parts.mkdir(exist_ok=True)
    for path in parts.iterdir():
        path.unlink()
    for name, content in _good_parts().items():
        (parts / name).write_bytes(content)
    shard = pick(sorted(parts.glob("*.safetensors")), random)
    change = random.random()
    if change < 0.6:
        shard.write_bytes(tensor_file(*opened(shard), random))
    elif change < 0.75:
        job = parts / "job.json"
        text = as_json(changed(json.loads(job.read_text()), random)).encode()
        job.write_bytes(damaged(text, random) if random.random() < 0.3 else text)
    elif change < 0.85:
        shard.rename(parts / pick(["000000000-000000012.safetensors", "0-0.safetensors", "1-x.safetensors"], random))
    else:
        (parts / pick(["features.joined", ".kedge-x.tmp", "9-99.safetensors", "lock"], random)).write_bytes(b"x")
    return parts


FORGERS: dict[str, Callable[[Random, Path], Path]] = {
    **{kind: _forger_of_tensors(kind) for kind in GOOD},
    "npz": _forge_npz,
    "record": _forge_record,
    "grid": _forge_grid,
    "export": _forge_export,
    "folder": _forge_folder,
    "labels": _forge_labels,
    "parts": _forge_parts,
}
KINDS = tuple(FORGERS)


# What kedge does with a file


def _use_features(path: Path) -> None:
    features = FeatureSet.load(path)
    repr(features)
    features.zero_shot_accuracy()
    result = kedge.adapt(features.image_features, features.head)
    assert bool(result.probs.isfinite().all())
    again = path.with_name("again.safetensors")
    written = features.save(again)  # never writes what `load` refuses
    assert FeatureSet.load(again).hash == written


def _use_folder(path: Path) -> None:
    folder = FeatureFolder.open(path)
    repr(folder)
    assert all(shard.path.parent == path.absolute() for shard in folder.shards)
    gathered = folder.gather()
    assert len(gathered) == len(folder) == sum(len(shard.open()) for shard in folder.shards)
    _use_features(path)


def _use_labels(path: Path) -> None:
    labels = LabelFolder.open(path)
    repr(labels)
    assert len(list(labels.rows())) == len(labels)
    labels.write(path.with_name("labels.csv"))


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


def _use_parts(path: Path) -> None:
    out = path.with_suffix("")
    out.unlink(missing_ok=True)
    features = extract(_folder() / "images", encoder=encoder(), out=out, batch_size=4, workers=0)
    assert len(features) == 18
    assert not path.exists()


USES: dict[str, Callable[[Path], None]] = {
    "features": _use_features,
    "npz": _use_features,
    "stream": _use_stream,
    "plan": _use_plan,
    "record": _use_record,
    "grid": _use_grid,
    "export": _use_export,
    "folder": _use_folder,
    "labels": _use_labels,
    "parts": _use_parts,
}


def pick(options: Any, random: Random) -> Any:
    return options[int(random.integers(len(options)))]
