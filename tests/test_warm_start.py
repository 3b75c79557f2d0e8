"""The warm start: what is substituted stays consistent, whitening folds away exactly, the shipped file works."""

import random

import numpy as np
import pytest
import torch

from android_env import AdbPhone, AndroidEnv, parse_action
from evaluator import RuleJudge
from loaders import WARM_START
from policy import AutoUIPolicy
from screen_features import thumbnail_features
from tasks import generate_tasks
from warm_start import Demonstration, as_action, clone, demonstrate, substitute, whitening


def made_up(seed: int = 0) -> Demonstration:
    goal = "Search for hotels in Lisbon"
    typed = 'Action Decision: "action_type": "TYPE", "touch_point": "[-1.0, -1.0]", "lift_point": "[-1.0, -1.0]", '
    typed += '"typed_text": "hotels in Lisbon"'
    prompts = (f"Previous Actions:  Goal: {goal}</s>", f"Previous Actions: {typed} Goal: {goal}</s>")
    features = np.random.default_rng(seed).normal(size=(2, 1408)).astype(np.float16)
    return Demonstration(goal, "travel", "hotels in Lisbon", prompts, features, (typed, typed), ("", ""))


def test_other_words_are_put_into_goal_and_actions_alike():
    for seed in range(50):
        new = substitute(made_up(), random.Random(seed))
        assert new.instruction == f"Search for {new.query}" and new.query
        assert all(f'"typed_text": "{new.query}"' in action for action in new.actions)
        assert all(prompt.endswith(f"Goal: {new.instruction}</s>") for prompt in new.prompts)
        assert f'"typed_text": "{new.query}"' in new.prompts[1]


def test_an_address_stays_one():
    shown = made_up()
    text = [t.replace("hotels in Lisbon", "Foo.com") for t in (shown.instruction, *shown.prompts, *shown.actions)]
    shown = Demonstration(text[0], "web_open", "Foo.com", tuple(text[1:3]), shown.features, tuple(text[3:]), ("", ""))
    queries = {substitute(shown, random.Random(seed)).query for seed in range(50)}
    assert sum(query.endswith(".com") for query in queries) >= len(queries) / 3 and len(queries) > 30


def test_whitened_features_have_unit_variance_where_there_is_any():
    rng = np.random.default_rng(0)
    features = (rng.normal(size=(2000, 5)) * [30, 3, 1, 0.5, 0]).astype(np.float32) @ rng.normal(size=(5, 5))
    mean, whiten = whitening(features, noise=1e-3)
    variances = np.linalg.eigvalsh(np.cov((features - mean) @ whiten, rowvar=False))
    assert variances[0] == pytest.approx(0, abs=1e-3) and variances[1:] == pytest.approx(1, abs=0.02)


def test_whitening_is_folded_into_the_network_exactly():
    demonstrations = [made_up(seed) for seed in range(40)]
    features = np.concatenate([d.features for d in demonstrations]).astype(np.float32)
    mean, whiten = whitening(features)
    policy, plain = AutoUIPolicy.small(seed=3), AutoUIPolicy.small(seed=3)
    clone(policy, demonstrations, steps=0)
    prompts, ids = list(demonstrations[0].prompts), [np.asarray([5, 6, 1], np.int32)] * 2
    with torch.no_grad():
        folded = policy.evaluate(prompts, features[:2], ids).logprob
        expected = plain.evaluate(prompts, (features[:2] - mean) @ whiten, ids).logprob
        raw = plain.evaluate(prompts, features[:2], ids).logprob
    assert torch.allclose(folded, expected, atol=1e-3)
    assert not torch.allclose(folded, raw, atol=1e-1)


def test_moves_become_actions_on_a_grid_of_hundredths():
    action = as_action(("tap", 100, 221), (270, 480))
    assert (action.touch, action.lift) == ((0.46, 0.37), (0.46, 0.37)) and action.is_tap
    assert as_action(("type", "a b"), (270, 480)).text == "a b"
    assert as_action(("enter",), (270, 480)).kind == "PRESS_ENTER"


def test_a_demonstration_through_adb(phones):
    task = next(t for t in generate_tasks("train", 100) if t.family == "question")
    env = AndroidEnv(AdbPhone(phones.serials[0], phones.host, phones.port), None, RuleJudge())
    shown = demonstrate(env, task, seed=1)
    assert shown.query and any(f'"typed_text": "{shown.query}"' in action for action in shown.actions)
    assert len(shown.prompts) == len(shown.features) == len(shown.actions) == len(shown.interruptions) >= 3
    assert not any(shown.interruptions)


def test_the_shipped_warm_start_finds_an_icon(phones):
    assert WARM_START.stat().st_size < 5e6
    policy = AutoUIPolicy.load(WARM_START)
    env = AndroidEnv(AdbPhone(phones.serials[0], phones.host, phones.port), None, RuleJudge())
    task = next(t for t in generate_tasks("train", 100) if t.family == "travel")
    observation, _ = env.reset(seed=1, options={"task": task})
    answer = policy.act([observation["prompt"]], thumbnail_features(observation["image"])[None], greedy=True)
    action = parse_action(answer.texts[0])
    assert action.is_tap and action.touch[0] < 0.2  # the search bar at the top
