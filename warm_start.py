"""The warm start: behaviour cloning on a scripted demonstrator, in the place of the paper's supervised Auto-UI.

    python warm_start.py                   # rebuilds warm_start.safetensors, the file that run_distrl.py starts from

The demonstrator (sim/demonstrator.py) plays training instructions on simulated phones through adb; the policy learns
its actions by maximum likelihood. Steps that answer a dialog or a failed load hardly count (`INTERRUPTIONS`), as human
demonstrations hardly have any: what a supervised agent lacks in the field is what reinforcement learning is there for.

Copying the goal's words into TYPE is the hard part for a small network, and it must work for words never seen: in every
epoch the words that the demonstrator typed are replaced, in the goal and in the actions alike, by random ones
(`substitute`). Loss on every token of the action, AdamW, learning rate falling to 0 along a cosine.

Departs from the paper: its Auto-UI was trained on 715,000 human episodes of Android in the Wild.
"""

from __future__ import annotations

import math
import queue
import random
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tokenizer import WORDS


@dataclass(frozen=True)
class Demonstration:
    """A successful episode of the demonstrator: T prompts, T features, T action texts, and the span it typed.

    `interruptions` [T]: "" or the key of `INTERRUPTIONS` that the screen showed.
    """

    instruction: str
    family: str
    query: str
    prompts: tuple[str, ...]
    features: np.ndarray  # float16 [T, 1408]
    actions: tuple[str, ...]
    interruptions: tuple[str, ...]


# Texts that only a dialog, a failed load or a slow one shows, and the weight of a step that answers it, against 1. By
# chance every run soon finds "Allow", but not "Wait" or "Retry": HOME leads away from a failed load too, and round in
# circles. The effect is steep: the clone's mean probability of "Allow" on new phones was 0.49 at weight 0.003 (8,000
# steps), 0.01 at 0.0018 (6,000 steps); that of "Wait" 0.00 at 0.005 (3,800 steps), 0.20 at 0.012 (6,000 steps).
INTERRUPTIONS = {"Allow": 0.0018, "Wait": 0.012, "Loading": 0.003, "Retry": 0.006}
FIRST_SLIP, SLIP = 0.3, 0.06  # probability of a slip before the first recorded step, and before a later one


