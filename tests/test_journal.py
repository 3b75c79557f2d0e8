"""journal.py: what append() returned for is there, once, whoever is killed; bad files give a clear error."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from journal import APPLICATION_ID, Journal, JournalError

ROOT = Path(__file__).parents[1]
FIELDS = dict(instruction="Open Gmail", family="open_app", success=True, reward=1.0, length=4,
              policy_version=7, worker=3, split="train", reason="Gmail is in front", data=b"\x00\xff" * 10)


def python(code, *args):
    command = [sys.executable, "-c", code, *map(str, args)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_round_trip(tmp_path):
    path = tmp_path / "journal.sqlite"
    with Journal(path) as journal:
        assert journal.append(**FIELDS) == 1
        assert journal.append(**FIELDS | {"success": None, "split": "eval", "data": b""}) == 2
        odd = {"success": np.bool_(False), "reward": np.float32(0.5), "length": np.int64(9),
               "policy_version": np.int32(8), "instruction": 'Zoë 🍕 "x"\n\0\ud800'}
        assert journal.append(**FIELDS | odd) == 3
    with Journal(path) as journal:
        first = journal.get(1)
        assert {key: getattr(first, key) for key in FIELDS} == FIELDS and first.created > 1.7e9
        assert [row.success for row in journal.rows()] == [True, None, False]
        third = journal.get(3)
        assert (third.reward, third.length, third.policy_version) == (0.5, 9, 8)
        assert third.instruction == 'Zoë 🍕 "x"\n\0?'
        assert [row.id for row in journal.rows("train")] == [1, 3]
        assert [row.id for row in journal.rows(since=2)] == [3]
        assert all(row.data is None for row in journal.rows())
        assert list(journal.blobs([3, 2])) == [(3, FIELDS["data"]), (2, b"")]
        assert journal.count() == 3 and journal.count("eval") == 1


def test_verdict_and_meta(tmp_path):
    with Journal(tmp_path / "j") as journal:
        journal.append(**FIELDS | {"success": None, "reward": 0.0})
        journal.set_verdict(1, True, 1.0)
        assert (journal.get(1).success, journal.get(1).reward) == (True, 1.0)
        journal.meta["seed"] = 3
        journal.meta["seed"] = [4, "x"]
        assert dict(journal.meta) == {"seed": [4, "x"]} and journal.meta.get("none") is None
        del journal.meta["seed"]
        assert not journal.meta
        for call in (lambda: journal.get(9), lambda: journal.set_verdict(9, True, 1.0),
                     lambda: list(journal.blobs([9]))):
            with pytest.raises(KeyError, match="no trajectory 9: it holds 1"):
                call()


@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
def test_reward_must_be_finite(tmp_path, reward):
    with Journal(tmp_path / "j") as journal:
        with pytest.raises(ValueError, match="must be finite"):
            journal.append(**FIELDS | {"reward": reward})
        assert journal.count() == 0


def test_numpy_numbers_are_written_as_numbers(tmp_path):
    with Journal(tmp_path / "j.sqlite") as journal:
        id = journal.append(**FIELDS)
        journal.set_verdict(np.int64(id), np.bool_(True), np.float32(1.0), length=np.int64(2))
        journal.note_learnt([(np.int64(id), np.int32(7), "{}")])
        assert journal.get(id).length == 2 and journal.learnt() == {id: (7, "{}")}


def test_rows_spans_pages_and_sees_what_comes_meanwhile(tmp_path, monkeypatch):
    monkeypatch.setattr("journal.PAGE", 3)
    with Journal(tmp_path / "j") as journal:
        for _ in range(7):
            journal.append(**FIELDS)
        rows = journal.rows()
        assert next(rows).id == 1
        journal.append(**FIELDS)
        assert [row.id for row in rows] == [2, 3, 4, 5, 6, 7, 8]


def test_a_writer_thread_beside_the_opening_thread(tmp_path):
    with Journal(tmp_path / "j") as journal:
        ids = []
        writer = threading.Thread(target=lambda: ids.extend(journal.append(**FIELDS) for _ in range(100)))
        writer.start()
        seen = [journal.count()]
        while writer.is_alive():
            seen.append(journal.count())
        assert ids == list(range(1, 101)) and seen == sorted(seen) and journal.count() == 100


WRITER = """
import sys
from journal import Journal
journal = Journal(sys.argv[1])
for n in range(1, 100_000):
    i = journal.append(instruction=f"task {n}", family="f", success=bool(n % 2), reward=1.0,
                       length=5, policy_version=n, worker=0, split="train", reason="",
                       data=n.to_bytes(4, "big") * 10_000)
    print(i, flush=True)
