"""Prioritised sampling: `replay.SumTree` against other libraries' buffers and trees.

    python benchmarks/bench_replay.py                                   # 2^17 and 2^20 entries, about a minute
    python benchmarks/bench_replay.py --sizes 4096 --seconds 0.2        # a quick look

One round: draw 256 entries by priority, compute their importance weights (beta 0.4), set 256 new priorities.
All contestants run in this process, one thread, a few rounds each in turn; what counts is the fastest round of
each, so that other work on the machine disturbs all alike. A ratio is a time over that of `SumTree`. Before the
timing, each contestant's draws must follow its priorities (its share of the upper half of the masses).

Weights are divided by the largest of the batch where we choose (`SumTree`, the plain tree, cumulative sum); the
buffers of cpprb and torchrl divide by the largest of the buffer, keep the entries' data (one number) and return it.
`--buffer` adds `PrioritizedReplay`, which holds and returns whole trajectories and is filled in Python.
Peers that are not installed are named and left out: `pip install -r benchmarks/requirements.txt`.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one thread for every contestant: before numpy is imported

import argparse  # noqa: E402
import importlib.metadata  # noqa: E402
import platform  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable  # noqa: E402
from pathlib import Path  # noqa: E402

import numpy as np  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from replay import PrioritizedReplay, SumTree, Trajectory  # noqa: E402

BATCH, BETA, ALPHA = 256, 0.4, 0.5
Round = Callable[[np.ndarray], np.ndarray]  # new priorities [256] -> the indices drawn, int [256]
AUTHORS = "binary tree, item by item, the authors' way"
MICROSECONDS = {2**17: 90.0, 2**20: 115.0}  # targets: what a round of `SumTree` may take at these sizes
TREES = 25.0  # target: how many times as long the authors' kind of tree takes


def ours(priorities: np.ndarray) -> Round:
    tree, rng = SumTree(len(priorities)), np.random.default_rng(0)
    tree.set(np.arange(len(priorities)), priorities**ALPHA)

    def once(new):
        drawn = tree.sample(rng, BATCH)
        weights = tree.get(drawn) ** -BETA
        weights /= weights.max()
        tree.set(drawn, new**ALPHA)
        return drawn

    return once


def our_buffer(priorities: np.ndarray) -> Round:
    replay = PrioritizedReplay(len(priorities), alpha=ALPHA, eps=0.0)
    one = Trajectory("go", "home", ["p", "q"], np.zeros((2, 1)), ["home"], [[1]], [[-0.1]], [1.0], [False], [0],
                     terminated=True, truncated=False)
    for priority in priorities.tolist():
        replay.add(one, priority=priority)

    def once(new):
        drawn, _, _ = replay.sample(BATCH, beta=BETA)
        replay.update_priorities(drawn, new)
        return drawn

    return once


def plain_tree(priorities: np.ndarray) -> Round:
    """A binary sum tree as the authors' code has it: one item at a time, by recursion, over a numpy array of sums,
    parents adjusted by differences."""
    n = len(priorities)
    first = 1 << (n - 1).bit_length()  # the first leaf: children of i are 2 i and 2 i + 1
    sums = np.zeros(2 * first)
    sums[first : first + n] = priorities**ALPHA
    for i in range(first.bit_length() - 2, -1, -1):
        sums[1 << i : 2 << i] = sums[2 << i : 4 << i].reshape(-1, 2).sum(1)
    rng = np.random.default_rng(0)

    def descend(node: int, x: float) -> int:
        if node >= first:
            return node
        mass = sums[2 * node]
        return descend(2 * node, x) if x <= mass else descend(2 * node + 1, x - mass)

    def climb(node: int, change: float) -> None:
        sums[node] += change
        if node > 1:
            climb(node // 2, change)

    def once(new):
        part = sums[1] / BATCH
        leaves = [min(descend(1, rng.uniform(k * part, (k + 1) * part)), first + n - 1) for k in range(BATCH)]
        weights = np.array([sums[leaf] for leaf in leaves]) ** -BETA
        weights /= weights.max()
        for leaf, mass in zip(leaves, new**ALPHA, strict=True):
            climb(leaf, mass - sums[leaf])
        return np.array(leaves) - first

    return once


def cumulative_sum(priorities: np.ndarray) -> Round:
    masses, rng = priorities**ALPHA, np.random.default_rng(0)

    def once(new):
        sums = masses.cumsum()
        x = (np.arange(BATCH) + rng.random(BATCH)) * (sums[-1] / BATCH)
        drawn = np.minimum(sums.searchsorted(x, side="right"), len(sums) - 1)
        weights = masses[drawn] ** -BETA
        weights /= weights.max()
        masses[drawn] = new**ALPHA
        return drawn

    return once


def cpprb_buffer(priorities: np.ndarray) -> Round:
    import cpprb

    buffer = cpprb.PrioritizedReplayBuffer(len(priorities), {"x": {}}, alpha=ALPHA, eps=0.0)
    buffer.add(x=np.arange(len(priorities)), priorities=priorities)

    def once(new):
        drawn = buffer.sample(BATCH, beta=BETA)["indexes"]
        buffer.update_priorities(drawn, new)
        return drawn

    return once


def torchrl_buffer(priorities: np.ndarray) -> Round:
    import torch
    from torchrl.data import LazyTensorStorage, ReplayBuffer
    from torchrl.data.replay_buffers.samplers import PrioritizedSampler

    torch.set_num_threads(1)
    n = len(priorities)
    buffer = ReplayBuffer(storage=LazyTensorStorage(n), batch_size=BATCH,
                          sampler=PrioritizedSampler(n, alpha=ALPHA, beta=BETA, eps=0.0))
    buffer.extend(torch.arange(n, dtype=torch.float32))
    buffer.update_priority(torch.arange(n), torch.from_numpy(priorities))

    def once(new):
        _, info = buffer.sample(return_info=True)
        buffer.update_priority(info["index"], torch.from_numpy(new))
        return np.asarray(info["index"])

    return once


CONTESTANTS: dict[str, tuple[Callable[[np.ndarray], Round], str]] = {  # name: (build, the package it needs)
    "ours, SumTree": (ours, "numpy"),
    "ours, PrioritizedReplay": (our_buffer, "numpy"),
    "cpprb PrioritizedReplayBuffer": (cpprb_buffer, "cpprb"),
    "torchrl ReplayBuffer": (torchrl_buffer, "torchrl"),
    "numpy cumsum + searchsorted": (cumulative_sum, "numpy"),
    AUTHORS: (plain_tree, "numpy"),
}


def build_all(size: int, with_buffer: bool) -> dict[str, Round]:
    """The contestants that are here, filled and checked; says why one is left out."""
    built = {}
    for name, (build, package) in CONTESTANTS.items():
        if build is our_buffer and not with_buffer:
            continue
        priorities = np.random.default_rng(1).random(size) ** 2 + 1e-3
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            print(f"  {name}: not installed")
            continue
        try:
            once = build(priorities)
        except (ImportError, RuntimeError) as error:  # compiled for another torch, say
            print(f"  {name}: {package} {version} does not load here ({error})")
            continue
        check(name, once, priorities)
        built[f"{name} ({package} {version})" if package != "numpy" else name] = once
    return built


def check(name: str, once: Round, priorities: np.ndarray) -> None:
    """Draws follow the masses as they are updated: the upper half's share of 40 batches is what it should be."""
    masses, upper, got, want = priorities**ALPHA, priorities > np.median(priorities), [], []
    for _ in range(40):
        want.append(masses[upper].sum() / masses.sum())
        drawn = once(np.full(BATCH, 0.25))
        got.append(upper[drawn].mean())
        masses[drawn] = 0.25**ALPHA
    if abs(np.mean(got) - np.mean(want)) > 0.02:  # 10,240 draws: four standard deviations
        raise SystemExit(f"{name} draws the upper half {np.mean(got):.3f} of the time, not {np.mean(want):.3f}")


