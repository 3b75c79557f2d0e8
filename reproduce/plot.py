"""Tables and figures of the runs that `run.py` made: each one's results.json, metrics.csv and journal, nothing else.

    python reproduce/plot.py --experiment table1                    # into reproduce/results/full
    python reproduce/plot.py --experiment efficiency --budget small --to /tmp/look
    python reproduce/plot.py --experiment table1 --kept             # from results/full/raw, which needs no run

Writes EXPERIMENT.md, its figures, and raw/, the files that they come from: of each run METHOD__SEED.json (results),
.csv (metrics), .outcomes.csv (training episodes), .config.json, .command.txt. A number over n runs is mean +- standard
deviation [95 % interval] (measure.py). A difference is taken seed by seed, A-RIDE minus the other, over the seeds that
both have; "within noise" says that its interval holds 0. Unknown verdicts are in no rate.

Training efficiency is ours to define: F is the training success (finished.py) with which the synchronous DigiRL ends,
its mean over seeds; a run's time is when its own first reaches F. There is no F where that is not above the warm start.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "reproduce")]

from figures import draw_curves, draw_rates, figure  # noqa: E402
from finished import WINDOW, Done, at, finished, keep_raw, kept  # noqa: E402
from measure import HELD_OUT, arms, difference, number, over, rate, table  # noqa: E402
from run import BOUNDS, BUDGETS, EXPERIMENTS, METHODS, SWEEPS, WORKERS, sweep_name  # noqa: E402

from args import Args  # noqa: E402
from calibrate import table as judges  # noqa: E402

# The paper's, on real Android, Gemini's verdicts: success % on General train, test, Web train, test after its budget;
# training success on General, and trajectories, after 6,000 s with 32 emulators. "digirl_sync": on several machines.
PAPER = {
    "start": ("38.3 / 40.6 / 42.2 / 44.5", "", ""),
    "digirl_sync": ("67.7 / 61.2 / 64.5 / 59.9", "61", "300 to 320"),
    "digirl": ("", "71.5", ""),
    "aride": ("75.5 / 73.2 / 69.8 / 68.5", "78.5", "770 to 800"),
}
PAPER_ABLATION = {"no_dper": "about +8", "no_retrace": "about +6"}
ORDER = "The paper's numbers are Gemini's verdicts on real Android: compare the order, not the height."
SETS = tuple(("sets", name, "final") for name in ("General", "Web Shopping"))
MINUS = ("A-RIDE minus it", "on General", "on Web")
Runs = dict[str, list[Done]]


def paper(method: str, column: int) -> str:
    return PAPER.get(method, ("", "", ""))[column]


def short(runs: Runs) -> list[str]:
    """The methods' names without what explains them."""
    return [METHODS[method][0].split(" (")[0].split(": ")[0] for method in runs]


def minus(runs: Runs, method: str) -> list[str]:
    """MINUS's cells: over all held-out tasks, and each set by itself."""
    if method == "aride":
        return [""] * 3
    return [difference(runs.get("aride", []), runs[method], *path) for path in (HELD_OUT, *SETS)]


# ---------------------------------------------------------------------- experiments: each -> text, {name: figure}


def table1(runs: Runs) -> tuple[str, dict]:
    every = [run for done in runs.values() for run in done]
    head = ["success, %", "General train", "General test", "Web train", "Web test", "all test", "all test, sampled",
            *MINUS, "n", "the paper's four"]  # fmt: skip
    where = ("sets", "General"), ("sets", "Web Shopping"), ("greedy",), ("sampled",)
    before = [rate(every, *path, "warmup") for path in where]
    seeds = len({run.seed for run in every})
    rows = [["warm start", "", before[0], "", *before[1:], "", "", "", seeds, paper("start", 0)]]
    for method, done in runs.items():
        cells = [rate(done, *path, phase) for path in where[:2] for phase in ("train", "final")]
        rows.append([METHODS[method][0], *cells, rate(done, *HELD_OUT), rate(done, "sampled", "final"),
                     *minus(runs, method), len(done), paper(method, 0)])  # fmt: skip
    made, axes = figure(3)
    for one, title, path in zip(axes, ("all test", "General test", "Web test"), (HELD_OUT, *SETS), strict=True):
        draw_rates(one, short(runs), list(runs.values()), *path)
        one.set(title=title, ylim=(0, 103))
    train = ", ".join(different(every, "card", "train_success"))
    text = f"\nTest: held-out instructions, greedy; all test weighs General and Web Shopping alike. Train: {train}. " \
        f"{ORDER} There, one agent for each set; here, one for both. Its DigiRL on one machine: 64.6 / 59.9 / 63.3 / " \
        "59.6.\n"
    return table(head, rows) + text, {"table1": made}


