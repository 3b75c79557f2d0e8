"""A run's folder turned into a picture, `curves.png`, and a page, `report.html`, that needs no other file.

    python report.py runs/NAME

Reads `config.json`, `metrics.csv`, `results.json`, `journal.sqlite`; whatever is missing (a run going on, or
killed) is left out, and the page says so. It never changes what it reads.

Success rates carry Wilson's 95 % interval for k successes in n judged episodes, with p = k / n, z = 1.96:

    (p + z^2/2n  +-  z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n)

Departs from the paper: its figures give no intervals. An episode that the judge could not decide is not a
failure here: it is left out of the rate and counted on its own.
"""

import base64
import csv
import html
import io
import json
import math
import os
import sys
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from journal import Entry, Journal, JournalError

BLUE, ORANGE = "#2563eb", "#ea580c"
PANELS = (  # title, ((column, label), ...): drawn when at least one of the columns was measured
    ("trajectories / min", (("charts/trajectories_per_minute", ""),)),
    ("policy lag (versions)", (("stats/policy_lag_mean", "mean"), ("stats/policy_lag_max", "max"))),
    ("policy loss", (("losses/policy_loss", ""),)),
    ("critic losses", (("losses/value_loss", "V_step"), ("losses/trajectory_value_loss", "V_traj"))),
    ("entropy (nats a token)", (("losses/entropy", ""),)),
    ("invalid-action penalty", (("losses/invalid_penalty", ""),)),
    ("gradient norm", (("losses/grad_norm", ""),)),
    ("mean episode length (steps)", (("charts/episodic_length", ""),)),
)
MEANING = {
    "charts/success_rate": "training episodes judged a success, recent ones",
    "charts/SPS": "environment steps a second, all workers",
    "stats/policy_lag_mean": "publications of the weights between acting and arriving, recent trajectories",
    "stats/policy_lag_max": "the same, of the most stale of them",
    "stats/rho_mean": "importance ratio new / old policy (1: on-policy)",
    "stats/rho_clipfrac": "share of ratios that were clipped",
    "stats/ess": "effective sample size of the batch, as a share",
    "stats/server_batch": "requests that the policy server answers at once",
    "stats/learner_idle": "share of time the learner waited",
    "stats/phone_idle": "share of time phones waited for the policy",
    "stats/worker_restarts": "workers that died and were replaced",
    "stats/judge_unknown": "episodes that the judge could not decide",
    "stats/invalid_actions": "share of texts that are no action",
    "stats/stale_dropped": "trajectories too old to train on",
    "eval/success_rate": "held-out episodes judged a success",
}


@dataclass
class Run:
    """What a run's folder holds; `notes` says what it does not."""

    folder: Path
    config: dict = field(default_factory=dict)
    results: dict = field(default_factory=dict)
    metrics: list[dict[str, float]] = field(default_factory=list)  # one dict a row, measured cells only
    entries: list[Entry] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def training(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.split == "train"]

    def series(self, column: str) -> tuple[list[float], list[float]]:
        """-> (trajectories, values) of the rows where `column` was measured."""
        rows = [row for row in self.metrics if column in row]
        return [row.get("trajectories", math.nan) for row in rows], [row[column] for row in rows]


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
    names = ("config.json", "metrics.csv", "results.json", "journal.sqlite")
    if not any((run.folder / name).is_file() for name in names):
        raise FileNotFoundError(f"{run.folder}: not a run's folder: it has none of {', '.join(names)}")
    for name in names:
        path = run.folder / name
        if not path.is_file():
            why = ": the run is not over, or was stopped" if name == "results.json" else ""
            run.notes.append(f"no {name}{why}")
            continue
        try:
            if name == "metrics.csv":
                run.metrics = read_metrics(path)
            elif name == "journal.sqlite":
                with Journal(path, readonly=True) as journal:
                    run.entries = list(journal.rows())
            else:
                value = json.loads(path.read_text(encoding="utf-8"))
                if not isinstance(value, dict):
                    raise ValueError(f"holds a {type(value).__name__}, not an object")
                setattr(run, name.removesuffix(".json"), value)
        except (OSError, ValueError, JournalError) as error:
            run.notes.append(f"{name} cannot be read: {error}")
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


