"""The critics: V_step, two heads on one step, and V_traj, one head on a trajectory's first observation.

    x = [mean of the prompt's token embeddings ; W (features of the last two screens)]   text 64, screens 128
    logits = MLP(x)                          StepCritic [N, 2], TrajectoryCritic [N]
    V = min over heads of sigmoid(logit)     so that an optimistic head alone does not raise the value

    critic = StepCritic(policy.codec, seed=0)
    logits = critic(prompts, screens)        # screens float [N, 2, 1408]: the screen before, this screen
    loss = F.binary_cross_entropy_with_logits(logits, targets[:, None].expand_as(logits))

Departs from the paper: frozen RoBERTa-base on the text is a trained mean of token embeddings here, which
needs no download and a millisecond; the authors' trajectory critic also sees only the first observation.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

FEATURE_DIM = 1408


class _Critic(nn.Module):
    """codec: anything with `prompt_ids(text) -> list of int` and a length, the size of its vocabulary."""

    def __init__(self, codec, screens: int, heads: int, seed: int, text_dim: int = 64, hidden: int = 128):
        super().__init__()
        self.codec, self.screens = codec, screens
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
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
        rows = [self.codec.prompt_ids(prompt) for prompt in prompts]
        starts = np.cumsum([0, *map(len, rows[:-1])])
        ids = torch.tensor([i for row in rows for i in row], device=weight.device)
        text = self.text(ids, torch.as_tensor(starts, device=weight.device))
        return self.body(torch.cat((text, torch.relu(self.image(screens.flatten(1)))), 1))


class StepCritic(_Critic):
    """Logits [N, 2] of a step's success: prompts [N], screens [N, 2, 1408], the newest last."""

    def __init__(self, codec, seed: int = 0):
        super().__init__(codec, screens=2, heads=2, seed=seed)


class TrajectoryCritic(_Critic):
    """Logit [N] of a trajectory's success from its first prompt and screen: screens [N, 1408]."""

    def __init__(self, codec, seed: int = 0):
        super().__init__(codec, screens=1, heads=1, seed=seed)

    def forward(self, prompts: Sequence[str], screens) -> Tensor:  # [N]
        return super().forward(prompts, screens)[:, 0]


def last_two_screens(features: np.ndarray) -> np.ndarray:
    """A trajectory's features [T, 1408] as [T, 2, 1408]: each with the one before it, the first twice."""
    before = np.concatenate((features[:1], features[:-1]))
    return np.stack((before, features), 1)
