"""The paper's comparisons, one command each: every method on every seed, one run after another, with the same budget.

    python reproduce/run.py --experiment table1 --budget small          # under 30 minutes, one seed: does it all work?
    python reproduce/run.py --experiment table1                         # seeds 1, 2, 3; 3 minutes of training a run
    python reproduce/run.py --experiment pilot                          # DigiRL nearer to its own regime; tuning split
    python reproduce/run.py --experiment ablation --seeds 1 2 3 4 5     # more seeds: only what is missing is run
    python reproduce/run.py --experiment table1 --dry-run               # prints the commands, runs nothing
    python reproduce/run.py --experiment table1 --devices all --policy Auto-UI-Base --judge gemini    # real phones
    python reproduce/plot.py --experiment table1                        # its table and figures, from what is there

A run lives in OUT/BUDGET/METHOD/SEED/. One that has its results.json is skipped, one that was stopped is resumed. Flags
that this script does not know go to every `run_distrl.py`; a folder that was made with other flags is refused. Several
experiments share runs: A-RIDE with its defaults is run once a seed.

Budget "full": 3 minutes of training, about 945 trajectories of A-RIDE here; the paper's 6,000 s brought 770 to 800
(asynchronous) and 300 to 320 (synchronous). It was fixed before any result was seen; less would not do, as the learning
rate takes 80 updates to warm up. Held-out tasks are General and Web Shopping in turns, as many of each, every one
played twice in each way after training; 64 training tasks of each set are played greedily then as well.

Departs from the paper: all methods have the same machine, phones, networks, batches, learning rate and minutes;
there, DigiRL's come from its own code, here its number of updates and its replay. Baselines beyond the paper's:
filtered cloning, V-trace, A-RIDE in lock-step.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tasks import RULES, SPLITS, Task, app_of, generate_tasks, novelty, two_sets  # noqa: E402

# ---------------------------------------------------------------------- what is compared: label, flags of run_distrl.py

PLAIN = {"algo": "digirl", "gamma": 0.5}  # its authors' gamma: it weighs the outcome in DigiRL's advantage, no more
OWN = {"updates_per_trajectory": 1.25, "replay_capacity": 20_000}  # its authors', in 3 minutes all since the start
DIGIRL = PLAIN | OWN  # the best of "pilot"
COLLECT = {"train_minutes": 3, "eval_episodes": 1, "eval_train": None, "eval_repeats": None, "eval_tasks": None}
UNSEEN = {"tasks": "{tasks}/train.txt", "eval_tasks": "{tasks}/test.txt", "eval_episodes": 192}  # by `write_unseen`
TUNING = {"eval_tasks": "{tasks}/tune.txt"}  # what is chosen by it is not tested on it
PILOT = PLAIN | {"sync": True} | TUNING
METHODS: dict[str, tuple[str, dict]] = {
    "aride": ("A-RIDE, asynchronous (DistRL)", {}),
    "aride_sync": ("A-RIDE, synchronous", {"sync": True}),
    "digirl": ("DigiRL, asynchronous", DIGIRL),
    "digirl_sync": ("DigiRL, synchronous", DIGIRL | {"sync": True}),
    "digirl_paper": ("DigiRL as its paper has it, asynchronous", DIGIRL | {"algo": "digirl_paper"}),
    "digirl_gamma": ("DigiRL with A-RIDE's gamma, asynchronous", DIGIRL | {"gamma": None}),
    "filtered_bc": ("filtered cloning, asynchronous", {"algo": "filtered_bc"}),
    "vtrace": ("V-trace (IMPALA), asynchronous", {"algo": "vtrace"}),
    "no_dper": ("without DPER", {"priority_alpha": 0.0}),
    "no_retrace": ("without Retrace: one-step advantages", {"target": "one_step"}),
    "target_vtrace": ("V-trace in the place of Retrace", {"target": "vtrace"}),
    "no_entropy": ("without the entropy bonus", {"entropy_coef": 0.0}),
    "no_invalid": ("without the invalid-action term", {"invalid_coef": 0.0}),
    "filter_half": ("with the V_traj filter, best half", {"top_quantile": 0.5}),
    "filter_tenth": ("with the V_traj filter, best tenth", {"top_quantile": 0.1}),
    "unseen": ("A-RIDE, asynchronous (DistRL)", UNSEEN),
    "unseen_digirl_sync": ("DigiRL, synchronous", UNSEEN | DIGIRL | {"sync": True}),
    "pilot": ("DigiRL, synchronous", PILOT),
    "pilot_updates": ("with its 1.25 updates a trajectory", PILOT | {"updates_per_trajectory": 1.25}),
    "pilot_replay": ("with a replay of all since the start", PILOT | {"replay_capacity": 20_000}),
    "pilot_both": ("with both", PILOT | OWN),
    "pilot_paper": ("as its paper has it", PILOT | {"algo": "digirl_paper"}),
    "pilot_aride": ("A-RIDE, asynchronous", TUNING),
    "pilot_aride_own": ("A-RIDE with DigiRL's updates and replay", TUNING | OWN),
}
WORKERS = (4, 8, 16, 32)
for number in WORKERS:
    flags = COLLECT | {"num_workers": number}
    METHODS[f"collect_{number}"] = (f"asynchronous, {number} workers", flags)
    METHODS[f"collect_sync_{number}"] = (f"synchronous, {number} workers", flags | {"sync": True})
SWEEPS = {  # flag: its values; None is the default, the run "aride"
    "retrace_lambda": (0.0, None, 0.9, 1.0),
    "entropy_coef": (0.0, 0.001, None, 0.01, 0.03),
    "priority_alpha": (0.0, 0.25, None, 1.0),
    "priority_weights": ((1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 1), None),
    "max_staleness": (2, 5, None),
    "replay_capacity": (500, 1000, None, 8000),
}
# Publications; 0: no bound. One publication an update, so that there are lags to bound; a short replay, as the bound is
# looked at on arrival, and what has come in grows older there.
BOUNDS = (1, 2, 4, 8, 16, 0)


def sweep_name(flag: str, value) -> str:
    """Name of the method that has this one flag set; an ablation may be one."""
    flags = {} if value is None else {flag: value}
    new = f"{flag}_{'_'.join(map(str, value)) if isinstance(value, tuple) else value}"
    return next((name for name, method in METHODS.items() if method[1] == flags), new)


for flag, values in SWEEPS.items():
    for value in values:
        METHODS.setdefault(sweep_name(flag, value), (f"{flag} {value}", {flag: value}))
for bound in BOUNDS:
    label = f"at most {bound} publications old on arrival" if bound else "of any age"
    flags = {"publish_every": 1, "max_staleness": bound, "replay_capacity": 500}
    METHODS[f"bound_{bound}"] = (label, flags)

EXPERIMENTS: dict[str, list[str]] = {
    "table1": ["digirl_sync", "digirl", "filtered_bc", "vtrace", "aride"],
    "efficiency": ["digirl_sync", "digirl", "aride_sync", "aride"],
    "ablation": ["aride", "no_dper", "no_retrace", "target_vtrace", "no_entropy", "no_invalid", "filter_half",
                 "filter_tenth", "digirl_paper", "digirl_gamma"],
    "collection": [f"collect_{kind}{number}" for number in WORKERS for kind in ("", "sync_")],
    "sensitivity": list(dict.fromkeys(sweep_name(flag, v) for flag, values in SWEEPS.items() for v in values)),
    "staleness": [f"bound_{bound}" for bound in BOUNDS],
    "generalisation": ["unseen", "unseen_digirl_sync"],
    "pilot": [name for name in METHODS if name.startswith("pilot")],
}  # fmt: skip
EVALUATED = {"eval_tasks": "{tasks}/eval.txt", "eval_repeats": 2, "eval_every": 0}  # by `write_held_out`
BUDGETS = {
    "small": ({"train_minutes": 2.5, "eval_episodes": 64, "eval_train": 32} | EVALUATED, [1]),
    "full": ({"train_minutes": 3, "eval_episodes": 192, "eval_train": 64} | EVALUATED, [1, 2, 3]),
}
HELD_APPS = ("YouTube", "Clock", "Gmail")  # no task of these is trained on for generalisation


# ---------------------------------------------------------------------- instruction files


def write_held_out(folder: Path, each: int = 96) -> None:
    """eval.txt, and tune.txt of the tuning split: General and Web Shopping in turns: all of it weighs both alike."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, split in (("eval", "test"), ("tune", "tune")):
        write(folder / f"{name}.txt", two_sets(generate_tasks(split, 4000), each))


