"""Which actors a run has: one phone in this process (--serial: SerialPool), this machine's workers, or a Ray cluster's.

    with phones_of(args, families) as phones:            # phone_source.Source; UsageError: they cannot be had
        pool = make_pool(experiment, phones, policy_path, see)
        pool.start(); pool.weights.publish(...); pool.stop()

All pools have the same methods and counters (actor_pool.py), so that nothing else of a run depends on the choice.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from android_env import AndroidEnv
from args import Args
from evaluator import JudgeConfig, make_judge
from phone_source import Source, phone_source
from screen_features import thumbnail_features
from worker import Episode, PhoneAddress, Sample, rollout

SHM_HEADROOM = 16_000_000  # bytes of /dev/shm that others may want


def patience(args: Args) -> float:
    """Seconds that a worker may be silent: a large network takes minutes for a full batch."""
    return 900.0 if args.policy.policy else 120.0


def silence(args: Args) -> float:
    """Seconds without a step or a trajectory after which a run stops: real phones boot, judges are out, large policies
    think."""
    long = args.policy.policy or args.judge.judge != "rules" or not args.phones.simulated
    judge = args.judge
    calls = 3 * args.phones.num_workers * judge.judge_votes  # of a first screen and a step, when each waits for all
    return (1800.0 if long else 600.0) + (60 * calls / judge.judge_rpm if judge.judge_rpm else 0.0)


def phones_of(args: Args, families: set[str]):
    """A context manager of the run's phones."""
    if args.phones.ray_address:
        from ray_pool import ray_source

        return ray_source(args, families)
    return phone_source(args.phones, seed=args.run.seed, families=families, judge=args.judge.judge)


def make_pool(experiment, phones: Source, policy_path: Path, see):
    """The pool that feeds an `Experiment`, not yet started. `see` is for this process's own phone."""
    from actor_pool import ActorPool
    from shared_weights import SharedWeights

    args, policy = experiment.args, experiment.policy
    env_options = {"horizon": args.tasks.horizon}
    if args.run.serial:
        return SerialPool(
            phones.addresses[0], policy, next_episode=experiment.schedule.next, on_trajectory=experiment.on_trajectory,
            env_options=env_options, judge=experiment.judge, see=see, journaled=experiment.from_journal,
        )  # fmt: skip
    blip2 = None if args.policy.screen_features == "thumbnail" else args.policy.screen_features
    size = sum(array.size for array in policy.published())
    feed = dict(
        next_episode=experiment.schedule.next, on_trajectory=experiment.on_trajectory, on_lost=experiment.on_lost
    )
    how = dict(
        env_options=env_options, judge=experiment.judge, seed=args.run.seed, worker_timeout=patience(args),
        ahead=1 if args.run.sync else 2,
        server_options=dict(
            init_fusion=args.policy.init_fusion, precision=args.policy.precision, lora=args.policy.lora, blip2=blip2,
            device=args.policy.server_device or args.policy.device,
        ),
    )  # fmt: skip
    if args.phones.ray_address:
        from ray_pool import RayPool

        return RayPool(phones.cluster, policy_path, size, **feed, **how)
    warn_of_little_shared_memory(8 * size)
    return ActorPool(
        phones.addresses, policy_path, lambda context: SharedWeights(context, size), restart_phone=phones.restart,
        **feed, **how,
    )  # fmt: skip


def warn_of_little_shared_memory(needed: int) -> None:
    """One line where /dev/shm has no room for the weights: multiprocessing takes another file, in silence."""
    free = shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else needed + SHM_HEADROOM
    if free < needed + SHM_HEADROOM:
        print(f"  warning: shared weights take {needed:,} bytes of /dev/shm, which has {free:,} free: they may become "
              f"a file in {tempfile.gettempdir()}: enlarge it (Docker: --shm-size)", flush=True)  # fmt: skip


class SerialPool:
    """One phone, one environment and the learner's own policy in this process: `pump` plays one episode.

    Slower, but repeatable bit for bit for a seed (on phones without latency), and a debugger can step through it. An
    episode's sampling follows from its own seed, so that a resumed run needs no more than the episode to repeat it.
    journaled(episode)                     True: it was played, and taken from the journal
    """

    alive, restarts, phone_restarts, server_restarts, error, last_error = 1, 0, 0, 0, None, ""
    pids: tuple[int, ...] = ()

    def __init__(self, phone: PhoneAddress, policy, *, next_episode, on_trajectory, env_options=None,
                 judge: JudgeConfig = JudgeConfig(), see=thumbnail_features,  # noqa: B008
                 journaled: Callable[[Episode], bool] = lambda episode: False):  # fmt: skip
        import torch

        how = phone.env_options | (env_options or {})
        self._env = AndroidEnv(phone.connect(), None, make_judge(judge), **how)
        self._rollout = dict(see=see, validity=judge.validity)
        self._policy, self._next, self._on_trajectory = policy, next_episode, on_trajectory
        self._journaled, self._generator = journaled, torch.Generator()
        self.version, self.env_steps = 0, 0

    def start(self, timeout: float = 0.0, stopping: Callable[[], bool] = lambda: False) -> None:
        """Nothing to start."""

    def stop(self) -> None:
        """Nothing to stop."""

    def pump(self) -> None:
        """Play the next episode, when there is one."""
        episode = self._next()
        if episode is None or self._journaled(episode):
            return
        self._generator.manual_seed(episode.seed)
        trajectory = rollout(self._env, episode, self._act, **self._rollout)
        self.env_steps += len(trajectory)
        trajectory.info["worker"] = 0
        self._on_trajectory(episode, trajectory.to_bytes())

    def _act(self, prompt: str, feature: np.ndarray, greedy: bool) -> Sample:
        output = self._policy.act([prompt], feature[None], greedy=greedy, generator=self._generator)
        return Sample(output.texts[0], output.token_ids[0], output.logprobs[0], self.version)
