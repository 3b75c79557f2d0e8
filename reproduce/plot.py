"""Tables and figures of the runs that `run.py` made: each one's results.json and metrics.csv, nothing else.

    python reproduce/plot.py --experiment table1                    # into reproduce/results/full
    python reproduce/plot.py --experiment efficiency --budget small --to /tmp/look

Writes EXPERIMENT.md, its figures, and raw/METHOD__SEED.json and .csv, the files that they come from. A number over n
runs is mean +- standard deviation [95 % interval]; the interval is Student's over runs (seeds), or for one run Wilson's
over its episodes. A difference is taken seed by seed, A-RIDE minus the other; "within noise" says that its interval
holds 0. Unknown verdicts are in no rate.

Training efficiency is ours to define: F is the training success (the last 200 episodes, sampled actions) with which the
synchronous DigiRL ends, its mean over seeds; a run's time is when its own first reaches F, from 200 episodes on.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import shutil
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "reproduce")]

from run import BOUNDS, BUDGETS, EXPERIMENTS, METHODS, SWEEPS, WORKERS, sweep_name  # noqa: E402

from run_data import read_metrics  # noqa: E402

T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)  # Student's, 1 to 10 degrees of freedom
SUCCESS, FULL = "charts/success_rate", 200  # training success, and the episodes that it is the mean of
COLOURS = ("#2563eb", "#ea580c", "#15803d", "#9333ea", "#0891b2", "#be123c")
# Success % in the paper's table: General train, test, Web train, test; Gemini's verdicts on real Android.
PAPER = {"digirl_sync": "67.7 / 61.2 / 64.5 / 59.9", "aride": "75.5 / 73.2 / 69.8 / 68.5",
         "start": "38.3 / 40.6 / 42.2 / 44.5"}  # fmt: skip


@dataclass
class Done:
    """A finished run."""

    method: str
    seed: int
    results: dict
    metrics: list[dict[str, float]]  # a row of metrics.csv: what was measured

    def curve(self, x: str, y: str, least: int = FULL) -> tuple[list[float], list[float]]:
        """Two columns of metrics.csv, from `least` trajectories on."""
        rows = [row for row in self.metrics if x in row and y in row and row.get("trajectories", 0) >= least]
        return [row[x] for row in rows], [row[y] for row in rows]

    def percent(self, *path: str) -> float:
        """The success rate at this place of results.json, in %; NaN when nothing there has a verdict."""
        rate = _at(self.results, path).get("success_rate")
        return math.nan if rate is None else 100 * rate


def _at(results: dict, path: Sequence[str]) -> dict:
    for name in path:
        results = results.get(name) or {}
    return results


# ---------------------------------------------------------------------- reading


def finished(folder: Path, methods: Sequence[str]) -> dict[str, list[Done]]:
    """Runs below OUT/BUDGET by method, in order of their seeds; methods without any are left out."""
    found: dict[str, list[Done]] = {}
    for method in methods:
        for path in sorted(folder.glob(f"{method}/*/*/results.json"), key=lambda path: int(path.parts[-3])):
            results = json.loads(path.read_text(encoding="utf-8"))
            metrics = path.with_name("metrics.csv")
            rows = read_metrics(metrics) if metrics.exists() else []
            found.setdefault(method, []).append(Done(method, results["seed"], results, rows))
    return found


def keep_raw(folder: Path, methods: Sequence[str], to: Path) -> None:
    """Copies what the tables are made of, so that they can be checked without the runs."""
    (to / "raw").mkdir(parents=True, exist_ok=True)
    for method in methods:
        for path in folder.glob(f"{method}/*/*/results.json"):
            name = f"{method}__{path.parts[-3]}"
            shutil.copyfile(path, to / "raw" / f"{name}.json")
            if path.with_name("metrics.csv").exists():
                shutil.copyfile(path.with_name("metrics.csv"), to / "raw" / f"{name}.csv")


# ---------------------------------------------------------------------- numbers


@dataclass
class Number:
    """Mean, standard deviation and 95 % interval of one value a run; half: half the interval, None for one run."""

    mean: float
    deviation: float
    half: float | None
    n: int

    def __str__(self) -> str:
        if self.n == 0:
            return "-"
        if self.half is None:
            return f"{self.mean:.1f}"
        return f"{self.mean:.1f} ± {self.deviation:.1f} [{self.mean - self.half:.1f}, {self.mean + self.half:.1f}]"


def number(values: Sequence[float]) -> Number:
    """Over runs; NaN ones are left out. The interval is Student's, beyond 11 runs a little too wide."""
    known = [value for value in values if math.isfinite(value)]
    n = len(known)
    if not n:
        return Number(math.nan, math.nan, None, 0)
    if n == 1:
        return Number(known[0], math.nan, None, 1)
    deviation = statistics.stdev(known)
    return Number(statistics.mean(known), deviation, T95[min(n - 1, len(T95)) - 1] * deviation / math.sqrt(n), n)


