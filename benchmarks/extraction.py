"""Speed of extraction: every library and precision here, the forward pass alone and from JPEG files.

    make bench        (or: python benchmarks/extraction.py; some five minutes on two idle cores)
    python benchmarks/extraction.py --before FOLDER     FOLDER: another checkout of kedge, measured in the same run

A model of the size of ViT-B/16 with random weights; simulated JPEG files of 500×375 and of 2,000×1,500 pixels. Each row
is a process of its own, with two threads:

- alone: the forward pass over pixels in memory, before and after the others; the mean.
- from files: `kedge.extract`, from its call to its return: decoding, encoding, prompts, shards, the finished file. The
  check of a precision is not in it: it encodes 64 images in float32 too, once per job, and is a line of its own.
- of what two cores allow: where the forward pass keeps both busy, decoding has to be added to it. From files, at best
  1 / (seconds of the forward pass + seconds of decoding / 2) images per second are possible.
- of the peak: the forward pass's operations per second, of those of the fastest product of float32 matrices.
  Narrower numbers can be above 100 %.
- cosine: the mean to torch's float32, of the same images. The weights are random; trained models differ more.

Memory: the peak of the process for n and 4n large files with a small model, so that growth with the images is visible.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import ROOT, peak_memory_mb, say
from PIL import Image

from kedge.encoders.encoder import Encoder
from kedge.encoders.names import load_encoder
from kedge.features.extract import extract
from kedge.features.feature_set import FeatureSet
from kedge.images.folders import folder
from kedge.images.image_set import ImageSet
from kedge.images.pixels import open_image

VIT_B_16 = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "image_size": 224,
    "patch_size": 16,
}
THREADS, BATCH = 2, 16
SIZES = {"small": (500, 375), "large": (2000, 1500)}
FILES = 32  # of each size; longer lists name them again
CHECKED = 64  # images that the check of a precision encodes in float32 too
AUTO_AIM, INT8_AIM = 2.3, 4.0  # times the extraction before
AIM = 0.9  # of the speed of the forward pass alone
FLAT = 1.1  # peak memory of 4n images : of n images
BEFORE = "before"


@dataclass(frozen=True)
class Row:
    """A library and a precision."""

    name: str
    dtype: str  # "" for another checkout of kedge, as it is
    openvino: bool
    images: int  # to extract, so that it takes some ten seconds


ROWS = (
    Row("torch float32", "float32", False, 64),
    Row("torch bfloat16", "bfloat16", False, 96),
    Row("OpenVINO float32", "float32", True, 96),
    Row("OpenVINO bfloat16", "bfloat16", True, 160),
    Row("OpenVINO int8", "int8", True, 256),
)


def simulated_files(to: Path, count: int, size: tuple[int, int]) -> None:
    """JPEG files of simulated images in two classes: smooth with some noise, like photographs."""
    rng = np.random.default_rng(0)
    for i in range(count):
        path = to / ("cat", "dog")[i % 2] / f"{i:06}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)).resize(size)
        noisy = np.asarray(coarse) + rng.normal(0, 8, (size[1], size[0], 1))
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(path, quality=90)


def listed(root: Path, count: int) -> ImageSet:
    """So many images of a folder: its files again and again."""
    images = folder(root)
    assert images.labels is not None
    turns = -(-count // len(images))
    return replace(images, paths=(images.paths * turns)[:count], labels=(images.labels * turns)[:count])


def decoded(images: ImageSet, encoder: Encoder) -> torch.Tensor:
    """The pixels of all images."""
    return torch.stack([encoder.preprocessing(open_image(images.source(i))) for i in range(len(images))])


def alone(encoder: Encoder, pixels: torch.Tensor) -> float:
    """Images per second of the forward pass."""
    start = time.perf_counter()
    for batch in torch.split(pixels, BATCH):
        encoder.encode_images(batch)
    return len(pixels) / (time.perf_counter() - start)


def measure(row: Row, work: Path) -> dict[str, Any]:
    """Speeds (images per second), peak memory and features of one row; in a process of its own."""
    torch.set_num_threads(THREADS)
    encoder = load_encoder(str(work / "model"), device="cpu")
    pixels = decoded(listed(work / "small", 2 * BATCH), encoder)
    converting = 0.0
    if row.dtype and row != ROWS[0]:
        from kedge.encoders.precision import TORCH, Precision, in_precision, this_machine

        engine = f"OpenVINO {this_machine().openvino}" if row.openvino else TORCH
        start = time.perf_counter()
        encoder = in_precision(encoder, Precision(row.dtype, engine), pixels if row.dtype == "int8" else None)
        converting = time.perf_counter() - start
    options: dict[str, Any] = {"batch_size": BATCH, "force": True} if row.dtype else {"force": True}
    encoder.encode_images(pixels[:BATCH])  # to warm up
    before = alone(encoder, pixels)
    found: dict[str, Any] = {"name": row.name, "converting": converting, "images": row.images}
    for size in SIZES:
        out = work / f"{row.name} {size}.safetensors"
        start = time.perf_counter()
        extract(listed(work / size, row.images), encoder=encoder, out=out, **options)
        found[size] = row.images / (time.perf_counter() - start)
    found["alone"] = (before + alone(encoder, pixels)) / 2
    return {**found, "memory_mb": peak_memory_mb()}


def memory(work: Path, count: int) -> dict[str, float]:
    """Extract so many large files and tell the peak memory; in a process of its own."""
    torch.set_num_threads(THREADS)
    images = listed(work / "large", count)
    extract(images, encoder=load_encoder(str(work / "tiny"), device="cpu"), out=work / "memory.safetensors", force=True)
    return {"n": count, "peak_mb": peak_memory_mb()}


def decoding(work: Path) -> dict[str, float]:
    """Seconds of one core for decoding and preprocessing an image, by size."""
    encoder, found = load_encoder(str(work / "model"), device="cpu"), {}
    for size in SIZES:
        images = listed(work / size, FILES)
        start = time.process_time()
        decoded(images, encoder)
        found[size] = (time.process_time() - start) / len(images)
    return found


def in_process(work: Path, source: Path, *arguments: str) -> Any:
    """What this script prints with these arguments, run on the kedge in that source folder."""
    places = [str(source), str(Path(__file__).parent)]
    ours = {
        "PYTHONPATH": os.pathsep.join(places),
        "OMP_NUM_THREADS": str(THREADS),
        "XDG_CACHE_HOME": str(work / "cache"),
    }
    command = [sys.executable, __file__, "--work", str(work), *arguments]
    return json.loads(
        subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, **ours}).stdout
    )


def cosine(work: Path, row: Row) -> float:
    """The mean cosine of a row's features to those of the first row."""
    one, other = (
        FeatureSet.load(work / f"{name} small.safetensors").image_features for name in (ROWS[0].name, row.name)
    )
    n = min(len(one), len(other))
    return float((one[:n].double() * other[:n].double()).sum(dim=1).mean())


