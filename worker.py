"""The actor side: a worker plays episodes on its phone, the policy server answers what all workers ask.

    worker (no torch)  -- prompt, screen feature -->  policy server (torch)      one pipe a worker
                       <-- action text, token ids, log mu, version --
                       -- with BLIP-2: screenshot -->, <-- its feature --

A worker owns one phone and one environment, costs some MB and starts in no time. The policy server answers whatever is
waiting in one batch, with the newest weights. Both are processes of an `ActorPool` (actor_pool.py); `rollout` alone is
an episode loop for any environment and any policy:

    trajectory = rollout(env, Episode(task, seed=0), act)         # act(prompt, feature, greedy) -> Sample

The server's choices, on 2 cores (benchmarks/README.md: bench_server.py, bench_stall.py, bench_sampling.py)
  - one server, not a copy a worker: 2.8 and 5.6 times the tokens a second with 8 and 32 workers at T5-base size;
  - at that size all cores (with one thread, and without the wait below, 1.4 and 2.8 times), a small policy one thread:
    with two, an answer took 72 ms instead of 17, a learner's update 417 instead of 213;
  - it waits 2 % of the last batch's time for a fuller one: mean batches of 8.0 and 32.0 instead of 6.0 and 23.9;
  - batches of 32 at most: at that size a token costs half as much as in batches of 8;
  - the learner's priority: an answer takes 17 ms beside it, 14 without it; updates 213, 198. Nicer gained nothing;
  - denormals flushed, as the learner does, whose step is 1.6 times faster for it at that size (bench_learner.py);
  - weights looked at once a batch, which costs a comparison.

Departs from the authors' code: the log-prob of each token is stored when it is sampled, never recomputed from text; no
process is restarted between trajectories.
"""

from __future__ import annotations

import base64
import ctypes
import io
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path

import numpy as np
from PIL import Image

from android_env import AdbPhone, AndroidEnv, AndroidEnvError, shown_action
from evaluator import JudgeConfig, make_judge
from replay import Trajectory
from screen_features import thumbnail_features
from shared_weights import SharedWeights
from tasks import Task

OUTAGES = 3  # in a row, then the phone is restarted
BATCH_WAIT = 0.02  # share of the last batch's time that the policy server waits for a fuller one
RESTART_PHONE = 3  # exit code of a worker that asks for it
COUNTS = ("env_steps", "restarts", "phone_restarts", "server_restarts")  # attributes of every pool of workers


@dataclass(frozen=True)
class PhoneAddress:
    """Where a phone is: its serial, and the adb server that knows it; how it is driven."""

    serial: str
    host: str
    port: int
    reset_mode: str = "clear"  # of `AndroidEnv`
    settle: float = 0.0  # s
    timeout: float = 20.0  # s a command may take
    boot_timeout: float = 60.0  # s that it may need to come back
    installed: tuple[str, ...] | None = None  # third-party packages that belong on it, for the modes that clear

    def connect(self) -> AdbPhone:
        """The phone, to be driven."""
        phone = AdbPhone(self.serial, self.host, self.port, self.timeout)
        phone.boot_timeout = self.boot_timeout
        return phone

    @property
    def env_options(self) -> dict:
        """What `AndroidEnv` needs to know of it."""
        return {"reset_mode": self.reset_mode, "settle": self.settle, "installed": self.installed}


@dataclass(frozen=True)
class Episode:
    """One attempt to ask a worker for."""

    task: Task
    seed: int
    split: str = "train"  # "train", or the name of an evaluation
    greedy: bool = False
    number: int = 0
    screens: bool = False  # keep them with the trajectory


@dataclass(frozen=True)
class Sample:
    """What the policy answers to one observation."""

    text: str
    token_ids: np.ndarray  # int32 [L]
    logprobs: np.ndarray  # float32 [L], under the distribution that was sampled from
    version: int
    batch: int = 1  # how many observations were answered together


