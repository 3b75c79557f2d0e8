"""A run without phones: what journals hold goes to the learner again, in an order that can be repeated.

    python run_distrl.py --offline runs/A runs/B/journal.sqlite --total-trajectories 0    # these journals alone
    python run_distrl.py --offline runs/A                        # first them, then phones: the papers' off2on
    python run_distrl.py --replay runs/A                         # that run's learning again, bit for bit
    python run_distrl.py --replay runs/A --learning-rate 1e-4    # what if? All other flags are that run's

    experiment.recording = read(args, policy, folder)     # None: nothing is asked for. UsageError: what does not fit
    feed(experiment)                                      # phones go on from there; learn_alone: it is the whole run

`--offline` takes the training trajectories with a verdict of all journals, mixed in an order drawn by --seed, each once
and however old, and makes --updates-per-trajectory updates for it. They are copied into the run's own journal
(`info["recorded"]` says where from), so that report.py, and --resume once all are in, need nothing else. The step
size falls over both parts, recorded and played, as over one. Stopped or killed on the way and resumed, the recorded
part ends with the same weights: its order is kept in the run's journal, whatever has been added to the others since.

`--replay` copies the run's whole journal, so that ids stay, and repeats its learning: the newest checkpoint knows for
each update what had come in before it, the version of the weights and the share of the budget (`Experiment.pace`). So a
replay ends with the weights of the run itself. Without a checkpoint, or with other --updates-per-trajectory,
--learning-starts or --critic-warmup, updates follow as soon as they are due, as with --serial: repeatable, but not what
the run did. A trajectory that --rejudge has settled comes in its old place. No clock decides anything.

Departs from the papers: their offline data lie in memory and are drawn from at random; here they pass through the
replay in one mixed stream, so that there may be more than memory holds. Evaluation episodes are never learnt from.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

from journal import Journal, JournalError
from replay import Trajectory
from run_folder import RunStopped, UsageError, go_on, load_checkpoint
from screen_features import FEATURE_DIM
from stop_signals import on_stop_signals

PACE_FLAGS = ("updates_per_trajectory", "learning_starts", "critic_warmup")  # a recorded pace is for these values only


class NoPool:
    """In a pool's place when there are no phones: no workers, nobody to publish to."""

    alive = restarts = phone_restarts = server_restarts = env_steps = version = 0
    error, last_error, pids, weights = None, "", (), SimpleNamespace(publish=lambda arrays, version: None)


@dataclasses.dataclass
class Recording:
    """What there is to learn from, in its order: (journal, id)."""

    order: list[tuple[Path, int]]
    sources: list[str]
    unknown: int  # trajectories without a verdict
    replay: bool
    alone: bool  # no phones at all
    budget: int = 0  # trajectories after which the step size is 0, recorded and to be played
    pace: list | None = None  # for each update: last id before it, version, progress
    dropped: frozenset | None = None  # ids that were too old when they came; None: not known, or another pace

    def summary(self) -> dict:
        """For results.json."""
        facts = {"flag": "--replay" if self.replay else "--offline", "from": self.sources,
                 "trajectories": len(self.order), "without_verdict": self.unknown}  # fmt: skip
        if self.replay:
            facts["pace"] = "as recorded" if self.pace else "updates as soon as they are due"
        if self.alone:
            facts["evaluation"] = "none: no phones were used"
        return facts

    def __str__(self) -> str:
        facts = self.summary()
        left_out = f", {self.unknown} without a verdict left out" if self.unknown else ""
        pace = f"; pace: {facts['pace']}" if self.replay else ""
        return f"{facts['flag']}: {len(self.order)} trajectories of {' '.join(self.sources)}{left_out}{pace}"


def alone(args) -> bool:
    """Does this run use no phones at all?"""
    return bool(args.recorded.replay or (args.recorded.offline and not args.tasks.total_trajectories))