def rate(runs: Sequence[Done], *path: str) -> str:
    """A success rate over runs; for one run with Wilson's interval over its episodes."""
    found = number([run.percent(*path) for run in runs])
    return "{:.1f} [{:.1f}, {:.1f}]".format(found.mean, *wilson(runs, *path)) if found.n == 1 else str(found)


def wilson(runs: Sequence[Done], *path: str) -> tuple[float, float]:
    """The interval, in %, of the first run that has this rate."""
    low, high = next(_at(run.results, path)["ci95"] for run in runs if math.isfinite(run.percent(*path)))
    return 100 * low, 100 * high


def difference(runs: Sequence[Done], others: Sequence[Done], value: Callable[[Done], float]) -> str:
    """`value` of `runs` minus that of `others`, seed by seed."""
    theirs = {run.seed: value(run) for run in others}
    found = number([value(run) - theirs[run.seed] for run in runs if run.seed in theirs])
    if not found.n:
        return "-"
    if found.half is None:
        return f"{found.mean:+.1f}, one seed: no interval"
    return f"{found.mean:+.1f} ± {found.half:.1f}{', within noise' if found.half >= abs(found.mean) else ''}"


def held_out(run: Done) -> float:
    """Greedy success on all held-out tasks after training, %."""
    return run.percent("greedy", "final")


def minutes_to(run: Done, success: float) -> float:
    """When training success first reached this, minutes of training; NaN: never."""
    seconds, values = run.curve("wall_seconds", SUCCESS)
    return next((s / 60 for s, value in zip(seconds, values, strict=True) if value >= success), math.nan)


