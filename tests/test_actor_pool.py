"""Real processes, real faults: what is killed is replaced, what is finished is kept, what was lost is told."""

import multiprocessing
import os
import queue
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from multiprocessing import forkserver
from types import SimpleNamespace

import adbutils
import numpy as np
import pytest
import torch  # noqa: F401  (this process has it, as the main process does: its children must not inherit it)

import actor_pool
import worker
from actor_pool import ActorPool, _read_in_time, _Slot
from policy import AutoUIPolicy
from replay import Trajectory
from schedule import Schedule
from shared_weights import SharedWeights
from tasks import generate_tasks
from worker import PhoneAddress


class Actors:
    """A pool on two phones, and all it reports."""

    TIMEOUT = 4.0

    def __init__(self, phones, path, tasks, on_lost=None):
        self.arrived: queue.SimpleQueue = queue.SimpleQueue()
        self.lost: list = []
        self.schedule = Schedule(tasks, seed=0)
        policy = AutoUIPolicy.load(path)
        parameters = [p.detach().numpy() for p in policy.parameters()]
        self.pool = ActorPool(
            [PhoneAddress(serial, phones.host, phones.port) for serial in phones.serials],
            path,
            lambda context: SharedWeights(context, sum(p.size for p in parameters)),
            next_episode=self.schedule.next,
            on_trajectory=lambda episode, data: self.arrived.put((episode, Trajectory.from_bytes(data))),
            on_lost=lambda episode: (self.lost.append(episode), self.schedule.lost(episode)),
            env_options={"horizon": 3},
            worker_timeout=self.TIMEOUT,
        )
        self.pool.weights.publish(parameters, 7)

    def wait_for(self, condition, seconds: float = 30.0):
        deadline = time.monotonic() + seconds
        while not (found := condition()):
            assert self.pool.error is None, self.pool.error
            assert time.monotonic() < deadline, f"not within {seconds} s; last error: {self.pool.last_error}"
            time.sleep(0.02)
        return found

    def next(self, wanted=lambda episode, trajectory: True):
        """The next trajectory that is `wanted`."""
        deadline = time.monotonic() + 30
        while True:
            episode, trajectory = self.arrived.get(timeout=max(0.01, deadline - time.monotonic()))
            if wanted(episode, trajectory):
                return episode, trajectory

    def from_both(self):
        """Return when each worker has sent a trajectory, sampled from now on."""
        while not self.arrived.empty():
            self.arrived.get()
        for index in (0, 1):
            self.next(lambda _, t, index=index: t.info["worker"] == index)

    def worker_pid(self, index: int) -> int | None:
        process = self.pool._slots[index].process
        return process.pid if process else None

    def replaced(self, index: int, old: int):
        """Wait until another process has taken this worker's place."""
        self.wait_for(lambda: self.worker_pid(index) not in (None, old) and self.pool._slots[index].ready)


@pytest.fixture(scope="module")
def policy_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("policy") / "policy.safetensors"
    AutoUIPolicy.small(seed=0, d_model=32, layers=1, heads=2, d_ff=64).save(path)
    return path


@pytest.fixture(scope="module")
def actors(phones, policy_path):
    actors = Actors(phones, policy_path, generate_tasks("train", 36, seed=0))
    actors.pool.start()
    actors.schedule.training = True
    yield actors
    actors.pool.stop()
    actors.wait_for(lambda: not any(alive(pid) for pid in actors.pool.pids), 5)


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def mapped(pid: int, library: str) -> bool:
    with open(f"/proc/{pid}/maps") as file:
        return library in file.read()


def test_trajectories_arrive_from_every_worker_with_the_published_version(actors):
    actors.from_both()
    episode, trajectory = actors.next()
    assert trajectory.instruction == episode.task.instruction and trajectory.info["seed"] == episode.seed
    assert 1 <= len(trajectory) <= 3 and set(trajectory.policy_version.tolist()) == {7}
    assert actors.pool.env_steps >= len(trajectory) and actors.pool.alive == 2 and actors.pool.restarts == 0


def test_E10_E11_workers_have_few_threads_and_tokenizers_none_of_their_own(actors):
    for index in (0, 1):
        pid = actors.worker_pid(index)
        with open(f"/proc/{pid}/environ", "rb") as file:
            assert b"TOKENIZERS_PARALLELISM=false" in file.read().split(b"\0")
        assert len(os.listdir(f"/proc/{pid}/task")) <= 2  # itself, and the one that waits for its parent


