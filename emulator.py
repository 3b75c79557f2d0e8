"""Android emulators that we launch and own, one a worker: headless, read-only, each on ports of its own.

    with Emulators("Pixel_4", 2) as owned:              # 5554, 5556; returns when both have booted
        phone = owned.phones[0]                         # an AdbPhone
        load_snapshot(phone)                            # its default_boot again: seconds, no file is copied
        owned.relaunch(phone.serial); phone.recover()

The emulators of one run share the AVD's files (`-read-only`); nothing is copied and nothing written to it. They talk to
adb servers of our own, 15 at most to each, so that neither the user's server nor the user's emulators are touched. A
boot is over when `sys.boot_completed` says so. All of it ends with `close` and also when this process dies: between us
and each child stands a guard that waits for the end of a pipe.

Departs from the authors' code: they copy the AVD's folder for each emulator, wait a fixed time, and end emulators by
the user's name (`pkill -u`).
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import IO
from urllib.parse import quote

import adbutils

from adb_phone import EMULATOR_SERIAL, AdbPhone, AndroidEnvError, DeviceOffline, list_devices
from judge_clients import without_keys

FIRST_PORT, MOST, PER_SERVER = 5554, 64, 15
BOOT_SECONDS = 300.0  # a cold boot takes minutes, and a snapshot may be one that this emulator cannot load
SNAPSHOT = "default_boot"  # what the emulator itself saves when an AVD is closed
_SERVER_SECONDS = 20.0
OWN_MEMORY = 512  # MB that an emulator takes besides its phone's; an estimate

# The child's guard: ends it when the one who started both closes the pipe, or dies.
_GUARD = """
import os, signal, subprocess, sys, threading
child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def watch():
    while os.read(0, 1):
        pass
    child.terminate()
    try:
        child.wait(10)
    except subprocess.TimeoutExpired:
        child.kill()
threading.Thread(target=watch, daemon=True).start()
os._exit(child.wait() & 255)
"""


class EmulatorError(RuntimeError):
    """An emulator could not be launched, or did not boot; what it said, and what to do."""


def allocate_ports(count: int, busy: Callable[[int], bool] = lambda port: False) -> list[int]:
    """Console ports of `count` emulators, 5554 and up in steps of two (adb has the odd one above), without those that
    are `busy`. Raises ValueError for more than 64."""
    if not 1 <= count <= MOST:
        raise ValueError(f"{count} emulators: 1 to {MOST} fit in the ports that the emulator knows")
    free = (port for port in range(FIRST_PORT, FIRST_PORT + 2 * MOST, 2) if not busy(port))
    ports = list(islice(free, count))
    if len(ports) < count:
        raise ValueError(f"only {len(ports)} of the {MOST} emulator ports are free: end other emulators, or use fewer")
    return ports


def in_use(port: int) -> bool:
    """Does someone listen on this console port, or on the adb port above it?"""
    for number in (port, port + 1):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", number))
            except OSError:
                return True
    return False


def claim(what: str) -> IO | None:
    """A lock on a phone or port of this machine until it is closed or its process ends; None: another run has it."""
    lock = open(Path(tempfile.gettempdir()) / f"distrl-{os.getuid()}-{quote(what, safe='')}.lock", "w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return lock
    except OSError:
        lock.close()
        return None


def find_emulator() -> str:
    """The `emulator` on the PATH, or the SDK's. EmulatorError: there is none."""
    homes = [os.environ.get(name) for name in ("ANDROID_HOME", "ANDROID_SDK_ROOT")]
    for place in (shutil.which("emulator"), *(Path(home) / "emulator" / "emulator" for home in homes if home)):
        if place and os.access(place, os.X_OK):
            return str(place)
    raise EmulatorError("no `emulator`: install the Android SDK's, and put it on the PATH or set ANDROID_HOME")


def _ask(executable: str, question: str) -> subprocess.CompletedProcess:
    command, options = [executable, question], dict(capture_output=True, text=True, timeout=30, check=False)
    try:
        return subprocess.run(command, env=without_keys(), **options)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EmulatorError(f"`{executable} {question}` does not run ({error}): install the SDK's again") from error


def list_avds(executable: str) -> list[str]:
    done = _ask(executable, "-list-avds")
    return [line.strip() for line in done.stdout.splitlines() if line.strip() and not line.startswith("INFO")]


def acceleration_problem(executable: str) -> str:
    """"" when the emulator can use the machine's virtualisation, else what it says and what to do."""
    done = _ask(executable, "-accel-check")
    if done.returncode == 0:
        return ""
    said = [line for line in done.stdout.splitlines() if line not in ("accel", "accel:") and not line.isdigit()]
    return (
        f"{' '.join(said) or 'no hardware acceleration'}: an emulator without it takes for ever; on Linux enable "
        "virtualisation in the BIOS, load kvm (`modprobe kvm_intel` or `kvm_amd`) and join the group of /dev/kvm"
    )


