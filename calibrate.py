"""How far a judge can be trusted: its verdicts on screens that were labelled by hand, or by rule on simulated phones.

    python evaluator.py --calibrate-sim calib --judge gemini           # makes such a folder first, near misses included
    python evaluator.py --calibrate calib --judge gemini openai:qwen2.5-vl@http://127.0.0.1:8000

A folder holds PNG or JPEG screens and labels.csv (or labels.jsonl) with `image`, `task`, `label` (success or failure),
and may have `ui`, a file with what `dumpsys window` and `uiautomator dump` printed, which the rules need. Reported for
each judge, with 95 % Wilson intervals, over the screens on which it has a verdict:

    agreement       its verdict is the label
    false success   it says success where the label is failure: rewards that were not earned
    false failure   it says failure where the label is success: rewards that were lost

Written into the folder: calibration.json, calibration.png, verdicts.csv (every answer, to read the mistakes), and
judge-NAME.sqlite (answers that were paid for are not asked for again).

Departs from the paper: it reports how often its judge agrees with people; the two errors are apart here, because a
policy learns to exploit the first and only loses time by the second.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from evaluator import JudgeConfig, Verdict, VisionJudge, encode_screen
from journal import JournalError
from judge_clients import DEFAULT_MODELS, MissingClient, url_problem
from judge_ledger import cost
from run_data import wilson_interval
from run_folder import UsageError
from tasks import Task, UnknownInstruction, generate_tasks, parse_task
from ui_state import parse_ui

LABELS = {"success": True, "true": True, "1": True, "yes": True, "failure": False, "false": False, "0": False,
          "no": False}  # fmt: skip
RATES = ("agreement", "false_success", "false_failure")
# Tasks whose end looks like that of another: (what is done on the phone, what the judge is asked).
ALIKE = (
    ("Search for good sushi restaurants", "Search for good sushi restaurants on Maps"),
    ("Set an alarm for 10am", "Set an alarm for 10pm"),
    ("Open a new tab in Chrome", "Open a new incognito tab in Chrome"),
    ("Open the calendar", "What's on my calendar for the rest of the week?"),
    ("What's the price of the LG TV?", "What's the price of the LG TV on eBay?"),
    ("Go to ebay.com, search for 'asus rog'", "Go to costco.com, search for 'asus rog'"),
    ("Go to ebay.com, search for 'asus rog'", "Go to ebay.com, search for 'acer nitro'"),
    ("Install the Yelp app", "Install the CNN app"),
    ("Check the settings for the Netflix app", "Check the settings for the Spotify app"),
    ("Search for flights from Paris to London", "Search for flights from London to Paris"),
)


@dataclass(frozen=True)
class Sample:
    """One labelled screen."""

    image: Path
    task: str
    label: bool
    ui: Path | None = None


def read_samples(folder: Path) -> list[Sample]:
    """The folder's labels. UsageError: file and line of what cannot be used."""
    path = next((folder / name for name in ("labels.csv", "labels.jsonl") if (folder / name).is_file()), None)
    if path is None:
        raise UsageError(f"--calibrate {folder}: no labels.csv or labels.jsonl there (columns image, task, label)")
    samples = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file) if path.suffix == ".csv" else map(json.loads, filter(str.strip, file)))
    except (OSError, ValueError, csv.Error) as error:
        raise UsageError(f"{path}: cannot be read ({error})") from error
    for number, row in enumerate(rows, 2 if path.suffix == ".csv" else 1):
        where = f"{path}, line {number}"
        if not isinstance(row, dict) or not all(row.get(name) not in (None, "") for name in ("image", "task", "label")):
            raise UsageError(f"{where}: image, task and label are needed")
        label = LABELS.get(str(row["label"]).strip().lower())
        if label is None:
            raise UsageError(f"{where}: label {row['label']!r}: write success or failure")
        files = [folder / str(row["image"]), folder / str(row["ui"]) if row.get("ui") else None]
        for file in filter(None, files):
            if not file.is_file():
                raise UsageError(f"{where}: no file {file}")
        samples.append(Sample(files[0], str(row["task"]), label, files[1]))
    if not samples:
        raise UsageError(f"{path}: no label in it")
    return samples


def by_rule(sample: Sample) -> Verdict:
    """The rule's verdict on this screen alone."""
    if sample.ui is None:
        return Verdict(None, "no ui file for this screen")
    try:
        done, reason = parse_task(sample.task).is_done([parse_ui(sample.ui.read_bytes())])
    except (UnknownInstruction, ValueError) as error:
        return Verdict(None, str(error))
    return Verdict(done, reason, reason)


