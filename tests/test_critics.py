"""The critics: they learn from text and screen, are repeatable, and refuse other shapes."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.nn.utils import parameters_to_vector

from autoui import FEATURE_DIM
from critics import StepCritic, TrajectoryCritic, last_two_screens
from tokenizer import Codec, build_tokenizer

PROMPTS = [
    f"Previous Actions:  Goal: {goal}"
    for goal in ("Open the clock", "x", "Install Lyft", "a b", "Go to ebay.com")
]
CODEC = Codec(build_tokenizer())


def test_critics_learn_what_is_in_text_and_screen():
    rng = np.random.default_rng(0)
    screens = rng.uniform(-1, 1, (64, 2, FEATURE_DIM)).astype(np.float32)
    prompts = [PROMPTS[i % len(PROMPTS)] for i in range(64)]
    good = torch.tensor([float((i % len(PROMPTS) == 1) and i < 32) for i in range(64)])
    screens[:32, 1, :40] += 1
    critics = (StepCritic(CODEC), screens), (TrajectoryCritic(CODEC), screens[:, 1])
    for critic, inputs in critics:
        optimizer = torch.optim.Adam(critic.parameters(), lr=1e-2)
        for _ in range(60):
            logits = critic(prompts, inputs)
            labels = good.view(-1, *[1] * (logits.ndim - 1)).expand_as(logits)
            loss = F.binary_cross_entropy_with_logits(logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert loss < 0.05


def test_shapes_and_seeds():
    critic = StepCritic(CODEC, seed=3)
    x = np.zeros((2, 2, FEATURE_DIM), np.float16)
    assert critic(PROMPTS[:2], x).shape == (2, 2)
    assert TrajectoryCritic(CODEC)(PROMPTS[:2], x[:, 0]).shape == (2,)
    same = StepCritic(CODEC, seed=3)
    assert torch.equal(parameters_to_vector(critic.parameters()), parameters_to_vector(same.parameters()))
    with pytest.raises(ValueError, match="screens have shape"):
        critic(PROMPTS[:2], x[:, 0])
    steps = np.arange(3 * FEATURE_DIM).reshape(3, FEATURE_DIM)
    pairs = last_two_screens(steps)
    assert (pairs[:, 1] == steps).all() and (pairs[0, 0] == steps[0]).all()
    assert (pairs[1:, 0] == steps[:-1]).all()