def reference(runs: Runs) -> tuple[float, str]:
    """(F, or NaN; how it came about)"""
    found = runs.get("digirl_sync", [])
    last = number([100 * run.last_success() for run in found], most=100.0)
    if not last.n:
        return math.nan, f"No synchronous DigiRL of {WINDOW} training episodes or more yet, hence no F."
    start = over(found, "sampled", "warmup")
    text = f"the synchronous DigiRL's last training success: {last.mean:.1f} % (n {last.n})"
    if not last.mean > start.mean:
        return math.nan, f"No F: {text}, is not above the warm start's on held-out tasks, sampled, {start.mean:.1f} %."
    return last.mean / 100, f"F, {text}."


def efficiency(runs: Runs) -> tuple[str, dict]:
    success, text = reference(runs)
    rows = []
    for method, done in runs.items():
        reached = number([run.minutes_to(success) for run in done])
        budget = statistics.mean(run.deadline for run in done)
        speed_up = f"{budget / reached.mean:.1f}x" if reached.n == len(done) else "-"
        mean = number([100 * run.mean_success() for run in done], most=100.0)
        rows.append([METHODS[method][0], number([run.trajectories for run in done]), reached,
                     f"{reached.n} of {len(done)}", speed_up, mean,
                     number([100 * run.last_success() for run in done], most=100.0), f"{budget:.1f}",
                     number([run.results["updates"] for run in done]),
                     *(rate(done, *path) for path in (HELD_OUT, *SETS)),
                     *minus(runs, method), len(done), *(paper(method, i) for i in (2, 1))])  # fmt: skip
    head = ["", "trajectories", "minutes to F, where reached", "reached F", "minutes of training / minutes to F",
            "training success over the budget, mean, %", "at its end, %", "minutes of training", "updates",
            "all test, %", "General test, %", "Web test, %", *MINUS, "n", "the paper: trajectories",
            "training success at the end, %"]  # fmt: skip
    text += f" Training success: the last {WINDOW} episodes, sampled actions.\n\n{table(head, rows)}\nThe paper: " \
        f"General, 6,000 s, 32 emulators; DigiRL on one machine: 145 trajectories, 54 %. {ORDER}\n"
    made, axes = figure(3)
    draw_curves(axes[0], runs, lambda run: run.success())
    draw_curves(axes[1], runs, lambda run: run.success("trajectories"))
    draw_curves(axes[2], runs, lambda run: ([o.minutes for o in run.outcomes], [*range(1, len(run.outcomes) + 1)]))
    for one, x, y in zip(axes, ("minutes of training", "trajectories", "minutes of training"),
                         ("training success", "training success", "trajectories collected"), strict=True):
        one.set(xlabel=x, ylabel=y, ylim=(0, None))
    names = ("stats/rho_mean", "stats/policy_lag_mean", "losses/entropy", "stats/ess", "stats/priority_ess")
    causes, each = figure(len(names))
    for one, name in zip(each, names, strict=True):
        draw_curves(one, runs, lambda run, name=name: run.curve("trajectories", name))
        one.set(xlabel="trajectories", title=name)
    each[0].set(yscale="log", ylim=(0.5, None))  # ratios: one long text can make a spike of thousands
    return text, {"efficiency": made, "causes": causes}


def ablation(runs: Runs) -> tuple[str, dict]:
    rows = [[METHODS[method][0], rate(done, *HELD_OUT), rate(done, "sampled", "final"),
             *(rate(done, *path) for path in SETS), number([100 * run.mean_success() for run in done], most=100.0),
             *minus(runs, method), len(done), PAPER_ABLATION.get(method, "")]
            for method, done in runs.items()]  # fmt: skip
    made, axes = figure(3, height=5.6)
    draw_rates(axes[0], short(runs), list(runs.values()))
    main = {name: done for name, done in runs.items() if name in ("aride", "no_dper", "no_retrace")}
    draw_curves(axes[1], main, lambda run: run.success("trajectories"))
    axes[1].set(xlabel="trajectories", ylabel="training success")
    draw_curves(axes[2], main, lambda run: run.curve("trajectories", "stats/priority_ess"))
    axes[2].set(xlabel="trajectories", ylabel="effective share of the replay")
    head = ["", "all test, %", "all test, sampled, %", "General test, %", "Web test, %",
            "training success over the budget, mean, %", *MINUS, "n", "the paper's, General"]  # fmt: skip
    return f"{table(head, rows)}\n{ORDER}\n", {"ablation": made}


