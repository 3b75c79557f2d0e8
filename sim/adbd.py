"""The device side of adb: what a phone's adbd answers to a real adb server, over TCP.

A message is six little-endian words (command, arg0, arg1, length, checksum, command ^ 0xffffffff) and a
payload: CNXN greets, OPEN names a service for a new stream, OKAY says a stream is ready for more, WRTE
carries data, CLSE ends it (the AOSP's `packages/modules/adb/protocol.txt`). Services: `shell:`, `shell,v2:`
(exit status, stdout and stderr apart), `exec:` and `sync:` (push, pull, list); any other is closed, as adbd
does. No AUTH is asked for, unless the phone's faults (`sim/faults.py`) say that it trusts nobody.

    server = await asyncio.start_server(Device(phone).serve, "127.0.0.1", 0)   # adb connect

Departs from adbd: no TLS, no checksums (protocol version 0x01000001 has none), sync v2 only for stat and
list."""

from __future__ import annotations

import asyncio
import struct

from sim.files import CAPACITY, Entry, Files
from sim.shell import Exit, Shell

CNXN, AUTH, OPEN, OKAY, WRTE, CLSE = (
    int.from_bytes(name, "little") for name in (b"CNXN", b"AUTH", b"OPEN", b"OKAY", b"WRTE", b"CLSE")
)
AUTH_TOKEN = 1
VERSION = 0x01000001
MAX_PAYLOAD = 256 * 1024
FEATURES = "shell_v2,cmd,stat_v2,ls_v2"
HEADER = struct.Struct("<6I")
STDIN, STDOUT, STDERR, EXIT, CLOSE_STDIN = range(5)  # packet ids of shell,v2
SYNC_CHUNK = 64 * 1024


class Device:
    """One phone as adb sees it; `serve` handles a connection of the adb server, as often as it reconnects."""

    def __init__(self, phone):
        self.phone = phone
        self.files = Files()
        self._links: set[_Link] = set()

    def fault(self, kind: str, times: int = 0) -> None:
        """Sets a fault of the phone; one of the connection itself ends those that there are."""
        was_down = self.phone.faults.down
        self.phone.faults.set(kind, times)
        if kind in ("offline", "unauthorized") or (kind == "none" and was_down):
            self.hang_up()

    def hang_up(self) -> None:
        for link in list(self._links):
            link.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(self, writer)
        self._links.add(link)
        try:
            while True:
                command, arg0, arg1, length, _, magic = HEADER.unpack(await reader.readexactly(HEADER.size))
                if magic != command ^ 0xFFFFFFFF or length > MAX_PAYLOAD:
                    break  # not adb at the other end
                payload = await reader.readexactly(length) if length else b""
                link.receive(command, arg0, arg1, payload)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # `adb disconnect`, the server went away, or this process ends
        finally:
            self._links.discard(link)
            link.close()

    def banner(self) -> bytes:
        names = ("ro.product.name", "ro.product.model", "ro.product.device")
        fields = ";".join(f"{name}={self.phone.props.get(name, 'distrl')}" for name in names)
        return f"device::{fields};features={FEATURES}".encode()


class _Link:
    """One connection: its streams by our id, and the way back."""

    def __init__(self, device: Device, writer: asyncio.StreamWriter):
        self.device, self.writer = device, writer
        self.max_payload = MAX_PAYLOAD
        self.streams: dict[int, _Stream] = {}
        self.last_id = 0

    def send(self, command: int, arg0: int, arg1: int, payload: bytes = b"") -> None:
        header = HEADER.pack(command, arg0, arg1, len(payload), 0, command ^ 0xFFFFFFFF)
        if not self.writer.is_closing():
            self.writer.write(header + payload)

    def receive(self, command: int, arg0: int, arg1: int, payload: bytes) -> None:
        faults = self.device.phone.faults
        if command in (CNXN, AUTH) and faults.down:  # the server waits for the greeting, and calls it offline
            if not faults.on("offline"):
                wait = faults.seconds_down
                asyncio.get_running_loop().call_later(wait, self.receive, command, arg0, arg1, payload)
            return
        if command == CNXN:
            self.max_payload = min(arg1, MAX_PAYLOAD)
            if faults.on("unauthorized"):
                self.send(AUTH, AUTH_TOKEN, 0, bytes(20))
            else:
                self.send(CNXN, VERSION, MAX_PAYLOAD, self.device.banner())
        elif command == AUTH:
            if arg0 == 2:  # a signature, by a key that it does not know; the public key itself waits for the user
                self.send(AUTH, AUTH_TOKEN, 0, bytes(20))
        elif command == OPEN:
            self.open(arg0, payload.rstrip(b"\0").decode(errors="replace"))
        elif stream := self.streams.get(arg1):
            if command == OKAY:
                stream.ready.set()
            elif command == WRTE:
                stream.incoming.put_nowait(payload)
                self.send(OKAY, stream.local, stream.remote)
            elif command == CLSE:
                stream.task.cancel()  # as a phone's shell, it dies with the one who asked
        elif command == WRTE:
            self.send(CLSE, 0, arg0)

    def open(self, remote: int, service: str) -> None:
        name, _, argument = service.partition(":")
        kind = name.split(",")[0]
        handler = {"shell": _shell, "exec": _shell, "sync": _sync, "reboot": _reboot}.get(kind)
        if handler is None:
            self.send(CLSE, 0, remote)
            return
        self.last_id += 1
        stream = self.streams[self.last_id] = _Stream(self, self.last_id, remote)
        self.send(OKAY, stream.local, remote)
        stream.task = asyncio.create_task(stream.run(handler, self.device, name, argument))
        stream.task.add_done_callback(lambda _: self.ended(stream))

    def ended(self, stream: _Stream) -> None:
        del self.streams[stream.local]
        self.send(CLSE, stream.local, stream.remote)

    def close(self) -> None:
        for stream in list(self.streams.values()):
            stream.task.cancel()
        self.writer.close()


