"""Sampling: ours against transformers' cached `generate`, and against decoding the whole prefix for every token.

    python benchmarks/bench_sampling.py                 # small policy and T5-base size (248 M), batch 1, 8, 32
    python benchmarks/bench_sampling.py --small         # a quick look: the small policy alone, few tokens

All three write the same number of tokens for the same prompts and screens, on one thread, encoder included, the
end-of-sequence token switched off. Ours also returns the log-prob of every token; `generate` does not. `generate`
ignores screens, so it is given the encoder's gated states. No cache is what the authors' agent does. The network and
its weights are the same tensors for all, random. Taken in turns, the best of `--repeats`.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from transformers import T5Config, T5ForConditionalGeneration  # noqa: E402
from transformers.modeling_outputs import BaseModelOutput  # noqa: E402

from autoui import FEATURE_DIM, initialize  # noqa: E402
from policy import AutoUIPolicy  # noqa: E402
from tokenizer import Codec, build_tokenizer  # noqa: E402

PROMPT = (
    'Previous Actions: Action Decision: "action_type": "DUAL_POINT", "touch_point": "[0.7852, 0.6779]", "lift_point": '
    '"[0.7852, 0.6779]", "typed_text": "" Goal: Go to bestbuy.com, search for "macbook air", and select the first entry'
)
BASE = dict(  # flan-t5-base, which Auto-UI's base size starts from: 248 M
    vocab_size=32128, d_model=768, d_kv=64, d_ff=2048, num_layers=12, num_decoder_layers=12, num_heads=12,
    feed_forward_proj="gated-gelu", tie_word_embeddings=False,
)  # fmt: skip


def machine() -> str:
    """One line: processor, cores, load, versions."""
    info = Path("/proc/cpuinfo")
    model = re.search(r"model name\s*: (.*)", info.read_text()) if info.exists() else None
    return (
        f"{model[1] if model else platform.processor()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, "
        f"{torch.get_num_threads()} thread, torch {torch.__version__} ({torch.backends.cpu.get_cpu_capability()}), "
        f"transformers {transformers.__version__}, Python {platform.python_version()}"
    )


def base_policy(seed: int = 0) -> AutoUIPolicy:
    """A policy of Auto-UI's base size with random weights, about 1 GB."""
    policy = AutoUIPolicy(BASE, Codec(build_tokenizer()))
    initialize(policy.network, seed)
    return policy


WAYS = ("ours", "generate", "no cache")  # at base size and batch 32 not the last: minutes an action


def best_of(functions: dict[str, Callable], repeats: int) -> dict[str, float]:
    """Least seconds of each function, taken in turns; the first turn is not counted."""
    best = dict.fromkeys(functions, float("inf"))
    for repeat in range(repeats + 1):
        for name, function in functions.items():
            began = time.perf_counter()
            function()
            if repeat:
                best[name] = min(best[name], time.perf_counter() - began)
    return best


def verdict(what: str, value: float, target: float, at_most: bool = False) -> None:
    """One line: is the target met?"""
    met = value <= target if at_most else value >= target
    bound = "at most" if at_most else "at least"
    print(f"target: {what} {bound} {target:g}: {value:.2f}, {'met' if met else 'MISSED'}")


def library_model(policy: AutoUIPolicy) -> T5ForConditionalGeneration:
    """transformers' T5 over the tensors of the policy's network; nothing is copied."""
    network = policy.network
    with torch.device("meta"):
        library = T5ForConditionalGeneration(T5Config(**policy.config))
    library.encoder.embed_tokens = library.decoder.embed_tokens = library.shared
    state = {k: v for k, v in network.state_dict().items() if not k.startswith(("image_", "mha_", "gate_"))}
    library.load_state_dict(state, assign=True, strict=False)  # the embeddings have three names there
    if network.tied:
        library.lm_head.weight = library.shared.weight
    library.generation_config.eos_token_id = None
    return library.eval()


