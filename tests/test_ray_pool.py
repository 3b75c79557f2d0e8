"""Workers on a Ray cluster: two nodes on this machine, of which one is killed in the middle."""

import multiprocessing
import queue
import socket
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import wait_for

import args as module
from args import Args, PhoneArgs
from policy import AutoUIPolicy
from ray_node import COUNTS, NodeActors
from ray_pool import RayPool, _Node, _Weights, check_ray
from replay import Trajectory
from run_folder import UsageError
from schedule import Schedule
from shared_weights import SharedWeights
from tasks import generate_tasks
from worker import Episode

ROOT = Path(__file__).resolve().parent.parent


def given(**phones) -> Args:
    return Args(phones=PhoneArgs(ray_address="auto", **phones))


def test_without_ray_it_is_one_sentence_and_nothing_starts(monkeypatch, tmp_path):
    monkeypatch.setattr("ray_pool.find_spec", lambda name: None)
    args = given()
    args.run.runs_dir = tmp_path / "runs"
    with pytest.raises(UsageError, match="--ray-address auto needs Ray: pip install -r requirements-ray.txt"):
        module.prepare(args)
    assert not (tmp_path / "runs").exists()


def test_a_node_whose_calls_fail_together_is_buried_once(monkeypatch):
    def get(ref):
        raise RuntimeError("The actor died: node was terminated")

    errors = SimpleNamespace(RayError=RuntimeError, ActorUnavailableError=ConnectionError)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(exceptions=errors, kill=lambda actor: None, get=get))
    pool, lost = RayPool.__new__(RayPool), []
    pool._nodes, pool._before, pool._on_lost = {}, dict.fromkeys(COUNTS, 0), lost.append
    node = _Node("n", 0, actor=object(), ready=True, alive=8)
    node.pending, node.calls = {1: "an episode", 2: "another"}, {"exchange": 3, "publish": 4}
    for kind, ref in list(node.calls.items()):
        pool._hear(node, kind, ref)
    assert lost == ["an episode", "another"] and pool._before["restarts"] == 8 and pool._nodes["n"].failures == 1


def test_flags_that_do_not_go_with_it(monkeypatch):
    monkeypatch.setattr("ray_pool.find_spec", lambda name: True)
    check_ray(given(devices=("all",)))
    with pytest.raises(UsageError, match="--adb-server: each node uses its own phones"):
        check_ray(given(adb_server=("10.0.0.7:5037",)))
    with socket.create_server(("127.0.0.1", 0)) as free:
        nobody = f"127.0.0.1:{free.getsockname()[1]}"
    for address, why in ((nobody, "no cluster there .*refused.*: `ray start --head` starts one"), ("ray", "HOST:PORT")):
        with pytest.raises(UsageError, match=f"--ray-address {address}: .*{why}"):
            check_ray(Args(phones=PhoneArgs(ray_address=address)))
    serial, judged = given(), given()
    serial.run.serial, judged.judge.judge = True, "gemini"
    with pytest.raises(UsageError, match="with --serial"):
        check_ray(serial)
    with pytest.raises(UsageError, match="with --judge gemini: its budget and verdicts are one file"):
        check_ray(judged)


def test_a_publication_that_is_made_again_and_what_a_node_had_finished_when_it_gave_up(monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "__file__", None, raising=False)  # a node clears it
    node = NodeActors(None, 0, 3, {})
    weights = SharedWeights(multiprocessing.get_context("forkserver"), 3)
    counts = dict.fromkeys(COUNTS, 0)
    node.pool = SimpleNamespace(weights=weights, error=None, alive=1, last_error="", **counts)
    for version in (7, 7, 9, 7):  # the first had arrived, its answer had not
        node.publish(np.full(3, version, np.float32), version)
    array = np.zeros(3, np.float32)
    assert weights.read([array]) == 9 and (array == 9).all()

    tasks = [(1, Episode("x", 1)), (2, Episode("x", 2))]
    node.exchange([], tasks, 0.0)
    node._keep(node._next(), b"one")
    node.pool.error = RuntimeError("no worker can be kept alive")
    report = node.exchange([], tasks, 0.0)
    assert report["finished"] == [(1, b"one")]
    with pytest.raises(RuntimeError, match="no worker can be kept alive"):
        node.exchange([1], [], 0.0)


def test_weights_and_their_version_are_read_together(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(put=lambda flat: flat.sum()))
    weights = _Weights(3)
    assert weights.newest == (None, 0)
    weights.publish([np.ones(2, np.float32), np.ones(1, np.float32)], 4)
    assert weights.newest == (3.0, 4)


# ---------------------------------------------------------------------- a cluster of two nodes


