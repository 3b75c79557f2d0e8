"""The evaluation card: how a run's numbers came about, so that others can tell what they may be compared with.

    start = at_start(policy_path, journal_path, train, test)   # code, commit, policy, load: before anything runs
    card = evaluation_card(args, judge, train_tasks, eval_tasks, final_rows, policy, start)

Two numbers may be compared when their cards agree in all but what is asked about: `reproduce/plot.py` warns where code,
machine, versions, tasks, prompts, judge, step budget, repeats or starting policy do not. Hashes are sha256: of
instructions in their order, of prompts, of all Python files, of the policy's files.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from judge_clients import without_keys
from run_folder import UsageError
from tasks import Task

ROOT = Path(__file__).resolve().parent


def at_start(policy: Path, journal: Path, train: Sequence[Task], test: Sequence[Task]) -> dict:
    """What may be another thing at the run's end, as it was when its first session began: for `evaluation_card`.

    `policy`: the file or folder to start from. Kept in the run's journal; the code of a later session is put behind
    the first one's. UsageError: a list of tasks is another one than then, and before and after could not be compared.
    """
    from journal import Journal

    now = {"code_sha256": code_hash(), "git_commit": git_commit(), "policy_sha256": files_hash(policy), "load": load(),
           "train_sha256": task_hash(train), "eval_sha256": task_hash(test)}  # fmt: skip
    with Journal(journal) as run:
        start = run.meta.get("start") or now  # runs of older versions have none
        for flag, name in (("--tasks", "train_sha256"), ("--eval-tasks", "eval_sha256")):
            if start[name] != now[name]:
                raise UsageError(f"--resume: {flag} has other instructions than when the run began: put its file back "
                                 "as it was, or start a new run")  # fmt: skip
        if now["code_sha256"] not in start["code_sha256"]:
            start["code_sha256"] += f", then {now['code_sha256']}"
        run.meta["start"] = start
    return start


def evaluation_card(
    args, judge, train: Sequence[Task], test: Sequence[Task], final: Sequence[tuple], policy, start: dict
) -> dict:
    """How the numbers came about: what another evaluation must share with this one to be compared with it."""
    import evaluator
    import task_rules
    from action_text import make_prompt
    from results import RECENT, flips

    if judge.kind == "rules":
        question = Path(task_rules.__file__).read_text(encoding="utf-8")
    else:
        question = f"{evaluator.PROMPT}{evaluator.VALIDITY_PROMPT}{evaluator.RUBRICS}{judge.screens}"
    tasks = args.tasks
    return {
        "seeds": [args.run.seed], "repeats": tasks.eval_repeats, "flips": flips(final), "interval": "Wilson, 95 %",
        "step_budget": [tasks.horizon] if tasks.horizon else sorted({task.horizon for task in test}),
        "decoding": {"greedy": "likeliest tokens", "sampled": "temperature 1", "max_tokens": policy.codec.max_action},
        "train_success": f"greedy, after training, the first {tasks.eval_train} training tasks of each set"
        if tasks.eval_train else f"sampled, the last {RECENT} training episodes of each set",
        "judge": judge.name, "judge_votes": judge.votes, **judge_error(judge),
        "train_sha256": task_hash(train), "eval_sha256": task_hash(test),
        "policy_prompt_sha256": _sha256(make_prompt("{goal}", "{action}")), "judge_prompt_sha256": _sha256(question),
        "policy_sha256": start["policy_sha256"], "phones": phones(args.phones), "sync": args.run.sync,
        "budget": {"train_minutes": tasks.train_minutes, "total_trajectories": tasks.total_trajectories},
        "algorithm": vars(args.algorithm)
        | {name: getattr(args.policy, name) for name in ("publish_every", "max_staleness", "precision", "lora")},
        "code_sha256": start["code_sha256"], "git_commit": start["git_commit"], "versions": versions(),
        "machine": machine(), "load": {"start": start["load"], "end": load()},
    }  # fmt: skip


def judge_error(judge) -> dict:
    """How often the judge is wrong against the rules; of a model it must be measured."""
    if judge.kind == "rules":
        return {"judge_error": "0 by definition"}
    model = f"{judge.kind}:{judge.model}" + (f"@{judge.url}" if judge.url else "")
    return {"judge_error": None, "judge_error_command": f"python evaluator.py --calibrate FOLDER --judge {model}"}


def phones(flags) -> dict:
    """What the phones are like; latency is less in evaluations."""
    from evaluation import LATENCY

    if not flags.simulated:
        return {"kind": "adb", "workers": flags.num_workers, "reset": flags.reset}
    faults = {name: getattr(flags, name) for name in ("dialogs", "failed_loads", "slow_loads")}
    return {"kind": "simulated", "workers": flags.num_workers, **faults, "latency_training": flags.latency,
            "latency_evaluation": min(flags.latency, LATENCY)}  # fmt: skip


# ---------------------------------------------------------------------- hashes


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def files_hash(path: Path) -> str | None:
    """Of a file, or of the files in a folder, names included; None where there is none."""
    mark = hashlib.sha256()
    files = sorted(p for p in path.iterdir() if p.is_file()) if path.is_dir() else [path]
    try:
        for file in files:
            mark.update(file.name.encode() if path.is_dir() else b"")
            with file.open("rb") as stream:
                while piece := stream.read(1 << 20):
                    mark.update(piece)
    except OSError:
        return None
    return mark.hexdigest()


@cache
def code_hash() -> str:
    """Names this code: sha256 of all its Python files, the simulated phones' included, when first asked for."""
    mark = hashlib.sha256()
    for path in sorted([*ROOT.glob("*.py"), *ROOT.glob("sim/*.py")]):
        mark.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return mark.hexdigest()


@cache
def git_commit() -> str | None:
    """The commit that is checked out here, "+ changes" where files differ from it; None: no git, no repository."""

    def git(*words: str) -> str:
        how = dict(capture_output=True, text=True, timeout=10, check=True)
        return subprocess.run(["git", "-C", str(ROOT), *words], env=without_keys(), **how).stdout.strip()

    if not (ROOT / ".git").exists():
        return None
    try:
        return git("rev-parse", "HEAD") + (" + changes" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def task_hash(tasks: Sequence[Task]) -> str:
    """Names a task set: sha256 of its instructions in order."""
    return _sha256("\n".join(task.instruction for task in tasks))


# ---------------------------------------------------------------------- versions, machine


def versions() -> dict[str, str]:
    """Versions of what computed the result."""
    packages = ("torch", "transformers", "tokenizers", "numpy", "pillow", "adbutils", "google-generativeai", "peft")
    found = {"python": sys.version.split()[0]}
    for name in packages:
        with suppress(importlib.metadata.PackageNotFoundError):  # peft is for --lora alone
            found[name] = importlib.metadata.version(name)
    return found


def machine() -> str:
    """System, processor, cores that there are and that may be used, memory."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.processor() or "unknown processor"
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    gigabytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return (f"{platform.system()} {platform.machine()}, {model}, {os.cpu_count()} CPUs ({usable} to be used), "
            f"{gigabytes:.0f} GB")  # fmt: skip


def load() -> list[float]:
    """The machine's load averages, over 1, 5 and 15 minutes: other programs beside a run make it slower."""
    return [round(value, 2) for value in os.getloadavg()]
