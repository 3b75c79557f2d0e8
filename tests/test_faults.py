"""Whole runs under faults, with real processes: what is resumed is the same run, what must end ends, nothing is left.

test_run.py has Ctrl-C, a full disk and a kill in one run's life, test_actor_pool.py what befalls workers, policy server
and phones.
"""

import csv
import fcntl
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import termios
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from test_run import ROOT, TINY, Program, contents, gone, wait_for_trajectories

from adb_phone import AdbPhone, AdbTimeout
from android_env import AndroidEnv
from args import PhoneArgs
from evaluator import RuleJudge
from journal import Journal
from phone_source import phone_source
from policy import AutoUIPolicy
from replay import Trajectory
from run_folder import UsageError, load_checkpoint, save_checkpoint
from sim import start_phones
from stop_signals import _Output
from tasks import parse_task

PATIENCE = 240  # s, for a machine that is busy otherwise


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    path = tmp_path_factory.mktemp("policy") / "policy.safetensors"
    AutoUIPolicy.small(seed=0, d_model=32, layers=1, heads=2, d_ff=64).save(path)
    return path


def altered(code: str, *flags) -> Program:
    """The program with a fault built in: `code` runs in its main process before it starts."""
    return Program(*flags, start=["-c", f"import sys, run_distrl\n{code}\nsys.exit(run_distrl.main())"])


def run_of(runs: Path) -> Path:
    (run,) = runs.iterdir()
    return run


def trained(run: Path) -> list[tuple[int, Trajectory]]:
    """(id, trajectory) of the training trajectories in the journal."""
    with Journal(run / "journal.sqlite", readonly=True) as journal:
        ids = [row.id for row in journal.rows("train")]
        return [(id, Trajectory.from_bytes(data)) for id, data in journal.blobs(ids)]


def called(pids: list[int], name: str) -> int:
    """The process of that name (worker.py gives it) among these."""
    (pid,) = [pid for pid in pids if Path(f"/proc/{pid}/comm").read_text().strip() == name]
    return pid


# ---------------------------------------------------------------------- the same run


SERIAL = """--serial --eval-episodes 1 --horizon 3 --total-trajectories 30 --learning-starts 4 --critic-warmup 2
    --batch-trajectories 2 --updates-per-trajectory 1 --publish-every 2 --eval-every 9 --seed 5""".split()


def test_a_serial_run_that_was_stopped_and_killed_ends_with_the_same_weights(policy, tmp_path):
    flags = [*SERIAL, "--policy", policy, "--runs-dir"]
    whole, program = Program(*flags, tmp_path / "whole"), Program(*flags, tmp_path / "cut")
    program.until("Training")
    run = run_of(tmp_path / "cut")
    wait_for_trajectories(run, 6, PATIENCE)
    program.process.send_signal(signal.SIGINT)
    assert program.end(PATIENCE)[0] == 130
    stopped = len(contents(run))
    assert load_checkpoint(run)["counters"]["trajectories"] == stopped < 20
    program = Program("--resume", run)
    wait_for_trajectories(run, stopped + 4, PATIENCE)
    program.process.kill()
    program.end(PATIENCE)
    killed = len(contents(run))
    assert load_checkpoint(run)["counters"]["trajectories"] == stopped < killed < 30
    code, out, err = Program("--resume", run).end(PATIENCE)
    assert code == 0 and err == "" and f"at {killed} trajectories" in out, (out, err)
    code, out, err = whole.end(PATIENCE)
    assert code == 0 and err == "", (out, err)
    whole = run_of(tmp_path / "whole")

    def played(run: Path) -> list:
        return [(t.info["number"], t.actions, t.prompts, t.policy_version.tolist(), t.features.tobytes(),
                 [x.tobytes() for x in t.logprobs]) for _, t in trained(run)]  # fmt: skip

    assert played(run) == played(whole)
    learners = [load_checkpoint(folder)["learner"] for folder in (run, whole)]
    for learner in learners:  # ids count evaluations too, and one of them was played twice
        del learner["replay"]["ids"], learner["replay"]["_next_id"]
    assert learners[0]["replay"] == learners[1]["replay"] and learners[0]["counters"] == learners[1]["counters"]
    assert learners[0]["counters"]["updates"] >= 20
    weights = [(folder / "policy.safetensors").read_bytes() for folder in (run, whole)]
    assert weights[0] == weights[1] != policy.read_bytes()