class _Stream:
    """One service in progress. At most one WRTE is on its way: the next, and the CLSE, wait for its OKAY."""

    task: asyncio.Task

    def __init__(self, link: _Link, local: int, remote: int):
        self.link, self.local, self.remote = link, local, remote
        self.incoming: asyncio.Queue[bytes] = asyncio.Queue()
        self.buffer = bytearray()
        self.ready = asyncio.Event()
        self.ready.set()

    async def run(self, service, device: Device, name: str, argument: str) -> None:
        await service(device, self, name, argument)
        await self.ready.wait()

    async def write(self, data: bytes) -> None:
        for start in range(0, len(data), self.link.max_payload):
            await self.ready.wait()
            self.ready.clear()
            self.link.send(WRTE, self.local, self.remote, data[start : start + self.link.max_payload])

    async def some(self) -> bytes:
        """Whatever came in, at least a byte."""
        while not self.buffer:
            self.buffer += await self.incoming.get()
        data = bytes(self.buffer)
        self.buffer.clear()
        return data

    async def exactly(self, count: int) -> bytes:
        while len(self.buffer) < count:
            self.buffer += await self.incoming.get()
        data = bytes(self.buffer[:count])
        del self.buffer[:count]
        return data


# ---- shell:, shell,v2: and exec: ----------------------------------------------------------------


