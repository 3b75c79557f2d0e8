"""What the actors play next: training tasks, every family as often, and evaluations in front of them.

    schedule = Schedule(tasks, seed=1)
    schedule.training = True
    schedule.next()                                   # an Episode, or None when there is nothing to play now
    schedule.evaluate(held_out, "final", (True,), seed=1)

With `--sync` training episodes come in rounds: `start_round(32)` hands out 32, and the next round can begin when all of
them are `back` or lost.
"""

from __future__ import annotations

import math
import random
import threading
import zlib
from collections import Counter, deque

from tasks import Task
from worker import Episode


class Schedule:
    """What to play next. Called from the pool's thread; evaluation episodes go before training ones.

    screens: shares of the training and of the evaluation episodes that keep their screens.
    """

    def __init__(self, tasks: list[Task], seed: int, screens: tuple[float, float] = (0.0, 0.0)):
        self._families = [[t for t in tasks if t.family == f] for f in sorted({t.family for t in tasks})]
        self._random = random.Random(seed)
        self._screens = screens
        self._lock = threading.Lock()
        self._queue: deque = deque()
        self._losses: Counter = Counter()  # of an evaluation's episodes
        self._left = math.inf  # training episodes that may still be handed out in this round
        self._out = 0  # of this round: not yet back
        self.training = False
        self.number = 0  # training episodes handed out

    def rest(self) -> None:
        """No more training; what is left of evaluations on the way is dropped."""
        with self._lock:
            self.training = False
            self._queue.clear()

    def next(self):
        """The next episode, or None when there is nothing to play now."""
        with self._lock:
            if self._queue:
                return self._queue.popleft()
            if not self.training or not self._left:
                return None
            self._left -= 1
            return self._draw()

    def _draw(self) -> Episode:
        self.number += 1
        tasks = self._families[self.number % len(self._families)]  # every family as often
        task, seed = self._random.choice(tasks), self._random.getrandbits(31)
        return Episode(task, seed=seed, number=self.number, screens=self._keeps_screens("train", self.number))

    def _keeps_screens(self, split: str, number: int) -> bool:
        """Drawn from its name, not from the stream of tasks; not every Nth, which would miss families."""
        return zlib.crc32(f"{split} {number}".encode()) / 2**32 < self._screens[split != "train"]

    def skip(self, number: int) -> None:
        """Training episodes up to this number have been played: they are not handed out again."""
        with self._lock:
            while self.number < number:
                self._draw()

    def start_round(self, size: int) -> None:
        """Hand out this many training episodes, then none before the next round."""
        with self._lock:
            self._left = self._out = size

    def back(self) -> None:
        """A training episode's trajectory has come, or will never come."""
        with self._lock:
            self._out -= 1

    @property
    def in_round(self) -> bool:
        """Are episodes of this round still to come back?"""
        return self._out > 0

    def evaluate(self, tasks: list[Task], split: str, modes: tuple[bool, ...], seed: int) -> int:
        """Queue an evaluation: every task in order, once a mode (greedy or not). Returns the number of episodes.

        A mode that comes again has other seeds, hence other layouts, dialogs, failures: verdicts differ by chance.
        """
        episodes = [
            Episode(
                task, seed=seed * 100_003 + modes[:place].count(greedy) * len(tasks) + number, split=split,
                greedy=greedy, number=number, screens=self._keeps_screens(split, number),
            )  # fmt: skip
            for place, greedy in enumerate(modes)
            for number, task in enumerate(tasks)
        ]
        with self._lock:
            self._queue.extend(episodes)
        return len(episodes)

    def lost(self, episode) -> bool:
        """Its worker died: an evaluation episode is played again, a training one is not missed.

        False: this evaluation episode has lost its third worker; it is given up, and remains without a verdict.
        """
        if episode.split == "train":
            self.back()
            return True
        with self._lock:
            self._losses[episode] += 1
            if self._losses[episode] >= 3:
                return False
            self._queue.appendleft(episode)
            return True

    def state_dict(self) -> dict:
        """Where the order of tasks stands."""
        with self._lock:
            version, internal, gauss = self._random.getstate()
            return {"version": version, "internal": list(internal), "gauss": gauss, "number": self.number}

    def load_state_dict(self, state: dict) -> None:
        """Inverse of `state_dict`."""
        self._random.setstate((state["version"], tuple(state["internal"]), state["gauss"]))
        self.number = state["number"]
