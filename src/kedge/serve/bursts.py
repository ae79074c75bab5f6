"""One solve for a burst of changes: those that come while a solve runs wait, and the next solve serves them all."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from .said import Said

Answer: TypeAlias = dict[str, Any]
Done: TypeAlias = tuple[str, Callable[[], object]]  # what was done, in words, and how to take it back


@dataclass
class _Burst:
    parts: list[Done] = field(default_factory=list)
    answer: Answer | None = None
    error: Exception | None = None


class Bursts:
    """Does changes and answers them.

    look: what is said now, with all changes done. solve: the answer to that; it is also told what was done.
    """

    def __init__(self, look: Callable[[], Said], solve: Callable[[Said, list[str]], Answer]) -> None:
        self._look, self._solve = look, solve
        self.solving = threading.Lock()  # held by whoever solves
        self._changing = threading.Lock()  # taken after `solving`, if both are needed
        self._next = _Burst()

    def do(self, change: Callable[[], Done]) -> Answer:
        """Do a change, and return an answer in which it counts.

        If the solve fails, the change is taken back, and so are all that wait for the next solve.
        """
        with self._changing:
            burst = self._next
            burst.parts.append(change())
        with self.solving:
            if burst.answer is None and burst.error is None:  # nobody else did
                self._serve(burst)
        if burst.error is not None:
            raise burst.error
        assert burst.answer is not None
        return burst.answer

    def _serve(self, burst: _Burst) -> None:
        with self._changing:
            self._next = _Burst()
            now = self._look()
        try:
            burst.answer = self._solve(now, [what for what, _ in burst.parts])
        except Exception as error:  # whatever a method raises
            with self._changing:
                later, self._next = self._next, _Burst()
                later.error = burst.error = error
                for _, take_back in reversed([*burst.parts, *later.parts]):
                    take_back()