class _Output:
    """Collects what a command prints, in order, and sends it in as few messages as its order allows."""

    def __init__(self, stream: _Stream, packets: bool, crlf: bool = False):
        self.stream, self.packets, self.crlf = stream, packets, crlf
        self.parts: list[tuple[int, bytearray]] = []

    def out(self, data: bytes) -> None:
        self._add(STDOUT, data)

    def err(self, data: bytes) -> None:
        self._add(STDERR if self.packets and not self.crlf else STDOUT, data)

    def _add(self, packet: int, data: bytes) -> None:
        if self.crlf:
            data = data.replace(b"\n", b"\r\n")
        if not self.parts or self.parts[-1][0] != packet:
            self.parts.append((packet, bytearray()))
        self.parts[-1][1].extend(data)

    async def flush(self, status: int | None = None) -> None:
        await self.stream.write(self._data(status))

    async def flush_half(self, status: int) -> None:
        """As much as came through before the connection broke."""
        data = self._data(status)
        await self.stream.write(data[: len(data) // 2])

    def _data(self, status: int | None) -> bytes:
        if not self.packets:
            data = b"".join(part for _, part in self.parts)
        else:
            data = b"".join(_packet(kind, part) for kind, part in self.parts if part)
            if status is not None:
                data += _packet(EXIT, bytes([status & 255]))
        self.parts.clear()
        return data


def _packet(kind: int, data: bytes | bytearray) -> bytes:
    return struct.pack("<BI", kind, len(data)) + data


async def _shell(device: Device, stream: _Stream, name: str, command: str) -> None:
    flags = name.split(",")[1:]
    packets = "v2" in flags
    shell = Shell(device.phone, device.files)
    if device.phone.faults.strikes("mute"):
        await asyncio.Event().wait()  # until the other side gives up
    if command or name == "exec":
        output = _Output(stream, packets)
        status = await shell.run(command, output.out, output.err)
        if device.phone.faults.down:
            device.hang_up()  # it was `reboot`
        elif device.phone.faults.strikes("drop"):
            await output.flush_half(status)
            device.hang_up()
        else:
            await output.flush(status)
    else:
        await _interactive(stream, shell, packets, pty=not packets or "pty" in flags)


async def _reboot(device: Device, _stream: _Stream, _name: str, _argument: str) -> None:
    device.phone.faults.reboot()
    device.phone.home()
    device.hang_up()


async def _interactive(stream: _Stream, shell: Shell, packets: bool, pty: bool) -> None:
    """`adb shell` without a command: lines from stdin; with a terminal there also prompt and echo."""
    output = _Output(stream, packets, crlf=pty)
    prompt = f"{shell.variables['HOSTNAME']}:{{}} $ "

    async def show_prompt():
        if pty:
            output.out(prompt.format(shell.cwd).encode())
        await output.flush()

    await show_prompt()
    line, ended = bytearray(), False
    try:
        while not ended:
            data = await stream.some()
            if packets:
                stream.buffer[:0] = data
                kind, length = struct.unpack("<BI", await stream.exactly(5))
                data = await stream.exactly(length)
                ended = kind == CLOSE_STDIN
                if kind != STDIN:
                    data = b"\n" if ended and line else b""
            for byte in data:
                if pty and byte in (3, 4):  # Ctrl-C drops the line, Ctrl-D on an empty one ends the session
                    if byte == 4 and not line:
                        raise Exit(shell.status)
                    if byte == 3:
                        line.clear()
                        output.out(b"^C\n")
                        await show_prompt()
                elif pty and byte in (8, 127):
                    if line:
                        del line[-1:]
                        output.out(b"\b \b")
                elif byte in (10, 13):
                    output.out(b"\n" if pty else b"")
                    await shell.execute(line.decode(errors="replace"), output.out, output.err)
                    line.clear()
                    await show_prompt()
                else:
                    line.append(byte)
                    output.out(bytes([byte]) if pty else b"")
            await output.flush()
    except Exit as done:
        shell.status = done.status
    await output.flush(shell.status)


# ---- sync: ---------------------------------------------------------------------------------------


def _entry(entry: Entry | None, v2: bool) -> bytes:
    """The fields of a STAT or DENT answer behind its id; v2 is adb's `sync_stat_v2`."""
    if not v2:
        return struct.pack("<3I", *((entry.mode, entry.size, entry.mtime) if entry else (0, 0, 0)))
    if entry is None:
        return struct.pack("<I2Q4IQ3q", 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)  # ENOENT
    times = (entry.mtime,) * 3
    return struct.pack("<I2Q4IQ3q", 0, 1, 1, entry.mode, 1, 2000, 2000, entry.size, *times)


async def _sync(device: Device, stream: _Stream, _name: str, _argument: str) -> None:
    files = device.files
    while True:
        request, length = struct.unpack("<4sI", await stream.exactly(8))
        path = (await stream.exactly(length)).decode(errors="replace") if request != b"QUIT" else ""
        if request == b"QUIT":
            return
        try:
            if request in (b"STAT", b"STA2", b"LST2"):
                await stream.write(request + _entry(files.stat(path), request != b"STAT"))
            elif request in (b"LIST", b"LIS2"):
                await stream.write(_listing(files, path, request == b"LIS2"))
            elif request == b"RECV":
                data = files.read(path)
                chunks = (data[i : i + SYNC_CHUNK] for i in range(0, len(data), SYNC_CHUNK))
                answer = b"".join(b"DATA" + struct.pack("<I", len(chunk)) + chunk for chunk in chunks)
                await stream.write(answer + b"DONE" + bytes(4))
            elif request == b"SEND":
                await _receive(files, stream, path)
                await stream.write(b"OKAY" + bytes(4))
            else:
                raise OSError(22, "unknown sync request", request.decode(errors="replace"))
        except OSError as error:
            text = f"{error.filename}: {error.strerror}".encode()
            await stream.write(b"FAIL" + struct.pack("<I", len(text)) + text)


def _listing(files: Files, path: str, v2: bool) -> bytes:
    ident, size = (b"DNT2", 68) if v2 else (b"DENT", 12)
    answer = bytearray()
    for name, entry in (files.list(path) if files.is_dir(path) else {}).items():
        raw = name.encode()
        answer += ident + _entry(entry, v2) + struct.pack("<I", len(raw)) + raw
    return bytes(answer + b"DONE" + bytes(size + 4))


async def _receive(files: Files, stream: _Stream, target: str) -> None:
    path, _, mode = target.rpartition(",")
    data = bytearray()
    while True:
        kind, number = struct.unpack("<4sI", await stream.exactly(8))
        if kind == b"DONE":
            break
        if kind != b"DATA" or number > SYNC_CHUNK:
            raise OSError(22, f"unexpected {kind!r} in a push", path)
        chunk = await stream.exactly(number)
        if len(data) <= CAPACITY:  # what is too much is taken off the wire and refused at the end
            data += chunk
    files.write(path, bytes(data), mode=int(mode) if mode.isdigit() else 0o644, mtime=number, parents=True)
