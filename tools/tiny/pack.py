"""Put the model and the photographs into kedge.

    python tools/tiny/pack.py WORK src/kedge/data/tiny

Copies WORK/model, writes WORK/images as one zip of class folders, and the model's vocabulary, vocabulary.txt: a concept
per line. Equal input gives equal bytes.
"""

from __future__ import annotations

import argparse
import shutil
import zipfile
from pathlib import Path

from concepts import read_concepts

DATE = (2024, 1, 1, 0, 0, 0)  # fixed, like the permissions, so that the bytes are reproducible


def main() -> None:
    """Write the data folder."""
    parser = argparse.ArgumentParser(description="Put the model and the photographs into kedge.")
    parser.add_argument("work", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    model = options.out / "model"
    shutil.rmtree(model, ignore_errors=True)
    shutil.copytree(options.work / "model", model)
    (options.out / "vocabulary.txt").write_text("".join(f"{concept.name}\n" for concept in read_concepts()))
    images = options.work / "images"
    with zipfile.ZipFile(options.out / "images.zip", "w", zipfile.ZIP_STORED) as archive:
        for path in sorted(images.rglob("*.webp")):
            entry = zipfile.ZipInfo(path.relative_to(images).as_posix(), date_time=DATE)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, path.read_bytes())
    for path in sorted(options.out.rglob("*.*")):
        print(f"{path.relative_to(options.out)}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