def measure(rounds: dict[str, Round], seconds: float) -> dict[str, float]:
    """The fastest round of each in microseconds; contestants take turns for about `seconds` each."""
    rng, best = np.random.default_rng(2), {name: float("inf") for name in rounds}
    spent = dict.fromkeys(rounds, 0.0)
    while any(t < seconds for t in spent.values()):
        for name, once in rounds.items():
            until = spent[name] + seconds / 40
            while spent[name] < min(until, seconds):
                new = rng.random(BATCH) ** 2 + 1e-3
                start = time.perf_counter()
                once(new)
                took = time.perf_counter() - start
                spent[name] += took
                best[name] = min(best[name], took * 1e6)
    return best


def exactness(size: int) -> tuple[float, int]:
    """(relative error of the total after 1,000 updates of 256 masses from 1e-6 to 1e6, then all 1e-6; draws of an entry
    without mass, of 100,000 where every second one has none)"""
    rng, tree, everyone = np.random.default_rng(3), SumTree(size), np.arange(size)
    for _ in range(1000):
        tree.set(rng.integers(0, size, BATCH), 10.0 ** rng.uniform(-6, 6, BATCH))
    tree.set(everyone, 1e-6)
    drift = abs(tree.total / (size * 1e-6) - 1)
    tree.set(everyone[::2], 0.0)
    return drift, sum(int((tree.sample(rng, 1000) % 2 == 0).sum()) for _ in range(100))


def verdict(measured: dict[int, dict[str, float]]) -> str:
    """Which targets are met, with the figures. Right edges, duplicates, bad masses and stale slots are tests."""
    found = []
    for size, best in measured.items():
        mine, (drift, empty) = best["ours, SumTree"], exactness(size)
        if size in MICROSECONDS:
            found.append((f"{size}: {mine:.1f} us, at most {MICROSECONDS[size]:g}", mine <= MICROSECONDS[size]))
        ratio = best[AUTHORS] / mine
        found.append((f"{size}: {ratio:.1f} x the authors' tree, at least {TREES:g}", ratio >= TREES))
        found.append((f"{size}: drift {drift:.0e}, at most 1e-9", drift <= 1e-9))
        found.append((f"{size}: {empty} draws without mass, none allowed", not empty))
    return "verdict: " + "; ".join(f"{what}: {'met' if met else 'MISSED'}" for what, met in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[2**17, 2**20], help="entries held")
    parser.add_argument("--seconds", type=float, default=4.0, help="of measuring, for each contestant and size")
    parser.add_argument("--buffer", action="store_true", help="also PrioritizedReplay, whole trajectories")
    args = parser.parse_args()
    print(f"{platform.machine()}, Python {platform.python_version()}, numpy {np.__version__}, one thread")
    measured = {}
    for size in args.sizes:
        print(f"\n{size} entries: draw {BATCH} by priority, weights, set {BATCH}; fastest round")
        best = measured[size] = measure(build_all(size, args.buffer), args.seconds)
        mine = best["ours, SumTree"]
        for name, microseconds in best.items():
            print(f"  {name:48} {microseconds:9.1f} us   {microseconds / mine:6.2f} x ours")
    print(f"\n{verdict(measured)}")


if __name__ == "__main__":
    main()