"""


def test_sigkill_of_the_writer_loses_nothing(tmp_path):
    """Twice, on one file, with a reader in another process: 40 kB a row, so checkpoints happen in between."""
    path, printed = tmp_path / "journal.sqlite", []
    for _ in range(2):
        writer = python(WRITER, path)
        mine = [int(writer.stdout.readline()) for _ in range(150)]
        with Journal(path, readonly=True) as reader:
            assert {row.id for row in reader.rows()} >= {*printed, *mine}
        os.kill(writer.pid, signal.SIGKILL)
        mine += [int(line) for line in writer.stdout]
        assert writer.wait() == -signal.SIGKILL
        printed += mine
    with Journal(path) as journal:
        ids = [row.id for row in journal.rows()]
        assert len(printed) >= 300 and len(set(printed)) == len(printed) and set(printed) <= set(ids)
        assert ids == list(range(1, len(ids) + 1)) and len(ids) <= len(printed) + 2  # a kill hides one
        for row, (id, data) in zip(journal.rows(), journal.blobs(ids), strict=True):
            assert row.id == id and row.instruction == f"task {row.policy_version}"
            assert data == row.policy_version.to_bytes(4, "big") * 10_000
        versions = [row.policy_version for row in journal.rows()]
        second = versions.index(1, 1)  # each writer counted from 1: nothing stored twice
        assert versions == [*range(1, second + 1), *range(1, len(ids) - second + 1)]
        assert journal._db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert journal.append(**FIELDS) == len(ids) + 1


def test_two_processes_open_a_new_file_at_once(tmp_path):
    code = "import sys; from journal import Journal; Journal(sys.argv[1]).meta[sys.argv[2]] = 1; print('ok')"
    processes = [python(code, tmp_path / "j", k) for k in range(4)]
    assert [process.communicate()[0].strip() for process in processes] == ["ok"] * 4
    with Journal(tmp_path / "j") as journal:
        assert sorted(journal.meta) == ["0", "1", "2", "3"]


def test_readonly(tmp_path):
    path = tmp_path / "j"
    with pytest.raises(JournalError, match="no such file"):
        Journal(path, readonly=True)
    assert not path.exists()
    with Journal(path) as writer, Journal(path, readonly=True) as reader:
        writer.append(**FIELDS)
        assert reader.count() == 1
        with pytest.raises(JournalError, match="readonly"):
            reader.append(**FIELDS)


def test_what_is_no_journal_is_refused_and_left_alone(tmp_path):
    (tmp_path / "short.txt").write_text("hello")
    text = tmp_path / "notes.txt"
    text.write_text("these are my notes, not a database\n" * 50)
    foreign = tmp_path / "bookmarks.sqlite"
    db = sqlite3.connect(foreign)
    db.execute("CREATE TABLE bookmarks (url)")
    db.commit()
    db.close()
    newer = tmp_path / "newer.sqlite"
    db = sqlite3.connect(newer)
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    db.execute("PRAGMA user_version = 2")
    db.execute("CREATE TABLE t (x)")
    db.commit()
    db.close()
    files = sorted(p.name for p in tmp_path.iterdir())
    for path, why in ((text, "not a journal"), (tmp_path / "short.txt", "not a journal"),
                      (foreign, "another program"), (newer, "version 2 is newer"),
                      (tmp_path, "unable to open"), (tmp_path / "a" / "j", "folder does not exist")):
        before = path.read_bytes() if path.is_file() else None
        with pytest.raises(JournalError, match=why):
            Journal(path)
        assert before is None or path.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == files


def test_a_copy_is_whole_while_the_journal_is_written(tmp_path):
    with Journal(tmp_path / "journal.sqlite") as journal:
        journal.append(**FIELDS)
        journal.append(**FIELDS | {"split": "eval"})
        journal.meta["seed"] = 3
        with Journal(journal.path, readonly=True) as reader:
            reader.copy(tmp_path / "copy.sqlite")
        journal.append(**FIELDS)
        with Journal(tmp_path / "copy.sqlite") as copy:
            assert [(row.id, row.split) for row in copy.rows()] == [(1, "train"), (2, "eval")]
            assert copy.meta["seed"] == 3
            assert copy.append(**FIELDS) == 3 and copy.get(1).data == FIELDS["data"]
        assert journal.count() == 3
        with pytest.raises(JournalError, match="the copy failed"):
            journal.copy(tmp_path / "none" / "copy.sqlite")


def test_an_empty_file_is_a_new_journal(tmp_path):
    """A run killed between creating the file and its tables."""
    path = tmp_path / "j"
    path.touch()
    with pytest.raises(JournalError, match="empty"):
        Journal(path, readonly=True)
    with Journal(path) as journal:
        assert journal.append(**FIELDS) == 1


def test_a_full_disk_is_what_note_learnt_tells_and_nothing_of_it_stays(tmp_path):
    with Journal(tmp_path / "journal.sqlite") as journal:
        journal.note_learnt([(1, 1, "kept")])
        pages = journal._run("PRAGMA page_count")[0][0][0]
        journal._run(f"PRAGMA max_page_count = {pages + 2}")
        with pytest.raises(JournalError, match="is full: nothing was stored; check the disk's space"):
            journal.note_learnt([(1, 2, "lost"), (2, 2, "x" * 100_000)])
        assert journal.learnt() == {1: (1, "kept")}
        journal._run(f"PRAGMA max_page_count = {pages + 999}")
        journal.note_learnt([(1, 3, "later")])
        with pytest.raises(ZeroDivisionError):  # whatever goes wrong: no transaction stays open
            journal.note_learnt((1, 1 // number, "") for number in (1, 0))
        journal.note_learnt([(2, 4, "and later")])
        assert journal.learnt() == {1: (3, "later"), 2: (4, "and later")}
