"""Fetch the packages of drawings with npm and unpack them.

    python tools/tiny/collect.py WORK

Writes WORK/npm/PACKAGE-VERSION/. Packages that are there already are not fetched again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tarfile
from pathlib import Path

from styles import NAMES, STYLES


def package_folder(work: Path, package: str, version: str) -> Path:
    """Where a package is unpacked."""
    return work / "npm" / f"{package.removeprefix('@').replace('/', '-')}-{version}"


def fetch(work: Path, package: str, version: str) -> Path:
    """Download a package of exactly this version; npm checks its hash."""
    folder = package_folder(work, package, version)
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["npm", "pack", "--silent", f"{package}@{version}"], cwd=folder.parent, check=True)
        with tarfile.open(f"{folder}.tgz") as archive:
            archive.extractall(folder, filter="data")
    return folder / "package"


def main() -> None:
    """Fetch all, and check the licences."""
    parser = argparse.ArgumentParser(description="Fetch the drawings.")
    parser.add_argument("work", type=Path)
    work = parser.parse_args().work
    fetch(work, *NAMES)
    for style in STYLES:
        info = json.loads((fetch(work, style.package, style.version) / "info.json").read_text())
        if info["license"]["spdx"] != style.licence:
            raise SystemExit(f"{style.package} is under {info['license']['spdx']}, not {style.licence}")
        print(f"{style.package} {style.version}: {info['total']:,} drawings, {style.licence}")


if __name__ == "__main__":
    main()
