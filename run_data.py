"""What a run's folder holds, read while the run goes on or after it: numbers, trajectories' light columns, curves.

    run = read_run("runs/NAME")
    headline(run); run.series("losses/entropy"); evaluations(run); moving_success(run.training(), 200)

Reads `config.json`, `metrics.csv`, `results.json`, `journal.sqlite`; whatever is missing (a run going on, or killed) is
left out, and `notes` says so. It never changes what it reads.

Success rates carry Wilson's 95 % interval for k successes in n judged episodes, with p = k / n, z = 1.96:

    (p + z^2/2n  +-  z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n)

Departs from the paper: its figures give no intervals. An episode that the judge could not decide is not a failure here:
it is left out of the rate and counted on its own.
"""

import csv
import json
import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from journal import Entry, Journal, JournalError


@dataclass
class Run:
    """What a run's folder holds; `notes` says what it does not."""

    folder: Path
    config: dict = field(default_factory=dict)
    results: dict = field(default_factory=dict)
    metrics: list[dict[str, float]] = field(default_factory=list)  # one dict a row, measured cells only
    entries: list[Entry] = field(default_factory=list)
    learnt: dict[int, tuple[int, str]] = field(default_factory=dict)  # of `Journal.learnt`
    notes: list[str] = field(default_factory=list)

    def training(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.split == "train"]

    def series(self, column: str) -> tuple[list[float], list[float]]:
        """-> (trajectories, values) of the rows where `column` was measured."""
        rows = [row for row in self.metrics if column in row]
        return [row.get("trajectories", math.nan) for row in rows], [row[column] for row in rows]


def write_whole(path: Path, content: bytes) -> None:
    """The file as it was, or as it is to be; never half of it."""
    temporary = path.with_name(path.name + ".new")
    temporary.write_bytes(content)
    os.replace(temporary, path)


def wilson_interval(successes: float, n: int, z: float = 1.959964) -> tuple[float, float]:
    """95 % interval of a success rate; (0, 1) when nothing was judged. ValueError: impossible counts."""
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n} episodes: need 0 <= successes <= n")
    if n == 0:
        return 0.0, 1.0
    p = successes / n
    centre, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)


def read_run(folder: str | os.PathLike) -> Run:
    """Reads a run's folder, complete or not. Raises FileNotFoundError when it is none."""
    run = Run(Path(folder))
    names = ("config.json", "results.json", "metrics.csv", "journal.sqlite")
    if not any((run.folder / name).is_file() for name in names):
        raise FileNotFoundError(f"{run.folder}: not a run's folder: it has none of {', '.join(names)}")
    for name in names:
        path = run.folder / name
        if not path.is_file():
            if name == "metrics.csv" and "evaluated" in run.results:
                continue  # of --eval: nothing was trained
            why = ": the run is not over, or was stopped" if name == "results.json" else ""
            run.notes.append(f"no {name}{why}")
            continue
        try:
            if name == "metrics.csv":
                run.metrics = read_metrics(path)
            elif name == "journal.sqlite":
                with Journal(path, readonly=True) as journal:
                    run.entries, run.learnt = list(journal.rows()), journal.learnt()
            else:
                value = json.loads(path.read_text(encoding="utf-8"))
                if not isinstance(value, dict):
                    raise ValueError(f"holds a {type(value).__name__}, not an object")
                setattr(run, name.removesuffix(".json"), value)
        except (OSError, ValueError, JournalError) as error:
            run.notes.append(f"{name} cannot be read: {error}")
    if (run.config.get("recorded") or {}).get("replay"):  # the copied journal has that run's evaluations, not ours
        run.entries = run.training()
    return run


def read_metrics(path: Path) -> list[dict[str, float]]:
    """Rows of metrics.csv as numbers; empty cells, and a last line cut short by a kill, are left out."""
    text = path.read_text(encoding="utf-8", errors="replace")
    lines = text[: text.rfind("\n") + 1].splitlines()
    rows = []
    for cells in csv.DictReader(lines):
        row = {name: _number(cell) for name, cell in cells.items() if name}
        rows.append({name: value for name, value in row.items() if math.isfinite(value)})
    return [row for row in rows if row]


def last_clock(folder: Path) -> float:
    """Seconds of training, as the last row of metrics.csv says: 0 without one."""
    path = folder / "metrics.csv"
    return max((row.get("wall_seconds", 0.0) for row in (read_metrics(path) if path.exists() else ())), default=0.0)


def _number(cell: Any) -> float:
    try:
        return float(cell)
    except (TypeError, ValueError):
        return math.nan  # not measured