def operations(work: Path) -> float:
    """Floating-point operations of a forward pass, per image."""
    from torch.utils.flop_counter import FlopCounterMode

    encoder = load_encoder(str(work / "model"), device="cpu")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        encoder.visual(torch.zeros(1, 3, *encoder.preprocessing.size))
    return float(counter.get_total_flops())


def prepare(work: Path, quick: bool) -> None:
    """Models and files."""
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    from encoder_tools import build

    build(work / "model", "clip", **({} if quick else VIT_B_16))
    build(work / "tiny", "clip")
    for name, size in SIZES.items():
        say(f"{FILES} files of {size[0]}×{size[1]}")
        simulated_files(work / name, FILES, size)


def run(quick: bool, before: Path | None) -> dict[str, Any]:
    """Measure everything."""
    import machine

    from kedge.encoders.precision import this_machine

    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as place:
        work = Path(place)
        prepare(work, quick)
        gflops = machine.alone(machine.peak, THREADS, machine.QUICK if quick else machine.SIZES)
        each = operations(work) / 1e9
        chosen = [row for row in ROWS if this_machine().openvino or not row.openvino]
        todo = [(ROOT / "src", row) for row in chosen]
        if before:
            todo.append((before / "src", Row(BEFORE, "", False, ROWS[0].images)))
        for source, row in todo:
            say(row.name)
            row = replace(row, images=2 * BATCH) if quick else row
            found = in_process(work, source, "--row", json.dumps(asdict(row)))
            found["of_peak"] = found["alone"] * each / gflops
            found["cosine"] = cosine(work, row)
            rows.append(found)
        many = 8 if quick else 48
        torch.set_num_threads(1)
        each_file = decoding(work)
        peaks = [in_process(work, ROOT / "src", "--memory", str(count)) for count in (many, 4 * many)]
    return {
        "measured": date.today().isoformat(),
        "quick": quick,
        "machine": {**machine.describe(), "openvino": this_machine().openvino},
        "threads": THREADS,
        "gflops": gflops,
        "gflop_per_image": each,
        "decoding": each_file,
        "rows": rows,
        "memory": peaks,
        "growth": peaks[1]["peak_mb"] / peaks[0]["peak_mb"],
    }