def write(path: Path, tasks: Iterable[Task]) -> None:
    path.write_text("".join(task.instruction + "\n" for task in tasks), encoding="utf-8")


def held_templates() -> set[str]:
    """The last template of each family that has more than one."""
    families: dict[str, list[str]] = {}
    for family, template in RULES:
        families.setdefault(family, []).append(template)
    return {templates[-1] for templates in families.values() if len(templates) > 1}


def write_unseen(folder: Path, each: int = 64) -> None:
    """train.txt and test.txt: tests of unseen instances, templates and apps take turns, `each` of each."""
    held = held_templates()
    many = {split: list(dict.fromkeys(generate_tasks(split, 4000))) for split in SPLITS}
    folder.mkdir(parents=True, exist_ok=True)
    train = [task for task in many["train"] if task.template not in held and app_of(task) not in HELD_APPS]
    kinds: dict[str, list] = {"instance": [], "template": [], "app": []}
    rest = many["test"] + many["tune"]
    for kind, task in zip(novelty(train, rest), rest, strict=True):
        kinds[kind].append(task)
    turns = itertools.chain.from_iterable(zip(*(tasks[:each] for tasks in kinds.values()), strict=False))
    write(folder / "train.txt", train)
    write(folder / "test.txt", turns)


# ---------------------------------------------------------------------- running