def rollout(
    env: AndroidEnv, episode: Episode, act: Callable[..., Sample], heartbeat=lambda: None, see=thumbnail_features,
    validity: bool = False,
) -> Trajectory:  # fmt: skip
    """Play one episode. `act(prompt, feature, greedy)` answers each observation, `see(image)` gives its feature.

    `validity`: the judge may call an action invalid too. Screens without a verdict go along in `info["unjudged"]`, for
    rejudge.py.
    """
    began, policy_seconds, batches = time.monotonic(), 0.0, []

    def answer(ask: Callable, *question):  # the phone waits meanwhile
        nonlocal policy_seconds
        asked = time.monotonic()
        answered = ask(*question)
        policy_seconds += time.monotonic() - asked
        return answered

    observation, info = env.reset(seed=episode.seed, options={"task": episode.task})
    doubts = getattr(env.judge, "valid", None) if validity else None
    prompts, features = [observation["prompt"]], [answer(see, observation["image"])]
    actions, token_ids, logprobs, rewards, invalid, versions = [], [], [], [], [], []
    kept = [small_jpeg(observation["image"])] if episode.screens else []  # screens
    terminated = truncated = False
    untyped = 0  # texts that the phone has no keyboard for
    while not (terminated or truncated):
        seen = observation["image"]
        sample = answer(act, prompts[-1], features[-1], episode.greedy)
        observation, reward, terminated, truncated, info = env.step(sample.text)
        refused = doubts and not info["invalid"] and doubts(
            episode.task, seen, [shown_action(text) for text in actions[-2:]], shown_action(sample.text)
        )
        untyped += bool(info.get("unsupported_text"))
        prompts.append(observation["prompt"])
        features.append(answer(see, observation["image"]))
        if episode.screens:
            kept.append(small_jpeg(observation["image"]))
        actions.append(sample.text)
        token_ids.append(sample.token_ids)
        logprobs.append(sample.logprobs)
        rewards.append(reward)
        invalid.append(info["invalid"] or bool(refused))
        versions.append(sample.version)
        batches.append(sample.batch)
        heartbeat()
    success, extra = info.get("success"), {}
    reason = str(info.get("error") or info.get("verdict_reason") or "")
    if info.get("trivial_success"):  # it says nothing about the policy: in no rate, in no update
        success, reason, extra = None, "done before the first action", {"trivial_success": True}
    elif info.get("doubtful_success"):  # other screens cannot settle it: rejudge.py gets none
        pass
    elif success is None and not info.get("error") and getattr(env.judge, "unjudged", None):
        screens = env.judge.unjudged
        extra = {"unjudged": [[step, [base64.b64encode(png).decode() for png in pngs]] for step, pngs in screens]}
    parts = getattr(env, "seconds", {}) | {"policy": policy_seconds}
    return Trajectory(
        instruction=episode.task.instruction,
        family=episode.task.family,
        prompts=prompts,
        features=np.stack(features).astype(np.float16),
        actions=actions,
        token_ids=token_ids,
        logprobs=logprobs,
        rewards=np.asarray(rewards, np.float32),
        invalid=np.asarray(invalid, bool),
        policy_version=np.asarray(versions, np.int64),
        terminated=terminated,
        truncated=truncated,
        success=None if info.get("error") else success,
        info={
            "split": episode.split,
            "seed": episode.seed,
            "number": episode.number,
            "greedy": episode.greedy,
            "serial": env.phone.serial,
            "reason": reason,
            "seconds": time.monotonic() - began,
            "policy_seconds": policy_seconds,
            "outage": "error" in info,
            "server_batch": float(np.mean(batches)),
            "parts": {part: round(spent, 4) for part, spent in parts.items()},
            **({"unsupported_text": untyped} if untyped else {}),
            **({"screens": kept} if kept else {}),
            **extra,
        },
    )


