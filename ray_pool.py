"""Workers on every node of a Ray cluster, in the place of this machine's: the same pool, past one machine.

    ray start --head                                      # on one machine; on the others: ray start --address HOST:6379
    python run_distrl.py --ray-address auto --workers-per-node 32
    python run_distrl.py --ray-address auto --workers-per-node 8 --devices all       # each node's own phones

    learner's machine                                     each node: one Ray actor (ray_node.py)
    RayPool -- episodes, what has arrived ------------->  ActorPool: policy server, workers (actor_pool.py, worker.py)
            <-- finished trajectories ------------------  phone_source: the node's own phones, simulated or real
            -- weights: one object, put once ---------->  shared memory of that node (shared_weights.py)

A node is one Ray actor that owns a whole `ActorPool`: workers, policy server, back-off, restarts of phones are the code
of a run on one machine. Trajectories are what its calls return, weights one object a publication in Ray's object store,
which nodes hand on to each other. A node says what it has finished until it has heard that it arrived: an answer that
is lost on the way is given again, so that nothing is lost or counted twice as long as the node lives.

A node that is lost (its machine, its raylet, its actor) costs the episodes not yet delivered: evaluation episodes are
played elsewhere, its workers count as restarted. The run goes on with the others; a node that joins gets workers.
The nodes need Python and the packages of requirements.txt and requirements-ray.txt; the code goes to them with the run,
the policy too. A BLIP-2 folder must be at the same path everywhere. Judges other than rules are refused: their budget
and verdicts are one file of one machine (judge_ledger.py).

Departs from one Ray actor a worker: a worker that is forked here shares its pages with the others and asks its policy
server through a pipe; as a Ray process each would import Ray for itself, and each of its steps would be two remote
calls (docs/scaling.md has the memory of both). Ray starts, places and watches nodes; it has no part in a step.
"""

from __future__ import annotations

import logging
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from ray_node import NodeActors
from run_folder import UsageError
from worker import COUNTS, Episode

ROOT = Path(__file__).resolve().parent
NOT_SENT = [".git", "runs", "tests", "docs", "benchmarks", "reproduce", "*.safetensors", "**/__pycache__"]
ASK_SECONDS = 1.0  # that a node may wait for something to be finished, before it answers that there is nothing
LOOK_SECONDS = 1.0  # between two looks at who is in the cluster


def check_ray(args) -> None:
    """UsageError: --ray-address without Ray, or with flags that it does not go with."""
    address = f"--ray-address {args.phones.ray_address}"
    if not find_spec("ray"):
        raise UsageError(f"{address} needs Ray: pip install -r requirements-ray.txt, here and on every node")
    if args.phones.ray_address != "auto":  # Ray would try for more than ten minutes
        host, _, port = args.phones.ray_address.rpartition(":")
        try:
            if not host or not port.isdigit():
                raise UsageError(f"{address}: want auto, or HOST:PORT as `ray start --head` prints it")
            socket.create_connection((host, int(port)), timeout=5).close()
        except (OSError, OverflowError) as error:
            raise UsageError(f"{address}: no cluster there ({error}): `ray start --head` starts one") from error
    if args.run.serial:
        raise UsageError(f"{address} with --serial: that is one phone in one process: leave out either")
    if args.phones.adb_server:
        raise UsageError(f"{address} with --adb-server: each node uses its own phones: leave it out")
    if args.judge.judge != "rules":
        raise UsageError(f"{address} with --judge {args.judge.judge}: its budget and verdicts are one file of one "
                         "machine: use rules, or one machine with --adb-server for the phones of others")  # fmt: skip


@dataclass
class Cluster:
    """The cluster that a run is connected to, and what its nodes are to have."""

    phones: object  # args.PhoneArgs for one node
    families: set[str]
    seed: int
    latency: float

    def nodes(self) -> list[str]:
        """Ids of the living nodes that have a CPU to give."""
        import ray

        return [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]

    def set_latency(self, latency: float) -> None:
        """Of all simulated phones; the pool tells the nodes."""
        self.latency = latency