def _number(cell: Any) -> float:
    try:
        return float(cell)
    except (TypeError, ValueError):
        return math.nan  # not measured


def minutes_of(run: Run, entries: list[Entry]) -> list[float]:
    """When each training trajectory ended, in minutes of the run, by the clock of metrics.csv (it stops
    between a stop and a resume), beyond its ends by the journal's time stamps."""
    known = {}
    for row in run.metrics:
        count = int(row.get("trajectories", 0))
        if 1 <= count <= len(entries) and "wall_seconds" in row:
            known.setdefault(count - 1, row["wall_seconds"])
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
        low, high = _phase(results, "greedy", "warmup").get("ci95") or wilson_interval(first * n, n)
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
    return [(row.get("wall_seconds", 0.0) / 60, row.get("trajectories", 0.0), row["eval/success_rate"],
             int(row.get("eval/n", 0))) for row in run.metrics if "eval/success_rate" in row]


def headline(run: Run) -> str:
    first, last, n = (run.results.get(key) for key in ("warmup_success_rate", "success_rate", "n"))
    if last is None:
        measured = _evaluation_rows(run)
        if not measured:
            state = "Not evaluated" if run.results else "No evaluation yet"
            return f"{state}: {len(run.training())} training trajectories so far"
        _, trajectories, rate, _ = measured[-1]
        return f"Held-out success {rate:.1%} at the last evaluation, after {trajectories:.0f} trajectories"
    low, high = run.results.get("ci95") or wilson_interval(last * (n or 0), n or 0)
    before = "" if first is None else f"{first:.1%} \u2192 "
    return f"Held-out success {before}{last:.1%} (95 % interval {low:.1%} to {high:.1%}, {n} episodes)"