def avd_memory(avd: str) -> int:
    """MB that one emulator of this AVD takes: its phone's (`hw.ramSize`; 2048 when it does not say) and its own."""
    home = Path(os.environ.get("ANDROID_AVD_HOME") or Path.home() / ".android" / "avd")
    try:
        elsewhere = re.search(r"^path\s*=\s*(.+)", (home / f"{avd}.ini").read_text(), re.MULTILINE)
        folder = Path(elsewhere[1].strip()) if elsewhere else home / f"{avd}.avd"
        size = re.search(r"^hw\.ramSize\s*=\s*(\d+)\s*(G?)", (folder / "config.ini").read_text(), re.MULTILINE)
    except (OSError, UnicodeDecodeError):
        size = None
    return OWN_MEMORY + (int(size[1]) * (1024 if size[2] else 1) if size else 2048)


def free_memory() -> int | None:
    """MB that programs can still have without swapping; None where the system does not say."""
    try:
        found = re.search(r"^MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) // 1024 if found else None


def how_many_fit(avd: str, count: int) -> tuple[int, str]:
    """How many emulators of this AVD, `count` at most, the free memory is enough for; and those numbers in words."""
    each, free = avd_memory(avd), free_memory()
    if free is None:
        return count, f"about {each:,} MB each"
    return min(count, free // each), f"about {each:,} MB each, {free:,} MB free"


def emulator_argv(executable: str, avd: str, port: int) -> list[str]:
    """The command of one emulator."""
    return [
        executable, "-avd", avd, "-port", str(port), "-read-only", "-snapshot", SNAPSHOT, "-no-snapshot-save",
        "-no-window", "-no-audio", "-no-boot-anim", "-gpu", "swiftshader_indirect",
    ]  # fmt: skip


def console(port: int, command: str, timeout: float = 30.0) -> str:
    """What the emulator's console on `port` answers. Raises EmulatorError with the console's words after `KO`."""
    deadline = time.monotonic() + timeout
    token = Path.home() / ".emulator_console_auth_token"

    def answer(stream: socket.socket) -> str:
        lines, pending = [], b""
        while True:
            stream.settimeout(max(deadline - time.monotonic(), 0.01))
            if not (chunk := stream.recv(4096)):
                return "\n".join(lines)  # `kill` ends it
            *whole, pending = (pending + chunk).split(b"\n")
            for line in (raw.decode(errors="replace").strip() for raw in whole):
                if line.startswith("KO"):
                    raise EmulatorError(f"console {port}: {command!r}: {line}")
                if line == "OK" or line.startswith("OK:"):
                    return "\n".join(lines)
                lines.append(line)

    try:
        with socket.create_connection(("127.0.0.1", port), timeout=timeout) as stream:
            if "Authentication required" in answer(stream):
                stream.sendall(b"auth " + token.read_text().strip().encode() + b"\n")
                answer(stream)
            stream.sendall(command.encode() + b"\n")
            return answer(stream)
    except OSError as error:
        raise EmulatorError(f"console {port}: {command!r}: {error}") from error


def load_snapshot(phone: AdbPhone, name: str = SNAPSHOT) -> str:
    """Puts an emulator of this machine back to a snapshot and waits until it is up. "": done; else why the emulator
    refused to (it goes on as it was)."""
    found = EMULATOR_SERIAL.fullmatch(phone.serial)
    if not found:
        raise ValueError(f"{phone.serial}: only an emulator-N has snapshots: use the reset by the home screen")
    try:
        console(int(found[1]), f"avd snapshot load {name}")
        refused = ""
    except EmulatorError as error:
        if isinstance(error.__cause__, OSError):  # no answer is no refusal: the load may still come
            raise AndroidEnvError(phone.serial, str(error), "it is launched again if that goes on") from error
        refused = str(error)
    phone.recover()
    return refused


class _Guarded:
    """A child process behind a guard, its output in a file."""

    def __init__(self, argv: list[str], log: Path, environment: dict[str, str]):
        self.argv, self.log, self.environment = argv, log, without_keys() | environment
        self.start()

    def start(self) -> None:
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-c", _GUARD, *self.argv], stdin=subprocess.PIPE, stdout=log, stderr=log,
                env=self.environment, start_new_session=True,
            )  # fmt: skip

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def said(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return " | ".join(line.strip() for line in lines[-4:])[-600:] or "it said nothing"

    def ask_to_end(self) -> None:
        if not self.process.stdin.closed:
            self.process.stdin.close()

    def kill(self) -> None:
        """Child and guard, at once: they are a process group of their own."""
        try:  # also when the guard itself has died
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        self.ask_to_end()

    def close(self) -> None:
        self.ask_to_end()
        try:
            self.process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            self.kill()


class Emulators:
    """`count` emulators of one AVD, and their adb servers; a context manager that ends what it launched."""

    def __init__(self, avd: str, count: int, boot_seconds: float = BOOT_SECONDS):
        self.avd, self.count, self.boot_seconds = avd, count, boot_seconds
        self.executable = find_emulator()
        if avd not in (known := list_avds(self.executable)):
            raise EmulatorError(f"no AVD {avd!r}: `{self.executable} -list-avds` knows {', '.join(known) or 'none'}")
        if problem := acceleration_problem(self.executable):
            raise EmulatorError(problem)
        self.phones: list[AdbPhone] = []
        self.servers: list[int] = []  # their ports
        self._children: dict[str, _Guarded] = {}  # serial, or the server's port -> process
        self._locks: list[IO] = []  # of their console ports
        self._folder: Path | None = None

    def __enter__(self) -> Emulators:
        self._folder = Path(tempfile.mkdtemp(prefix="distrl-emulators-"))
        try:
            try:
                ports = allocate_ports(self.count, lambda port: in_use(port) or not self._claim(port))
            except ValueError as error:
                raise EmulatorError(str(error)) from error
            for index, port in enumerate(ports):
                if index % PER_SERVER == 0:
                    self._start_server()
                self._launch(port)
            with ThreadPoolExecutor(len(ports)) as pool:
                waits = [pool.submit(self._wait, phone) for phone in self.phones]
                try:
                    for wait in waits:
                        wait.result()
                except BaseException:  # Ctrl-C, or one that does not come up: the others' waits end with their children
                    self.close()
                    raise
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _claim(self, port: int) -> bool:
        lock = claim(f"emulator-{port}")  # it may not listen there yet
        if lock:
            self._locks.append(lock)
        return lock is not None

    def _start_server(self) -> None:
        with socket.socket() as probe:  # above the ports where adb looks for emulators
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        # It is to know ours only: each emulator announces itself to it.
        environment = {"ADB_EMU": "0", "ADB_USB": "0", "ADB_MDNS": "0"}
        argv = [adbutils.adb_path(), "-P", str(port), "nodaemon", "server"]
        child = _Guarded(argv, self._folder / f"adb-{port}.log", environment)
        self._children[f"adb server {port}"] = child
        deadline = time.monotonic() + _SERVER_SECONDS
        while True:
            try:
                list_devices(port=port)
                break
            except DeviceOffline as error:
                if child.ended or time.monotonic() > deadline:
                    raise EmulatorError(f"the adb server on port {port} did not start: {child.said()}") from error
            time.sleep(0.02)  # a server says in no other way that it listens
        self.servers.append(port)

    def _launch(self, port: int) -> None:
        phone = AdbPhone(f"emulator-{port}", port=self.servers[-1])
        phone.boot_timeout = self.boot_seconds
        environment = {"ANDROID_ADB_SERVER_PORT": str(phone.port)}
        log = self._folder / f"{phone.serial}.log"
        self._children[phone.serial] = _Guarded(emulator_argv(self.executable, self.avd, port), log, environment)
        self.phones.append(phone)

    def _wait(self, phone: AdbPhone) -> None:
        child = self._children[phone.serial]

        def alive() -> None:
            if child.ended:
                raise EmulatorError(f"{phone.serial} ended with {child.process.returncode}: {child.said()}")

        phone.on_wait = alive
        try:
            phone.recover()
        except AndroidEnvError as error:
            raise EmulatorError(f"{error}; the emulator said: {child.said()}") from error

    def relaunch(self, serial: str) -> None:
        """Kills one emulator and launches it again; returns at once, `AdbPhone.recover` waits for its boot."""
        server = self._children[f"adb server {next(p.port for p in self.phones if p.serial == serial)}"]
        if server.ended:  # its emulators are fine: `recover` announces them to the new one
            server.start()
            return
        child = self._children[serial]
        child.kill()
        child.start()

    @property
    def pids(self) -> list[int]:
        """The guards' process ids."""
        return [child.process.pid for child in self._children.values()]

    def close(self) -> None:
        """Ends the emulators, then their adb servers; a second call does nothing."""
        emulators = [child for name, child in self._children.items() if name.startswith("emulator-")]
        for child in emulators:
            child.ask_to_end()  # all at once: each may take seconds
        for child in [*emulators, *self._children.values()]:
            child.close()
        self._children.clear()
        for lock in self._locks:
            lock.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
