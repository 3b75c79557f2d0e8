"""What a run achieved: the evaluations before and after training as numbers, and as a table to read.

An evaluation is a list of (family, greedy, success, number) rows: success None where the judge could not tell, number
the place in the list of tasks (-1: not known).

    results = summarise(warmup_rows, final_rows)     # the head of results.json
    results |= breakdown(warmup_rows, final_rows, training_rows, train_tasks, eval_tasks)
    print(table(results, folder))
"""

from __future__ import annotations

import csv
import dataclasses
import itertools
import json
import math
import os
import secrets
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from run_data import wilson_interval
from tasks import Task, novelty

Row = tuple[str, bool, bool | None, int]
LAST = 200  # training trajectories that `recent_metrics` is given, at most
RECENT = 128  # training episodes, the last ones of a set: what "train" is where no training tasks were evaluated

METRICS = """charts/success_rate charts/episodic_return charts/episodic_length charts/trajectories_per_minute charts/SPS
    losses/policy_loss losses/value_loss losses/trajectory_value_loss losses/entropy losses/invalid_penalty
    losses/grad_norm stats/policy_lag_mean stats/policy_lag_max stats/rho_mean stats/rho_max stats/rho_clipfrac
    stats/ess stats/trust_dropped stats/cloned stats/nan_skips stats/server_batch stats/learner_idle stats/phone_idle
    stats/worker_restarts stats/phone_restarts stats/judge_unknown stats/judge_calls stats/judge_usd
    stats/trivial_success stats/unsupported_text stats/stale_dropped stats/invalid_actions stats/replay_size
    stats/priority_ess eval/success_rate eval/n eval/trajectories""".split()


def recent_metrics(rows: Sequence[dict], now: float, seconds: float) -> dict[str, float | None]:
    """Metrics of the last training trajectories, oldest first; `seconds`: since training began in this process.

    A row: success, return, length, lag (publications; mean over its steps), oldest (the lag of its oldest step, which
    --max-staleness bounds), at (when it came, on the clock of `now`), invalid (share of
    its actions), seconds, policy_seconds, server_batch.
    """
    judged = [row["success"] for row in rows if row["success"] is not None]
    names = ("return", "length", "lag", "invalid", "server_batch")
    mean = {name: sum(row[name] for row in rows) / len(rows) for name in names}
    # The last minute, or as much of it as there is: training may be younger, and the rows may not reach back so far.
    span = min(60.0, seconds, max(now - rows[0]["at"], 1.0) if len(rows) >= LAST else 60.0)
    return {
        "charts/success_rate": sum(judged) / len(judged) if judged else None,
        "charts/episodic_return": mean["return"],
        "charts/episodic_length": mean["length"],
        "charts/trajectories_per_minute": sum(now - row["at"] <= span for row in rows) * 60 / max(span, 1.0),
        "stats/policy_lag_mean": mean["lag"],
        "stats/policy_lag_max": max(row["oldest"] for row in rows),
        "stats/invalid_actions": mean["invalid"],
        "stats/server_batch": mean["server_batch"],
        "stats/phone_idle": sum(row["policy_seconds"] for row in rows) / max(sum(row["seconds"] for row in rows), 1e-9),
    }


def priority_ess(masses: Sequence[float]) -> float | None:
    """Effective share of the replay under DPER, (sum m)^2 / (N sum m^2): 1 when all are as likely to be drawn, 1 / N
    when one alone is. None for an empty one."""
    squares = sum(mass * mass for mass in masses)
    return sum(masses) ** 2 / (len(masses) * squares) if squares else None


RATIO_BOUND = 0.99 * math.exp(20.0)  # nearly what aride.py clamps ratios to


