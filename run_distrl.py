"""DistRL: asynchronous distributed reinforcement learning for on-device control agents (arXiv 2410.14803).

    python run_distrl.py --num-workers 32                 # simulated phones, nothing else needed: 12 minutes on 2 cores
    python run_distrl.py --devices all                    # phones and emulators that `adb devices` lists; --avd NAME
    python run_distrl.py --check                          # is all there that this needs? With the same flags
    python run_distrl.py --resume runs/NAME               # go on after Ctrl-C or a crash
    python run_distrl.py --serial --total-trajectories 300   # one process, repeatable bit for bit
    python run_distrl.py --sync                           # the baseline: all workers finish a round, then it learns
    python run_distrl.py --replay runs/NAME               # its learning again, without phones; see also --offline
    python run_distrl.py --eval runs/NAME                 # its policy alone, on --eval-tasks FILE; or a checkpoint's
    torchrun --standalone --nproc-per-node 2 run_distrl.py    # several learners (data_parallel.py); --device cuda
    python run_distrl.py --ray-address auto               # workers on all nodes of a Ray cluster (ray_pool.py)

N workers play episodes on phones and ask one policy server for actions (actor_pool.py). Finished trajectories are
written to the journal first (journal.py), then enter the learner's replay (learner.py, replay.py, aride.py). It
publishes new weights through shared memory (shared_weights.py). Workers wait neither for it nor for each other.

Departs from the authors' code: one process per role that lives for the whole run, instead of a restart with all models
reloaded every two trajectories; no shell, no ssh, no pickle files; a trajectory without a verdict is never trained on
as a failure; evaluation on instructions that training has not seen.
"""

from __future__ import annotations

import dataclasses
import json
import os
import queue
import shutil
import sys
import time
from collections import deque
from pathlib import Path

import evaluation
from adb_phone import AndroidEnvError
from args import Args, judge_config, parse, prepare, resumed
from journal import JournalError
from judge_check import start_judge
from judge_ledger import Ledger, LedgerError, Stopped, cost
from loaders import WARM_START, load_policy, load_screen_features, load_text_encoder
from recorded import Recording, alone, learn_alone, pace_of, read
from results import LAST
from run_data import last_clock, write_whole
from run_folder import FULL, RunStopped, UsageError, check_room, go_on, held, load_checkpoint, save_checkpoint
from stop_signals import on_stop_signals
from tasks import Task, overlap