@contextmanager
def ray_source(args, families: set[str]) -> Iterator:
    """Connects to --ray-address; a phone_source.Source whose phones are the nodes' own. Sets `phones.num_workers`."""
    import ray

    from phone_source import Source

    phones = args.phones
    env = {"working_dir": str(ROOT), "excludes": NOT_SENT}
    try:
        ray.init(address=phones.ray_address, runtime_env=env, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        said = str(error).splitlines()[0]
        raise UsageError(f"--ray-address {phones.ray_address}: no cluster there ({said}): `ray start --head` starts "
                         "one") from error  # fmt: skip
    try:
        own = replace(phones, num_workers=phones.workers_per_node, adb_port=0)
        cluster = Cluster(own, set(families), args.run.seed, phones.latency)
        if not (number := len(cluster.nodes())):
            raise UsageError(f"--ray-address {phones.ray_address}: no node of it has a CPU to give")
        phones.num_workers = number * phones.workers_per_node
        kind = "simulated phones" if phones.simulated else "the phones"
        what = f"{kind} of {number} node{'s' * (number > 1)}"
        yield Source(what, [], cluster.set_latency, lambda address: None, cluster)
    finally:
        ray.shutdown()


@dataclass
class _Node:
    id: str
    number: int
    actor: object = None
    ready: bool = False
    alive: int = 0
    pending: dict[int, Episode] = field(default_factory=dict)  # by ticket: sent and not yet told to be finished
    unsent: list[tuple[int, Episode]] = field(default_factory=list)  # of them: not known to have reached the node
    arrived: list[int] = field(default_factory=list)
    calls: dict = field(default_factory=dict)  # kind of call -> its ref
    version: int = 0
    latency: float = 0.0
    counts: dict = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))
    heard: float = 0.0
    failures: int = 0  # in a row, without a trajectory in between
    retry_at: float = 0.0


class _Weights:
    """Publishes into Ray's object store; what nobody has fetched when a newer one comes is dropped."""

    def __init__(self, size: int):
        self.size, self.newest = size, (None, 0)  # ref and version: both or neither, for the thread that reads

    def publish(self, arrays, version: int) -> None:
        import ray

        flat = np.concatenate([array.reshape(-1) for array in arrays])
        if len(flat) != self.size:
            raise ValueError(f"{len(flat)} numbers in {len(arrays)} arrays, but {self.size} are expected")
        self.newest = ray.put(flat), version


