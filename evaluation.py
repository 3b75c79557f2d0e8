"""Evaluations: played on held-out tasks in their order, read off, written down; and one of a finished policy alone.

    python run_distrl.py --eval runs/NAME --eval-tasks FILE --eval-episodes 128     # or --tasks FILE --episodes 128
    python run_distrl.py --eval runs/NAME/checkpoints/00000120.pt                   # as it was then
    python run_distrl.py --eval policy.safetensors                                  # or a folder: what --policy takes

Each task is played with the likeliest actions and with sampled ones. A run's own flags (phones, judge, horizon, policy)
hold, but for those given. The first N lines of the file are taken in order, from the start again where it is shorter;
how many of them the run was trained on is printed, and refused without --allow-overlap. It writes a folder like a
run's: `results.json`, the journal with every screen, `report.html`.

`run` is an `Experiment` of run_distrl.py everywhere here.

Departs from the authors' code: there, tasks are drawn at random, the test list may lie within the training list, and
the evaluation is another program than the training.
"""

from __future__ import annotations

import time
from pathlib import Path

from recorded import feed
from run_folder import UsageError, load_checkpoint, write_args
from tasks import Task, overlap, two_sets

LATENCY = 0.2  # of simulated phones in evaluations, at most: less waiting; slow loads shrink with it, faults stay


def repeats(run, split: str) -> int:
    """How often each task of this evaluation is played in each way: the noise is asked for after training only."""
    return run.args.tasks.eval_repeats if split == "final" else 1


def play(run, split: str, modes: tuple[bool, ...] = (True, False), tasks: list[Task] | None = None) -> None:
    """Play the held-out tasks, or these, with the newest weights and wait for all of them; learning rests."""
    run.schedule.rest()
    run.evaluations[split] = []
    tasks = run.eval_tasks if tasks is None else tasks
    wanted = run.schedule.evaluate(tasks, split, modes * repeats(run, split), run.args.run.seed)
    shown = time.monotonic()
    while len(run.evaluations[split]) < wanted and not run.judge_pauses():
        if not run.receive(timeout=0.2 if not run.args.run.serial else 0.0) and run.args.run.serial:
            run.pool.pump()
        if time.monotonic() - shown > 20:
            shown = time.monotonic()
            run.warn()
            print(f"  {split}: {len(run.evaluations[split])}/{wanted} episodes", flush=True)
    if any(row[2] is None for row in run.evaluations[split]):  # since a moment ago the judge may take no more calls
        run.asked_judge = 0.0
        if run.judge_pauses() and run.paused:
            run.evaluations[split].clear()  # to be played again, with verdicts
    if tasks is run.eval_tasks and complete(run, split):
        track(run, split)


def complete(run, split: str) -> bool:
    """Is this evaluation over?"""
    return len(run.evaluations.get(split, ())) == 2 * len(run.eval_tasks) * repeats(run, split)


def on_the_way(run) -> dict[str, float]:
    """The metrics of a small evaluation that has ended in the midst of training; each is told once."""
    from results import rate

    ended = [name for name, rows in run.evaluations.items()
             if name.startswith("after") and len(rows) >= min(64, len(run.eval_tasks))]  # fmt: skip
    if not ended:
        return {}
    for name in ended:
        found = rate(run.evaluations[name])
        shown = "-" if found["success_rate"] is None else f"{found['success_rate']:.2f}"
        print(f"  held-out tasks, greedy, {name} trajectories: {shown} (n {found['n']})")
        track(run, name, rates=False)  # they are in metrics.csv, and from there in the tracker
        del run.evaluations[name]
        told = {"eval/success_rate": found["success_rate"], "eval/n": found["n"],
                "eval/trajectories": int(name.split()[-1])}  # fmt: skip
        if name != ended[-1]:  # the last one is in the row that is about to be written
            run.record(told)
    return told


def phases(run, phones) -> None:
    """Evaluate the warm start, learn from what was recorded, train, evaluate again; with --eval, only the last."""
    number, latency = len(run.eval_tasks), run.args.phones.latency

    def quickly(split: str, *how) -> None:
        phones.set_latency(min(latency, LATENCY))
        play(run, split, *how)
        if not run.stopping:  # else they may have had the same signal
            phones.set_latency(latency)

    def last() -> None:
        quickly("final")
        tasks = two_sets(run.train_tasks, run.args.tasks.eval_train)
        if tasks and not run.stopping:
            quickly("final_train", (True,), tasks)

    def kept() -> None:
        if not run.stopping:  # else run_in saves, once, when the phases are over
            run.save()

    if run.args.run.eval:
        print(f"Evaluating {run.args.run.eval} on {number} tasks, greedy and sampled ...", flush=True)
        return last()
    if not complete(run, "warmup"):
        print(f"Evaluating the warm start on {number} held-out tasks, greedy and sampled ...", flush=True)
        quickly("warmup")
        kept()
    if run.recording and not run.stopping:
        feed(run)
        kept()
    if not run.stopping:
        print("Training ...", flush=True)
        run.train()
        kept()
    if not run.stopping:
        run.publish()
        print("Evaluating the trained policy ...", flush=True)
        last()