class Experiment:
    """One run: its folder, journal, learner and actors, and the phases evaluation, training, evaluation."""

    COUNTERS = ("version", "trajectories", "unknown", "trivial", "stale", "unsupported", "settled", "train_seconds",
                "wall_seconds", "last_id", "offline", "offline_seconds", "dropped")  # fmt: skip

    def __init__(self, args: Args, folder: Path, train_tasks: list[Task], eval_tasks: list[Task], policy):
        import torch

        from card import at_start
        from devices import num_threads
        from journal import Journal
        from learner import Learner
        from pools import silence
        from schedule import Schedule

        self.args, self.folder = args, folder
        self.start = at_start(args.policy.policy or WARM_START, folder / "journal.sqlite", train_tasks, eval_tasks)
        self.train_tasks, self.eval_tasks = train_tasks, eval_tasks
        torch.set_num_threads(num_threads(policy))
        torch.set_flush_denormal(True)
        encoder = load_text_encoder(args)
        torch.manual_seed(args.run.seed)
        self.policy = policy
        self.learner = Learner(policy, args.algorithm, seed=args.run.seed, text_encoder=encoder)
        share = args.run.keep_screens
        self.schedule = Schedule(train_tasks, args.run.seed, (share, 1.0 if args.run.track or args.run.eval else share))
        self.inbox: queue.SimpleQueue = queue.SimpleQueue()
        self.played: deque = deque()  # (id, trajectory) of what was journaled after the checkpoint, in its turn
        # The journal is opened, written and closed where it is used: on the thread that receives trajectories.
        self.journal_path = folder / "journal.sqlite"
        self.journal: Journal | None = None
        self.pool = None
        self.version = 0  # publications of the weights
        self.trajectories = 0  # training trajectories received
        self.last_id = 0  # journal id of the last of them
        self.unknown = self.trivial = self.stale = 0
        self.dropped: list[int] = []  # ids of the stale ones
        self.unsupported = 0  # texts that no keyboard of their phone could type
        self.offline, self.offline_seconds = 0, 0.0  # trajectories recorded before; spent on them (recorded.py)
        self.pace: list = []  # of each update: last_id, version and the learner's progress, for --replay
        self.recording: Recording | None = None
        self.settled = 0  # how many of the trajectories that rejudge.py settled have been taken in
        self.judge = judge_config(args.judge, folder)
        self.ledger = Ledger(self.judge.ledger, max_calls=self.judge.max_calls) if args.judge.judge != "rules" else None
        self.paused: Stopped | None = None  # why the judge takes no more calls
        self.asked_judge = 0.0
        self.train_seconds = self.wall_seconds = 0.0  # of all sessions of this run
        self.clock = time.monotonic()
        self.idle_seconds = 0.0
        self.silence, self.waited = silence(args), 0.0  # s; so long without a step or trajectory until now
        self.steps = 0  # env_steps of the pool when the last one came
        self.counted: dict[str, int] = {}  # `counts` of the sessions before this one
        self.evaluations: dict[str, list] = {}  # split -> results.Row of each episode
        self.recent: deque = deque(maxlen=LAST)  # the last training trajectories, as `recent_metrics` wants them
        self.update_metrics: dict[str, float] = {}
        self.alarms: set[str] = set()  # kinds of those in the last row of metrics.csv
        self.told: set[str] = set()  # errors of the actors that were told
        self.stopping, self.tracker = False, None
        self.phones = "simulated"

    # ------------------------------------------------------------------ trajectories in

    def on_trajectory(self, episode, data: bytes) -> None:
        """Commit to the journal, then hand to the main thread. Runs on the pool's thread."""
        from replay import Trajectory

        trajectory = Trajectory.from_bytes(data)
        self.inbox.put((episode, self.store(trajectory, data, episode.split), trajectory))

    def store(self, trajectory, data: bytes, split: str) -> int:
        """Commit to the journal; returns the id there."""
        from journal import Journal

        if self.journal is None:
            self.journal = Journal(self.journal_path)
        return self.journal.append(
            instruction=trajectory.instruction, family=trajectory.family, success=trajectory.success,
            reward=float(trajectory.rewards.sum()), length=len(trajectory), split=split,
            policy_version=int(trajectory.policy_version[0]) if len(trajectory) else self.version,
            worker=trajectory.info["worker"], reason=trajectory.info["reason"], data=data,
        )  # fmt: skip

    def on_lost(self, episode) -> None:
        """Its worker died. An evaluation episode that cannot be played has no verdict. Runs on the pool's thread."""
        if not self.schedule.lost(episode):
            self.inbox.put((episode, None, None))

    def from_journal(self, episode) -> bool:
        """--serial, resumed: a training episode that was journaled after the checkpoint is not played twice."""
        if not self.played or episode.split != "train":
            return False
        self.inbox.put((episode, *self.played.popleft()))
        return True

    def receive(self, timeout: float = 0.0) -> bool:
        """Take one trajectory from the inbox. Returns False when none came within `timeout` seconds."""
        try:
            episode, id, trajectory = self.inbox.get(timeout=timeout) if timeout else self.inbox.get_nowait()
        except queue.Empty:
            if error := self.pool.error:  # what an operator can mend needs no traceback
                kind = RunStopped if isinstance(error, OSError | RuntimeError) else RuntimeError
                raise kind(f"the actors stopped: {error}") from error
            if timeout and self.steps != self.pool.env_steps:
                self.waited, self.steps = 0.0, self.pool.env_steps
            self.waited += timeout
            if self.waited > self.silence:
                raise RunStopped(f"no step and no trajectory of any worker for {self.silence:.0f} s; the last error: "
                                 f"{self.pool.last_error or 'none'}") from None  # fmt: skip
            return False
        self.waited = 0.0
        if untyped := trajectory.info.get("unsupported_text", 0) if trajectory else 0:
            if not (self.unsupported or self.args.phones.simulated):
                print(f"  warning: no ADBKeyBoard on {trajectory.info['serial']}: only ASCII is typed", flush=True)
            self.unsupported += untyped
        if episode.split != "train":
            row = (episode.task.family, episode.greedy, trajectory.success if trajectory else None, episode.number)
            self.evaluations.setdefault(episode.split, []).append(row)
            return True
        self.take(trajectory, id)
        return True

    def take(self, trajectory, id: int) -> None:
        """A training trajectory has come: to the learner, and to what is told."""
        self.admit(trajectory, id)
        self.schedule.back()
        self.recent.append(
            {
                "success": trajectory.success, "return": float(trajectory.rewards.sum()), "length": len(trajectory),
                "lag": self.version - float(trajectory.policy_version.mean()),
                "oldest": self.version - int(trajectory.policy_version.min()),
                "at": time.monotonic(), "invalid": float(trajectory.invalid.mean()),
                **{name: value for name, value in trajectory.info.items() if name != "unjudged"},
            }
        )  # fmt: skip

    def admit(self, trajectory, id: int) -> None:
        """Count a journaled training trajectory and give it to the learner, if it may learn from it."""
        self.trajectories += 1
        self.last_id = id
        trajectory.info.pop("screens", None)  # the journal has them
        recorded = "recorded" in trajectory.info  # of another run: its versions say nothing here
        self.offline += recorded
        bound = 0 if recorded else self.args.policy.max_staleness
        stale = bound and self.version - trajectory.policy_version.min() > bound
        if self.recording and self.recording.dropped is not None:
            stale = id in self.recording.dropped
        if trajectory.success is None:
            self.trivial += "trivial_success" in trajectory.info
            self.unknown += "trivial_success" not in trajectory.info
        elif stale:
            self.stale += 1
            self.dropped.append(id)
        else:
            self.learner.add(trajectory, id=id)

    def judge_pauses(self) -> bool:
        """Does the judge take no more calls: its budget, the day's quota, a key or model that is refused?"""
        if self.ledger and not self.paused and time.monotonic() - self.asked_judge > 0.5:
            self.asked_judge = time.monotonic()
            self.paused = self.ledger.stopped()
        if self.paused is not None:  # not `stopping or paused`: it would lose a signal that comes in between
            self.stopping = True
        return self.stopping

    # ------------------------------------------------------------------ phases

    def publish(self) -> None:
        """Give the newest weights to the actors."""
        if self.args.run.serial:  # it acts with the learner's own weights: resumed, it still has the same version
            self.version += self.pool.version == self.version
            self.pool.version = self.version
        else:
            self.version += 1
            self.pool.weights.publish(self.policy.published(), self.version)

    def train(self) -> None:
        """Collect and learn until the budget is used up."""
        tasks = self.args.tasks
        total = tasks.total_trajectories + self.offline
        started, shown, saved = time.monotonic(), time.monotonic(), time.monotonic()
        asked = self.trajectories - self.trajectories % max(tasks.eval_every, 1)
        before, steps = self.train_seconds, self.pool.env_steps
        if self.args.run.sync and not self.schedule.in_round:
            self.schedule.start_round(0)  # nothing to play before the first round: the collector may ask at any moment
        self.schedule.training = True
        while not self.judge_pauses() and self.trajectories < total:
            now = time.monotonic()
            self.train_seconds = before + now - started
            played = self.train_seconds - self.offline_seconds
            if tasks.train_minutes and played > 60 * tasks.train_minutes:
                break
            while self.receive():
                pass
            share = played / (60 * tasks.train_minutes) if tasks.train_minutes else 0.0
            share = max(share, (self.trajectories - self.offline) / tasks.total_trajectories)
            self.learner.progress = self.offline / total + (1 - self.offline / total) * share
            if self.learner.ready and not self.schedule.in_round:
                self.learn()
            elif self.args.run.sync and not self.schedule.in_round:
                self.publish()  # so that a whole round is played with the newest weights
                self.schedule.start_round(self.args.phones.num_workers)
            elif self.args.run.serial:
                self.pool.pump()
                while self.receive():  # the last one ends the loop
                    pass
            else:
                waited = time.monotonic()
                self.receive(timeout=0.05)
                self.idle_seconds += time.monotonic() - waited
            if tasks.eval_every and self.trajectories - asked >= tasks.eval_every:
                asked = self.trajectories
                self.schedule.evaluate(self.eval_tasks[:64], f"after {self.trajectories}", (True,), self.args.run.seed)
            if now - shown > 15:
                self.log((self.pool.env_steps - steps) / (now - shown), (now - started))
                shown, steps = now, self.pool.env_steps
            if now - saved > 60:
                self.save()
                saved = now
        self.schedule.rest()
        if self.recent:
            self.log((self.pool.env_steps - steps) / max(time.monotonic() - shown, 1.0), time.monotonic() - started)

    def learn(self) -> None:
        """One update, and its place in the order of things; the newest weights are published every so often."""
        self.pace.append((self.last_id, self.version, self.learner.progress))
        self.update_metrics |= self.learner.update()
        if self.learner.updates and self.learner.updates % self.args.policy.publish_every == 0:
            self.publish()

    # ------------------------------------------------------------------ what is told and kept

    def log(self, sps: float, seconds: float) -> None:
        """One progress line, and what is behind it."""
        from results import alarms, priority_ess, recent_metrics

        self.warn()
        if not self.recent:
            print(f"  {self.pool.alive} phones alive, waiting for the first trajectories", flush=True)
            return
        counts, tasks = self.counts(), self.args.tasks
        metrics = recent_metrics(list(self.recent), time.monotonic(), seconds) | self.update_metrics | {
            "charts/SPS": sps, "stats/learner_idle": self.idle_seconds / max(seconds, 1e-9),
            "stats/worker_restarts": counts["restarts"], "stats/phone_restarts": counts["phone_restarts"],
            "stats/judge_unknown": self.unknown, "stats/trivial_success": self.trivial,
            "stats/unsupported_text": self.unsupported, "stats/stale_dropped": self.stale,
            "stats/nan_skips": self.learner.skipped, "stats/replay_size": len(self.learner.replay),
            "stats/priority_ess": priority_ess(self.learner.replay.state_dict()["masses"]),
        }  # fmt: skip
        faults = ((counts["server_restarts"], "policy server", "replaced"), (counts["restarts"], "worker", "replaced"),
                  (counts["phone_restarts"], "phone", "restarted"))  # fmt: skip
        again = "".join(f", {number} {what}{'s' * (number > 1)} {done}" for number, what, done in faults if number)
        judged = ""
        if self.ledger:
            found = self.ledger.summary()
            metrics |= {"stats/judge_calls": found["calls"], "stats/judge_usd": found["usd"]}
            judged = f"| judge {cost(found)}, {self.unknown} unknown "
        metrics |= evaluation.on_the_way(self)
        found = alarms(metrics)
        for kind in [kind for kind in found if kind not in self.alarms]:
            print(f"  warning: {found[kind]}", flush=True)
        self.alarms = set(found)
        per_minute, rate = metrics["charts/trajectories_per_minute"], metrics["charts/success_rate"]
        left = max(0, tasks.total_trajectories + self.offline - self.trajectories) / max(per_minute, 1e-9) * 60
        if tasks.train_minutes:
            left = max(0.0, min(left, 60 * tasks.train_minutes + self.offline_seconds - self.train_seconds))
        print(
            f"  {self.trajectories:5d} trajectories | success {'-' if rate is None else f'{rate:.2f}'} "
            f"| {per_minute:4.0f}/min | {sps:4.1f} steps/s | lag {metrics['stats/policy_lag_mean']:4.1f} "
            f"| {self.learner.updates:4d} updates | phones {self.pool.alive}/{self.args.phones.num_workers} "
            f"(waiting {metrics['stats/phone_idle']:.0%}{again}) {judged}| left {int(left // 60)}:{int(left % 60):02d}",
            flush=True,
        )
        self.record(metrics)

    def counts(self) -> dict[str, int]:
        """The actors' counters over all sessions of this run; a kill loses those since the last checkpoint."""
        from worker import COUNTS

        return {name: self.counted.get(name, 0) + getattr(self.pool, name, 0) for name in COUNTS}

    def warn(self) -> None:
        """What last befell a worker or its phone, with its remedy; the same words once only."""
        said = " ".join(self.pool.last_error.split())
        if said and said not in self.told:
            self.told.add(said)
            print(f"  warning: {said}", flush=True)

    def record(self, metrics: dict) -> None:
        """A row of metrics.csv, a point for the tracker."""
        from results import append_metrics

        self.note_learnt()
        row = {"step": self.learner.updates, "wall_seconds": round(self.train_seconds, 1),
               "trajectories": self.trajectories, "env_steps": self.counts()["env_steps"]}  # fmt: skip
        append_metrics(self.folder / "metrics.csv", row | metrics)
        if self.tracker:
            self.tracker.log({k: value for k, value in metrics.items() if value is not None}, step=self.trajectories)

    def note_learnt(self) -> None:
        """Into the journal: what the last updates made of their trajectories, for report.html."""
        from journal import Journal

        learnt, self.learner.learnt = self.learner.learnt, {}
        rows = [
            (id, updates, json.dumps([values and [round(v, 4) for v in values], [round(a, 4) for a in advantages]]))
            for id, (updates, values, advantages) in learnt.items()
        ]
        with Journal(self.journal_path) as journal:
            journal.note_learnt(rows)

    def save(self) -> Path:
        """Write a checkpoint: all that `load` needs but for the trajectories, which the journal has."""
        import torch

        while self.args.run.serial and self.receive():  # played, so part of where it stands
            pass
        self.tick()
        warmup = self.evaluations.get("warmup", []) if evaluation.complete(self, "warmup") else []
        state = {
            "learner": self.learner.state_dict(), "schedule": self.schedule.state_dict(),
            "torch_rng": torch.get_rng_state(),
            "counters": {k: getattr(self, k) for k in self.COUNTERS} | {"counted": self.counts()},
            "pace": torch.tensor(self.pace, dtype=torch.float64),  # [updates, 3]: 24 bytes an update, all that grows
            "warmup": [list(row) for row in warmup],
        }  # fmt: skip
        return save_checkpoint(self.folder, self.trajectories, state)

    def tick(self) -> None:
        """Bring `wall_seconds` up to date."""
        now = time.monotonic()
        self.wall_seconds, self.clock = self.wall_seconds + now - self.clock, now

    def load(self) -> None:
        """Go on from the newest checkpoint; trajectories journaled after it enter the replay as well."""
        import torch

        from journal import Journal
        from replay import Trajectory

        journal = Journal(self.journal_path)

        def fetch(id: int) -> Trajectory:
            entry = journal.get(id)
            trajectory = dataclasses.replace(Trajectory.from_bytes(entry.data), success=entry.success)
            trajectory.info.pop("screens", None)
            return trajectory

        if state := load_checkpoint(self.folder):
            self.learner.load_state_dict(state["learner"], fetch)
            self.schedule.load_state_dict(state["schedule"])
            torch.set_rng_state(state["torch_rng"])
            vars(self).update(state["counters"])
            self.pace = pace_of(state)
            self.evaluations["warmup"] = [(*row, -1)[:4] for row in state["warmup"]]  # older runs: no number
        else:
            self.load_weights(max((row.policy_version for row in journal.rows()), default=0))
        lost = max(0.0, last_clock(self.folder) - self.train_seconds)  # a kill gives no time back
        self.train_seconds, self.wall_seconds = self.train_seconds + lost, self.wall_seconds + lost
        settled = journal.meta.get("settled", [])  # by rejudge.py, in its order
        for id in dict.fromkeys(settled[self.settled :]):
            entry = journal.get(id)
            known = entry.split == "train" and entry.success is not None
            if known and id <= self.last_id:  # a later one comes with the others, below
                self.unknown -= 1
                self.learner.add(fetch(id), id=id)  # of whatever age: it was asked for
        self.settled = len(settled)
        ids = [row.id for row in journal.rows(split="train", since=self.last_id) if not self.args.recorded.replay]
        feeding = ids and "recorded" in fetch(ids[-1]).info  # killed before its phones: `feed` takes these again
        for id, trajectory in ((id, fetch(id)) for id in ids):
            recorded = "recorded" in trajectory.info  # of another run: its versions and numbers say nothing here
            if feeding or self.args.run.serial and not recorded:
                self.played.append((id, trajectory))
                continue
            if not recorded:
                self.version = max(self.version, int(trajectory.policy_version.max()))  # none is given twice
                self.schedule.skip(trajectory.info.get("number", 0))
            self.admit(trajectory, id)
        journal.close()
        number = self.trajectories + len(self.played)
        print(f"Resumed {self.folder} at {number} trajectories, {self.learner.updates} updates.")

    def load_weights(self, version: int) -> None:
        """Go on without a checkpoint, from the weights that `finish` saved or else --policy's; the rest starts anew."""
        from lora import adapters
        from policy import AutoUIPolicy

        path, source = self.folder / "policy.safetensors", "--policy"
        if path.exists():
            if adapters(self.policy.network):
                raise ValueError(f"no checkpoint, and {path} has the adapters added in: start a new run with it")
            self.policy.load_weights(AutoUIPolicy.load(path).weights())
            source = path
        self.version = version
        print(f"warning: no checkpoint in {self.folder}: going on from the weights of {source}; optimisers, critics, "
              "priorities and random streams start anew, and the evaluation before training is done again")  # fmt: skip

    def finish(self) -> dict:
        """Write results.json, the curves and the report; return the results."""
        from report import write_report

        while self.receive():  # what came in while the actors were stopped
            pass
        self.tick()
        try:
            self.policy.save(self.folder / "policy.safetensors")
        except OSError as error:
            raise RunStopped(str(error)) from error
        results = evaluation.results(self)
        write_whole(self.folder / "results.json", json.dumps(results, indent=2).encode() + b"\n")
        write_report(self.folder)
        return results


