"""Images in several parts, each held by an object of its own: in this process, or in an actor somewhere else.

A solver that is written for `Parts` runs in both. It calls functions of the objects by name, and objects give each
other what the other needs:

    parts = Here([Rows(…), Rows(…)])
    counts = sum(parts.each("mass"))                   # every part: mass()
    parts.exchange("lend", "assign")                   # part a's lend()[b] is entry a of part b's assign([…])

An object may be lost, with the machine it is on. Then it is made again, its function `resume` is called, and the
calls that were marked `lasting` are made of it again, in their order, but for those that are forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from ...errors import KedgeError

Engine: TypeAlias = Callable[[Callable[..., Any], Sequence[tuple[Any, ...]]], "Parts"]
# what makes an object of each of these arguments, where they are to be


class PartLost(KedgeError):
    """An object was lost, and its work cannot be continued."""


class Parts(Protocol):
    """Objects of one class, each with its part of the images."""

    def __len__(self) -> int:
        """How many parts there are."""

    def each(self, call: str, *shared: Any, own: Sequence[Any] | None = None, lasting: bool = False) -> list[Any]:
        """Call this function of every part, with its entry of `own` first, if given; the results, by part."""

    def exchange(
        self, give: str, take: str, *shared: Any, giving: tuple[Any, ...] = (), lasting: bool = False
    ) -> list[Any]:
        """Every part's `give(*giving)` is a list with an entry per part. Call `take` of every part with the list of
        entries that are for it, by giver, and what is shared; the results, by part.
        """

    def forget(self, call: str) -> None:
        """Forget the last call of this function that was marked `lasting`, if there is one, and all that came after."""

    def close(self) -> None:
        """Let go of the objects."""


class Here:
    """Parts that are objects of this process."""

    def __init__(self, objects: Sequence[Any]) -> None:
        self.objects = objects

    def __len__(self) -> int:
        return len(self.objects)

    def each(self, call: str, *shared: Any, own: Sequence[Any] | None = None, lasting: bool = False) -> list[Any]:
        """See `Parts`."""
        if own is None:
            return [getattr(part, call)(*shared) for part in self.objects]
        return [getattr(part, call)(mine, *shared) for part, mine in zip(self.objects, own, strict=True)]

    def exchange(
        self, give: str, take: str, *shared: Any, giving: tuple[Any, ...] = (), lasting: bool = False
    ) -> list[Any]:
        """See `Parts`."""
        given = self.each(give, *giving)
        return self.each(take, *shared, own=[list(entries) for entries in zip(*given, strict=True)])

    def forget(self, call: str) -> None:
        """See `Parts`; objects of this process are not lost."""

    def close(self) -> None:
        """See `Parts`."""
        self.objects = ()


def here(make: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> Here:
    """The engine of this process."""
    return Here([make(*each) for each in arguments])
