"""One policy server at batch 8 and 32 against a copy of the policy in two processes at batch 1, one a core.

    python benchmarks/bench_server.py                   # T5-base size (248 M), 30 tokens an action
    python benchmarks/bench_server.py --small           # the small policy, 1 s a measurement

The server is `worker.policy_server` with `SharedWeights`, a process of its own as in a run; its clients are real
processes that send what a worker sends through a pipe of their own, and ask again as soon as they are answered. So the
queues are counted. The other side is what one does without a server: `AutoUIPolicy.act` in each process, no pipe at
all. Weights are random, the end-of-sequence is hardly ever drawn, actions are cut at the same length on both sides. The
two sides run one after the other, twice or more, and the best of each counts; tokens are those of the answers.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from bench_sampling import PROMPT, base_policy, machine, verdict  # which also adds the product's folder to the path

from autoui import FEATURE_DIM
from policy import AutoUIPolicy
from shared_weights import SharedWeights
from worker import policy_server

CONTEXT = multiprocessing.get_context("forkserver")
FEATURE = np.random.default_rng(0).uniform(-1, 1, FEATURE_DIM).astype(np.float32)


def serve(path: Path, weights: SharedWeights, control, batch: int, tokens: int) -> None:
    """The server process, its actions cut at `tokens` tokens."""
    AutoUIPolicy.act = functools.partialmethod(AutoUIPolicy.act, max_new_tokens=tokens)
    policy_server(path, weights, control, batch, 0)


def client(server, results, start, seconds: float) -> None:
    """A worker without a phone: asks and asks; reports tokens, answers, batch sizes and seconds, warm-up apart."""
    server.send((PROMPT, FEATURE, False))
    server.recv()
    results.send("warm")
    start.wait()
    began, tokens, batches = time.perf_counter(), 0, []
    while time.perf_counter() - began < seconds or not batches:
        server.send((PROMPT, FEATURE, False))
        sample = server.recv()
        tokens += len(sample.token_ids)
        batches.append(sample.batch)
    results.send((tokens, time.perf_counter() - began, float(np.mean(batches))))


def own_copy(path: Path, results, start, seconds: float, tokens: int) -> None:
    """A process with a copy of the policy, batch 1."""
    torch.set_num_threads(1)
    policy = AutoUIPolicy.load(path)
    policy.requires_grad_(False)
    act = functools.partial(policy.act, [PROMPT], FEATURE[None], max_new_tokens=tokens)
    act()
    results.send("warm")
    start.wait()
    began, written = time.perf_counter(), 0
    while time.perf_counter() - began < seconds or not written:
        written += len(act().token_ids[0])
    results.send((written, time.perf_counter() - began, 1.0))


def collect(processes: list, start) -> tuple[float, float]:
    """Tokens a second of all together, and the mean batch."""
    for _, results in processes:
        assert results.recv() == "warm"
    start.set()
    reports = [results.recv() for _, results in processes]
    for process, _ in processes:
        process.join(30)
    return sum(tokens / seconds for tokens, seconds, _ in reports), float(np.mean([r[2] for r in reports]))


def spawn(target, *arguments):
    """A process that has been started."""
    process = CONTEXT.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def with_server(path: Path, size: int, batch: int, tokens: int, seconds: float) -> tuple[float, float]:
    """Tokens/s and mean batch of one server with `batch` clients."""
    weights, start = SharedWeights(CONTEXT, size), CONTEXT.Event()  # nothing is published: the file's weights stay
    control, theirs = CONTEXT.Pipe()
    server = spawn(serve, path, weights, theirs, batch, tokens)
    theirs.close()
    assert control.recv() == "ready"
    clients = []
    for _ in range(batch):
        (to_server, server_end), (ours, results) = CONTEXT.Pipe(), CONTEXT.Pipe()
        clients.append((spawn(client, to_server, results, start, seconds), ours))
        control.send(server_end)
        for end in (to_server, server_end, results):
            end.close()
    measured = collect(clients, start)
    control.close()  # the server leaves
    server.join(30)
    return measured


def with_copies(path: Path, tokens: int, seconds: float, processes: int = 2) -> tuple[float, float]:
    """Tokens/s of `processes` processes with a copy each."""
    start, copies = CONTEXT.Event(), []
    for _ in range(processes):
        ours, results = CONTEXT.Pipe()
        copies.append((spawn(own_copy, path, results, start, seconds, tokens), ours))
        results.close()
    return collect(copies, start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="the small policy, 1 s a measurement, once")
    parser.add_argument("--tokens", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=45.0, help="of each measurement; at least one answer")
    parser.add_argument("--repeats", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(1)
    # Modules are imported once, by the fork server, which looks for them in its own path.
    os.environ["PYTHONPATH"] = os.pathsep.join(str(Path(__file__).resolve().parents[i]) for i in (0, 1))
    CONTEXT.set_forkserver_preload(["bench_sampling", "worker"])
    seconds, repeats = (1.0, 1) if args.small else (args.seconds, args.repeats)
    ways = {"2 copies, batch 1": with_copies, "server, 8 clients": with_server, "server, 32 clients": with_server}
    best = dict.fromkeys(ways, (0.0, 0.0))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy.safetensors"
        policy = AutoUIPolicy.small(seed=0) if args.small else base_policy()
        with torch.no_grad():  # the end-of-sequence is one of many
            policy.network.lm_head.weight[policy.codec.eos_id] = 0.0
        size = sum(p.numel() for p in policy.parameters())
        policy.save(path)
        del policy
        for _ in range(repeats):
            for name in ways:
                if name.startswith("server"):
                    result = with_server(path, size, int(name.split()[1]), args.tokens, seconds)
                else:
                    result = with_copies(path, args.tokens, seconds)
                best[name] = max(best[name], result)
    print(machine())
    print(f"{'way':20}{'tokens/s':>10}{'mean batch':>12}{'ratio':>8}   {size / 1e6:.1f} M parameters")
    copies = best["2 copies, batch 1"][0]
    for name, (rate, batch) in best.items():
        print(f"{name:20}{rate:>10.1f}{batch:>12.1f}{rate / copies:>8.2f}")
    for clients, target in ((8, 2.2), (32, 3.5)):
        ratio = best[f"server, {clients} clients"][0] / copies
        verdict(f"server with {clients} clients, against copies", ratio, target)


if __name__ == "__main__":
    main()