def words(flags: dict, tasks: Path) -> list[str]:
    """Flags as words of a command line."""
    line = []
    for name, value in flags.items():
        if value is None:
            continue
        line.append(f"--{name.replace('_', '-')}")
        if value is not True:
            values = value if isinstance(value, tuple) else (value,)
            line += [str(v).replace("{tasks}", str(tasks)) for v in values]
    return line


def command(method: str, seed: int, budget: str, out: Path, extra: list[str]) -> tuple[Path, list[str]]:
    """(the folder of this method and seed, the words of its command)."""
    folder = out / budget / method / str(seed)
    own = {name: value for name, value in BUDGETS[budget][0].items() if f"--{name.replace('_', '-')}" not in extra}
    flags = own | METHODS[method][1]
    line = ["run_distrl.py", "--exp-name", method, "--seed", str(seed), "--runs-dir", str(shown(folder))]
    return folder, [*line, *words(flags, shown(out / budget / "tasks")), *extra]


def compared(experiment: str) -> set[str]:
    """Flags in which an experiment's methods differ, and those that are set for each run."""
    flags = [METHODS[method][1] for method in EXPERIMENTS[experiment]]
    differ = {name for name in set().union(*flags) if any(other.get(name) != flags[0].get(name) for other in flags)}
    return differ | {"seed", "exp_name", "runs_dir", "resume", "eval"}


def shown(path: Path) -> Path:
    """Relative below this repository, where runs start: what is committed names no folder of one machine."""
    return Path(os.path.relpath(path, ROOT)) if path.is_relative_to(ROOT) else path


def judge_budget(line: list[str]) -> tuple[list[str], list[str]]:
    """(the command without --max-judge-calls N, that flag): a paused run goes on with a larger number."""
    rest, words, found = [], iter(line), []
    for word in words:
        name, equals, _ = word.partition("=")
        if name.replace("_", "-") == "--max-judge-calls":
            found = [word] if equals else [word, next(words, "")]
        else:
            rest.append(word)
    return rest, found


