"""A simulated phone where the Android emulator would be: the emulator's arguments, console and adb port.

    #!/bin/sh                                     # saved as `emulator`, on the PATH or in $ANDROID_HOME/emulator
    exec python -m sim.emulator "$@"              # with the repository in PYTHONPATH

    emulator -avd NAME -port 5554 -no-window      # console on 5554, adb on 5555: the real adb calls it emulator-5554

AVDs are `~/.android/avd/NAME.ini`, their snapshots folders in `NAME.avd/snapshots/`, as the emulator's. The console
wants the token in `~/.emulator_console_auth_token` (made when missing) and knows `avd snapshot load|list`, `kill`.
SIM_EMULATOR holds what a real one takes from its hardware: `boot_seconds=2 latency=0 dialogs=0 kvm=no fault=mute`,
`dies=1` (a boot that fails). A load of a snapshot hangs up, and takes a quarter of a boot.

Departs from the emulator: a snapshot holds the phone as it first booted; nothing can be saved.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import secrets
import signal
import socket
import sys
from pathlib import Path

from sim.adbd import Device
from sim.phone import Phone

FLAGS = """no-window no-audio no-boot-anim no-snapshot-save no-snapshot-load no-snapshot no-snapstorage no-metrics
    read-only wipe-data no-sim no-passive-gps no-cache verbose""".split()
VALUED = "avd port ports snapshot gpu memory cores accel partition-size timezone dns-server http-proxy feature".split()
QUERIES = "accel-check list-avds version".split()
HOST = "127.0.0.1"
NO_KVM = (
    "accel:\n8\n/dev/kvm is not found: VT disabled in BIOS or KVM kernel module not loaded\naccel",
    "accel:\n0\nKVM (version 12) is installed and usable.\naccel",
)


class Refused(Exception):
    """The emulator does not start; what it says."""


def parse(argv: list[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    words = list(argv)
    while words:
        word = words.pop(0)
        name = word.lstrip("-")
        if word.startswith("@"):
            options["avd"] = word[1:]
        elif not word.startswith("-") or name not in [*FLAGS, *VALUED, *QUERIES]:
            raise Refused(f"unknown option: {word}\nplease use -help for a list of valid options")
        elif name in VALUED:
            if not words:
                raise Refused(f"option -{name} needs a parameter")
            options[name] = words.pop(0)
        else:
            options[name] = ""
    return options


def avd_home() -> Path:
    return Path(os.environ.get("ANDROID_AVD_HOME") or Path.home() / ".android" / "avd")


def avds() -> list[str]:
    return sorted(path.stem for path in avd_home().glob("*.ini"))


def hold_avd(folder: Path, read_only: bool):
    """The AVD's lock, held while the file is open: one that writes is alone with it."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = (folder / "multiinstance.lock").open("w")
    try:
        fcntl.flock(lock, (fcntl.LOCK_SH if read_only else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Refused("Running multiple emulators with the same AVD is an experimental feature.\n"
                      "Please use -read-only flag to enable this feature.") from None  # fmt: skip
    return lock


def token() -> str:
    """The console's token; an empty file means that none is asked for."""
    path = Path.home() / ".emulator_console_auth_token"
    with contextlib.suppress(FileExistsError), path.open("x") as file:
        path.chmod(0o600)
        file.write(secrets.token_urlsafe(12))
    return path.read_text().strip()


class Emulator:
    """One phone, its adb port and its console."""

    def __init__(self, snapshots: Path, settings: dict[str, str]):
        self.snapshots, self.settings = snapshots, settings
        self.boot_seconds = float(settings.get("boot_seconds", 0.5))
        self.device = Device(self.fresh())
        self.killed = asyncio.Event()
        self.device.phone.faults.reboot()

    def fresh(self) -> Phone:
        names = ("dialogs", "failed_loads", "slow_loads", "latency")
        chances = {name: float(self.settings.get(name, 0)) for name in names}
        phone = Phone(0, seed=int(self.settings.get("seed", 0)), **chances)
        phone.faults.boot_seconds = self.boot_seconds
        phone.faults.set(self.settings.get("fault", "none"))
        return phone

    def load(self, name: str) -> str:
        if not (self.snapshots / name).is_dir():
            return f"KO: Snapshot '{name}' does not exist"
        self.device.phone, boot = self.fresh(), self.boot_seconds
        self.device.phone.faults.boot_seconds = boot / 4
        self.device.phone.faults.reboot()
        self.device.phone.faults.boot_seconds = boot
        self.device.hang_up()
        return "OK"

    def command(self, words: list[str]) -> str:
        if words == ["kill"]:
            self.killed.set()
            return "OK: killing emulator, bye bye"
        if words[:3] == ["avd", "snapshot", "load"] and len(words) == 4:
            return self.load(words[3])
        if words == ["avd", "snapshot", "list"]:
            names = sorted(path.name for path in self.snapshots.iterdir()) if self.snapshots.is_dir() else []
            return "List of snapshots present on all disks:\n" + "".join(f"--  {name}\n" for name in names) + "OK"
        return "OK" if words == ["help"] else "KO: unknown command, try 'help'"

    async def console(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wanted = token()
        greeting = "type help for a list of commands"
        if wanted:
            greeting = "Authentication required\r\nAndroid Console: type 'auth <auth_token>' to authenticate"
        writer.write(f"Android Console: {greeting}\r\nOK\r\n".encode())
        trusted = not wanted
        with contextlib.closing(writer):
            while line := await reader.readline():
                words = line.decode(errors="replace").split()
                if words == ["quit"]:
                    return
                if words[:1] == ["auth"]:
                    trusted = trusted or words[1:] == [wanted]
                    answer = "OK" if trusted else "KO: authentication token does not match"
                else:
                    answer = self.command(words) if trusted else "KO: unknown command, try 'help'"
                writer.write(answer.replace("\n", "\r\n").encode() + b"\r\n")
                await writer.drain()


def announce(adb_port: int) -> None:
    """Tell the adb server, as the emulator does: it connects to what it is told of."""
    server = int(os.environ.get("ANDROID_ADB_SERVER_PORT") or 5037)
    request = f"host:emulator:{adb_port}"
    with contextlib.suppress(OSError), socket.create_connection((HOST, server), timeout=5) as connection:
        connection.sendall(f"{len(request):04x}{request}".encode())


async def serve(options: dict[str, str], settings: dict[str, str]) -> None:
    console_port = int(options.get("port") or options.get("ports", "5554").split(",")[0])
    emulator = Emulator(avd_home() / f"{options['avd']}.avd" / "snapshots", settings)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, emulator.killed.set)
    listeners = []
    for port, handler in ((console_port, emulator.console), (console_port + 1, emulator.device.serve)):
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # named: see world.py
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((HOST, port))
        except OSError as error:
            raise Refused(f"port {port}: {error.strerror}: another emulator instance is running on it") from error
        listeners.append(await asyncio.start_server(handler, sock=sock, limit=1 << 20))
    if "snapshot" in options and not (emulator.snapshots / options["snapshot"]).is_dir():
        print(f"WARNING | no snapshot named '{options['snapshot']}': cold boot", flush=True)
    print(f"emulator: console on {console_port}, adb on {console_port + 1}", flush=True)
    if settings.get("dies"):
        raise Refused("FATAL | the guest could not be started")
    announce(console_port + 1)
    await emulator.killed.wait()
    emulator.device.hang_up()
    for listener in listeners:
        listener.close()


def main(argv: list[str]) -> int:
    settings = dict(word.split("=", 1) for word in os.environ.get("SIM_EMULATOR", "").split())
    kvm = settings.get("kvm") != "no"
    try:
        options = parse(argv)
        if "accel-check" in options:
            print(NO_KVM[kvm])
            return 0 if kvm else 8
        if "list-avds" in options or "version" in options:
            print("\n".join(avds()) if "list-avds" in options else "Android emulator version 0 (simulated)")
            return 0
        if options.get("avd") not in avds():
            raise Refused(f"Unknown AVD name [{options.get('avd')}], use -list-avds to see valid list.")
        if not kvm:
            raise Refused("x86_64 emulation currently requires hardware acceleration!\n" + NO_KVM[0])
        with hold_avd(avd_home() / f"{options['avd']}.avd", "read-only" in options):
            asyncio.run(serve(options, settings))
    except Refused as refusal:
        print(f"ERROR   | {refusal}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
