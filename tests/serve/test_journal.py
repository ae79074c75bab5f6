"""The journal: nothing is lost, and nothing in a file does harm."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kedge.errors import FileError
from kedge.serve.journal import About, Journal
from kedge.serve.said import AddClass, Change, DropClass, EditClass, Label, Present, Reject

ABOUT = About("fotos\udcff", "tiny", "ab" * 32, ("cat", "käse"), ("a photo of a {}.",))
ALL: list[Change] = [
    Label(("a/1.jpg", "\udcff.jpg"), 1),
    Label(("a/1.jpg",), None),
    Present((0,), False),
    Reject(0.5),
    Reject(None),
    AddClass("heron"),
    EditClass(2, "heron", "a bird."),
    DropClass(2),
]
PROMPTS = ("a photo of a heron.",)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "work.sqlite"


@pytest.fixture
def journal(path: Path) -> Iterator[Journal]:
    opened = Journal(path)
    opened.set_about(ABOUT)
    yield opened
    opened.close()


def again(journal: Journal) -> Journal:
    journal.close()
    return Journal(journal.path)


def forged(journal: Journal, *statements: str, values: tuple[object, ...] = ()) -> Path:
    """The journal's file after these statements."""
    journal.close()
    connection = sqlite3.connect(journal.path)
    for statement in statements:
        connection.execute(statement, values)
    connection.commit()
    connection.close()
    return journal.path


def test_everything_is_there_when_it_is_opened_again(journal: Journal) -> None:
    for change in ALL:
        journal.add(change)
    journal.add_export("labels.csv", 12, 0.9)
    journal.add_export("folders", 12, None)
    reopened = again(journal)
    assert reopened.changes() == ALL
    assert reopened.about() == ABOUT
    exports = reopened.exports()
    assert [(each.kind, each.rows, each.above) for each in exports] == [("labels.csv", 12, 0.9), ("folders", 12, None)]
    assert exports[0].time.endswith("+00:00")


def test_undo_and_redo_survive_until_another_change_is_added(journal: Journal) -> None:
    assert journal.undo() is None
    assert journal.redo() is None
    for change in ALL[:3]:
        journal.add(change)
    assert (journal.undo(), journal.undo()) == (ALL[2], ALL[1])
    journal = again(journal)
    assert journal.changes() == ALL[:1]
    assert journal.can_undo
    assert journal.can_redo
    assert journal.redo() == ALL[1]
    journal = again(journal)
    assert journal.changes() == ALL[:2]
    journal.undo()
    journal.add(ALL[3])
    assert not journal.can_redo
    assert journal.redo() is None
    journal = again(journal)
    assert journal.changes() == [ALL[0], ALL[3]]
    assert not journal.can_redo
    assert journal.redo() is None


def test_threads_add_one_after_the_other(journal: Journal) -> None:
    def work(name: str) -> None:
        for number in range(20):
            journal.add(Label((f"{name}/{number}.jpg",), 0))
            journal.add_export(name, number, None)
            journal.changes()

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    there = journal.changes()
    assert len(there) == len(journal.exports()) == 80
    assert again(journal).changes() == there


def test_a_thread_waits_until_another_has_written(journal: Journal) -> None:
    thread = threading.Thread(target=journal.add_export, args=("known.csv", 1, None))
    with journal._file.writing() as run:
        run("INSERT INTO exports VALUES ('', 'labels.csv', 2, NULL)")
        thread.start()
        thread.join(0.1)
        assert thread.is_alive()
    thread.join()
    assert [each.kind for each in journal.exports()] == ["labels.csv", "known.csv"]


LOOP = """
import sys
from pathlib import Path
from kedge.serve.journal import Journal
from kedge.serve.said import Label
journal = Journal(Path(sys.argv[1]))
for number in range(10**6):
    journal.add(Label((f"{number}.jpg",), 0))
    print(number, flush=True)
"""