def test_no_worker_has_torch_or_wandb(actors):
    """Design: workers are thin. Case E9."""
    assert mapped(actors.pool._server.pid, "libtorch")
    assert not any(mapped(actors.worker_pid(index), "libtorch") for index in (0, 1))
    code = "import sys, actor_pool, worker; print({'torch', 'transformers', 'wandb', 'matplotlib'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"


def test_a_start_that_takes_too_long_says_what_to_do(policy_path, monkeypatch):
    monkeypatch.setattr(actor_pool, "_start_fork_server", lambda: None)
    told = dict(next_episode=lambda: None, on_trajectory=None, on_lost=None)
    pool = ActorPool([PhoneAddress("x", "127.0.0.1", 1)], policy_path, lambda c: SharedWeights(c, 1), **told)
    pool._thread = threading.Thread(target=lambda: None)  # as if nothing had come from any process yet
    with pytest.raises(RuntimeError, match="only 0 of 1 workers are ready after 0 s: .*: fewer --num-workers"):
        pool.start(timeout=0.0)


def test_E1_a_killed_worker_is_replaced_counted_and_its_evaluation_is_played_elsewhere(actors):
    """Case E1."""
    restarts, victim = actors.pool.restarts, actors.worker_pid(0)
    wanted = actors.schedule.evaluate(generate_tasks("test", 12, seed=0), "kill", (True,), seed=0)
    # Stopped first, so that it certainly holds evaluation episodes when it dies.
    actors.wait_for(lambda: any(e.split == "kill" for e in actors.pool._slots[0].pending))
    os.kill(victim, signal.SIGSTOP)
    os.kill(victim, signal.SIGKILL)
    done = [actors.next(lambda e, t: e.split == "kill")[0] for _ in range(wanted)]
    assert sorted(e.number for e in done) == list(range(wanted))  # each once
    assert any(e.split == "kill" for e in actors.lost)
    actors.replaced(0, victim)
    assert actors.pool.restarts == restarts + 1 and "exit code -9" in actors.pool.last_error
    assert "worker 0 on" in actors.pool.last_error
    actors.from_both()


def test_a_worker_that_hangs_is_replaced_and_the_other_goes_on(actors):
    restarts, victim = actors.pool.restarts, actors.worker_pid(1)
    os.kill(victim, signal.SIGSTOP)
    for _ in range(3):
        assert actors.next(lambda e, t: t.info["worker"] == 0)
    actors.replaced(1, victim)
    assert actors.pool.restarts == restarts + 1 and f"silent for {actors.TIMEOUT:.0f} s" in actors.pool.last_error
    assert not alive(victim)
    actors.from_both()


def test_E16_a_worker_that_stops_in_the_middle_of_a_message_holds_up_nobody(actors):
    restarts, victim, slot = actors.pool.restarts, actors.worker_pid(1), actors.pool._slots[1]
    os.kill(victim, signal.SIGSTOP)
    ours, theirs = multiprocessing.Pipe()
    _read_in_time(ours)
    os.write(theirs.fileno(), struct.pack("!i", 1000) + b"half of what")
    true, slot.episodes = slot.episodes, ours
    actors.replaced(1, victim)
    assert actors.pool.restarts == restarts + 1 and "in the middle of a message" in actors.pool.last_error
    assert not alive(victim)
    actors.from_both()
    true.close(), theirs.close()


def test_a_worker_that_is_killed_in_the_middle_of_a_message_does_not_take_the_policy_server_along(actors):
    victim, before = actors.pool._server.pid, actors.pool.server_restarts
    theirs, ours = multiprocessing.Pipe()
    actors.pool._control.send(theirs)
    theirs.close()
    os.write(ours.fileno(), struct.pack("!i", 1000) + b"half of what")
    with socket.socket(fileno=os.dup(ours.fileno())) as end:
        end.shutdown(socket.SHUT_WR)  # as it is closed, but that we hear what becomes of it
    assert ours.poll(10)
    with pytest.raises(EOFError):  # it has closed its end, too
        ours.recv()
    ours.close()
    actors.from_both()
    assert actors.pool._server.pid == victim and actors.pool.server_restarts == before


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_a_policy_server_that_dies_or_hangs_is_replaced_with_the_newest_weights(actors, fault):
    victim, before = actors.pool._server.pid, actors.pool.server_restarts
    actors.pool._server_failures = 4  # of those in a row, as many as there may be but one
    os.kill(victim, fault)
    actors.wait_for(lambda: actors.pool.server_restarts > before)
    actors.wait_for(lambda: actors.pool.server_ready and actors.pool.alive == 2)
    actors.from_both()
    assert set(actors.next()[1].policy_version.tolist()) == {7} and actors.pool._server.pid != victim
    assert actors.pool._server_failures == 0