def journal_paths(recorded) -> list[Path]:
    """The journals that the flags name. UsageError: one that is none, or named twice."""
    if recorded.offline and recorded.replay:
        raise UsageError("--offline and --replay: choose one")
    if recorded.replay and not recorded.replay.is_dir():
        raise UsageError(f"--replay {recorded.replay}: no such folder: give a run's, its config.json is needed, too")
    flag, paths = "--replay" if recorded.replay else "--offline", []
    for given in [recorded.replay] if recorded.replay else recorded.offline:
        path = (given / "journal.sqlite" if given.is_dir() else given).resolve()
        if path in paths:
            raise UsageError(f"{flag} {given}: named twice")
        try:
            Journal(path, readonly=True).close()
        except JournalError as error:
            raise UsageError(f"{flag} {given}: {error}") from error
        paths.append(path)
    return paths


def read(args, policy, folder: Path) -> Recording | None:
    """Looks at every trajectory that is asked for; for --replay, copies the journal into the run's folder.

    UsageError: a journal that cannot be read, with nothing to learn from, or that this policy cannot learn from.
    """
    recorded = args.recorded
    if not (recorded.offline or recorded.replay):
        return None
    given = [str(path) for path in recorded.offline or [recorded.replay]]
    recording = Recording([], given, 0, replay=recorded.replay is not None, alone=alone(args))
    if not recording.replay and args.run.resume and _recall(recording, args, folder / "journal.sqlite"):
        return recording
    for name, path in zip(given, journal_paths(recorded), strict=True):
        where = f"{'--replay' if recording.replay else '--offline'} {name}"
        try:
            rows = list(_look(path, args.algorithm.replay_capacity, policy))
        except (JournalError, ValueError) as error:
            raise UsageError(f"{where}: {error}") from error
        judged = [id for id, success in rows if success is not None]
        if not judged:
            raise UsageError(f"{where}: no training trajectory with a verdict: there is nothing to learn from")
        recording.unknown += len(rows) - len(judged)
        recording.order += [(path, id) for id in ([id for id, _ in rows] if recording.replay else judged)]
    if recording.replay:
        _prepare_replay(recording, args, path, folder / "journal.sqlite")
    else:
        random.Random(args.run.seed).shuffle(recording.order)
        recording.budget = len(recording.order) + args.tasks.total_trajectories
        _keep(recording, folder / "journal.sqlite")
    return recording


def _keep(recording: Recording, own: Path) -> None:
    """Notes what --offline takes, and in which order, in the run's own journal."""
    paths = list(dict.fromkeys(path for path, _ in recording.order))
    order = [(paths.index(path), id) for path, id in recording.order]
    with Journal(own) as journal:
        journal.meta["offline"] = {"journals": [*map(str, paths)], "order": order, "unknown": recording.unknown}


def _recall(recording: Recording, args, own: Path) -> bool:
    """What `_keep` noted, for a resumed run. UsageError: a journal still needed is not there."""
    with Journal(own) as journal:
        kept, copied = journal.meta.get("offline"), journal.count("train")
    if kept:
        if copied < len(kept["order"]):
            journal_paths(args.recorded)
        recording.order = [(Path(kept["journals"][index]), id) for index, id in kept["order"]]
        recording.unknown = kept["unknown"]
        recording.budget = len(recording.order) + args.tasks.total_trajectories
    return bool(kept)


def _look(path: Path, capacity: int, policy) -> Iterator[tuple[int, bool | None]]:
    """(id, success) of each training trajectory. ValueError: one that this policy cannot learn from."""
    if _screens(path) not in (None, policy.screens):
        raise ValueError(f"recorded with {_screens(path)} features, this policy sees {policy.screens} ones: "
                         "see --screen-features")  # fmt: skip
    with Journal(path, readonly=True) as journal:
        for row in journal.rows("train"):
            if row.success is not None:
                try:
                    why = unfit(_fetch(journal, row.id), capacity, policy)
                except ValueError as error:
                    why = str(error)
                if why:
                    raise ValueError(f"trajectory {row.id}: {why}")
            yield row.id, row.success


