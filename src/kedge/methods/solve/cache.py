"""Per-class memories: for every class, the few images with the lowest zero-shot entropy. TDA, DMN and OGA use one.

Image by image the rule is: a newcomer enters its class's memory if there is room, else it takes the place of the
entry with the highest entropy, if its own is lower. What that leaves after any number of images is the L of lowest
entropy of all seen (the earlier one of two equals), so a whole batch can enter by one sort, exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...errors import SettingError
from ...memory import check_memory
from ...words import count
from ..contract import State


def entropy(log_p: Tensor) -> Tensor:
    """H of each row in nats, n, for logarithms of probabilities (n×k)."""
    return -(log_p.exp() * log_p).sum(dim=-1)


@dataclass(frozen=True)
class Memory:
    """L slots for each of k classes, in ascending order of entropy. `take` writes to its tensors."""

    entropy: Tensor  # k×L; ∞ is an empty slot
    entries: dict[str, Tensor]  # each k×L×…, what is remembered of an image; 0 in an empty slot

    @classmethod
    def empty(cls, k: int, slots: int, **like: Tensor) -> Memory:
        """An empty memory. `like`: for each kind of entry, a tensor of its shape and type.

        Raises SettingError if there is no room: a step holds the state, its copy, and both beside the newcomers.
        """
        needed = 4 * k * slots * sum(entry.numel() * entry.element_size() for entry in like.values())
        check_memory(needed, f"{count(slots, 'slot')} for each of {count(k, 'class')}", SettingError)
        first = next(iter(like.values()))
        return cls(
            torch.full((k, slots), torch.inf, dtype=first.dtype, device=first.device),
            {
                name: torch.zeros((k, slots, *entry.shape), dtype=entry.dtype, device=entry.device)
                for name, entry in like.items()
            },
        )

    @classmethod
    def of(cls, state: State, name: str) -> Memory:
        """The memory that a state holds under this name; it shares the state's tensors."""
        mine = {key.removeprefix(f"{name}."): v for key, v in state.items() if key.startswith(f"{name}.")}
        return cls(mine.pop("entropy"), mine)

    def state(self, name: str) -> dict[str, Tensor]:
        """Its tensors for a state, under this name."""
        return {f"{name}.{key}": value for key, value in (("entropy", self.entropy), *self.entries.items())}

    @property
    def filled(self) -> Tensor:
        """Which slots hold an image, k×L; a class's filled slots come first."""
        return self.entropy < torch.inf

    def take(self, classes: Tensor, entropies: Tensor, **entries: Tensor) -> None:
        """Remember m images, all or some: their classes and entropies (m), their entries (each m×…), in their order."""
        slots = self.entropy.shape[1]
        # Newcomers class by class, each class in ascending entropy; only its L best can stay.
        order = entropies.argsort(stable=True)
        order = order[classes[order].argsort(stable=True)]
        touched, row, count = torch.unique_consecutive(classes[order], return_inverse=True, return_counts=True)
        rank = torch.arange(len(order), device=order.device) - (count.cumsum(0) - count)[row]
        order, row, rank = (part[rank < slots] for part in (order, row, rank))

        def beside(old: Tensor, new: Tensor, nothing: float) -> Tensor:
            """The touched classes' L old entries, then L places for newcomers: a×2L×…"""
            both = torch.cat([old[touched], torch.full_like(old[touched], nothing)], dim=1)
            both[row, slots + rank] = new[order]
            return both

        ranked = beside(self.entropy, entropies, torch.inf).sort(dim=1, stable=True)
        self.entropy[touched] = ranked.values[:, :slots]
        kept = ranked.indices[:, :slots]
        which = torch.arange(len(touched), device=kept.device)[:, None]
        for name, new in entries.items():
            self.entries[name][touched] = beside(self.entries[name], new, 0)[which, kept]

    def queue(self, classes: Tensor, **entries: Tensor) -> None:
        """Remember m images of different classes, first in, first out: the age in images takes the entropy's place."""
        self.entropy[classes] += 1
        self.take(classes, self.entropy.new_zeros(len(classes)), **entries)