def draw_curves(run: Run) -> bytes:
    """The picture, as PNG bytes. Needs matplotlib, no display."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    panels = [(title, [(run.series(column), label) for column, label in columns if run.series(column)[1]])
              for title, columns in PANELS]
    panels = [(title, lines) for title, lines in panels if lines]
    rows = -(-len(panels) // 4)
    figure = Figure(figsize=(13, 5.2 + 2.1 * rows), dpi=110, layout="constrained")
    grid = figure.add_gridspec(1 + rows, 4, height_ratios=[2.1] + [1] * rows)
    figure.get_layout_engine().set(h_pad=0.08, hspace=0.04)
    figure.suptitle(headline(run), fontsize=15, fontweight="bold")

    entries = run.training()
    minutes, points = minutes_of(run, entries), evaluations(run)
    window = max(40, min(200, len(entries) // 10))
    curve = moving_success(entries, window)
    big = None
    for side, name in enumerate(("minutes of training", "training trajectories")):
        axes = big = figure.add_subplot(grid[0, 2 * side: 2 * side + 2], sharey=big)
        where = [minutes[i] if side == 0 else i + 1 for i, *_ in curve]
        if curve:
            _, rates, lows, highs = zip(*curve, strict=True)
            axes.fill_between(where, lows, highs, color=BLUE, alpha=0.15, linewidth=0)
            axes.plot(where, rates, color=BLUE, linewidth=1.8,
                      label=f"training (sampled actions), mean of the last {window}")
        label = "held-out tasks, 95 % interval"
        for *at, rate, low, high, text in points:
            x = at[side]
            axes.errorbar(x, rate, yerr=[[max(0, rate - low)], [max(0, high - rate)]], fmt="o", capsize=4,
                          color=ORANGE, markersize=9 if text else 5, zorder=5, label=label, clip_on=False)
            label = None
            if text:
                above = low < 0.1  # below, where the training curve is not
                axes.annotate(f"{text} {rate:.1%}", (x, high if above else low), textcoords="offset points",
                              xytext=(0, 7 if above else -7), ha="right" if text == "after" else "left", zorder=6,
                              va="bottom" if above else "top", color=ORANGE, fontsize=12, fontweight="bold",
                              bbox={"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 1.5})
        axes.set(xlabel=name, ylim=(0, 1), title=f"Success over {('time', 'experience')[side]}")
        axes.yaxis.set_major_formatter(PercentFormatter(1))
        if side == 0:
            axes.set_ylabel("episodes judged a success")
            if curve or points:
                axes.legend(loc="lower right", frameon=False)
    for k, (title, lines) in enumerate(panels):
        axes = figure.add_subplot(grid[1 + k // 4, k % 4])
        for ((x, y), text), colour in zip(lines, (BLUE, ORANGE), strict=False):
            axes.plot(x, y, color=colour, linewidth=1.2, label=text or None, marker="." if len(x) == 1 else "")
        axes.set_title(title, fontsize=10)
        if title.startswith(("trajectories", "policy lag", "mean episode")):
            axes.set_ylim(bottom=0)
        if k >= len(panels) - 4:
            axes.set_xlabel("training trajectories", fontsize=9)
        axes.tick_params(labelsize=8)
        if len(lines) > 1:
            axes.legend(fontsize=8, frameon=False)
    for axes in figure.axes:
        axes.set_xlim(left=0)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    png = io.BytesIO()
    figure.savefig(png, format="png")
    return png.getvalue()


STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #202124; max-width: 1080px; margin: 2rem auto }
h1 { font-size: 1.5rem; margin: 0 } h2 { font-size: 1.15rem; margin: 2.2rem 0 .5rem } img { width: 100% }
table { border-collapse: collapse; font: 13px/1.5 system-ui, sans-serif } th, .number { white-space: nowrap }
th, td { text-align: left; padding: .2rem .9rem .2rem 0; border-bottom: 1px solid #ddd; vertical-align: top }
.number { font-variant-numeric: tabular-nums } .quiet { color: #6b7280 } .success { color: #15803d }
.note { background: #fef3c7 } .failure { color: #b91c1c } .bar { width: 130px }
.bar div { background: #dbeafe } .bar span { display: block; height: .8em; background: #2563eb }
"""


def _cell(value: Any, css: str = "") -> str:
    if isinstance(value, float):
        value = f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    elif isinstance(value, list):
        value = ", ".join(f"{x:.4g}" if isinstance(x, float) else str(x) for x in value)
    return f'<td class="{css}">{html.escape(str(value))}</td>'


def _table(head: list[str], rows: list[list[str]]) -> str:
    """`rows` hold finished cells."""
    titles = "".join(f"<th>{html.escape(title)}</th>" for title in head)
    return f"<table><tr>{titles}</tr>{''.join('<tr>' + ''.join(row) + '</tr>' for row in rows)}</table>"


def family_table(results: dict) -> str:
    """Success by task family (all its episodes), then of all greedy and all sampled episodes."""
    rows, lines = [], sorted((results.get("families") or {}).items())
    for mode in ("greedy", "sampled"):
        before, after = (_phase(results, mode, phase) for phase in ("warmup", "final"))
        if after:
            rates = before.get("success_rate"), after.get("success_rate"), after.get("n")
            lines.append((f"all, {mode} actions", dict(zip(("warmup", "final", "n"), rates, strict=True))))
    for name, value in lines:
        before, after, n = value.get("warmup"), value.get("final"), value.get("n") or 0
        low, high = wilson_interval((after or 0) * n, n)
        change = "" if before is None or after is None else f"{100 * (after - before):+.0f} points"
        bar = f'<td class="bar"><div><span style="width:{100 * (after or 0):.0f}%"></span></div></td>'
        interval = f"{low:.0%} to {high:.0%}" if n else ""
        rates = ["" if rate is None else f"{rate:.1%}" for rate in (before, after)]
        rows.append([_cell(name), *(_cell(rate, "number") for rate in rates), bar,
                     *(_cell(x, "number quiet") for x in (interval, change, n))])
    return _table(["family", "before", "after", "", "95 % interval", "change", "n"], rows) if rows else ""


