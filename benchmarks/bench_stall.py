"""How much a learner slows down acting, and acting the learner: threads, priorities, and a wait for a fuller batch.

    python benchmarks/bench_stall.py                    # the shipped policy, 32 phones: about 5 minutes
    python benchmarks/bench_stall.py --seconds 3 --phones 8

`worker.policy_server` answers `--phones` client processes; each asks, takes its answer and thinks for as long as a
phone takes for a step (`--think` seconds on average, exponential, seeded). Beside it a `Learner` makes one update
after the other, as long as its data lasts in a run. Both are processes of their own, as in a run. Columns:

  answer ms    of a client: median and 99th percentile, queue and pipes in
  batch        mean number of requests answered together
  update ms    median of a learner's update

"alone" is one of the two without the other. Each row is measured for `--seconds`; rows take turns, twice, and the run
with the lower median counts.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import numpy as np
import torch
from bench_sampling import PROMPT, machine  # which also adds the product's folder to the path
from bench_server import CONTEXT, FEATURE, spawn

import worker
from args import AlgorithmArgs
from learner import Learner
from policy import AutoUIPolicy
from replay import Trajectory
from shared_weights import SharedWeights

STEPS = 6  # of a trajectory


def serve(path: Path, weights: SharedWeights, control, batch: int, threads: int, nice: int) -> None:
    """The policy server with that many threads, which has given way by `nice`."""
    os.nice(nice)
    set_threads = torch.set_num_threads
    torch.set_num_threads = lambda _: set_threads(threads)
    worker.policy_server(path, weights, control, batch, 0)


def phone(server, results, start, seconds: float, think: float, seed: int) -> None:
    """Asks as a worker does, and takes its time for the step; reports each answer's seconds and batch."""
    rng, found = np.random.default_rng(seed), []
    server.send((PROMPT, FEATURE, False))
    server.recv()
    results.send("warm")
    start.wait()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(rng.exponential(think))
        began = time.perf_counter()
        server.send((PROMPT, FEATURE, False))
        sample = server.recv()
        found.append((time.perf_counter() - began, sample.batch))
    results.send(found)


def learn(path: Path, results, start, seconds: float, threads: int, nice: int) -> None:
    """Updates, one after the other; reports the seconds of each."""
    os.nice(nice)
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    policy = AutoUIPolicy.load(path)
    learner = Learner(policy, AlgorithmArgs(learning_starts=1, critic_warmup=0, updates_per_trajectory=1e9))
    rng = np.random.default_rng(0)
    for id in range(100):
        features = rng.uniform(-1, 1, (STEPS + 1, FEATURE.size)).astype(np.float16)
        out = policy.act([PROMPT] * STEPS, features[:-1].astype(np.float32), max_new_tokens=15)
        learner.add(Trajectory(
            "a goal", "news", [PROMPT] * (STEPS + 1), features, out.texts, out.token_ids, out.logprobs,
            [0.0] * (STEPS - 1) + [float(id % 2)], [False] * STEPS, [1] * STEPS, terminated=True, truncated=False,
            success=bool(id % 2),
        ), id=id)  # fmt: skip
    learner.update()
    results.send("warm")
    start.wait()
    end, found = time.monotonic() + seconds, []
    while time.monotonic() < end:
        began = time.perf_counter()
        learner.update()
        found.append(time.perf_counter() - began)
    results.send(found)


def measure(path: Path, size: int, args, acting: bool, learning: bool, **how) -> tuple:
    """(answers' seconds, mean batch, updates' seconds); what does not run has none."""
    how = dict(threads=1, nice=0, server_threads=1, server_nice=0, batch=32) | how
    start, reports = CONTEXT.Event(), []
    control = server = learner = None
    if acting:
        weights = SharedWeights(CONTEXT, size)
        control, theirs = CONTEXT.Pipe()
        server = spawn(serve, path, weights, theirs, how["batch"], how["server_threads"], how["server_nice"])
        theirs.close()
        assert control.recv() == "ready"
        for seed in range(args.phones):
            (to_server, server_end), (ours, results) = CONTEXT.Pipe(), CONTEXT.Pipe()
            spawn(phone, to_server, results, start, args.seconds, args.think, seed)
            reports.append(ours)
            control.send(server_end)
            for end in (to_server, server_end, results):
                end.close()
    if learning:
        learner, results = CONTEXT.Pipe()
        spawn(learn, path, results, start, args.seconds, how["threads"], how["nice"])
        results.close()
    for connection in [*reports, *filter(None, [learner])]:
        assert connection.recv() == "warm"
    start.set()
    answers = [answer for connection in reports for answer in connection.recv()]
    updates = learner.recv() if learner else []
    if server:
        control.close()
        server.join(30)
    seconds, batches = zip(*answers, strict=True) if answers else ((), ())
    return np.array(seconds), float(np.mean(batches)) if batches else 0.0, np.array(updates)


WAYS = {
    "acting alone": dict(learning=False),
    "learning alone": dict(acting=False),
    "both": {},
    "server of 2 threads": dict(server_threads=2),
    "learner of 2 threads": dict(threads=2),
    "learner nice 5": dict(nice=5),
    "learner nice 10": dict(nice=10),
    "server nice 5": dict(server_nice=5),
    "batches of 8": dict(batch=8),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--phones", type=int, default=32)
    parser.add_argument("--think", type=float, default=0.85, help="seconds of a step on the phone")
    parser.add_argument("--seconds", type=float, default=10.0, help="of a row, measured twice")
    args = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["PYTHONPATH"] = os.pathsep.join(str(Path(__file__).resolve().parents[i]) for i in (0, 1))
    CONTEXT.set_forkserver_preload(["bench_server", "worker", "learner"])
    best: dict[str, tuple] = {}
    path = Path(__file__).resolve().parents[1] / "warm_start.safetensors"
    size = sum(p.numel() for p in AutoUIPolicy.load(path).parameters())
    for _ in range(2):
        for name, how in WAYS.items():
            found = measure(path, size, args, **(dict(acting=True, learning=True) | how))
            order = [float(np.median(x)) for x in (found[0], found[2]) if len(x)]
            if name not in best or order < best[name][0]:
                best[name] = (order, found)
    print(machine())
    print(f"{args.phones} phones, {args.think} s a step\n{'way':22}{'answer ms, p50':>15}{'p99':>8}{'batch':>7}"
          f"{'update ms':>11}")  # fmt: skip
    for name, (_, (answers, batch, updates)) in best.items():
        acting = [f"{1e3 * np.percentile(answers, q):.1f}" for q in (50, 99)] if len(answers) else ["-", "-"]
        update = f"{1e3 * np.median(updates):.0f}" if len(updates) else "-"
        print(f"{name:22}{acting[0]:>15}{acting[1]:>8}{batch or '-':>7.4}{update:>11}")


if __name__ == "__main__":
    main()