def collection(runs: Runs) -> tuple[str, dict]:
    def a_minute(run: Done) -> float:
        return 60 * run.trajectories / run.curve("wall_seconds", "trajectories")[0][-1]

    rows, (made, axes) = [], figure(1)
    speeds = {(kind, count): number([a_minute(run) for run in runs.get(f"collect_{kind}{count}", [])])
              for kind in ("", "sync_") for count in WORKERS}  # fmt: skip
    for kind, label in (("", "asynchronous"), ("sync_", "synchronous")):
        known = {count: speeds[kind, count] for count in WORKERS if speeds[kind, count].n}
        for count, speed in known.items():
            least, slow = min(known), speeds["sync_", count]
            times = f"{speed.mean / slow.mean:.1f}x" if not kind and slow.n else ""
            linear = f"{100 * speed.mean * least / known[least].mean / count:.0f} %"
            rows.append([label, count, speed, linear, times, speed.n])
        if known:
            axes[0].errorbar(list(known), [s.mean for s in known.values()],
                             list(zip(*(s.reach for s in known.values()), strict=True)),
                             marker="o", capsize=4, label=label)  # fmt: skip
    axes[0].set(xlabel="workers", ylabel="training trajectories a minute", xlim=(0, None), ylim=(0, None))
    axes[0].legend(frameon=False)
    head = ["", "workers", "trajectories a minute", "of linear", "times synchronous", "n"]
    text = "\nThe paper, at 192 CPUs of emulators: 7.7 a minute and 3.2 with DigiRL on several machines, 2.4 times; " \
        "from 8 CPUs on, 53 % of linear. Here all phones and the learner share one machine's cores.\n"
    return table(head, rows) + text, {"collection": made}


def sensitivity(runs: Runs) -> tuple[str, dict]:
    own = runs["aride"][0].config if "aride" in runs else {}
    flags = [*map(vars, vars(Args()).values()), *own.values()]  # today's defaults, then those that it was run with
    defaults = {name: value for group in flags for name, value in group.items()}

    def spelt(flag: str, value) -> str:
        values = defaults[flag] if value is None else value
        text = " ".join(f"{v:g}" for v in (values if isinstance(values, tuple | list) else (values,)))
        return f"{text} (default)" if value is None else text

    rows, (made, axes) = [], figure(len(SWEEPS), sharey=True)
    for one, (flag, values) in zip(axes, SWEEPS.items(), strict=True):
        labels = [spelt(flag, value) for value in values]
        groups = [runs.get(sweep_name(flag, value), []) for value in values]
        draw_rates(one, labels, groups)
        one.set_title(f"--{flag.replace('_', '-')}")
        rows += [[f"--{flag.replace('_', '-')}", label, rate(done, *HELD_OUT),
                  "" if value is None else difference(runs.get("aride", []), done),
                  number([run.results["updates"] for run in done]), len(done)]
                 for value, label, done in zip(values, labels, groups, strict=True) if done]  # fmt: skip
    text = "\n--max-staleness is looked at on arrival only. The paper gives no sensitivity.\n"
    head = ["flag", "value", "all test, %", "the default minus it", "updates", "n"]
    return table(head, rows) + text, {"sensitivity": made}


def staleness(runs: Runs) -> tuple[str, dict]:
    def dropped(run: Done) -> float:
        return 100 * run.results["stale"] / max(run.results["trajectories"], 1)

    def lag(run: Done) -> float:
        return statistics.mean(run.curve("trajectories", "stats/policy_lag_mean")[1] or [math.nan])

    rows, (made, axes) = [], figure(1)
    for bound in BOUNDS:
        if done := runs.get(f"bound_{bound}", []):
            values = [number([value(run) for run in done]) for value in (dropped, lag)]
            updates = number([run.results["updates"] for run in done])
            behind = difference(runs.get("bound_0", []), done) if bound else ""
            rows.append([METHODS[f"bound_{bound}"][0], rate(done, *HELD_OUT), behind, *values, updates, len(done)])
    draw_rates(axes[0], [str(bound or "none") for bound in BOUNDS], [runs.get(f"bound_{b}", []) for b in BOUNDS])
    axes[0].set_xlabel("--max-staleness on arrival, publications (one an update)")
    head = ["trained on", "all test, %", "of any age minus it", "dropped as too old, %",
            "mean lag on arrival, publications", "updates", "n"]  # fmt: skip
    text = "\nThe bound is looked at on arrival; a replay of 500 transitions lets nothing grow much older there. " \
        "The paper gives no such numbers.\n"
    return table(head, rows) + text, {"staleness": made}