def test_with_one_busy_worker_a_policy_server_that_hangs_is_killed_when_its_successor_is_silent_too():
    killed, buried = [], []
    gone = SimpleNamespace(kill=lambda: killed.append("worker"))
    server = SimpleNamespace(kill=lambda: killed.append("server"), join=lambda timeout: None)
    slots = [_Slot(0, None, gone, pending=[1], ready=True), _Slot(1, None, gone, ready=True)]  # the other one is idle
    pool = SimpleNamespace(_slots=slots, _timeout=1.0, _looked=time.monotonic(), server_ready=True, _server=server)
    pool._bury = lambda slot, why: buried.append(why)
    ActorPool._replace_silent(pool)
    assert killed == ["worker"] and buried == ["silent for 1 s"]
    slots[0].failures = 1  # as `_bury` counts it
    ActorPool._replace_silent(pool)
    assert killed == ["worker", "server"]
    slots[0].failures = 2  # the new server did not help: it is the worker, or its phone
    ActorPool._replace_silent(pool)
    assert killed == ["worker", "server", "worker"] and len(buried) == 2


def test_nobody_is_replaced_while_the_run_stops_and_a_killed_fork_server_is_afterwards(actors, monkeypatch):
    """A SIGTERM to the whole process group ends all of them, while the main process saves."""
    actors.from_both()
    before, server, pool = actors.pool.pids, actors.pool._server.pid, actors.pool
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)  # else torch has one thread there whatever the server does
    seen = threading.Event()
    monkeypatch.setattr(pool, "_stopping", lambda: seen.set() or True)
    assert seen.wait(5)  # a round that had begun before would replace whom it finds dead
    os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL)
    actors.wait_for(lambda: not any(alive(pid) for pid in before) and not any(slot.process for slot in pool._slots))
    due = max(slot.retry_at for slot in pool._slots) + 0.3
    actors.wait_for(lambda: time.monotonic() > due)
    assert pool._server.pid == server and not any(slot.process for slot in pool._slots)
    monkeypatch.setattr(pool, "_stopping", lambda: False)
    actors.wait_for(lambda: pool.server_ready and pool.alive == 2)
    actors.from_both()
    with open(f"/proc/{pool._server.pid}/status") as file:
        blocked = next(int(line.split()[1], 16) for line in file if line.startswith("SigBlk"))
    assert blocked >> (signal.SIGHUP - 1) & 1  # which is for the main process alone
    assert len(os.listdir(f"/proc/{pool._server.pid}/task")) <= 2  # E11: torch has one thread there


def test_a_phone_that_drops_its_connection_is_connected_again(actors, phones):
    serial, restarts = phones.serials[0], actors.pool.restarts
    client = adbutils.AdbClient(host=phones.host, port=phones.port)
    client.disconnect(serial)
    actors.from_both()
    assert actors.next(lambda e, t: t.info["serial"] == serial and t.success is not None)
    assert actors.pool.restarts == restarts  # the environment recovers by itself


def test_phones_that_stand_still_for_a_moment_are_waited_for(actors, phones):
    os.kill(phones.pid, signal.SIGSTOP)
    try:
        steps = actors.pool.env_steps
        time.sleep(0.5)  # the outage itself
        assert actors.pool.env_steps - steps <= 4
    finally:
        os.kill(phones.pid, signal.SIGCONT)
    actors.from_both()


def test_a_run_that_stood_still_does_not_take_its_workers_for_hung():
    """Ctrl-Z and fg: nobody has heard anything meanwhile."""
    now = time.monotonic()
    slot = SimpleNamespace(process=object(), pending=[1], ready=True, heard=now - 300)
    pool = SimpleNamespace(_slots=[slot], _timeout=120.0, _looked=now - 299)
    ActorPool._replace_silent(pool)
    assert slot.heard == pytest.approx(now - 1, abs=0.5) and pool._looked >= now


