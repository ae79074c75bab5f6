"""Speed of extraction relative to the bare forward pass, and its memory by number of images.

    make bench        (or: python benchmarks/extraction.py --quick)

Speed: a model of the size of ViT-B/16 with random weights, and simulated JPEG files of 500×375 pixels. The bare loop is
only the forward pass over pixels in memory. Extraction starts from the files: decoding in a worker process, features,
prompts, shards, the finished file. The bare loop is timed before and after, and the mean is used. The time to start the
worker counts, so the ratio improves with the number of images.

Memory: the peak of the process for n and 4n images, with a small model, so that growth with the images is visible.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from measuring import peak_memory_mb
from PIL import Image

from kedge.encoders.encoder import Encoder
from kedge.encoders.names import load_encoder
from kedge.features.extract import extract
from kedge.images.folders import folder
from kedge.images.image_set import ImageSet
from kedge.images.pixels import open_image

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "support"))
from encoder_tools import build  # noqa: E402

VIT_B_16 = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "image_size": 224,
    "patch_size": 16,
}
BATCH = 32
AIM = 0.9  # of the bare loop's speed
FLAT = 1.1  # peak memory of 4n images : of n images


def simulated_files(to: Path, count: int, size: tuple[int, int] = (500, 375)) -> ImageSet:
    """JPEG files of simulated images in two classes: smooth with some noise, like photographs."""
    rng = np.random.default_rng(0)
    for i in range(count):
        path = to / ("cat", "dog")[i % 2] / f"{i:06}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)).resize(size)
        noisy = np.asarray(coarse) + rng.normal(0, 8, (size[1], size[0], 1))
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(path, quality=90)
    return folder(to)


def bare(encoder: Encoder, pixels: torch.Tensor) -> float:
    """Seconds of the forward passes."""
    start = time.perf_counter()
    with torch.no_grad():
        for batch in torch.split(pixels, BATCH):
            encoder.visual(batch)
    return time.perf_counter() - start


def speed(images: ImageSet, encoder: Encoder, out: Path, threads: int, workers: int) -> dict[str, float]:
    torch.set_num_threads(threads)
    pixels = torch.stack([encoder.preprocessing(open_image(images.source(i))) for i in range(len(images))])
    encoder.visual(pixels[:BATCH])  # to warm up
    before = bare(encoder, pixels)
    start = time.perf_counter()
    extract(images, encoder=encoder, out=out, batch_size=BATCH, workers=workers)
    ours = time.perf_counter() - start
    loop = (before + bare(encoder, pixels)) / 2
    n = len(images)
    return {
        "threads": threads,
        "workers": workers,
        "n": n,
        "images_per_s": n / ours,
        "bare": n / loop,
        "ratio": loop / ours,
    }


def memory(work: Path, count: int) -> None:
    """Extract the first `count` images and print the peak memory; run in a separate process."""
    torch.set_num_threads(1)
    images = folder(work / "images")
    assert images.labels is not None
    some = ImageSet(images.name, images.root, images.paths[:count], images.labels[:count], images.class_names)
    extract(
        some,
        encoder=load_encoder(str(work / "small"), device="cpu"),
        out=work / f"{count}.safetensors",
        workers=1,
    )
    print(json.dumps({"n": count, "peak_mb": peak_memory_mb()}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few images, to test the script; the results mean nothing")
    parser.add_argument("--memory", nargs=2, metavar=("FOLDER", "N"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory:
        return memory(Path(arguments.memory[0]), int(arguments.memory[1]))

    n, many = (16, 100) if arguments.quick else (128, 500)
    rows, peaks = [], []
    with tempfile.TemporaryDirectory() as place:
        work = Path(place)
        images = simulated_files(work / "large", n)
        encoder = load_encoder(str(build(work / "vit-b-16", "clip", **VIT_B_16)), device="cpu")
        for threads, workers in ((1, 1), (2, 1)):
            row = speed(images, encoder, work / f"{threads}-{workers}.safetensors", threads, workers)
            rows.append(row)
            print(
                f"{threads} threads, {workers} workers, {n} images: {row['images_per_s']:.2f} images/s, bare loop "
                f"{row['bare']:.2f}, ratio {row['ratio']:.3f} (aim: {AIM})",
                flush=True,
            )
        simulated_files(work / "images", 4 * many)
        build(work / "small", "clip")
        for count in (many, 4 * many):
            command = [sys.executable, __file__, "--memory", str(work), str(count)]
            found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            peaks.append(found)
            print(f"{count} images: peak memory {found['peak_mb']:.0f} MB", flush=True)
    growth = peaks[1]["peak_mb"] / peaks[0]["peak_mb"]
    print(f"4 times the images, {growth:.3f} times the memory (limit: {FLAT})")
    machine = {"cpu": platform.processor() or platform.machine(), "torch": torch.__version__}
    out = HERE.parent / "build" / "bench"
    out.mkdir(parents=True, exist_ok=True)
    found = {"machine": machine, "quick": arguments.quick, "speed": rows, "memory": peaks, "growth": growth}
    (out / "extraction.json").write_text(json.dumps(found, indent=2))
    print(f"written to {out / 'extraction.json'}")


if __name__ == "__main__":
    main()