def generalisation(runs: Runs) -> tuple[str, dict]:
    kinds, rows = ("instance", "template", "app"), []
    for method, done in runs.items():
        for label, phase in (("before", "warmup"), ("after", "final")):
            rows.append([METHODS[method][0], label, *(rate(done, "new", kind, phase) for kind in kinds), len(done)])
        if method != "unseen":
            behind = (difference(runs.get("unseen", []), done, "new", kind, "final") for kind in kinds)
            rows.append(["A-RIDE minus it", "after", *behind, len(done)])
    every = [run for done in runs.values() for run in done]
    counts = {kind: sorted({at(run.results, ("new", kind, "final")).get("n", 0) for run in every}) for kind in kinds}
    text = table(["success, %", "", *(f"unseen {kind}s" for kind in kinds), "n"], rows)
    text += "\nUnseen in training; the warm start's demonstrations held all templates and apps. " \
        f"Episodes: {counts}. The paper has one list of test tasks and no such numbers.\n"
    made, axes = figure(1)
    drawn = [("warm start", every, "warmup"), *((METHODS[method][0], done, "final") for method, done in runs.items())]
    for place, (label, done, phase) in enumerate(drawn):
        where = [("new", kind, phase) for kind in kinds]
        axes[0].errorbar([i + 0.1 * place for i in range(3)], [over(done, *path).mean for path in where],
                         list(zip(*(arms(done, *path) for path in where), strict=True)),
                         fmt="o", capsize=4, label=label)  # fmt: skip
    axes[0].set_xticks(range(3), [f"unseen {kind}s" for kind in kinds])
    axes[0].set_ylabel("success, %")
    axes[0].legend(frameon=False)
    return text, {"generalisation": made}


def pilot(runs: Runs) -> tuple[str, dict]:
    where = ("sets", "General"), ("sets", "Web Shopping"), ("greedy",), ("sampled",)
    rows = [[METHODS[method][0], *(rate(done, *path, "final") for path in where),
             number([100 * run.mean_success() for run in done], most=100.0), number([run.trajectories for run in done]),
             number([run.results["updates"] for run in done]), len(done)] for method, done in runs.items()]  # fmt: skip
    made, axes = figure(2)
    draw_rates(axes[0], short(runs), list(runs.values()))
    draw_curves(axes[1], runs, lambda run: run.success())
    axes[1].set(xlabel="minutes of training", ylabel="training success")
    head = ["success on the tuning split, %", "General", "Web", "all", "all, sampled",
            "training success over the budget, mean, %", "trajectories", "updates", "n"]  # fmt: skip
    return table(head, rows), {"pilot": made}


# ---------------------------------------------------------------------- where the numbers come from


def different(every: Sequence[Done], *path: str) -> list[str]:
    """All values at this place of the results, each once; of a hash its beginning."""
    values = [at(run.results, path[:-1]).get(path[-1], "not recorded") for run in every]
    found = {"not measured" if value is None else str(value) for value in values}
    return sorted(text[:12] if path[-1].endswith("sha256") and len(text) == 64 else text for text in found)


def warnings(every: Sequence[Done]) -> list[str]:
    """What the runs of one table must have in common, and have not."""
    alike = {"code": "code_sha256", "list of held-out tasks": "eval_sha256", "policy prompt": "policy_prompt_sha256",
             "judge prompt": "judge_prompt_sha256", "starting policy": "policy_sha256", "judge": "judge",
             "step budget": "step_budget", "number of repeats": "repeats", "set of versions": "versions",
             "machine": "machine"}  # fmt: skip
    found = {name: different(every, "card", key) for name, key in alike.items()}
    said = [f"more than one {name}: {' and '.join(values)}" for name, values in found.items() if len(values) > 1]
    seconds = [run.results["train_seconds"] for run in every]
    if max(seconds) > 1.05 * min(seconds):
        said.append(f"training took {min(seconds):.0f} to {max(seconds):.0f} s")
    return [f"**WARNING, not comparable: {what}**" for what in said]


