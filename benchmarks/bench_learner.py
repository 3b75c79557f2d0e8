"""The learner's step against the matrix-product peak of the same run, and padding to the longest against 512.

    python benchmarks/bench_learner.py                  # T5-base size (248 M), batch 8, actions of 30 tokens
    python benchmarks/bench_learner.py --small          # the small policy

A step is `AutoUIPolicy.evaluate`, backward, clipping and Adam, as in learner.py, float32, one thread. Its operations
are counted (torch's FlopCounterMode), and every matrix product that it made is timed alone, with its own shapes and
layouts, in the same turn:

    peak   = the highest rate of any shape that takes 1 % of the operations or more
    shapes = operations / time of all products, each at its own rate: a step of nothing but products

The step runs with and without denormals flushed, and with prompts padded to 512 as the authors do. Prompts have 60 to
120 tokens, as Auto-UI's under T5's tokenizer. Taken in turns, the best of `--repeats`.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter

import numpy as np
import torch
from bench_sampling import base_policy, best_of, machine, verdict  # which also adds the product's folder to the path
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from autoui import FEATURE_DIM
from policy import AutoUIPolicy

BATCH, PADDED = 8, 512
PRODUCTS = {torch.ops.aten.mm.default: (0, 1), torch.ops.aten.bmm.default: (0, 1), torch.ops.aten.addmm.default: (1, 2)}


class Products(TorchDispatchMode):
    """Counts the matrix products by the shapes and strides of their two factors."""

    def __init__(self):
        super().__init__()
        self.counts: Counter = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function in PRODUCTS:
            factors = [args[i] for i in PRODUCTS[function]]
            self.counts[tuple((tuple(f.shape), f.stride()) for f in factors)] += 1
        return function(*args, **(kwargs or {}))


class Step:
    """One step of the learner on a fixed batch."""

    def __init__(self, policy: AutoUIPolicy, tokens: int):
        rng = np.random.default_rng(0)
        self.policy, self.pad = policy, policy._pad
        words = "open search settings news weather play install check hotel price".split()
        lengths = np.linspace(60, 120, BATCH).astype(int)
        self.prompts = ["Previous Actions:  Goal: " + " ".join(rng.choice(words, n // 2 - 3)) for n in lengths]
        self.features = rng.uniform(-1, 1, (BATCH, FEATURE_DIM)).astype(np.float32)
        vocabulary = policy.config["vocab_size"]
        self.actions = [rng.integers(2, vocabulary, tokens).astype(np.int32) for _ in range(BATCH)]
        self.weights = torch.linspace(-1, 1, BATCH)
        policy.network.image_dense.requires_grad_(False)
        self.trained = [p for p in policy.parameters() if p.requires_grad]
        self.optimizer = torch.optim.Adam(self.trained, lr=1e-5, betas=(0.9, 0.99), fused=True)

    def __call__(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        evaluation = self.policy.evaluate(self.prompts, self.features, self.actions)
        (-(self.weights * evaluation.logprob).mean() - 1e-3 * evaluation.entropy.mean()).backward()
        torch.nn.utils.clip_grad_norm_(self.trained, 1.0)
        self.optimizer.step()

    def with_denormals(self) -> None:
        """The same; `evaluate` flushes them by itself, so that is switched off for the while."""
        flush = torch.set_flush_denormal
        flush(False)
        torch.set_flush_denormal = lambda mode: True
        try:
            self()
        finally:
            torch.set_flush_denormal = flush
            flush(True)

    def padded(self) -> None:
        """The same with the prompts (lists) padded to 512; the actions (arrays) as they are."""

        def pad(rows):
            ids, mask = self.pad(rows)
            extra = (0, PADDED - ids.shape[1] if isinstance(rows[0], list) else 0)
            return torch.nn.functional.pad(ids, extra), torch.nn.functional.pad(mask, extra)

        self.policy._pad = pad
        try:
            self()
        finally:
            self.policy._pad = self.pad


def factor(shape: tuple, stride: tuple) -> torch.Tensor:
    """Random numbers in that layout."""
    size = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
    return torch.randn(size).as_strided(shape, stride)


def products_alone(counts: Counter, repeats: int) -> tuple[float, float]:
    """Seconds of all products one by one, and the highest rate, FLOP/s, of those that count."""
    seconds, rates = 0.0, []
    flops = {key: count * 2 * np.prod(key[0][0]) * key[1][0][-1] for key, count in counts.items()}
    for key, count in counts.items():
        a, b = (factor(*each) for each in key)
        multiply, least = torch.mm if a.dim() == 2 else torch.bmm, float("inf")
        for _ in range(repeats + 1):
            began = time.perf_counter()
            multiply(a, b)
            least = min(least, time.perf_counter() - began)
        seconds += count * least
        if flops[key] >= 0.01 * sum(flops.values()):
            rates.append(flops[key] / count / least)
    return seconds, max(rates)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="the small policy instead of base size")
    parser.add_argument("--tokens", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    step = Step(AutoUIPolicy.small(seed=0) if args.small else base_policy(), args.tokens)
    with FlopCounterMode(display=False) as counter:
        step()
    flops = counter.get_total_flops()
    with Products() as products:
        step()
    first, highest = products_alone(products.counts, 3)
    ways = {"step": step, "denormals kept": step.with_denormals, "padded to 512": step.padded}
    seconds = best_of(ways, args.repeats)
    last, again = products_alone(products.counts, 3)  # at the end too: the machine's speed changes
    alone, highest = min(first, last), max(highest, again)
    print(machine())
    print(f"{flops / 1e9:.1f} GFLOP a step; peak {highest / 1e9:.1f} GFLOP/s, shapes {flops / alone / 1e9:.1f} GFLOP/s")
    print(f"{'way':16}{'s':>9}{'of peak':>9}{'of shapes':>11}{'times step':>12}")
    for name, least in seconds.items():
        shares = [f"{flops / least / rate:.0%}" for rate in (highest, flops / alone)]
        shares = ["-", "-"] if name.startswith("padded") else shares  # it does more operations, for nothing
        print(f"{name:16}{least:>9.3f}{shares[0]:>9}{shares[1]:>11}{least / seconds['step']:>12.2f}")
    verdict("step, share of the peak", flops / seconds["step"] / highest, 0.65)


if __name__ == "__main__":
    main()
