"""Why some methods lose much in some scenarios: they assume how many of the classes a batch has."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean

from .scores import Cell

LARGE = 0.1  # a loss against zero-shot, as a share: ten points
ALL_PRESENT = {"transclip": "TransCLIP", "zlap": "ZLaP"}
FEW_PRESENT = {"em-dirichlet": "EM-Dirichlet"}
FEW = 4  # classes in a batch: the most that the scenario very-low has


def why(methods: Iterable[str]) -> str:
    """What these methods assume and what follows, one sentence per assumption; "" if nothing is known of them."""
    found = set(methods)
    said = []
    if names := [name for method, name in ALL_PRESENT.items() if method in found]:
        s, they = ("", "they") if len(names) > 1 else ("s", "it")
        said.append(
            f"{' and '.join(names)} assume{s} that all classes are present: where a batch has few, {they} give{s} "
            "images to classes that are not there."
        )
    if names := [name for method, name in FEW_PRESENT.items() if method in found]:
        said.append(f"{names[0]} assumes that few classes are present: where there are many, it merges them.")
    return " ".join(said)


def explained(cells: Iterable[Cell]) -> str:
    """The reason for the large losses among these cells, as far as an assumption that does not hold there is one."""
    return why(method for cell in cells if cell.score.gain < -LARGE for method in _names(cell) if _fails(method, cell))


def _names(cell: Cell) -> list[str]:
    """The method, or a wrapper and the method in it: `calibrated:transclip`."""
    return cell.label.partition(" ")[0].split(":")


def _fails(method: str, cell: Cell) -> bool:
    """Does the method assume something else than the batches of the cell have? True if their classes are not known."""
    present = [classes for record in cell.records for classes in record.series.classes]
    if not present:
        return True
    return fmean(present) < cell.records[0].classes if method in ALL_PRESENT else fmean(present) > FEW
