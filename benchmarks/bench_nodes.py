"""A run on a Ray cluster of two nodes on this machine, beside what the model of docs/scaling.md says of it.

    python benchmarks/bench_nodes.py                      # two nodes, 4 phones each, two minutes of training
    python benchmarks/bench_nodes.py --kill 60            # one node is killed a minute after training has begun

Both nodes and the learner share this machine's cores: what a second machine adds cannot be seen here. Needs Ray.
"""

from __future__ import annotations

import argparse
import csv
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from journal import Journal  # noqa: E402
from replay import Trajectory  # noqa: E402


def memory() -> dict[str, list[float]]:
    """MB (PSS) of each worker, policy server, Ray actor and raylet of this machine."""
    kinds = {"worker ": "worker", "policy serv": "policy server", "ray::NodeAct": "Ray actor", "raylet": "raylet",
             "ray::IDLE": "idle Ray process"}  # fmt: skip
    found: dict[str, list[float]] = {}
    for entry in Path("/proc").iterdir():
        try:
            name = (entry / "comm").read_text().strip() if entry.name.isdigit() else ""
            for start, kind in kinds.items():
                if name.startswith(start):
                    pss = (entry / "smaps_rollup").read_text().split("Pss:")[1].split()[0]
                    found.setdefault(kind, []).append(int(pss) * 1.024e-3)
        except OSError:
            continue
    return found


class Echo:
    """A Ray actor that does nothing, to see what a call and an object cost."""

    def call(self, x):
        return x[:6000] if isinstance(x, bytes) else len(x)


def costs(cluster, there: str) -> None:
    """Prints what a call to the other node, and an object of so many bytes sent there, cost. The nodes share a disk and
    a memory bus here, so that this is Ray's own share, without a network."""
    import numpy as np
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ray.init(address=cluster.address, logging_level=logging.ERROR)
    actor = ray.remote(Echo).options(scheduling_strategy=NodeAffinitySchedulingStrategy(there, soft=False)).remote()
    ray.get(actor.call.remote(b""))
    blob, cpu, began = bytes(6000), time.process_time(), time.perf_counter()
    for _ in range(500):
        ray.get(actor.call.remote(blob))
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    print(f"a call with 6,000 bytes there and back: {2 * wall:.2f} ms, {2 * cpu:.2f} ms of it this process's CPU")
    for size in (2_721_664, 50_000_000):
        times = []
        for _ in range(5):
            flat = np.random.default_rng(0).random(size // 8)
            began = time.perf_counter()
            ref = ray.put(flat)
            put = time.perf_counter() - began
            ray.get(actor.call.remote(ref))
            times.append((time.perf_counter() - began, put))
            del ref
        whole, put = min(times)
        print(f"an object of {size:,} bytes: {1e3 * put:.1f} ms to put, {1e3 * whole:.1f} until the other node has it")
    ray.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--phones", type=int, default=4, help="a node")
    parser.add_argument("--minutes", type=float, default=2.0, help="of training")
    parser.add_argument("--kill", type=float, default=0.0, help="kill a node so many seconds into training; 0: do not")
    args = parser.parse_args()
    from ray.cluster_utils import Cluster

    node = dict(num_cpus=1, object_store_memory=200_000_000)
    cluster = Cluster(initialize_head=True, head_node_args=node | {"include_dashboard": False})
    second = cluster.add_node(**node)
    costs(cluster, second.node_id)
    with tempfile.TemporaryDirectory() as runs:
        flags = f"--ray-address {cluster.address} --workers-per-node {args.phones} --train-minutes {args.minutes} "
        flags += f"--eval-episodes 4 --eval-every 0 --learning-starts 16 --critic-warmup 40 --runs-dir {runs}"
        command = [sys.executable, "-u", str(ROOT / "run_distrl.py"), *flags.split()]
        print("python run_distrl.py", flags, flush=True)
        run = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})
        for line in run.stdout:
            if "(raylet" not in line and "[state" not in line:
                print("   ", line, end="", flush=True)
            if line.startswith("Training"):
                print("    MB:", {k: [round(x) for x in v] for k, v in memory().items()}, flush=True)
                if args.kill:
                    threading.Timer(args.kill, cluster.remove_node, (second,), {"allow_graceful": False}).start()
                    print(f"    (a node is killed {args.kill:.0f} s from now)")
        code = run.wait()
        (folder,) = Path(runs).iterdir()
        results = json.loads((folder / "results.json").read_text())
        rows = list(csv.DictReader((folder / "metrics.csv").open()))
        with Journal(folder / "journal.sqlite", readonly=True) as journal:
            ids = [row.id for row in journal.rows("train")]
            blobs = [data for _, data in journal.blobs(ids)]
    trajectories = [Trajectory.from_bytes(data) for data in blobs]
    numbers = [t.info["number"] for t in trajectories]
    cluster.shutdown()
    # Between the first and the last progress line of training: all phones are at work.
    first, last = rows[0], rows[-1]
    count, seconds = 2 * args.phones, float(last["wall_seconds"]) - float(first["wall_seconds"])
    between = slice(int(first["trajectories"]), int(last["trajectories"]))
    trajectories, blobs = trajectories[between], blobs[between]
    tau = sum(t.info["seconds"] for t in trajectories) / len(trajectories)
    size, steps = sum(map(len, blobs)) / len(blobs), sum(map(len, trajectories)) / len(trajectories)
    made, publish = int(last["step"]) - int(first["step"]), 4
    ratio = made / len(blobs)
    lag = [float(row["stats/policy_lag_mean"]) for row in rows[-4:]]
    weights = 4 * sum(x.numel() for x in _policy().parameters())
    twice = len(numbers) - len(set(numbers))
    print(f"exit code {code}; {len(ids)} trajectories in the journal, {twice} of them twice; "
          f"{results['worker_restarts']} workers lost")  # fmt: skip
    print(f"tau {tau:.2f} s, u {ratio:.2f}, k {publish}, {steps:.1f} steps and {size:,.0f} bytes a trajectory, "
          f"{weights:,} bytes a publication")  # fmt: skip
    for name, model, measured in (
        ("trajectories a second", count / tau, len(blobs) / seconds),
        ("bytes a second into the learner", count / tau * size, sum(map(len, blobs)) / seconds),
        ("publications a second", count / tau * ratio / publish, made / publish / seconds),
        ("lag, publications", count * ratio / publish / 2, sum(lag) / len(lag)),
    ):
        print(f"  {name:34} model {model:10,.2f}   measured {measured:10,.2f}")


def _policy():
    from policy import AutoUIPolicy

    return AutoUIPolicy.load(ROOT / "warm_start.safetensors")


if __name__ == "__main__":
    main()
