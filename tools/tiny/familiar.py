"""Write which images the bundled model knows: the centre of each class of photographs, and how far they are from it.

    python tools/tiny/familiar.py src/kedge/data/tiny

Writes familiar.safetensors beside the model, from the model and images.zip there. The verdict on labels uses it: images
that are much farther away are not of the kind that the model knows.
"""

from __future__ import annotations

import argparse
import tempfile
import zipfile
from pathlib import Path

import torch

from kedge.arrays import unit
from kedge.encoders.familiar import Familiar
from kedge.encoders.names import load_encoder
from kedge.features.extract import extract
from kedge.images.folders import folder


def main() -> None:
    """Encode the photographs and write the file."""
    parser = argparse.ArgumentParser(description="Write which images the bundled model knows.")
    parser.add_argument("data", type=Path)
    place = parser.parse_args().data
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        images = Path(temporary) / "images"
        with zipfile.ZipFile(place / "images.zip") as archive:
            archive.extractall(images)
        encoder = load_encoder(str(place / "model"), device="cpu")
        features = extract(folder(images), encoder=encoder, out=Path(temporary) / "features.safetensors")
        x, labels = features.image_features, features.labels
        assert labels is not None
        centres = unit(torch.zeros(features.head.k, x.shape[1]).index_add_(0, labels, x)).half()
        distance = float(1 - (x @ centres.float().T).amax(dim=1).mean())
    known = Familiar(centres, distance, encoder.provenance["weights_sha256"])
    known.save(place / "familiar.safetensors")
    print(f"{len(centres)} centres, mean distance {distance:.4f}")


if __name__ == "__main__":
    main()
