"""Does the scripted user do every instruction, through real adb and AndroidEnv, and does the judge see it?

    python benchmarks/bench_demonstrator.py --num-tasks 360              # the product's own instructions
    python benchmarks/bench_demonstrator.py tests/fixtures/aitw/*.txt --latency 0 # the real ones
    python benchmarks/bench_demonstrator.py --random                              # random valid actions instead

Prints for each family the successes, the median steps of an episode, and the median without the steps that
answer dialogs, slow and failed loads (the shortest solution); then every failure with what was done. Exit
status 1 if there is one.
"""

from __future__ import annotations

import argparse
import queue
import random
import statistics
import sys
import threading
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from android_env import AdbPhone, AndroidEnv, format_action  # noqa: E402
from evaluator import RuleJudge  # noqa: E402
from sim import start_phones  # noqa: E402
from sim.demonstrator import next_action  # noqa: E402
from tasks import FAMILIES, Task, generate_tasks, load_tasks  # noqa: E402
from warm_start import INTERRUPTIONS, as_action  # noqa: E402


@dataclass
class Episode:
    task: Task
    success: bool
    steps: int
    interruptions: int
    reason: str
    actions: list[str]


def random_action(task: Task, rng: random.Random, size: tuple[int, int]) -> tuple:
    """A valid action: half of them taps, else a swipe, a key, or words of the instruction typed."""
    kind = rng.choice(["tap", "tap", "tap", "swipe", "type", "key"])
    x, y = rng.random() * (size[0] - 1), rng.random() * (size[1] - 1)
    if kind == "tap":
        return "tap", x, y
    if kind == "swipe":
        return "swipe", x, y, x, rng.random() * (size[1] - 1)
    if kind == "type":
        words = task.instruction.split()
        start = rng.randrange(len(words))
        return "type", " ".join(words[start : start + rng.randint(1, 4)])
    return (rng.choice(["enter", "back", "home", "complete"]),)


def run_episode(env: AndroidEnv, task: Task, seed: int, at_random: bool = False) -> Episode:
    """The demonstrator, or chance, does one task."""
    rng = random.Random(seed)
    env.reset(seed=seed, options={"task": task})
    memory: dict = {}
    episode = Episode(task, False, 0, 0, "", [])
    terminated = truncated = False
    while not (terminated or truncated):
        ui = env.judge.screens[-1]      # what the judge saw, even if a slow page has come since
        kind, *args = random_action(task, rng, env.phone.size) if at_random else next_action(task, ui, memory)
        episode.interruptions += any(text in INTERRUPTIONS for text in ui.texts)
        episode.actions.append(f"{ui.package.rsplit('.', 1)[-1]}: {kind} {args}")
        _, _, terminated, truncated, info = env.step(format_action(as_action((kind, *args), env.phone.size)))
        episode.steps += 1
    episode.success, episode.reason = info["success"] is True, info["verdict_reason"]
    return episode


def run_all(tasks: list[Task], phones, seed: int, at_random: bool) -> list[Episode]:
    """Each phone takes the next task when it is free."""
    waiting: queue.SimpleQueue = queue.SimpleQueue()
    for item in enumerate(tasks):
        waiting.put(item)
    done: list[Episode] = []

    def work(serial: str) -> None:
        env = AndroidEnv(AdbPhone(serial, phones.host, phones.port), None, RuleJudge())
        while True:
            try:
                number, task = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                done.append(run_episode(env, task, seed + number, at_random))
            except Exception as error:  # the demonstrator's own, too: a task that nobody counts would pass as done
                done.append(Episode(task, False, 0, 0, repr(error), []))

    threads = [threading.Thread(target=work, args=(serial,)) for serial in phones.serials]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return done


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="*", help="instruction files; without, generated instructions")
    parser.add_argument("--num-tasks", type=int, default=360, help="to generate, a third from each split")
    parser.add_argument("--num-phones", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--random", action="store_true", help="valid actions at random instead of the demonstrator")
    parser.add_argument("--latency", type=float, default=0.02)
    parser.add_argument("--dialogs", type=float, default=0.3)
    parser.add_argument("--failed-loads", type=float, default=0.2)
    parser.add_argument("--slow-loads", type=float, default=0.1)
    args = parser.parse_args()
    if args.files:
        tasks = [task for file in args.files for task in load_tasks(file)]
    else:
        share = args.num_tasks // 3
        tasks = [task for split in ("train", "tune", "test") for task in generate_tasks(split, share)]
    tasks = list({task.instruction: task for task in tasks}.values())
    with start_phones(args.num_phones, seed=args.seed, latency=args.latency, dialogs=args.dialogs,
                      failed_loads=args.failed_loads, slow_loads=args.slow_loads) as phones:
        episodes = run_all(tasks, phones, args.seed, args.random)

    families: dict[str, list[Episode]] = defaultdict(list)
    for episode in episodes:
        families[episode.task.family].append(episode)
    print(f"{'family':14} {'done':>9} {'steps':>6} {'shortest':>9}")
    medians = []
    for family in filter(families.get, FAMILIES):
        all_of_it = families[family]
        successes = [episode for episode in all_of_it if episode.success]
        steps = [episode.steps for episode in successes] or [0]
        shortest = [episode.steps - episode.interruptions for episode in successes] or [0]
        medians.append(statistics.median(shortest))
        print(f"{family:14} {len(successes):>4}/{len(all_of_it):<4} {statistics.median(steps):>6}"
              f" {medians[-1]:>9}")
    failures = [episode for episode in episodes if not episode.success]
    shortest = [episode.steps - episode.interruptions for episode in episodes if episode.success]
    print(f"{len(episodes) - len(failures)} of {len(episodes)} different instructions done; shortest solution: "
          f"median {statistics.median(shortest or [0])} over instructions, {statistics.median(medians)} over "
          "families")
    if args.random:
        return 0
    for episode in failures:
        print(f"failed: {episode.task.instruction!r} ({episode.task.family}): {episode.reason}")
        print(*(f"    {action}" for action in episode.actions), sep="\n")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
