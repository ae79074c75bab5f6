"""Plans: the tasks of a scenario, drawn with a seed from the labels of one dataset, as arrays of image numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from ..errors import FileError, InputError
from ..ranges import seed_number
from ..schema import Meta, Positive, Whole
from ..tensor_files import check_names, content_hash, load_tensors, save_tensors
from .scenarios import Episode, Indices, Scenario, describe, find_scenario, task_count

KIND, VERSION = "plan", 1


@dataclass(frozen=True)
class Header:
    """What the file of a plan says beside its tensors; see `Plan`."""

    scenario: str
    seed: Whole
    n: Positive
    labels_hash: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


@dataclass(frozen=True)
class Plan:
    """Episodes, each a list of batches of image numbers, with their provenance."""

    episodes: Sequence[Episode]
    scenario: str  # a name, or kind:setting=value,…
    seed: int
    n: int  # number of images of the dataset
    labels_hash: str  # sha256 of its labels: a plan fits only this dataset

    def batches(self) -> Iterator[Indices]:
        """Every batch of every episode."""
        return (batch for episode in self.episodes for batch in episode)

    @cached_property
    def hash(self) -> str:
        """sha256 of the plan. Plans with the same tasks have the same hash."""
        tensors, meta = self._parts()
        return content_hash(tensors, {"kind": KIND, "version": VERSION, **meta})

    def save(self, path: str | Path) -> str:
        """Write the plan to a file, by rename, and return its hash. The same plan gives the same bytes."""
        return save_tensors(path, KIND, VERSION, *self._parts())

    def _parts(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        batches = list(self.batches())
        tensors = {
            "indices": torch.from_numpy(np.concatenate(batches)),
            "batch_sizes": torch.tensor([len(batch) for batch in batches]),
            "episode_sizes": torch.tensor([len(episode) for episode in self.episodes]),
        }
        return tensors, {f.name: getattr(self, f.name) for f in fields(self) if f.name != "episodes"}

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read a plan from its file."""
        tensors, header = load_tensors(path, KIND, VERSION, Header)
        check_names(Path(path), tensors, ("indices", "batch_sizes", "episode_sizes"))
        indices, sizes, episode_sizes = (tensors[name] for name in ("indices", "batch_sizes", "episode_sizes"))
        for name, numbers in tensors.items():
            if numbers.dtype != torch.int64 or numbers.dim() != 1:
                raise FileError(f"{path} is not a plan: {name} is {numbers.dtype} of shape {tuple(numbers.shape)}.")
        if not (_are_sizes(sizes, len(indices)) and _are_sizes(episode_sizes, len(sizes))):
            raise FileError(f"{path} is not a plan: the sizes of batches or episodes do not fit. Draw it again.")
        if int(indices.min()) < 0 or int(indices.max()) >= header.n:
            raise FileError(f"{path} is not a plan: it has images outside of 0 to {header.n - 1}. Draw it again.")
        batches = iter(np.split(indices.numpy().copy(), np.cumsum(sizes.numpy())[:-1]))
        episodes = [[next(batches) for _ in range(size)] for size in episode_sizes.tolist()]
        return cls(episodes, **vars(header))

    def check_fits(self, labels: Any) -> None:
        """Raise FileError if the plan was drawn from other labels."""
        if hash_labels(as_labels(labels)) != self.labels_hash:
            raise FileError(
                f"this plan was drawn for {self.n} other labels than the {len(labels)} given. "
                "Draw a plan for this dataset."
            )


def _are_sizes(sizes: Tensor, total: int) -> bool:
    """Are these the sizes of one or more parts, none empty, of so many things?"""
    return bool(((sizes >= 1) & (sizes <= total)).all()) and int(sizes.sum()) == total > 0


def draw(scenario: str | Scenario, labels: Any, seed: int = 0, tasks: int | None = None) -> Plan:
    """Draw a plan for these labels (n) with `tasks` episodes; by default the scenario's own number."""
    chosen = find_scenario(scenario)
    labels = as_labels(labels)
    seed = seed_number(seed)
    count = task_count(chosen, tasks)
    episodes = [chosen.episode(labels, np.random.default_rng([seed, task])) for task in range(count)]
    return Plan(episodes, describe(chosen), seed, len(labels), hash_labels(labels))


def as_labels(labels: Any) -> Indices:
    """Class numbers as int64, n."""
    array = np.asarray(labels)
    if array.ndim != 1 or len(array) == 0 or array.dtype.kind not in "iu":
        raise InputError(
            "a scenario needs the labels of at least one image, as whole numbers; "
            f"got {array.dtype} of shape {array.shape}."
        )
    return array.astype(np.int64)


def hash_labels(labels: Indices) -> str:
    """sha256 of the labels."""
    return hashlib.sha256(labels.astype("<i8").tobytes()).hexdigest()