def _phase(results: dict, mode: str, phase: str) -> dict:
    """results[mode][phase], {} where there is none."""
    return (results.get(mode) or {}).get(phase) or {}


def metric_table(metrics: list[dict[str, float]]) -> str:
    rows = []
    for name in dict.fromkeys(name for row in metrics for name in row):
        values = [row[name] for row in metrics if name in row]
        numbers = (values[-1], sum(values) / len(values), min(values), max(values))
        rows.append([_cell(name), *(_cell(x, "number") for x in numbers), _cell(MEANING.get(name, ""), "quiet")])
    return _table(["metric", "last", "mean", "lowest", "highest", ""], rows)


def trajectory_table(entries: list[Entry]) -> str:
    rows = []
    for entry in entries:
        outcome = {True: "success", False: "failure", None: "unjudged"}[entry.success]
        clock = datetime.fromtimestamp(entry.created).strftime("%H:%M:%S")
        rows.append([_cell(entry.id, "quiet"), _cell(clock, "quiet"), _cell(entry.instruction),
                     _cell(entry.family, "quiet"), _cell(outcome, outcome), _cell(entry.length),
                     _cell(entry.reason), *map(_cell, (entry.policy_version, entry.worker, entry.split))])
    return _table("id at instruction family outcome steps reason version worker split".split(), rows)


def page(run: Run, png: bytes) -> str:
    """One file, no script, nothing loaded from elsewhere, every string escaped."""
    def pairs(values: dict) -> str:
        flat = [(f"{key}.{name}".rstrip("."), value) for key, group in values.items()
                for name, value in (group if isinstance(group, dict) else {"": group}).items()]
        return _table(["", ""], [[_cell(key), _cell(value)] for key, value in flat])

    plain = {key: value for key, value in run.results.items() if key not in ("families", "greedy", "sampled")}
    last = run.entries[:-31:-1]
    sections = (
        ("Success by task family, held-out tasks", family_table(run.results)),
        ("Result", pairs(plain) if plain else ""),
        ("Timing, faults and losses", metric_table(run.metrics) if run.metrics else ""),
        (f"The last {len(last)} of {len(run.entries)} trajectories", trajectory_table(last) if last else ""),
        ("Settings", pairs(run.config) if run.config else ""),
    )
    body = "".join(f"<h2>{html.escape(title)}</h2>{content}" for title, content in sections if content)
    notes = "".join(f'<p class="note">{html.escape(note)}</p>' for note in run.notes)
    picture, name = base64.b64encode(png).decode(), html.escape(run.folder.resolve().name)
    return (f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{name}</title>'
            f'<style>{STYLE}</style></head><body>'
            f'<h1>{html.escape(headline(run))}</h1><p class="quiet">{name}</p>{notes}'
            f'<img alt="success over time and over experience, losses, policy lag, speed"'
            f' src="data:image/png;base64,{picture}">{body}</body></html>\n')


def write_report(folder: str | os.PathLike) -> tuple[Path, Path]:
    """Writes `curves.png` and `report.html` into the run's folder, each whole or not at all. -> the paths"""
    run = read_run(folder)
    png = draw_curves(run)
    paths = run.folder / "curves.png", run.folder / "report.html"
    for path, content in zip(paths, (png, page(run, png).encode("utf-8", "replace")), strict=True):
        temporary = path.with_name(path.name + ".new")
        temporary.write_bytes(content)
        os.replace(temporary, path)
    return paths


def main() -> None:
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: python report.py runs/NAME")
    try:
        print("wrote {} and {}".format(*write_report(sys.argv[1])))
    except OSError as error:
        sys.exit(f"report: {error}")


if __name__ == "__main__":
    main()
