"""Whatever an actor is doing when it is lost, the solve comes to the labels of one that was not disturbed.

Actors are those of a stand-in, in this process; test_solve.py has real ones.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from ray.exceptions import ActorUnavailableError, OutOfMemoryError
from torch import Tensor

from kedge.cluster import actors
from kedge.features.folder import FeatureFolder, split
from kedge.features.simulate import simulate
from kedge.labelling.adapt_folder import adapt_folder
from kedge.labelling.label_folder import LabelFolder
from kedge.methods.solve.parts import PartLost
from ray_stand_in import RAY, Hosts

ARRANGING = ["make", "size", "visit_centres", "leaving", "arrive", "settle", "look", "merge", "save"]
SOLVING = [
    *("crossing", "link", "total", "survey", "lend_labels", "agreeing", "lend_classes", "start", "fit", "lend"),
    *("assign", "statistics"),
]
LAST = ["mark", "change", "mass", "temper", "between"]  # calls in the last iteration, and later
K = 30


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actors, "ray_library", lambda: RAY)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> FeatureFolder:
    return split(simulate(600, K, d=32, seed=1), tmp_path_factory.mktemp("features") / "f", 100)


@pytest.fixture(scope="module")
def undisturbed(folder: FeatureFolder, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tensor, Tensor]:
    return together(adapt_folder(folder, tmp_path_factory.mktemp("one") / "labels", parts=3, compiled=False))


def together(labels: LabelFolder) -> tuple[Tensor, Tensor]:
    """Labels and z of all images; the candidates are all classes."""
    shards = list(labels.shards())
    return torch.cat([shard["labels"] for shard in shards]), torch.cat([shard["z"] for shard in shards])


def losing(*losses: tuple[int, str, int, str]) -> Callable[[int, str], str]:
    """Part, call, at which of these calls, and whether the actor is lost before or after it."""
    seen = [0] * len(losses)

    def loses(number: int, call: str) -> str:
        for each, (part, name, turn, when) in enumerate(losses):
            if (part, name) == (number, call):
                seen[each] += 1
                if seen[each] == turn:
                    return when
        return ""

    return loses


def solved(folder: FeatureFolder, out: Path, hosts: Hosts) -> LabelFolder:
    return adapt_folder(folder, out, parts=3, engine=hosts, compiled=False)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", [*ARRANGING, *SOLVING])
def test_a_part_that_is_lost_at_a_call(
    call: str, when: str, folder: FeatureFolder, undisturbed: tuple[Tensor, Tensor], tmp_path: Path
) -> None:
    hosts = Hosts(3, losing((1, call, 1, when)))
    labels = solved(folder, tmp_path / "labels", hosts)
    assert hosts.replaced == [1]
    assert labels.summary["converged"]
    found = together(labels)
    assert torch.equal(found[0], undisturbed[0])
    assert (found[1] - undisturbed[1]).abs().max() <= 1e-3


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", LAST)
def test_a_part_that_is_lost_at_the_end(
    call: str, when: str, folder: FeatureFolder, undisturbed: tuple[Tensor, Tensor], tmp_path: Path
) -> None:
    """Its probabilities have only the z-steps of one iteration to settle."""
    hosts = Hosts(3, losing((1, call, 1, when)))
    found = together(solved(folder, tmp_path / "labels", hosts))
    assert hosts.replaced == [1]
    assert torch.equal(found[0], undisturbed[0])
    assert (found[1] - undisturbed[1]).abs().max() <= 0.03


@pytest.mark.parametrize("turn", [2, 3, 5, 14, 27, 30, 31, 32, 33])
def test_a_part_that_is_lost_in_a_later_step(
    turn: int, folder: FeatureFolder, undisturbed: tuple[Tensor, Tensor], tmp_path: Path
) -> None:
    labels = solved(folder, tmp_path / "labels", Hosts(3, losing((1, "assign", turn, "before"))))
    found = together(labels)
    assert torch.equal(found[0], undisturbed[0])
    assert (found[1] - undisturbed[1]).abs().max() <= (1e-3 if turn < 30 else 0.03)


def test_a_part_that_is_lost_before_the_last_m_step(
    folder: FeatureFolder, undisturbed: tuple[Tensor, Tensor], tmp_path: Path
) -> None:
    """It starts from the statistics of the M-step before."""
    found = together(solved(folder, tmp_path / "labels", Hosts(3, losing((1, "statistics", 10, "before")))))
    assert torch.equal(found[0], undisturbed[0])
    assert (found[1] - undisturbed[1]).abs().max() <= 0.01


@pytest.mark.parametrize("call", ["link", "survey", "start", "fit", "assign", "mark", "temper"])
def test_a_part_that_had_answered_is_lost_while_another_is_made_again(
    call: str, folder: FeatureFolder, undisturbed: tuple[Tensor, Tensor], tmp_path: Path
) -> None:
    """What the call did to it is done again."""
    hosts = Hosts(3, losing((1, call, 1, "before"), (0, "crossing", 2, "before")))
    found = together(solved(folder, tmp_path / "labels", hosts))
    assert hosts.replaced == [1, 0]
    assert torch.equal(found[0], undisturbed[0])
    assert (found[1] - undisturbed[1]).abs().max() <= 0.03


@pytest.mark.parametrize(
    ("part", "call"),
    [(1, "make"), (2, "crossing"), (1, "link"), (1, "survey"), (2, "lend_classes"), (1, "fit"), (0, "lend")],
)
def test_a_part_that_is_lost_while_one_is_made_again(
    part: int, call: str, folder: FeatureFolder, undisturbed: tuple[Tensor, Tensor], tmp_path: Path
) -> None:
    hosts: Hosts
    first = losing((1, "assign", 14, "before"))

    def loses(number: int, name: str) -> str:
        if not hosts.replaced:
            return first(number, name)
        return "before" if (number, name) == (part, call) and len(hosts.replaced) == 1 else ""

    hosts = Hosts(3, loses)
    found = together(solved(folder, tmp_path / "labels", hosts))
    assert hosts.replaced == [1, part]
    assert torch.equal(found[0], undisturbed[0])


@pytest.mark.parametrize("error", [OutOfMemoryError("no memory"), ActorUnavailableError("no answer", b"0" * 16)])
def test_other_ways_to_lose_an_actor(
    error: Exception, folder: FeatureFolder, undisturbed: tuple[Tensor, Tensor], tmp_path: Path
) -> None:
    hosts = Hosts(3, losing((1, "assign", 14, "after")), error)
    assert torch.equal(together(solved(folder, tmp_path / "labels", hosts))[0], undisturbed[0])
    assert hosts.replaced == [1]


@pytest.mark.parametrize(
    ("cores", "number", "threads"),
    [([16, 2], 2, 2), ([2, 16], 1, 16), ([4, 4, 4], 2, 4), ([4, 4], 4, 2), ([16, 2], 3, 2)],
)
def test_each_actor_finds_a_place_on_a_node_of_its_own_if_there_are_enough(
    cores: list[int], number: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actors, "nodes", lambda: [{"Resources": {"CPU": each}} for each in cores])
    assert actors._threads(number) == threads


def test_losses_without_end(folder: FeatureFolder, tmp_path: Path) -> None:
    hosts = Hosts(3, lambda number, call: "before" if (number, call) == (1, "statistics") else "")
    with pytest.raises(PartLost, match=r"^a part was lost before all had answered statistics: .*Look at the nodes"):
        solved(folder, tmp_path / "labels", hosts)
    assert len(hosts.replaced) == actors.RETRIES - 1
