"""What follows from the changes a person made."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kedge
from kedge.errors import InputError, KedgeError
from kedge.serve.journal import Journal
from kedge.serve.said import AddClass, Change, DropClass, EditClass, Label, Present, Reject, Said, check, said

NAMES = ("cat", "dog", "polar bear")
NUMBERS = st.integers(0, 5)
WORDS = st.sampled_from(["cat", "Polar-Bear", "heron", "tern", "gull", "none"])
IMAGES = st.lists(st.sampled_from(["a.jpg", "b.jpg", "c.jpg"]), min_size=1).map(tuple)
CHANGES = st.one_of(
    st.builds(Label, IMAGES, st.one_of(NUMBERS, st.none(), st.just(kedge.NONE))),
    st.builds(Present, st.lists(NUMBERS, min_size=1).map(tuple), st.booleans()),
    st.builds(Reject, st.one_of(st.none(), st.floats(0.1, 1))),
    st.builds(AddClass, WORDS, st.one_of(st.none(), st.just("a bird."))),
    st.builds(EditClass, NUMBERS, WORDS, st.none()),
    st.builds(DropClass, NUMBERS),
)


def fitting(changes: Sequence[Change]) -> list[Change]:
    """Those of the changes that fit, each after the ones before it."""
    found: list[Change] = []
    for change in changes:
        try:
            check(change, said(NAMES, found))
        except InputError:
            continue
        found.append(change)
    return found


def check_invariants(state: Said) -> None:
    numbers = [each.id for each in state.classes]
    assert len(set(numbers)) == len(numbers)
    assert state.absent <= set(numbers)
    present = set(numbers) - state.absent
    assert present
    assert set(state.known.values()) <= {*present, kedge.NONE}
    assert max(numbers) < state.next_id
    spelled = [each.name.replace("-", " ").casefold() for each in state.classes]
    assert len(set(spelled)) == len(spelled)


@given(st.lists(CHANGES, max_size=30))
def test_changes_that_fit_keep_the_invariants(changes: list[Change]) -> None:
    fit = fitting(changes)
    for number in range(len(fit) + 1):
        check_invariants(said(NAMES, fit[:number]))


@given(st.lists(CHANGES, max_size=15), CHANGES)
def test_undoing_the_last_change_gives_what_was_said_before_it(changes: list[Change], last: Change) -> None:
    fit = fitting(changes)
    before = said(NAMES, fit)
    if fitting([*fit, last]) == fit:
        return
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder) / "work.sqlite")
        for change in (*fit, last):
            journal.add(change)
        after = said(NAMES, journal.changes())
        assert journal.undo() == last
        assert said(NAMES, journal.changes()) == before
        journal.close()
        journal = Journal(journal.path)
        assert said(NAMES, journal.changes()) == before
        assert journal.redo() == last
        assert said(NAMES, journal.changes()) == after
        journal.close()


@given(st.lists(CHANGES, max_size=20), CHANGES)
def test_a_change_is_refused_by_the_fold_just_as_by_the_check(changes: list[Change], last: Change) -> None:
    fit = fitting(changes)
    refused = fitting([*fit, last]) == fit
    with pytest.raises(InputError) if refused else contextlib.nullcontext():
        said(NAMES, [*fit, last])


def test_classes_keep_their_numbers_and_dropped_ones_take_their_labels_along() -> None:
    changes = [AddClass("heron"), Label(("a.jpg", "b.jpg"), 3), Label(("c.jpg",), kedge.NONE), DropClass(3)]
    assert dict(said(NAMES, changes[:3]).known) == {"a.jpg": 3, "b.jpg": 3, "c.jpg": kedge.NONE}
    after = said(NAMES, [*changes, AddClass("heron", "a photo of a heron, a bird.")])
    assert dict(after.known) == {"c.jpg": kedge.NONE}
    assert [(each.id, each.name) for each in after.classes] == [(0, "cat"), (1, "dog"), (2, "polar bear"), (4, "heron")]
    assert after.by_id[4].prompt == "a photo of a heron, a bird."


def test_a_label_makes_its_class_present_and_a_class_with_labels_cannot_be_absent() -> None:
    changes: list[Change] = [Present((0, 1), False), Label(("a.jpg",), 1)]
    assert said(NAMES, changes[:1]).absent == {0, 1}
    assert said(NAMES, changes).absent == {0}
    with pytest.raises(InputError, match="'dog' is here: it is the label you gave to 1 image"):
        said(NAMES, [*changes, Present((1,), False)])
    forgotten = [*changes, Label(("a.jpg",), None), Present((1,), False)]
    assert said(NAMES, forgotten).absent == {0, 1}
    assert not said(NAMES, forgotten).known


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (Label(("a.jpg",), 3), "there is no class 3"),
        (Label(("a.jpg",), -1), "there is no class -1"),
        (Present((0, 7), True), "there is no class 7"),
        (Present((0, 1, 2), False), "no class that can occur"),
        (EditClass(9, "heron"), "there is no class 9"),
        (EditClass(0, "DOG"), "there is a class 'dog' already"),
        (AddClass("polar_bear"), "there is a class 'polar bear' already"),
        (AddClass("None of these"), "images of no class"),
        (DropClass(5), "there is no class 5"),
    ],
)
def test_what_does_not_fit_is_named(change: Change, message: str) -> None:
    with pytest.raises(InputError, match=message):
        said(NAMES, [change])


def test_the_last_class_present_cannot_be_dropped() -> None:
    with pytest.raises(InputError, match="no class that can occur"):
        said(NAMES, [Present((0, 1), False), DropClass(2)])
    with pytest.raises(InputError, match="no classes"):
        said((), [])


@pytest.mark.parametrize(
    "make",
    [
        lambda: AddClass(" \n"),
        lambda: AddClass("x" * 201),
        lambda: AddClass("a\0b"),
        lambda: AddClass("a\ud800b"),
        lambda: EditClass(0, "a", "x" * 1001),
        lambda: EditClass(0, "a", "\0"),
        lambda: Label((), 0),
        lambda: Label(("",), 0),
        lambda: Label(("a\0.jpg",), 0),
        lambda: Label(("x" * 5000,), 0),
        lambda: Present((), True),
        lambda: Reject(1.5),
        lambda: Reject(float("nan")),
    ],
)
def test_absurd_changes_cannot_be_made(make) -> None:
    with pytest.raises(KedgeError):
        make()


def test_names_have_single_spaces_and_a_class_may_keep_its_own_name() -> None:
    assert AddClass("  sea \n eagle ").name == "sea eagle"
    edited = said(NAMES, [EditClass(2, "Polar Bear"), EditClass(2, "Polar Bear", "a white bear.")])
    assert edited.by_id[2].name == "Polar Bear"
    twins = said(["crane", "crane"], [EditClass(0, "crane", "a bird."), EditClass(1, "crane", "a machine.")])
    assert [each.prompt for each in twins.classes] == ["a bird.", "a machine."]  # as in ImageNet


def test_paths_that_are_not_utf8_can_be_labelled() -> None:
    assert said(NAMES, [Label(("\udcff.jpg",), 0)]).known == {"\udcff.jpg": 0}
