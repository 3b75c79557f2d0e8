"""A whole run on emulators that it launches itself: cut short, gone on with, and none of them left."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from policy import AutoUIPolicy

ROOT = Path(__file__).resolve().parent.parent
TINY = """--num-workers 2 --reset snapshot --eval-episodes 1 --horizon 2 --learning-starts 4 --critic-warmup 2
    --batch-trajectories 2 --updates-per-trajectory 0.2 --eval-every 0 --total-trajectories 16""".split()


def emulators(home: str) -> list[int]:
    """Processes of emulators whose HOME this is."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if b"sim.emulator" in (entry / "cmdline").read_bytes() and f"HOME={home}".encode() in (
                entry / "environ"
            ).read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except (OSError, ValueError):
            continue
    return found


@pytest.mark.slow
def test_e3_a_run_on_its_own_emulators_leaves_none_behind(sdk, tmp_path):
    AutoUIPolicy.small(seed=0, d_model=32, layers=1, heads=2, d_ff=64).save(tmp_path / "policy.safetensors")
    flags = ["--avd", "test", "--policy", tmp_path / "policy.safetensors", "--runs-dir", tmp_path / "runs", *TINY]
    home = tmp_path / "home"  # apart from other tests' emulators
    home.symlink_to(sdk["HOME"])
    options = dict(cwd=ROOT, env=os.environ | sdk | {"HOME": str(home)}, text=True)
    process = subprocess.Popen([sys.executable, "run_distrl.py", *map(str, flags)], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, start_new_session=True, **options)  # fmt: skip
    said = ""
    for line in process.stdout:
        said += line
        if line.startswith("Evaluating the warm start"):
            break
    running = len(emulators(str(home)))
    os.killpg(process.pid, signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert running == 2 and process.returncode == 130 and not emulators(str(home)), said + out + errors
    assert "2 workers on 2 emulators of test: emulator-" in said

    folder = next((tmp_path / "runs").glob("adb__*"))
    done = subprocess.run([sys.executable, "run_distrl.py", "--resume", str(folder)], capture_output=True, timeout=200,
                          check=False, **options)  # fmt: skip
    assert done.returncode == 0 and "on 2 emulators of test" in done.stdout, done.stdout + done.stderr
    assert json.loads((folder / "results.json").read_text())["phones"].startswith("2 emulators of test: emulator-")
    assert not emulators(str(home))
