"""A phone behind an adb server: commands, screenshots, what is on screen, typed errors. Usable alone.

    phone = AdbPhone("emulator-5554")                # or 192.168.1.5:5555, or R58M...
    phone.screenshot()                               # uint8 [H, W, 3]
    phone.ui().texts                                 # ["Search", "Chrome", ...]
    phone.tap(135, 240); phone.type_text("it's 50%"); phone.key(66)

Departs from the authors' code: typed text is quoted exactly once, for the phone's shell, and never meets a shell of
this machine (there: `shell=True`); the size is the override size; every command has a deadline, and a connection lost
in the middle is an error, not a short answer. Each command is one exchange with the server (adbutils: more, and 20 ms).
"""

from __future__ import annotations

import base64
import io
import re
import shlex
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress

import numpy as np
from PIL import Image

from ui_state import UiState, extract_png, is_locked, parse_focus, parse_ui


class AndroidEnvError(RuntimeError):
    """Something between us and the phone went wrong. `serial`: which; `state`: what; `remedy`: what to do."""

    def __init__(self, serial: str, state: str, remedy: str):
        super().__init__(f"adb: device {serial!r}: {state}: {remedy}")
        self.serial, self.state, self.remedy = serial, state, remedy


class DeviceOffline(AndroidEnvError):
    """The phone, or the adb server before it, cannot be reached, or went away in the middle of a command."""


class DeviceUnauthorized(AndroidEnvError):
    """The phone does not trust this machine's key."""


class AdbTimeout(AndroidEnvError):
    """A command did not end before its deadline."""


class ScreenshotError(AndroidEnvError):
    """`screencap` gave no whole PNG, several times in a row."""


class ScreenUnreadable(AndroidEnvError):
    """It cannot be had: no hierarchy, as it never rests (a playing video, say), or no picture of a secure window."""


class ScreenLocked(AndroidEnvError):
    """Its lock screen is shown: what a policy does there says nothing about it."""

_LOST, _CHECK = "connection lost in the middle of a command", "check the phone and `adb devices`"
NETWORK_SERIAL = re.compile(r"[\w.\-\[\]:%]+:\d+")
EMULATOR_SERIAL = re.compile(r"emulator-(\d+)")
_SERVER_TIMEOUT, _UP_TIMEOUT = 3.0, 3.0         # s that a server needs to be back; a keyboard, a home screen to be up
_WAKE = "input keyevent 224; wm dismiss-keyguard"
LOCK_COMMAND = "dumpsys window | grep -E 'Lockscreen=|isKeyguardShowing='"
_FOCUS_COMMAND = "dumpsys window | grep -E 'mCurrentFocus|mFocusedApp|Lockscreen=|isKeyguardShowing='"
_DUMP = "uiautomator dump /dev/tty"
# A dump that fails exits with 0 all the same: without `rm` the screen before would be taken for this one.
_DUMP_TO_FILE = "rm -f {0}; uiautomator dump {0} >/dev/null && cat {0}".format("/sdcard/window_dump.xml")
_ADB_KEYBOARD = "com.android.adbkeyboard/.AdbIME"
_KEYBOARD_FILE = "/data/local/tmp/distrl-keyboard"  # on the phone: the keyboard that was set before


