"""Label a folder of images, with the small model and some of the images that come with kedge."""

import tempfile
import zipfile
from pathlib import Path

import kedge

with tempfile.TemporaryDirectory() as folder:
    bundled = Path(kedge.__file__).parent / "data" / "tiny" / "images.zip"
    with zipfile.ZipFile(bundled) as archive:
        archive.extractall(folder, archive.namelist()[::20])  # or use a folder of your own

    classes = ["T-shirt", "ankle boot", "bag", "coat", "dress", "pullover", "sandal", "shirt", "sneaker", "trouser"]
    found = kedge.classify(folder, classes, encoder="tiny")  # the default encoder is CLIP ViT-B/16

print(found)
for path, name in list(zip(found.paths, found.names, strict=True))[::25]:
    print(f"{path}: {name}")
