"""What may befall a run, by a seed, and how the run is watched meanwhile: the storm of chaos.py.

    run = Run(flags, runs, mark="1"); run.start()
    storm = Storm(run, phones, judge, num=16, rng=random.Random(1))
    storm.blow(minutes=20, every=4.0)        # raises RuntimeError when the run cannot go on
    storm.faults, run.counts

Each method of `Storm` injects one fault. The main process and the disk have their appointed times; the others come as
they are drawn, and overlap.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from adb_phone import AdbPhone, AndroidEnvError, list_devices
from journal import Journal
from replay import Trajectory
from sim import Phones
from sim.judge_server import TEMPORARY, RuleAnswers

ROOT = Path(__file__).resolve().parents[1]
STILL = 200.0  # s without any trajectory: it stands still (a silent worker is replaced after 120 s)
MARK = "DISTRL_STORM"  # environment variable that all processes of the run inherit
DISK = "900m"  # of the run: it refuses to go on with less than 500 MB free


def processes() -> dict[int, tuple[int, str]]:
    """{pid: (parent, name)} of all that live."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            head, tail = (entry / "stat").read_text().rsplit(")", 1)
            if tail.split()[0] != "Z":
                found[int(entry.name)] = int(tail.split()[1]), head.split("(", 1)[1]
        except (OSError, ValueError, IndexError):
            continue
    return found


def marked(mark: str) -> list[int]:
    """Processes that were started by the run."""
    found = []
    for pid in processes():
        try:
            if f"{MARK}={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(pid)
        except OSError:
            continue
    return found


def send(pid: int, signum: int) -> bool:
    """False: it has gone."""
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        return False
    return True


def wait_for(condition: Callable[[], object], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)  # between two looks
    return True


@contextmanager
def small_disk(folder: Path) -> Iterator[Path | None]:
    """Makes the folder. Yields it when it is on a disk of its own, None where this user may not mount one."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"No disk of its own ({done.stderr.strip()}): that one is full means that no file of the run may grow.")
    try:
        yield None if done.returncode else folder
    finally:
        if not done.returncode:
            subprocess.run(["umount", "-l", str(folder)], check=True)


@dataclass
class Fault:
    """`hit`: the workers that must have recovered; an int, or the serial of its phone."""

    kind: str
    hit: set
    over: float  # epoch seconds
    recovered: float | None = None


@dataclass
class Judge:
    """The stand-in's answers, each after `seconds`; none of use until `back`."""

    rule: RuleAnswers
    random: random.Random
    seconds: float
    back: float = 0.0

    def __call__(self, request) -> str:
        time.sleep(self.seconds)
        answer = self.random.choice(TEMPORARY) if time.time() < self.back else self.rule(request)
        request.images.clear()  # the server keeps its requests
        return answer


