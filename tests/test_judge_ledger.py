"""The file that all workers share: exact under many processes, and nobody is blocked by one that was killed."""

import multiprocessing
import os
import pickle
import signal
import sqlite3

import pytest

from judge_ledger import Ledger, LedgerError, Stopped


def spend(path: str, results) -> None:
    ledger, calls = Ledger(path, max_calls=100), 0
    try:
        while True:
            ledger.reserve("m")
            calls += 1
    except Stopped:
        results.send(calls)


def hold_and_die(path: str) -> None:
    ledger = Ledger(path)
    with ledger._transaction() as db:
        Ledger._add(db, "m", "sent", 1)
        os.kill(os.getpid(), signal.SIGKILL)


def test_B14_many_processes_make_exactly_the_calls_that_were_allowed(tmp_path):
    path, context = str(tmp_path / "judge.sqlite"), multiprocessing.get_context("spawn")
    pairs = [context.Pipe(duplex=False) for _ in range(4)]
    processes = [context.Process(target=spend, args=(path, send)) for _, send in pairs]
    for process in processes:
        process.start()
    assert sum(receive.recv() for receive, _ in pairs) == 100
    for process in processes:
        process.join()
    assert Ledger(path).summary()["calls"] == 100


def test_a_worker_killed_within_a_transaction_blocks_nobody(tmp_path):
    path = str(tmp_path / "judge.sqlite")
    process = multiprocessing.get_context("spawn").Process(target=hold_and_die, args=(path,))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    ledger = Ledger(path)
    assert ledger.reserve("m") == 0.0 and ledger.summary()["calls"] == 1  # what was not finished was not counted


def test_somebody_who_reads_for_long_blocks_nobody_afterwards(tmp_path, monkeypatch):
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda path, **options: connect(path, **{**options, "timeout": 0.2}))
    path = tmp_path / "judge.sqlite"
    worker, other, reader = Ledger(path), Ledger(path), connect(path, isolation_level=None)
    worker.reserve("m")
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM calls").fetchall()  # a backup, say
    with pytest.raises(LedgerError, match="locked"):
        worker.reserve("m")
    reader.close()
    assert worker.reserve("m") == other.reserve("m") == 0.0 and other.summary()["calls"] == 3


def test_calls_are_spread_over_the_minute_for_all_together(tmp_path):
    now = [1e9]
    workers = [Ledger(tmp_path / "judge.sqlite", rpm=60, clock=lambda: now[0]) for _ in range(3)]
    assert [worker.reserve("m") for worker in workers] == pytest.approx([0.0, 1.0, 2.0])
    now[0] += 10
    assert [worker.reserve("m") for worker in workers] == pytest.approx([0.0, 1.0, 2.0])
    workers[0].hold(44)
    assert workers[1].reserve("m") == pytest.approx(44)
    now[0] -= 10 * 86400  # the clock was set back
    assert workers[2].reserve("m") == 0.0


def test_a_resumed_run_goes_on_counting_and_pricing(tmp_path):
    first = Ledger(tmp_path / "judge.sqlite")
    first.reserve("gemini-2.5-flash")
    first.count("gemini-2.5-flash", "answered", 1_000_000, 100_000)
    first.close()
    again = Ledger(tmp_path / "judge.sqlite", max_calls=2)
    again.reserve("gemini-2.5-flash")
    found = again.summary()
    assert found["calls"] == 2 and found["usd"] == pytest.approx(0.30 + 0.25) and found["prices_of"] == "2026-03"
    with pytest.raises(Stopped, match="--max-judge-calls 2") as error:
        again.reserve("gemini-2.5-flash")
    assert error.value.kind == "budget" and again.stopped().kind == "budget"
    again.go_on()
    assert again.stopped().kind == "budget"  # a budget is for the run, not for the session
    assert pickle.loads(pickle.dumps(error.value)).kind == "budget"


def test_a_price_that_is_not_known_is_not_guessed():
    ledger = Ledger(":memory:")
    ledger.count("qwen2.5-vl", "answered", 700, 30)
    assert ledger.summary()["usd"] is None and ledger.summary()["prices_of"] is None


def test_unknown_verdicts_are_not_kept_and_texts_survive():
    ledger = Ledger(":memory:")
    with pytest.raises(ValueError, match="no verdict to keep"):
        ledger.put("key", None, "blocked", "")
    ledger.put("key", False, "lone \ud83d surrogate", "raw")
    assert ledger.verdict("key") == (False, "lone ? surrogate", "raw") and ledger.verdict("other") is None


def test_a_file_that_is_none_names_itself(tmp_path):
    path = tmp_path / "judge.sqlite"
    path.write_bytes(b"not a database, but long enough to be taken for one" * 30)
    with pytest.raises(LedgerError, match="judge.sqlite.*check the disk"):
        Ledger(path).reserve("m")
    with pytest.raises(LedgerError, match="none/judge.sqlite"):
        Ledger(tmp_path / "none" / "judge.sqlite").summary()