SAVES = """
import sys, torch
from pathlib import Path
from run_folder import save_checkpoint
for number in range(1, 10_000):
    weights = torch.full((4_000_000,), float(number))
    print(save_checkpoint(Path(sys.argv[1]), number, {"number": number, "weights": weights}), flush=True)
"""


def test_E13_a_checkpoint_cut_short_by_a_kill_is_passed_over_for_the_one_before(tmp_path):
    for attempt in range(5):  # a kill may come a moment too late
        folder = tmp_path / str(attempt)
        folder.mkdir()
        saver = subprocess.Popen([sys.executable, "-c", SAVES, str(folder)], cwd=ROOT, stdout=subprocess.PIPE)
        assert [saver.stdout.readline() for _ in range(3)][2].endswith(b"00000003.pt\n")
        partial = folder / "checkpoints"
        while not any(path.suffix == ".tmp" for path in partial.iterdir()):
            assert saver.poll() is None
        saver.kill()
        saver.communicate()
        if left := list(partial.glob("*.tmp")):
            break
    state = load_checkpoint(folder)
    assert state["number"] == int(left[0].stem) - 1 and torch.all(state["weights"] == state["number"])
    save_checkpoint(folder, state["number"] + 2, state)
    names = sorted(path.name for path in partial.iterdir())
    assert names == [f"{state['number']:08d}.pt", f"{state['number'] + 2:08d}.pt"]  # what was cut short is gone


# ---------------------------------------------------------------------- it ends when it must


RAISES = """
from learner import Learner
def update(self):
    print("RAISING", flush=True)
    raise ValueError("the learner's own words")
Learner.update = update
"""
NOT_FINITE = """
import learner
loss, calls = learner.aride.actor_loss, []
def actor_loss(**arguments):
    calls.append(1)
    value, metrics = loss(**arguments)
    return (value * float("nan") if 3 <= len(calls) < 3 + {} else value), metrics
learner.aride.actor_loss = actor_loss
"""


@pytest.mark.slow
def test_E15_E9_C16_a_learner_that_raises_or_diverges_ends_the_run(policy, tmp_path):
    flags = [*TINY, "--policy", policy, "--runs-dir"]
    raising = altered(RAISES, *flags, tmp_path / "raises", "--track")
    raising.until("Training")
    family = raising.family()
    assert len(family) >= 7
    raising.until("RAISING")
    began = time.monotonic()
    code, out, err = raising.end(PATIENCE)
    assert time.monotonic() - began < 10
    assert code == 1 and "Traceback" in err and "ValueError: the learner's own words" in err, (code, out, err)
    assert gone(family, began + 10 - time.monotonic())

    skips, stops = (altered(NOT_FINITE.format(n), *flags, tmp_path / f"nan{n}") for n in (2, 3))
    code, out, err = stops.end(PATIENCE)
    assert code == 1 and err.count("\n") == 2 and "--resume" in err, (code, out, err)
    found = re.match(r"error: the policy: the loss \(nan\).* was not finite three times in a row: lower --learning-rate"
                     r" \(the last time on trajectories ([\d, ]+) of the journal\)", err)  # fmt: skip
    assert {int(id) for id in found[1].split(", ")} <= contents(run_of(tmp_path / "nan3")).keys()
    code, out, err = skips.end(PATIENCE)
    assert code == 0 and err == "", (code, out, err)
    run = run_of(tmp_path / "nan2")
    assert load_checkpoint(run)["learner"]["counters"]["skipped"] == 2
    assert list(csv.DictReader((run / "metrics.csv").open()))[-1]["stats/nan_skips"] == "2"


class Terminal(Program):
    """The program in a terminal of its own, which can be closed."""

    def __init__(self, *flags):
        ours, theirs = pty.openpty()

        def enter() -> None:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            signal.signal(signal.SIGHUP, signal.SIG_DFL)  # these tests may run under nohup

        self.process = subprocess.Popen(
            [sys.executable, "run_distrl.py", *map(str, flags)], cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs,
            start_new_session=True, preexec_fn=enter,
        )  # fmt: skip
        os.close(theirs)
        self.process.stdout, self.out = os.fdopen(ours), ""


