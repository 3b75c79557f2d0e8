"""A storm over a whole run: by a seed, all that can fail fails, again and again; then the books are checked.

    python benchmarks/chaos.py                                  # 20 minutes, 16 simulated phones
    python benchmarks/chaos.py --minutes 1 --num-phones 4       # a quick look

`run_distrl.py --judge openai` trains on simulated phones behind a real adb server, judged by a stand-in for a server of
a vision model that answers by the tasks' rules, after `--judge-seconds`. Meanwhile (storm.py) workers are killed (-9)
and stopped (-STOP, for a while or for good), the policy server and the adb server are killed, phones drop connections,
hang, go offline and reboot, the judge is out, the disk is full (a tmpfs of the run's own, filled to the last
byte; where this user may not mount one, no file of the main process may grow), and three times the main process itself
is killed (-9) and resumed. Faults overlap, as they come.

The books: every trajectory that was ever seen in the journal, or that the run said it had, must be there at the end, as
it was, and each episode once; every reward that was trained on must be the one of the rule judge when the same actions
are played again on fresh phones with the same seeds (as in bench_judge_faults.py); the run must never stand still, end
by itself, or leave a process behind. Exit status 1 otherwise.

Time to recover: from the end of a fault (from its beginning where it ends by itself: kills, hangs, reboots) until every
worker that it hit has journaled a trajectory with a verdict, the length of an episode included.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import signal
import statistics
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench_judge_faults import FAMILIES, play_again  # noqa: E402
from storm import Fault, Judge, Run, Storm, small_disk, wait_for  # noqa: E402

from adb_phone import AdbPhone  # noqa: E402
from android_env import AndroidEnv  # noqa: E402
from evaluator import RuleJudge  # noqa: E402
from journal import Journal  # noqa: E402
from replay import Trajectory  # noqa: E402
from run_folder import load_checkpoint  # noqa: E402
from sim import start_phones  # noqa: E402
from sim.judge_server import JudgeServer, RuleAnswers  # noqa: E402
from tasks import generate_tasks  # noqa: E402

# Without latency, which runs on the clock, the same seeds and actions give the same screens again.
CHANCES = dict(latency=0.0, dialogs=0.5, failed_loads=0.2, slow_loads=0.1)


def check_books(run: Run, seed: int, serials: list[str], counts: Counter) -> None:
    """Counts what is missing, there twice, or rewarded wrongly."""
    numbers, contents, judged = Counter(), Counter(), {serial: [] for serial in serials}
    hashes = {}
    with Journal(run.folder / "journal.sqlite", readonly=True) as journal:
        for row in list(journal.rows("train")):
            data = journal.get(row.id).data
            hashes[row.id] = hashlib.sha256(data).hexdigest()
            trajectory = Trajectory.from_bytes(data)
            numbers[trajectory.info["number"]] += 1
            contents[trajectory.info["seed"], tuple(trajectory.actions), trajectory.logprobs[0].tobytes()] += 1
            counts["trajectories"] += 1
            if row.success is not None:
                judged[trajectory.info["serial"]].append((row, trajectory))
            counts["cut by an outage"] += trajectory.info["outage"]
            counts["without a verdict"] += row.success is None and not trajectory.info["outage"]
    counts["missing"] += sum(hashes.get(id) != digest for id, digest in run.seen.items())
    state = load_checkpoint(run.folder)
    counts["missing"] += sum(id not in hashes for id in state["learner"]["replay"]["ids"])
    known = sum(id <= state["counters"]["last_id"] for id in hashes)
    counts["missing"] += abs(state["counters"]["trajectories"] - known)
    counts["duplicated"] += sum(count - 1 for count in (*numbers.values(), *contents.values()))

    with start_phones(len(serials), seed=seed, **CHANCES) as phones:

        def wrong(place: int) -> int:
            env, found = AndroidEnv(AdbPhone(phones.serials[place], phones.host, phones.port), None, RuleJudge()), 0
            for row, trajectory in judged[serials[place]]:
                success, reward = play_again(env, trajectory)
                if row.success != success or abs(trajectory.return_ - reward) > 1e-6:
                    found += 1
                    print(f"WRONG: {row.id} {row.instruction!r}: {row.success} {trajectory.return_}, by rule {success} "
                          f"{reward}; worker {row.worker}, {row.created:.1f}: {row.reason}", flush=True)  # fmt: skip
            return found

        with ThreadPoolExecutor(len(serials)) as pool:
            counts["rewarded wrongly"] += sum(pool.map(wrong, range(len(serials))))
    counts["rewards compared"] = sum(map(len, judged.values()))


def table(faults: list[Fault]) -> str:
    lines = [f"{'fault':<28}{'injected':>9}{'recovered':>10}{'median s':>10}{'longest s':>10}"]
    for kind in sorted({fault.kind for fault in faults}):
        own = [fault for fault in faults if fault.kind == kind]
        times = [fault.recovered for fault in own if fault.recovered is not None]
        found = f"{statistics.median(times):>10.1f}{max(times):>10.1f}" if times else f"{'-':>10}{'-':>10}"
        lines.append(f"{kind:<28}{len(own):>9}{len(times):>10}{found}")
    return "\n".join(lines) + "\n(not counted as recovered: their run ended before their worker did)"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--num-phones", type=int, default=16)
    parser.add_argument("--every", type=float, default=4.0, help="seconds between two faults on average")
    parser.add_argument("--judge-seconds", type=float, default=1.0, help="an answer of the judge takes")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as name,
        small_disk(Path(name) / "disk") as disk,
        start_phones(args.num_phones, seed=args.seed, **CHANCES) as phones,
    ):
        folder, runs = Path(name), Path(name) / "disk" / "runs"
        tasks = [task for task in generate_tasks("train", 1440) if task.family in FAMILIES]
        (folder / "tasks.txt").write_text("\n".join(task.instruction for task in tasks))
        runs.mkdir()
        rule = RuleAnswers(phones.host, phones.port, phones.serials)
        judge = Judge(rule, random.Random(args.seed), args.judge_seconds)
        with JudgeServer(judge) as server:
            flags = [
                "--judge", "openai", "--judge-model", "stand-in", "--judge-url", server.url, "--adb-server",
                f"{phones.host}:{phones.port}", "--num-workers", args.num_phones, "--total-trajectories", 1_000_000,
                "--train-minutes", 0, "--eval-episodes", 2, "--eval-every", 0, "--tasks", folder / "tasks.txt",
                "--eval-tasks", folder / "tasks.txt", "--allow-overlap", "--learning-starts", 32,
                "--critic-warmup", 20, "--runs-dir", runs, "--seed", args.seed,
            ]  # fmt: skip
            run = Run(flags, runs, str(os.getpid()))
            storm = Storm(run, phones, judge, args.num_phones, random.Random(args.seed), disk)
            run.start()
            try:
                storm.blow(args.minutes, args.every)
            except RuntimeError as error:
                print(f"GIVEN UP: {error}", flush=True)
            run.process.send_signal(signal.SIGTERM)
            run.counts["late"] += not wait_for(lambda: run.process.poll() is not None, 5)
            if not wait_for(lambda: run.process.poll() is not None, 60):
                run.counts["stood still"] += 1
                run.process.kill()
            elif run.process.returncode != 130:
                run.counts["ended by itself"] += 1
            run.ended("SIGTERM", 5)
        print("Playing every judged trajectory again ...", flush=True)
        check_books(run, args.seed, phones.serials, run.counts)
    print(f"\n{table(storm.faults)}\n")
    must_be_0 = {
        "reported done but missing from the journal": "missing", "there twice": "duplicated",
        "trained on with a wrong reward": "rewarded wrongly", "deadlocks": "stood still", "leaked processes": "leaked",
        "ends that nobody asked for": "ended by itself", "later than 5 s after SIGTERM": "late",
    }  # fmt: skip
    for what in ("sessions", "trajectories", "rewards compared", "without a verdict", "cut by an outage"):
        print(f"{what:<45}{run.counts[what]:>7}")
    for what, count in must_be_0.items():
        print(f"{what:<45}{run.counts[count]:>7}   must be 0")
    return int(any(run.counts[count] for count in must_be_0.values()))


if __name__ == "__main__":
    sys.exit(main())
