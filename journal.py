"""The run's journal: one SQLite file that holds every trajectory, durable before it is trained on.

The collector calls `append` for each finished trajectory and only then hands it to the replay buffer. The
light columns (instruction, outcome, length, policy version) answer questions about a run without touching the
trajectory itself, which is the blob `data` (`Trajectory.to_bytes()`; this file does not look inside).

    journal = Journal("runs/x/journal.sqlite")
    i = journal.append(instruction="Open Gmail", family="open_app", success=True, reward=1.0, length=4,
                       policy_version=7, worker=3, split="train", reason="Gmail is in front", data=b"...")
    for row in Journal("runs/x/journal.sqlite", readonly=True).rows("train", since=i - 100): ...

Durability. Write-ahead log: a commit is one sequential write to `journal.sqlite-wal`, and readers in other
processes never block the writer. What `append` returned for is in the kernel before it returns, so SIGKILL of
any process loses nothing. `synchronous=FULL` adds one fsync a commit, so that a power cut loses nothing
either: a trajectory costs a phone tens of seconds, an fsync some milliseconds (NORMAL would lose the last
commits with the power).

Departs from the paper / the authors' code: they keep trajectories in process memory (and in `.pt` files that
are rewritten whole); a run that dies takes its data with it.
"""

import contextlib
import json
import math
import os
import random
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, MutableMapping
from pathlib import Path
from typing import Any, NamedTuple

APPLICATION_ID = 0x44724A6C  # "DrJl" in SQLite's header: tells a journal from any other SQLite file
VERSION = 1
SCHEMA = (
    # data last: SQLite then reads the light columns without the blob's pages
    "CREATE TABLE trajectories (id INTEGER PRIMARY KEY, created REAL NOT NULL, instruction TEXT NOT NULL,"
    " family TEXT NOT NULL, success INTEGER CHECK (success IN (0, 1)), reward REAL NOT NULL,"
    " length INTEGER NOT NULL, policy_version INTEGER NOT NULL, worker INTEGER NOT NULL,"
    " split TEXT NOT NULL, reason TEXT NOT NULL, data BLOB NOT NULL)",
    "CREATE INDEX trajectories_split ON trajectories (split, id)",
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {VERSION}",
)
LIGHT = "id, created, instruction, family, success, reward, length, policy_version, worker, split, reason"
PAGE = 500  # rows a query: a read transaction held while the caller works would let the WAL grow without end


class JournalError(RuntimeError):
    """The file cannot be used as a journal, or cannot be written; the text says why and what to do."""


class Entry(NamedTuple):
    """One trajectory; `data` is None where only the light columns were asked for."""

    id: int  # 1, 2, 3, ... in the order of `append`
    created: float  # seconds since the epoch
    instruction: str
    family: str
    success: bool | None  # None: the judge could not tell
    reward: float
    length: int  # steps
    policy_version: int
    worker: int
    split: str
    reason: str
    data: bytes | None = None


