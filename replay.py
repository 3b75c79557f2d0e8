"""Trajectories, and a replay that draws whole ones by priority (DPER, arXiv 2410.14803). Needs numpy only.

    P(tau) = p(tau)^alpha / sum of p^alpha over the buffer,   alpha = 0.5,   p(tau) under the latest policy

`PrioritizedReplay` holds the newest trajectories that fit `capacity` transitions, drops whole ones oldest
first, and lets a new one in at the highest priority. `SumTree` draws 256 of a million in microseconds.
`Trajectory.to_bytes` is what workers send and the journal keeps.

Example:
    >>> import numpy as np; from replay import PrioritizedReplay, Trajectory
    >>> step = dict(token_ids=[[5, 1]], logprobs=[[-0.1, -0.2]], rewards=[1.0], invalid=[False])
    >>> t = Trajectory("go home", "home", ["p0", "p1"], np.zeros((2, 8)), ["press home"], **step,
    ...                policy_version=[3], terminated=True, truncated=False, success=True)
    >>> replay = PrioritizedReplay(capacity=1000); id = replay.add(Trajectory.from_bytes(t.to_bytes()))
    >>> ids, trajectories, weights = replay.sample(4); replay.update_priorities(ids, [0.7] * 4)
    4

Departs from the paper: importance weights (`beta`) and a top-quantile filter by R - V_traj within the buffer (`top`),
both off. Departs from the authors' code: the tree is what sampling reads; whole trajectories, their last step
included, instead of windows; no priority is stored twice.
"""

import io
import json
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np


class NotEnoughData(RuntimeError):
    """Nothing, or too little, to draw from yet."""