def compare(policy: AutoUIPolicy, batch: int, tokens: int, repeats: int, no_cache: bool) -> dict[str, float]:
    """Seconds for `batch` actions of `tokens` tokens, by each way."""
    network, library = policy.network, library_model(policy)
    attention = torch.nn.MultiheadAttention(policy.config["d_model"], 1, batch_first=True)
    attention.load_state_dict(network.mha_layer.state_dict())
    ids, mask = policy._pad([policy.codec.prompt_ids(PROMPT)] * batch)
    features = torch.from_numpy(np.random.default_rng(0).uniform(-1, 1, (batch, FEATURE_DIM)).astype(np.float32))
    uniforms = torch.rand(batch, tokens, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def encode_library() -> torch.Tensor:
        states = library.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        image = network.image_dense(features)[:, None]
        attended, _ = attention(states, image, image, need_weights=False)
        gate = torch.sigmoid(network.gate_dense(torch.cat([states, attended], -1)))
        return (1 - gate) * states + gate * attended

    def generate(use_cache: bool, do_sample: bool = True) -> torch.Tensor:
        out = library.generate(
            encoder_outputs=BaseModelOutput(last_hidden_state=encode_library()), attention_mask=mask,
            max_new_tokens=tokens, do_sample=do_sample, use_cache=use_cache, decoder_start_token_id=0, pad_token_id=0,
            **(dict(top_k=0, top_p=1.0, temperature=1.0) if do_sample else {}),
        )  # fmt: skip
        assert out.shape == (batch, tokens + 1), out.shape
        return out[:, 1:]

    def ours(uniforms: torch.Tensor | None = uniforms) -> torch.Tensor:
        states = network.encode(ids, mask, features)
        written, _ = network.sample(states, mask, steps=tokens, eos_id=-1, uniforms=uniforms)
        assert written.shape == (batch, tokens)
        return written

    ways = {"ours": ours, "generate": lambda: generate(True)}
    if no_cache:
        ways["no cache"] = lambda: generate(False)
    with torch.inference_mode():
        same = (ours(None) == generate(True, do_sample=False)).all(1).float().mean()
        if same < 0.9:  # a near tie may fall either way
            sys.exit(f"greedy tokens agree with generate in {same:.0%} of the rows only: not the same network")
        return best_of(ways, repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a quick look: no base size, 8 tokens, 2 repeats")
    parser.add_argument("--tokens", type=int, default=30)
    parser.add_argument("--repeats", type=int, help="default 5; 2 at base size")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--sizes", nargs="+", choices=["small", "base"], default=["small", "base"])
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    transformers.logging.set_verbosity_error()
    tokens, sizes = (8, ["small"]) if args.small else (args.tokens, args.sizes)
    print(machine())
    print(f"{'size':6}{'batch':>6}{'ours':>9}{'generate':>10}{'no cache':>10}"
          "  tokens/s; ours / generate, ours / no cache")  # fmt: skip
    worst: dict[tuple[str, str], float] = {}
    for size in sizes:
        policy = AutoUIPolicy.small(seed=0) if size == "small" else base_policy()
        policy.requires_grad_(False)
        for batch in args.batch:
            seconds = compare(policy, batch, tokens, args.repeats or (2 if args.small or size == "base" else 5),
                              no_cache=size == "small" or batch < 32)  # fmt: skip
            ratios = {way: took / seconds["ours"] for way, took in seconds.items() if way != "ours"}
            for way, ratio in ratios.items():
                worst[size, way] = min(ratio, worst.get((size, way), float("inf")))
            rates = [f"{batch * tokens / seconds[way]:.1f}" if way in seconds else "-" for way in WAYS]
            print(f"{size:6}{batch:>6}{rates[0]:>9}{rates[1]:>10}{rates[2]:>10}"
                  f"  {'  '.join(f'{ratio:.2f}x' for ratio in ratios.values())}", flush=True)  # fmt: skip
        del policy
    for size, target in (("small", 2.0), ("base", 1.0)):
        if size in sizes:
            verdict(f"{size}: lowest ratio to cached generate", worst[size, "generate"], target)
            verdict(f"{size}: lowest ratio to no cache", worst[size, "no cache"], 1.0)


if __name__ == "__main__":
    main()
