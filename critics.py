"""The critics: V_step, two heads on one step, and V_traj, one head on a trajectory's first observation.

    x = [text ; W (features of the last two screens)]                                    text 64, screens 128
    text = mean of the prompt's token embeddings, trained, or with RoBERTa W' (mean of its frozen token states)
    logits = MLP(x)                          StepCritic [N, 2], TrajectoryCritic [N]
    V = min over heads of sigmoid(logit)     so that an optimistic head alone does not raise the value

    critic = StepCritic(policy.codec, seed=0)
    logits = critic(prompts, screens)        # screens float [N, 2, 1408]: the screen before, this screen
    loss = F.binary_cross_entropy_with_logits(logits, targets[:, None].expand_as(logits))

    critic = StepCritic(policy.codec, encoder=RobertaText("path/to/roberta-base"))       # --critic-encoder

Departs from the paper: frozen RoBERTa-base on the text is a trained mean of token embeddings here unless asked for,
which needs no download and a millisecond; of RoBERTa the mean over its tokens is taken, as a masked language model's
file has no pooling layer (the library would make a random one); the authors' trajectory critic also sees only the
first observation.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

FEATURE_DIM = 1408


class RobertaText:
    """A frozen RoBERTa from a local folder: prompts in, the mean of each one's token states out, computed once.

    No module of the critics, so that neither their optimiser nor their checkpoints hold it. In another batch the last
    bits of a prompt differ: a resumed run, which computes all anew, is repeatable to rounding only.
    """

    CACHED = 20_000  # prompts: 60 MB at base size

    def __init__(self, path: str | Path):
        from transformers import AutoConfig, AutoTokenizer, RobertaModel
        from transformers.utils import logging

        config = AutoConfig.from_pretrained(path, local_files_only=True)
        if config.model_type != "roberta":
            raise ValueError(f"{path} holds a {config.model_type}: give the folder of a RoBERTa")
        self.tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True, truncation_side="left")
        verbosity = logging.get_verbosity()
        logging.set_verbosity_error()  # the language model's head is left out on purpose
        logging.disable_progress_bar()
        try:
            self.model, info = RobertaModel.from_pretrained(
                path, config=config, local_files_only=True, add_pooling_layer=False, output_loading_info=True
            )
        finally:
            logging.set_verbosity(verbosity)
        if info["missing_keys"] or info["mismatched_keys"]:
            missing = sorted(map(str, info["missing_keys"] or info["mismatched_keys"]))[:3]
            raise ValueError(f"not all of RoBERTa's weights are in {path}: {missing} are missing")
        self.model.float().eval().requires_grad_(False)
        self.dim, self.longest = config.hidden_size, config.max_position_embeddings - config.pad_token_id - 1
        self._cache: dict[str, Tensor] = {}

    def to(self, device) -> RobertaText:
        """Compute there."""
        self.model.to(device)
        self._cache.clear()
        return self

    @torch.no_grad()
    def __call__(self, prompts: Sequence[str]) -> Tensor:
        """float32 [N, dim]; prompts beyond RoBERTa's length lose their beginning."""
        if len(self._cache) > self.CACHED:
            self._cache.clear()
        new = sorted(dict.fromkeys(p for p in prompts if p not in self._cache), key=len)  # no set: its order varies
        for start in range(0, len(new), 16):  # of similar lengths
            rows = new[start : start + 16]
            tokens = self.tokenizer(
                rows, return_tensors="pt", padding=True, truncation=True, max_length=self.longest
            ).to(self.model.device)
            states = self.model(tokens.input_ids, attention_mask=tokens.attention_mask).last_hidden_state
            real = tokens.attention_mask[..., None]
            self._cache |= zip(rows, ((states * real).sum(1) / real.sum(1)).unbind(), strict=True)
        return torch.stack([self._cache[p] for p in prompts])


class _Critic(nn.Module):
    """codec: anything with `prompt_ids(text) -> list of int` and a length, the size of its vocabulary.

    encoder: a frozen text encoder in the place of the trained embeddings; see `RobertaText`.
    """

    def __init__(
        self, codec, screens: int, heads: int, seed: int, encoder=None, text_dim: int = 64, hidden: int = 128
    ):
        super().__init__()
        self.codec, self.screens, self.encoder = codec, screens, encoder
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if encoder:
                self.text = nn.Linear(encoder.dim, text_dim)
            else:
                self.text = nn.EmbeddingBag(len(codec), text_dim, mode="mean")
            self.image = nn.Linear(screens * FEATURE_DIM, hidden)
            self.body = nn.Sequential(
                nn.Linear(text_dim + hidden, hidden), nn.ReLU(), nn.Linear(hidden, heads)
            )

    def forward(self, prompts: Sequence[str], screens) -> Tensor:  # [N, heads]
        weight = self.image.weight
        screens = torch.as_tensor(screens, dtype=weight.dtype, device=weight.device)
        wanted = (len(prompts), self.screens, FEATURE_DIM)
        if screens.shape != wanted and (self.screens > 1 or screens.shape != (wanted[0], FEATURE_DIM)):
            raise ValueError(
                f"screens have shape {tuple(screens.shape)}, expected {wanted}: one row for each prompt"
            )
        if self.encoder:
            text = self.text(self.encoder(prompts).to(weight.device))
        else:
            rows = [self.codec.prompt_ids(prompt) for prompt in prompts]
            starts = np.cumsum([0, *map(len, rows[:-1])])
            ids = torch.tensor([i for row in rows for i in row], device=weight.device)
            text = self.text(ids, torch.as_tensor(starts, device=weight.device))
        return self.body(torch.cat((text, torch.relu(self.image(screens.flatten(1)))), 1))


class StepCritic(_Critic):
    """Logits [N, 2] of a step's success: prompts [N], screens [N, 2, 1408], the newest last."""

    def __init__(self, codec, seed: int = 0, encoder=None):
        super().__init__(codec, screens=2, heads=2, seed=seed, encoder=encoder)


class TrajectoryCritic(_Critic):
    """Logit [N] of a trajectory's success from its first prompt and screen: screens [N, 1408]."""

    def __init__(self, codec, seed: int = 0, encoder=None):
        super().__init__(codec, screens=1, heads=1, seed=seed, encoder=encoder)

    def forward(self, prompts: Sequence[str], screens) -> Tensor:  # [N]
        return super().forward(prompts, screens)[:, 0]


def last_two_screens(features: np.ndarray) -> np.ndarray:
    """A trajectory's features [T, 1408] as [T, 2, 1408]: each with the one before it, the first twice."""
    before = np.concatenate((features[:1], features[:-1]))
    return np.stack((before, features), 1)
