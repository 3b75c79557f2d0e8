"""Simulated phones behind a real adb server, started and stopped from Python.

    with start_phones(4, latency=0.0) as phones:
        client = adbutils.AdbClient(host=phones.host, port=phones.port)
        client.device(phones.serials[0]).shell("wm size")

The phones live in a child process (`python -m sim --json`), which holds the adb server too; both end with
`close` and also when this process is killed. Importing this costs nothing: Pillow is the child's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import IO

START_SECONDS = 60.0  # 32 phones take about 1 s; a machine under heavy load gets its time


class PhonesError(RuntimeError):
    """The simulated phones did not start."""


@dataclass
class Phones:
    """Where the phones are; a context manager that ends them."""

    host: str
    port: int  # of the adb server
    serials: list[str]
    pids: list[int]  # the simulator's and the adb server's, to measure them
    process: subprocess.Popen
    errors: IO[bytes]  # what the simulator said on stderr

    @property
    def pid(self) -> int:
        return self.process.pid

    def set_latency(self, latency: float) -> None:
        """Scale the time that inputs take from now on: dialogs, failures and contents stay what they are."""
        self.process.stdin.write(f"latency {latency:g}\n".encode())
        self.process.stdin.flush()

    def fault(self, serial: str, kind: str, times: int = 0) -> None:
        """Something goes wrong with one phone from now on (`sim/faults.py` lists what); "none" heals it."""
        self.process.stdin.write(f"fault {self.serials.index(serial)} {kind} {times}\n".encode())
        self.process.stdin.flush()
        if self.process.stdout.readline() != b"done\n":
            raise PhonesError(f"fault {kind!r}: the simulated phones have ended")

    def close(self) -> None:
        """Ends phones and adb server; a second call does nothing."""
        if self.process.stdin and not self.process.stdin.closed:
            self.process.stdin.close()  # the simulator ends at the end of its input
        self.process.send_signal(signal.SIGCONT)  # one that is stopped would not see it
        try:
            self.process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self.process.kill()  # its adb server dies with it
            self.process.wait()
        self.process.stdout.close()
        if not self.errors.closed:
            sys.stderr.write(_text(self.errors))  # empty unless the simulated world has a fault
            self.errors.close()

    def __enter__(self) -> Phones:
        return self

    def __exit__(self, *_) -> None:
        self.close()


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def start_phones(
    num_phones: int,
    *,
    seed: int = 0,
    latency: float = 1.0,
    dialogs: float = 0.3,
    failed_loads: float = 0.2,
    slow_loads: float = 0.1,
    adb_port: int = 0,
) -> Phones:
    """Starts phones and their adb server (`adb_port` 0: a free one) and waits until all are usable.

    `latency` scales the time an input takes (1: about 1 s with a heavy tail, 0: none); the other numbers are
    probabilities. Raises `PhonesError` with the simulator's own words when it fails.
    """
    from judge_clients import without_keys  # not at the top: importing this costs nothing

    options = dict(num_phones=num_phones, seed=seed, latency=latency, dialogs=dialogs)
    options |= dict(failed_loads=failed_loads, slow_loads=slow_loads, adb_port=adb_port)
    command = [sys.executable, "-m", "sim", "--json"]
    command += [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    path = [str(Path(__file__).resolve().parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    errors = tempfile.TemporaryFile()
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        env={**without_keys(), "PYTHONPATH": os.pathsep.join(path)},
        start_new_session=True,  # a Ctrl-C here is for us: we end the phones when we are done with them
    )
    deadline = threading.Timer(START_SECONDS, process.kill)
    deadline.start()
    try:
        line = process.stdout.readline()
    finally:
        deadline.cancel()
    if line:
        found = json.loads(line)
        pids = [process.pid, found["adb_pid"]]
        return Phones(found["host"], found["port"], found["serials"], pids, process, errors)
    status = process.wait()
    for stream in (process.stdin, process.stdout):
        stream.close()
    with errors:
        said = _text(errors).strip()[-2000:] or "it said nothing"
    if status == 2:  # a sentence of ours, after argparse's usage or alone
        raise PhonesError(said.rpartition("python -m sim: ")[2].removeprefix("error: "))
    late = f" (no answer in {START_SECONDS:.0f} s)" if status == -9 else ""
    raise PhonesError(f"the simulated phones did not start, exit status {status}{late}: {said}")