@dataclass(eq=False)
class Trajectory:
    """One episode of T actions: T+1 observations, and for each action its tokens, log-probs and reward. `token_ids` and
    `logprobs` are what was sampled and log mu of each token, temperature included. `success` is None if the judge could
    not tell. Copied, as the types below; a ValueError names what does not fit."""

    instruction: str
    family: str
    prompts: list[str]  # T+1
    features: np.ndarray  # float16 [T+1, F]
    actions: list[str]  # T
    token_ids: list[np.ndarray]  # T x int32 [L]
    logprobs: list[np.ndarray]  # T x float32 [L]
    rewards: np.ndarray  # float32 [T]
    invalid: np.ndarray  # bool [T]
    policy_version: np.ndarray  # int64 [T]
    terminated: bool
    truncated: bool
    success: bool | None = None
    info: dict = field(default_factory=dict)  # JSON-able: worker, seed, reason, seconds, ...

    def __post_init__(self):
        self.prompts, self.actions = list(self.prompts), list(self.actions)
        given_ids = [np.atleast_1d(np.asarray(x)) for x in self.token_ids]
        with np.errstate(over="ignore", invalid="ignore"):  # what a type cannot hold is refused below
            self.features = np.asarray(self.features, dtype=np.float16).copy()  # a buffer may be used again
            self.token_ids = [x.astype(np.int32) for x in given_ids]
            for name, dtype in (("rewards", np.float32), ("invalid", bool), ("policy_version", np.int64)):
                given, x = (np.asarray(getattr(self, name), dtype=kind) for kind in (None, dtype))
                if given.dtype.kind in "USc" or dtype is not np.float32 and (x != given).any():
                    raise ValueError(f"{name} must be of {np.dtype(dtype)}, got {given.tolist()}")
                setattr(self, name, x.copy())
        self.logprobs = [np.atleast_1d(np.asarray(x, dtype=np.float32).copy()) for x in self.logprobs]
        ends = "True or False"
        for name, words in (("terminated", ends), ("truncated", ends), ("success", "True, False or None")):
            x = getattr(self, name)
            if x not in (False, True, None) or x is None and words == ends:  # "failure" would be a success
                raise ValueError(f"{name} must be {words}, got {x!r}")
            setattr(self, name, None if x is None else bool(x))
        steps = len(self.actions)
        if not steps or not (self.terminated or self.truncated):
            raise ValueError(f"a trajectory of {steps} actions, terminated {self.terminated}, truncated "
                             f"{self.truncated}: it needs an action and an end (one cut short is truncated)")
        for name in ("prompts", "features", "token_ids", "logprobs", "rewards", "invalid", "policy_version"):
            x, want = getattr(self, name), steps + (name in ("prompts", "features"))
            shape = x.shape if isinstance(x, np.ndarray) else (len(x),)
            if shape[:1] != (want,) or len(shape) != 1 + (name == "features"):
                raise ValueError(f"{steps} actions need {want} {name}, got {shape} (prompts and features "
                                 "[T+1, F] have one more: what was seen after the last action)")
        for name in ("features", "rewards"):
            if not np.isfinite(getattr(self, name)).all():
                raise ValueError(f"{name} holds NaN, infinities or more than {getattr(self, name).dtype} can")
        for i, (given, tokens, logprobs) in enumerate(zip(given_ids, self.token_ids, self.logprobs, strict=True)):
            if tokens.ndim != 1 or tokens.shape != logprobs.shape or not len(tokens):
                raise ValueError(f"action {i} needs one log-prob a sampled token, [L] each with L >= 1, got "
                                 f"token_ids {tokens.shape} and logprobs {logprobs.shape}")
            if tokens.min() < 0 or (tokens != given).any():
                raise ValueError(f"action {i}'s token_ids must be whole numbers below 2^31, got {given.tolist()}")
            if not -math.inf < logprobs.min() <= logprobs.max() <= 1e-4:
                raise ValueError(f"action {i}'s log-probs must be finite and <= 0, got {logprobs.tolist()}")
        texts = (self.instruction, self.family, *self.prompts, *self.actions)
        if others := [x for x in texts if not isinstance(x, str)]:
            raise ValueError(f"instruction, family, prompts and actions must be str, got {others[0]!r}")
        try:
            self.info = json.loads(json.dumps(self.info))  # as it will be stored
        except TypeError as error:
            raise ValueError(f"info must be JSON-able: {error}") from error

    def __len__(self) -> int:
        return len(self.actions)

    @property
    def return_(self) -> float:
        """R, the undiscounted sum of rewards, penalties included."""
        return float(self.rewards.sum(dtype=np.float64))

    def to_bytes(self) -> bytes:
        """A compressed npz without pickle: the arrays, token lists joined, and the rest as one JSON text."""
        text = {name: getattr(self, name) for name in ("instruction", "family", "prompts", "actions",
                                                       "terminated", "truncated", "success", "info")}
        buffer = io.BytesIO()
        np.savez_compressed(
            buffer, text=np.frombuffer(json.dumps(text).encode(), np.uint8), features=self.features,
            lengths=np.array([len(x) for x in self.token_ids], np.int32), rewards=self.rewards,
            token_ids=np.concatenate(self.token_ids), logprobs=np.concatenate(self.logprobs),
            invalid=self.invalid, policy_version=self.policy_version)
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Trajectory":
        """The inverse of `to_bytes`; any other bytes are a ValueError."""
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
            text = json.loads(arrays.pop("text").tobytes())
            cuts = np.cumsum(arrays.pop("lengths"))[:-1]
            for name in ("token_ids", "logprobs"):
                arrays[name] = np.split(arrays[name], cuts)
            return cls(**text, **arrays)
        except Exception as error:  # zip, npy and JSON raise a dozen kinds
            raise ValueError(f"{len(data)} bytes are not a trajectory: {error}") from error


def pad_batch(trajectories: Sequence[Trajectory]) -> dict[str, np.ndarray]:
    """Stack trajectories, padded on the right to the longest: a dict of [B, T] arrays.

    mask, terminated, truncated, invalid (bool); rewards, behavior_logprob (float32, the latter summed over an
    action's tokens); policy_version (int64). Padding is 0 and False; an end is flagged on the last step.
    """
    if not trajectories:
        raise NotEnoughData("pad_batch got no trajectory")
    shape = len(trajectories), max(map(len, trajectories))
    out = {name: np.zeros(shape, bool) for name in ("mask", "terminated", "truncated", "invalid")}
    out |= {name: np.zeros(shape, np.float32) for name in ("rewards", "behavior_logprob")}
    out["policy_version"] = np.zeros(shape, np.int64)
    for b, trajectory in enumerate(trajectories):
        steps = len(trajectory)
        out["mask"][b, :steps] = True
        for name in ("rewards", "invalid", "policy_version"):
            out[name][b, :steps] = getattr(trajectory, name)
        out["behavior_logprob"][b, :steps] = [x.sum(dtype=np.float64) for x in trajectory.logprobs]
        out["terminated"][b, steps - 1], out["truncated"][b, steps - 1] = trajectory.terminated, trajectory.truncated
    return out


_FAN, _TOP, _MAX_MASS = 16, 4096, 1e200  # children of a node; beyond: another level beats a cumsum, sums overflow
_BEFORE = np.tri(_FAN, k=-1).T.copy().T  # _BEFORE @ row: the mass left of each child (in Fortran order: faster)
_COUNTERS = ("num_transitions", "_next_slot", "_next_id", "added", "evicted", "stale_updates")


