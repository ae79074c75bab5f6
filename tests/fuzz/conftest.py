"""The campaign of hostile trials, the good files that its trials begin with, and the counts at its end."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kedge.encoders.tiny import IMAGES
from pictures import save_pictures
from runner import Campaign, Run

GRID = 'features = ["features.safetensors"]\nmethods = ["zero-shot", "stata"]\nscenarios = ["very-low"]\ntasks = 2\n'
_campaigns: list[Campaign] = []


def make_material(folder: Path, run: Run) -> None:
    """Good files of every kind, made by kedge's own commands."""
    save_pictures(folder / "photos")
    with zipfile.ZipFile(IMAGES) as every, zipfile.ZipFile(folder / "few.zip", "w") as few:  # for a small demo
        for name in every.namelist()[::15]:
            few.writestr(name, every.read(name))
    (folder / "grid.toml").write_text(GRID)
    (folder / "classes.txt").write_text("red\ngreen\nblue\n")
    run.folder = folder
    features = "features.safetensors"
    code = (
        "import kedge, numpy as np\n"
        f"f = kedge.FeatureSet.load({features!r})\n"
        "names = np.array(f.head.class_names)\n"
        "np.savez('features.npz', image_features=f.image_features, text_features=f.head.features, labels=f.labels, "
        "class_names=names)\n"
        "stream = kedge.Stream(f.head, 'kedge')\n"
        "stream.step(f.image_features)\n"
        "stream.save('stream.safetensors')\n"
        "os.makedirs('embeddings/img_emb')\n"
        "np.save('embeddings/img_emb/img_emb_0.npy', f.image_features[:7].half())\n"
        "np.save('embeddings/img_emb/img_emb_1.npy', f.image_features[7:].half())\n"
    )
    for command, before in (
        (["extract", "photos", "--encoder", "tiny", "--views", "2", "-o", features], ""),
        (["plan", features, "--scenario", "very-low", "--tasks", "3", "--save", "plan.safetensors"], ""),
        (["bench", "--grid", "grid.toml", "--out", "records"], ""),
        (["features", "split", features, "folder", "--images-per-shard", "5"], ""),
        ([], code),
    ):
        assert run(command, before=before).code == 0


@pytest.fixture(scope="session")
def campaign(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Campaign]:
    """Conducts trials; see `runner`."""
    parts = sum("fuzz" in item.keywords for item in request.session.items)
    made = Campaign(tmp_path_factory.mktemp("material"), tmp_path_factory.mktemp("trials"), parts)
    make_material(made.material, made.runs[0])
    _campaigns.append(made)
    yield made
    made.close()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for made in _campaigns:
        terminalreporter.section("hostile trials")
        for line in made.table():
            terminalreporter.write_line(line)