def job_seconds(row: Mapping[str, Any], exact: Mapping[str, Any], size: str, images: int) -> float:
    """A whole job, computed: the extraction, and for another precision its conversion and its check."""
    check = 0.0 if row["name"] in (BEFORE, exact["name"]) else CHECKED / exact["alone"] + CHECKED / row["alone"]
    return float(images / row[size] + row["converting"] + check)


def table(result: Mapping[str, Any]) -> str:
    """The rows as Markdown, and below it what they mean for the aims."""
    by_name = {row["name"]: row for row in result["rows"]}
    exact, old = by_name[ROWS[0].name], by_name.get(BEFORE)
    heads = ["", "alone, images/s", "× torch float32", "of the peak", *(f"{w:,}×{h:,}" for w, h in SIZES.values())]
    heads += ["of alone", "of what two cores allow", "memory, MB", "cosine"]
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    for row in result["rows"]:
        of_alone = ", ".join(f"{100 * row[size] / row['alone']:.0f} %" for size in SIZES)
        least = {size: 1 / row["alone"] + seconds / THREADS for size, seconds in result["decoding"].items()}
        of_possible = ", ".join(f"{100 * row[size] * least[size]:.0f} %" for size in SIZES)
        cells = [row["name"], f"{row['alone']:.1f}", f"{row['alone'] / exact['alone']:.2f}", f"{row['of_peak']:.0%}"]
        cells += [*(f"{row[size]:.1f}" for size in SIZES), of_alone, of_possible]
        cells += [f"{row['memory_mb']:,.0f}", f"{row['cosine']:.5f}"]
        lines.append("| " + " | ".join(cells) + " |")
    times = (f"{1000 * result['decoding'][size]:.1f} ms ({w:,}×{h:,})" for size, (w, h) in SIZES.items())
    lines += ["", f"Decoding and preprocessing a file takes one core {' and '.join(times)}."]
    lines += ["", f"Memory of four times as many large files: ×{result['growth']:.2f} (limit: {FLAT})."]
    if old:
        lines += ["", *_against(by_name, exact, old)]
    return "\n".join(lines)


def _against(by_name: Mapping[str, Any], exact: Mapping[str, Any], old: Mapping[str, Any]) -> list[str]:
    """Times faster than before, from files: in the long run, and a job of 1,000 and of 10,000 images (computed)."""
    jobs = (1000, 10_000)
    heads = ["times faster than before", "aim", *(f"{w:,}×{h:,}" for w, h in SIZES.values())]
    heads += [f"{n:,} images of {w:,}×{h:,}, computed" for w, h in SIZES.values() for n in jobs]
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    for name, aim in (("torch float32", None), ("OpenVINO bfloat16", AUTO_AIM), ("OpenVINO int8", INT8_AIM)):
        if row := by_name.get(name):
            times = [row[size] / old[size] for size in SIZES]
            times += [job_seconds(old, exact, s, n) / job_seconds(row, exact, s, n) for s in SIZES for n in jobs]
            cells = [name, f"≥ {aim}" if aim else "", *(f"{ratio:.2f}" for ratio in times)]
            lines.append("| " + " | ".join(cells) + " |")
    return lines


def write(result: Mapping[str, Any], out: Path) -> None:
    """extraction.json, extraction.md and extraction.png in a folder."""
    import draw_extraction
    import machine

    out.mkdir(parents=True, exist_ok=True)
    (out / "extraction.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    quick = " QUICK: the figures mean nothing." if result["quick"] else ""
    about = f"{result['measured']}, {machine.sentence(result['machine'])}, OpenVINO {result['machine']['openvino']}"
    peak = f"matrix product: {result['gflops']:.0f} GFLOP/s, an image: {result['gflop_per_image']:.1f} GFLOP"
    about = f"{about}; {result['threads']} threads; {peak}.{quick}"
    head = f"# Speed of extraction (simulated files, random weights)\n\n{about}"
    explained = __doc__.partition("Each row\n")[2].partition("\n\nMemory:")[0]
    text = f"{head}\n\n{table(result)}\n\nEach row {explained}\n"
    (out / "extraction.md").write_text(text, encoding="utf-8")
    draw_extraction.draw(result, out / "extraction.png")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="a tiny model, to test the script; the results mean nothing"
    )
    parser.add_argument("--before", type=Path, metavar="FOLDER", help="another checkout of kedge, to compare with")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench", metavar="FOLDER")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--row", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--memory", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.row:
        print(json.dumps(measure(Row(**given.row), given.work)))
    elif given.memory:
        print(json.dumps(memory(given.work, given.memory)))
    else:
        result = run(given.quick, given.before)
        write(result, given.out)
        print(table(result))
        print(f"written to {given.out}")


if __name__ == "__main__":
    main()