@pytest.mark.slow  # its deadlines want the machine for themselves
def test_E2_E3_stopped_by_sigterm_a_closed_terminal_or_killed_with_children_that_hear_nothing(policy, tmp_path):
    """SIGSTOP first: what is stopped does not hear that it is to end."""
    flags = [*TINY, "--total-trajectories", 100_000, "--policy", policy, "--runs-dir"]
    kinds = {"closed": Terminal, "term": Program, "group": Program, "unread": Program}
    programs = {kind: start(*flags, tmp_path / kind) for kind, start in kinds.items()}
    for kind, program in programs.items():
        program.until("Training")
        run = run_of(tmp_path / kind)
        wait_for_trajectories(run, 4, PATIENCE)
        family = program.family()
        os.kill(called(family, "worker 0"), signal.SIGSTOP)
        began = time.monotonic()
        if kind == "closed":
            program.process.stdout.close()  # the kernel sends SIGHUP to all in the terminal
        elif kind == "unread":  # `| tee log`, and Ctrl-C ends both
            program.process.stdout.close()
            program.process.send_signal(signal.SIGINT)
        elif kind == "group":  # torchrun, systemd, Slurm
            os.killpg(program.process.pid, signal.SIGTERM)
        else:
            program.process.send_signal(signal.SIGTERM)
        assert program.process.wait(10) == 130
        assert time.monotonic() - began < 5 and gone(family, 5 - (time.monotonic() - began))
        counters = load_checkpoint(run)["counters"]
        assert counters["trajectories"] == sum(id <= counters["last_id"] for id in contents(run)) >= 4
    assert all("Traceback" not in programs[kind].end(PATIENCE)[2] for kind in ("term", "group"))

    program = Program("--resume", run)
    program.until("Training")
    family = program.family()
    stopped = 0
    for pid in family:  # Ctrl-Z, then kill -9 of the one that has a name
        name, started = (Path(f"/proc/{pid}/{what}").read_text() for what in ("comm", "cmdline"))
        if pid == family[0] or re.match("worker|policy server|fork server", name) or "\0sim\0" in started:
            os.kill(pid, signal.SIGSTOP)
            stopped += 1
    assert stopped == 6  # main process, fork server, policy server, two workers, the simulated phones
    program.process.kill()
    program.end(PATIENCE)
    assert gone(family, 10)


def test_an_output_that_nobody_reads_any_more_asks_the_run_to_stop_and_swallows_the_rest():
    reader, writer = os.pipe()
    asked, output = [], _Output(os.fdopen(writer, "w"), lambda: asked.append(1))
    os.close(reader)
    for _ in range(3):
        print("a line of progress", file=output, flush=True)
    assert asked == [1] and output.fileno() == writer
    output.close()


LONG_SAVE = """
import time
run_distrl.Experiment.save = lambda self: time.sleep(60)
"""
LONG_UPDATE = """
import time, types, evaluation, results
from learner import Learner
update, save = Learner.update, run_distrl.Experiment.save
def slow_update(self):
    print("UPDATING", flush=True)
    time.sleep(1)
    return update(self)
def told_save(self):
    print("SAVING", flush=True)
    return save(self)
Learner.update, run_distrl.Experiment.save = slow_update, told_save
finish = lambda: print("TRACKER", flush=True)
results.start_tracking = lambda *_: types.SimpleNamespace(log=lambda *_, **__: None, finish=finish)
evaluation.track = lambda *_, **__: None
"""


