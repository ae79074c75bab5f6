"""Random clicks: the labels are those of `kedge.adapt`. Garbage: it is never a server error."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kedge
from kedge.serve.said import AddClass, Change, DropClass, EditClass, Label, Present, Reject
from kedge.serve.workspace import Workspace
from page_tools import EACH, NAMES, SHOWN, Page

IMAGES = st.integers(0, EACH * len(SHOWN) - 1)
CLASSES = st.integers(0, len(NAMES) + 1)  # the last two: if they were added
CLICKS: st.SearchStrategy[Change | str] = st.one_of(
    st.builds(lambda some, label: ("label", some, label), st.lists(IMAGES, min_size=1, max_size=4), CLASSES),
    st.builds(lambda some, label: ("label", some, label), st.lists(IMAGES, max_size=4), st.sampled_from([-2, None])),
    st.builds(Present, st.tuples(CLASSES, CLASSES), st.booleans()),
    st.builds(Reject, st.sampled_from([None, 0.2, 0.5])),
    st.builds(AddClass, st.sampled_from(["dragonfly", "spoon"])),
    st.builds(EditClass, CLASSES, st.sampled_from(["clock", "rabbit"])),
    st.builds(DropClass, CLASSES),
    st.sampled_from(["undo", "redo"]),
)  # type: ignore[arg-type]
ONE_PAGE = [HealthCheck.function_scoped_fixture]  # all examples share a page: each begins where the last one ended


def do(workspace: Workspace, click: Any) -> Any:
    if isinstance(click, str):
        return getattr(workspace, click)()
    if isinstance(click, tuple):
        _, images, label = click
        click = Label(tuple(workspace.images.path(image) for image in images), label)
    return workspace.change(click)


def check_labels(workspace: Workspace) -> None:
    """Everything that is shown is what the library says, computed from nothing but the journal."""
    said, shown, state = workspace._said(), workspace.labels(), workspace._state
    assert state is not None
    paths = workspace.images.paths
    ids = [each.id for each in said.classes]
    row = {number: place for place, number in enumerate(ids)} | {kedge.NONE: kedge.NONE}
    features = replace(state.session.features, head=state.solved.head, labels=None)
    assert features.head.class_names == tuple(each.name for each in said.classes)
    known = {i: row[said.known[path]] for i, path in enumerate(paths) if path in said.known}
    options: dict[str, Any] = {"present": [row[i] for i in ids if i not in said.absent], "reject": said.reject}
    names = np.array([*ids, -1])
    now, without = (names[kedge.adapt(features, known=labels, **options).labels.numpy()] for labels in (known, None))
    asked = np.array([path not in said.known for path in paths])
    assert shown["columns"]["label"] == now.tolist()
    assert shown["others"] == ((now != without) & asked).sum()
    assert shown["corrections"] == len(known)
    for each in shown["classes"]:
        assert each["count"] == (now == each["id"]).sum()
        assert each["known"] == sum(label == row[each["id"]] for label in known.values())
    assert sorted(shown["columns"]["rank"]) == [0] * len(known) + [*range(1, asked.sum() + 1)]


@settings(max_examples=12, suppress_health_check=ONE_PAGE)
@given(clicks=st.lists(CLICKS, min_size=1, max_size=8))
def test_labels_are_those_of_the_library_after_any_clicks(tab: Page, clicks: list[Any]) -> None:
    workspace = tab.workspace
    for click in clicks:
        before = np.array(workspace.labels()["columns"]["label"])
        try:
            answer = do(workspace, click)
        except kedge.InputError:
            assert workspace.labels()["columns"]["label"] == before.tolist()
            continue
        columns = answer["columns"]
        changed = (np.array(columns["label"]) != before) & (np.array(columns["known"]) == -1)
        assert answer["last"]["changed"] == np.flatnonzero(changed).tolist()
    check_labels(workspace)


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 9),
    st.sampled_from([10**30, -(10**30), 1e400, float("nan"), 0.5, "", "\ud800", "\0", "a" * 300, "{}", "none", "cat"]),
    st.lists(st.integers(-2, 60), max_size=3),
    st.lists(st.lists(st.none(), max_size=1), max_size=2),
)
ROUTES = [
    ("POST", "label", ("images", "label", "revision")),
    ("POST", "present", ("classes", "present")),
    ("POST", "reject", ("threshold",)),
    ("POST", "classes", ("name", "prompt")),
    ("PATCH", "classes/{}", ("name", "prompt")),
    ("DELETE", "classes/{}", ()),
    ("POST", "export/folders", ("above",)),
    *(("POST", path, ()) for path in ("undo", "redo")),
    *(("GET", path, ()) for path in ("set", "images/{}", "images/{}/small?of={}", "images/{}/large", "export/{}")),
    ("GET", "export/labels.csv?above={}", ()),
]
STEPS = st.sampled_from(["0", "-1", "7", "9" * 5000, "nan", "1e9", "%00", "%ff", "a%2fb", "..", "", "labels.json", "٣"])


@settings(max_examples=150, suppress_health_check=ONE_PAGE)
@given(data=st.data(), route=st.sampled_from(ROUTES), step=STEPS)
def test_garbage_is_never_a_server_error(tab: Page, data: st.DataObject, route: Any, step: str) -> None:
    method, path, fields = route
    said = st.fixed_dictionaries(dict.fromkeys(fields, VALUES))
    body = data.draw(
        st.one_of(said.map(json.dumps), VALUES.map(json.dumps), st.sampled_from(["", "{", "[" * 9000, "\xff"]))
    )
    content = None if method == "GET" else body.encode("latin-1")
    headers = {"Content-Type": "application/json"}
    answer = tab.client.request(method, f"/api/{path.replace('{}', step)}", content=content, headers=headers)
    assert answer.status_code < 500, answer.text
    if answer.status_code >= 400:
        assert set(answer.json()) == {"error"}