def alarms(metrics: dict) -> dict[str, str]:
    """What goes wrong in training: kind -> a sentence with its remedy. `metrics`: a row of metrics.csv."""
    found, remedy = {}, "lower --learning-rate"
    invalid, skipped = metrics.get("stats/invalid_actions", 0.0), metrics.get("stats/nan_skips", 0)
    if invalid > 0.5:
        found["invalid"] = f"{invalid:.0%} of the last actions could not be parsed or done: {remedy}"
    if skipped:
        found[f"skipped {skipped}"] = f"{skipped} updates left out, as something was not finite: {remedy}"
    if metrics.get("stats/rho_max", 0.0) >= RATIO_BOUND:
        found["ratio"] = f"an importance ratio reached its bound, {RATIO_BOUND:.0e}: {remedy}, or --max-staleness"
    return found


def append_metrics(path: Path, row: dict) -> None:
    """One more line of metrics.csv: the columns that `row` starts with, then `METRICS`; what is missing stays empty.

    A file that is there keeps its columns: an older version of this code may have begun it.
    """
    if path.exists():
        with path.open("r+b") as file:  # a full disk may have torn the last line: the next is not written behind it
            file.truncate(file.read().rfind(b"\n") + 1)
    fresh = not path.exists() or not path.stat().st_size
    names = [name for name in row if name not in METRICS] + METRICS
    if not fresh:
        with path.open(newline="") as file:
            names = next(csv.reader(file), names)
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, names)
        if fresh:
            writer.writeheader()
        writer.writerow({name: row.get(name, "") for name in names})


def start_tracking(args, folder: Path):
    """A Weights and Biases run; offline without a key, so that it never asks on a terminal, or without its server.

    Its id is kept in the folder, so that a resumed run goes on in the same one. Offline each session writes a folder
    with that id; `wandb sync FOLDER/wandb/offline-run-*` puts them together, in order of their start.
    """
    import wandb

    mark = folder / "wandb" / "id.txt"
    mark.parent.mkdir(exist_ok=True)
    if not mark.exists():
        mark.write_text(secrets.token_hex(8))
    mode = os.environ.get("WANDB_MODE") or ("online" if os.environ.get("WANDB_API_KEY") else "offline")
    config = json.loads(json.dumps(dataclasses.asdict(args), default=str))
    options = dict(project="distrl", name=folder.name, dir=str(folder), config=config, id=mark.read_text().strip())
    try:
        resume = "allow" if mode == "online" else None  # offline there is no server to ask
        return wandb.init(**options, mode=mode, resume=resume, settings=wandb.Settings(init_timeout=30))
    except wandb.Error as error:  # no network, or a key that it does not take
        if mode == "offline":
            raise
        print(f"  wandb: {str(error).splitlines()[0]}: logging offline, `wandb sync` sends it later", flush=True)
        return wandb.init(**options, mode="offline")


def rate(rows: Sequence[Row]) -> dict:
    """Success rate with its 95 % Wilson interval; rows without a verdict are counted apart, never as failures.

    Repeats of a task are no new tasks: the interval is that of as many episodes as there are different ones.
    """
    judged = [row[2] for row in rows if row[2] is not None]
    different = {(row[1], row[3]) if row[3] >= 0 else place for place, row in enumerate(rows)}
    successes, repeats = sum(judged), len(rows) / max(len(different), 1)
    return {
        "success_rate": successes / len(judged) if judged else None,
        "ci95": list(wilson_interval(successes / repeats, len(judged) / repeats)) if judged else None,
        "n": len(judged),
        "unjudged": len(rows) - len(judged),
    }


def summarise(warmup: Sequence[Row], final: Sequence[Row]) -> dict:
    """Headline numbers (greedy decoding), then greedy and sampled apart, then by family over both."""
    phases = {"warmup": warmup, "final": final}
    modes = {
        name: {phase: rate([row for row in rows if row[1] == greedy]) for phase, rows in phases.items()}
        for name, greedy in (("greedy", True), ("sampled", False))
    }
    families = {}
    for family in dict.fromkeys(row[0] for row in [*warmup, *final]):
        rates = {phase: rate([row for row in rows if row[0] == family]) for phase, rows in phases.items()}
        families[family] = {phase: r["success_rate"] for phase, r in rates.items()}
        families[family] |= {name: rates["final"][name] for name in ("ci95", "n")}
    return {
        "warmup_success_rate": modes["greedy"]["warmup"]["success_rate"],
        **modes["greedy"]["final"],
        **modes,
        "families": dict(sorted(families.items())),
    }


