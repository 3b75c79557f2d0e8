"""The flags of run_distrl.py, a sentence each, and what can be refused before anything starts.

    args = Args(); args.phones.num_workers = 8
    train_tasks, eval_tasks, folder = prepare(args)       # UsageError: the flag, its value, what to do
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from run_folder import UsageError, check_range, make_folder
from tasks import Task, generate_tasks, load_tasks


@dataclass
class RunArgs:
    exp_name: str = "distrl"
    """name of this experiment, part of the run folder's name"""
    seed: int = 1
    """seed of the phones, the task order, the sampling and the networks"""
    runs_dir: Path = Path("runs")
    """where run folders go"""
    resume: Path | None = None
    """go on with this run folder; every other flag is taken from it"""
    serial: bool = False
    """worker, policy and learner in one process, one phone, no time limit: slow, repeatable, easy to debug"""
    track: bool = False
    """log to Weights and Biases as well (offline when no key is set)"""


@dataclass
class PhoneArgs:
    num_workers: int = 32
    """phones, and workers: one each; with --devices, at most as many as there are"""
    latency: float = 0.5
    """simulated phones: scale of the heavy-tailed time an input takes (1: about 1 s); 0: none"""
    dialogs: float = 0.4
    """simulated phones: probability of a permission dialog when an app starts"""
    failed_loads: float = 0.25
    """simulated phones: probability that a page fails to load"""
    slow_loads: float = 0.1
    """simulated phones: probability that a page loads slowly"""
    adb_port: int = 0
    """simulated phones: port of the adb server that we start; 0: a free one"""
    devices: tuple[str, ...] = ()
    """train on these phones, not simulated ones: serials of `adb devices` (ip:port ones are connected), or all"""
    adb_server: tuple[str, ...] = ()
    """adb servers, HOST:PORT, whose phones are used; workers are spread over them; default: the one on this machine"""
    avd: str | None = None
    """launch an Android emulator of this AVD for each worker, and end them afterwards"""
    reset: Literal["home", "snapshot"] = "home"
    """before an episode: stop and clear the apps used (on a real phone: stop), or load the emulator's snapshot"""
    allow_offline: bool = False
    """train on tasks of the web although a phone says that it has no network"""
    check: bool = False
    """print a table of what this run needs and whether it is there, then stop; exit code 1 when something is missing"""

    @property
    def simulated(self) -> bool:
        return not (self.devices or self.adb_server or self.avd)


@dataclass
class TaskArgs:
    tasks: Path | None = None
    """instruction file to train on, one a line; default: our generator of the same families"""
    eval_tasks: Path | None = None
    """instruction file to evaluate on, repeated or cut to --eval-episodes; default: the generator's held-out ones"""
    skip_unknown_tasks: bool = False
    """leave out lines that no rule understands, instead of stopping"""
    horizon: int | None = None
    """steps before an episode is cut; default: 15, Web Shopping 20"""
    total_trajectories: int = 4000
    """stop training after this many trajectories ..."""
    train_minutes: float = 11.5
    """... or this many minutes, whichever comes first (evaluations come on top); 0: no limit"""
    eval_episodes: int = 256
    """episodes of each evaluation before and after training, greedy and sampled each"""
    eval_every: int = 500
    """training trajectories between small evaluations on the way (64 tasks, greedy); 0: none"""


@dataclass
class PolicyArgs:
    policy: Path | None = None
    """policy file to start from; default: the shipped warm start, rebuilt when it is missing"""
    publish_every: int = 4
    """updates between two publications of the weights"""
    max_staleness: int = 50
    """drop trajectories older than this many publications from training (they stay in the journal); 0: no bound"""


@dataclass
class AlgorithmArgs:
    gamma: float = 0.9
    """discount of future rewards"""
    retrace_lambda: float = 1.0
    """lambda of the Retrace targets"""
    target: Literal["retrace", "vtrace"] = "retrace"
    """off-policy value target: the paper's Retrace, or V-trace"""
    learning_rate: float = 2e-4
    """Adam step size of the policy at the start; it falls linearly to 0 at the end of training"""
    batch_trajectories: int = 16
    """whole trajectories an update"""
    updates_per_trajectory: float = 0.5
    """the learner waits for new data beyond this ratio"""
    learning_starts: int = 96
    """trajectories before the first update"""
    critic_warmup: int = 200
    """updates of the critics alone before the first one of the policy: an untrained critic ruins it"""
    entropy_coef: float = 0.003
    """beta, weight of the entropy bonus"""
    invalid_coef: float = 0.003
    """lambda, weight of the invalid-action penalty"""
    rho_clip: float = 1.0
    """upper clip of the importance ratio in the actor loss"""
    ratio_trust: float = 0.5
    """steps whose ratio has left 1 +- this are not pushed further; 0: no bound"""
    negative_scale: float = 0.1
    """factor on negative advantages"""
    replay_capacity: int = 2000
    """transitions kept for training (the journal keeps all)"""
    priority_alpha: float = 0.5
    """DPER: exponent of the priorities; 0 draws uniformly"""
    priority_weights: tuple[float, float, float] = (50.0, 1.0, 0.01)
    """DPER: weights of mean |td error|, mean rho and mean entropy (the authors' values)"""


