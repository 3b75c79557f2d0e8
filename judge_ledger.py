"""One SQLite file that all workers of a run share: their judge calls, rate limit, budget, price and verdicts.

    ledger = Ledger("runs/x/judge.sqlite", rpm=60, max_calls=10_000)
    wait = ledger.reserve("gemini-2.5-flash")        # seconds to wait before the call; raises Stopped
    ledger.count("gemini-2.5-flash", "answered", input_tokens=700, output_tokens=40)
    ledger.put(key, True, "the results are shown", raw); ledger.verdict(key)
    ledger.summary()                                 # {"calls": 1, "usd": 0.00031, ...}

Calls are spread evenly: each takes the next free slot of 60 / rpm seconds, whichever process asks. A server that asks
for a pause moves that slot for everybody. Each step is one transaction: a worker that is killed holds nothing, and a
resumed run goes on counting where it was. A `Ledger` can be pickled; each process opens the file for itself.

Departs from the authors' code: none of this is in it; there, every process calls when it likes and nobody counts.
"""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path

# US dollars a million tokens, (input, output), list prices up to 200,000 tokens of context, as of 2026-03.
PRICES_DATE = "2026-03"
PRICES = {
    "gemini-2.5-pro": (1.25, 10.0), "gemini-2.5-flash": (0.30, 2.50), "gemini-2.5-flash-lite": (0.10, 0.40),
    "gemini-3.1-pro": (2.00, 12.0), "gemini-3-flash": (0.50, 3.00), "gemini-3.1-flash-lite": (0.25, 1.50),
    "gemini-3.5-flash": (1.50, 9.00),
}  # fmt: skip
SCHEMA = """
    CREATE TABLE IF NOT EXISTS calls (model TEXT, outcome TEXT, number INTEGER NOT NULL, input_tokens INTEGER NOT NULL,
        output_tokens INTEGER NOT NULL, PRIMARY KEY (model, outcome));
    CREATE TABLE IF NOT EXISTS verdicts (key TEXT PRIMARY KEY, success INTEGER NOT NULL, reason TEXT, raw TEXT);
    CREATE TABLE IF NOT EXISTS state (key TEXT PRIMARY KEY, value);
"""
LONGEST_AHEAD = 86400.0  # seconds; a slot further away than this comes from a clock that was set back


class LedgerError(OSError):
    """The file cannot be used; the text names it."""


class Stopped(Exception):
    """No more calls in this run for now; `kind` is "budget", "quota", "key" or "model"."""

    def __init__(self, kind: str, reason: str):
        super().__init__(reason)
        self.kind, self.reason = kind, reason

    def __reduce__(self):
        return Stopped, (self.kind, self.reason)


