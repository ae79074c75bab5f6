"""The SQLite file of a journal: opened or made, checked, read and written, with errors that name it.

The file may be damaged, or come from somebody else: its tables must be exactly those declared here, so no view and no
trigger in it can run, and its pages are checked before anything is read.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..errors import FileError
from ..files import check_writable
from ..words import shown

APPLICATION, VERSION = 0x6B656467, 1  # "kedg": the mark of kedge's files; and their format
TABLES = (
    "CREATE TABLE about (body TEXT NOT NULL)",
    "CREATE TABLE changes (id INTEGER PRIMARY KEY, time TEXT NOT NULL, kind TEXT NOT NULL, body TEXT NOT NULL, "
    "undone INTEGER NOT NULL)",
    "CREATE TABLE prototypes (prompts TEXT PRIMARY KEY, vector BLOB NOT NULL)",
    "CREATE TABLE exports (time TEXT NOT NULL, kind TEXT NOT NULL, rows INTEGER NOT NULL, above REAL)",
)
START_ANEW = "Restore it from a copy; or move it away to begin anew, without the labels given so far."
Run = Callable[..., sqlite3.Cursor]  # a statement, and its values


class JournalFile:
    """One connection, used by one thread after the other. What is written survives the end of the process."""

    def __init__(self, path: Path) -> None:
        self.path = check_writable(path)
        self.lock = threading.RLock()
        with self._errors():
            self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            try:
                self._open()
            except BaseException:
                self._connection.close()
                raise

    def _open(self) -> None:
        """Make the tables in a new file, or check those that are there."""
        self._set("trusted_schema=OFF", "cell_size_check=ON")
        if there := _tables(self._connection):
            self._check_kind()
        self._set("journal_mode=WAL", "synchronous=NORMAL")
        if not there:
            with self._transaction():
                _make_tables(self._connection)
        with contextlib.closing(sqlite3.connect(":memory:")) as expected:
            _make_tables(expected)
            if _tables(self._connection) != _tables(expected):
                raise FileError(f"{self.path} has other tables than a journal of kedge. {START_ANEW}")
        found = self._connection.execute("PRAGMA quick_check(1)").fetchone()
        if found != ("ok",):
            raise FileError(f"{self.path} is damaged: {shown(found)}. {START_ANEW}")

    def _check_kind(self) -> None:
        mark, version = (
            self._connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
        )
        if mark != APPLICATION:
            raise FileError(f"{self.path} is a file of another program. Move it away, or name a folder: --work DIR.")
        if version != VERSION:
            raise FileError(
                f"{self.path} has journal format {version}; this kedge reads format {VERSION}. "
                "Install the kedge that wrote it, or move it away to begin anew."
            )

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """The rows that a query finds."""
        with self.lock, self._errors():
            return self._connection.execute(query, values).fetchall()

    @contextlib.contextmanager
    def writing(self) -> Iterator[Run]:
        """A function that runs one statement; all of them count when the block ends, or none."""
        with self.lock, self._errors(), self._transaction():
            yield lambda statement, *values: self._connection.execute(statement, values)

    def close(self) -> None:
        """Close the file; everything is in it already."""
        with self.lock:
            self._connection.close()

    def _set(self, *settings: str) -> None:
        for setting in settings:
            self._connection.execute(f"PRAGMA {setting}")

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn SQLite's errors into FileErrors about this file."""
        try:
            yield
        except sqlite3.OperationalError as error:  # a full disk, no permission, a lock
            raise FileError(
                f"cannot use {self.path}: {error}. Put it right, or name another folder: --work DIR."
            ) from error
        except sqlite3.Error as error:
            raise FileError(f"{self.path} is damaged, or no journal of kedge: {error}. {START_ANEW}") from error


def _make_tables(connection: sqlite3.Connection) -> None:
    for statement in (*TABLES, f"PRAGMA application_id={APPLICATION}", f"PRAGMA user_version={VERSION}"):
        connection.execute(statement)


def _tables(connection: sqlite3.Connection) -> list[tuple[Any, ...]]:
    """All that the file declares: tables, indices, views, triggers."""
    return connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name").fetchall()