class SumTree:
    """Masses of `capacity` entries, drawn in proportion: set and draw 256 of 2^20 in about 100 us.

    Leaves in rows of 16, each level the row sums of the one below, the top level (<= 4096) by cumulative sum and binary
    search. Parents are recomputed from children, never adjusted by differences: no drift, and equal masses give equal
    trees, bit for bit. An entry of mass 0 is never drawn, though rounding can reach past the last mass.
    """

    def __init__(self, capacity: int):
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        self.capacity = capacity
        top = -(-capacity // _FAN ** (depth := next(d for d in range(99) if capacity <= _TOP * _FAN**d)))
        self._levels = [np.zeros(top * _FAN**i) for i in range(depth, -1, -1)]  # from the leaves up, padded by 0
        self._rows = [level.reshape(-1, _FAN) for level in self._levels[:-1]]  # row sums are the next level
        self._sums, self._least = np.zeros(top + 1), 0.0  # cumulative, of the top level, from 0; 0: nobody has looked

    def _indices(self, indices) -> np.ndarray:
        indices = np.array(indices, dtype=np.int64, ndmin=1, copy=None)
        if indices.size and indices.view(np.uint64).max() >= self.capacity:  # unsigned, negatives are huge
            raise IndexError(f"indices must be in [0, {self.capacity}), got {indices.tolist()[:9]}")
        return indices

    @property
    def total(self) -> float:
        return float(self._sums[-1])

    def get(self, indices) -> np.ndarray:
        return self._levels[0][self._indices(indices)]

    def least(self) -> float:
        """The smallest mass above 0. All entries are looked through only when one that had it has changed."""
        self._least = self._least or float(np.where(self._levels[0] > 0, self._levels[0], math.inf).min())
        return self._least

    def set(self, indices, masses) -> None:
        """Masses of some entries; of a repeated index the last mass holds. A ValueError changes nothing."""
        indices, masses = self._indices(indices).ravel(), np.array(masses, np.float64, copy=None).ravel()
        if not indices.size:
            return
        if not (masses.min() >= 0 and masses.max() <= _MAX_MASS):
            raise ValueError(f"masses must be in [0, {_MAX_MASS:g}], got {masses.min()} to {masses.max()}")
        leaves = self._levels[0]
        before, leaves[indices] = leaves[indices], masses
        if self._least:
            held = leaves[indices]  # not `masses`: an index may be repeated
            self._least = 0.0 if self._least in before else float(held.min(where=held > 0, initial=self._least))
        for rows, parents in zip(self._rows, self._levels[1:], strict=True):
            indices = indices >> 4
            parents[indices] = np.einsum("ij->i", rows.take(indices, 0))  # a row's sum, whatever rows are beside it
        self._levels[-1].cumsum(out=self._sums[1:])

    def find(self, prefixes) -> np.ndarray:
        """The entry in which each prefix of the total mass falls: [n] in [0, total] -> int64 [n]."""
        x, total = np.array(prefixes, np.float64, ndmin=1, copy=None), self._sums[-1]
        if not (total > 0 and x.size and x.min() >= 0 and x.max() <= total * (1 + 1e-12)):
            raise ValueError(f"prefixes {x[:9].tolist()} must be some in [0, {total}], the mass, > 0")
        return self._find(np.minimum(x, np.nextafter(total, 0)))  # the right edge is the last entry with mass

    def _find(self, x: np.ndarray, careful: bool = False) -> np.ndarray:
        node = self._sums[1:].searchsorted(x, side="right")
        left, each = x - self._sums.take(node), np.arange(len(x))
        for rows in reversed(self._rows):
            masses = rows.take(node, 0).T  # [16, n]
            before = _BEFORE @ masses
            ended = before[1:] <= left  # children all left of it: as many as the child's number
            child = np.add.reduce(ended.view(np.int8), 0, np.int8).astype(np.int64)
            left -= before.take(child * len(x) + each)
            if careful and (lost := np.flatnonzero(masses[child, each] == 0)).size:
                child[lost] = _FAN - 1 - (masses[::-1, lost] > 0).argmax(0)
            node = node * _FAN + child
        if not careful and not (hit := self._levels[0].take(node)).all():  # rounding reached past a row's last mass
            node[hit == 0] = self._find(x[hit == 0], careful=True)
        return node

    def sample(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """n entries with replacement, one from each n-th of the total mass (less variance)."""
        if not (n >= 1 and (total := self.total) > 0):
            raise ValueError(f"n must be >= 1 and the mass > 0, got {n} and {self.total}")
        x = (np.arange(n) + rng.random(n)) * (total / n)
        x[-1] = min(x[-1], math.nextafter(total, 0))  # rounding
        return self._find(x)


class PrioritizedReplay:
    """The newest whole trajectories in `capacity` transitions, each drawn with mass (priority + eps)^alpha.

    A trajectory is known by its id (the journal's): the generation number that tells a priority meant for an
    evicted trajectory from one for what has its slot now. Methods may be called from any thread.
    Counters: `num_transitions` held; `added`, `evicted`, `stale_updates` (for evicted ones, ignored) so far.
    """

    def __init__(self, capacity: int, *, alpha: float = 0.5, eps: float = 1e-6, seed: int = 0,
                 min_trajectories: int = 1, max_trajectories: int | None = None):
        if not (0 <= alpha <= 1 and 0 <= eps <= 1):
            raise ValueError(f"alpha and eps must be in [0, 1], got {alpha} and {eps}")
        slots = capacity if max_trajectories is None else min(capacity, max_trajectories)
        if not 1 <= min_trajectories <= slots:
            raise ValueError(f"min_trajectories {min_trajectories} must be in [1, {slots}], the most held")
        self.capacity, self.alpha, self.eps, self.min_trajectories = capacity, alpha, eps, min_trajectories
        self._build = {"capacity": int(capacity), "alpha": float(alpha), "eps": float(eps), "slots": int(slots)}
        self._rng, self._lock = np.random.default_rng(seed), threading.RLock()
        self._clear()

    def _clear(self):
        slots = self._build["slots"]
        self._tree = SumTree(slots)
        self._slot: dict[int, int] = {}  # id -> slot in a ring, oldest first
        self._trajectories: list[Trajectory | None] = [None] * slots
        self._ids = np.full(slots, -1, np.int64)
        self._priorities, self._values, self._returns = np.zeros((3, slots))
        self._next_slot = self._next_id = self.num_transitions = self.added = self.evicted = self.stale_updates = 0

    def __len__(self) -> int:  # trajectories
        return len(self._slot)

    @property
    def ids(self) -> np.ndarray:
        """Ids held, oldest first, int64 [n]."""
        with self._lock:
            return self._ids[self._live()]

    def _live(self) -> np.ndarray:
        return (self._next_slot - len(self) + np.arange(len(self))) % self._tree.capacity

    def _masses(self, priorities: np.ndarray) -> np.ndarray:
        if not ((priorities >= 0) & (priorities <= _MAX_MASS)).all():
            raise ValueError(f"priorities must be in [0, {_MAX_MASS:g}], got {priorities.tolist()}")
        return (priorities + self.eps) ** self.alpha

    def add(self, trajectory: Trajectory, *, id: int | None = None, priority: float | None = None,
            value: float = 0.5) -> int:
        """Insert, evicting the oldest; returns the id (default: the highest so far plus one).

        `priority` defaults to the highest held, 1 in an empty buffer. `value` is V_traj for `sample(top=)`.
        """
        steps = len(trajectory)
        if steps > self.capacity:
            raise ValueError(f"a trajectory of {steps} steps exceeds the capacity of {self.capacity} steps")
        if not math.isfinite(value):
            raise ValueError(f"value must be finite, got {value}")
        with self._lock:
            id = self._next_id if id is None else int(np.int64(id))
            if id in self._slot:
                raise ValueError(f"trajectory {id} is in the buffer already")
            highest = self._priorities[self._live()].max() if self._slot else 1.0
            masses = self._masses(np.float64(priority := float(highest if priority is None else priority)))
            while self.num_transitions + steps > self.capacity or len(self) == self._tree.capacity:
                oldest = self._slot.pop(next(iter(self._slot)))
                self.num_transitions -= len(self._trajectories[oldest])
                self._trajectories[oldest], self._ids[oldest] = None, -1
                self._tree.set(oldest, 0.0)
                self.evicted += 1
            slot = self._next_slot
            self._tree.set(slot, masses)
            self._slot[id], self._ids[slot], self._trajectories[slot] = slot, id, trajectory
            self._priorities[slot], self._values[slot], self._returns[slot] = priority, value, trajectory.return_
            self._next_slot, self._next_id = (slot + 1) % self._tree.capacity, max(self._next_id, id + 1)
            self.num_transitions, self.added = self.num_transitions + steps, self.added + 1
            return id

    def sample(self, batch: int, *, uniform: bool = False, beta: float = 0.0,
               top: float | None = None) -> tuple[np.ndarray, list[Trajectory], np.ndarray]:
        """(ids int64 [batch], trajectories, importance weights float32 [batch]), with replacement.

        weights = (N P)^-beta over its largest value in the buffer; beta 0 gives ones. `uniform=True`: all alike,
        whatever their priorities. `top=0.1` draws only from the tenth of the buffer with the highest R - V_traj
        (its 0.9-quantile and above, ties too); both may be given. NotEnoughData below `min_trajectories`.
        """
        if not (batch >= 1 and 0 <= beta < math.inf and (top is None or 0 < top <= 1)):
            raise ValueError(f"batch must be >= 1, beta >= 0 and top in (0, 1], got {batch}, {beta} and {top}")
        with self._lock:
            if len(self) < self.min_trajectories:
                raise NotEnoughData(f"{len(self)} trajectories, {self.min_trajectories} needed: collect more")
            tree, slots = self._tree, None
            if uniform or top is not None:  # a tree over the candidates only
                slots = self._live()
                if top is not None:
                    score = self._returns[slots] - self._values[slots]
                    slots = slots[score >= np.quantile(score, 1 - top)]
                tree = SumTree(len(slots))
                tree.set(np.arange(len(slots)), 1.0 if uniform else self._tree.get(slots))
            if not tree.total:
                raise NotEnoughData("every priority is 0: set eps > 0 or update the priorities")
            drawn = tree.sample(self._rng, batch)
            chosen = drawn if slots is None else slots[drawn]
            weights = (tree.get(drawn) / tree.least()) ** -beta if beta else np.ones(batch)
            return self._ids[chosen], [self._trajectories[s] for s in chosen], weights.astype(np.float32)

    def get(self, ids) -> tuple[np.ndarray, list[Trajectory]]:
        """Those of the ids still held, and their trajectories: to refresh every priority, slice by slice."""
        with self._lock:
            held = [int(id) for id in ids if int(id) in self._slot]
            return np.array(held, np.int64), [self._trajectories[self._slot[id]] for id in held]

    def update_priorities(self, ids, priorities, *, values=None) -> int:
        """Set priorities (and V_traj) of the ids still held, all or, on a bad one, none; returns how many."""
        numbers = [np.asarray(x, dtype=np.float64) for x in (priorities, values) if x is not None]
        if any(x.shape != (len(ids),) or not np.isfinite(x).all() for x in numbers):
            raise ValueError(f"{len(ids)} ids need as many finite priorities (and values), got {numbers}")
        masses = self._masses(numbers[0])
        with self._lock:
            keep = [i for i, id in enumerate(ids) if int(id) in self._slot]
            slots = [self._slot[int(ids[i])] for i in keep]
            self._tree.set(slots, masses[keep])
            for held, given in zip((self._priorities, self._values), numbers, strict=False):
                held[slots] = given[keep]
            self.stale_updates += len(ids) - len(keep)
            return len(keep)

    def state_dict(self) -> dict:
        """All but the trajectories, which the journal has: plain lists and numbers (JSON, `torch.save`)."""
        with self._lock:
            live = self._live()
            lists = {"ids": self._ids, "priorities": self._priorities, "values": self._values}
            return {"build": self._build, "rng": self._rng.bit_generator.state, "masses": self._tree.get(live).tolist(),
                    **{k: x[live].tolist() for k, x in lists.items()}, **{k: getattr(self, k) for k in _COUNTERS}}

    def load_state_dict(self, state: dict, fetch: Callable[[int], Trajectory]) -> None:
        """Go on, bit for bit, where `state_dict` was taken; `fetch(id)` gives each trajectory back."""
        if state["build"] != self._build:
            raise ValueError(f"the saved replay is {state['build']}, this {self._build}: build it alike")
        trajectories = [fetch(id) for id in state["ids"]]
        if (steps := sum(map(len, trajectories))) != state["num_transitions"]:
            raise ValueError(f"fetch gave {steps} steps, not {state['num_transitions']}: another journal?")
        with self._lock:
            self._clear()
            self._next_slot = (state["_next_slot"] - len(trajectories)) % self._tree.capacity
            for id, trajectory in zip(state["ids"], trajectories, strict=True):
                self.add(trajectory, id=id)
            self._priorities[self._live()], self._values[self._live()] = state["priorities"], state["values"]
            self._tree.set(self._live(), state["masses"])
            vars(self).update((name, state[name]) for name in _COUNTERS)
            self._rng.bit_generator.state = state["rng"]
