"""Solves in bounded memory, and in parts, each in a process of its own. Figures as JSON on stdout; all data simulated.

    python benchmarks/parts.py lists 100000 1000         lists against the dense solve: labels, time, memory
    python benchmarks/parts.py folder 1000000 1000       a folder of float16 shards: time, memory, recall, accuracy
    python benchmarks/parts.py crossing 100000 100       edges that cross parts, and accuracy beside the exact graph
    python benchmarks/parts.py cluster 1000000 100       two actors on two cores against one process on two threads
    python benchmarks/parts.py predict SMALL LARGE       times and memory of more images and nodes, from the figures of
                                                         two runs of `folder`, kept as files

Memory is the most that the process ever held, with Python and torch; of actors, the sum over them. Feature folders are
kept in build/bench, and so is what a solve that was interrupted had arranged: the same command continues.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from measuring import DIMENSION, FILES, Result, alone, load, peak_memory_mb, say, seconds, simulated

import kedge
from kedge.cluster.actors import Host, Hosts
from kedge.cluster.solve import adapt_folder as on_cluster
from kedge.features.folder import split
from kedge.features.simulate import simulate
from kedge.labelling.adapt_folder import adapt_folder
from kedge.labelling.label_folder import LabelFolder
from kedge.methods.solve.parts import Here
from kedge.words import duration

METHOD = "kedge"
PER_SHARD = 50_000
TOLD = ("accuracy", "zero_shot_accuracy", "recall", "crossing", "outside", "candidates", "converged", "change")


def lists(n: int, k: int) -> Result:
    """The same images by the dense solver and by lists, on two threads."""
    path = simulated(n, k)
    with_dense, by_lists = FILES / "dense.pt", FILES / "lists.pt"
    found: Result = {"n": n, "k": k}
    for kind, most, keep in (("dense", n * k, with_dense), ("lists", 0, by_lists)):
        say(f"lists: n={n:,}, k={k:,}, {kind}")
        found[kind] = alone(_adapt, path, n, k, most, keep)
    one, two = torch.load(with_dense), torch.load(by_lists)
    found["same_labels"] = float((one == two).double().mean())
    return found


def folder(n: int, k: int) -> Result:
    """One process on two threads."""
    place = feature_folder(n, k)
    say(f"folder: n={n:,}, k={k:,}")
    return alone(_folder, place, _fresh(f"labels-{n}-{k}"), 1)


def crossing(n: int, k: int) -> Result:
    """In 1, 2, 8 and 64 parts, and with the exact graph where `auto` is exact."""
    place, found = feature_folder(n, k), {}
    for name, parts, search in (
        ("exact", 1, "auto" if n <= 100_000 else "approximate"),
        *((str(parts), parts, "approximate") for parts in (1, 2, 8, 64)),
    ):
        say(f"crossing: n={n:,}, k={k:,}, {name}, of {json.dumps(found)}")
        found[name] = alone(_folder, place, _fresh(f"labels-{n}-{k}-{name}"), parts, search)
    return found


def cluster(n: int, k: int) -> Result:
    """One process on two threads, and two actors with a thread each."""
    place = feature_folder(n, k)
    say(f"cluster: n={n:,}, k={k:,}, one process")
    one = alone(_folder, place, _fresh(f"labels-{n}-{k}-one"), 1)
    say(f"  {one['seconds']:.0f} s; now two actors")
    two = alone(_cluster, place, _fresh(f"labels-{n}-{k}-two"))
    return {"one": one, "two": two, "ratio": two["seconds"] / one["seconds"]}


def feature_folder(n: int, k: int) -> Path:
    """A folder of float16 shards; made if it is not there."""
    place = FILES / f"folder-{n}-{k}"
    if not (place / "manifest.safetensors").exists():
        say(f"simulating {n:,} images of {k:,} classes → {place}")
        place.parent.mkdir(parents=True, exist_ok=True)
        alone(_split, n, k, place)
    return place


def _split(n: int, k: int, place: Path) -> None:
    f = simulate(n, k, DIMENSION, seed=0)
    split(replace(f, image_features=f.image_features.half()), place, PER_SHARD)


def _fresh(name: str) -> Path:
    """A place for labels: not complete ones of an earlier run."""
    place = FILES / name
    if (place / "labels.safetensors").exists():
        shutil.rmtree(place)
    return place


def _adapt(path: Path, n: int, k: int, most: int, keep: Path) -> Result:
    """In a process of its own."""
    torch.set_num_threads(2)
    features = load(path, n, k)
    with patch("kedge.methods.kedge.DENSE_ENTRIES", most):
        results: list[kedge.Result] = []
        took = seconds(lambda: results.append(kedge.adapt(features, method=METHOD, memory=False)))
    torch.save(results[0].labels, keep)
    assert features.labels is not None
    right = float((results[0].labels == features.labels).float().mean())
    return {"seconds": took, "peak_gb": peak_memory_mb() / 1e3, "accuracy": right, **_told(results[0].info)}


def _folder(place: Path, out: Path, parts: int, search: str = "auto") -> Result:
    """In a process of its own."""
    torch.set_num_threads(2)
    found: list[LabelFolder] = []
    spent: dict[str, float] = defaultdict(float)

    class Timed(Here):
        """Parts of this process; seconds of every call."""

        def each(self, call: str, *shared: Any, own: Sequence[Any] | None = None, lasting: bool = False) -> list[Any]:
            start = time.perf_counter()
            answers = super().each(call, *shared, own=own, lasting=lasting)
            spent[call] += time.perf_counter() - start
            return answers

    def engine(make: Callable[..., Any], places: Sequence[tuple[Any, ...]]) -> Timed:
        start = time.perf_counter()
        made = Timed([make(*each) for each in places])
        spent[make.__name__] += time.perf_counter() - start
        return made

    options: Result = {"parts": parts, "search": search, "engine": engine}
    took = seconds(lambda: found.append(adapt_folder(place, out, METHOD, **options)))
    size = {"n": len(found[0]), "k": len(found[0].class_names)}
    calls = {call: round(value, 2) for call, value in sorted(spent.items(), key=lambda entry: -entry[1])}
    return {**size, "seconds": took, "peak_gb": peak_memory_mb() / 1e3, **_told(found[0].summary), "calls": calls}


def _cluster(place: Path, out: Path) -> Result:
    """In a process of its own, which has next to nothing to do."""
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    Host.process = lambda host: os.getpid()  # type: ignore[attr-defined]
    peaks: list[float] = []
    close = Hosts.close

    def measured(hosts: Hosts) -> None:
        peaks.extend(map(peak_memory_mb, ray.get([actor.process.remote() for actor in hosts.actors])))
        close(hosts)

    found: list[LabelFolder] = []
    with patch.object(Hosts, "close", measured):
        took = seconds(lambda: found.append(on_cluster(place, out, METHOD, actors=2)))
    ray.shutdown()
    return {"seconds": took, "peak_gb": (sum(peaks) + peak_memory_mb()) / 1e3, **_told(found[0].summary)}


def _told(info: Result) -> Result:
    return {name: info[name] for name in TOLD if name in info}


def predict(small: Result, large: Result) -> str:
    """A table for the guide: 10⁷, 10⁸ and 10⁹ images on 1, 8 and 64 nodes like the machine that measured.

    Time. Finding the nearest cells and looking into them takes time ∝ nᵉ, on all nodes, e from the two runs; what this
    process does (k-means, writing the labels) ∝ n, on one; everything else ∝ n, on all nodes. Memory: the slope between
    the two runs, on all nodes.
    """
    n, calls = large["n"], large["calls"]
    searching, growing = (sum(run["calls"][name] for name in ("look", "visit_centres")) for run in (small, large))
    power = math.log(growing / searching) / math.log(n / small["n"])
    shared = sum(calls.values()) - growing
    driver = large["seconds"] - sum(calls.values())
    each = (large["peak_gb"] - small["peak_gb"]) / (large["n"] - small["n"])
    base = small["peak_gb"] - each * small["n"]
    say(f"n = {n:,}: neighbours {growing:.0f} s ∝ n^{power:.2f}, else {shared:.0f} s, one process {driver:.0f} s; ")
    say(f"memory {base:.2f} GB + {1e6 * each:.2f} kB for each image")
    rows = ["| images | nodes | neighbours | everything else | memory per node |", "|---|---|---|---|---|"]
    for images in (10**7, 10**8, 10**9):
        for nodes in (1, 8, 64):
            search = growing * (images / n) ** power / nodes
            rest = (shared / nodes + driver) * images / n
            times = f"{duration(search)} | {duration(rest)}"
            rows.append(f"| {images:,} | {nodes} | {times} | {base + each * images / nodes:.1f} GB |")
    return "\n".join(rows)


if __name__ == "__main__":
    if sys.argv[1] == "predict":
        print(predict(*(json.loads(Path(file).read_text()) for file in sys.argv[2:])))
        sys.exit()
    part, images, classes = sys.argv[1:]
    measured = {"lists": lists, "folder": folder, "crossing": crossing, "cluster": cluster}[part]
    with kedge.progress.on_stderr():
        print(json.dumps(measured(int(images), int(classes)), indent=2))
