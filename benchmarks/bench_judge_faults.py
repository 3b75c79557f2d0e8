"""Does a judge that fails part of the time ever make a reward wrong? A real run, then every trajectory checked.

    python benchmarks/bench_judge_faults.py --num-workers 4 --trajectories 40 --faults 0.3
    python benchmarks/bench_judge_faults.py --phones avd --num-workers 8 --trajectories 200     # also: --phones server

A stand-in for Gemini answers by the tasks' rules, and with 429, 503, blocked, empty and cut answers in between.
`run_distrl.py --judge gemini` trains on it, on phones of its own (sim), on phones behind another adb server (server),
or on emulators that it launches (avd: `sim/emulator.py` in the emulator's place). Then each journaled trajectory is
played again on phones with the same seeds under the rule judge: its verdict and its reward must be that judge's, or
unknown. Last, rejudge.py settles the unknown ones with a judge that does not fail, and all are compared again. Exit
status 1 if a reward differs.

Tasks are of families whose end one screen shows: the stand-in sees no more than that.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import adbutils  # noqa: E402

from android_env import AdbPhone, AndroidEnv  # noqa: E402
from emulator import Emulators  # noqa: E402
from evaluator import RuleJudge, Verdict, encode_screen  # noqa: E402
from journal import Journal  # noqa: E402
from phone_source import start_server  # noqa: E402
from rejudge import settle  # noqa: E402
from replay import Trajectory  # noqa: E402
from sim import start_phones  # noqa: E402
from sim.judge_server import JudgeServer, RuleAnswers  # noqa: E402
from tasks import generate_tasks, parse_task  # noqa: E402

CHANCES = dict(dialogs=0.6, failed_loads=0.3, slow_loads=0.1)
FAMILIES = ("question", "news", "maps", "directions", "open_app", "alarm", "web_open", "app_settings", "places")


def play_again(env: AndroidEnv, trajectory: Trajectory) -> tuple[bool, float]:
    """(verdict, reward) of the rule judge on the trajectory's actions."""
    env.reset(seed=trajectory.info["seed"], options={"task": parse_task(trajectory.instruction)})
    reward, info, ended = 0.0, {}, False
    for action in trajectory.actions:
        _, gained, terminated, truncated, info = env.step(action)
        reward, ended = reward + gained, terminated or truncated
        if ended:
            break
    return info["success"], reward


class Envs:
    """The rule judge's environment for the phone that a trajectory was played on."""

    def __init__(self, phones: list[AdbPhone]):
        self.by_worker = [AndroidEnv(phone, None, RuleJudge()) for phone in phones]
        self.by_serial = {env.phone.serial: env for env in self.by_worker}

    def __getitem__(self, trajectory: Trajectory) -> AndroidEnv:
        return self.by_serial.get(trajectory.info["serial"]) or self.by_worker[trajectory.info["worker"]]


@contextmanager
def stage(kind: str, num: int, seed: int, folder: str) -> Iterator[tuple]:
    """(flags of the run, address of the adb server that the judge looks through, phones to play again on: a function
    that gives a context manager)."""
    adb_port = free_port()
    if kind == "sim":
        flags = ["--adb-port", adb_port, "--latency", 0]
        for name, value in CHANCES.items():
            flags += [f"--{name.replace('_', '-')}", value]
        yield flags, ("127.0.0.1", adb_port), lambda: start_phones(num, seed=seed, latency=0.0, **CHANCES)
    elif kind == "server":
        with start_phones(num, seed=seed, latency=0.0, **CHANCES) as phones:
            look = phones.host, phones.port
            yield ["--adb-server", f"{phones.host}:{phones.port}"], look, lambda: nullcontext(phones)
    else:
        launcher, avds = Path(folder) / "bin" / "emulator", Path(folder) / ".android" / "avd"
        launcher.parent.mkdir()
        launcher.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m sim.emulator "$@"\n')
        launcher.chmod(0o755)
        (avds / "test.avd").mkdir(parents=True)
        (avds / "test.ini").write_text("target=android-30\n")
        (avds / "test.avd" / "config.ini").write_text("hw.ramSize=64\n")  # what such a phone really takes
        chances = " ".join(f"{name}={value}" for name, value in CHANCES.items())
        os.environ |= {"HOME": folder, "PATH": f"{launcher.parent}:{os.environ['PATH']}", "SIM_EMULATOR": chances}
        start_server(adb_port)
        try:
            yield ["--avd", "test"], ("127.0.0.1", adb_port), lambda: Emulators("test", num)
        finally:
            subprocess.run([adbutils.adb_path(), "-P", str(adb_port), "kill-server"], check=False, capture_output=True)