def results(run) -> dict:
    """What results.json holds."""
    from card import evaluation_card, task_hash, versions
    from journal import Journal
    from results import breakdown, summarise

    args, tasks, counts = run.args, run.args.tasks, run.counts()
    first: dict = {}
    same = [first.setdefault(task.key, number) for number, task in enumerate(run.eval_tasks)]  # a short list recurs
    evaluated = [[(*row[:3], same[row[3]] if row[3] >= 0 else -1) for row in run.evaluations.get(phase, [])]
                 for phase in ("warmup", "final")]  # fmt: skip
    sets = run.train_tasks, run.eval_tasks
    played = run.evaluations.get("final_train", [])
    if not played:
        with Journal(run.journal_path, readonly=True) as journal:
            own = list(journal.rows("train"))[run.offline :]  # those of other runs came first
            rows = [row for row in own if row.success is not None]
        played = [(row.family, False, row.success, -1) for row in rows]
    found = summarise(*evaluated) | breakdown(*evaluated, played, *sets) | {
        "trajectories": run.trajectories, "updates": run.learner.updates,
        "wall_seconds": round(run.wall_seconds, 1), "train_seconds": round(run.train_seconds, 1),
        "task_set": {
            "train": str(tasks.tasks or ("generated" if run.train_tasks else "not known")),
            "eval": str(tasks.eval_tasks or "generated"),
            "eval_sha256": task_hash(run.eval_tasks), "overlap": overlap(*sets) if run.train_tasks else None,
            "eval_different": len({task.key for task in run.eval_tasks}),
        },
        "judge": run.judge.name, "judge_votes": run.judge.votes, "judge_unknown": run.unknown,
        "judge_calls": run.ledger.summary() if run.ledger else None, "trivial_success": run.trivial,
        "seed": args.run.seed, "phones": run.phones, "algo": args.algorithm.algo, "stale": run.stale,
        "worker_restarts": counts["restarts"], "phone_restarts": counts["phone_restarts"],
        "server_restarts": counts["server_restarts"], "unsupported_text": run.unsupported,
        "date": time.strftime("%Y-%m-%d"), "versions": versions(),
        "card": evaluation_card(args, run.judge, *sets, evaluated[1], run.policy, run.start),
    }  # fmt: skip
    if run.recording:
        found["recorded"] = run.recording.summary()
    if args.run.eval:
        found["evaluated"] = str(args.run.eval)
    return found


def track(run, split: str, rates: bool = True) -> None:
    """To the tracker: the success rate (greedy), and a success and a failure as GIFs, also in the folder `videos`."""
    if not run.tracker:
        return
    import wandb

    from report_trajectories import gif
    from results import rate
    from run_data import read_run

    greedy = rate([row for row in run.evaluations[split] if row[1]])
    told: dict = {"eval/success_rate": greedy["success_rate"], "eval/n": greedy["n"]} if rates else {}
    told = {name: value for name, value in told.items() if value is not None}
    found = read_run(run.folder)
    for outcome, success in (("success", True), ("failure", False)):
        entry = next((e for e in reversed(found.entries) if e.split == split and e.success is success), None)
        if entry:
            path = run.folder / "videos" / f"{split.replace(' ', '-')}-{outcome}.gif"
            path.parent.mkdir(exist_ok=True)
            try:
                gif(found, entry.id, path)
            except ValueError:  # begun by a session that did not track, so without screens
                continue
            told[f"videos/{outcome}"] = wandb.Video(str(path), caption=f"{split}: {entry.instruction}", format="gif")
    run.tracker.log(told, step=run.trajectories)


# ---------------------------------------------------------------------- --eval


def folder_of(path: Path | None) -> Path | None:
    """The run that --eval names: its folder, its policy.safetensors, one of its checkpoints. None: another policy."""
    for folder in (path, *path.absolute().parents[:2]) if path else ():
        if (folder / "config.json").is_file() and (folder / "journal.sqlite").is_file():
            return folder
    return None


def take_policy(args, folder: Path) -> None:
    """Into `folder`, and into the flags: the policy that is to be evaluated. UsageError: it cannot be read."""
    import torch

    from loaders import load_policy

    path, run = args.run.eval, folder_of(args.run.eval)
    if not run:
        return  # --policy names it
    if path == run and (run / "policy.safetensors").is_file():
        path = run / "policy.safetensors"
    if path.suffix != ".safetensors":
        policy, _ = load_policy(args)
        try:
            state = load_checkpoint(run) if path == run else torch.load(path, "cpu", weights_only=True)
            policy.load_state_dict(state["learner"]["policy"])
        except Exception as error:  # torch's reader raises of every kind
            why = "it has neither policy.safetensors nor a checkpoint" if path == run else str(error).splitlines()[0]
            raise UsageError(f"--eval {path}: no checkpoint of a run ({why})") from error
        path = folder / "policy.safetensors"
        try:
            policy.save(path)
        except OSError as error:
            raise UsageError(f"--eval {args.run.eval}: {error}: make room, or name another --runs-dir") from error
    args.policy.policy, args.policy.lora, args.policy.init_fusion = path.absolute(), 0, False
    write_args(folder, args)
