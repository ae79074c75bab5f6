"""Measure the bundled model on the bundled images. The tables of src/kedge/data/tiny/README.md come from here.

    python tools/tiny/measure.py [--methods] [--out FEATURES.safetensors]

Accuracy of plain prompts on clean and shifted test images, how well the image features cluster (leave-one-out nearest
neighbours and class centroids) and, with --methods, every method in the paper's scenarios.
"""

from __future__ import annotations

import argparse
import io
import zipfile
from pathlib import Path

import torch
from fashion import CLASSES, DIRECTORY, read
from PIL import Image
from torch import Tensor
from torch.nn import functional

from kedge import FeatureSet
from kedge.benchmark.evaluate import evaluate
from kedge.benchmark.metrics import Reliability
from kedge.encoders.encoder import Encoder
from kedge.encoders.names import load_encoder
from kedge.features.text_head import text_head
from kedge.images.pixels import open_image, to_rgb

TINY = Path(__file__).parents[2] / "src" / "kedge" / "data" / "tiny"
PROMPT = "a photo of a {}."
METHODS = ("kedge", "stata", "transclip", "moon", "em-dirichlet", "zlap", "tda", "dmn", "oga")
SCENARIOS = ("very-low", "low", "medium", "all", "stream-high")
NEIGHBOURS = 10


def embed(encoder: Encoder, images: list[Image.Image]) -> Tensor:
    """Unit features (n×d)."""
    pixels = [
        torch.stack([encoder.preprocessing(image) for image in images[i : i + 500]]) for i in range(0, len(images), 500)
    ]
    return torch.cat([encoder.encode_images(part) for part in pixels])


def shifted(encoder: Encoder, images: Path) -> FeatureSet:
    """Features of the zip's images, with labels from its folders and the head of plain prompts."""
    with zipfile.ZipFile(images) as archive:
        paths = archive.namelist()
        opened = [open_image(io.BytesIO(archive.read(path))) for path in paths]
    return FeatureSet.from_arrays(
        embed(encoder, opened),
        text_head(encoder, CLASSES, (PROMPT,)),
        labels=[CLASSES.index(path.split("/")[0]) for path in paths],
        paths=paths,
        provenance={**encoder.provenance, "dataset": "tiny", "templates": [PROMPT]},
    )


def clean(encoder: Encoder, directory: Path) -> FeatureSet:
    """Features of Fashion-MNIST's test images as they are."""
    images, labels = read(directory, "t10k")
    opened = [to_rgb(Image.fromarray(image)) for image in images]
    return FeatureSet.from_arrays(embed(encoder, opened), text_head(encoder, CLASSES, (PROMPT,)), labels=labels)


def describe(name: str, features: FeatureSet) -> None:
    """Print zero-shot accuracy and calibration, and how well the classes cluster."""
    x, labels, k = features.image_features, features.labels, features.head.k
    assert labels is not None
    logits = features.head.logit_scale * x @ features.head.features.T
    confidence, label = logits.softmax(1).max(1)
    right = label == labels
    reliability = Reliability.empty()
    reliability.add(confidence.numpy(), right.numpy())
    cosines = (x @ x.T).fill_diagonal_(-torch.inf)
    votes = functional.one_hot(labels[cosines.topk(NEIGHBOURS).indices], k).sum(1)
    member = functional.one_hot(labels, k).float()
    sums = member.T @ x
    to_centroid = x @ functional.normalize(sums).T
    own = functional.normalize(sums[labels] - x)  # the centroid of its class without the image itself
    to_centroid[torch.arange(len(x)), labels] = (own * x).sum(1)
    between = cosines.masked_fill(cosines.isinf(), 0).sum() / (len(x) * (len(x) - 1))
    print(
        f"{name}: {len(x)} images, zero-shot {right.float().mean():.2%}, calibration error {reliability.error():.3f}, "
        f"confidence {confidence.mean():.3f}, {NEIGHBOURS}-NN {(votes.argmax(1) == labels).float().mean():.2%}, "
        f"centroids {(to_centroid.argmax(1) == labels).float().mean():.2%}; mean cosine image-image {between:.3f}, "
        f"image-own text {(logits[torch.arange(len(x)), labels] / features.head.logit_scale).mean():.3f}, "
        f"image-text {logits.mean() / features.head.logit_scale:.3f}"
    )
    recall = [f"{CLASSES[c]} {right[labels == c].float().mean():.0%}" for c in range(k)]
    print("  per class: " + ", ".join(recall))


def table(features: FeatureSet, tasks: int, seed: int) -> None:
    """Print every method's accuracy (gain over zero-shot on the same images) in percent, a scenario per row."""
    print("| scenario | tasks | zero-shot | " + " | ".join(METHODS) + " |")
    print("|---" * (len(METHODS) + 3) + "|")
    for scenario in SCENARIOS:
        count = max(1, tasks // 10) if scenario.startswith("stream") else tasks  # one stream contains all images
        records = [evaluate(method, features, scenario, seed=seed, tasks=count) for method in METHODS]
        cells = [f"{100 * record.accuracy:.1f} ({100 * record.gain:+.1f})" for record in records]
        first = [scenario, str(records[0].tasks), f"{100 * records[0].zero_shot:.1f}"]
        print("| " + " | ".join([*first, *cells]) + " |", flush=True)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description="Measure kedge's bundled model on its bundled images.")
    parser.add_argument("--data", type=Path, default=DIRECTORY, help="directory of Fashion-MNIST's four .gz files")
    parser.add_argument("--model", default="tiny", help="any encoder's name")
    parser.add_argument("--images", type=Path, default=TINY / "images.zip")
    parser.add_argument("--out", type=Path, help="write the features of the shifted images here")
    parser.add_argument("--methods", action="store_true")
    parser.add_argument("--tasks", type=int, default=200, help="tasks per scenario")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    encoder = load_encoder(options.model, device="cpu")
    print(f"{options.model}: logit scale {encoder.logit_scale:.3f}, dimension {encoder.dimension}")
    features = shifted(encoder, options.images)
    describe("clean", clean(encoder, options.data))
    describe("shifted", features)
    if options.out:
        features.save(options.out)
    if options.methods:
        table(features, options.tasks, options.seed)


if __name__ == "__main__":
    main()