def play(command: list, look: tuple[str, int]) -> int:
    """Run the program, printing what it prints; the judge is shown emulators as soon as their names appear."""
    with subprocess.Popen(list(map(str, command)), cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            print(line, end="", flush=True)
            for console in re.findall(r"emulator-(\d+)", line) if "workers on" in line else ():
                AdbPhone(f"127.0.0.1:{int(console) + 1}", *look).attach(5.0)
    return process.returncode


def compare(run: Path, envs: Envs) -> Counter:
    """What became of each trajectory: "success", "failure", "unknown", or "WRONG"."""
    counts: Counter = Counter()
    with Journal(run / "journal.sqlite", readonly=True) as journal:
        for row in list(journal.rows()):
            trajectory = Trajectory.from_bytes(journal.get(row.id).data)
            success, reward = play_again(envs[trajectory], trajectory)
            if row.success is None:
                counts["unknown"] += 1
                counts[f"unknown, by rule {'success' if success else 'failure'}"] += 1
            elif row.success != success or abs(row.reward - reward) > 1e-6 or abs(trajectory.return_ - reward) > 1e-6:
                counts["WRONG"] += 1
                print(f"WRONG: {row.id} {row.instruction!r}: {row.success} {row.reward}, by rule {success} {reward}")
            else:
                counts["success" if success else "failure"] += 1
    return counts


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--judge", default="gemini", choices=("gemini", "openai"))
    parser.add_argument("--phones", default="sim", choices=("sim", "server", "avd"))
    parser.add_argument("--num-workers", type=int, default=4)
    parser.add_argument("--trajectories", type=int, default=40)
    parser.add_argument("--faults", type=float, default=0.3)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    wrong = 0
    with (
        tempfile.TemporaryDirectory() as folder,
        stage(args.phones, args.num_workers, args.seed, folder) as (flags, look, again),
    ):
        tasks = [task for task in generate_tasks("train", 720) if task.family in FAMILIES]
        (Path(folder) / "tasks.txt").write_text("\n".join(task.instruction for task in tasks))
        with JudgeServer(RuleAnswers(*look, faults=args.faults, seed=args.seed)) as server:
            command = [
                sys.executable, "-u", "run_distrl.py", "--judge", args.judge, "--judge-model", "gemini-2.5-flash",
                "--judge-url", server.url, "--num-workers", args.num_workers, *flags,
                "--total-trajectories", args.trajectories, "--eval-episodes", 2, "--eval-every", 0, "--tasks",
                f"{folder}/tasks.txt", "--eval-tasks", f"{folder}/tasks.txt", "--allow-overlap", "--learning-starts", 8,
                "--critic-warmup", 2, "--batch-trajectories", 2, "--runs-dir", f"{folder}/runs", "--seed", args.seed,
            ]  # fmt: skip
            code = play(command, look)
            answered = len(server.requests)
        (run,) = (Path(folder) / "runs").iterdir()
        results = json.loads((run / "results.json").read_text()) if code == 0 else {}
        print(f"exit {code}; the server had {answered} calls; results.json: {results.get('judge_calls')}")
        with again() as phones:
            serials = getattr(phones, "serials", ())
            envs = Envs([AdbPhone(serial, phones.host, phones.port) for serial in serials] or phones.phones)
            for when in ("as journaled", "after --rejudge"):
                counts = compare(run, envs)
                wrong += counts["WRONG"]
                print(f"{when}: {dict(counts)}")
                if when == "as journaled":
                    print(f"settled: {dict(settle(run, Screens(run, envs)))}")
    return int(wrong > 0 or code != 0)


class Screens:
    """A judge for `settle` that does not fail: it plays the unknown trajectories again and reads each screen's rule."""

    def __init__(self, run: Path, envs: Envs):
        self.verdicts: dict[tuple[str, bytes], Verdict] = {}
        with Journal(run / "journal.sqlite", readonly=True) as journal:
            rows = [row.id for row in journal.rows() if row.success is None]
            for trajectory in (Trajectory.from_bytes(data) for _, data in journal.blobs(rows)):
                env, task = envs[trajectory], parse_task(trajectory.instruction)
                env.reset(seed=trajectory.info["seed"], options={"task": task})
                for action in trajectory.actions:
                    observation, _, terminated, truncated, info = env.step(action)
                    self.verdicts[task.instruction, encode_screen(observation["image"])] = Verdict(
                        info["success"], info["verdict_reason"])
                    if terminated or truncated:
                        break

    def judge(self, task, actions, pngs):
        return self.verdicts.get((task.instruction, pngs[-1]), Verdict(None, "not seen again"))


if __name__ == "__main__":
    sys.exit(main())
