"""How fast trajectories are collected: asynchronous against lock-step (`--sync`), 1 to 32 phones, in one run.

    python benchmarks/bench_collection.py                              # 1, 2, 4, 8, 16, 32 phones: about 55 minutes
    python benchmarks/bench_collection.py --workers 2 8 --seconds 10 --latency 0.4     # a look: a minute

Everything is the product's own: simulated phones behind the real adb server, ActorPool with its worker processes and
the policy server, journal, learner, publications; `Experiment.train` runs it, lock-step with its `--sync`: all workers
play one episode, all wait for the slowest, then the learner makes the updates that are due. Both ways make the same
number of updates a trajectory, with the shipped policy at step size 0: it is the same policy at every point, and costs
the same.

A trajectory on the paper's phones takes about 4 minutes (32 emulators bring 770 to 800 in 6,000 s); here an input
takes --latency seconds on average, with a heavy tail (`sim/hardware.py`), and the factor between the two is printed.
Only phones are scaled: policy and learner take the time that they take, so that their share is larger here than there.

Columns, of the time after a warm-up; in lock-step of whole rounds, at least three:
  /min            trajectories a minute
  linear %        steps a second of one phone, as a share of those of a phone in the first point, +- one standard error.
                  Steps, since how long the drawn tasks happen to be is no speed. Few phones bring few trajectories, so
                  points below 8 phones take up to 8 times --seconds
  phones idle %   share of their time in which phones wait for the policy, for an episode, for the others of a round
  learner idle %  share of time in which no update is made
  CPU %           of the machine, all that runs on it; cores that our parts use. From 90 % on the CPU is the limit
  ready s, PSS    from nothing to all phones and workers up; proportional memory of all processes, MB
"""

from __future__ import annotations

import argparse
import contextlib
import io
import math
import os
import sys
import tempfile
import time
from collections import deque
from pathlib import Path

from bench_main_job import process_tree, pss_megabytes  # which also adds the product's folder to the path

# No torch at the top: workers import this file, as the program that started them.
from actor_pool import ActorPool
from args import Args
from loaders import load_policy
from phone_source import phone_source
from run_distrl import Experiment
from shared_weights import SharedWeights
from tasks import Task, generate_tasks

ROOT = Path(__file__).resolve().parent.parent
PAPER_CPUS = (8, 16, 32, 48, 72, 96, 128, 144, 192)  # arXiv 2410.14803, trajectories a minute by CPUs
PAPER = {
    "DistRL": (0.6, 1.1, 1.8, 2.4, 3.5, 4.3, 5.8, 6.4, 7.7),
    "DigiRL": (0.3, 0.5, 1.0, 1.4, 1.8, 2.3, 2.7, 2.9, 3.2),
}
PAPER_CPUS_A_PHONE = 6  # ours: 32 emulators bring 7.7 to 8 a minute, which the table has at 192 CPUs
PAPER_SECONDS = 6000 * 32 / 785  # of a trajectory on one of their emulators
LIMIT = 0.9  # from this share of the machine on, its CPU is the limit


def settings(workers: int, sync: bool, latency: float) -> Args:
    """The default run, but for a policy that stays what it is, and no evaluations."""
    args = Args()
    args.run.sync, args.phones.num_workers, args.phones.latency = sync, workers, latency
    args.tasks.eval_every, args.tasks.total_trajectories = 0, 10**9
    args.algorithm.learning_rate, args.algorithm.learning_starts, args.algorithm.critic_warmup = 0.0, 1, 0
    return args


def train(experiment: Experiment, seconds: float) -> None:
    """That much more of training, without its progress lines."""
    experiment.args.tasks.train_minutes = (experiment.train_seconds + seconds) / 60
    with contextlib.redirect_stdout(io.StringIO()):
        experiment.train()
    if experiment.pool.error:
        raise experiment.pool.error


def measure(tasks: list[Task], workers: int, sync: bool, latency: float, seconds: float) -> dict:
    """One point: one way, one number of phones."""
    args = settings(workers, sync, latency)
    policy, path = load_policy(args)
    with tempfile.TemporaryDirectory() as folder:
        experiment = Experiment(args, Path(folder), tasks, [], policy)
        experiment.recent = deque()  # all of them
        busy, rounds = [], []
        update, start_round = experiment.learner.update, experiment.schedule.start_round

        def timed_update():
            began = time.monotonic()
            metrics = update()
            busy.append((began, time.monotonic()))
            return metrics

        def noted_round(size: int) -> None:
            rounds.append(time.monotonic())
            start_round(size)

        experiment.learner.update, experiment.schedule.start_round = timed_update, noted_round
        began = time.monotonic()
        with phone_source(args.phones, seed=args.run.seed) as phones:
            size = sum(array.size for array in policy.published())
            pool = ActorPool(
                phones.addresses, path, lambda context: SharedWeights(context, size),
                next_episode=experiment.schedule.next, on_trajectory=experiment.on_trajectory,
                on_lost=experiment.on_lost, restart_phone=phones.restart, seed=args.run.seed, ahead=1 if sync else 2,
            )  # fmt: skip
            experiment.pool = pool
            experiment.publish()
            try:
                pool.start()
                ready = time.monotonic() - began
                if not sync:
                    train(experiment, min(20.0, seconds / 3))
                before, started = cpu_seconds(pool), time.monotonic()
                train(experiment, seconds)
                while sync and len(rounds) < 4:
                    train(experiment, 2.0)
                after, ended = cpu_seconds(pool), time.monotonic()
                memory = pss_megabytes(process_tree(os.getpid()))
            finally:
                pool.stop()
                if experiment.journal:
                    experiment.journal.close()
        start, end = (rounds[0], rounds[-1]) if sync else (started, ended)
        point = account(list(experiment.recent), start, end)
        updating = sum(min(stop, end) - max(start, begin) for begin, stop in busy if begin < end and stop > start)
        cores = {name: (after[name] - before[name]) / (ended - started) for name in after}
        return point | {
            "workers": workers, "learner idle": 1 - updating / (end - start), "updates": len(busy), "ready": ready,
            "PSS": memory, "machine": cores.pop("machine") / os.cpu_count(), "cores": cores, "restarts": pool.restarts,
        }  # fmt: skip