def by_model(judge: VisionJudge) -> Callable[[Sample], Verdict]:
    """The model's verdict on this screen."""
    from PIL import Image

    def verdict(sample: Sample) -> Verdict:
        try:
            task: Any = parse_task(sample.task)
        except UnknownInstruction:
            task = SimpleNamespace(instruction=sample.task)
        with Image.open(sample.image) as image:
            png = encode_screen(np.asarray(image.convert("RGB")))
        return judge.judge(task, (), [png])

    return verdict


def measure(samples: list[Sample], verdicts: list[Verdict]) -> dict:
    """Each of `RATES` as {"rate", "ci95", "n"} (rate None without any), and how many are unknown."""
    pairs = [(s.label, v.success) for s, v in zip(samples, verdicts, strict=True) if v.success is not None]

    def rate(hits: list[bool]) -> dict:
        share = sum(hits) / len(hits) if hits else None
        return {"rate": share, "ci95": list(wilson_interval(sum(hits), len(hits))), "n": len(hits)}

    return {
        "agreement": rate([label == said for label, said in pairs]),
        "false_success": rate([said for label, said in pairs if not label]),
        "false_failure": rate([not said for label, said in pairs if label]),
        "unknown": len(verdicts) - len(pairs), "n": len(verdicts),
    }  # fmt: skip


def table(results: dict[str, dict]) -> str:
    """The results for the eyes, a line a judge."""
    width = max(map(len, results))
    lines = [f"{'judge':<{width}}" + "".join(f"{name.replace('_', ' '):>22}" for name in RATES) + f"{'unknown':>12}"]
    for name, found in results.items():
        cells = []
        for rate in (found[key] for key in RATES):
            low, high = rate["ci95"]
            share = "-" if rate["rate"] is None else f"{rate['rate']:.1%} ({low:.0%} to {high:.0%})"
            cells.append(f"{share:>22}")
        lines.append(f"{name:<{width}}" + "".join(cells) + f"{found['unknown']:>6} of {found['n']}")
    return "\n".join(lines)


