"""The experiments of the StatA paper: which scenarios, methods, datasets and encoders each of them has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..errors import SettingError, did_you_mean

PAPER = "paper"  # as a method: all those of the paper's table
DEFAULT_TABLES = ("1", "2", "alpha", "beta", "runtime")
ON_REQUEST = {  # methods of the paper that run only if they are asked for, and why
    "mta": "needs views of every image, which take {views} times as long to encode",
    "em-dirichlet": "takes some 8 s of processor time for 64 images if there are 1,000 classes",
    "tent": "goes through the encoder, forwards and backwards, for every image of every stream",
}


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper."""

    title: str
    presets: tuple[str, ...]  # of `benchmark.grid`
    paper: tuple[str, ...] = ()  # methods in the paper; (): the preset's own, and no others
    datasets: tuple[str, ...] = ()  # in the paper; (): all eleven

    @property
    def usual(self) -> tuple[str, ...]:
        """The methods that run by default: those of the paper that do not take too long, and kedge."""
        return (*(name for name in self.paper if name not in ON_REQUEST), "kedge") if self.paper else ()

    def methods(self, asked: Sequence[str] | None) -> tuple[str, ...]:
        """The methods to run if these are asked for; (): the preset's own."""
        if asked is None or not self.paper:
            return self.usual
        return tuple(dict.fromkeys(m for name in asked for m in (self.paper if name == PAPER else (name,))))

    def chosen(self, present: Iterable[str]) -> tuple[str, ...]:
        """The datasets to run on: those of the paper that are there; if none of them is, all that are."""
        there = tuple(present)
        return tuple(name for name in there if name in self.datasets) or there


EXPERIMENTS = {
    "1": Experiment(
        "Table 1, batches", ("table1",), ("zero-shot", "mta", "em-dirichlet", "zlap", "transclip", "stata")
    ),
    "2": Experiment("Table 2, streams", ("table2",), ("zero-shot", "mta", "tent", "tda", "dmn", "stata")),
    "encoders": Experiment("Supplement, four more encoders", ("table1", "table2"), ("zero-shot", "stata")),
    "alpha": Experiment("Figure 3, anchor weight α", ("alpha",), datasets=("imagenet", "dtd", "stanford_cars")),
    "beta": Experiment("Table 4, hard and soft β", ("beta",), datasets=("imagenet",)),
    "runtime": Experiment("Table 3, runtime", ("runtime",), datasets=("imagenet",)),
}


def find_tables(names: Iterable[str]) -> tuple[str, ...]:
    """The keys of experiments, in the paper's order; raises SettingError for a name that is none."""
    asked = [name.strip().lower() for name in names]
    for name in asked:
        if name not in EXPERIMENTS:
            raise SettingError(f"unknown table {name!r}{did_you_mean(name, EXPERIMENTS)}")
    if not asked:
        raise SettingError(f"no table is named. Choose from {', '.join(EXPERIMENTS)}.")
    return tuple(key for key in EXPERIMENTS if key in asked)
