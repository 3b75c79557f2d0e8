"""Does a judge that fails part of the time ever make a reward wrong? A real run, then every trajectory checked.

    python benchmarks/bench_judge_faults.py --num-workers 4 --trajectories 40 --faults 0.3

A stand-in for Gemini answers by the tasks' rules, and with 429, 503, blocked, empty and cut answers in between.
`run_distrl.py --judge gemini` trains on it. Then each journaled trajectory is played again on phones with the same
seeds under the rule judge: its verdict and its reward must be that judge's, or unknown. Last, rejudge.py settles the
unknown ones with a judge that does not fail, and all are compared again. Exit status 1 if a reward differs.

Tasks are of families whose end one screen shows: the stand-in sees no more than that.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from android_env import AdbPhone, AndroidEnv  # noqa: E402
from evaluator import RuleJudge, Verdict, encode_screen  # noqa: E402
from journal import Journal  # noqa: E402
from rejudge import settle  # noqa: E402
from replay import Trajectory  # noqa: E402
from sim import start_phones  # noqa: E402
from sim.judge_server import JudgeServer, RuleAnswers  # noqa: E402
from tasks import generate_tasks, parse_task  # noqa: E402

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


def compare(run: Path, envs: list[AndroidEnv]) -> Counter:
    """What became of each trajectory: "success", "failure", "unknown", or "WRONG"."""
    counts: Counter = Counter()
    with Journal(run / "journal.sqlite", readonly=True) as journal:
        for row in list(journal.rows()):
            trajectory = Trajectory.from_bytes(journal.get(row.id).data)
            success, reward = play_again(envs[trajectory.info["worker"]], trajectory)
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
    parser.add_argument("--num-workers", type=int, default=4)
    parser.add_argument("--trajectories", type=int, default=40)
    parser.add_argument("--faults", type=float, default=0.3)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    adb_port = free_port()
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        tasks = [task for task in generate_tasks("train", 720) if task.family in FAMILIES]
        (Path(folder) / "tasks.txt").write_text("\n".join(task.instruction for task in tasks))
        with JudgeServer(RuleAnswers("127.0.0.1", adb_port, faults=args.faults, seed=args.seed)) as server:
            command = [
                sys.executable, "run_distrl.py", "--judge", args.judge, "--judge-model", "gemini-2.5-flash",
                "--judge-url", server.url, "--num-workers", args.num_workers, "--adb-port", adb_port, "--latency", 0,
                "--total-trajectories", args.trajectories, "--eval-episodes", 2, "--eval-every", 0, "--tasks",
                f"{folder}/tasks.txt", "--eval-tasks", f"{folder}/tasks.txt", "--learning-starts", 8,
                "--critic-warmup", 2, "--batch-trajectories", 2, "--runs-dir", f"{folder}/runs", "--seed", args.seed,
            ]  # fmt: skip
            done = subprocess.run(list(map(str, command)), cwd=ROOT)
            answered = len(server.requests)
        (run,) = (Path(folder) / "runs").iterdir()
        results = json.loads((run / "results.json").read_text()) if done.returncode == 0 else {}
        print(f"exit {done.returncode}; the server had {answered} calls; results.json: {results.get('judge_calls')}")
        with start_phones(args.num_workers, seed=args.seed, latency=0.0, dialogs=0.4, failed_loads=0.25,
                          slow_loads=0.1) as phones:
            envs = [AndroidEnv(AdbPhone(serial, phones.host, phones.port), None, RuleJudge())
                    for serial in phones.serials]
            for when in ("as journaled", "after --rejudge"):
                counts = compare(run, envs)
                wrong += counts["WRONG"]
                print(f"{when}: {dict(counts)}")
                if when == "as journaled":
                    print(f"settled: {dict(settle(run, Screens(run, envs)))}")
    return int(wrong > 0 or done.returncode != 0)


class Screens:
    """A judge for `settle` that does not fail: it plays the unknown trajectories again and reads each screen's rule."""

    def __init__(self, run: Path, envs: list[AndroidEnv]):
        self.verdicts: dict[tuple[str, bytes], Verdict] = {}
        with Journal(run / "journal.sqlite", readonly=True) as journal:
            rows = [row.id for row in journal.rows() if row.success is None]
            for trajectory in (Trajectory.from_bytes(data) for _, data in journal.blobs(rows)):
                env, task = envs[trajectory.info["worker"]], parse_task(trajectory.instruction)
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