@pytest.fixture(scope="module")
def cluster():
    pytest.importorskip("ray", reason="Ray is not installed (requirements-ray.txt)")
    from ray.cluster_utils import Cluster

    node = dict(num_cpus=1, object_store_memory=100_000_000)
    cluster = Cluster(initialize_head=True, head_node_args=node | {"include_dashboard": False})
    cluster.second = cluster.add_node(**node)
    yield cluster
    cluster.shutdown()


def workers_of(node) -> set[int]:
    """Our processes that descend from a node's raylet."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                after = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                parents[int(entry.name)] = int(after[1]), (entry / "comm").read_text().strip(), after[0]
            except OSError:
                continue
    raylet = node.all_processes["raylet"][0].process.pid

    def below(pid: int) -> bool:
        while pid in parents and pid > 1:
            pid = parents[pid][0]
            if pid == raylet:
                return True
        return False

    return {p for p, (_, name, state) in parents.items() if name.startswith(("worker ", "policy serv")) and below(p)}


@pytest.mark.slow
def test_a_run_survives_a_node_and_takes_in_another(cluster, tmp_path):
    import ray

    from ray_pool import RayPool, ray_source

    AutoUIPolicy.small(seed=0, d_model=32, layers=1, heads=2, d_ff=64).save(tmp_path / "policy.safetensors")
    policy = AutoUIPolicy.load(tmp_path / "policy.safetensors")
    args = Args(phones=PhoneArgs(ray_address=cluster.address, workers_per_node=2, latency=0.0, dialogs=0.0))
    arrived: queue.SimpleQueue = queue.SimpleQueue()
    lost, seen = [], []
    schedule = Schedule(generate_tasks("train", 36, seed=0), seed=0)

    def until(wanted, seconds=90):
        """Trajectories until one is `wanted`."""
        deadline = time.monotonic() + seconds
        while True:
            assert pool.error is None, pool.error
            assert time.monotonic() < deadline, pool.last_error
            try:
                seen.append(arrived.get(timeout=1))
            except queue.Empty:
                continue
            if wanted(*seen[-1]):
                return

    with ExitStack() as stack:
        source = stack.enter_context(ray_source(args, set()))
        assert args.phones.num_workers == 4 and source.what == "simulated phones of 2 nodes"
        pool = RayPool(
            source.cluster, tmp_path / "policy.safetensors", sum(a.size for a in policy.published()),
            next_episode=schedule.next, on_lost=lambda e: (lost.append(e), schedule.lost(e)),
            on_trajectory=lambda e, data: arrived.put((e, Trajectory.from_bytes(data))),
            env_options={"horizon": 3}, worker_timeout=60.0, seed=1,
        )  # fmt: skip
        stack.callback(pool.stop)  # a thread that goes on after ray.shutdown() would connect again
        pool.weights.publish(policy.published(), 7)
        pool.start(timeout=90)
        doomed = workers_of(cluster.second)
        assert pool.alive == 4 and len(doomed) == 3
        schedule.training = True
        for index in range(4):  # each of the four workers, two a node
            until(lambda e, t, index=index: t.info["worker"] == index)
        assert {int(v) for _, t in seen for v in t.policy_version} == {7}
        pool.weights.publish(policy.published(), 9)  # one that skips 8
        for index in (0, 2):
            until(lambda e, t, index=index: t.info["worker"] == index and t.policy_version.min() == 9)

        wanted = schedule.evaluate(generate_tasks("test", 24, seed=0), "kill", (True,), seed=0)
        until(lambda e, t: e.split == "kill")
        number = next(n.number for n in pool._nodes.values() if n.id == cluster.second.node_id)
        cluster.remove_node(cluster.second, allow_graceful=False)
        began = time.monotonic()
        while sum(e.split == "kill" for e, _ in seen) < wanted:
            until(lambda e, t: e.split == "kill")
        print(f"all of the evaluation {time.monotonic() - began:.1f} s after the node was killed")
        assert sorted(e.number for e, _ in seen if e.split == "kill") == list(range(wanted))  # each once
        wait_for(lambda: pool.lost_nodes == 1)  # the actor's death is known before the node's
        assert lost and pool.alive == 2 and pool.restarts >= 2
        played = [e.number for e, _ in seen if e.split == "train"]
        assert len(set(played)) == len(played)
        wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in doomed), 20)

        cluster.second = cluster.add_node(num_cpus=1, object_store_memory=100_000_000)
        until(lambda e, t: t.info["worker"] // 2 not in (0, 1))  # a third node, with numbers of its own
        wait_for(lambda: pool.alive == 4)
        assert number in (0, 1)
        ours = workers_of(cluster.head_node) | workers_of(cluster.second)
        pool.stop()
        assert len(ours) == 6 and not any(Path(f"/proc/{pid}").exists() for pid in ours)
    assert not ray.is_initialized()