def collect_demonstrations(
    num: int, *, seed: int = 0, num_phones: int = 128, dialogs: float = 0.1, failed_loads: float = 0.1
) -> list[Demonstration]:
    """`num` successful demonstrations of training instructions, every family as often."""
    from sim import start_phones
    from tasks import generate_tasks

    jobs: queue.SimpleQueue = queue.SimpleQueue()
    for number, task in enumerate(generate_tasks("train", num + num // 5, seed)):
        jobs.put((seed * 100_003 + number, task))
    done: list[Demonstration] = []
    errors: list[BaseException] = []

    def play(host: str, port: int, serial: str) -> None:
        from android_env import AdbPhone, AndroidEnv
        from evaluator import RuleJudge

        env = AndroidEnv(AdbPhone(serial, host, port), None, RuleJudge())
        while len(done) < num and not errors:
            try:
                episode_seed, task = jobs.get_nowait()
                demonstration = demonstrate(env, task, episode_seed)
            except queue.Empty:
                return
            except Exception as error:  # a thread's error must reach the caller
                errors.append(error)
                return
            if demonstration:
                done.append(demonstration)

    # Many phones, because every one has its own icon layout.
    with start_phones(num_phones, seed=seed + 1000, latency=0.0, dialogs=dialogs, failed_loads=failed_loads) as phones:
        threads = [threading.Thread(target=play, args=(phones.host, phones.port, s)) for s in phones.serials]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]
    return done[:num]


def demonstrate(env, task, seed: int) -> Demonstration | None:
    """One episode of the demonstrator through the environment; None when the judge did not say success.

    Now and then its hand slips to something else on the screen. The slip is not recorded, the way back is: without such
    steps a policy that has opened the wrong app knows no next step at all.
    """
    from action_text import format_action
    from screen_features import thumbnail_features
    from sim.demonstrator import next_action

    observation, info = env.reset(seed=seed, options={"task": task})
    prompts, features, actions, interruptions, memory = [], [], [], [], {}
    rng, terminated, truncated = random.Random(seed), False, False
    while not (terminated or truncated):
        screen = env.judge.screens[-1]
        targets = [node for node in screen.nodes if node.clickable]
        if targets and rng.random() < (SLIP if actions else FIRST_SLIP):
            slip = as_action(("tap", *rng.choice(targets).center), env.phone.size)
            observation, _, terminated, truncated, info = env.step(format_action(slip))
            continue
        action = format_action(as_action(next_action(task, screen, memory), env.phone.size))
        prompts.append(observation["prompt"])
        features.append(thumbnail_features(observation["image"]))
        actions.append(action)
        interruptions.append(next((text for text in INTERRUPTIONS if text in screen.texts), ""))
        observation, _, terminated, truncated, info = env.step(action)
    if not info["success"] or not actions:
        return None
    query = task.slot("query")
    return Demonstration(
        task.instruction, task.family, query, tuple(prompts), np.asarray(features, np.float16), tuple(actions),
        tuple(interruptions),
    )  # fmt: skip


def as_action(move: tuple, size: tuple[int, int]):
    """The demonstrator's move in pixels as an action in [0, 1], on a grid of 0.01: fewer different taps to learn."""
    from action_text import Action

    def point(x: float, y: float) -> tuple[float, float]:
        return round(y / size[1], 2), round(x / size[0], 2)

    kind, *arguments = move
    if kind == "tap":
        return Action("DUAL_POINT", point(*arguments), point(*arguments))
    if kind == "swipe":
        return Action("DUAL_POINT", point(*arguments[:2]), point(*arguments[2:4]))
    if kind == "type":
        return Action("TYPE", text=arguments[0])
    keys = {"enter": "PRESS_ENTER", "back": "PRESS_BACK", "home": "PRESS_HOME", "complete": "STATUS_TASK_COMPLETE"}
    return Action(keys[kind])


def random_word(rng: random.Random) -> str:
    """A known word, a made-up one, a number or a mixture, now and then capitalised or joined by a hyphen."""
    kind = rng.random()
    if kind < 0.35:
        word = rng.choice(WORDS)
    elif kind < 0.85:
        letters = "bcdfghjklmnprstvwxz", "aeiouy"
        word = "".join(rng.choice(letters[(i + rng.randrange(4) // 3) % 2]) for i in range(rng.randint(1, 9)))
    elif kind < 0.95:
        word = str(rng.randrange(10 ** rng.randint(1, 4)))
    else:
        word = f"{rng.choice('abcdefghijklmnopqrstuvwxyz')}{rng.randrange(100)}"
    if rng.random() < 0.2:
        word = word.capitalize()
    return f"{word}-{random_word(rng)}" if rng.random() < 0.05 else word


def substitute(demonstration: Demonstration, rng: random.Random) -> Demonstration:
    """The same demonstration with other words in its query, in the goal and in what is typed."""
    query = demonstration.query
    typed = f'"typed_text": "{query}"'
    if not query or demonstration.instruction.count(query) != 1 or not any(typed in a for a in demonstration.actions):
        return demonstration
    words = query.split()
    if rng.random() < 0.5:  # only some of the words change: "capital of <new>", "<new>.com"
        ends = [".com" if word.endswith(".com") else "" for word in words]
        changed_words = zip(words, ends, strict=True)
        new = " ".join(word if rng.random() < 0.5 else random_word(rng) + end for word, end in changed_words)
    else:
        new = " ".join(random_word(rng) for _ in range(max(1, len(words) + rng.randint(-1, 1))))
    goal = demonstration.instruction.replace(query, new)

    def changed(text: str) -> str:
        return text.replace(demonstration.instruction, goal).replace(typed, f'"typed_text": "{new}"')

    return replace(
        demonstration, instruction=goal, query=new, prompts=tuple(map(changed, demonstration.prompts)),
        actions=tuple(map(changed, demonstration.actions)),
    )  # fmt: skip


def whitening(features: np.ndarray, noise: float = 1e-2) -> tuple[np.ndarray, np.ndarray]:
    """Mean [F] and symmetric matrix [F, F] that give `features` [N, F] unit variance in every direction above `noise`.

    Which screen it is moves the features far more than where an icon is. Learning on whitened features finds icons
    several times sooner; as the map is linear, it is folded into the network's first image layer afterwards.
    """
    mean = features.mean(0)
    variances, axes = np.linalg.eigh(np.cov(features, rowvar=False))
    return mean, ((axes / np.sqrt(np.maximum(variances, 0) + noise)) @ axes.T).astype(np.float32)


def clone(
    policy, demonstrations: Sequence[Demonstration], *, steps: int, batch: int = 96, learning_rate: float = 2e-3,
    seed: int = 0, substitution: float = 0.7, progress=print,
) -> float:  # fmt: skip
    """Maximum likelihood of the demonstrated actions. Returns the mean loss a token of the last 100 steps."""
    import torch

    rng = random.Random(seed)
    mean, whiten = whitening(np.concatenate([d.features for d in demonstrations]).astype(np.float32))
    demonstrations = [replace(d, features=(d.features - mean) @ whiten) for d in demonstrations]
    families = sorted({d.family for d in demonstrations})
    by_family = {f: [d for d in demonstrations if d.family == f] for f in families}
    optimizer = torch.optim.AdamW(policy.parameters(), lr=learning_rate, betas=(0.9, 0.99), weight_decay=0.01)
    policy.train()
    losses, began = [], time.monotonic()
    for step in range(steps):
        rate = min(1.0, (step + 1) / 100) * 0.5 * (1 + math.cos(math.pi * step / steps))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * rate
        rows = []
        while len(rows) < batch:
            demonstration = rng.choice(by_family[rng.choice(families)])
            if rng.random() < substitution:
                demonstration = substitute(demonstration, rng)
            # Two kinds of step are hard and worth more: finding an icon first, and typing, which must be exact.
            weights = [3.0 if '"TYPE"' in a or not i else 1.0 for i, a in enumerate(demonstration.actions)]
            shown = zip(weights, demonstration.interruptions, strict=True)
            weights = [weight * INTERRUPTIONS.get(interruption, 1.0) for weight, interruption in shown]
            for index in rng.choices(range(len(weights)), weights, k=3):
                rows.append((demonstration.prompts[index], demonstration.features[index], demonstration.actions[index]))
        rows.sort(key=lambda row: len(row[2]))
        prompts, features, actions = zip(*rows, strict=True)
        token_ids = [np.asarray(policy.codec.action_ids(a), np.int32) for a in actions]
        evaluation = policy.evaluate(list(prompts), np.stack(features), token_ids)
        loss = -evaluation.token_logprob[evaluation.mask].mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        losses.append(float(loss.detach()))
        if progress and (step + 1) % 250 == 0:
            recent = sum(losses[-100:]) / len(losses[-100:])
            progress(f"  step {step + 1}/{steps}  loss {recent:.4f}  {time.monotonic() - began:.0f} s")
    policy.eval()
    layer = policy.network.image_dense
    with torch.no_grad():  # W whiten (x - mean) + b, for features as they come
        layer.weight.copy_(layer.weight @ torch.from_numpy(whiten))
        layer.bias.sub_(layer.weight @ torch.from_numpy(mean))
    return sum(losses[-100:]) / max(len(losses[-100:]), 1)


def build(path: Path, *, demonstrations: int = 16_000, steps: int = 6000, seed: int = 0) -> None:
    """Collect, clone and write the policy to `path`.

    Half of the demonstrations each come from two lots of 128 phones: what a policy has not seen enough layouts of, it
    does not find icons on (first tap on new phones: 0.85 right after 3,600 demonstrations on 128 layouts, 0.98 now).
    """
    import torch

    from policy import AutoUIPolicy

    torch.set_flush_denormal(True)
    began = time.monotonic()
    collected = [d for lot in (0, 1) for d in collect_demonstrations(demonstrations // 2, seed=seed + lot)]
    print(f"{len(collected)} demonstrations after {time.monotonic() - began:.0f} s")
    policy = AutoUIPolicy.small(seed=seed)
    loss = clone(policy, collected, steps=steps, seed=seed)
    policy.save(path)
    print(f"Wrote {path} ({path.stat().st_size / 1e6:.1f} MB), loss {loss:.4f}, {time.monotonic() - began:.0f} s")


@dataclass
class Args:
    out: Path = Path(__file__).resolve().parent / "warm_start.safetensors"
    """where to write the policy"""
    demonstrations: int = 16_000
    """successful demonstrations to learn from"""
    steps: int = 6000
    """optimiser steps, 96 actions each"""
    seed: int = 0
    """seed of tasks, phones and network"""


if __name__ == "__main__":
    import tyro

    if {"-h", "--help"} & set(sys.argv):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `--help | head` is no error
    args = tyro.cli(Args, description=__doc__)
    build(args.out, demonstrations=args.demonstrations, steps=args.steps, seed=args.seed)