def table(head: Sequence[str], rows: Sequence[Sequence]) -> str:
    """As Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines) + "\n"


# ---------------------------------------------------------------------- figures


def figure(panels: int):
    from matplotlib.figure import Figure

    made = Figure(figsize=(6.2 * panels, 4.2), dpi=110, layout="constrained")
    axes = made.subplots(1, panels, squeeze=False)[0]
    for one in axes:
        one.grid(alpha=0.25)
        one.spines[["top", "right"]].set_visible(False)
    return made, axes


def draw_curves(axes, runs: dict[str, list[Done]], x: str, y: str, scale: float = 1.0, least: int = FULL) -> None:
    """Mean over seeds where all of them have values; the band is one standard deviation."""
    import numpy as np

    for colour, (method, done) in zip(COLOURS * 3, runs.items(), strict=False):
        curves = [curve for curve in (run.curve(x, y, least) for run in done) if len(curve[0]) > 1]
        if not curves:
            continue
        start, end = max(curve[0][0] for curve in curves), min(curve[0][-1] for curve in curves)
        grid = np.linspace(start, end, 200)
        values = np.array([np.interp(grid, *curve) for curve in curves])
        mean, deviation = values.mean(0), values.std(0, ddof=1) if len(values) > 1 else 0 * grid
        axes.plot(grid * scale, mean, color=colour, label=f"{METHODS[method][0]} (n {len(curves)})")
        axes.fill_between(grid * scale, mean - deviation, mean + deviation, color=colour, alpha=0.15, linewidth=0)
    axes.set_xlim(left=0)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8, frameon=False)


def draw_rates(axes, labels: Sequence[str], groups: Sequence[Sequence[Done]]) -> None:
    """Held-out success of each group: its mean with the 95 % interval of `rate`, and every run as a dot."""
    axes.set_xlim(-0.5, len(groups) - 0.5)
    for place, runs in enumerate(groups):
        values = [held_out(run) for run in runs]
        found = number(values)
        if found.n:
            half = found.half or 0
            low, high = wilson(runs, "greedy", "final") if found.n == 1 else (found.mean - half, found.mean + half)
            reach = [[found.mean - low], [high - found.mean]]
            axes.errorbar(place, found.mean, yerr=reach, fmt="o", capsize=4, color=COLOURS[0])
            axes.plot([place] * len(values), values, ".", color=COLOURS[1], markersize=4)
    axes.set_xticks(range(len(labels)), labels, fontsize=8, rotation=20 if max(map(len, labels)) > 8 else 0)
    axes.set_ylabel("held-out success, %")


# ---------------------------------------------------------------------- experiments: each -> text, {name: figure}

Runs = dict[str, list[Done]]


def table1(runs: Runs) -> tuple[str, dict]:
    every = [run for done in runs.values() for run in done]
    head = ["success, %", "General train", "General test", "Web train", "Web test", "all test", "all test, sampled",
            "A-RIDE minus it", "n", "the paper's four"]  # fmt: skip
    where = ("sets", "General"), ("sets", "Web Shopping"), ("greedy",), ("sampled",)
    before = [rate(every, *path, "warmup") for path in where]
    rows = [["warm start", "", before[0], "", *before[1:], "", len(every), PAPER["start"]]]
    for method, done in runs.items():
        cells = [rate(done, *path, phase) for path in where[:2] for phase in ("train", "final")]
        behind = "" if method == "aride" else difference(runs.get("aride", []), done, held_out)
        rows.append([METHODS[method][0], *cells, rate(done, "greedy", "final"), rate(done, "sampled", "final"), behind,
                     len(done), PAPER.get(method, "")])  # fmt: skip
    made, axes = figure(1)
    draw_rates(axes[0], [METHODS[method][0].split(" (")[0] for method in runs], list(runs.values()))
    text = "\nTrain: the set's last 128 training episodes (sampled actions). Test: held-out instructions, " \
        "greedy. The paper's numbers are Gemini's verdicts on real Android: compare the order, not the height.\n"
    return table(head, rows) + text, {"table1": made}


def efficiency(runs: Runs) -> tuple[str, dict]:
    reference = runs.get("digirl_sync", [])
    final = number([curve[1][-1] for curve in (run.curve("wall_seconds", SUCCESS) for run in reference) if curve[1]])
    rows = []
    for method, done in runs.items():
        reached = number([minutes_to(run, final.mean) for run in done])
        budget = statistics.mean(run.results["train_seconds"] for run in done) / 60
        speed_up = f"{budget / reached.mean:.1f}x" if reached.n else "-"
        rows.append([METHODS[method][0], number([run.results["trajectories"] for run in done]), reached,
                     f"{reached.n} of {len(done)}", speed_up, f"{budget:.1f}",
                     number([run.results["updates"] for run in done]), rate(done, "greedy", "final")])  # fmt: skip
    text = f"F, the synchronous DigiRL's last training success: {100 * final.mean:.1f} % (n {final.n}).\n\n"
    text = text if final.n else "No synchronous DigiRL of 200 episodes or more yet, hence no F.\n\n"
    text += table(["", "trajectories", "minutes to F", "reached F", "minutes of training / minutes to F",
                   "minutes of training", "updates", "all test, %"], rows)  # fmt: skip
    made, axes = figure(3)
    draw_curves(axes[0], runs, "wall_seconds", SUCCESS, 1 / 60)
    draw_curves(axes[1], runs, "trajectories", SUCCESS)
    draw_curves(axes[2], runs, "wall_seconds", "trajectories", 1 / 60, least=0)
    for one, x, y in zip(axes, ("minutes of training", "trajectories", "minutes of training"),
                         ("training success", "training success", "trajectories collected"), strict=True):
        one.set(xlabel=x, ylabel=y, ylim=(0, None))
    causes, each = figure(4)
    for one, name in zip(each, ("stats/rho_mean", "stats/policy_lag_mean", "losses/entropy", "stats/ess"), strict=True):
        draw_curves(one, runs, "trajectories", name)
        one.set(xlabel="trajectories", title=name)
    return text, {"efficiency": made, "causes": causes}


def ablation(runs: Runs) -> tuple[str, dict]:
    rows = [[METHODS[method][0], rate(done, "greedy", "final"), rate(done, "sampled", "final"),
             "" if method == "aride" else difference(runs.get("aride", []), done, held_out), len(done)]
            for method, done in runs.items()]  # fmt: skip
    made, axes = figure(2)
    draw_rates(axes[0], list(runs), list(runs.values()))
    main = {name: done for name, done in runs.items() if name in ("aride", "no_dper", "no_retrace")}
    draw_curves(axes[1], main, "trajectories", SUCCESS)
    axes[1].set(xlabel="trajectories", ylabel="training success")
    return table(["", "all test, %", "all test, sampled, %", "A-RIDE minus it", "n"], rows), {"ablation": made}


def collection(runs: Runs) -> tuple[str, dict]:
    def a_minute(run: Done) -> float:
        return 60 * run.results["trajectories"] / run.results["train_seconds"]

    rows, (made, axes) = [], figure(1)
    for kind, label in (("", "asynchronous"), ("sync_", "synchronous")):
        speeds = {count: number([a_minute(run) for run in runs.get(f"collect_{kind}{count}", [])]) for count in WORKERS}
        known = {count: speed for count, speed in speeds.items() if speed.n}
        if known:
            least = min(known)
            rows += [[label, count, speed, f"{100 * speed.mean * least / known[least].mean / count:.0f} %", speed.n]
                     for count, speed in known.items()]  # fmt: skip
            axes[0].errorbar(list(known), [s.mean for s in known.values()], [s.half or 0 for s in known.values()],
                             marker="o", capsize=4, label=label)  # fmt: skip
    axes[0].set(xlabel="workers", ylabel="training trajectories a minute", xlim=(0, None), ylim=(0, None))
    axes[0].legend(frameon=False)
    head = ["", "workers", "trajectories a minute", "of linear", "n"]
    return table(head, rows), {"collection": made}


def sensitivity(runs: Runs) -> tuple[str, dict]:
    rows, (made, axes) = [], figure(len(SWEEPS))
    for one, (flag, values) in zip(axes, SWEEPS.items(), strict=True):
        names = [sweep_name(flag, value) for value in values]
        labels = ["default" if value is None else " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
                  for value in values]  # fmt: skip
        groups = [runs.get(name, []) for name in names]
        draw_rates(one, labels, groups)
        one.set_title(f"--{flag.replace('_', '-')}")
        rows += [[f"--{flag.replace('_', '-')}", label, rate(done, "greedy", "final"), len(done)]
                 for label, done in zip(labels, groups, strict=True) if done]  # fmt: skip
    return table(["flag", "value", "all test, %", "n"], rows), {"sensitivity": made}


def staleness(runs: Runs) -> tuple[str, dict]:
    def dropped(run: Done) -> float:
        return 100 * run.results["stale"] / max(run.results["trajectories"], 1)

    def lag(run: Done) -> float:
        return statistics.mean(run.curve("trajectories", "stats/policy_lag_mean")[1] or [math.nan])

    names, rows, (made, axes) = [f"bound_{bound}" for bound in BOUNDS], [], figure(1)
    for name in names:
        if done := runs.get(name, []):
            numbers = [number([value(run) for run in done]) for value in (dropped, lag)]
            rows.append([METHODS[name][0], rate(done, "greedy", "final"), *numbers, len(done)])
    draw_rates(axes[0], [str(bound or "none") for bound in BOUNDS], [runs.get(name, []) for name in names])
    axes[0].set_xlabel("--max-staleness, publications (one an update)")
    head = ["trained on", "all test, %", "dropped as too old, %", "mean lag, publications", "n"]
    return table(head, rows), {"staleness": made}


def generalisation(runs: Runs) -> tuple[str, dict]:
    kinds, rows = ("instance", "template", "app"), []
    for method, done in runs.items():
        for label, phase in (("before", "warmup"), ("after", "final")):
            rows.append([METHODS[method][0], label, *(rate(done, "new", kind, phase) for kind in kinds), len(done)])
    every = [run for done in runs.values() for run in done]
    overlaps = sorted({tuple(run.results["task_set"]["overlap"].values()) for run in every})
    counts = {kind: sorted({_at(run.results, ("new", kind, "final")).get("n", 0) for run in every}) for kind in kinds}
    text = table(["success, %", "", *(f"unseen {kind}s" for kind in kinds), "n"], rows)
    text += "\nUnseen in training; the warm start's demonstrations held all templates and apps. Held-out tasks whose " \
        f"instruction, template is in training: {', '.join(map(str, overlaps))}. Episodes: {counts}.\n"
    made, axes = figure(1)
    for place, (method, done) in enumerate(runs.items()):
        found = [number([run.percent("new", kind, "final") for run in done]) for kind in kinds]
        axes[0].errorbar([i + 0.1 * place for i in range(3)], [x.mean for x in found], [x.half or 0 for x in found],
                         fmt="o", capsize=4, label=METHODS[method][0])  # fmt: skip
    axes[0].set_xticks(range(3), [f"unseen {kind}s" for kind in kinds])
    axes[0].set_ylabel("success, %")
    axes[0].legend(frameon=False)
    return text, {"generalisation": made}


def provenance(runs: Runs, budget: str) -> str:
    """On what, how long, with which code: of all runs of the experiment."""
    every = [run for done in runs.values() for run in done]

    def all_of(*path: str) -> str:
        return ", ".join(sorted({str(_at(run.results, path[:-1]).get(path[-1], "not recorded")) for run in every}))

    hours = sum(run.results["wall_seconds"] for run in every) / 3600
    flips = number([100 * share for run in every
                    if (share := _at(run.results, ("card", "flips")).get("share")) is not None])  # fmt: skip
    noise = f"{flips} % of verdicts flip between repeats" if flips.n else "no repeats: --eval-repeats 2 has the noise"
    facts = {"phones": ["phones"], "judge": ["judge"], "machine": ["card", "machine"], "code": ["card", "code_sha256"]}
    told = "; ".join(f"{name}: {all_of(*path)}" for name, path in facts.items())
    told = re.sub(r"\b([0-9a-f]{12})[0-9a-f]{52}\b", r"\1", told)  # the hash's beginning will do
    return f"\n{len(every)} runs, {hours:.1f} hours, budget {budget}; {told}; {all_of('date')}; {noise}.\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiment", required=True, choices=EXPERIMENTS)
    parser.add_argument("--budget", choices=BUDGETS, default="full")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "reproduce", help="where run.py put the runs")
    parser.add_argument("--to", type=Path, help="where tables and figures go; default: reproduce/results/BUDGET")
    args = parser.parse_args()
    folder, to = args.out / args.budget, args.to or ROOT / "reproduce" / "results" / args.budget
    methods = EXPERIMENTS[args.experiment]
    runs = finished(folder, methods)
    if not runs:
        print(f"error: no finished run of {args.experiment} in {folder}: run reproduce/run.py first", file=sys.stderr)
        return 1
    keep_raw(folder, methods, to)
    text, figures = globals()[args.experiment](runs)
    page = f"# {args.experiment}\n\n{text}{provenance(runs, args.budget)}"
    if missing := [method for method in methods if method not in runs]:
        page += f"\nNot run: {', '.join(missing)}.\n"
    for name, made in figures.items():
        made.savefig(to / f"{name}.png")
        page += f"\n![{name}]({name}.png)\n"
    (to / f"{args.experiment}.md").write_text(page, encoding="utf-8")
    print(f"{page}\nwrote {to / args.experiment}.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