def test_nothing_leaks_over_many_deaths(actors):
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    actors.from_both()
    before = None
    for _ in range(3):
        victim = actors.worker_pid(0)
        actors.pool._slots[0].failures = 0  # no back-off here
        os.kill(victim, signal.SIGKILL)
        actors.replaced(0, victim)
        actors.from_both()
        before = before or descriptors()  # after the first: all that is kept for good is there
    assert descriptors() <= before + 2


def test_when_no_worker_can_live_the_pool_says_why(policy_path):
    """Case D13: all die, an error and no hang. Nobody listens on port 9."""

    class Nowhere:
        host, port, serials = "127.0.0.1", 9, ["127.0.0.1:1"] * 2

    actors = Actors(Nowhere, policy_path, generate_tasks("train", 18, seed=0))
    actors.schedule.training = True
    for slot in actors.pool._slots:
        slot.failures = 5  # the sixth death is the last
    expected = "worker . on 127.0.0.1:1: exit code 3, after .*no adb server at 127.0.0.1:9"
    with pytest.raises(RuntimeError, match=expected):
        actors.pool.start()
        while not actors.pool.error:  # the workers may have been ready for a moment
            actors.pool._thread.join(timeout=0.1)
        raise actors.pool.error
    actors.pool.stop()
    assert len(actors.lost) >= 2 and not any(alive(pid) for pid in actors.pool.pids)


def test_the_policy_server_waits_a_moment_for_a_fuller_batch(tmp_path, monkeypatch):
    """For a share of the last batch's time; nobody is waited for when all workers have asked."""
    path, act = tmp_path / "policy.safetensors", AutoUIPolicy.act
    AutoUIPolicy.small(seed=0, d_model=32, layers=1, heads=2, d_ff=64).save(path)
    monkeypatch.setattr(worker, "_follow_parent", lambda name: None)
    monkeypatch.setattr(worker, "BATCH_WAIT", 0.0)
    monkeypatch.setattr(AutoUIPolicy, "act", lambda self, *a, **how: (time.sleep(0.1), act(self, *a, **how))[1])
    weights = SharedWeights(multiprocessing.get_context("forkserver"), 1)  # nothing is published
    control, theirs = multiprocessing.Pipe()
    server = threading.Thread(target=worker.policy_server, args=(path, weights, theirs, 32, 0), daemon=True)
    server.start()
    (one, to_one), (two, to_two), ask = multiprocessing.Pipe(), multiprocessing.Pipe(), ("a", np.zeros(1408), True)
    assert control.recv() == "ready"
    control.send(to_one)
    one.send(ask)
    assert one.recv().batch == 1
    monkeypatch.setattr(worker, "BATCH_WAIT", 600.0)  # of a tenth of a second: a minute
    control.send(to_two)
    one.send(ask)
    assert not one.poll(0.3)  # it waits for the other one
    monkeypatch.setattr(worker, "BATCH_WAIT", 0.0)
    two.send(ask)
    assert one.poll(20) and two.poll(20)  # and no longer than for it
    assert [one.recv().batch, two.recv().batch] == [2, 2]
    one.send(ask)
    assert one.recv().batch == 1
    control.close()
    server.join(10)
    assert not server.is_alive()


@pytest.mark.parametrize("end", ["bury", "stop"])
def test_a_worker_that_dies_loses_no_finished_trajectory(policy_path, end):
    """Two of its three episodes are finished and lie in its pipe when it is killed; the run may end then as well."""

    class Nobody:
        host, port, serials = "127.0.0.1", 9, ["toy"]

    actors = Actors(Nobody, policy_path, generate_tasks("train", 18, seed=0))
    (slot,), arrived = actors.pool._slots, []
    actors.pool._on_trajectory = lambda *finished: arrived.append(finished)
    slot.process = actors.pool._context.Process(target=signal.raise_signal, args=(signal.SIGKILL,))
    slot.process.start(), slot.process.join()
    slot.episodes, theirs = multiprocessing.Pipe()
    for content in (b"one", b"two"):
        theirs.send(("trajectory", content))
    theirs.close()
    actors.schedule.training = True
    first, second, third = slot.pending = [actors.schedule.next() for _ in range(3)]
    if end == "bury":
        actors.pool._bury(slot, f"exit code {slot.process.exitcode}")
        assert actors.pool.last_error == "worker 0 on toy: exit code -9" and slot.pending == []
    else:
        actors.pool.stop()
        assert slot.pending == [third]  # nobody plays it any more
    assert arrived == [(first, b"one"), (second, b"two")]
    assert actors.lost == ([third] if end == "bury" else [])
