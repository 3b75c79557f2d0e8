"""What a trajectory, an update and a publication cost, from a finished run; and what N phones would then ask for.

    python benchmarks/bench_costs.py runs/NAME                                    # constants, and the run's own size
    python benchmarks/bench_costs.py runs/NAME --phones 10000 --seconds 245       # worked through for 10,000 phones

The constants are measured here, on the run's own journal and policy, one thread. The model (docs/scaling.md), with N
phones, tau seconds a trajectory, u updates a trajectory, k updates a publication, n phones a node:

    trajectories a second   l = N / tau                 bytes into the learner's machine   l B
    updates a second        l u                         publications a second              l u / k
    bytes out to each node  W l u / k                   lag, publications                  N u / 2k on average

Lag: while a trajectory is played, tau l u / k = N u / k publications go out; a step is half of that old on average when
its trajectory arrives, whatever tau is.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from args import Args  # noqa: E402
from journal import Journal  # noqa: E402
from learner import Learner  # noqa: E402
from policy import AutoUIPolicy  # noqa: E402
from replay import Trajectory  # noqa: E402
from run_folder import read_args  # noqa: E402
from shared_weights import SharedWeights  # noqa: E402


def milliseconds(function, items) -> float:
    """Mean time of `function(item)`, the first one apart."""
    items = list(items)
    function(items[0])
    began = time.perf_counter()
    for item in items[1:]:
        function(item)
    return 1e3 * (time.perf_counter() - began) / (len(items) - 1)


def constants(run: Path, number: int) -> dict[str, float]:
    """Measured costs, in the units that their names say."""
    args = read_args(run, Args)
    with Journal(run / "journal.sqlite", readonly=True) as journal:
        ids = [row.id for row in journal.rows("train") if row.success is not None][-number:]
        if len(ids) < 20:
            raise SystemExit(f"{run}: {len(ids)} trajectories with a verdict: 20 are needed")
        blobs = [data for _, data in journal.blobs(ids)]
    trajectories = [Trajectory.from_bytes(data) for data in blobs]
    found = {
        "bytes a trajectory": sum(map(len, blobs)) / len(blobs),
        "steps a trajectory": sum(map(len, trajectories)) / len(trajectories),
        "seconds a trajectory": sum(t.info["seconds"] for t in trajectories) / len(trajectories),
        "ms to read one": milliseconds(Trajectory.from_bytes, blobs),
    }
    with tempfile.TemporaryDirectory(dir=run) as folder, Journal(Path(folder) / "journal.sqlite") as journal:
        row = dict(instruction="", family="", success=True, reward=1.0, length=1, policy_version=1, worker=0,
                   split="train", reason="")  # fmt: skip
        found["ms to commit one"] = milliseconds(lambda data: journal.append(**row, data=data), blobs)
    policy = AutoUIPolicy.load(run / "policy.safetensors")
    arrays = policy.published()
    weights = SharedWeights(multiprocessing.get_context("forkserver"), sum(array.size for array in arrays))
    found["bytes a publication"] = 4.0 * sum(array.size for array in arrays)
    found["ms to publish"] = milliseconds(lambda _: weights.publish(arrays), range(20))
    args.algorithm.critic_warmup = 0
    learner = Learner(policy, args.algorithm, seed=args.run.seed)
    for id, trajectory in zip(ids, trajectories, strict=True):
        learner.add(trajectory, id=id)
    found["ms an update"] = milliseconds(lambda _: learner.update(), range(13))
    found["updates a trajectory"] = args.algorithm.updates_per_trajectory
    found["updates a publication"] = args.policy.publish_every
    return found


def model(costs: dict[str, float], phones: int, seconds: float, node: int) -> dict[str, float]:
    """What so many phones ask for; see the module's docstring."""
    rate = phones / seconds
    updates = rate * costs["updates a trajectory"]
    publications = updates / costs["updates a publication"]
    nodes = math.ceil(phones / node)
    return {
        "nodes": nodes, "trajectories a second": rate,
        "MB a second into the learner": rate * costs["bytes a trajectory"] / 1e6,
        "journal, GB a day": 86400 * rate * costs["bytes a trajectory"] / 1e9,
        "collector thread, share of a core": rate * (costs["ms to read one"] + costs["ms to commit one"]) / 1e3,
        "updates a second": updates, "learners of this speed": updates * costs["ms an update"] / 1e3,
        "publications a second": publications,
        "MB a second of weights, to a node": publications * costs["bytes a publication"] / 1e6,
        "MB a second of weights, to all": nodes * publications * costs["bytes a publication"] / 1e6,
        "lag, publications on average": phones * costs["updates a trajectory"] / costs["updates a publication"] / 2,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a finished run")
    parser.add_argument("--phones", type=int, default=None, help="default: the run's own")
    parser.add_argument("--seconds", type=float, default=None, help="a trajectory takes; default: as in the run")
    parser.add_argument("--node", type=int, default=32, help="phones a node")
    parser.add_argument("--trajectories", type=int, default=200, help="the run's last ones that are looked at")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    costs = constants(args.run, args.trajectories)
    phones = args.phones or read_args(args.run, Args).phones.num_workers
    seconds = args.seconds or costs["seconds a trajectory"]
    for title, values in (
        (f"measured on {args.run.name}", costs),
        (f"{phones} phones, {seconds:.0f} s a trajectory, {args.node} phones a node",
         model(costs, phones, seconds, args.node)),
    ):  # fmt: skip
        print(f"\n{title}")
        for name, value in values.items():
            print(f"  {name:38}{value:14,.{0 if value >= 1000 else 2}f}")


if __name__ == "__main__":
    main()
