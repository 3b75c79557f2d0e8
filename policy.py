"""The agent: prompts and screen features in, action texts with log-probs out; log-probs of stored actions.

A state is a prompt (the last action and the goal) and the screen's feature, 1408 numbers; an action is the
token sequence y that Auto-UI's network (`autoui.py`) emits:

    log pi(y | s) = sum_i log pi(y_i | y_<i, s)

    policy = AutoUIPolicy.small(seed=0)                               # or AutoUIPolicy.load(path)
    out = policy.act([prompt], features)                              # texts, token ids, log mu of each token
    ev = policy.evaluate([prompt], features, out.token_ids)           # differentiable
    ratio = (ev.logprob - float(out.logprobs[0].sum())).exp()         # 1 before the first update

Departs from the paper / the authors' code:
- log-probs are never clamped, and are those of the distribution sampled from, temperature included;
- they are taken on the stored token ids, the end-of-sequence token included when it was sampled;
- entropies are exact sums over the vocabulary, not -log pi of replayed actions;
- no dropout: with it the ratio of an unchanged policy is not 1.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import lora
from autoui import FEATURE_DIM, AutoUINetwork, initialize
from checkpoints import PICKLED, PLAIN, add_image_layers, differences, open_tensors, read_published
from devices import HostCopy, put
from lora import PRECISIONS
from tokenizer import Codec, build_tokenizer

ALIASES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")  # always the same tensor as shared
IGNORED = (
    "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"  # in old T5 files, never used
)
CONFIG_KEYS = (
    "vocab_size",
    "d_model",
    "d_kv",
    "d_ff",
    "num_layers",
    "num_decoder_layers",
    "num_heads",
    "feed_forward_proj",
    "relative_attention_num_buckets",
    "relative_attention_max_distance",
    "layer_norm_epsilon",
    "tie_word_embeddings",
)
SORTED_ROWS = 24  # rows of similar length that `evaluate` runs together
HEAD_ELEMENTS = 2**24  # logits that it holds at once, 64 MB


@dataclass(frozen=True)
class ActOutput:
    texts: list[str]  # [B]
    token_ids: list[np.ndarray]  # [B] of int32 [L_b], EOS included where it was sampled
    logprobs: list[np.ndarray]  # [B] of float32 [L_b], under the distribution sampled from


@dataclass(frozen=True)
class Evaluation:
    logprob: Tensor  # [B] sum over an action's tokens
    token_logprob: Tensor  # [B, L] 0 where masked
    entropy: Tensor  # [B] mean over an action's tokens of the exact entropy, nats
    mask: Tensor  # [B, L] bool


class AutoUIPolicy(nn.Module):
    """The network with its tokenizer: prompts and features in, action texts and log-probs out."""

    def __init__(self, config: dict, codec: Codec):
        super().__init__()
        missing = [
            key
            for key in ("vocab_size", "d_model", "d_kv", "d_ff", "num_layers", "num_heads")
            if key not in config
        ]
        if missing:
            raise ValueError(f"the policy's config lacks {missing}: give a T5 config.json")
        self.config = {key: config[key] for key in CONFIG_KEYS if key in config}
        self.codec = codec
        self.network = AutoUINetwork(self.config)
        self.autocast = False  # computes in bf16, keeps float32 weights: the learner's way of --precision bf16
        self.fresh_images = False  # image layers that --init-fusion made: the learner trains all of them
        self.screens = "thumbnail"  # what its features are made by: "thumbnail", "blip2"; "": it has seen none yet
        self._host: HostCopy | None = None
        self.notes: list[str] = []  # what the user should know of the file that it was loaded from

    @classmethod
    def small(
        cls, seed: int = 0, *, d_model: int = 96, layers: int = 2, heads: int = 4, d_ff: int = 256
    ) -> AutoUIPolicy:
        """A small network with random weights (0.7 M at the defaults) and the small lossless tokenizer."""
        codec = Codec(build_tokenizer())
        policy = cls(
            dict(
                vocab_size=len(codec),
                d_model=d_model,
                d_kv=d_model // heads,
                d_ff=d_ff,
                num_layers=layers,
                num_decoder_layers=layers,
                num_heads=heads,
                feed_forward_proj="relu",
                tie_word_embeddings=True,
            ),
            codec,
        )
        initialize(policy.network, seed)
        return policy

    @property
    def device(self) -> torch.device:
        return self.network.shared.weight.device

    def _arithmetic(self):
        return torch.autocast(self.device.type, torch.bfloat16) if self.autocast else nullcontext()

    def act(
        self,
        prompts: Sequence[str],
        features,
        *,
        temperature: float = 1.0,
        greedy: bool = False,
        generator: torch.Generator | None = None,
        seeds: Sequence[int] | None = None,
        max_new_tokens: int | None = None,
    ) -> ActOutput:
        """Samples one action for each prompt; features float [B, 1408].

        Repeatable with a `generator` for the batch, or with `seeds`, one a row: then a row's action does not
        depend on what it is batched with. Greedy log-probs are those of the distribution at `temperature`.
        `max_new_tokens`: the tokenizer's `max_action`.
        """
        self._check_temperature(temperature)
        max_new_tokens = max_new_tokens or self.codec.max_action
        ids, mask = self._pad([self.codec.prompt_ids(prompt) for prompt in prompts])
        features = self._features(features, len(prompts))
        uniforms = None
        if seeds is not None and not greedy:
            if len(seeds) != len(prompts):
                raise ValueError(f"{len(seeds)} seeds for {len(prompts)} prompts: give one a prompt")
            uniforms = torch.from_numpy(
                np.stack([np.random.default_rng(s).random(max_new_tokens) for s in seeds])
            )
        elif not greedy:
            where = generator.device if generator is not None else "cpu"
            uniforms = torch.rand(
                len(prompts), max_new_tokens, dtype=torch.float64, generator=generator, device=where
            )
        torch.set_flush_denormal(
            True
        )  # four times faster at base size; it counts for the calling thread only
        with torch.inference_mode(), self._arithmetic():
            states = self.network.encode(ids, mask, features)
            tokens, logprobs = self.network.sample(
                states,
                mask,
                steps=max_new_tokens,
                eos_id=self.codec.eos_id,
                temperature=temperature,
                uniforms=None if uniforms is None else uniforms.to(self.device),
            )
        tokens, logprobs = tokens.cpu().numpy().astype(np.int32), logprobs.float().cpu().numpy()
        ended = tokens == self.codec.eos_id
        lengths = np.where(ended.any(1), ended.argmax(1) + 1, tokens.shape[1])
        token_ids = [row[:n].copy() for row, n in zip(tokens, lengths, strict=True)]
        return ActOutput(
            [self.codec.decode(row) for row in token_ids],
            token_ids,
            [row[:n].copy() for row, n in zip(logprobs, lengths, strict=True)],
        )

    def evaluate(
        self, prompts: Sequence[str], features, token_ids: Sequence[np.ndarray], *, temperature: float = 1.0
    ) -> Evaluation:
        """Log-probs and entropies of stored actions, differentiable; the ids are taken as they are.

        Rows of similar prompt length run together, so that little is padding; the order given is kept.
        """
        self._check_temperature(temperature)
        prompt_ids = [self.codec.prompt_ids(prompt) for prompt in prompts]
        features = self._features(features, len(prompts))
        if len(token_ids) != len(prompts) or not all(len(row) for row in token_ids):
            raise ValueError(
                f"{len(prompts)} prompts need as many actions of at least one token, got lengths "
                f"{[len(row) for row in token_ids]}"
            )
        torch.set_flush_denormal(True)
        order = sorted(range(len(prompts)), key=lambda i: (len(prompt_ids[i]), len(token_ids[i])))
        length = max(map(len, token_ids))
        whole = sum(map(len, token_ids)) * self.config["vocab_size"] <= HEAD_ELEMENTS  # logits of all rows
        logprobs, entropies = [], []
        for at in range(0, len(order), SORTED_ROWS):
            rows = order[at : at + SORTED_ROWS]
            ids, mask = self._pad([prompt_ids[i] for i in rows])
            targets, target_mask = self._pad([token_ids[i] for i in rows])  # [n, l]
            chosen = target_mask.bool()
            with self._arithmetic():
                states = self.network.encode(ids, mask, features[put(np.array(rows), self.device)])
                hidden = self.network.decode(states, mask, F.pad(targets[:, :-1], (1, 0)))
                logprob, entropy = self._score(hidden[chosen], targets[chosen], temperature, whole)
            blank, extra = torch.zeros_like(targets, dtype=logprob.dtype), (0, length - targets.shape[1])
            logprobs.append(F.pad(blank.masked_scatter(chosen, logprob), extra))
            entropies.append(blank.masked_scatter(chosen, entropy).sum(1) / chosen.sum(1))
        back = torch.tensor(np.argsort(order), device=self.device)
        token_logprob = torch.cat(logprobs)[back]
        lengths = torch.tensor([len(row) for row in token_ids], device=self.device)
        mask = torch.arange(length, device=self.device) < lengths[:, None]
        return Evaluation(token_logprob.sum(1), token_logprob, torch.cat(entropies)[back], mask)

    def _score(self, hidden: Tensor, targets: Tensor, temperature: float, whole: bool) -> tuple[Tensor, Tensor]:
        """log pi(target) and entropy [N] for hidden [N, d], targets [N].

        Not `whole`: in pieces, whose logits are computed anew for the gradient instead of being kept.
        """

        def score(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            logits = self.network.head(x) / temperature
            logp = torch.log_softmax(logits, -1)
            # Not logp.exp(): where that underflows it takes ten times as long.
            return logp.gather(1, y[:, None])[:, 0], -(torch.softmax(logits, -1) * logp).sum(-1)

        piece = max(1, HEAD_ELEMENTS // self.config["vocab_size"])
        if whole:
            return score(hidden, targets)
        parts = [
            checkpoint(score, x, y, use_reentrant=False)
            for x, y in zip(hidden.split(piece), targets.split(piece), strict=True)
        ]
        return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])

    def _pad(self, rows: Sequence) -> tuple[Tensor, Tensor]:
        """Ids int64 [B, S] padded with 0 on the right, and the mask int64 [B, S] of what is real."""
        lengths = np.array([len(row) for row in rows])
        mask = np.arange(lengths.max(initial=1)) < lengths[:, None]
        ids = np.zeros(mask.shape, np.int64)
        ids[mask] = np.concatenate([np.asarray(row, np.int64) for row in rows])
        return put(ids, self.device), put(mask.astype(np.int64), self.device)

    def _check_temperature(self, temperature: float) -> None:
        if not 0 < temperature < math.inf:
            raise ValueError(f"temperature must be positive, got {temperature}: act(greedy=True) takes the likeliest")

    def _features(self, features, rows: int) -> Tensor:
        features = put(torch.as_tensor(features, dtype=torch.float32), self.device)
        if features.shape != (rows, FEATURE_DIM):
            raise ValueError(
                f"features have shape {tuple(features.shape)}, expected ({rows}, {FEATURE_DIM}): one for "
                "each prompt, of BLIP-2 (opt-2.7b)'s vision encoder, pooled, or of thumbnail_features"
            )
        return features

    def weights(self) -> dict[str, Tensor]:
        """All weights under their published names, LoRA's adapters added in."""
        return lora.merged(self.network)

    def published(self) -> list[np.ndarray]:
        """float32 arrays of what actors must be given after an update, for `lora.Receiver` there: views, of weights on
        a GPU pinned copies."""
        if self._host is None or self.device.type == "cpu" or self._host.device != self.device:
            self._host = HostCopy(lora.adapters(self.network) or self.parameters())
        return self._host.arrays()

    def save(self, path: str | Path) -> None:
        """One .safetensors file with weights, config and tokenizer (its metadata); replaced atomically. OSError."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        state = {name: p.detach().cpu().contiguous() for name, p in self.weights().items()}
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        saved = {"config": self.config, "codec": self.codec.to_json(), "screens": self.screens}
        saved |= {"fresh_images": self.fresh_images}
        # One entry of metadata: the library writes several in an order that differs from file to file.
        try:
            save_file(state, partial, {"policy": json.dumps(saved)})
        except SafetensorError as error:
            raise OSError(f"{path.name} cannot be written ({error}): is the disk full?") from error
        os.replace(partial, path)

    @classmethod
    def load(cls, path: str | Path, precision: str = "fp32", init_fusion: bool = False) -> AutoUIPolicy:
        """From a file that `save` wrote, or published weights: a folder, or a .bin/.pt next to its config.json.

        checkpoints.py says which layouts. precision: "fp32" or "bf16". init_fusion: a plain T5 gets image layers
        that leave its output as it is, instead of being refused.
        """
        if precision not in PRECISIONS:
            raise ValueError(
                f"precision {precision!r}: use 'bf16' or 'fp32' (T5's feed-forward overflows in fp16: "
                "66246 > 65504)"
            )
        path = Path(path)
        if not path.exists():
            raise FileNotFoundError(
                f"no policy at {path}: give a .safetensors file or a checkpoint's directory"
            )
        metadata, notes = {}, []
        if path.is_file() and path.suffix not in PICKLED:
            with open_tensors(path) as file:
                metadata = file.metadata() or {}
                if "policy" in metadata:
                    state = {key: file.get_tensor(key) for key in file.keys()}
                elif not (path.parent / "config.json").exists():
                    raise ValueError(
                        f"{path} holds no config and tokenizer, and there is no config.json beside it: give a file "
                        "that AutoUIPolicy.save wrote, or published weights with their config.json and tokenizer"
                    )
        if "policy" in metadata:
            saved = json.loads(metadata["policy"])
            config, codec = saved["config"], Codec.from_json(saved["codec"])
            screens, fresh = saved.get("screens", "thumbnail"), saved.get("fresh_images", False)
        else:
            config, state, notes = read_published(path)
            codec = Codec.from_directory(path if path.is_dir() else path.parent)
            fresh = init_fusion and add_image_layers(state)
            screens = "" if fresh else "blip2"
        policy = cls(config, codec)
        if len(codec) > config["vocab_size"]:
            raise ValueError(
                f"the tokenizer has {len(codec)} words, the network {config['vocab_size']}: give the network's own one"
            )
        policy.load_weights(state)
        policy.notes, policy.fresh_images, policy.screens = notes, fresh, screens
        return policy.to(PRECISIONS[precision])

    @torch.no_grad()
    def load_weights(self, state: dict[str, Tensor]) -> None:
        """Copies weights by their published names: all of them, or none and a ValueError."""
        wanted, tied = dict(self.network.named_parameters()), ALIASES
        if self.network.tied:
            tied = (*ALIASES, "lm_head.weight")
        state = {key: value for key, value in state.items() if key != IGNORED}
        if "shared.weight" in state:
            for key in tied:
                other = state.pop(key, None)
                if other is not None and not torch.equal(other, state["shared.weight"]):
                    remedy = "these weights are no T5's, or damaged: copy them again"
                    if key == "lm_head.weight":
                        remedy = 'set "tie_word_embeddings": false in the config if the output layer is its own'
                    raise ValueError(f"{key} differs from shared.weight, which the config ties it to: {remedy}")
        missing, unknown = sorted(wanted.keys() - state.keys()), sorted(state.keys() - wanted.keys())
        # Only more or fewer layers is another size, too.
        layers = not (missing and unknown) and all(".block." in key for key in missing + unknown)
        if wrong := [line for line in differences(state, wanted, "file") if layers or "absent" not in line]:
            raise ValueError(
                f"weights of another policy size, {len(wrong)} tensors differ: " + "; ".join(wrong[:3])
            )
        if missing or unknown:
            plain = "image_dense.weight" in missing and not set(PLAIN) & set(missing)
            hint = " (a plain T5 has no image layers: --init-fusion adds fresh ones)" if plain else ""
            raise ValueError(f"not an Auto-UI checkpoint: missing {missing[:3]}, unknown {unknown[:3]}{hint}")
        for key, p in wanted.items():
            p.copy_(state[key])