class _Exchange:
    """One connection to the adb server with one deadline for all it does."""

    def __init__(self, serial: str, host: str, port: int, timeout: float):
        self.serial, self.timeout, self.deadline = serial, timeout, time.monotonic() + timeout
        try:
            self.socket = socket.create_connection((host, port), timeout=timeout)
        except OSError as error:
            raise DeviceOffline(serial, f"no adb server at {host}:{port} ({error})",
                                f"start it with `adb -P {port} start-server`") from error
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> _Exchange:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def recv(self, size: int) -> bytes:
        left = self.deadline - time.monotonic()
        try:
            if left <= 0:
                raise TimeoutError
            self.socket.settimeout(left)
            return self.socket.recv(size)
        except TimeoutError:
            raise AdbTimeout(self.serial, f"no answer within {self.timeout:g} s",
                             "check that it is awake and its link is fine, or raise the timeout") from None
        except OSError as error:
            raise DeviceOffline(self.serial, f"{_LOST} ({error})", _CHECK) from error

    def exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            chunk = self.recv(size - len(data))
            if not chunk:
                raise DeviceOffline(self.serial, _LOST, _CHECK)
            data += chunk
        return bytes(data)

    def to_the_end(self) -> bytes:
        return b"".join(iter(lambda: self.recv(1 << 18), b""))

    def request(self, service: str) -> None:
        data = service.encode()
        if len(data) > 0xFFFF:
            raise AndroidEnvError(self.serial, f"command of {len(data)} bytes", "send at most 65535 bytes")
        try:
            self.socket.sendall(b"%04x" % len(data) + data)
        except OSError as error:
            raise DeviceOffline(self.serial, f"{_LOST} ({error})", _CHECK) from error
        if self.exactly(4) == b"OKAY":
            return
        why = " ".join(self.answer().split())
        if "unauthorized" in why or "authorizing" in why:
            raise DeviceUnauthorized(self.serial, "unauthorized", "accept the prompt on its screen")
        raise DeviceOffline(self.serial, why, "see `adb devices`; plug it in again, or `adb connect` it")

    def answer(self) -> str:
        """A string with its length before it, as host services and failures answer."""
        size = self.exactly(4)
        try:
            return self.exactly(int(size, 16)).decode("utf-8", "replace")
        except ValueError:
            raise DeviceOffline(self.serial, f"answer {size!r} is not adb's", "is that an adb server's port?") from None


def parse_devices(listing: str) -> dict[str, str]:
    """{serial: state} of the text of `adb devices [-l]`; states: device, offline, unauthorized, no permissions..."""
    states = {}
    for line in listing.splitlines():
        parts = line.split("\t" if "\t" in line else None, 1)  # a serial may hold a blank: "adb-X (2)._adb-tls..."
        if len(parts) == 2 and not line.startswith(("*", "List of", "adb ")):
            states[parts[0]] = "no permissions" if parts[1].startswith("no perm") else parts[1].split()[0]
    return states


def list_devices(host: str = "127.0.0.1", port: int = 5037, timeout: float = 5.0) -> dict[str, str]:
    """What the adb server at `host:port` knows: {serial: state}; state "device" is usable."""
    with _Exchange("any", host, port, timeout) as exchange:
        exchange.request("host:devices")
        return parse_devices(exchange.answer())


def input_commands(text: str) -> list[str]:
    """The commands for a phone's shell that type `text` (ASCII; newline is ENTER): quoted once for that
    shell, and `input text` reads %s as a blank, so a blank is sent as %s and a literal %s in two pieces."""
    commands = []
    for piece in re.split(r"(\n|\t)", text.replace("\r\n", "\n").replace("\r", "\n")):
        if piece in ("\n", "\t"):
            commands.append(f"input keyevent {66 if piece == chr(10) else 61}")
        else:
            parts = re.split(r"(?<=%)(?=s)", piece)
            commands += ["input text " + shlex.quote(part.replace(" ", "%s")) for part in parts if part]
    return commands


