"""The order of the task pages: that in which a person meets the tasks."""

from __future__ import annotations

TASKS = (
    "label_a_folder",
    "few_classes_of_many",
    "a_stream",
    "correct_and_continue",
    "unknown_images",
    "compare_methods",
    "a_million_images",
    "write_a_method",
    "with_cleanlab",
    "with_scikit_learn",
)


def place(file: str) -> tuple[int, str]:
    """The place of a script in the gallery; one that is not listed comes last."""
    name = file.removesuffix(".py")
    return (TASKS.index(name) if name in TASKS else len(TASKS)), name