@pytest.mark.slow
def test_E3_ctrl_c_twice_kills_and_a_sigterm_in_a_long_update_saves_once_before_the_tracker_ends(policy, tmp_path):
    flags = [*TINY, "--total-trajectories", 100_000, "--policy", policy, "--runs-dir"]
    twice = altered(LONG_SAVE, *flags, tmp_path / "twice")
    term = altered(LONG_UPDATE, *flags, tmp_path / "t", "--track")
    twice.until("Evaluating")
    family = twice.family()
    twice.process.send_signal(signal.SIGINT)
    twice.until("Stopping: saving the run (again to kill)")
    twice.process.send_signal(signal.SIGINT)
    assert twice.process.wait(5) == -signal.SIGINT and gone(family, 5)
    twice.end()

    term.until("Training")
    term.until("UPDATING")
    family, told = term.family(), len(term.out)
    began = time.monotonic()
    term.process.send_signal(signal.SIGTERM)
    term.out += term.process.stdout.read()  # `communicate` would not see what is buffered here
    code, out, err = term.end(PATIENCE)
    assert code == 130 and err == "" and gone(family, began + 5 - time.monotonic()), (code, out, err)
    assert re.findall("SAVING|TRACKER|Saved", out[told:]) == ["SAVING", "TRACKER", "Saved"]
    assert load_checkpoint(run_of(tmp_path / "t"))["counters"]["trajectories"] >= 4


# ---------------------------------------------------------------------- stale data, lock-step


SLOW = """
import time
from learner import Learner
update, admit = Learner.update, run_distrl.Experiment.admit
def slow_update(self):
    time.sleep(0.05)
    return update(self)
def told_admit(self, trajectory, id):
    lag, seen = self.version - int(trajectory.policy_version.min()), self.learner.seen
    admit(self, trajectory, id)
    print(f"admitted {id} version {self.version} lag {lag} judged {trajectory.success is not None:d} "
          f"trained {self.learner.seen - seen}", flush=True)
Learner.update, run_distrl.Experiment.admit = slow_update, told_admit
"""


@pytest.mark.slow
def test_E14_E16_a_slow_learner_trains_on_nothing_too_old_and_nobody_waits_for_it(policy, tmp_path):
    program = altered(SLOW, "--policy", policy, "--runs-dir", tmp_path, *TINY, "--horizon", 6, "--max-staleness", 2,
                      "--updates-per-trajectory", 50, "--total-trajectories", 5000)  # fmt: skip
    told, at = [], 0

    def listen(until) -> None:
        """Read what is admitted until `until(number, version, lag)`."""
        nonlocal at
        while True:
            program.until("admitted ")
            told.append(list(map(int, re.findall(r"\d+", program.out.splitlines()[-1]))))
            at = told[-1][1]
            if until(*told[-1]):
                return

    listen(lambda id, version, *_: version > 2)
    worker = called(program.family(), "worker 0")
    while not any(lag > 2 for _, _, lag, *_ in told):  # a worker that stands still comes back with an old trajectory
        os.kill(worker, signal.SIGSTOP)
        listen(lambda id, version, *_, since=at: version > since + 4)
        os.kill(worker, signal.SIGCONT)
        listen(lambda id, version, *_, since=at: version > since + 2)
    program.process.send_signal(signal.SIGTERM)
    program.out += program.process.stdout.read()  # `communicate` would not see what is buffered here
    code, out, err = program.end(PATIENCE)
    assert code == 130 and err == "", (code, out, err)
    told = [list(map(int, re.findall(r"\d+", line))) for line in out.splitlines() if line.startswith("admitted ")]
    ids = list(contents(run_of(tmp_path)))  # what came in while it stopped follows
    assert [id for id, *_ in told] == ids[: len(told)]
    assert all(trained == (judged and lag <= 2) for _, _, lag, judged, trained in told)
    stale = sum(judged and lag > 2 for _, _, lag, judged, _ in told)
    state = load_checkpoint(run_of(tmp_path))
    assert 0 < state["counters"]["stale"] <= stale
    assert 0 < state["learner"]["counters"]["updates"] < 50 * state["learner"]["counters"]["seen"]
    rows = list(csv.DictReader((run_of(tmp_path) / "metrics.csv").open()))
    assert int(rows[-1]["stats/stale_dropped"]) == state["counters"]["stale"]
    assert float(rows[-1]["stats/policy_lag_max"]) > 2


