"""Label a folder of images, with the small model and some of the images that come with kedge."""

import tempfile
import zipfile
from pathlib import Path

import kedge

classes = ["apple", "banana", "bicycle", "castle", "cat", "guitar", "penguin", "pizza", "rocket", "umbrella"]
with tempfile.TemporaryDirectory() as folder:
    bundled = Path(kedge.__file__).parent / "data" / "tiny" / "images.zip"
    with zipfile.ZipFile(bundled) as archive:
        some = [path for path in archive.namelist() if path.split("/")[0] in classes]
        archive.extractall(folder, some)  # or use a folder of your own

    found = kedge.classify(folder, classes, encoder="tiny")  # the default encoder is CLIP ViT-B/16

print(found)
for path, name in list(zip(found.paths, found.names, strict=True))[::25]:
    print(f"{path}: {name}")