def test_a_killed_process_loses_nothing_that_was_added(path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", LOOP, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    said = [process.stdout.readline() for _ in range(50)]
    process.send_signal(signal.SIGKILL)
    said += process.stdout.readlines()
    process.wait()
    process.stdout.close()
    last = max(int(line) for line in said if line.endswith("\n"))
    there = Journal(path).changes()
    assert last + 1 <= len(there) <= last + 2  # the one under way may be there too
    assert there == [Label((f"{number}.jpg",), 0) for number in range(len(there))]


def test_prototypes_keep_their_bits_and_belong_to_prompts_and_weights(journal: Journal) -> None:
    vector = torch.nn.functional.normalize(torch.randn(16, generator=torch.Generator().manual_seed(0)), dim=0)
    assert journal.prototype(PROMPTS) is None
    journal.keep_prototype(PROMPTS, -vector)
    journal.keep_prototype(PROMPTS, vector)
    journal = again(journal)
    found = journal.prototype(list(PROMPTS), 16)
    assert found is not None
    assert torch.equal(found, vector)
    assert journal.prototype(PROMPTS, 15) is None
    assert journal.prototype((*PROMPTS, "more")) is None
    journal.set_about(About("photos", "tiny", "cd" * 32, ("cat",), ("{}",)))
    assert journal.prototype(PROMPTS) is None


@pytest.mark.parametrize(
    "vector",
    [
        torch.zeros(4).numpy().tobytes(),
        torch.full((4,), float("nan")).numpy().tobytes(),
        torch.tensor([float("inf"), 0, 0, 0]).numpy().tobytes(),
        torch.ones(4).numpy().tobytes(),
        b"123",
        b"",
        "text",
        7,
    ],
)
def test_a_forged_prototype_is_not_used(journal: Journal, vector: object) -> None:
    journal.keep_prototype(PROMPTS, torch.tensor([1.0, 0, 0, 0]))
    path = forged(journal, "UPDATE prototypes SET vector = ?", values=(vector,))
    assert Journal(path).prototype(PROMPTS) is None


def test_a_file_that_was_only_begun_is_taken_for_a_new_one(path: Path) -> None:
    path.touch()
    assert Journal(path).changes() == []


def test_a_damaged_file_is_named(journal: Journal) -> None:
    for number in range(200):
        journal.add(Label((f"a long path to have several pages/{number}.jpg",), 0))
    journal.close()
    whole = journal.path.read_bytes()
    for damaged in (b"no database" * 100, whole[: len(whole) // 2], whole[:4096] + b"\xff" * (len(whole) - 4096)):
        journal.path.write_bytes(damaged)
        with pytest.raises(FileError, match=r"work\.sqlite .*move it away"):
            Journal(journal.path)
        assert journal.path.read_bytes() == damaged


def test_damage_is_found_where_nothing_is_read_yet(journal: Journal) -> None:
    vector = torch.nn.functional.normalize(torch.ones(1024), dim=0)
    for number in range(50):
        journal.keep_prototype([str(number)], vector)
    journal.close()
    connection = sqlite3.connect(journal.path)
    page, size = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_size", "page_count"))
    root = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'prototypes'").fetchone()[0]
    connection.close()
    assert size > root
    with journal.path.open("r+b") as file:
        file.seek((root - 1) * page)
        file.write(b"\xff" * page)
    with pytest.raises(FileError, match=r"work\.sqlite is damaged"):
        Journal(journal.path)


def test_a_file_of_another_program_is_left_alone(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE photos (name TEXT)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(FileError, match="a file of another program"):
        Journal(path)
    assert path.read_bytes() == before


def test_a_newer_format_is_not_read(journal: Journal) -> None:
    with pytest.raises(FileError, match="has journal format 2; this kedge reads format 1"):
        Journal(forged(journal, "PRAGMA user_version = 2"))


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER more AFTER INSERT ON changes BEGIN DELETE FROM changes; END",
        "CREATE TABLE more (x)",
        "CREATE VIEW more AS SELECT 1",
        "DROP TABLE exports",
        "ALTER TABLE changes ADD COLUMN more",
    ],
)
def test_other_tables_views_and_triggers_are_refused(journal: Journal, statement: str) -> None:
    with pytest.raises(FileError, match="other tables"):
        Journal(forged(journal, statement))


@pytest.mark.parametrize(
    ("kind", "body", "message"),
    [
        ("paint", "{}", "a change of the kind 'paint'.*newer kedge"),
        (b"label", "{}", "a change of the kind"),
        ("label", "{", "no JSON"),
        ("label", b"\xff\xff", "no JSON"),
        ("label", "[" * 9999, "no JSON"),
        ("label", '{"images": ["a.jpg"]}', "label"),
        ("label", '{"images": "a.jpg", "label": 1}', "images"),
        ("label", '{"images": ["a.jpg"], "label": true}', "label"),
        ("label", '{"images": ["a.jpg"], "label": NaN}', "no JSON"),
        ("label", '{"images": ["a\\u0000.jpg"], "label": 1}', "NUL"),
        ("present", '{"classes": [0], "present": 1}', "present"),
        ("reject", '{"threshold": 7}', "threshold"),
        ("add class", '{"name": "a\\u0000b", "prompt": null}', "NUL"),
        ("add class", '{"name": "a\\ud800b", "prompt": null}', "Unicode"),
        ("add class", '{"name": "%s", "prompt": null}' % ("x" * 201), "201 characters"),
        ("edit class", '{"id": 0, "name": "a", "prompt": "%s"}' % ("x" * 1001), "characters"),
    ],
)
def test_a_forged_change_is_refused(journal: Journal, kind: object, body: object, message: str) -> None:
    path = forged(journal, "INSERT INTO changes VALUES (1, '', ?, ?, 0)", values=(kind, body))
    with pytest.raises(FileError, match=message):
        Journal(path)


def test_a_forged_beginning_is_refused(journal: Journal) -> None:
    body = '{"source": "", "encoder": "", "weights_sha256": null, "class_names": [%s], "templates": []}'
    for names in ("", '"\\u0000"', '"\\udcff"', "1"):
        with pytest.raises(FileError):
            Journal(forged(journal, "UPDATE about SET body = ?", values=(body % names,)))


def test_a_full_disk_is_one_line_and_changes_nothing(journal: Journal) -> None:
    journal.add(ALL[0])
    journal._file._connection.execute("PRAGMA max_page_count = 1")
    with pytest.raises(FileError, match=r"cannot use .*work\.sqlite: .*full"):
        journal.add(Label(("x" * 4000,) * 100, 0))
    assert journal.changes() == ALL[:1]
    assert again(journal).changes() == ALL[:1]


@pytest.mark.parametrize("undone", [0, 1])
def test_changes_that_do_not_fit_each_other(journal: Journal, undone: int) -> None:
    """Undone ones too: to redo them would leave a journal that nothing can be done with."""
    insert = "INSERT INTO changes (time, kind, body, undone) VALUES ('', 'drop class', '{\"id\": 77}', ?)"
    path = forged(journal, insert, values=(undone,))
    with pytest.raises(FileError, match="its changes do not fit each other"):
        Journal(path)