def minutes_of(run: Run, entries: list[Entry]) -> list[float]:
    """When each training trajectory ended, in minutes of the run, by the clock of metrics.csv (it stops
    between a stop and a resume), beyond its ends by the journal's time stamps."""
    known, newest = {}, 0
    for row in run.metrics:
        count = int(row.get("trajectories", 0))
        if newest < count <= len(entries) and "wall_seconds" in row:  # a killed run that was resumed counts them again
            known[count - 1], newest = row["wall_seconds"], count
    if not known and entries:
        known = {0: 0.0}
    minutes, marks, position = [], sorted(known.items()), 0
    for i, entry in enumerate(entries):
        while position + 1 < len(marks) and marks[position + 1][0] <= i:
            position += 1
        j, seconds = marks[position]
        if j <= i and position + 1 < len(marks):
            k, later = marks[position + 1]
            seconds += (later - seconds) * (i - j) / (k - j)
        else:
            seconds += entry.created - entries[j].created
        minutes.append(max(seconds, 0.0) / 60)
    return minutes


def moving_success(entries: list[Entry], window: int) -> list[tuple[int, float, float, float]]:
    """-> (index, rate, low, high) over the last `window` judged trajectories, once it is a quarter full."""
    judged = [(i, entry.success) for i, entry in enumerate(entries) if entry.success is not None]
    total, curve = 0, []
    for k, (i, success) in enumerate(judged):
        total += success - (judged[k - window][1] if k >= window else 0)
        n = min(k + 1, window)
        if n >= max(1, window // 4):
            curve.append((i, total / n, *wilson_interval(total, n)))
    return curve


def evaluations(run: Run) -> list[tuple[float, float, float, float, float, str]]:
    """-> (minutes, trajectories, rate, low, high, label): before, in between (metrics.csv), after."""
    results, points, n = run.results, [], run.results.get("n") or 0
    first, last = results.get("warmup_success_rate"), results.get("success_rate")
    if first is not None:
        low, high = phase_of(results, "greedy", "warmup").get("ci95") or wilson_interval(first * n, n)
        points.append((0.0, 0.0, first, low, high, "before"))  # the clock of metrics.csv runs in training
    for minutes, trajectories, rate, count in _evaluation_rows(run):
        if first is not None and trajectories == 0:
            continue  # the same as "before"
        low, high = wilson_interval(rate * count, count) if count else (rate, rate)
        points.append((minutes, trajectories, rate, low, high, ""))
    if last is not None:
        low, high = results.get("ci95") or wilson_interval(last * n, n)
        trajectories = results.get("trajectories", len(run.training()))
        if points and points[-1][1] == trajectories and not points[-1][5]:
            points.pop()  # the final evaluation is in metrics.csv too
        end = max((row.get("wall_seconds", 0.0) for row in run.metrics), default=0.0)
        points.append((results.get("train_seconds", end) / 60, trajectories, last, low, high, "after"))
    return points


def _evaluation_rows(run: Run) -> list[tuple[float, float, float, int]]:
    return [(row.get("wall_seconds", 0.0) / 60, row.get("eval/trajectories", row.get("trajectories", 0.0)),
             row["eval/success_rate"], int(row.get("eval/n", 0))) for row in run.metrics if "eval/success_rate" in row]


def headline(run: Run) -> str:
    """The result in one sentence, with its interval."""
    first, last, n = (run.results.get(key) for key in ("warmup_success_rate", "success_rate", "n"))
    if last is None:
        measured = _evaluation_rows(run)
        if not measured:
            unjudged, number = run.results.get("unjudged"), f"{len(run.training())} training trajectories"
            if not run.results:
                return f"No evaluation yet: {number} so far"
            played = f"Evaluated without a verdict, {unjudged} episodes" if unjudged else "Not evaluated"
            return f"{played}: {number}"
        _, trajectories, rate, n = measured[-1]
        low, high = wilson_interval(rate * n, n)
        return (f"Held-out success {rate:.1%} at the last evaluation, after {trajectories:.0f} trajectories "
                f"(95 % interval {low:.1%} to {high:.1%}, {n} episodes)")
    low, high = run.results.get("ci95") or wilson_interval(last * (n or 0), n or 0)
    before = "" if first is None else f"{first:.1%} \u2192 "
    return f"Held-out success {before}{last:.1%} (95 % interval {low:.1%} to {high:.1%}, {n} episodes)"


def phase_of(results: dict, mode: str, phase: str) -> dict:
    """results[mode][phase], {} where there is none."""
    return (results.get(mode) or {}).get(phase) or {}
