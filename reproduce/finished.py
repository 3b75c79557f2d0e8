"""Finished runs of `run.py`, read; and what their tables are made of, copied beside these.

    runs = finished(Path("runs/reproduce/full"), ["aride", "digirl_sync"])     # {method: [Done, ...]}, by seed
    keep_raw(runs, Path("reproduce/results/full"))
    runs = kept(Path("reproduce/results/full/raw"), ["aride"])     # the same from the copies: all that tables need

Training success is the mean of the last 100 judged training episodes (sampled actions), over the minutes at which they
ended, from the journal. Only what ended before the deadline counts: episodes that were on their way then come in later.
"""

from __future__ import annotations

import csv
import json
import math
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from run_data import Run, minutes_of, moving_success, read_metrics, read_run  # noqa: E402

WINDOW = 100  # episodes that training success is the mean of


class Outcome(NamedTuple):
    """One training episode."""

    minutes: float  # of training, when it ended
    success: bool | None  # None: no verdict


@dataclass
class Done:
    """A finished run."""

    method: str
    seed: int
    folder: Path
    command: str  # that made it, "" when nobody noted it
    results: dict
    config: dict
    metrics: list[dict[str, float]]  # a row of metrics.csv: what was measured
    outcomes: list[Outcome]  # up to the deadline, in the order in which they came
    deadline: float  # minutes of training

    @property
    def repository(self) -> str:
        """Where it was made, "/" at the end; "" when its command names the whole path of its folder."""
        words, told = shlex.split(self.command), at(self.config, ["run"]).get("runs_dir")
        name = words[words.index("--runs-dir") + 1] if "--runs-dir" in words else None
        return told.removesuffix(name) if told and name and told.endswith(f"/{name}") else ""

    @property
    def trajectories(self) -> float:
        """Training trajectories up to the deadline."""
        return next((row["trajectories"] for row in reversed(self.metrics) if "trajectories" in row), math.nan)

    def curve(self, x: str, y: str) -> tuple[list[float], list[float]]:
        """Two columns of metrics.csv."""
        rows = [row for row in self.metrics if x in row and y in row]
        return [row[x] for row in rows], [row[y] for row in rows]

    def success(self, over: str = "minutes") -> tuple[list[float], list[float]]:
        """Training success over "minutes" or "trajectories", once there are so many episodes."""
        points = moving_success(self.outcomes, WINDOW)[WINDOW - WINDOW // 4 :]
        places = [self.outcomes[i].minutes if over == "minutes" else i + 1 for i, *_ in points]
        return places, [rate for _, rate, *_ in points]

    def last_success(self) -> float:
        """Training success at the deadline; NaN before there are so many episodes."""
        return (self.success()[1] or [math.nan])[-1]

    def minutes_to(self, success: float) -> float:
        """When training success first reached this; NaN: never."""
        return next((at for at, rate in zip(*self.success(), strict=True) if rate >= success), math.nan)

    def mean_success(self) -> float:
        """Training success averaged over the minutes until the deadline; before a quarter of the window: the first."""
        points = moving_success(self.outcomes, WINDOW)
        if not points:
            return math.nan
        starts = [0.0, *(self.outcomes[i].minutes for i, *_ in points[1:]), self.deadline]
        return sum(rate * (starts[k + 1] - starts[k]) for k, (_, rate, *_) in enumerate(points)) / self.deadline

    def percent(self, *path: str) -> float:
        """The success rate at this place of results.json, in %; NaN when nothing there has a verdict."""
        rate = at(self.results, path).get("success_rate")
        return math.nan if rate is None else 100 * rate


def at(results: dict, path: Sequence[str]) -> dict:
    """results[path[0]][path[1]]..., {} where there is none."""
    for name in path:
        results = results.get(name) or {}
    return results


def note(path: Path) -> str:
    """What this file says, "" when there is none."""
    return path.read_text(encoding="utf-8").strip() if path.exists() else ""


def deadline(results: dict, config: dict) -> float:
    """Minutes of training that count: it ends a little after the deadline, before it when there were enough."""
    ended = results["train_seconds"] / 60
    return min(at(config, ["tasks"]).get("train_minutes") or ended, ended)


def done(run: Run, method: str) -> Done:
    """Of what `read_run` found."""
    until, entries = deadline(run.results, run.config), run.training()
    outcomes = map(Outcome, minutes_of(run, entries), (entry.success for entry in entries))
    known, command = [outcome for outcome in outcomes if outcome.minutes <= until], run.folder.parent / "command.txt"
    return Done(method, run.results["seed"], run.folder, note(command), run.results, run.config, run.metrics, known,
                until)  # fmt: skip


def finished(folder: Path, methods: Sequence[str]) -> dict[str, list[Done]]:
    """Runs below OUT/BUDGET by method, in order of their seeds; methods without any are left out."""
    found: dict[str, list[Done]] = {}
    for method in methods:
        for path in sorted(folder.glob(f"{method}/*/*/results.json"), key=lambda path: int(path.parts[-3])):
            found.setdefault(method, []).append(done(read_run(path.parent), method))
    return found


def keep_raw(runs: dict[str, list[Done]], to: Path) -> None:
    """Copies what the tables are made of, so that they can be checked without the runs; no path of this machine.

    ValueError: there are files of other phones, or of another judge.
    """
    raw = to / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for run in (run for group in runs.values() for run in group):
        before = json.loads(note(raw / f"{run.method}__{run.seed}.json") or "{}")
        for name in ("phones", "judge"):
            if before.get(name, run.results[name]) != run.results[name]:
                raise ValueError(f"{raw} has runs with {name} {before[name]}, these are with {run.results[name]}: "
                                 "name another --to")  # fmt: skip
    for run in (run for group in runs.values() for run in group):
        name = f"{run.method}__{run.seed}"
        for file, kind in (("results.json", "json"), ("metrics.csv", "csv"), ("config.json", "config.json"),
                           ("../command.txt", "command.txt")):  # fmt: skip
            if (path := run.folder / file).exists():
                text = path.read_text(encoding="utf-8", errors="replace").replace(run.repository or f"{ROOT}/", "")
                (raw / f"{name}.{kind}").write_text(text, encoding="utf-8")
        with (raw / f"{name}.outcomes.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(Outcome._fields)
            writer.writerows([f"{x.minutes:.4f}", "" if x.success is None else int(x.success)] for x in run.outcomes)
        for path in (run.folder.parents[2] / "tasks").glob("*.txt"):
            if path.stem != "train":  # thousands of lines, which their hash names
                shutil.copyfile(path, raw / path.name)


def kept(raw: Path, methods: Sequence[str]) -> dict[str, list[Done]]:
    """As `finished`, from what `keep_raw` has copied to this folder, here or on another machine."""
    found: dict[str, list[Done]] = {}
    for method in methods:
        for path in raw.glob(f"{method}__*.outcomes.csv"):
            name = path.name.removesuffix(".outcomes.csv")
            results, config = (json.loads(note(raw / f"{name}.{kind}")) for kind in ("json", "config.json"))
            with path.open(newline="", encoding="utf-8") as file:
                outcomes = [Outcome(float(row["minutes"]), bool(int(row["success"])) if row["success"] else None)
                            for row in csv.DictReader(file)]  # fmt: skip
            command, metrics = note(raw / f"{name}.command.txt"), read_metrics(raw / f"{name}.csv")
            found.setdefault(method, []).append(Done(method, results["seed"], raw, command, results, config, metrics,
                                                     outcomes, deadline(results, config)))  # fmt: skip
        found.get(method, []).sort(key=lambda run: run.seed)
    return found
