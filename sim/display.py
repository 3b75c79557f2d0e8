"""The phone's display as adb sees it: `wm size`, rotation, `screencap`, `uiautomator dump`, where a tap lands.

    adb shell wm size 540x960                     # an override size; `wm size reset`
    adb shell settings put system user_rotation 1 # turned, as `settings put system accelerometer_rotation 0` leaves it

Departs from a phone: apps are laid out once, at the phone's own size; another size or a turn stretches that picture
and its hierarchy. `screencap` is always a PNG.
"""

from __future__ import annotations

import asyncio
import io
import re
from typing import TYPE_CHECKING

from PIL import Image

from sim import draw
from sim.tools import split_options

if TYPE_CHECKING:
    from sim.shell import Process

_BOUNDS = re.compile(r'bounds="\[(-?\d+),(-?\d+)\]\[(-?\d+),(-?\d+)\]"')
LOCK_SCREEN = (
    "<?xml version='1.0' encoding='UTF-8' standalone='yes' ?>"
    '<hierarchy rotation="0"><node text="Swipe up to unlock" package="com.android.systemui" bounds="[0,0][{},{}]"/>'
    "</hierarchy>"
)


class Display:
    """What is between the phone's picture and whoever looks at it or taps on it."""

    def __init__(self, phone):
        self.phone = phone
        self.override: tuple[int, int] | None = None  # (width, height), held upright
        self._drawn: tuple[tuple, bytes] = ((), b"")

    @property
    def rotation(self) -> int:
        """Quarter turns, 0 to 3."""
        return int(self.phone.props.get("settings.system/user_rotation", "0")) % 4

    @property
    def own(self) -> tuple[int, int]:
        return self.phone.width, self.phone.height

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) as it is held now."""
        width, height = self.override or self.own
        return (height, width) if self.rotation % 2 else (width, height)

    def to_phone(self, x: float, y: float) -> tuple[float, float]:
        """Where a finger at (x, y) of this size is on the phone's own picture."""
        if self.size == self.own:
            return x, y
        return x * self.own[0] / self.size[0], y * self.own[1] / self.size[1]

    def png(self) -> bytes:
        png = self.phone.png()
        if self.size == self.own:
            return png
        state = (self.phone.version, self.size)
        if self._drawn[0] != state:
            with Image.open(io.BytesIO(png)) as image:
                self._drawn = state, draw.encode_png(image.resize(self.size))
        return self._drawn[1]

    def hierarchy_xml(self) -> str:
        xml = self.phone.hierarchy_xml().replace('rotation="0"', f'rotation="{self.rotation}"', 1)
        if self.size == self.own:
            return xml
        (own_x, own_y), (width, height) = self.own, self.size

        def scaled(found: re.Match) -> str:
            x0, y0, x1, y1 = map(int, found.groups())
            return (
                f'bounds="[{x0 * width // own_x},{y0 * height // own_y}]'
                f'[{x1 * width // own_x},{y1 * height // own_y}]"'
            )

        return _BOUNDS.sub(scaled, xml)


async def screencap(p: Process):
    _, names = split_options(p.args, "d")
    faults = p.phone.faults
    if faults.strikes("no-screenshot"):
        p.out("screencap: exit status 1\n")
        return 1
    display = p.phone.display
    plain = "#000000" if faults.on("asleep") else "#101820" if faults.locked else ""
    png = draw.encode_png(Image.new("RGB", display.size, plain)) if plain else display.png()
    png = faults.damaged(png)
    if names and names[0] not in ("/dev/stdout", "/dev/tty", "-"):
        p.files.write(p.path(names[0]), png)
    else:
        p.out(png)
    await asyncio.sleep(p.phone.delay("screencap"))


def wm(p: Process):
    display = p.phone.display
    if p.args == ["size"]:
        p.out("Physical size: {}x{}\n".format(*display.own))
        if display.override:
            p.out("Override size: {}x{}\n".format(*display.override))
    elif p.args == ["size", "reset"]:
        display.override = None
    elif len(p.args) == 2 and p.args[0] == "size" and (found := re.fullmatch(r"(\d{2,4})x(\d{2,4})", p.args[1])):
        display.override = int(found[1]), int(found[2])
    elif p.args == ["dismiss-keyguard"]:
        p.phone.faults.dismiss_keyguard()
    elif p.args == ["density"]:
        p.out(f"Physical density: {p.phone.props.get('ro.sf.lcd_density', '160')}\n")
    else:
        known = "`wm size [WxH|reset]`, `wm density` and `wm dismiss-keyguard`"
        return p.fail(f"this phone only knows {known}, not {p.args}", 255)


def dump_window(p: Process) -> str:
    locked, display = p.phone.faults.locked, p.phone.display
    focus = "NotificationShade" if locked else p.phone.focus_component()  # the lock screen is a part of it
    size, own = "{}x{}".format(*display.size), "{}x{}".format(*display.own)
    screen = p.phone.stack[-1]  # the activity in front, under a dialog that has the focus
    return (
        f"WINDOW MANAGER WINDOWS (dumpsys window windows)\n  Window #0 Window{{5f3759d u0 {focus}}}:\n"
        f"    mDisplayId=0 mSession=Session{{1f1f1f}}\n"
        f"WINDOW MANAGER DISPLAY CONTENTS (dumpsys window displays)\n"
        f"  Display: mDisplayId=0\n"
        f"    init={own} 160dpi cur={size} app={size}\n    mCurrentRotation={display.rotation}\n"
        f"  mCurrentFocus=Window{{5f3759d u0 {focus}}}\n"
        f"  mFocusedApp=ActivityRecord{{2b992b u0 {screen.package}/{screen.activity} t12}}\n"
        f"    mShowingDream=false mDreamingLockscreen={str(locked).lower()}\n"
    )


def dump_display(p: Process) -> str:
    display = p.phone.display
    width, height = display.size
    return (
        f"DISPLAY MANAGER (dumpsys display)\n  mViewports=[DisplayViewport{{type=INTERNAL, valid=true, "
        f"isActive=true, displayId=0, orientation={display.rotation}, logicalFrame=Rect(0, 0 - {width}, {height}), "
        f"deviceWidth={width}, deviceHeight={height}}}]\n"
    )


def uiautomator(p: Process):
    if p.args[:1] != ["dump"]:
        return p.fail("Usage: uiautomator dump [--compressed] [file]", 1)
    names = [word for word in p.args[1:] if not word.startswith("--")]
    path = names[0] if names else "/sdcard/window_dump.xml"
    if p.phone.faults.strikes("restless"):
        return p.err("ERROR: could not get idle state.\n")
    xml = LOCK_SCREEN.format(*p.phone.display.size) if p.phone.faults.locked else p.phone.display.hierarchy_xml()
    if path in ("/dev/tty", "/dev/stdout"):
        p.out(xml)
    else:
        p.files.write(p.path(path), xml.encode())
    p.out(f"UI hierchary dumped to: {path}\n")  # Android's own spelling
