"""One joint solve in actors on three nodes gives what one process gives, also if something is lost in the middle."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import kedge
from clusters import MATRIX, started, until
from command import run
from kedge.cluster import actors, solve
from kedge.cluster.connect import ray_library
from kedge.features.folder import FeatureFolder, split
from kedge.features.simulate import simulate
from kedge.labelling.label_folder import LabelFolder
from kedge.labelling.label_work import WORK

KNOWN = {5: 3, 2999: 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> FeatureFolder:
    return split(simulate(3000, 20, d=32, seed=1), tmp_path_factory.mktemp("features") / "f", 500)


def together(labels: LabelFolder) -> tuple[Tensor, Tensor]:
    """Labels and z of all images; the candidates are all classes."""
    shards = list(labels.shards())
    return torch.cat([shard["labels"] for shard in shards]), torch.cat([shard["z"] for shard in shards])


@pytest.mark.parametrize("search", ["exact", "approximate"])
def test_a_joint_solve_is_that_of_one_process(search: str, nodes: Any, folder: FeatureFolder, tmp_path: Path) -> None:
    settings = {"known": KNOWN, "search": search, "method": "kedge" if search == "exact" else "stata"}
    one = kedge.adapt_folder(folder, tmp_path / "one", **settings)
    three = solve.adapt_folder(folder, tmp_path / "three", **settings)
    assert three.summary["parts"] == 3
    assert 0 < three.summary["crossing"] < 0.2
    assert three.summary.get("recall") == one.summary.get("recall")
    labels, z = together(one)
    assert torch.equal(together(three)[0], labels)
    assert (together(three)[1] - z).abs().max() <= 1e-4


@pytest.mark.parametrize("gone", ["actor", pytest.param("node", marks=MATRIX)])
def test_an_actor_or_its_node_lost_in_the_middle(
    gone: str, nodes: Any, folder: FeatureFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its part is made again from its files and the last statistics, and the solve goes on to the same labels."""
    ray, steps, lost = ray_library(), [0], []
    whole = actors.Actors._all

    def with_a_loss(self: actors.Actors, made: actors.Made, lasting: bool) -> list[Any]:
        steps[0] += made.call == "assign"
        if steps[0] == 14 and not lost:
            on = ray.get([actor.node.remote() for actor in self.hosts.actors])
            lost.append(next(number for number, node in enumerate(on) if node != nodes.head_node.node_id))
            if gone == "actor":
                os.kill(ray.get(self.hosts.actors[lost[0]].process.remote()), signal.SIGKILL)
            else:
                (node,) = (each for each in nodes.list_all_nodes() if each.node_id == on[lost[0]])
                nodes.remove_node(node, allow_graceful=False)
        return whole(self, made, lasting)

    monkeypatch.setattr(actors.Actors, "_all", with_a_loss)
    monkeypatch.setattr(actors.Host, "process", lambda self: os.getpid(), raising=False)
    said: list[str] = []
    monkeypatch.setattr(actors, "notice", said.append)
    try:
        labels = solve.adapt_folder(folder, tmp_path / "labels", actors=3)
    finally:
        if gone == "node":
            nodes.add_node(num_cpus=1, object_store_memory=100 << 20)
            nodes.wait_for_nodes()
    assert f"part {lost[0]} was lost, and is made again" in said
    expected = together(kedge.adapt_folder(folder, tmp_path / "one"))
    found = together(labels)
    assert float((found[0] == expected[0]).double().mean()) >= 0.999
    assert (found[1] - expected[1]).abs().max() <= 0.05


DRIVER = """
import sys
import time
from kedge.cluster.solve import adapt_folder
from kedge.methods.solve import joint
address, features, out = sys.argv[1:]
joint.link = lambda parts: time.sleep(600)
adapt_folder(features, out, address=address, actors=3)
"""


@MATRIX
def test_a_killed_driver_is_started_again(
    nodes: Any, folder: FeatureFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on from the images in their cells."""
    work = tmp_path / "labels" / WORK
    driver = started(DRIVER, nodes.address, folder.path, tmp_path / "labels")
    until((work / "arranged.safetensors").exists)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    until(lambda: ray_library().available_resources().get("CPU", 0) >= 3)  # its actors have ended
    expected = together(kedge.adapt_folder(folder, tmp_path / "one"))[0]
    monkeypatch.setattr("kedge.labelling.label_work.arrange", None)  # not a second time
    labels = solve.adapt_folder(folder, tmp_path / "labels")  # in as many parts as before
    assert labels.summary["parts"] == 3
    assert not work.exists()
    assert torch.equal(together(labels)[0], expected)


def test_the_command_line(nodes: Any, folder: FeatureFolder, tmp_path: Path) -> None:
    """Of one actor; the connection that is there is used."""
    ran = run("adapt", folder.path, "--label-folder", tmp_path / "labels", "--cluster", "auto", "--actors", "1")
    assert ran.code == 0, ran.err
    assert len(LabelFolder.open(tmp_path / "labels")) == 3000


def test_more_actors_than_cores_are_refused(nodes: Any, folder: FeatureFolder, tmp_path: Path) -> None:
    with pytest.raises(kedge.SettingError, match="7 actors need as many cores; the cluster has 3"):
        solve.adapt_folder(folder, tmp_path / "labels", actors=7)


def test_what_a_part_raises_is_raised_here(nodes: Any, tmp_path: Path) -> None:
    folder = split(simulate(60, 4, d=16, seed=1), tmp_path / "f", 20)
    shard = folder.shards[1].path
    shard.write_bytes(shard.read_bytes()[:-8])
    with pytest.raises(kedge.FileError, match=shard.name):
        solve.adapt_folder(folder, tmp_path / "labels", actors=2)
