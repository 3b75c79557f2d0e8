"""What runs on a node of a Ray cluster for ray_pool.py: its phones, its workers, its policy server, as one Ray actor.

    kind = ray.remote(NodeActors).options(num_cpus=1, max_concurrency=4, ...)       # several calls at a time
    node = kind.remote(cluster, 0, size, how); node.start.remote(policy, weights, version, latency, 120.0)
    report = ray.get(node.exchange.remote(arrived, [(ticket, episode)], 1.0))

A finished trajectory is told again in every report until the caller has said that it arrived.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from evaluator import JudgeConfig
from worker import COUNTS, Episode


class NodeActors:
    """A Ray actor: phones, workers and policy server of one node. Its methods are called from several threads."""

    def __init__(self, cluster, number: int, size: int, how: dict):
        # A child of multiprocessing imports its parent's main module, which is Ray's here.
        sys.modules["__main__"].__file__ = None
        self._cluster, self._number, self._size, self._how = cluster, number, size, how
        self._todo: deque[Episode] = deque()
        self._tickets: dict[int, int] = {}  # id(episode) -> ticket
        self._newest = 0  # ticket
        self._finished: dict[int, tuple[Episode, bytes | None]] = {}  # ticket -> its trajectory, None: lost
        self._news = threading.Event()
        self._stack = ExitStack()

    def start(self, policy: bytes, weights: np.ndarray, version: int, latency: float, timeout: float) -> dict:
        """Start everything; returns when all workers answer. UsageError, RuntimeError: as on one machine."""
        from actor_pool import ActorPool
        from phone_source import phone_source
        from shared_weights import SharedWeights

        cluster, number = self._cluster, self._number
        seed = cluster.seed + 1000 * number
        judge = self._how.get("judge", JudgeConfig()).kind
        source = phone_source(cluster.phones, seed=seed, families=cluster.families, judge=judge)
        self.phones = self._stack.enter_context(source)
        path = Path(f"policy-{os.getpid()}.safetensors").absolute()  # Ray removes this folder
        path.write_bytes(policy)
        self.pool = ActorPool(
            self.phones.addresses, path, lambda context: SharedWeights(context, self._size),
            next_episode=self._next, on_trajectory=self._keep, on_lost=lambda episode: self._keep(episode, None),
            restart_phone=self.phones.restart, first_index=number * cluster.phones.workers_per_node,
            **self._how | {"seed": self._how["seed"] + number},
        )  # fmt: skip
        self._stack.callback(self.pool.stop)
        self.publish(weights, version)
        self.phones.set_latency(latency)
        self.pool.start(timeout)
        return self._report()

    def _next(self) -> Episode | None:
        return self._todo.popleft() if self._todo else None

    def _keep(self, episode: Episode, data: bytes | None) -> None:
        self._finished[self._tickets.pop(id(episode))] = (episode, data)
        self._news.set()

    def exchange(self, arrived: list[int], episodes: list[tuple[int, Episode]], seconds: float) -> dict:
        """Takes episodes to play, each with its ticket; returns as soon as some are finished, or after `seconds`.

        arrived: tickets that need not be told again. May be called again with the same arguments.
        RuntimeError: the pool has given up, and all that it had finished has arrived.
        """
        for ticket in arrived:
            self._finished.pop(ticket, None)
        for ticket, episode in episodes:
            if ticket > self._newest:
                self._newest = ticket
                self._tickets[id(episode)] = ticket
                self._todo.append(episode)
        self._news.clear()
        if not self._finished:
            self._news.wait(seconds)
        error, report = self.pool.error, self._report()
        if error and not report["finished"]:  # what is finished goes first: the caller buries this node when it raises
            raise RuntimeError(str(error)) from error
        return report

    def _report(self) -> dict:
        counts = {name: getattr(self.pool, name) for name in COUNTS}
        done = [(ticket, data) for ticket, (_, data) in list(self._finished.items())]
        return {"finished": done, "alive": self.pool.alive, "said": self.pool.last_error, "counts": counts}

    def publish(self, weights: np.ndarray, version: int) -> int:
        """One float32 array with all weights, from Ray's store, into this node's shared memory."""
        if version > self.pool.weights.version:  # else a call that had arrived is made again
            self.pool.weights.publish([weights], version)
        return version

    def set_latency(self, latency: float) -> float:
        self.phones.set_latency(latency)
        return latency

    def stop(self) -> dict:
        """Ends all processes; returns what was still finished."""
        self._stack.close()
        return self._report()