@dataclass
class Run:
    """run_distrl.py, over all its sessions, and what has been seen of its journal."""

    flags: list
    runs: Path
    mark: str
    process: subprocess.Popen | None = None
    said: list[str] = field(default_factory=list)
    seen: dict[int, str] = field(default_factory=dict)  # id -> hash of the trajectory's bytes
    rows: list[tuple[float, int, str, bool]] = field(default_factory=list)  # when, worker, serial, has a verdict
    counts: Counter = field(default_factory=Counter)

    @property
    def folder(self) -> Path:
        (folder,) = self.runs.iterdir()
        return folder

    def start(self) -> None:
        """A new session, in training when this returns."""
        resumed = any(self.runs.iterdir())
        flags = ["--resume", self.folder] if resumed else self.flags
        journaled = len(self.seen)
        self.said = []
        self.process = subprocess.Popen(
            [sys.executable, "-u", "run_distrl.py", *map(str, flags)], cwd=ROOT, env=os.environ | {MARK: self.mark},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip
        threading.Thread(target=self._listen, args=(self.process,), daemon=True).start()
        training = lambda: any("Training" in line for line in self.said)  # noqa: E731
        wait_for(lambda: training() or self.process.poll() is not None, 180)
        if not training():
            raise RuntimeError(f"the run does not start: exit {self.process.poll()}")
        self.counts["sessions"] += 1
        if resumed:
            at = int(re.search(r"at (\d+) trajectories", "".join(self.said))[1])
            self.counts["missing"] += abs(at - journaled)

    def _listen(self, process: subprocess.Popen) -> None:
        for line in process.stdout:
            self.said.append(line)
            print(f"  | {line}", end="", flush=True)

    def look(self) -> None:
        """Read what is new in the journal."""
        with Journal(self.folder / "journal.sqlite", readonly=True) as journal:
            for row in list(journal.rows("train", since=max(self.seen, default=0))):
                data = journal.get(row.id).data
                self.seen[row.id] = hashlib.sha256(data).hexdigest()
                serial = Trajectory.from_bytes(data).info["serial"]
                self.rows.append((row.created, row.worker, serial, row.success is not None))

    def names(self) -> dict[str, int]:
        """{name: pid} of workers and policy server."""
        found = processes()
        servers = [pid for pid, (parent, _) in found.items() if parent == self.process.pid]
        return {name: pid for pid, (parent, name) in found.items() if parent in servers}

    def ended(self, what: str, seconds: float) -> None:
        """Its processes must be gone within that time after it ended."""
        self.process.wait()
        began = time.monotonic()
        if not wait_for(lambda: not marked(self.mark), seconds):
            left = {pid: processes().get(pid) for pid in marked(self.mark)}
            self.counts["leaked"] += len(left)
            print(f"LEAKED after {what}: {left}", flush=True)
            for pid in left:
                send(pid, signal.SIGKILL)
        print(f"  {what}: all gone {time.monotonic() - began:.1f} s after its end", flush=True)
        self.look()


class Storm:
    """What may befall the run. Each method injects one fault and returns it, None when there is nothing to hit."""

    def __init__(
        self, run: Run, phones: Phones, judge: Judge, num: int, rng: random.Random, disk: Path | None = None
    ):  # fmt: skip
        self.run, self.phones, self.judge, self.num, self.random = run, phones, judge, num, rng
        self.ballast = disk and disk / "ballast"  # on a disk of the run's own
        self.end = 0.0  # epoch seconds
        self.later: list[tuple[float, Callable]] = []  # ends of faults
        self.faults: list[Fault] = []
        often = {self.worker_killed: 4, self.worker_stopped: 3, self.phone_drops: 4, self.phone_hangs: 1,
                 self.phone_offline: 2, self.phone_reboots: 3, self.judge_out: 2, self.policy_server_killed: 1,
                 self.adb_server_killed: 1, self.worker_stopped_for_good: 1}  # fmt: skip
        self.kinds, self.weights = list(often), list(often.values())

    def strike(self) -> None:
        (inject,) = self.random.choices(self.kinds, self.weights)
        if fault := inject():
            self.add(fault)

    def add(self, fault: Fault) -> None:
        self.faults.append(fault)
        print(f"{fault.kind}: {'all' if len(fault.hit) == self.num else ', '.join(map(str, fault.hit))}", flush=True)

    def everybody(self) -> set:
        return set(range(self.num))

    def kill(self, name: str, signum: int) -> int | None:
        pid = self.run.names().get(name)
        return pid if pid and send(pid, signum) else None

    def worker_killed(self) -> Fault | None:
        index = self.random.randrange(self.num)
        return Fault("worker killed", {index}, time.time()) if self.kill(f"worker {index}", signal.SIGKILL) else None

    def worker_stopped(self) -> Fault | None:
        index, seconds = self.random.randrange(self.num), self.random.uniform(2, 15)
        if pid := self.kill(f"worker {index}", signal.SIGSTOP):
            self.later.append((time.time() + seconds, lambda: send(pid, signal.SIGCONT)))
            return Fault("worker stopped a while", {index}, time.time() + seconds)
        return None

    def worker_stopped_for_good(self) -> Fault | None:
        if self.end - time.time() < STILL:
            return None
        index = self.random.randrange(self.num)
        stopped = self.kill(f"worker {index}", signal.SIGSTOP)
        return Fault("worker stopped for good", {index}, time.time()) if stopped else None

    def policy_server_killed(self) -> Fault | None:
        killed = self.kill("policy server", signal.SIGKILL)
        return Fault("policy server killed", self.everybody(), time.time()) if killed else None

    def adb_server_killed(self) -> Fault | None:
        servers = [pid for pid, (parent, name) in processes().items() if parent == self.phones.pid and name == "adb"]
        for pid in servers:
            os.kill(pid, signal.SIGKILL)
        return Fault("adb server killed", self.everybody(), time.time()) if servers else None

    def phone_drops(self) -> Fault:
        serial = self.random.choice(self.phones.serials)
        self.phones.fault(serial, "drop", self.random.randint(1, 3))
        return Fault("phone drops its connection", {serial}, time.time())

    def phone_hangs(self) -> Fault:
        serial = self.random.choice(self.phones.serials)
        self.phones.fault(serial, "mute", 1)
        return Fault("phone hangs", {serial}, time.time())

    def phone_offline(self) -> Fault:
        serial, seconds = self.random.choice(self.phones.serials), self.random.uniform(2, 15)
        self.phones.fault(serial, "offline")
        self.later.append((time.time() + seconds, lambda: self.phones.fault(serial, "none")))
        return Fault("phone offline", {serial}, time.time() + seconds)

    def phone_reboots(self) -> Fault | None:
        serial = self.random.choice(self.phones.serials)
        try:
            AdbPhone(serial, self.phones.host, self.phones.port, timeout=2.0).reboot()
        except AndroidEnvError:  # it is in another trouble
            return None
        return Fault("phone reboots", {serial}, time.time())

    def judge_out(self) -> Fault:
        self.judge.back = max(self.judge.back, time.time() + self.random.uniform(3, 20))
        return Fault("judge out", self.everybody(), self.judge.back)

    def main_killed(self) -> None:
        struck = time.time()
        self.run.process.kill()
        self.again("main process killed", struck)

    def fill(self) -> bool:
        """No byte is left on the disk of the run, whatever it has removed. Returns False: to be asked again."""
        with open(self.ballast, "ab") as file, suppress(OSError):  # the run may be quicker
            if free := shutil.disk_usage(self.ballast).free:
                os.posix_fallocate(file.fileno(), file.tell(), free)
        return False

    def disk_full(self) -> None:
        struck = time.time()
        if not self.ballast:
            resource.prlimit(self.run.process.pid, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
        ended = wait_for(lambda: self.run.process.poll() is not None or self.ballast and self.fill(), 120)
        if self.ballast:
            self.ballast.unlink(missing_ok=True)
        if not ended:
            self.run.counts["stood still"] += 1
            self.run.process.kill()
        elif self.run.process.returncode != 1 or not wait_for(lambda: "--resume" in "".join(self.run.said[-5:]), 5):
            self.run.counts["ended by itself"] += 1  # not as it should
        self.again("disk full", struck)

    def again(self, kind: str, struck: float) -> None:
        """The run is over: see that nothing is left, mend the phones, resume it."""
        self.run.ended(kind, 10)
        self.heal()
        for fault in self.faults:  # their workers are no more
            if fault.recovered is None:
                fault.hit.clear()
        self.run.start()
        self.add(Fault(kind, self.everybody(), struck))

    def heal(self) -> None:
        """Every fault that lasts ends."""
        self.judge.back = 0.0
        for _, end in self.later:
            end()
        self.later.clear()
        for serial in self.phones.serials:
            self.phones.fault(serial, "none")
        if not wait_for(self.online, 60):
            raise RuntimeError("the simulated phones do not come back")

    def online(self) -> bool:
        """Are all phones to be had? One that came back while its adb server did not look must be connected again."""
        try:
            states = list_devices(self.phones.host, self.phones.port)
            for serial in self.phones.serials:
                if states.get(serial) != "device":
                    AdbPhone(serial, self.phones.host, self.phones.port, timeout=2.0).recover(2.0)
            return True
        except AndroidEnvError:
            return False

    def watch(self) -> None:
        """End what is due, see who has recovered, and whether the run goes on."""
        now = time.time()
        for due, end in [item for item in self.later if item[0] <= now]:
            self.later.remove((due, end))
            end()
        self.run.look()
        for fault in self.faults:
            if fault.recovered is not None:
                continue
            back: dict = {}
            for at, worker, serial, verdict in self.run.rows:
                if verdict and at > fault.over:
                    back.setdefault(worker, at), back.setdefault(serial, at)
            if fault.hit and fault.hit <= back.keys():
                fault.recovered = max(back[who] for who in fault.hit) - fault.over
        if self.run.process.poll() is not None:
            self.run.counts["ended by itself"] += 1
            print(f"ENDED BY ITSELF: exit {self.run.process.returncode}", flush=True)
            self.again("run ended by itself", now)
        elif self.run.rows and now - max(self.run.rows[-1][0], self.started) > STILL:
            self.run.counts["stood still"] += 1
            raise RuntimeError(f"no trajectory for {STILL:.0f} s")

    @property
    def started(self) -> float:
        """When the last session began, or a fault that stops everybody ended."""
        return max((fault.over for fault in self.faults if len(fault.hit) == self.num), default=0.0)

    def blow(self, minutes: float, every: float) -> None:
        """The storm, then calm until all have recovered."""
        began = time.time()
        self.end = began + 60 * minutes
        appointed = [(0.25, self.main_killed), (0.5, self.main_killed), (0.75, self.main_killed), (0.9, self.disk_full)]
        if minutes >= 5:
            appointed += [(0.4, self.disk_full)]
        appointed = sorted((began + 60 * minutes * share, strike) for share, strike in appointed)
        due = began
        while time.time() < self.end or appointed:
            self.watch()
            if appointed and time.time() > appointed[0][0]:
                appointed.pop(0)[1]()
            elif time.time() > due:
                due = time.time() + self.random.expovariate(1 / every)
                self.strike()
            time.sleep(0.2)  # between two looks
        self.heal()
        for fault in self.faults:
            fault.over = min(fault.over, time.time())
        open_faults = lambda: [fault for fault in self.faults if fault.hit and fault.recovered is None]  # noqa: E731
        wait_for(lambda: self.watch() or not open_faults(), STILL)
        for fault in open_faults():
            self.run.counts["stood still"] += 1
            print(f"NOT RECOVERED: {fault}", flush=True)