class RayPool:
    """As `actor_pool.ActorPool`, over the nodes of a `Cluster`; see the module's docstring."""

    pids: tuple[int, ...] = ()

    def __init__(
        self, cluster: Cluster, policy_path: Path, size: int, *, next_episode: Callable, on_trajectory: Callable,
        on_lost: Callable, worker_timeout: float = 120.0, ahead: int = 2, **how,
    ):  # fmt: skip
        self._cluster, self._timeout = cluster, worker_timeout
        self._next, self._on_trajectory, self._on_lost = next_episode, on_trajectory, on_lost
        options = how.get("server_options") or {}
        self._policy = _as_one_file(policy_path, options.get("init_fusion", False))
        how["server_options"] = options | {"init_fusion": False}
        self._how = how | {"worker_timeout": worker_timeout, "ahead": ahead}
        self._wanted = ahead * cluster.phones.workers_per_node  # episodes that a node holds
        self.weights = _Weights(size)
        self._nodes: dict[str, _Node] = {}
        self._ticket = self._placed = 0
        self._looked = self._seen = 0.0
        self._before = dict.fromkeys(COUNTS, 0)  # counts of nodes that are gone
        self.lost_nodes = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="collector", daemon=True)
        self.last_error, self.error = "", None

    alive = property(lambda self: sum(node.alive for node in list(self._nodes.values())))
    env_steps = property(lambda self: self._total("env_steps"))
    restarts = property(lambda self: self._total("restarts"))
    phone_restarts = property(lambda self: self._total("phone_restarts"))
    server_restarts = property(lambda self: self._total("server_restarts"))

    def _total(self, name: str) -> int:
        return self._before[name] + sum(node.counts[name] for node in list(self._nodes.values()))

    def start(self, timeout: float = 120.0, stopping: Callable[[], bool] = lambda: False) -> None:
        """Start the nodes' actors; return when all of them answer, or raise after `timeout`."""
        import ray

        self._policy = ray.put(self._policy)
        self._seen = time.monotonic()
        self._thread.start()
        deadline = time.monotonic() + timeout
        while not (self._nodes and all(node.ready for node in list(self._nodes.values()))) and not stopping():
            if self.error:
                raise RuntimeError(f"no node could be started: {self.last_error or self.error}") from self.error
            if time.monotonic() > deadline:
                ready = sum(node.ready for node in list(self._nodes.values()))
                raise RuntimeError(f"only {ready} of {len(self._nodes)} nodes are ready after {timeout:.0f} s: "
                                   f"{self.last_error or 'are they overloaded? Fewer --workers-per-node'}")  # fmt: skip
            self._stop.wait(0.05)

    def stop(self) -> None:
        """End the nodes' processes. `on_trajectory` has been called for all that was finished."""
        import ray

        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10)
        nodes = {node.actor.stop.remote(): node for node in list(self._nodes.values()) if node.actor is not None}
        ended, _ = ray.wait(list(nodes), num_returns=len(nodes), timeout=10) if nodes else ([], [])
        for ref in ended:
            try:
                self._take(nodes[ref], ray.get(ref))
            except Exception as error:  # one that is gone, or a full disk: as in `_run`
                if not isinstance(error, ray.exceptions.RayError):
                    self.error = self.error or error
        for node in nodes.values():
            ray.kill(node.actor)
            node.actor, node.ready, node.alive = None, False, 0

    # ------------------------------------------------------------------ the pool's thread

    def _run(self) -> None:
        import ray

        try:
            while not self._stop.is_set():
                self._look_around()
                for node in list(self._nodes.values()):
                    self._serve(node)
                calls = {ref: (node, kind) for node in self._nodes.values() for kind, ref in node.calls.items()}
                if not calls:
                    self._stop.wait(0.1)
                    continue
                ready, _ = ray.wait(list(calls), num_returns=1, timeout=0.1)
                if ready:  # and all others that are
                    ready, _ = ray.wait(list(calls), num_returns=len(calls), timeout=0)
                for ref in ready:
                    self._hear(*calls[ref], ref)
        except Exception as error:  # the thread's last words must reach the main thread
            if not self._stop.is_set():
                self.error = error

    def _look_around(self) -> None:
        """Who has come, who has gone, who may try again."""
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS:
            return
        self._looked, here = now, self._cluster.nodes()
        if here:
            self._seen = now
        elif now - self._seen > self._timeout:
            raise RuntimeError(f"the cluster has no node since {self._timeout:.0f} s; the last one: {self.last_error}")
        for node in [node for node in self._nodes.values() if node.id not in here]:
            self._bury(node, "the node has left the cluster")
            del self._nodes[node.id]
            self.lost_nodes += 1
        for id in here:
            node = self._nodes.get(id)
            if node is None:
                node = self._nodes[id] = _Node(id, self._placed)
                self._placed += 1
            if node.actor is None and now >= node.retry_at and self.weights.newest[0] is not None:
                self._spawn(node)
            elif node.actor is not None and now - node.heard > self._timeout + 10:
                self._bury(node, f"silent for {self._timeout:.0f} s")
        if self._nodes and all(node.failures >= 6 for node in self._nodes.values()):
            raise RuntimeError(f"no node can be kept alive; the last one: {self.last_error}")

    def _spawn(self, node: _Node) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        there = NodeAffinitySchedulingStrategy(node.id, soft=False)
        kind = ray.remote(NodeActors).options(num_cpus=1, max_concurrency=4, scheduling_strategy=there)
        node.actor = kind.remote(self._cluster, node.number, self.weights.size, self._how)
        weights, node.version = self.weights.newest
        node.heard, node.latency = time.monotonic(), self._cluster.latency
        arguments = (self._policy, weights, node.version, node.latency, self._timeout)
        node.calls["start"] = node.actor.start.remote(*arguments)

    def _serve(self, node: _Node) -> None:
        """Everything that this node is to have now: episodes, weights, another latency."""
        if not node.ready or time.monotonic() < node.retry_at:
            return
        weights, version = self.weights.newest
        if "publish" not in node.calls and node.version < version:
            node.version = version
            node.calls["publish"] = node.actor.publish.remote(weights, version)
        if "latency" not in node.calls and node.latency != self._cluster.latency:
            node.latency = self._cluster.latency
            node.calls["latency"] = node.actor.set_latency.remote(node.latency)
        if "exchange" in node.calls:
            return
        while len(node.pending) < self._wanted and (episode := self._next()) is not None:
            self._ticket += 1
            node.pending[self._ticket] = episode
            node.unsent.append((self._ticket, episode))
        # Soon again, when there may be more to play.
        seconds = ASK_SECONDS if len(node.pending) == self._wanted else ASK_SECONDS / 5
        node.calls["exchange"] = node.actor.exchange.remote(node.arrived, node.unsent, seconds)

    def _hear(self, node: _Node, kind: str, ref) -> None:
        import ray

        if node.calls.get(kind) != ref:
            return  # of an actor that is buried
        del node.calls[kind]
        try:
            answer = ray.get(ref)
        except ray.exceptions.ActorUnavailableError as error:  # perhaps only the way to it: asked again, the same
            self.last_error = f"node {node.number}: {_short(error)}"
            node.retry_at = time.monotonic() + 1
            if kind == "publish":
                node.version = 0
            return
        except ray.exceptions.RayError as error:
            return self._bury(node, _short(error))
        node.heard = time.monotonic()
        if kind == "start":
            self._take(node, answer)
            node.ready = True
        elif kind == "exchange":
            node.arrived, node.unsent = [], []
            self._take(node, answer)

    def _take(self, node: _Node, report: dict) -> None:
        for ticket, data in report["finished"]:
            node.arrived.append(ticket)
            episode = node.pending.pop(ticket, None)
            if episode is None:
                continue  # told a second time
            if data is None:
                self._on_lost(episode)
            else:
                node.failures = 0
                self._on_trajectory(episode, data)
        node.alive, node.counts = report["alive"], report["counts"]
        self.last_error = report["said"] or self.last_error

    def _bury(self, node: _Node, why: str) -> None:
        """Its actor is gone: its episodes are given away, and it may try again."""
        import ray

        self.last_error = f"node {node.number}: {why}"
        node.calls.clear()  # more of them may have failed at once: it is buried once
        if node.actor is not None:
            ray.kill(node.actor)
        for name in COUNTS:
            self._before[name] += node.counts[name]
        self._before["restarts"] += node.alive
        for episode in node.pending.values():
            self._on_lost(episode)
        failures = node.failures + 1
        fresh = _Node(node.id, node.number, failures=failures, retry_at=time.monotonic() + min(30, 0.5 * 2**failures))
        self._nodes[node.id] = fresh


def _as_one_file(path: Path, init_fusion: bool) -> bytes:
    """The policy as one of our files: other machines need no folder of a checkpoint."""
    from policy import AutoUIPolicy

    with tempfile.TemporaryDirectory() as folder:
        AutoUIPolicy.load(path, init_fusion=init_fusion).save(Path(folder) / "policy.safetensors")
        return (Path(folder) / "policy.safetensors").read_bytes()


def _short(error: Exception) -> str:
    """Ray's errors carry a whole traceback: what happened is in the last line."""
    cause = getattr(error, "cause", None)
    return (str(cause or error).strip() or repr(cause or error)).splitlines()[-1][-300:]
