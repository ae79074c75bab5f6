"""Accuracy of the bundled model in every precision, on the bundled pictures (simulated): zero-shot and kedge.

    python benchmarks/precision.py             all 3,560 pictures, one batch; some minutes
    python benchmarks/precision.py --quick     those of 20 classes

A precision that needs a library that is not installed is left out.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import kedge
from kedge.encoders.tiny import bundled_classes, pictures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few pictures, to test the script")
    classes = 20 if parser.parse_args().quick else len(bundled_classes())
    with tempfile.TemporaryDirectory() as place:
        photos = pictures(Path(place) / "photos", classes)
        encoder = kedge.load_encoder("tiny", device="cpu")
        for precision in ("fp32", "bf16", "int8"):
            try:
                file = Path(place) / f"{precision}.safetensors"
                features = kedge.extract(photos, encoder=encoder, out=file, precision=precision)
            except kedge.MissingExtra as error:
                print(f"{precision}: {error}")
                continue
            labels = kedge.adapt(features).labels
            accuracy = float((labels == features.labels).double().mean())
            print(
                f"{precision}: {len(features):,} pictures, {features.head.k} classes, zero-shot "
                f"{features.zero_shot_accuracy():.4f}, kedge {accuracy:.4f}; {features.precision}",
                flush=True,
            )


if __name__ == "__main__":
    main()