NO_NETWORK = """
import os, sys
def hook(event, arguments):
    if event == "socket.connect" and isinstance(arguments[1], tuple) and arguments[1][0] != "127.0.0.1":
        os.write(2, f"network: {arguments[1]}".encode()); os._exit(97)
    if event == "socket.getaddrinfo" and arguments[0] not in ("127.0.0.1", "localhost", None):
        os.write(2, f"network: {arguments[:2]}".encode()); os._exit(97)
sys.addaudithook(hook)
"""


def test_G1_sync_rounds_are_exact_with_an_empty_home_and_no_network(policy, tmp_path, monkeypatch):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(NO_NETWORK)
    (tmp_path / "home").mkdir()
    for name in [name for name in os.environ if re.search("KEY|TOKEN|^HF_|^WANDB|^XDG", name)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    program = Program("--sync", "--policy", policy, "--runs-dir", tmp_path / "runs", *TINY, "--eval-every", 0,
                      "--updates-per-trajectory", 1)  # fmt: skip
    program.until("Training")
    run = run_of(tmp_path / "runs")
    wait_for_trajectories(run, 20, PATIENCE)
    os.kill(called(program.family(), "worker 0"), signal.SIGKILL)  # its episode is lost, the round ends all the same
    code, out, err = program.end(PATIENCE)
    assert code == 0 and "network:" not in err and "Traceback" not in err, (code, out, err)
    assert (run / "curves.png").exists() and (run / "results.json").exists()
    versions = [t.policy_version.tolist() for _, t in trained(run)]
    assert all(min(own) == max(own) for own in versions)  # nobody learns while a round is played
    rounds = [own[0] for own in versions]
    assert rounds == sorted(rounds) and len(rounds) >= 60
    sizes = Counter(Counter(rounds).values())
    assert sizes[2] >= 28 and sizes.keys() <= {1, 2} and sizes[1] <= 2, sizes
    assert load_checkpoint(run)["learner"]["counters"]["updates"] >= 40


# ---------------------------------------------------------------------- small things that hang great ones


def test_E5_E18_no_race_with_an_empty_queue_and_no_alarm_that_only_the_main_thread_hears():
    for path in ROOT.glob("*.py"):
        assert not re.search(r"\.empty\(\)|SIGALRM|setitimer", path.read_text()), path


def test_E18_a_commands_deadline_holds_in_a_thread(phones, phone):
    phones.fault(phone.serial, "mute", 1)
    with ThreadPoolExecutor(1) as pool, pytest.raises(AdbTimeout, match="within 0.3 s"):
        pool.submit(phone.shell, "getprop", timeout=0.3).result(timeout=10)


def test_E17_a_placeholder_in_a_hosts_place_is_refused_with_its_name(monkeypatch):
    def unknown(*_, **__):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(UsageError, match="worker_ip1:5037.*Name or service not known"):
        phone_source(PhoneArgs(adb_server=("worker_ip1:5037",))).__enter__()


def test_who_takes_over_a_phone_clears_what_the_one_before_had_touched():
    tap = 'Action Decision: "action_type": "DUAL_POINT", "touch_point": "[{0}, {1}]", "lift_point": "[{0}, {1}]", '
    with start_phones(1, seed=3, latency=0.0, dialogs=1.0, failed_loads=0.0, slow_loads=0.0) as running:
        phone = AdbPhone(running.serials[0], running.host, running.port)

        def begin() -> tuple[AndroidEnv, list]:  # a worker's first episode
            env = AndroidEnv(AdbPhone(phone.serial, phone.host, phone.port), None, RuleJudge())
            env.reset(seed=1, options={"task": parse_task("Go to Zillow")})
            phone.shell("am start -n com.android.chrome/com.google.android.apps.chrome.Main")
            return env, [node for node in phone.ui().nodes if node.text == "Allow"]

        env, (allow,) = begin()
        y, x = allow.center[1] / env.phone.size[1], allow.center[0] / env.phone.size[0]
        env.step(tap.format(y, x) + '"typed_text": ""')
        phone.shell("am force-stop com.android.chrome")  # as after a reboot: no activity tells of it
        assert "touched com.android.chrome" in phone.shell("cat /data/local/tmp/distrl-touched")
        _, asks = begin()  # the first one was killed
        assert asks, "the permission outlived its episode"