def state(folder: Path, line: list[str]) -> tuple[str, Path | None]:
    """("new" | "stopped" | "done" | "other flags", the run's own folder)."""
    runs, note = sorted(path.parent for path in folder.glob("*/config.json")), folder / "command.txt"
    if not runs:
        return "new", None
    if note.exists() and judge_budget(shlex.split(note.read_text(encoding="utf-8")))[0] != judge_budget(line)[0]:
        return "other flags", None
    done = [run for run in runs if (run / "results.json").exists()]
    return ("done", done[0]) if done else ("stopped", runs[-1])


def play(folder: Path, line: list[str], run: Path | None) -> int:
    """Run, or resume `run`; Ctrl-C reaches the run too: wait until it has saved. Returns its exit code."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "command.txt").write_text(shlex.join(line) + "\n", encoding="utf-8")
    line = [line[0], "--resume", str(run), *judge_budget(line)[1]] if run else line
    process = subprocess.Popen([sys.executable, "-u", *line], cwd=ROOT)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return process.wait()
    finally:
        signal.signal(signal.SIGINT, before)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     allow_abbrev=False)  # --seed is run_distrl.py's
    parser.add_argument("--experiment", required=True, choices=EXPERIMENTS, help="what to compare")
    parser.add_argument("--budget", choices=BUDGETS, default="full",
                        help="minutes of training: 3; small: 2.5 (collection: 3)")  # fmt: skip
    parser.add_argument("--methods", nargs="+", help="only these of the experiment, such as aride digirl_sync")
    parser.add_argument("--seeds", type=int, nargs="+", help="default: 1 2 3; small, and pilot: 1")
    parser.add_argument("--out", type=Path, help="where the runs go; default: runs/reproduce")
    parser.add_argument("--dry-run", action="store_true", help="print the commands only")
    args, extra = parser.parse_known_args()
    out = (args.out or ROOT / "runs" / "reproduce").absolute()
    seeds = [*dict.fromkeys(args.seeds or ([1] if args.experiment == "pilot" else BUDGETS[args.budget][1]))]
    methods, todo = EXPERIMENTS[args.experiment], []
    if unknown := set(args.methods or ()) - set(methods):
        parser.error(f"--methods {' '.join(sorted(unknown))}: {args.experiment} has {' '.join(methods)}")
    methods = [*dict.fromkeys(args.methods or methods)]
    for word in extra:  # it would come last, and win
        flag = word.partition("=")[0].replace("_", "-").replace("--no-", "--", 1)  # as tyro takes it
        if flag in words(dict.fromkeys(compared(args.experiment), True), out):
            parser.error(f"{flag} is what is compared, or this script's to set: see --seeds, --out, METHODS in run.py")
    for seed, method in itertools.product(seeds, methods):  # all methods, then the next seed
        folder, line = command(method, seed, args.budget, out, extra)
        found, run = state(folder, line)
        if found == "other flags":
            print(f"error: {folder} was made by another command, see its command.txt: name another --out",
                  file=sys.stderr)  # fmt: skip
            return 2
        print(f"# {METHODS[method][0]}, seed {seed}: {found}\n$ python {shlex.join(line)}", flush=True)
        if found != "done":
            todo.append((method, seed, folder, line, run))
    if args.dry_run:
        return 0
    if args.experiment == "generalisation":
        write_unseen(out / args.budget / "tasks")
    elif args.experiment != "collection":
        write_held_out(out / args.budget / "tasks")
    for number, (method, seed, folder, line, run) in enumerate(todo, 1):
        print(f"\n# run {number} of {len(todo)}: {METHODS[method][0]}, seed {seed}", flush=True)
        code = play(folder, line, run)
        if code or state(folder, line)[0] != "done":
            how = f"stopped with exit code {code}: the same command" if code else \
                "paused: the same command with a larger --max-judge-calls"
            print(f"error: {METHODS[method][0]}, seed {seed}: {how} goes on", file=sys.stderr)
            return code or 1
    print(f"\nAll {len(seeds) * len(methods)} runs are there. Tables and figures: "
          f"python reproduce/plot.py --experiment {args.experiment} --budget {args.budget}"
          + (f" --out {shlex.quote(str(args.out))}" if args.out else ""))  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