def errors(runs: Runs, judge: str, found: dict) -> None:
    """Onto the cards of the runs with this judge, KIND:MODEL or KIND:MODEL@URL: what calibration found."""
    rates = {name: found[name]["rate"] for name in ("false_success", "false_failure")}
    told = ", ".join(f"{name.replace('_', ' ')} {value:.1%}" for name, value in rates.items() if value is not None)
    for run in (run for done in runs.values() for run in done):
        if run.results["judge"] == judge.partition("@")[0].replace(":", "/", 1):
            run.results["card"] = at(run.results, ["card"]) | {"judge_error": f"{told} (n {found['n']})"}


def provenance(runs: Runs, budget: str) -> str:
    """On what, how long, with which code and commands: of all runs of the experiment."""
    every = [run for done in runs.values() for run in done]
    flips = [statistics.mean(known) for done in runs.values() if (known := [share for run in done if (
        share := at(run.results, ("card", "flips")).get("share")) is not None])]  # of each method, however many seeds
    noise = "no repeats, no noise known"
    if flips:
        noise = f"{statistics.mean(flips):.0%} of verdicts, greedy and sampled, flip between repeats"
    facts = {"phones": ["phones"], "judge": ["judge"], "its error": ["card", "judge_error"],
             "machine": ["card", "machine"], "code": ["card", "code_sha256"], "commit": ["card", "git_commit"],
             "starting policy": ["card", "policy_sha256"], "held-out tasks": ["card", "eval_sha256"],
             "different ones": ["task_set", "eval_different"], "whose instruction is trained on":
             ["task_set", "overlap", "exact"], "whose template is": ["task_set", "overlap", "template"]}  # fmt: skip
    told = "; ".join(f"{name}: {', '.join(different(every, *path))}" for name, path in facts.items())
    dates = ", ".join(different(every, "date"))
    loads = [at(run.results, ("card", "load")).get("start", [math.nan])[0] for run in every]
    busy = f"; load at the start up to {max(loads):.1f}" if all(map(math.isfinite, loads)) else ""
    hours = sum(run.results["wall_seconds"] for run in every) / 3600
    commands = [f"python {done[0].command}" for done in runs.values() if done[0].command]
    page = "".join(f"\n{line}\n" for line in warnings(every)) + (
        f"\n{len(every)} runs, {hours:.1f} hours, budget {budget}; {told}; {dates}; {noise}{busy}.\n"
        "\n± is the standard deviation over seeds, [ ] the 95 % interval over seeds on one list of tasks, not narrower "
        "than what flipping verdicts reach: another list may move all numbers. Differences are over the seeds that "
        "both have, n of them where one has more. Fewer than 3 seeds: no claim. One such interval in twenty misses by "
        "chance: of many, one that is beyond noise is a hint.\n"
    )
    if commands:
        shell = "\n".join(commands)
        page += f"\nThe first seed's commands; all are in `raw/*.command.txt`:\n\n```bash\n{shell}\n```\n"
    return page


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiment", required=True, choices=EXPERIMENTS)
    parser.add_argument("--budget", choices=BUDGETS, default="full")
    parser.add_argument("--out", type=Path, help="where run.py put the runs; default: runs/reproduce")
    parser.add_argument("--to", type=Path, help="where tables and figures go; default: reproduce/results/BUDGET, or "
                                                "OUT/results/BUDGET")  # fmt: skip
    parser.add_argument("--kept", action="store_true", help="with what raw/ has of runs that are not in --out")
    parser.add_argument("--calibration", type=Path, help="folder of `evaluator.py --calibrate`: the judges' errors, "
                                                         "onto the page")  # fmt: skip
    args = parser.parse_args()
    folder = (args.out or ROOT / "runs" / "reproduce") / args.budget
    to = args.to or (args.out or ROOT / "reproduce") / "results" / args.budget  # real phones' not among simulated ones'
    methods = EXPERIMENTS[args.experiment]
    try:
        measured = json.loads((args.calibration / "calibration.json").read_text()) if args.calibration else {}
        if runs := finished(folder, methods):
            keep_raw(runs, to)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if args.kept:
        runs = kept(to / "raw", methods)
    if not runs:
        print(f"error: no finished run of {args.experiment} in {folder}: run reproduce/run.py first, or --kept: from "
              f"what is in {to / 'raw'}", file=sys.stderr)  # fmt: skip
        return 1
    for name, found in measured.items():
        errors(runs, name, found)
    text, figures = globals()[args.experiment](runs)
    page = f"# {args.experiment}\n\n{text}{provenance(runs, args.budget)}"
    if measured:
        page += f"\nJudges against labelled screens, {args.calibration.name}/:\n\n```\n{judges(measured)}\n```\n"
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