class Journal:
    """A journal file, made if it is not there (`readonly`: must be there, never written).

    One thread writes; other threads of the process may call anything too (a lock orders them), and other
    processes open the same path. Do not carry an open Journal over a fork.
    """

    def __init__(self, path: str | os.PathLike, readonly: bool = False):
        self.path, self.readonly = Path(path), readonly
        self._lock = threading.RLock()
        if readonly and not self.path.is_file():
            raise JournalError(f"journal {self.path}: no such file")
        if not self.path.parent.is_dir():
            raise JournalError(f"journal {self.path}: its folder does not exist: make it first")
        try:
            self._db = sqlite3.connect(self._uri(), uri=True, timeout=30, isolation_level=None,
                                       check_same_thread=False)
        except sqlite3.Error as error:
            raise JournalError(f"journal {self.path}: {error}: check the path and its permissions") from error
        try:
            self._open()
        except sqlite3.Error as error:
            self._db.close()
            unusable = type(error) is sqlite3.DatabaseError  # its subclasses are locks, rights and disks
            what = ("not a journal ({}): move it away or name another file" if unusable else
                    "cannot be opened ({}): check the disk's space and permissions")
            raise JournalError(f"journal {self.path}: {what.format(error)}") from error
        except JournalError:
            self._db.close()
            raise
        self.meta = Meta(self)

    def _uri(self) -> str:
        """SQLite's URI. A reader needs write access too where it can get it: the last to close clears the WAL
        away. A finished run on a read-only disk has no WAL and can get none: immutable."""
        uri = self.path.absolute().as_uri()
        if not self.readonly:
            return uri + "?mode=rwc"
        if all(os.access(path, os.W_OK) for path in (self.path, self.path.parent)):
            return uri + "?mode=rw"  # `_open` forbids changes
        return uri + ("?mode=ro" if self.path.with_name(self.path.name + "-wal").exists() else "?immutable=1")

    def _open(self) -> None:
        """Refuses foreign and newer files before a byte of them changes; makes the tables in a new file."""
        if not self._recognise():
            if self.readonly:
                raise JournalError(f"journal {self.path}: empty: the run has not started to write it")
            self._db.execute("BEGIN IMMEDIATE")  # of two openers the second waits here and finds it made
            with self._db:
                if not self._recognise():
                    for statement in SCHEMA:
                        self._db.execute(statement)
        if self.readonly:
            self._db.execute("PRAGMA query_only = ON")
        else:
            self._write_ahead()
        self._db.execute("PRAGMA synchronous = FULL")

    def _write_ahead(self) -> None:
        """Kept in the file, so only the first time matters; two that do it at once may both be refused."""
        deadline = time.monotonic() + 10
        while True:
            try:
                self._db.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(random.uniform(0.001, 0.02))

    def _recognise(self) -> bool:
        """True: a journal that we can read. False: an empty file. Anything else raises."""
        application, version, tables = self._db.execute(  # one statement: another opener may be at work
            "SELECT (SELECT application_id FROM pragma_application_id),"
            " (SELECT user_version FROM pragma_user_version),"
            " (SELECT count(*) FROM sqlite_master)").fetchone()
        if application == 0 and version == 0 and tables == 0:
            return False
        if application != APPLICATION_ID:
            raise JournalError(f"journal {self.path}: an SQLite file of another program: name another file")
        if version > VERSION:
            raise JournalError(f"journal {self.path}: version {version} is newer than this code's {VERSION}:"
                               " update DistRL, or start a new run")
        return True

    def _run(self, sql: str, values: tuple = ()) -> tuple[list[tuple], sqlite3.Cursor]:
        """One statement, committed when it returns. -> (rows, cursor)"""
        with self._lock:
            try:
                cursor = self._db.execute(sql, values)
                return cursor.fetchall(), cursor
            except (sqlite3.OperationalError, sqlite3.DatabaseError) as error:
                if isinstance(error, sqlite3.IntegrityError | sqlite3.ProgrammingError):
                    raise
                raise JournalError(f"journal {self.path}: {error}: nothing was stored; check the disk's space"
                                   " and permissions") from error

    def append(self, *, instruction: str, family: str, success: bool | None, reward: float, length: int,
               policy_version: int, worker: int, split: str, reason: str, data: bytes) -> int:
        """Stores one trajectory; it is durable when this returns its id. numpy scalars are welcome.

        Raises ValueError for a reward that is not finite, JournalError when the disk does not take it.
        """
        if not math.isfinite(reward):
            raise ValueError(f"reward is {reward}: a trajectory's return must be finite")
        verdict = None if success is None else int(bool(success))
        values = (time.time(), _text(instruction), _text(family), verdict, float(reward), int(length),
                  int(policy_version), int(worker), _text(split), _text(reason), bytes(data))
        columns = LIGHT.removeprefix("id, ") + ", data"
        marks = ", ".join("?" * len(values))
        return self._run(f"INSERT INTO trajectories ({columns}) VALUES ({marks})", values)[1].lastrowid

    def get(self, id: int) -> Entry:
        """The trajectory with its data. Raises KeyError when there is none of that id."""
        rows, _ = self._run(f"SELECT {LIGHT}, data FROM trajectories WHERE id = ?", (int(id),))
        if not rows:
            raise KeyError(f"journal {self.path}: no trajectory {id}: it holds {self.count()}")
        return _entry(rows[0])

    def rows(self, split: str | None = None, since: int = 0) -> Iterator[Entry]:
        """Light columns of all trajectories with id > `since`, oldest first, without their data."""
        where, values = ("id > ?", ()) if split is None else ("id > ? AND split = ?", (split,))
        query = f"SELECT {LIGHT} FROM trajectories WHERE {where} ORDER BY id LIMIT {PAGE}"
        while page := self._run(query, (int(since), *values))[0]:
            yield from map(_entry, page)
            since = page[-1][0]

    def blobs(self, ids: Iterable[int]) -> Iterator[tuple[int, bytes]]:
        """(id, data) for each id, in the order asked for, one in memory at a time. KeyError: no such id."""
        for id in ids:
            rows, _ = self._run("SELECT data FROM trajectories WHERE id = ?", (int(id),))
            if not rows:
                raise KeyError(f"journal {self.path}: no trajectory {id}: it holds {self.count()}")
            yield int(id), rows[0][0]

    def count(self, split: str | None = None) -> int:
        where, values = ("", ()) if split is None else (" WHERE split = ?", (split,))
        return self._run(f"SELECT count(*) FROM trajectories{where}", values)[0][0][0]

    def set_verdict(self, id: int, success: bool | None, reward: float, *, reason: str | None = None,
                    length: int | None = None, data: bytes | None = None) -> None:
        """A later judgement (a second vote, a repaired judge) replaces the one stored, and what follows from it:
        why, and a trajectory that ends earlier. None leaves those as they are."""
        if not math.isfinite(reward):
            raise ValueError(f"reward is {reward}: a trajectory's return must be finite")
        verdict = None if success is None else int(bool(success))
        changes = {"success": verdict, "reward": float(reward)}
        rest = {"reason": reason if reason is None else _text(reason), "data": data,
                "length": length if length is None else int(length)}  # fmt: skip
        changes |= {name: value for name, value in rest.items() if value is not None}
        columns = ", ".join(f"{name} = ?" for name in changes)
        _, cursor = self._run(f"UPDATE trajectories SET {columns} WHERE id = ?", (*changes.values(), int(id)))
        if cursor.rowcount != 1:
            raise KeyError(f"journal {self.path}: no trajectory {id}: it holds {self.count()}")

    def note_learnt(self, rows: Iterable[tuple[int, int, str]]) -> None:
        """(id, number of the update, what it made of the trajectory) of trajectories that were learnt from; a later
        one replaces an earlier one. In a table of its own, which journals of older versions get here."""
        with self._lock:
            self._run("CREATE TABLE IF NOT EXISTS learnt (id INTEGER PRIMARY KEY, updates INTEGER, data TEXT)")
            self._run("BEGIN IMMEDIATE")
            try:
                for id, updates, data in rows:
                    self._run("INSERT OR REPLACE INTO learnt VALUES (?, ?, ?)", (int(id), int(updates), data))
                self._run("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # a full disk has ended it already
                    self._db.rollback()
                raise

    def learnt(self) -> dict[int, tuple[int, str]]:
        """id -> what `note_learnt` was last given of it."""
        if not self._run("SELECT 1 FROM sqlite_master WHERE name = 'learnt'")[0]:
            return {}
        return {id: (updates, data) for id, updates, data in self._run("SELECT id, updates, data FROM learnt")[0]}

    def forget_learnt(self) -> None:
        """As if nothing had been learnt from."""
        self._run("DROP TABLE IF EXISTS learnt")

    def copy(self, path: str | os.PathLike) -> None:
        """Writes the journal as it is now into a new file, in one piece, whoever else is writing to it."""
        with self._lock:
            try:
                with contextlib.closing(sqlite3.connect(path)) as copy:
                    self._db.backup(copy)
            except sqlite3.Error as error:
                raise JournalError(f"journal {path}: {error}: the copy failed; check the disk's space") from error

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Meta(MutableMapping):
    """`journal.meta["seed"] = 1`: facts about the run, JSON values, each committed when set."""

    def __init__(self, journal: Journal):
        self._run = journal._run

    def __getitem__(self, key: str) -> Any:
        rows, _ = self._run("SELECT value FROM meta WHERE key = ?", (key,))
        if not rows:
            raise KeyError(key)
        return json.loads(rows[0][0])

    def __setitem__(self, key: str, value: Any) -> None:
        self._run("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, json.dumps(value)))

    def __delitem__(self, key: str) -> None:
        if self._run("DELETE FROM meta WHERE key = ?", (key,))[1].rowcount != 1:
            raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return iter([key for key, in self._run("SELECT key FROM meta ORDER BY key")[0]])

    def __len__(self) -> int:
        return self._run("SELECT count(*) FROM meta")[0][0][0]


def _entry(row: tuple) -> Entry:
    entry = Entry(*row)
    return entry if entry.success is None else entry._replace(success=bool(entry.success))


def _text(text: str) -> str:
    """What a model or a phone wrote may hold lone surrogates, which UTF-8 cannot; '?' stands for them."""
    return str(text).encode("utf-8", "replace").decode("utf-8")