class AdbPhone:
    """A phone behind an adb server: `emulator-5554`, `192.168.1.5:5555`, `R58M...`. Every command is one exchange with
    the server, ends within `timeout` seconds, and raises an `AndroidEnvError` when the phone is not there."""

    def __init__(self, serial: str, host: str = "127.0.0.1", port: int = 5037, timeout: float = 20.0):
        self.serial, self.host, self.port, self.timeout = serial, host, port, timeout
        self.retries = 0                                # screenshots that had to be asked for again
        self.boot_timeout = 60.0                        # s that `recover` waits
        self.on_wait: Callable[[], None] = lambda: None # called while `recover` waits
        self._size: tuple[int, int] | None = None
        self._to_file, self._has_adb_keyboard = False, None         # `ui`; None: not asked yet

    def _host(self, service: str, timeout: float) -> str:
        with _Exchange(self.serial, self.host, self.port, timeout) as exchange:
            exchange.request(service)
            return exchange.answer()

    def run(self, command: str, timeout: float | None = None) -> tuple[bytes, bytes, int]:
        """(stdout, stderr, exit code) of a command in the phone's shell. The code proves that it ran to its end."""
        with _Exchange(self.serial, self.host, self.port, timeout or self.timeout) as exchange:
            exchange.request(f"host:transport:{self.serial}")
            exchange.request(f"shell,v2,raw:{command}")
            streams = {1: bytearray(), 2: bytearray()}
            while True:
                kind, size = struct.unpack("<BI", exchange.exactly(5))
                data = exchange.exactly(size)
                if kind == 3:
                    return bytes(streams[1]), bytes(streams[2]), data[0]
                if kind in streams:
                    streams[kind] += data

    def shell(self, command: str, timeout: float | None = None, check: bool = False) -> str:
        """What `command` printed (stdout, then stderr). `check`: an exit code but 0 is an AndroidEnvError."""
        out, err, code = self.run(command, timeout)
        text = (out + err).decode("utf-8", "replace")
        if check and code:
            remedy = "run it with `adb shell` to see why"
            if "INJECT_EVENTS" in text:
                remedy = "switch on `USB debugging (Security settings)` in its developer options"
            raise AndroidEnvError(self.serial, f"`{command[:200]}` exited with {code}: {text.strip()[:200]}", remedy)
        return text

    def exec_out(self, command: str, timeout: float | None = None) -> bytes:
        """The raw output of `command`, to the connection's end: the caller must know what is whole."""
        with _Exchange(self.serial, self.host, self.port, timeout or self.timeout) as exchange:
            exchange.request(f"host:transport:{self.serial}")
            exchange.request(f"exec:{command}")
            return exchange.to_the_end()

    def screenshot(self, attempts: int = 3) -> np.ndarray:
        """The screen, uint8 [H, W, 3], of `size`. A black one is asked for again after a wake-up. ScreenUnreadable."""
        for attempt in range(attempts):
            try:
                data = self.exec_out("screencap -p")
                if data and not any(data):                          # later Androids draw it black
                    raise ScreenUnreadable(self.serial, "a secure window, an incognito tab say, is in front",
                                           "leave out tasks that open one on Android 8 and 9")
                with Image.open(io.BytesIO(extract_png(data))) as image:
                    pixels = np.asarray(image.convert("RGB"))       # convert loads it whole
                if not pixels[::8, ::8].any() and not pixels.any():
                    self.shell(_WAKE)
                    raise ValueError("all black: it is asleep or locked, or shows a secure window")
                self._check_size(pixels.shape[1], pixels.shape[0])
                return pixels
            except (ValueError, OSError) as error:
                why, self.retries = error, self.retries + (attempt + 1 < attempts)
        why = f"no screenshot in {attempts} tries ({why})"
        raise ScreenshotError(self.serial, why, "try `adb exec-out screencap -p`")

    def _check_size(self, width: int, height: int) -> None:
        if self._size == (height, width):               # it was turned
            self._size = (width, height)
        if self._size not in (None, (width, height)):
            self._size = None                           # another `wm size`, or a fold
            if self.size != (width, height):
                raise ValueError(f"{width}x{height} pixels on a screen of {self.size}")

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) in pixels as the screen is held now: the override size where one is set."""
        if self._size is None:
            text = self.shell("wm size; dumpsys display | grep -E 'orientation='")
            sizes = dict(re.findall(r"(Physical|Override) size: (\d+x\d+)", text))
            width, height = map(int, sizes.get("Override", sizes.get("Physical", "0x0")).split("x"))
            if not width or not height:
                raise AndroidEnvError(self.serial, f"`wm size` says {text[:99]!r}", "wait for its boot")
            turned = re.search(r"orientation=(\d)", text)
            self._size = (height, width) if turned and int(turned[1]) % 2 else (width, height)
        return self._size

    def ui(self, attempts: int = 3) -> UiState:
        """What the screen holds, in one exchange: focused window and visible nodes. ScreenLocked, ScreenUnreadable."""
        why = ""
        for _ in range(attempts):
            out, err, _ = self.run(f"{_FOCUS_COMMAND}; {_DUMP_TO_FILE if self._to_file else _DUMP}")
            self._require_unlocked(out.partition(b"<hierarchy")[0].decode("utf-8", "replace"))
            try:
                return parse_ui(out)
            except ValueError as error:
                why = f"{error} {err[:200].decode('utf-8', 'replace')}"
                if not re.search("idle state|null root", why):  # without a terminal it cannot open /dev/tty
                    self._to_file = not self._to_file
        raise ScreenUnreadable(self.serial, f"no UI state in {attempts} tries ({why.strip()})",
                               "try `adb shell uiautomator dump`; screens that never rest cannot be read")

    def foreground(self) -> tuple[str, str, str]:
        """(package, activity, package of the app under a dialog), "" where unknown. Cheaper than `ui`. ScreenLocked."""
        text = self.shell(_FOCUS_COMMAND)
        self._require_unlocked(text)
        return parse_focus(text)

    def _require_unlocked(self, text: str) -> None:
        if is_locked(text):
            raise ScreenLocked(self.serial, "its screen is locked",
                               "unlock it, and set its screen lock to none or swipe: nobody can enter a PIN for you")

    def unlock(self) -> None:
        """Wakes it and puts its lock screen away. ScreenLocked: a PIN, a pattern or a password keeps it."""
        self.key(224)                                   # checked: some phones refuse all input
        self.shell("wm dismiss-keyguard")
        deadline = time.monotonic() + _UP_TIMEOUT
        while time.monotonic() < deadline and is_locked(self.shell(LOCK_COMMAND)):
            time.sleep(0.1)                             # it slides away
        self.foreground()

    def tap(self, x: int, y: int) -> None:
        self.shell(f"input tap {x} {y}", check=True)

    def swipe(self, x0: int, y0: int, x1: int, y1: int, ms: int = 500) -> None:
        self.shell(f"input swipe {x0} {y0} {x1} {y1} {ms}", check=True)

    def key(self, code: int) -> None:
        self.shell(f"input keyevent {code}", check=True)

    def type_text(self, text: str) -> bool:
        """Types into the focused field; blank text does nothing. False: nothing was typed, since the text is not
        ASCII and no ADBKeyBoard is installed."""
        if not text.strip():
            return True
        if all(" " <= c <= "~" or c in "\n\r\t" for c in text):
            self.shell(" && ".join(input_commands(text)), check=True)
            return True
        if self.has_adb_keyboard():
            payload = base64.b64encode(text.encode("utf-8", "replace")).decode()
            self._use_adb_keyboard()
            self.shell(f"am broadcast -a ADB_INPUT_B64 --es msg {payload}", check=True)
        return self.has_adb_keyboard()

    def has_adb_keyboard(self) -> bool:
        """Is ADBKeyBoard installed, which types any text?"""
        if self._has_adb_keyboard is None:
            self._has_adb_keyboard = _ADB_KEYBOARD in self.shell("ime list -s -a")
        return self._has_adb_keyboard

    def _use_adb_keyboard(self) -> None:
        """Sets it, and waits until it is up (3 s at most): a broadcast that comes too early is lost."""
        current = "settings get secure default_input_method"
        if _ADB_KEYBOARD not in self.shell(current):
            keep = f"{current} > {_KEYBOARD_FILE}"      # for `restore_keyboard`
            self.shell(f"{keep} && ime enable {_ADB_KEYBOARD} && ime set {_ADB_KEYBOARD}", check=True)
            up = re.escape(f"mCurId={_ADB_KEYBOARD} ") + r"mHaveConnect(ion)?=true mBoundToMethod=true"
            deadline = time.monotonic() + _UP_TIMEOUT
            while not re.search(up, self.shell("dumpsys input_method")) and time.monotonic() < deadline:
                time.sleep(0.1)

    def restore_keyboard(self, timeout: float = 10.0) -> None:
        """Sets the keyboard again that was there before ADBKeyBoard: noted on the phone, as a run may be killed."""
        found = self.shell(f"cat {_KEYBOARD_FILE} 2>/dev/null && settings get secure default_input_method", timeout)
        if found := found.split():
            back = f"ime set {shlex.quote(found[0])} || ime reset; " * (len(found) == 2 and _ADB_KEYBOARD in found[1])
            self.shell(f"{back}rm -f {_KEYBOARD_FILE}", timeout)

    @property
    def virtual(self) -> bool:
        """An emulator or a simulated phone: nothing on it belongs to anyone."""
        return "1" in self.shell("getprop ro.boot.qemu; getprop ro.kernel.qemu").split()

    def reboot(self) -> None:
        """Restarts it; `recover` waits for its boot. Only for a phone that is yours."""
        with _Exchange(self.serial, self.host, self.port, self.timeout) as exchange:
            exchange.request(f"host:transport:{self.serial}")
            exchange.request("reboot:")

    def attach(self, timeout: float = 5.0) -> None:
        """Asks the adb server for a new connection to it: a network phone is disconnected and connected, since the
        server believes in dead connections (`connect` alone: "already connected"); an emulator is announced to it
        as at its start; a USB phone's is restarted. Whether it worked shows in `recover`."""
        services = [f"host-serial:{self.serial}:reconnect"]
        if NETWORK_SERIAL.fullmatch(self.serial):
            services = [f"host:disconnect:{self.serial}", f"host:connect:{self.serial}"]
        elif emulator := EMULATOR_SERIAL.fullmatch(self.serial):
            dead = list_devices(self.host, self.port).get(self.serial) == "offline"
            services = services * dead + [f"host:emulator:{int(emulator[1]) + 1}"]
        for service in services:                        # FAIL for an unknown serial; no answer to `emulator:`
            with suppress(AndroidEnvError):
                self._host(service, timeout)

    def recover(self, timeout: float | None = None) -> None:
        """After an outage: until the phone is online and booted, or the last error. `timeout`: `boot_timeout`."""
        began, timeout = time.monotonic(), self.boot_timeout if timeout is None else timeout
        deadline, pause = began + timeout, max(0.5, timeout / 8)
        by_itself = not (NETWORK_SERIAL.fullmatch(self.serial) or EMULATOR_SERIAL.fullmatch(self.serial))
        attach_at = time.monotonic() + pause * by_itself    # as USB phones do, as a rule
        while True:
            left = deadline - time.monotonic()
            try:
                if time.monotonic() >= attach_at:
                    attach_at = time.monotonic() + pause
                    self.attach(max(0.2, min(left, 5.0)))
                if "1" in self.shell("getprop sys.boot_completed", max(0.2, min(left, 5.0, self.timeout))).split():
                    self._size = self._has_adb_keyboard = None
                    return
                raise AdbTimeout(self.serial, "not booted", "wait for its home screen")
            except AndroidEnvError as error:
                last = error
                if "not found" in error.state and EMULATOR_SERIAL.fullmatch(self.serial):
                    attach_at = 0.0                         # nobody announces it to the server but we
                if error.state.startswith("no adb server"):   # it comes back soon, or not by itself
                    deadline = min(deadline, began + _SERVER_TIMEOUT)
            if time.monotonic() >= deadline:
                break
            self.on_wait()
            time.sleep(0.1)                                 # a phone says in no other way that it is there
        state = "unknown"
        with suppress(AndroidEnvError):
            state = list_devices(self.host, self.port).get(self.serial, "not listed")
        where = f"{last.state} (state {state}, server {self.host}:{self.port}, waited {deadline - began:g} s)"
        raise type(last)(self.serial, where, last.remedy) from last