def small_jpeg(image: np.ndarray) -> str:
    """A screenshot uint8 [H, W, 3] as a small JPEG, 240 to 479 pixels wide, in base64: for report.html."""
    picture, file = Image.fromarray(image), io.BytesIO()
    picture.reduce(max(1, picture.width // 240)).save(file, "JPEG", quality=40)
    return base64.b64encode(file.getvalue()).decode()


def worker(
    index: int, address: PhoneAddress, env_options: dict, judging: JudgeConfig, episodes: Connection,
    policy: Connection, blip2: bool = False,
) -> None:  # fmt: skip
    """A worker process: one phone, episodes in, trajectories out. blip2: the policy server looks at its screens."""
    _follow_parent(f"worker {index}")
    phone = address.connect()

    def wait_on() -> None:  # so that waiting is not taken for hanging
        episodes.send(("wait", None))

    phone.on_wait = wait_on
    judge = make_judge(judging, heartbeat=wait_on)
    env = AndroidEnv(phone, None, judge, **address.env_options | env_options)

    def act(prompt: str, feature: np.ndarray, greedy: bool) -> Sample:
        policy.send((prompt, feature, greedy))
        return policy.recv()

    def see(image: np.ndarray) -> np.ndarray:
        policy.send(image)
        return policy.recv()

    options = dict(
        heartbeat=lambda: episodes.send(("step", None)), see=see if blip2 else thumbnail_features,
        validity=judging.validity,
    )  # fmt: skip
    failures = 0
    episodes.send(("ready", None))
    try:
        while (episode := episodes.recv()) is not None:
            while True:
                try:
                    trajectory = rollout(env, episode, act, **options)
                except AndroidEnvError as error:  # the phone could not even be reset
                    failures += 1
                    episodes.send(("phone_error", str(error)))
                else:
                    failures = failures + 1 if trajectory.info["outage"] else 0
                    if failures:
                        episodes.send(("phone_error", trajectory.info["reason"]))
                    trajectory.info["worker"] = index
                    episodes.send(("trajectory", trajectory.to_bytes()))
                    break
                finally:
                    if failures >= OUTAGES:
                        sys.exit(RESTART_PHONE)
    except (EOFError, BrokenPipeError, ConnectionResetError):  # main process or policy server has gone
        return


def policy_server(
    policy_path: Path, weights: SharedWeights, control: Connection, max_batch: int, seed: int,
    init_fusion: bool = False, precision: str = "fp32", lora: int = 0, blip2: Path | None = None, device: str = "cpu",
) -> None:  # fmt: skip
    """The policy server process: answers whatever is waiting, with the newest weights.

    The options must be the learner's: they say what `weights` holds (lora.py). blip2: folder of the vision encoder
    that screenshots sent by workers are given to. device: cpu, cuda, cuda:N.
    """
    _follow_parent("policy server")
    import torch

    from devices import num_threads
    from lora import Receiver
    from policy import AutoUIPolicy
    from screen_features import Blip2Features

    torch.set_flush_denormal(True)
    torch.set_num_threads(1)  # else loading starts threads that stay
    policy = AutoUIPolicy.load(policy_path, init_fusion=init_fusion).to(device)
    torch.set_num_threads(num_threads(policy))
    receiver = Receiver(policy, precision, lora)
    see = Blip2Features(blip2).to(device) if blip2 else None
    generator = torch.Generator().manual_seed(seed)
    version, workers, took = 0, set(), 0.0
    control.send("ready")
    while True:
        requests, screens = [], []
        found, until = wait([control, *workers]), time.monotonic() + BATCH_WAIT * took
        while found:
            for ready in found:
                try:
                    message = ready.recv()
                except (EOFError, OSError):  # it has ended, perhaps in the middle of a message, or was stopped there
                    if ready is control:
                        return
                    workers.discard(ready)
                    ready.close()
                    continue
                if ready is control:
                    workers.add(message)
                elif isinstance(message, np.ndarray):
                    screens.append((ready, message))
                else:
                    requests.append((ready, *message))
            left = until - time.monotonic() if len(requests) + len(screens) < len(workers) else 0.0
            found = wait([control, *workers], left) if left > 0 else []
        began = time.monotonic()
        newest = weights.read(receiver.arrays, newer_than=version)
        if newest != version:
            receiver.apply()
            version = newest
        for start in range(0, len(screens), max_batch):
            connections, images = zip(*screens[start : start + max_batch], strict=True)
            for connection, feature in zip(connections, see.batch(images), strict=True):
                _send(connection, feature)
        for greedy in (False, True):
            chosen = [r for r in requests if r[3] == greedy]
            for start in range(0, len(chosen), max_batch):
                _answer(policy, chosen[start : start + max_batch], greedy, generator, version)
        took = time.monotonic() - began


def _answer(policy, requests: list, greedy: bool, generator, version: int) -> None:
    connections, prompts, features, _ = zip(*requests, strict=True)
    output = policy.act(list(prompts), np.stack(features), greedy=greedy, generator=generator)
    for row, connection in enumerate(connections):
        sample = Sample(output.texts[row], output.token_ids[row], output.logprobs[row], version, len(requests))
        _send(connection, sample)


def _send(connection: Connection, answer) -> None:
    try:
        connection.send(answer)
    except OSError:
        pass  # that worker has died; its pipe is dropped at the next wait, or was while others were waited for


def _follow_parent(name: str) -> None:
    """Leave Ctrl-C to the main process, and leave with it; `name` is what `ps` and `top` show."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(name)
    parent = multiprocessing.parent_process()
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()


def die_with_parent(name: str) -> None:
    """On Linux this process, from now on `name`, is killed when its parent ends, even while it is stopped.

    The parent of all others is the fork server, which does the same (fork_server.py).
    """
    if sys.platform == "linux":
        prctl = ctypes.CDLL(None).prctl
        prctl(1, ctypes.c_ulong(signal.SIGKILL))  # PR_SET_PDEATHSIG
        prctl(15, ctypes.c_char_p(name.encode()))  # PR_SET_NAME
