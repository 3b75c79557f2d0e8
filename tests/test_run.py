"""The whole program as its users start it: refusals, a run that is cut short again and again, repeatability."""

import csv
import hashlib
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors import safe_open
from safetensors.torch import save_file

from journal import Journal
from policy import AutoUIPolicy
from replay import Trajectory

ROOT = Path(__file__).resolve().parent.parent
TINY = """--num-workers 2 --latency 0 --eval-episodes 2 --horizon 3 --total-trajectories 60 --learning-starts 4
    --critic-warmup 2 --batch-trajectories 2 --updates-per-trajectory 0.2 --eval-every 20""".split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """policy.safetensors; other.safetensors: another size; mixed.safetensors: that config, the first one's weights."""
    folder = tmp_path_factory.mktemp("run")
    for name, d_model in (("policy", 32), ("other", 48)):
        path = folder / f"{name}.safetensors"
        AutoUIPolicy.small(seed=0, d_model=d_model, layers=1, heads=2, d_ff=64).save(path)
    with safe_open(path, "pt") as other, safe_open(folder / "policy.safetensors", "pt") as policy:
        weights = {key: policy.get_tensor(key) for key in policy.keys()}
        save_file(weights, folder / "mixed.safetensors", other.metadata())
    return folder


class Program:
    """`python run_distrl.py ...` in a process group of its own."""

    def __init__(self, *flags, start=("run_distrl.py",)):
        self.process = subprocess.Popen(
            [sys.executable, *start, *map(str, flags)], cwd=ROOT, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        self.out = ""

    def until(self, text: str) -> None:
        """Read its output up to the line with `text`."""
        for line in self.process.stdout:
            self.out += line
            if text in line:
                return
        raise AssertionError(f"it ended without {text!r}:\n{self.out}\n{self.process.stderr.read()}")

    def end(self, seconds: float = 60) -> tuple[int, str, str]:
        """(exit code, stdout, stderr)"""
        out, err = self.process.communicate(timeout=seconds)
        self.out += out
        return self.process.returncode, self.out, err

    def family(self) -> list[int]:
        """Its process id and those of all its descendants."""
        parents = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                except OSError:
                    continue
        found = [self.process.pid]
        for pid in found:
            found += [child for child, parent in parents.items() if parent == pid]
        return found


def gone(pids: list[int], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while any(Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def contents(run: Path) -> dict[int, str]:
    """{id: hash} of every training trajectory in the journal."""
    if not (run / "journal.sqlite").exists():
        return {}
    with Journal(run / "journal.sqlite", readonly=True) as journal:
        ids = [row.id for row in journal.rows("train")]
        return {id: hashlib.sha256(data).hexdigest() for id, data in journal.blobs(ids)}


def wait_for_trajectories(run: Path, number: int, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while len(contents(run)) < number:
        assert time.monotonic() < deadline, f"{len(contents(run))} trajectories after {seconds} s"
        time.sleep(0.05)


# ---------------------------------------------------------------------- refusals


def test_G2_bad_input_gets_one_line_and_starts_nothing(folder, tmp_path):
    """Case G2: bad input is told in one line, before any worker starts."""
    (tmp_path / "empty.txt").write_text("\n\n")
    (tmp_path / "unknown.txt").write_text("Open the calendar\n\npaint the fence\n")
    (tmp_path / "no_run").mkdir()
    busy = socket.create_server(("127.0.0.1", 0))
    port, policy = busy.getsockname()[1], f"--policy {folder}/policy.safetensors"
    cases = {
        f"--tasks {tmp_path}/none.txt": "none.txt",
        f"--tasks {tmp_path}/empty.txt": "empty.txt: no instruction in it",
        f"--eval-tasks {tmp_path}/unknown.txt": "unknown.txt, line 3: .* 'paint the fence'.*--skip-unknown-tasks",
        "--num-workers 0": "--num-workers 0: at least 1",
        "--num-workers -4": "--num-workers -4: at least 1",
        f"--runs-dir {tmp_path}/empty.txt": "cannot write there",
        f"--resume {tmp_path}/no_run": "no_run: not a run's folder",
        f"--policy {tmp_path}/none": "none: no such file or folder",
        f"--policy {folder}/mixed.safetensors": r"another policy size.*, 32\) in the file, .*, 48\) here",
        f"--adb-port {port} {policy}": f"^error: --adb-port {port}: Address already in use",
    }
    runs = tmp_path / "runs"
    flags = list(cases)
    for two in (flags[i : i + 2] for i in range(0, len(flags), 2)):  # two at a time: as many as there are cores
        for flag, program in [(f, Program(*(["--runs-dir", runs, *f.split()]))) for f in two]:
            code, out, err = program.end()
            assert code == 2 and err.startswith("error: ") and err.count("\n") == 1, (flag, code, err)
            assert re.search(cases[flag], err), (flag, err)
            assert "workers ready" not in out and "DistRL:" not in out
    busy.close()
    assert not runs.exists() or not list(runs.iterdir())


# ---------------------------------------------------------------------- a run's life


def test_E2_E3_G3_a_run_survives_ctrl_c_a_full_disk_and_a_kill_and_then_ends_well(folder, tmp_path):
    """Cases E2, E3, G3: one run, cut short in three ways, loses and repeats nothing."""
    # Ctrl-C to the whole process group while it trains.
    program = Program(*TINY, "--policy", folder / "policy.safetensors", "--runs-dir", tmp_path)
    program.until("Training")
    (run,) = tmp_path.iterdir()
    wait_for_trajectories(run, 6)
    family = program.family()
    assert len(family) >= 7  # forkserver, its tracker, policy server, two workers, phones, adb server
    os.killpg(program.process.pid, signal.SIGINT)
    code, out, err = program.end(15)
    assert code == 130 and err == "" and f"--resume {run}" in out, (code, out, err)
    assert gone(family, 5)
    journaled = contents(run)

    # The disk fills up: no file may grow any more.
    program = Program("--resume", run)
    program.until("Resumed")
    assert f"at {len(journaled)} trajectories" in program.out
    program.until("Training")
    assert "Evaluating the warm start" not in program.out  # that is behind it
    wait_for_trajectories(run, len(journaled) + 3)
    family = program.family()
    resource.prlimit(program.process.pid, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
    code, out, err = program.end(30)
    assert code == 1 and err.count("\n") == 2 and "Traceback" not in err and f"--resume {run}" in err, (code, err)
    assert re.match(r"error: .*(journal|checkpoints|metrics)", err)
    assert gone(family, 5)
    assert contents(run).items() > journaled.items()
    journaled = contents(run)

    # SIGKILL in the middle of training.
    program = Program("--resume", run)
    program.until("Training")
    assert f"at {len(journaled)} trajectories" in program.out
    wait_for_trajectories(run, len(journaled) + 3)
    family = program.family()
    before = contents(run)
    program.process.kill()
    program.end()
    assert gone(family, 10)  # nobody is left behind
    assert contents(run).items() >= before.items() > journaled.items()
    journaled = contents(run)

    # And to the end.
    code, out, err = Program("--resume", run).end(90)
    assert code == 0 and err == "" and "Success on held-out tasks" in out, (code, out, err)
    assert f"at {len(journaled)} trajectories" in out
    final = contents(run)
    assert final.items() >= journaled.items() and len(final) >= 60
    assert len(set(final.values())) == len(final)  # each trajectory once
    results = json.loads((run / "results.json").read_text())
    how = f"(greedy, n {results['n']}, {results['unjudged']} without a verdict)"
    assert how in next(line for line in out.splitlines() if line.startswith("Success on held-out tasks"))
    assert {"warmup_success_rate", "success_rate", "ci95", "n", "unjudged", "trajectories", "wall_seconds",
            "task_set", "judge", "seed", "versions"} <= results.keys()  # fmt: skip
    assert results["trajectories"] == len(final) and results["n"] + results["unjudged"] == 2 and results["updates"] > 0
    assert results["task_set"]["overlap"]["exact"] == 0
    rows = list(csv.DictReader((run / "metrics.csv").open()))
    assert rows and [int(row["trajectories"]) for row in rows] == sorted(int(row["trajectories"]) for row in rows)
    assert float(rows[-1]["charts/trajectories_per_minute"]) > 0 and rows[-1]["losses/policy_loss"]
    assert (run / "curves.png").read_bytes().startswith(b"\x89PNG") and (run / "report.html").exists()
    assert AutoUIPolicy.load(run / "policy.safetensors").config["d_model"] == 32

    # Resumed with a policy of another size: refused, and nothing is touched.
    config = json.loads((run / "config.json").read_text())
    config["policy"]["policy"] = str(folder / "other.safetensors")
    moved = Path(shutil.copytree(run, tmp_path / "moved"))
    (moved / "config.json").write_text(json.dumps(config))
    (moved / "results.json").unlink()  # else it is over
    code, out, err = Program("--resume", moved).end()
    assert code == 2 and err.count("\n") == 1, (code, err)
    assert re.search(r"another size.*, 32\) in the checkpoint, .*, 48\) here", err)
    assert contents(moved) == final


# ---------------------------------------------------------------------- repeatability


def test_serial_runs_repeat_bit_for_bit(folder, tmp_path):
    flags = """--serial --eval-episodes 1 --horizon 3 --total-trajectories 14 --learning-starts 4 --critic-warmup 2
        --batch-trajectories 2 --eval-every 5 --seed 5""".split()
    flags += ["--policy", folder / "policy.safetensors"]
    programs = [Program(*flags, "--runs-dir", tmp_path / name) for name in ("one", "two")]
    for program in programs:
        code, out, err = program.end(90)
        assert code == 0 and err == "", (out, err)

    def played(run: Path) -> list:
        with Journal(run / "journal.sqlite", readonly=True) as journal:
            rows = list(journal.rows())
            trajectories = [Trajectory.from_bytes(data) for _, data in journal.blobs(row.id for row in rows)]
        return [
            (row._replace(created=0.0), t.actions, t.prompts, t.features.tobytes(), t.rewards.tolist(),
             [ids.tolist() for ids in t.token_ids], [x.tobytes() for x in t.logprobs], t.policy_version.tolist())
            for row, t in zip(rows, trajectories, strict=True)
        ]  # fmt: skip

    (one,), (two,) = (list((tmp_path / name).iterdir()) for name in ("one", "two"))
    assert played(one) == played(two) and len(played(one)) >= 14 + 4
    weights = [(run / "policy.safetensors").read_bytes() for run in (one, two)]
    assert weights[0] == weights[1] != (folder / "policy.safetensors").read_bytes()
