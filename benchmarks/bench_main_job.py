"""The main job on seeds 1, 2, 3: what it learns, how long it takes, what it costs in memory.

    python benchmarks/bench_main_job.py                          # three runs, one after another, about 36 minutes
    python benchmarks/bench_main_job.py --seeds 1                # one
    python benchmarks/bench_main_job.py --from runs/A runs/B     # the table of finished runs, nothing is run

Memory is the proportional set size (PSS) of all processes of the run, the largest of samples taken every 10 seconds.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))


def process_tree(root: int) -> dict[int, str]:
    """Pid -> command line of `root` and all its descendants."""
    parents, commands = {}, {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                status = (folder / "stat").read_text().rsplit(")", 1)[1].split()
                commands[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")
            except OSError:  # it ended meanwhile
                continue
            parents[int(folder.name)] = int(status[1])
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return {pid: commands[pid] for pid in found if pid in commands}


def pss_megabytes(pids) -> float:
    """Proportional set size of the processes together, MB."""
    total = 0
    for pid in pids:
        try:
            total += int(re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.M)[1])
        except (OSError, TypeError):  # it ended meanwhile
            continue
    return total * 1.024e-3  # the kernel counts in KiB


def run(seed: int, extra: list[str]) -> tuple[Path, dict]:
    """Run the main job; returns its folder and what was measured from outside."""
    command = [sys.executable, "-u", str(ROOT / "run_distrl.py"), "--num-workers", "32", "--seed", str(seed), *extra]
    print("$", " ".join(command), flush=True)
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    measured = {"pss_all": 0.0, "pss_phones": 0.0}
    done = threading.Event()

    def sample() -> None:
        while not done.wait(10):
            tree = process_tree(process.pid)
            phones = [pid for pid, command in tree.items() if "-m sim" in command or "nodaemon" in command]
            measured["pss_all"] = max(measured["pss_all"], pss_megabytes(tree))
            measured["pss_phones"] = max(measured["pss_phones"], pss_megabytes(phones))

    threading.Thread(target=sample, daemon=True).start()
    folder = None
    for line in process.stdout:
        print(line, end="", flush=True)
        if found := re.search(r"^  folder (.+)$", line):
            folder = ROOT / found[1]
        if found := re.search(r"workers ready after ([\d.]+) s", line):
            measured["ready_seconds"] = float(found[1])
    done.set()
    if process.wait() != 0:
        sys.exit(f"seed {seed} ended with exit code {process.returncode}")
    measured["minutes"] = (time.monotonic() - began) / 60
    return folder, measured


def describe(folder: Path, measured: dict) -> dict:
    """One row of the table."""
    results = json.loads((folder / "results.json").read_text())
    with (folder / "metrics.csv").open() as file:
        waiting = [float(row["stats/phone_idle"]) for row in csv.DictReader(file) if row["stats/phone_idle"]]
    row = {"seed": results["seed"], "n": results["n"]}
    for mode in ("greedy", "sampled"):
        for phase in ("warmup", "final"):
            row[f"{mode} {phase}"] = 100 * results[mode][phase]["success_rate"]
    row["families at 0"] = sum(f["final"] == 0 for f in results["families"].values())
    row |= {"trajectories": results["trajectories"], "updates": results["updates"]}
    row["minutes"] = measured.get("minutes", results["wall_seconds"] / 60)
    row["phones waiting %"] = 100 * statistics.mean(waiting)
    for key, name in (("ready_seconds", "ready s"), ("pss_all", "PSS MB"), ("pss_phones", "PSS phones MB")):
        if key in measured:
            row[name] = measured[key]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--from", dest="folders", type=Path, nargs="+", help="finished runs")
    args, extra = parser.parse_known_args()
    runs = [(folder, {}) for folder in args.folders] if args.folders else [run(seed, extra) for seed in args.seeds]
    rows = [describe(*each) for each in runs]
    print("\n" + "  ".join(rows[0]))
    for row in rows:
        print("  ".join(f"{value:{len(name)}.{0 if isinstance(value, int) else 1}f}" for name, value in row.items()))
    for name in ("greedy warmup", "greedy final", "sampled warmup", "sampled final"):
        values = [row[name] for row in rows]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        mean, lowest = statistics.mean(values), min(values)
        print(f"{name:<15} mean {mean:.1f} %, standard deviation {spread:.1f}, lowest {lowest:.1f}")


if __name__ == "__main__":
    main()
