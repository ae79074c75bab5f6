"""Measure the model on the simulated photographs and on the held-out drawings.

    python tools/tiny/measure.py WORK [--model FOLDER] [--images FOLDER]

The figures of src/kedge/data/tiny/README.md come from here: zero-shot accuracy and calibration with plain prompts, how
well the image features cluster (10 nearest neighbours and class centroids, each without the image itself), and the
classes that zero-shot never finds. A calibration error is never 0: with few drawings, a calibrated model has one by
chance, and the range of that is printed too. Writes WORK/features.safetensors.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from art import held_out_pictures, load_art
from captions import PROMPT
from concepts import read_concepts
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from towers import MEAN, SIDE, STD

from kedge import FeatureSet
from kedge.answers.calibration import BINS, Reliability
from kedge.encoders.encoder import Encoder
from kedge.encoders.names import load_encoder
from kedge.features.extract import extract
from kedge.images.folders import folder

NEIGHBOURS, COPIES, DRAWS = 10, 20, 2000


def zero_shot(x: Tensor, t: Tensor, scale: float, labels: Tensor) -> tuple[Tensor, Tensor, float]:
    """Whether each label is right (n), its probability (n), and the calibration error."""
    confidence, label = (scale * x @ t.T).softmax(1).max(1)
    reliability = Reliability.empty()
    reliability.add(confidence.numpy(), (label == labels).numpy())
    return label == labels, confidence, reliability.error()


def by_chance(confidence: NDArray[np.float32], right: NDArray[np.bool_], drawing: NDArray[np.int64]) -> list[float]:
    """The calibration error that a calibrated model has by chance: the ends of the middle 90 %, between them the mean.

    confidence, right, drawing (n each): of every picture. The differences right − confidence of a drawing's pictures
    get a random sign together: then their expectation is 0 in every bin, and pictures of one drawing still go together.
    """
    differences = np.zeros((drawing.max() + 1, BINS))
    np.add.at(differences, (drawing, np.clip((confidence * BINS).astype(int), 0, BINS - 1)), right - confidence)
    signs = np.random.default_rng(0).choice([-1, 1], (DRAWS, len(differences)))
    errors = np.abs(signs @ differences).sum(axis=1) / len(confidence)
    return [float(np.quantile(errors, 0.05)), float(errors.mean()), float(np.quantile(errors, 0.95))]


def describe(features: FeatureSet) -> None:
    """Print the figures of the photographs."""
    x, labels, head = features.image_features, features.labels, features.head
    assert labels is not None
    right, _, error = zero_shot(x, head.features, head.logit_scale, labels)
    cosines = (x @ x.T).fill_diagonal_(-torch.inf)
    votes = functional.one_hot(labels[cosines.topk(NEIGHBOURS).indices], head.k).sum(1)
    sums = torch.zeros(head.k, x.shape[1]).index_add_(0, labels, x)
    to_centroid = x @ functional.normalize(sums).T
    own = functional.normalize(sums[labels] - x)  # the centroid of its class without the image itself
    to_centroid[torch.arange(len(x)), labels] = (own * x).sum(1)
    found = torch.zeros(head.k).index_add_(0, labels, right.float()) / torch.bincount(labels, minlength=head.k)
    never = [name for name, share in zip(head.class_names, found, strict=True) if share == 0]
    print(
        f"photographs: {len(x):,} of {head.k} classes, zero-shot {right.float().mean():.1%}, {NEIGHBOURS}-NN "
        f"{(votes.argmax(1) == labels).float().mean():.1%}, centroids "
        f"{(to_centroid.argmax(1) == labels).float().mean():.1%}, calibration error {error:.3f}, never found "
        f"{len(never) / head.k:.1%}: {', '.join(never)}"
    )


def held_out(encoder: Encoder, work: Path, seed: int) -> None:
    """Print zero-shot accuracy and calibration on the held-out drawings, among all concepts."""
    pictures, labels = held_out_pictures(load_art(work, "held-out", SIDE), SIDE, COPIES, seed)
    x = torch.cat([encoder.encode_images((part - MEAN) / STD) for part in pictures.split(500)])
    t = encoder.encode_texts([PROMPT.format(concept.name) for concept in read_concepts()])
    right, confidence, error = zero_shot(x, t, encoder.logit_scale, labels)
    drawing = np.arange(len(x)) % (len(x) // COPIES)
    low, usual, high = by_chance(confidence.numpy(), right.numpy(), drawing)
    print(
        f"held-out drawings: {len(x):,} pictures, {len(t)} classes, zero-shot {right.float().mean():.1%}, "
        f"calibration error {error:.3f} (of a calibrated model: {usual:.3f} in the mean, {low:.3f} to {high:.3f})"
    )


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description="Measure kedge's bundled model on the simulated photographs.")
    parser.add_argument("work", type=Path)
    parser.add_argument("--model", help="any encoder's name; WORK/model by default")
    parser.add_argument("--images", type=Path, help="WORK/images by default")
    parser.add_argument("--seed", type=int, default=1, help="of the held-out pictures; training uses 0")
    options = parser.parse_args()
    torch.set_num_threads(1)
    encoder = load_encoder(options.model or str(options.work / "model"), device="cpu")
    print(f"logit scale {encoder.logit_scale:.2f}, dimension {encoder.dimension}")
    images = folder(options.images or options.work / "images")
    out = options.work / "features.safetensors"
    describe(extract(images, encoder=encoder, templates=[PROMPT], out=out, force=True))
    held_out(encoder, options.work, options.seed)


if __name__ == "__main__":
    main()