@dataclass
class Args:
    run: RunArgs = field(default_factory=RunArgs)
    phones: PhoneArgs = field(default_factory=PhoneArgs)
    tasks: TaskArgs = field(default_factory=TaskArgs)
    policy: PolicyArgs = field(default_factory=PolicyArgs)
    algorithm: AlgorithmArgs = field(default_factory=AlgorithmArgs)


def check_phones(phones: PhoneArgs) -> None:
    """Refuses phone flags that contradict each other, or that would change nothing."""
    if phones.avd and (phones.devices or phones.adb_server):
        raise UsageError("--avd launches emulators of its own: leave out --devices and --adb-server")
    for serial in (*phones.devices, *filter(None, [phones.avd])):
        if not re.fullmatch(r"[\w\[][\w.:%\[\]()-]*", serial):
            raise UsageError(f"{serial!r} is neither a serial (R58M..., emulator-5554, 192.168.1.5:5555) nor an AVD")
    if "all" in phones.devices and len(phones.devices) > 1:
        raise UsageError(f"--devices {' '.join(phones.devices)}: give all, or serials")
    for server in phones.adb_server:
        host, _, port = server.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise UsageError(f"--adb-server {server}: want HOST:PORT, such as 192.168.1.7:5037")
    if phones.reset == "snapshot":
        if phones.simulated:
            raise UsageError("--reset snapshot: simulated phones have no snapshots: use it with --avd or emulators")
        real = [serial for serial in phones.devices if not serial.startswith("emulator-") and serial != "all"]
        if real or phones.adb_server:
            raise UsageError(f"--reset snapshot: {' '.join(real or phones.adb_server)}: only emulators of this machine "
                             "have snapshots that we can load")  # fmt: skip
    if not phones.simulated:
        for name in ("latency", "dialogs", "failed_loads", "slow_loads", "adb_port"):
            if getattr(phones, name) != getattr(PhoneArgs, name):
                raise UsageError(f"--{name.replace('_', '-')} is for simulated phones: leave it out with others")


def prepare(args: Args) -> tuple[list[Task], list[Task], Path]:
    """Everything that can be refused before anything is started. Returns the tasks and the run's folder."""
    check_phones(args.phones)
    flags = {name: value for group in vars(args).values() for name, value in vars(group).items()}
    check_range(flags, "num_workers eval_episodes horizon publish_every batch_trajectories", 1)
    check_range(flags, "replay_capacity", args.tasks.horizon or 20)  # the longest trajectory must fit
    check_range(flags, "dialogs failed_loads slow_loads gamma retrace_lambda negative_scale priority_alpha", 0, 1)
    check_range(flags, "adb_port", 0, 65535)
    check_range(flags, "seed latency total_trajectories train_minutes eval_every max_staleness learning_rate", 0)
    check_range(flags, "updates_per_trajectory learning_starts critic_warmup", 0)
    check_range(flags, "entropy_coef invalid_coef rho_clip ratio_trust priority_weights", 0)
    if args.run.serial:
        args.phones.num_workers, args.phones.latency, args.tasks.train_minutes = 1, 0.0, 0.0
    if args.policy.policy and not args.policy.policy.exists():
        raise UsageError(f"--policy {args.policy.policy}: no such file or folder")
    train = read_tasks("--tasks", args.tasks.tasks, args) or generate_tasks("train", 8000, args.run.seed)
    test = read_tasks("--eval-tasks", args.tasks.eval_tasks, args) or generate_tasks("test", args.tasks.eval_episodes)
    test = [test[i % len(test)] for i in range(args.tasks.eval_episodes)]
    if args.run.resume:
        return train, test, args.run.resume
    kind = "sim" if args.phones.simulated else "adb"
    name = f"{kind}__{args.run.exp_name}__{args.run.seed}__{time.strftime('%Y%m%d-%H%M%S')}"
    return train, test, make_folder(args.run.runs_dir, name, args)


def read_tasks(flag: str, path: Path | None, args: Args) -> list[Task]:
    """The instruction file's tasks; none without a file."""
    try:
        return load_tasks(path, args.tasks.skip_unknown_tasks) if path else []
    except OSError as error:
        raise UsageError(f"{flag} {path}: {error.strerror}: give a text file, one instruction a line") from error
    except ValueError as error:
        raise UsageError(f"{flag} {error}") from error
