"""What goes wrong between adb and a phone, on demand: each fault has a name and a number of times.

    python -m sim --num-phones 3 --fault none --fault offline --fault unauthorized
    phones.fault(serial, "drop", 3)               # phones of `start_phones`; "none" heals

A reboot (`adb reboot`) takes `boot_seconds`: the first half without a connection, the second with
`sys.boot_completed` still empty and no service up.
"""

from __future__ import annotations

import time

KINDS = {
    "offline": "connects, but never greets: `adb devices` says offline",
    "unauthorized": "does not trust the server's key",
    "mute": "takes commands and never answers",
    "drop": "the connection breaks in the middle of a command's output",
    "warning": "a warning before the screenshot's PNG, and text behind it",
    "crlf": "the screenshot's PNG with each line feed as carriage return and line feed",
    "no-screenshot": "screencap prints an error instead of a PNG",
    "cut-screenshot": "half of the screenshot's PNG",
    "asleep": "the screen is off, and its picture black, until a WAKEUP key",
    "locked": "the lock screen is shown until `wm dismiss-keyguard`",
    "pin": "the lock screen is shown, and a PIN keeps it",
    "restless": "the screen never rests: uiautomator dumps nothing, and exits with 0 as Android's does",
    "no-network": "no validated network",
}
BEFORE_BOOT = frozenset({"getprop", "setprop", "reboot"})  # what a phone can do before its services are up


class Faults:
    """One phone's faults. `strikes(kind)` says whether one is due, and counts it."""

    def __init__(self) -> None:
        self.boot_seconds = 0.5
        self.boots = 1  # so far
        self._left: dict[str, int | None] = {}  # None: until healed
        self._booting = (0.0, 0.0)  # when it can be connected to again, when it is up

    def set(self, kind: str, times: int = 0) -> None:
        """From now on, `times` times, 0: until "none" heals all. Raises ValueError for an unknown kind."""
        if kind == "none":
            self._left.clear()
        elif kind not in KINDS:
            raise ValueError(f"unknown fault {kind!r}, want none, {', '.join(KINDS)}")
        else:
            self._left[kind] = times or None

    def on(self, kind: str) -> bool:
        return kind in self._left

    def wake(self) -> None:
        self._left.pop("asleep", None)

    @property
    def locked(self) -> bool:
        return self.on("locked") or self.on("pin")

    def dismiss_keyguard(self) -> None:
        self._left.pop("locked", None)

    def strikes(self, kind: str) -> bool:
        if kind not in self._left:
            return False
        left = self._left[kind]
        if left is not None:
            self._left[kind] = left - 1
            if left == 1:
                del self._left[kind]
        return True

    def damaged(self, png: bytes) -> bytes:
        """A screenshot as it arrives."""
        if self.strikes("warning"):
            png = b"[Warning] Multiple displays were found, but no display id was specified!\n" + png + b"trailing"
        if self.strikes("crlf"):
            png = png.replace(b"\n", b"\r\n")
        return png[: len(png) // 2] if self.strikes("cut-screenshot") else png

    def reboot(self) -> None:
        self.boots += 1
        now = time.monotonic()
        self._booting = now + self.boot_seconds / 2, now + self.boot_seconds

    @property
    def seconds_down(self) -> float:
        """Until a booting phone can be reached."""
        return max(0.0, self._booting[0] - time.monotonic())

    @property
    def down(self) -> bool:
        """Not to be reached: offline on purpose, or early in its boot."""
        return self.on("offline") or self.seconds_down > 0

    @property
    def booted(self) -> bool:
        return time.monotonic() >= self._booting[1]
