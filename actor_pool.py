"""The actor pool: starts, feeds and replaces the workers and the policy server (worker.py).

    worker  -- whole trajectories, heartbeats -->  ActorPool's thread in the main process
            <-- episodes --

All are daemons of a `forkserver` (a fork of a process that has used torch hangs) and leave when the main process does,
however it ends. Every worker has pipes of its own: a queue that is shared dies with the process that was killed while
writing to it.

    pool = ActorPool(phones, policy_path, weights_for, next_episode=..., on_trajectory=..., on_lost=...)
    pool.start(); ...; pool.stop()

A worker that dies, or is silent for `worker_timeout` seconds, is replaced with back-off and its episodes handed to
`on_lost`. When no worker can be kept alive, `pool.error` says why and the pool stops trying.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path

from evaluator import JudgeConfig
from shared_weights import SharedWeights
from worker import RESTART_PHONE, Episode, PhoneAddress, policy_server, worker

MESSAGE_SECONDS = 2  # from the first byte of a message to its last


@dataclass
class _Slot:
    index: int
    address: PhoneAddress
    process: multiprocessing.Process | None = None
    episodes: Connection | None = None
    pending: list[Episode] = field(default_factory=list)  # handed over, oldest first, not yet finished
    ready: bool = False
    heard: float = 0.0
    failures: int = 0  # deaths in a row, without a trajectory in between
    troubled: bool = False  # its phone has failed since its last trajectory
    said: str = ""  # what went wrong with its phone, in its own words
    retry_at: float = 0.0


class ActorPool:
    """Starts, feeds and replaces the workers and the policy server; see the module's docstring.

    next_episode() -> Episode | None       called from the pool's thread; None: nothing to do now
    on_trajectory(episode, data: bytes)    called from the pool's thread with `Trajectory.to_bytes()`
    on_lost(episode)                       the worker that played it died; from the pool's thread
    server_options                         further arguments of `policy_server`
    restart_phone(address)                 outages in a row on this phone; from the pool's thread: return at once
    first_index                            number of the first worker
    ahead                                  episodes a worker holds, so that it never waits for the main process
    """

    def __init__(
        self,
        phones: list[PhoneAddress],
        policy_path: Path,
        weights_for: Callable[[multiprocessing.context.BaseContext], SharedWeights],
        *,
        next_episode: Callable[[], Episode | None],
        on_trajectory: Callable[[Episode, bytes], None],
        on_lost: Callable[[Episode], None],
        restart_phone: Callable[[PhoneAddress], None] = lambda address: None,
        env_options: dict | None = None,
        server_options: dict | None = None,
        judge: JudgeConfig = JudgeConfig(),  # noqa: B008  (frozen)
        max_batch: int = 32,
        worker_timeout: float = 120.0,
        ahead: int = 2,
        seed: int = 0,
        first_index: int = 0,
    ):
        # Preloading happens in the fork server, which looks for modules in its own path.
        root = str(Path(__file__).resolve().parent)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        self._context = multiprocessing.get_context("forkserver")
        extra = ["gemini_sdk"] if judge.kind == "gemini" else []
        self._context.set_forkserver_preload(["fork_server", "actor_pool", *extra])
        self.weights = weights_for(self._context)
        self._policy_path, self._max_batch, self._timeout, self._ahead = policy_path, max_batch, worker_timeout, ahead
        self._next, self._on_trajectory, self._on_lost = next_episode, on_trajectory, on_lost
        self._restart_phone, self._judge = restart_phone, judge
        self._env_options, self._server_options, self._seed = env_options or {}, server_options or {}, seed
        self._slots = [_Slot(index, address) for index, address in enumerate(phones, first_index)]
        self._server: multiprocessing.Process | None = None
        self._control: Connection | None = None
        self._stop, self._stopping = threading.Event(), lambda: False
        self._thread = threading.Thread(target=self._run, name="collector", daemon=True)
        self.server_ready = False
        self.restarts = 0  # workers replaced
        self.phone_restarts = 0
        self.server_restarts = 0
        self._hung = ""  # why the policy server is killed
        self._looked = time.monotonic()  # when this thread last looked around
        self._server_failures = 0  # deaths of the policy server in a row, without a trajectory in between
        self.env_steps = 0
        self.last_error = ""
        self.error: BaseException | None = None  # why the pool gave up

    def start(self, timeout: float = 120.0, stopping: Callable[[], bool] = lambda: False) -> None:
        """Start everything; return when the policy server and every worker answer, or raise after `timeout`.

        `stopping()`: nobody waits for them any more, and who is missing is not replaced from then on. Only from a
        thread that lives as long as they are to.
        """
        self._stopping = stopping
        _start_fork_server()
        self._thread.start()
        deadline = time.monotonic() + timeout
        while not (self.server_ready and all(slot.ready for slot in self._slots)) and not stopping():
            if self.error:
                raise RuntimeError(f"no worker could be started: {self.last_error or self.error}") from self.error
            if time.monotonic() > deadline:
                ready = f"{self.alive} of {len(self._slots)} workers"
                why = self.last_error or "the machine is overloaded: fewer --num-workers"
                raise RuntimeError(f"only {ready} are ready after {timeout:.0f} s: {why}")
            self._stop.wait(0.02)

    def stop(self) -> None:
        """End every child process. `on_trajectory` has been called for all that was finished."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10)
        processes = [slot.process for slot in self._slots] + [self._server]
        processes = [process for process in processes if process is not None]
        for process in processes:
            process.terminate()
        deadline = time.monotonic() + 1  # for all of them: one that is stopped (SIGSTOP) does not hear it
        for process in processes:
            process.join(timeout=max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
        for process in processes:
            process.join(timeout=3)
        if self.error is None and not self._thread.is_alive():
            try:
                for slot in self._slots:
                    self._drain(slot)
            except Exception as error:  # as in `_run`
                self.error = error

    @property
    def alive(self) -> int:
        """Workers that are up."""
        return sum(slot.ready for slot in self._slots)

    @property
    def pids(self) -> list[int]:
        """Process ids of the policy server and the workers."""
        processes = [self._server, *(slot.process for slot in self._slots)]
        return [process.pid for process in processes if process is not None]

    # ------------------------------------------------------------------ the pool's thread

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                if going_on := not self._stopping():  # else: a SIGTERM to all of the group has ended them, too
                    self._ensure_processes()
                    for slot in self._slots:
                        self._feed(slot)
                running = [slot for slot in self._slots if slot.process]
                sources = {slot.episodes: slot for slot in running} | {slot.process.sentinel: slot for slot in running}
                server = [self._control, self._server.sentinel] if going_on else []
                for ready in wait([*sources, *server], timeout=0.1):
                    slot = sources.get(ready)
                    if slot is None:
                        self._hear_server(ready)
                    elif slot.process and ready is slot.episodes:
                        self._receive(slot)
                    elif slot.process and ready == slot.process.sentinel:
                        self._bury(slot, f"exit code {slot.process.exitcode}")
                if going_on:
                    self._replace_silent()
        except Exception as error:  # the thread's last words must reach the main thread
            if not (self._stop.is_set() or self._stopping()):
                self.error = error

    def _replace_silent(self) -> None:
        busy = [slot for slot in self._slots if slot.process and (slot.pending or not slot.ready)]
        now = time.monotonic()
        if (stood := now - self._looked) > self._timeout / 2:  # this process stood still (Ctrl-Z), they perhaps too
            for slot in busy:
                slot.heard += stood
        self._looked = now
        silent = [slot for slot in busy if now - slot.heard > self._timeout]
        if not silent:
            return
        latest = max(slot.heard for slot in busy)
        # All of them, one soon after the other, or the only one for the second time: perhaps what they wait for hangs.
        if (len(busy) > 1 or silent[0].failures == 1) and now - latest > self._timeout / 2 and self.server_ready:
            self._hung = f", killed after {self._timeout:.0f} s without an answer"
            self._server.kill()
            self._server.join(timeout=5)
            return
        for slot in silent:
            slot.process.kill()
            self._bury(slot, f"silent for {self._timeout:.0f} s")

    def _hear_server(self, ready) -> None:
        if ready is self._control:
            try:
                self.server_ready = self._control.recv() == "ready"
            except (EOFError, ConnectionResetError):
                self._server.join(timeout=5)  # `_ensure_processes` replaces it

    def _ensure_processes(self) -> None:
        if self._server is None or not self._server.is_alive():
            if self._server is not None:
                self.server_restarts += 1
                self._server_failures += 1
                ended = f"the policy server ended with exit code {self._server.exitcode}{self._hung}"
                memory = ": is memory enough?" if self._server.exitcode == -9 and not self._hung else ""
                self._hung = ""
                if self._server_failures > 5:
                    raise RuntimeError(f"{ended} for the sixth time in a row{memory}")
                for slot in self._slots:  # their pipes to the server are dead
                    if slot.process:
                        slot.process.kill()
                        self._bury(slot, ended)
                self.last_error = ended + memory
            self.server_ready = False
            self._control, theirs = self._context.Pipe()
            seed = self._seed + 10_000 * self.server_restarts  # else it would sample the same again
            arguments = (self._policy_path, self.weights, theirs, self._max_batch, seed)
            self._server = self._begin(policy_server, arguments, self._server_options)
            theirs.close()
        for slot in self._slots:
            if self._stop.is_set() or self._stopping():
                return
            if slot.process is None and time.monotonic() >= slot.retry_at:
                self._spawn(slot)
        if all(slot.failures >= 6 for slot in self._slots):
            raise RuntimeError(f"no worker can be kept alive; the last one: {self.last_error}")

    def _spawn(self, slot: _Slot) -> None:
        ours, theirs = self._context.Pipe()
        to_server, server_end = self._context.Pipe()
        for end in (ours, server_end):
            _read_in_time(end)
        blip2 = bool(self._server_options.get("blip2"))
        arguments = (slot.index, slot.address, self._env_options, self._judge, theirs, to_server, blip2)
        slot.process, slot.episodes = self._begin(worker, arguments), ours
        try:
            self._control.send(server_end)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the policy server has just died; `_ensure_processes` will see it and replace the workers too
        for end in (theirs, to_server, server_end):
            end.close()
        slot.heard, slot.ready, slot.said = time.monotonic(), False, ""

    def _begin(self, target: Callable, arguments: tuple, options: dict | None = None) -> multiprocessing.Process:
        process = self._context.Process(target=target, args=arguments, kwargs=options or {}, daemon=True)
        for _ in range(20):
            _start_fork_server()  # it may have been killed; a new one ends with this thread, as all that it starts must
            try:
                process.start()
                return process
            except (EOFError, ConnectionError):  # it was, just now
                if self._stop.wait(0.1):
                    break
        raise RuntimeError("no process can be started: the fork server ends at once: is memory enough?")

    def _feed(self, slot: _Slot) -> None:
        while slot.ready and len(slot.pending) < self._ahead:
            episode = self._next()
            if episode is None:
                return
            slot.pending.append(episode)
            slot.heard = max(slot.heard, time.monotonic()) if len(slot.pending) == 1 else slot.heard
            try:
                slot.episodes.send(episode)
            except (BrokenPipeError, ConnectionResetError):
                return  # the sentinel tells of its death

    def _receive(self, slot: _Slot) -> None:
        try:
            kind, content = slot.episodes.recv()
        except BlockingIOError:  # stopped in mid-sentence: what still came could not be told from a beginning
            slot.process.kill()
            slot.episodes.close()
            return self._bury(slot, "stopped in the middle of a message")
        except (EOFError, ConnectionResetError, OSError):
            return self._bury(slot, "its pipe closed")
        slot.heard = time.monotonic()
        self._take(slot, kind, content)

    def _take(self, slot: _Slot, kind: str, content) -> None:
        if kind == "ready":
            slot.ready = True
        elif kind == "step":
            self.env_steps += 1
        elif kind == "phone_error":  # a trajectory that follows it is the outage's
            slot.said = self.last_error = content
            slot.troubled = True
        elif kind == "trajectory":
            if not slot.troubled:
                slot.failures, slot.said = 0, ""
            slot.troubled = False
            self._server_failures = 0
            self._on_trajectory(slot.pending.pop(0), content)

    def _drain(self, slot: _Slot) -> None:
        """Take what a worker that has ended still had to say."""
        while slot.episodes is not None:
            try:
                if not slot.episodes.poll():
                    return
                kind, content = slot.episodes.recv()
            except (EOFError, OSError):
                return
            self._take(slot, kind, content)

    def _bury(self, slot: _Slot, why: str) -> None:
        """A worker is gone: take what it still had to say, give its episodes away, plan its successor."""
        slot.process.join(timeout=1)
        if slot.process.is_alive():  # a closed pipe, but no end
            slot.process.kill()
            slot.process.join(timeout=5)
        self._drain(slot)
        why = f"exit code {slot.process.exitcode}" if why == "its pipe closed" else why
        said = slot.said and f", after {slot.said}"
        self.last_error = f"worker {slot.index} on {slot.address.serial}: {why}{said}"
        if slot.process.exitcode == RESTART_PHONE:
            self.phone_restarts += 1
            try:
                self._restart_phone(slot.address)
            except (OSError, RuntimeError) as error:  # its next worker tries all the same
                self.last_error += f"; its restart failed: {error}"
        slot.episodes.close()
        slot.process = slot.episodes = None
        slot.ready = False
        lost, slot.pending = slot.pending, []
        for episode in lost:
            self._on_lost(episode)
        self.restarts += 1
        slot.failures += 1
        slot.retry_at = time.monotonic() + min(30.0, 0.25 * 2**slot.failures)


def _read_in_time(connection: Connection) -> None:
    """From now on its `recv` waits for the rest of a message that has begun for `MESSAGE_SECONDS` at most, then raises
    BlockingIOError: a sender that is stopped in between must not hold up the reader of all the others."""
    with socket.socket(fileno=os.dup(connection.fileno())) as end:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", MESSAGE_SECONDS, 0))


def _start_fork_server() -> None:
    """The fork server, and so every child, hears no Ctrl-C and no hang-up: those are for the main process alone."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        resource_tracker.ensure_running()  # it unblocks SIGINT
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