def draw(results: dict[str, dict], path: Path) -> None:
    """The table as bars with their intervals."""
    from matplotlib.figure import Figure  # not pyplot: no window, no state

    figure = Figure(figsize=(7, 3.5), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(results)
    for number, (name, found) in enumerate(results.items()):
        rates = [found[key] for key in RATES]
        shares = [100 * (rate["rate"] or 0.0) for rate in rates]
        errors = [[100 * abs(rate["ci95"][side] - (rate["rate"] or 0.0)) * (rate["rate"] is not None) for rate in rates]
                  for side in (0, 1)]
        places = np.arange(len(RATES)) + (number - (len(results) - 1) / 2) * width
        axes.bar(places, shares, width, yerr=errors, capsize=3, label=f"{name} ({found['unknown']} unknown)")
    axes.set_xticks(range(len(RATES)), [name.replace("_", " ") for name in RATES])
    axes.set_ylabel("% of screens, 95 % interval")
    axes.set_ylim(0, 100)
    axes.legend()
    figure.savefig(path, dpi=120)


def calibrate(folder: Path, judges: dict[str, Callable[[Sample], Verdict]]) -> dict[str, dict]:
    """Ask every judge about every screen of the folder, and write what came out beside them."""
    samples, results, rows = read_samples(folder), {}, []
    for name, judge in judges.items():
        verdicts = [judge(sample) for sample in samples]
        results[name] = measure(samples, verdicts)
        rows += [(name, s.image.name, s.task, s.label, v.success, v.reason)
                 for s, v in zip(samples, verdicts, strict=True)]  # fmt: skip
    with (folder / "verdicts.csv").open("w", newline="", encoding="utf-8", errors="replace") as file:
        csv.writer(file).writerows([("judge", "image", "task", "label", "verdict", "reason"), *rows])
    (folder / "calibration.json").write_text(json.dumps(results, indent=2) + "\n")
    draw(results, folder / "calibration.png")
    return results


# ---------------------------------------------------------------------- a folder from simulated phones


def play(task: Task, seed: int) -> list[tuple[bytes, bytes]]:
    """(PNG, UI dump) of each screen on the scripted user's way to the task's end."""
    from sim.demonstrator import next_action
    from sim.phone import BACK, HOME, Phone

    phone, memory, screens = Phone(seed, seed=seed, dialogs=0.3, failed_loads=0.2), {}, []
    keys = {"enter": 66, "back": BACK, "home": HOME}

    def look() -> None:
        dump = f"mCurrentFocus=Window{{1 u0 {phone.focus_component()}}}\n{phone.hierarchy_xml()}".encode()
        if not screens or screens[-1][1] != dump:
            screens.append((phone.png(), dump))

    look()
    for _ in range(task.horizon):
        kind, *args = next_action(task, parse_ui(screens[-1][1]), memory)
        if kind == "complete" or task.is_done([parse_ui(dump) for _, dump in screens])[0]:
            break
        if kind in keys:
            phone.key(keys[kind])
        else:
            {"tap": phone.tap, "swipe": phone.swipe, "type": phone.type_text}[kind](*args)
        look()
    return screens


def make_sim_folder(folder: Path, number: int = 120, seed: int = 0) -> dict[str, int]:
    """Write `number` labelled screens; half of them or fewer are ends of their task, the others near misses: one step
    before the end, or the end of a task that looks like it. Returns how many of each.

    A label is the rule's on the whole episode. Screens on which it depends on what was seen before (was the switch on
    at first?) are left out: nobody could label them from the picture.
    """
    if (folder / "labels.csv").exists():
        raise UsageError(f"--calibrate-sim {folder}: it has a labels.csv already: --calibrate it, or name another")
    rng, rows, counts = random.Random(seed), [], {"done": 0, "one step short": 0, "another task": 0}
    folder.mkdir(parents=True, exist_ok=True)
    tasks = generate_tasks("test", 10 * number, seed)
    twins = [(parse_task(does), parse_task(asked)) for does, asked in ALIKE]
    rng.shuffle(twins)
    played = 0

    def keep(kind: str, task: Task, screens: list[tuple[bytes, bytes]], last: int) -> None:
        states = [parse_ui(dump) for _, dump in screens[: last + 1]]
        label = task.is_done(states)[0]
        alone = task.is_done(states[-1:])[0]
        if label == alone and label == (kind == "done") and len(rows) < number:
            name = f"{len(rows):04d}"
            (folder / f"{name}.png").write_bytes(screens[last][0])
            (folder / f"{name}.ui").write_bytes(screens[last][1])
            rows.append((f"{name}.png", task.instruction, "success" if label else "failure", f"{name}.ui", kind))
            counts[kind] += 1

    while len(rows) < number and played < len(tasks):
        task, other = tasks[played], None
        if played % 4 == 0 and twins:
            task, other = twins.pop()
        same = [t for t in tasks if t.family == task.family and t.instruction != task.instruction]
        other = other or (rng.choice(same) if same else None)
        screens = play(task, seed + played)
        keep("done", task, screens, len(screens) - 1)
        if len(screens) > 1:
            keep("one step short", task, screens, len(screens) - 2)
        if other and played % 2 == 0:
            keep("another task", other, screens, len(screens) - 1)
        played += 1
    with (folder / "labels.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("image", "task", "label", "ui", "kind"), *rows])
    return counts


# ---------------------------------------------------------------------- python evaluator.py ...


def parse_judge(text: str, **options) -> JudgeConfig:
    """KIND[:MODEL][@URL], for example openai:qwen2.5vl:7b@http://127.0.0.1:11434. Raises UsageError."""
    rest, _, url = text.partition("@")
    kind, _, model = rest.partition(":")
    if kind not in ("rules", *DEFAULT_MODELS):
        raise UsageError(f"--judge {text}: it begins with rules, gemini or openai, as in openai:MODEL@http://HOST:PORT")
    if problem := url_problem(url):
        raise UsageError(f"--judge {kind}:{model}@URL{problem}")
    return JudgeConfig(kind, model or DEFAULT_MODELS.get(kind, ""), url, **options)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python evaluator.py", description="Measure judges, or judge a run again.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--calibrate", type=Path, metavar="FOLDER", help="judges against the labels of this folder")
    what.add_argument("--calibrate-sim", type=Path, metavar="FOLDER",
                      help="make such a folder from simulated phones; with --judge, go on with --calibrate there")
    what.add_argument("--rejudge", type=Path, metavar="RUN", help="settle the run's trajectories without a verdict")
    parser.add_argument("--judge", nargs="+", default=[], metavar="KIND[:MODEL][@URL]",
                        help="default: rules; for --rejudge the run's own")
    parser.add_argument("--judge-rpm", type=float, help="calls a minute at most; 0: no limit. These three for "
                        "--rejudge: the run's own if not given; else no limits, one answer")
    parser.add_argument("--max-judge-calls", type=int, help="stop asking after so many; 0: no limit")
    parser.add_argument("--judge-votes", type=int, help="answers asked for a screen")
    parser.add_argument("--number", type=int, default=120, help="screens to make")
    parser.add_argument("--seed", type=int, default=0, help="of the screens to make")
    args = parser.parse_args(arguments)
    limits = {"rpm": args.judge_rpm, "max_calls": args.max_judge_calls, "votes": args.judge_votes}
    limits = {name: value for name, value in limits.items() if value is not None}  # those that were given
    try:
        if not (min(limits.get("rpm", 0), limits.get("max_calls", 0)) >= 0 < min(limits.get("votes", 1), args.number)):
            raise UsageError("--judge-rpm and --max-judge-calls: at least 0, --judge-votes and --number: at least 1")
        for name in args.judge:  # before screens are made for it
            parse_judge(name)
        if args.calibrate_sim:
            counts = make_sim_folder(args.calibrate_sim, args.number, args.seed)
            print(f"{args.calibrate_sim}: " + ", ".join(f"{number} {kind}" for kind, number in counts.items()))
            if args.judge:
                _calibrate(args.calibrate_sim, args.judge, limits)
            else:
                print(f"Now measure judges: python evaluator.py --calibrate {args.calibrate_sim} --judge gemini rules")
        elif args.calibrate:
            _calibrate(args.calibrate, args.judge or ["rules"], limits)
        else:
            _rejudge(args, limits)
    except (UsageError, MissingClient, JournalError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _ready(config: JudgeConfig) -> VisionJudge:
    judge = VisionJudge(config)
    judge.ledger.go_on()
    return judge


def _tell(judge: VisionJudge, name: str) -> None:
    """What its calls cost, and why it stopped, if it did."""
    print(f"{name}: {cost(judge.ledger.summary())} so far")
    if stopped := judge.ledger.stopped():
        print(f"  it takes no more calls ({stopped.kind}): {stopped.reason}")


def _calibrate(folder: Path, names: list[str], limits: dict) -> None:
    judges, models = {}, {}
    configs = list(dict.fromkeys(parse_judge(name, **limits) for name in names))
    for config in configs:
        # One model on two servers is two judges, for the table and for the answers that are kept.
        twice = sum(other.name == config.name for other in configs) > 1
        name = f"{config.name}@{config.url}" if twice else config.name
        if config.kind == "rules":
            judges[name] = by_rule
        else:
            read_samples(folder)  # before anything is asked
            # A ledger each: a spent quota stops its own judge only.
            file = "judge-" + re.sub(r"[^\w.:-]+", "-", f"{config.name} {config.url}".strip())
            models[name] = _ready(replace(config, ledger=str(folder / f"{file}.sqlite")))
            judges[name] = by_model(models[name])
    print(table(calibrate(folder, judges)))
    print(f"Look at {folder / 'calibration.png'} and {folder / 'verdicts.csv'}.")
    for name, judge in models.items():
        _tell(judge, name)


def _rejudge(args, limits: dict) -> None:
    from args import Args, judge_config
    from rejudge import settle
    from run_folder import held, read_args

    run = args.rejudge
    config = judge_config(read_args(run, Args, "--rejudge").judge, run)
    if args.judge:
        config = parse_judge(args.judge[0], ledger=str(run / "judge.sqlite"))
    config = replace(config, **limits)
    if config.kind == "rules":
        raise UsageError(f"--rejudge {run}: its judge is the rules, which say the same again: name one with --judge")
    if not (run / "journal.sqlite").is_file():
        raise UsageError(f"--rejudge {run}: no journal there")
    if len(args.judge) > 1:
        raise UsageError(f"--judge {' '.join(args.judge)}: --rejudge asks one")
    with held(run, "--rejudge"):
        judge = _ready(config)
        counts = settle(run, judge)
    told = ", ".join(f"{number} {kind}" for kind, number in sorted(counts.items())) or "none was without a verdict"
    then = (f"The run is over: `python run_distrl.py --offline {run}` learns from all that have a verdict"
            if (run / "results.json").is_file() else
            f"The next `python run_distrl.py --resume {run}` trains on those with a verdict")  # fmt: skip
    print(f"{run}: {told}. {then}.")
    _tell(judge, config.name)