class Ledger:
    """See the module's docstring. rpm, max_calls: 0 for no limit. Raises LedgerError when the file cannot be used."""

    def __init__(self, path: str | os.PathLike, rpm: float = 0.0, max_calls: int = 0, clock=time.time):
        self.path, self.rpm, self.max_calls, self._clock = Path(path), rpm, max_calls, clock
        self._db: sqlite3.Connection | None = None
        self._pid = 0

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_db": None}

    def reserve(self, model: str) -> float:
        """Count one call and take its slot. Returns the seconds to wait before it. Raises Stopped."""
        with self._transaction() as db:
            if stopped := self._stopped(db):
                raise stopped
            if self.max_calls and self._calls(db) >= self.max_calls:
                raise self._budget()
            now = self._clock()
            free = self._get(db, "next_slot", 0.0)
            slot = max(now, free if free - now < LONGEST_AHEAD else 0.0)
            self._set(db, "next_slot", slot + (60.0 / self.rpm if self.rpm else 0.0))
            self._add(db, model, "sent", 1)
            return slot - now

    def hold(self, seconds: float) -> None:
        """No slot earlier than that from now on, for any process: the server asked for it."""
        with self._transaction() as db:
            self._set(db, "next_slot", max(self._get(db, "next_slot", 0.0), self._clock() + seconds))

    def stop(self, kind: str, reason: str) -> None:
        """No more calls by any process until `go_on`."""
        with self._transaction() as db:
            self._set(db, "stopped", f"{kind}\n{reason}")

    def go_on(self) -> None:
        """A new session: what stopped the last one may be mended, and its slots are gone."""
        with self._transaction() as db:
            db.execute("DELETE FROM state")

    def stopped(self) -> Stopped | None:
        """Why there are no more calls, None as long as there are."""
        with self._transaction() as db:
            spent = self.max_calls and self._calls(db) >= self.max_calls
            return self._stopped(db) or (self._budget() if spent else None)

    def count(self, model: str, outcome: str, input_tokens: int = 0, output_tokens: int = 0) -> None:
        """How a call ended: "answered", or what went wrong; with what the server charges for."""
        with self._transaction() as db:
            self._add(db, model, outcome, 1, input_tokens, output_tokens)

    def verdict(self, key: str) -> tuple[bool, str, str] | None:
        """(success, reason, raw) stored under this key."""
        with self._transaction() as db:
            row = db.execute("SELECT success, reason, raw FROM verdicts WHERE key = ?", (key,)).fetchone()
        return (bool(row[0]), row[1], row[2]) if row else None

    def put(self, key: str, success: bool, reason: str, raw: str) -> None:
        """Keep a verdict that is known. Raises ValueError for None: an unknown one must be asked for again."""
        if success is None:
            raise ValueError(f"no verdict to keep ({reason}): ask again later")
        # What a model wrote may hold lone surrogates, which UTF-8 cannot; '?' stands for them.
        reason, raw = (text[:2000].encode("utf-8", "replace").decode() for text in (reason, raw))
        with self._transaction() as db:
            db.execute("INSERT OR REPLACE INTO verdicts VALUES (?, ?, ?, ?)", (key, int(success), reason, raw))

    def summary(self) -> dict:
        """calls, outcomes, input_tokens, output_tokens, cached_verdicts, usd (None: a model without a known price)."""
        with self._transaction() as db:
            rows = db.execute("SELECT model, outcome, number, input_tokens, output_tokens FROM calls").fetchall()
            verdicts = db.execute("SELECT count(*) FROM verdicts").fetchone()[0]
        outcomes: dict[str, int] = {}
        for _, outcome, number, _, _ in rows:
            outcomes[outcome] = outcomes.get(outcome, 0) + number
        calls = outcomes.pop("sent", 0)
        known = all(model in PRICES for model, *_ in rows)
        usd = sum(i * PRICES[m][0] + o * PRICES[m][1] for m, _, _, i, o in rows) / 1e6 if known else None
        return {
            "calls": calls, "outcomes": outcomes, "input_tokens": sum(row[3] for row in rows),
            "output_tokens": sum(row[4] for row in rows), "cached_verdicts": verdicts, "usd": usd,
            "prices_of": PRICES_DATE if known and calls else None,
        }  # fmt: skip

    def close(self) -> None:
        if self._db is not None and self._pid == os.getpid():
            self._db.close()
        self._db = None

    # ------------------------------------------------------------------ inside a transaction

    def _transaction(self) -> _Transaction:
        if self._db is None or self._pid != os.getpid():  # not carried over a fork
            try:
                self._db = sqlite3.connect(self.path, timeout=60, isolation_level=None, check_same_thread=False)
                self._db.execute("PRAGMA synchronous = NORMAL")
                self._db.executescript(f"BEGIN IMMEDIATE; {SCHEMA} COMMIT;")
            except sqlite3.Error as error:
                self._db = None
                raise LedgerError(f"judge ledger {self.path}: {error}: check the disk and its permissions") from error
            self._pid = os.getpid()
        return _Transaction(self._db, self.path)

    def _budget(self) -> Stopped:
        text = f"--max-judge-calls {self.max_calls}: all used up; go on with a larger number"
        return Stopped("budget", text)

    @staticmethod
    def _stopped(db) -> Stopped | None:
        text = Ledger._get(db, "stopped", "")
        return Stopped(*text.split("\n", 1)) if text else None

    @staticmethod
    def _calls(db) -> int:
        return db.execute("SELECT coalesce(sum(number), 0) FROM calls WHERE outcome = 'sent'").fetchone()[0]

    @staticmethod
    def _get(db, key: str, default):
        row = db.execute("SELECT value FROM state WHERE key = ?", (key,)).fetchone()
        return row[0] if row else default

    @staticmethod
    def _set(db, key: str, value) -> None:
        db.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", (key, value))

    @staticmethod
    def _add(db, model: str, outcome: str, number: int, input_tokens: int = 0, output_tokens: int = 0) -> None:
        db.execute(
            "INSERT INTO calls VALUES (?, ?, ?, ?, ?) ON CONFLICT (model, outcome) DO UPDATE SET"
            " number = number + excluded.number, input_tokens = input_tokens + excluded.input_tokens,"
            " output_tokens = output_tokens + excluded.output_tokens",
            (model, outcome, number, int(input_tokens), int(output_tokens)),
        )


def cost(found: dict) -> str:
    """A summary in a few words."""
    price = "price unknown" if found["usd"] is None else f"${found['usd']:.2f}"
    return f"{found['calls']} calls ({price})"


class _Transaction:
    """BEGIN IMMEDIATE ... COMMIT; SQLite's own errors become a LedgerError that names the file."""

    def __init__(self, db: sqlite3.Connection, path: Path):
        self.db, self.path = db, path

    def __enter__(self) -> sqlite3.Connection:
        try:
            self.db.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            raise LedgerError(f"judge ledger {self.path}: {error}: check the disk and its permissions") from error
        return self.db

    def __exit__(self, kind, error, _) -> None:
        try:
            self.db.execute("ROLLBACK" if error else "COMMIT")
        except sqlite3.Error as failed:
            if self.db.in_transaction:  # a COMMIT that found somebody reading leaves it open, and all others out
                self.db.execute("ROLLBACK")
            raise LedgerError(f"judge ledger {self.path}: {failed}: check the disk and its permissions") from failed
        if isinstance(error, sqlite3.Error):
            raise LedgerError(f"judge ledger {self.path}: {error}: check the disk and its permissions") from error
