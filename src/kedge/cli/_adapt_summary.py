"""What `kedge adapt` says on stderr when it is done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..words import count, first_few, percent
from ._show import tell, tell_table

SHOWN_LABELS = 10  # the most frequent ones
SHOWN_CLASSES = 5  # those most in doubt
UNSETTLED = 0.05  # change of a probability in the last iteration that is worth a word


def show_summary(summary: Mapping[str, Any]) -> None:
    """What was labelled, in a few lines."""
    images, changed = summary["images"], summary["changed"]
    encoded = f"encoded in {summary['encoding_seconds']:.2f} s, " if "encoding_seconds" in summary else ""
    can_occur = f" ({summary['present']:,} can occur)" if summary["present"] < summary["classes"] else ""
    tell(
        f"{count(images, 'image')}, {count(summary['classes'], 'class')}{can_occur}, method {summary['method']}: "
        f"{count(changed, 'label')} changed ({percent(changed / images)}), "
        f"{encoded}labelled in {summary['seconds']:.2f} s"
    )
    tell("labels: " + first_few([f"{name} {times:,}" for name, times in summary["label_counts"].items()], SHOWN_LABELS))
    if summary["known"]:
        tell(f"known: {count(summary['known'], 'label')}")
    if summary["none_of_these"]:
        tell(
            f"none of these: {count(summary['none_of_these'], 'image')} ({percent(summary['none_of_these'] / images)})"
        )
    if summary["accuracy"] is not None:
        before, after = summary["zero_shot_accuracy"], summary["accuracy"]
        tell(f"accuracy: {percent(before)} zero-shot, {percent(after)} adapted")
        before, after = summary["zero_shot_calibration_error"], summary["calibration_error"]
        tell(
            f"calibration error: {percent(before)} zero-shot, {percent(after)} adapted "
            "(how far probabilities are from the share of labels that are right)"
        )
    show_approximations(summary)


def show_approximations(summary: Mapping[str, Any]) -> None:
    """What the solve left out, as far as it left out anything."""
    if "recall" in summary:
        tell(f"approximate neighbour search, recall {percent(summary['recall'])}")
    if "outside" in summary:
        tell(
            f"{summary['candidates']} candidate classes per image, {percent(summary['outside'])} of the probability "
            "outside them"
        )
    if "crossing" in summary:
        tell(f"in {summary['parts']} parts, {percent(summary['crossing'])} of the neighbours are in another one")
    if summary.get("change", 0) > UNSETTLED:
        tell(f"after {count(summary['iterations'], 'iteration')} probabilities still moved by {summary['change']:.2g}")


def show_classes(rows: Sequence[Mapping[str, Any]], file: Path | None) -> None:
    """The classes found, as a table of those most in doubt."""
    if not rows:
        tell("no class found")
        return
    more = f"; all {f'in {file}' if file else 'with --classes-out'}" if len(rows) > SHOWN_CLASSES else ""
    tell(f"{count(len(rows), 'class')} found; worth a look (the least evidence from zero-shot first{more}):")
    tell_table(
        [
            {
                "class": row["class"],
                "count": f"{row['count']:.1f}",
                "evidence": f"{row['evidence']:.2f}",
                "example": row["example"],
            }
            for row in rows[:SHOWN_CLASSES]
        ]
    )


def show_review(rows: Sequence[Mapping[str, Any]]) -> None:
    """The images most worth a look, as a table."""
    tell("images most worth a look (if one that is typical is wrong, its class may not be there):")
    tell_table([{**row, "probability": f"{row['probability']:.2f}"} for row in rows])