def account(rows: list[dict], start: float, end: float) -> dict:
    """What phones did between two moments. A cycle of a phone: from one trajectory's end to its next one's."""
    cycles, last = [], {}
    for row in rows:
        if row["worker"] in last and start <= row["at"] <= end:
            period = row["at"] - last[row["worker"]]
            cycles.append((row["length"], period, row["seconds"] - row["policy_seconds"]))
        last[row["worker"]] = row["at"]
    done = [row for row in rows if start < row["at"] <= end]
    if not done or not cycles:
        raise SystemExit(f"only {len(done)} trajectories in {end - start:.0f} s: give more --seconds")
    steps, periods, acting = (sum(values) for values in zip(*cycles, strict=True))
    rate = steps / periods  # of one phone
    spread = math.sqrt(sum((length - rate * period) ** 2 for length, period, _ in cycles)) / periods
    return {
        "n": len(done), "per minute": 60 * len(done) / (end - start), "steps": rate, "error": spread,
        "phones idle": 1 - acting / periods, "seconds": sum(row["seconds"] for row in done) / len(done),
        "slowest": max(row["seconds"] for row in done),
    }  # fmt: skip


def cpu_seconds(pool: ActorPool) -> dict[str, float]:
    """CPU time so far: of the machine, and of our parts."""
    tick = os.sysconf("SC_CLK_TCK")
    user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split(None, 9)[1:9])
    used = {"machine": (user + nice + system + irq + softirq + steal) / tick}
    used |= dict.fromkeys(("learner", "server", "workers", "phones"), 0.0)
    server, *workers = pool.pids
    for pid, command in process_tree(os.getpid()).items():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:  # it ended meanwhile
            continue
        phone = "-m sim" in command or "nodaemon" in command
        part = "phones" if phone else "server" if pid == server else "workers" if pid in workers else "learner"
        used[part] += (int(fields[11]) + int(fields[12])) / tick
    return used


def table(points: dict[str, list[dict]]) -> str:
    """Both ways, a line a point."""
    lines = [f"{'':14}{'phones':>6}{'n':>6}{'/min':>8}{'linear %':>14}{'phones idle %':>15}{'learner idle %':>16}"
             f"{'CPU %':>7}  {'cores: learner server workers phones':38}{'ready s':>8}{'PSS':>7}"]  # fmt: skip
    for way, rows in points.items():
        for row in rows:
            share, error = row["steps"] / rows[0]["steps"], row["error"] / rows[0]["steps"]
            parts = " ".join(f"{row['cores'][part]:8.2f}" for part in ("learner", "server", "workers", "phones"))
            linear = f"{100 * share:.0f} +- {100 * error:<2.0f}"
            lines.append(
                f"{way:14}{row['workers']:6d}{row['n']:6d}{row['per minute']:8.1f}{linear:>14}"
                f"{100 * row['phones idle']:15.1f}{100 * row['learner idle']:16.1f}{100 * row['machine']:7.0f}  "
                f"{parts:38}{row['ready']:8.1f}{row['PSS']:7.0f}"
            )
    return "\n".join(lines)