def breakdown(
    warmup: Sequence[Row], final: Sequence[Row], training: Sequence[Row], train: Sequence[Task], test: Sequence[Task]
) -> dict:
    """Greedy success by the sets of the paper's table, and by what a task has new. `training`: greedy rows of training
    tasks, or training itself (sampled), of which the last 128 of a set count."""
    phases = {"warmup": warmup, "final": final}
    greedy = {phase: [row for row in rows if row[1]] for phase, rows in phases.items()}
    sets, new = {}, {}
    for name, web in (("General", False), ("Web Shopping", True)):
        found = {
            phase: [row for row in rows if row[0].startswith("web_") == web]
            for phase, rows in (greedy | {"train": training}).items()
        }
        if not any(row[1] for row in training):  # the last quarter of a long run, all of a short one: not comparable
            found["train"] = found["train"][-RECENT:]
        sets[name] = {phase: rate(rows) for phase, rows in found.items()}
    kinds = novelty(train, test) if train else []
    for kind in ("seen", "instance", "template", "app"):
        chosen = {number for number, known in enumerate(kinds) if known == kind}
        if chosen:
            new[kind] = {phase: rate([row for row in rows if row[3] in chosen]) for phase, rows in greedy.items()}
    return {"sets": sets, "new": new}


def flips(rows: Sequence[Row]) -> dict:
    """How often two verdicts on the same task, policy and way of choosing actions differ, over all pairs of repeats."""
    verdicts = defaultdict(list)
    for _, greedy, success, number in rows:
        if success is not None and number >= 0:
            verdicts[number, greedy].append(success)
    pairs = [a != b for group in verdicts.values() for a, b in itertools.combinations(group, 2)]
    return {"share": sum(pairs) / len(pairs) if pairs else None, "pairs": len(pairs)}


def table(results: dict, folder: Path) -> str:
    """The results for the eyes: by family, greedy and sampled, and where to look next."""

    def percent(value: float | None) -> str:
        return "-" if value is None else f"{100 * value:.0f}%"

    look = (f"Look at {folder / 'report.html'} and {folder / 'curves.png'}; "
            f"numbers in {folder / 'results.json'}.")  # fmt: skip
    if not results["families"]:
        return (f"\nNot evaluated: no phones were used. {results['trajectories']} trajectories, {results['updates']} "
                f"updates in {results['wall_seconds'] / 60:.1f} minutes.\n{look}")  # fmt: skip
    minutes = f"{results['wall_seconds'] / 60:.1f} minutes"
    how = f"(greedy, n {results['n']}, {results['unjudged']} without a verdict)"
    change = f"{percent(results['warmup_success_rate'])} -> {percent(results['success_rate'])} {how}"
    sentence = f"{change} after {results['trajectories']} trajectories and {minutes}"
    if evaluated := results.get("evaluated"):
        sentence = f"{percent(results['success_rate'])} {how}: {evaluated}, {minutes}"
    phones = results.get("phones", "simulated").replace("simulated", "simulated phones")
    lines = ["", f"{'family':<16}{'before':>8}{'after':>8}{'n':>6}"]
    for family, row in results["families"].items():
        lines.append(f"{family:<16}{percent(row['warmup']):>8}{percent(row['final']):>8}{row['n']:>6}")
    for mode in ("greedy", "sampled"):
        before, after = results[mode]["warmup"], results[mode]["final"]
        rates = [percent(found["success_rate"]) for found in (before, after)]
        line = f"{'all, ' + mode:<16}{rates[0]:>8}{rates[1]:>8}{after['n']:>6}"
        if after["ci95"]:
            line += f"   95 % interval {percent(after['ci95'][0])} to {percent(after['ci95'][1])}"
        lines.append(line)
    return "\n".join(lines) + (
        f"\n\nSuccess on held-out tasks {sentence} on {phones}.\n{look}"
    )
