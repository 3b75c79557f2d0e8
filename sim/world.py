"""N simulated phones, each on a loopback port of its own, and the real adb server that they are connected to.

    async with World(4, seed=0, latency=0.0) as world:
        print(world.port, world.serials)         # adb -P PORT -s SERIAL shell

The server is the adb that adbutils bundles, run in the foreground with a HOME of its own, so that neither
its keys nor its port meet the user's adb. It ends with this process, however that ends; when it ends alone, it is
started again on the same port and the phones are connected again, as `adb` itself does at its next command."""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import adbutils

from sim import PhonesError
from sim.adbd import Device
from sim.phone import Phone

HOST = "127.0.0.1"
EMULATOR_PORTS = range(5554, 5586)  # adb scans these for emulators
SERVER_SECONDS = 20.0  # for the adb server to listen, and again for the phones to be online


def bind(port: int = 0) -> socket.socket:
    """A bound loopback socket; with port 0 a free port that adb does not take for an emulator's."""
    while True:
        # The protocol is named because asyncio sets TCP_NODELAY only then; without, a command takes 40 ms.
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        if port or listener.getsockname()[1] not in EMULATOR_PORTS:
            return listener
        listener.close()


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


async def ask(port: int, service: str) -> str:
    """One request to the adb server's smart socket: its length in four hex digits, itself."""
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        writer.write(f"{len(service):04x}{service}".encode())
        status = await reader.readexactly(4)
        text = await reader.readexactly(int(await reader.readexactly(4), 16))
    finally:
        writer.close()
    if status != b"OKAY":
        raise PhonesError(f"adb server: {service}: {text.decode(errors='replace')}")
    return text.decode()


class World:
    """Async context manager: phones, adb server and connections are up inside, gone outside."""

    def __init__(
        self,
        num_phones: int,
        *,
        seed: int = 0,
        latency: float = 1.0,
        dialogs: float = 0.3,
        failed_loads: float = 0.2,
        slow_loads: float = 0.1,
        adb_port: int = 0,
    ):
        if adb_port in EMULATOR_PORTS:
            raise PhonesError(
                f"--adb-port {adb_port}: adb looks for emulators on 5554-5585; choose another, or 0"
            )
        chances = {"dialogs": dialogs, "failed_loads": failed_loads, "slow_loads": slow_loads}
        self.phones = [Phone(i, seed=seed, latency=latency, **chances) for i in range(num_phones)]
        self.devices = [Device(phone) for phone in self.phones]
        self.port, self.serials = adb_port, []
        self.host, self.adb = HOST, adbutils.adb_path()
        self._chosen = adb_port != 0
        self._listeners: list[asyncio.Server] = []
        self.server: subprocess.Popen | None = None
        self._home: Path | None = None
        self._keeper: asyncio.Task | None = None

    async def __aenter__(self) -> World:
        try:
            await self._start()
        except BaseException:
            self.close()
            raise
        return self

    async def __aexit__(self, *_) -> None:
        self.close()

    async def _start(self) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="sim-adb-"))
        for device in self.devices:
            listener = bind()
            self.serials.append(f"{HOST}:{listener.getsockname()[1]}")
            self._listeners.append(
                await asyncio.start_server(device.serve, sock=listener, limit=1 << 20)
            )
        await self._start_server()
        await asyncio.gather(*(self._connect(serial) for serial in self.serials))
        await self._until(self._online, "see all phones")
        self._keeper = asyncio.create_task(self._keep_server())

    async def _keep_server(self) -> None:
        while True:
            await asyncio.sleep(0.1)
            if self.server.poll() is None:
                continue
            try:
                self._launch_server()
                await self._until(self._listening, "listen")
                await asyncio.gather(*(self._connect(serial) for serial in self.serials))
            except (PhonesError, OSError, asyncio.IncompleteReadError):
                continue  # it has ended again, or a phone is not to be had now

    async def _start_server(self) -> None:
        """On a free port another process may be quicker: then another one is tried."""
        for last in (self._chosen, self._chosen, True):
            self._launch_server()
            try:
                await self._until(self._listening, "listen")
                return
            except PhonesError:
                if last or self.server.poll() is None:
                    raise
                self.port = 0

    def _launch_server(self) -> None:
        try:
            with bind(self.port) as probe:
                self.port = probe.getsockname()[1]
        except OSError as error:
            raise PhonesError(
                f"--adb-port {self.port}: {error.strerror}; choose another, or 0 for a free one"
            ) from None
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("ADB", "ANDROID_"))}
        own = {
            "HOME": str(self._home),
            "TMPDIR": str(self._home),
            "ADB_MDNS": "0",
            "ADB_USB": "0",
            "ADB_EMU": "0",
        }
        with open(self._home / "adb.log", "wb") as log:
            self.server = subprocess.Popen(
                [self.adb, "-P", str(self.port), "nodaemon", "server"],
                env={**inherited, **own},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

    async def _until(self, condition, what: str) -> None:
        deadline = time.monotonic() + SERVER_SECONDS
        while True:
            fulfilled = await condition()  # before the look at the server: another's may have answered
            if self.server.poll() is not None:
                log = (self._home / "adb.log").read_text(errors="replace").strip()[-500:]
                raise PhonesError(
                    f"the adb server on port {self.port} ended with {self.server.returncode}: {log}"
                )
            if fulfilled:
                return
            if time.monotonic() > deadline:
                raise PhonesError(
                    f"the adb server on port {self.port} did not {what} in {SERVER_SECONDS:.0f} s"
                )
            await asyncio.sleep(0.01)

    async def _listening(self) -> bool:
        try:
            await ask(self.port, "host:version")
        except (OSError, asyncio.IncompleteReadError):
            return False
        return True

    async def _connect(self, serial: str) -> None:
        answer = await ask(self.port, f"host:connect:{serial}")
        if not answer.startswith(("connected to", "already connected")):
            raise PhonesError(f"adb connect {serial}: {answer}")

    async def _online(self) -> bool:
        lines = (await ask(self.port, "host:devices")).splitlines()
        return {line.split("\t")[0] for line in lines if line.endswith("\tdevice")} >= set(self.serials)

    def close(self) -> None:
        """Ends the server and the phones' ports, and removes the server's HOME."""
        if self._keeper is not None:
            self._keeper.cancel()
        if self.server is not None:
            self.server.terminate()
            try:
                self.server.wait(timeout=3)
            except subprocess.TimeoutExpired:
                self.server.kill()
                self.server.wait()
        for listener in self._listeners:
            listener.close()
        if self._home is not None:
            shutil.rmtree(self._home, ignore_errors=True)