def verdicts(points: dict[str, list[dict]], latency: float) -> str:
    """The targets, and whether they are met."""
    ours, lock_step = points["asynchronous"], points["lock-step"]
    seconds = sum(row["n"] * row["seconds"] for row in ours) / sum(row["n"] for row in ours)
    slowest = max(row["slowest"] for row in ours)
    lines = [f"latency {latency:g}: a trajectory takes {seconds:.1f} s, the slowest {slowest:.0f}; "
             f"the paper's about {PAPER_SECONDS:.0f} s: scaled down by {PAPER_SECONDS / seconds:.0f}"]  # fmt: skip
    ratios = [(a["workers"], a["per minute"] / b["per minute"]) for a, b in zip(ours, lock_step, strict=True)]
    lines.append("asynchronous / lock-step: " + ", ".join(f"{ratio:.2f} at {n}" for n, ratio in ratios))
    full = [row for row in ours if row["machine"] >= LIMIT]
    free = [row for row in ours if row["machine"] < LIMIT]
    where = f"the CPU is the limit from {full[0]['workers']} phones on" if full else "the CPU is not the limit anywhere"
    lines.append(f"{where} ({LIMIT:.0%} of {os.cpu_count()} cores)")

    def line(what: str, value: float, target: float, at_least: bool, unit: str) -> None:
        met = value >= target if at_least else value <= target
        relation = ">=" if at_least else "<="
        lines.append(f"{what:58}{value:8.2f}{unit}  target {relation} {target:g}{unit}  {'met' if met else 'NOT MET'}")

    most = ours[-1]
    line(f"asynchronous / lock-step at {most['workers']} phones", ratios[-1][1], 2.4, True, "x")
    if free:
        shares = [(row["steps"] / ours[0]["steps"], row["workers"]) for row in free]
        line(f"least share of linear (at {min(shares)[1]} phones), CPU free", 100 * min(shares)[0], 90, True, " %")
        line("phones idle at most, CPU free", 100 * max(row["phones idle"] for row in free), 5, False, " %")
    line(f"{most['workers']} workers ready after", most["ready"], 10, False, " s")
    line("memory of all processes", max(row["PSS"] for row in ours) / 1e3, 3, False, " GB")
    return "\n".join(lines)


def draw(points: dict[str, list[dict]], path: Path) -> None:
    """Both curves beside the paper's points."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.6), dpi=110, layout="constrained")
    speed, gain = figure.subplots(1, 2)
    base = points["asynchronous"][0]["per minute"] / points["asynchronous"][0]["workers"]
    for (way, rows), colour, marker in zip(points.items(), ("#2563eb", "#ea580c"), "os", strict=True):
        speed.plot([row["workers"] for row in rows], [row["per minute"] / base for row in rows], marker=marker,
                   color=colour, label=f"ours, {way}")  # fmt: skip
    phones = [cpus / PAPER_CPUS_A_PHONE for cpus in PAPER_CPUS]
    theirs = PAPER["DistRL"][0] / phones[0]
    for (name, rates), colour, marker in zip(PAPER.items(), ("#93c5fd", "#fdba74"), "^v", strict=True):
        label = f"paper, {name}{' (lock-step)' if name == 'DigiRL' else ''}, {PAPER_CPUS_A_PHONE} CPUs a phone"
        speed.plot(phones, [rate / theirs for rate in rates], marker, color=colour, label=label)
    most = max(row["workers"] for row in points["asynchronous"])
    speed.plot([1, most], [1, most], "--", color="#9ca3af", linewidth=1, label="linear")
    speed.set(xscale="log", yscale="log", xlabel="phones", title="Trajectories a minute, as multiples of one phone's")
    both = zip(points["asynchronous"], points["lock-step"], strict=True)
    ratios = [(a["workers"], a["per minute"] / b["per minute"]) for a, b in both]
    gain.plot(*zip(*ratios, strict=True), marker="o", color="#2563eb", label="ours, simulated phones")
    gain.plot(phones, [a / b for a, b in zip(PAPER["DistRL"], PAPER["DigiRL"], strict=True)], "^", color="#93c5fd",
              label="paper, DistRL / DigiRL on several machines")  # fmt: skip
    gain.axhline(2.4, linestyle="--", color="#9ca3af", linewidth=1)
    gain.set(xscale="log", ylim=(0, None), xlabel="phones", title="Asynchronous / lock-step")
    for axes in (speed, gain):
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize=8)
        ticks = [n for n in (1, 2, 4, 8, 16, 32) if n <= most]
        axes.set_xticks(ticks, map(str, ticks))
        axes.minorticks_off()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--seconds", type=float, default=90.0, help="of a point; longer below 8 phones")
    parser.add_argument("--latency", type=float, default=1.5, help="of simulated phones")
    parser.add_argument("--picture", type=Path, default=None, help="default: docs/collection.png, with all six points")
    args = parser.parse_args()
    counts = sorted(set(args.workers))
    if counts[0] < 1 or args.seconds <= 0 or args.latency <= 0:
        sys.exit("--workers, --seconds and --latency must be above 0")
    import torch

    torch.set_num_threads(1)
    tasks = generate_tasks("train", 8000, Args().run.seed)
    points: dict[str, list[dict]] = {"asynchronous": [], "lock-step": []}
    for workers in counts:
        seconds = args.seconds * max(1.0, 8 / workers) if args.seconds > 30 else args.seconds
        for way, rows in points.items():
            rows.append(row := measure(tasks, workers, way == "lock-step", args.latency, seconds))
            print(f"  {way}, {workers} phones: {row['per minute']:.1f} trajectories a minute", flush=True)
    print(f"\n{table(points)}\n\n{verdicts(points, args.latency)}")
    picture = args.picture or (ROOT / "docs" / "collection.png" if counts == [1, 2, 4, 8, 16, 32] else None)
    if picture:
        draw(points, picture)
        print(f"wrote {picture}")


if __name__ == "__main__":
    main()
