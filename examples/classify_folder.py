"""From a folder of images to labels, with the model and some of the images that come with kedge."""

import tempfile
import zipfile
from pathlib import Path

import kedge

with tempfile.TemporaryDirectory() as folder:
    bundled = Path(kedge.__file__).parent / "data" / "tiny" / "images.zip"
    with zipfile.ZipFile(bundled) as archive:
        archive.extractall(folder, archive.namelist()[::20])  # a folder of your own does as well

    classes = ["T-shirt", "ankle boot", "bag", "coat", "dress", "pullover", "sandal", "shirt", "sneaker", "trouser"]
    found = kedge.classify(folder, classes, encoder="tiny")  # without encoder=… it is CLIP ViT-B/16

for path, name in list(zip(found.paths, found.names, strict=True))[::25]:
    print(f"{path}: {name}")
print(f"{found.summary()['changed']} of {len(found.paths)} labels are not what the model said by itself")