def _screens(journal: Path) -> str | None:
    """What a journal's screen features are, as the config.json beside it says; None: it has none."""
    try:
        seen = json.loads((journal.parent / "config.json").read_text())["policy"]["screen_features"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return "thumbnail" if seen == "thumbnail" else "blip2"


def unfit(trajectory: Trajectory, capacity: int, policy) -> str:
    """Why the policy cannot learn from a trajectory; "" when it can."""
    features, words = trajectory.features.shape[1], policy.config["vocab_size"]
    if features != FEATURE_DIM:
        return f"its screen features are {features} numbers, ours {FEATURE_DIM}: it is of another vision network"
    if len(trajectory) > capacity:
        return f"its {len(trajectory)} steps do not fit --replay-capacity {capacity}: raise it"
    for ids, action in zip(trajectory.token_ids, trajectory.actions, strict=True):
        if not 0 <= ids.min() <= ids.max() < words or policy.codec.decode(ids) != action:
            return (f"its tokens (up to {ids.max()}) are not of this policy's tokenizer ({words} words): "
                    "give the --policy that it was recorded with")  # fmt: skip
    return ""


def _fetch(journal: Journal, id: int) -> Trajectory:
    """A trajectory with the verdict that the journal has for it now."""
    entry = journal.get(id)
    trajectory = dataclasses.replace(Trajectory.from_bytes(entry.data), success=entry.success)
    trajectory.info.setdefault("worker", entry.worker)
    trajectory.info.setdefault("reason", entry.reason)
    return trajectory


def _prepare_replay(recording: Recording, args, source: Path, own: Path) -> None:
    """The run's own copy of the journal; the pace, where the newest checkpoint knows it and the flags allow it."""
    run, algorithm = args.recorded.replay, args.algorithm
    try:
        if not own.exists():  # else this is a resumed one
            partial = own.with_name(own.name + ".partial")
            partial.unlink(missing_ok=True)
            with Journal(source, readonly=True) as journal:
                journal.copy(partial)
            with Journal(partial) as copy:
                copy.meta.pop("settled", None)  # those have their verdicts in it
                copy.meta.pop("start", None)
                copy.forget_learnt()  # of that run's updates
            os.replace(partial, own)
        with Journal(own, readonly=True) as copy:  # since then the run may have gone on
            recording.order = [(own, row.id) for row in copy.rows("train")]
        config = json.loads((run / "config.json").read_text())
        state = load_checkpoint(run)
    except (OSError, ValueError, JournalError, UsageError) as error:
        raise UsageError(f"--replay {run}: {error}") from error
    total, recorded = args.tasks.total_trajectories, config.get("recorded", {}).get("offline")
    if total != config["tasks"]["total_trajectories"]:  # asked to stop earlier
        recording.order = recording.order[:total]
    recording.budget = len(recording.order) if recorded else min(total, len(recording.order))
    if all(getattr(algorithm, name) == config["algorithm"][name] for name in PACE_FLAGS):
        recording.pace = _pace(state)
        same = args.policy.max_staleness == config["policy"]["max_staleness"]
        if recording.pace and same and "dropped" in state["counters"]:
            recording.dropped = frozenset(state["counters"]["dropped"])


def pace_of(state: dict) -> list[tuple[int, int, float]]:
    """Of each update of a checkpoint: last id before it, version, progress. Empty: a version before these kept none."""
    pace = state.get("pace", state["counters"].get("pace", []))  # the latter: as a list, by older versions
    rows = pace if isinstance(pace, list) else pace.tolist()
    return [(int(id), int(version), float(progress)) for id, version, progress in rows]


def _pace(state: dict | None) -> list | None:
    """The pace, where it is whole."""
    pace, made = pace_of(state) if state else None, state and state["learner"]["counters"]
    return pace if pace and len(pace) == made["critic_steps"] + made["updates"] else None


# ---------------------------------------------------------------------- to the learner


def feed(run) -> None:
    """Gives an `Experiment` all that was recorded, with the updates in between; goes on where a resumed one stood."""
    recording = run.recording
    if not recording.replay and run.trajectories > run.offline:
        return  # a resumed run whose phones were already at work
    print(f"Learning from what was recorded: {recording}", flush=True)
    began = shown = saved = time.monotonic()
    before, first = run.train_seconds, run.trajectories
    try:
        with ExitStack() as stack:
            journals = {}

            def fetch(item: tuple[Path, int]) -> Trajectory:
                if item[0] not in journals:  # a resumed run may have all that is in it
                    journals[item[0]] = stack.enter_context(Journal(item[0], readonly=True))
                return _fetch(journals[item[0]], item[1])

            for _ in (_at_recorded_pace if recording.pace else _as_due)(run, recording, fetch):
                now = time.monotonic()
                run.train_seconds = run.offline_seconds = before + now - began
                if now - shown > 15:
                    _tell(run, run.trajectories - first, now - began)
                    shown = now
                if now - saved > 60:
                    run.save()
                    saved = now
                if run.stopping:
                    break
    except JournalError as error:
        raise RunStopped(str(error)) from error
    _tell(run, run.trajectories - first, time.monotonic() - began)
    run.recent.clear()  # what phones play from now on is told apart


def learn_alone(run) -> int:
    """A run of an `Experiment` that is nothing but recorded trajectories, and its results. Returns the exit code."""
    from results import start_tracking, table

    run.pool, run.phones = NoPool(), "none"
    on_stop_signals(lambda: setattr(run, "stopping", True))
    print(f"DistRL: no phones: no evaluation\n  folder {run.folder}", flush=True)
    if run.args.run.track:
        run.tracker = start_tracking(run.args, run.folder)
    try:
        run.publish()  # to nobody: the versions count as in the run itself
        feed(run)
        saved = run.save()
    finally:
        if run.journal:
            run.journal.close()
        if run.tracker:
            run.tracker.finish()
    if run.stopping:
        print(f"Saved {saved}\n{go_on(run.args, run.folder)}")
        return 130
    print(table(run.finish(), run.folder))
    return 0


def _as_due(run, recording: Recording, fetch: Callable) -> Iterator[None]:
    """A trajectory, then the updates that are due, and so on: the loop of a --serial run. Yields after each."""
    todo = iter(recording.order[run.trajectories if recording.replay else run.offline :])
    while True:
        run.learner.progress = (run.trajectories if recording.replay else run.offline) / max(recording.budget, 1)
        if run.learner.progress < 1 and run.learner.ready:
            run.learn()
        elif item := next(todo, None):
            _take(run, recording, item, fetch)
        else:
            return
        yield


def _at_recorded_pace(run, recording: Recording, fetch: Callable) -> Iterator[None]:
    """Each update after what had come in before it when it was made. Yields after each, and after each trajectory."""
    todo = iter(recording.order[run.trajectories :])
    for last_id, version, progress in recording.pace[len(run.pace) :]:
        run.version = version
        while run.last_id < last_id:
            if not (item := next(todo, None)):
                return
            _take(run, recording, item, fetch)
            yield
        run.learner.progress = progress
        run.learn()
        yield
    for item in todo:  # came in after the last update
        _take(run, recording, item, fetch)
        yield


def _take(run, recording: Recording, item: tuple[Path, int], fetch: Callable) -> None:
    if recording.replay:
        run.take(fetch(item), item[1])
        return
    origin = f"{item[0]} {item[1]}"
    if run.played and run.played[0][1].info.get("recorded") == origin:  # journaled before the run was killed
        id, trajectory = run.played.popleft()
    else:
        trajectory = fetch(item)
        trajectory.info["recorded"] = origin
        id = run.store(trajectory, trajectory.to_bytes(), "train")
    run.take(trajectory, id)


def _tell(run, number: int, seconds: float) -> None:
    """A progress line and a row of metrics.csv: what can be known without phones."""
    if not run.recent:
        return
    rows = list(run.recent)
    judged = [row["success"] for row in rows if row["success"] is not None]
    metrics = {
        "charts/success_rate": sum(judged) / len(judged) if judged else None,
        "charts/episodic_return": sum(row["return"] for row in rows) / len(rows),
        "charts/episodic_length": sum(row["length"] for row in rows) / len(rows),
        "charts/trajectories_per_minute": 60 * number / max(seconds, 1e-9),
        "stats/invalid_actions": sum(row["invalid"] for row in rows) / len(rows),
        "stats/judge_unknown": run.unknown, "stats/trivial_success": run.trivial, "stats/stale_dropped": run.stale,
        "stats/nan_skips": run.learner.skipped, "stats/replay_size": len(run.learner.replay),
    }  # fmt: skip
    rate = "-" if metrics["charts/success_rate"] is None else f"{metrics['charts/success_rate']:.2f}"
    print(
        f"  {run.trajectories:5d} recorded trajectories | success {rate} "
        f"| {metrics['charts/trajectories_per_minute']:4.0f}/min | {run.learner.updates:4d} updates",
        flush=True,
    )
    run.record(metrics | run.update_metrics)