def run(args: Args, team=None) -> int:
    """The whole run; `team`: the other processes that learn with this one. Returns the exit code."""
    if team:
        team.check(args)
    train_tasks, eval_tasks, folder = prepare(args)
    try:
        with held(folder):
            code = run_in(folder, args, train_tasks, eval_tasks, team)
        if team:
            team.close()
        return code
    except UsageError:  # refused before anything was started: leave no empty folder behind
        if not args.run.resume:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    except (RunStopped, FloatingPointError, LedgerError, JournalError, AndroidEnvError, BrokenPipeError) as error:
        raise RunStopped(f"{error}\n{go_on(args, folder)}") from error
    except OSError as error:  # a row of metrics.csv, the report, a line of a log
        if error.errno not in FULL:
            raise
        raise RunStopped(f"{error}: make room\n{go_on(args, folder)}") from error


def run_in(folder: Path, args: Args, train_tasks: list[Task], eval_tasks: list[Task], team=None) -> int:
    """The run in its folder, new or to be resumed. Returns the exit code."""
    from devices import own_device
    from pools import make_pool, patience, phones_of
    from results import start_tracking, table

    if args.run.eval:
        evaluation.take_policy(args, folder)
    policy, policy_path = load_policy(args)
    lossy = policy.codec.lossy({task.instruction for task in train_tasks}) if args.policy.policy else []
    if lossy:
        print(f"{len(lossy)} training instructions lose characters in this policy's vocabulary, as {lossy[0]!r}")
    see = None if alone(args) else load_screen_features(args)
    recording = read(args, policy, folder)
    experiment = Experiment(args, folder, train_tasks, eval_tasks, policy)
    check_room(folder, experiment.learner.checkpoint_bytes())
    experiment.recording = recording
    if args.run.resume:
        try:
            experiment.load()
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            unfit = f"the newest checkpoint does not fit ({error}): remove it to go on without it"
            why = unfit if isinstance(error, KeyError) else error
            raise UsageError(f"--resume {folder}: {why}") from error

    device = own_device(args.policy.device)
    if team:
        team.join(experiment.learner, device)
    if alone(args):
        experiment.learner.to(device)
        return learn_alone(experiment)
    judging = start_judge(args, folder)
    families = {task.family for task in (*train_tasks, *eval_tasks)}
    with phones_of(args, families) as phones:
        pairs = overlap(train_tasks, eval_tasks)
        known = f"{pairs['exact']} in training, {pairs['template']} by template"
        known = known if train_tasks else "what the policy was trained on is not known"
        number, kinds = len(set(train_tasks)), len({task.family for task in train_tasks})
        print(
            f"DistRL: {args.phones.num_workers} workers on {phones.what}, {number} training instructions of {kinds} "
            f"families; {len(eval_tasks)} held-out tasks, {len({task.key for task in eval_tasks})} of them different "
            f"({known}).\n"
            f"  {judging}; episodes of {args.tasks.horizon or '15, Web Shopping 20'} steps at most\n  folder {folder}"
        )
        experiment.phones = "simulated" if args.phones.simulated else phones.what
        pool = make_pool(experiment, phones, policy_path, see)
        del see  # the policy server has its own
        experiment.pool = pool
        on_stop_signals(lambda: setattr(experiment, "stopping", True))
        if args.run.track:
            experiment.tracker = start_tracking(args, folder)
        began, saved = time.monotonic(), None
        try:
            experiment.publish()
            try:
                pool.start(timeout=patience(args), stopping=lambda: experiment.stopping)
            except RuntimeError as error:
                raise RunStopped(str(error)) from error
            print(f"  {pool.alive} workers ready after {time.monotonic() - began:.1f} s", flush=True)
            experiment.learner.to(device)  # not earlier: no process is started by one that has used a GPU
            evaluation.phases(experiment, phones)
            if experiment.paused or experiment.stopping and not args.run.eval:
                saved = experiment.save()  # before what may take long: the end of the actors and of the tracker
        finally:
            pool.stop()
            if experiment.journal:
                experiment.journal.close()
            if experiment.tracker:
                experiment.tracker.finish()
        if paused := experiment.paused:
            saved = f"saved {saved}; {cost(experiment.ledger.summary())}"
            if paused.kind != "budget":
                raise RunStopped(f"the judge takes no more calls ({paused.kind}): {paused.reason}; {saved}")
            more = f"--max-judge-calls {2 * experiment.judge.max_calls}"
            print(f"Paused: {paused.reason}; {saved}\n{go_on(args, folder)} {more}")
            return 0
        if experiment.stopping and args.run.eval:
            print(f"Stopped: what was played is in {folder / 'journal.sqlite'}; an evaluation is not resumed")
            return 130
        if experiment.stopping:
            print(f"Saved {saved or experiment.save()}\n{go_on(args, folder)}")
            return 130
    print(table(experiment.finish(), folder))
    return 0


def main() -> int:
    """Read the command line and run."""
    try:
        args = parse(__doc__)
        if args.run.resume:
            args = resumed(args)
        if args.phones.check:
            from doctor import check

            return check(args)
        if "WORLD_SIZE" not in os.environ:
            return run(args)
        from data_parallel import Team, follow  # torchrun started this process

        team = Team.from_environment()
        return follow(args, team) if team and team.rank else run(args, team)
    except UsageError as error:
        print("error:", " ".join(map(str.strip, str(error).splitlines())), file=sys.stderr)  # torch writes several
        return 2
    except RunStopped as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # before there was anything to save
        return 130


if __name__ == "__main__":
    sys.exit(main())
