"""Which actors a run has: one phone in this process (--serial), this machine's workers, or a Ray cluster's.

    with phones_of(args, families) as phones:            # phone_source.Source; UsageError: they cannot be had
        pool = make_pool(experiment, phones, policy_path, see)
        pool.start(); pool.weights.publish(...); pool.stop()

All pools have the same methods and counters (actor_pool.py), so that nothing else of a run depends on the choice.
"""

from __future__ import annotations

from pathlib import Path

from args import Args
from phone_source import Source, phone_source


def patience(args: Args) -> float:
    """Seconds that a worker may be silent: a large network takes minutes for a full batch."""
    return 900.0 if args.policy.policy else 120.0


def phones_of(args: Args, families: set[str]):
    """A context manager of the run's phones."""
    if args.phones.ray_address:
        from ray_pool import ray_source

        return ray_source(args, families)
    return phone_source(args.phones, seed=args.run.seed, families=families)


def make_pool(experiment, phones: Source, policy_path: Path, see):
    """The pool that feeds an `Experiment`, not yet started. `see` is for this process's own phone."""
    from actor_pool import ActorPool, SerialPool
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
    return ActorPool(
        phones.addresses, policy_path, lambda context: SharedWeights(context, size), restart_phone=phones.restart,
        **feed, **how,
    )  # fmt: skip
