"""A simulated phone: apps and their back stacks, windows over them, focus, keyboard, loads that go wrong.

Everything random comes from two seeds: the phone's own (home layout, wallpaper, switches' first positions),
fixed for its life, and the episode's (`reseed`: dialogs, failed and slow loads, contents). With the same
seeds, the same inputs give the same bytes (at latency 0; above it loads also take time on the clock).

    phone = Phone(0, seed=1)
    phone.tap(40, 220); phone.type_text("macbook air"); phone.key(66)
    open("screen.png", "wb").write(phone.png())

Not thread-safe: one thread (an event loop, say) owns a phone.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable

from sim import draw
from sim.apps import first_screen
from sim.catalog import APPS, GOOGLE, LAUNCHER, LAUNCHER_ACTIVITY, SERVICES, SETTINGS, App, app_named
from sim.display import Display
from sim.faults import Faults
from sim.hardware import heavy_tail, properties
from sim.hierarchy import hierarchy_xml
from sim.launcher import Drawer, Home
from sim.ui import HEIGHT, KEYBOARD_TOP, STATUS_BAR, WIDTH, Screen, inside
from sim.windows import ErrorPage, LoadingPage, NotificationShade, NotResponding, PermissionDialog

HOME, BACK, DELETE, SUBMITS = 3, 4, 67, (66, 160, 23)  # enter, the number pad's enter, the pad's centre
_KEY_TEXT = {62: " ", **{29 + i: chr(97 + i) for i in range(26)}, **{7 + i: str(i) for i in range(10)}}
_WALLPAPERS = ("#0b3d5c", "#3b2a5a", "#204b3a", "#5a2a33", "#2b2f36", "#4a3b1f")
LONGEST_LOAD = 5.0  # s, times the latency scale
_TAP_SLOP = 8  # px a finger may move and still tap


class Phone:
    """Probabilities: `dialogs` of a permission question at an app's start (a sixth of it of "isn't
    responding", there and at page loads), `failed_loads` and `slow_loads` of each page load.
    """

    width, height = WIDTH, HEIGHT

    def __init__(self, index: int, seed: int = 0, *, dialogs: float = 0.3, failed_loads: float = 0.2,
                 slow_loads: float = 0.1, latency: float = 0.0):
        for name, value in (("dialogs", dialogs), ("failed_loads", failed_loads), ("slow_loads", slow_loads)):
            if not 0 <= value <= 1:
                raise ValueError(f"{name} is a probability, got {value}: give a number from 0 to 1")
        if latency < 0:
            raise ValueError(f"latency is a factor on time, got {latency}: give 0 (instant) or more")
        self.index, self.seed, self.latency = index, seed, latency
        self.dialogs, self.failed_loads, self.slow_loads = dialogs, failed_loads, slow_loads
        self.serial_name, self.model = f"SIM{seed:04d}{index:03d}", "Pixel 4 (simulated)"
        self.props = properties(self.serial_name, self.model, seed)
        layout = self.own_random("layout")
        self.home_order = [app.package for app in APPS.values() if app.home]
        layout.shuffle(self.home_order)
        self.wallpaper = layout.choice(_WALLPAPERS)
        self.apps: dict[str, App] = dict(APPS)  # package -> app, as installed
        self.answered: set[str] = set()  # packages whose permission question was answered
        self.windows: list[Screen] = []  # dialogs and the shade, the topmost last
        self.version = 0  # of what is on the screen; grows with every change
        self.display, self.faults = Display(self), Faults()
        self._data: dict[str, dict] = {}
        self._stacks: dict[str, list[Screen]] = {LAUNCHER: [Home(self)]}
        self._front = LAUNCHER
        self._drawn: tuple[int, bytes] = (-1, b"")
        self._times = self.own_random("times")
        self.reseed(seed)

    # ---- seeds, time, data

    def own_random(self, purpose: str) -> random.Random:
        """A generator that is the phone's own for that purpose, the same in every episode."""
        return random.Random(f"{purpose} {self.seed} {self.index}")

    def reseed(self, seed: int) -> None:
        """Start an episode's randomness; layout and switches' first positions stay."""
        self.rng = random.Random(f"episode {seed}")

    def delay(self, kind: str = "input") -> float:
        """Seconds this takes: an input latency on average with a heavy tail, a screencap 0.02 * latency."""
        if self.latency == 0 or kind not in ("input", "screencap"):
            return 0.0
        return self.latency * (0.02 if kind == "screencap" else heavy_tail(self._times))

    def data(self, package: str) -> dict:
        """The app's stored state; `clear` empties it."""
        return self._data.setdefault(package, {})

    # ---- for apps

    @property
    def stack(self) -> list[Screen]:
        """The foreground app's screens, the visible one last."""
        return self._stacks[self._front]

    @property
    def top(self) -> Screen:
        """The window that has the focus."""
        return self.windows[-1] if self.windows else self.stack[-1]

    @property
    def focused(self) -> str | None:
        """The focused field's id, None without keyboard."""
        return self.top.focused

    @property
    def keyboard(self) -> bool:
        return self.top.focused is not None

    def changed(self) -> None:
        """Something on the screen may look different now."""
        self.version += 1
        screen = self.top
        room = (KEYBOARD_TOP if self.keyboard else HEIGHT) - STATUS_BAR
        screen.scroll = max(0, min(screen.scroll, screen.content_height - room))

    def start(self, screen: Screen) -> None:
        """Show a screen on top of the foreground app's others."""
        self.stack[-1].focused = None
        self.stack.append(screen)
        if screen.initial_focus:
            self.focus(screen.initial_focus)
        self.changed()

    def replace(self, screen: Screen) -> None:
        """Show a screen in place of the foreground app's last one."""
        self.stack.append(screen)
        del self.stack[-2]
        if screen.initial_focus:
            self.focus(screen.initial_focus)
        self.changed()

    def back(self) -> None:
        """Leave the last screen; leaving an app's only one leaves the app."""
        if len(self.stack) > 1:
            self.stack.pop()
        elif self._front != LAUNCHER:
            del self._stacks[self._front]
            self._front = LAUNCHER
        self.changed()

    def home(self) -> None:
        """The home screen, whatever was there."""
        self.windows.clear()
        self.stack[-1].focused = None
        self._front = LAUNCHER
        self._stacks[LAUNCHER] = [Home(self)]
        self.changed()

    def focus(self, field_id: str | None) -> None:
        """Give a field of the visible app screen the keyboard, or take it away."""
        screen = self.stack[-1]
        screen.focused, screen.selected = field_id, False
        if field_id is not None:
            for w in screen.widgets():
                if w.kind == "field" and w.id == field_id:
                    screen.fields.setdefault(field_id, w.text)
                    screen.selected = w.select_all and bool(screen.fields[field_id])
            screen.fields.setdefault(field_id, "")
        self.changed()

    def launch(self, package: str) -> None:
        """An app to the front: as it was left, or anew, and then perhaps with a dialog."""
        app = self.apps.get(package)
        if app is None:
            raise KeyError(f"no app {package!r} on this phone: install it first (packages() lists them)")
        self.windows.clear()
        self.stack[-1].focused = None
        del self._stacks[LAUNCHER][1:]
        new = package not in self._stacks
        if new:
            cls = first_screen(package)
            screen = cls(self)
            screen.package = screen.package or package
            screen.activity = screen.activity or app.activity
            self._stacks[package] = [screen]
        self._front = package
        if new:
            if screen.initial_focus:
                self.focus(screen.initial_focus)
            asks, stalls = self.rng.random(), self.rng.random()
            if asks < self.dialogs and package != SETTINGS and package not in self.answered:
                self.windows.append(PermissionDialog(self, app))
            elif stalls < self.dialogs / 6:
                self.windows.append(NotResponding(self, app))
        self.changed()

    def open_search(self) -> None:
        """The home screen's search bar: Google anew, with the keyboard up."""
        self._stacks.pop(GOOGLE, None)
        self.launch(GOOGLE)
        self.focus("search_box")

    def load(
        self,
        make_page: Callable[[], Screen],
        site: str = "",
        *,
        odds: float | None = None,
        replace: bool = False,
    ) -> None:
        """Load a page in the foreground app: at once, slowly, or into an error page with Retry.

        `replace` puts it in the last screen's place, else it goes on top. `odds` of failing: the phone's own.
        """
        odds = self.failed_loads if odds is None else odds
        fails, slow, stalls = self.rng.random(), self.rng.random(), self.rng.random()
        # A page that is slower than a patient user waits would be a failed load.
        seconds = self.latency * min(3.0 * heavy_tail(self.rng), LONGEST_LOAD)
        like = self.stack[-1]
        if fails < odds:
            page: Screen = ErrorPage(self, like, make_page, site, odds)
        elif slow < self.slow_loads and self.latency > 0:
            page = LoadingPage(self, like, make_page, site, time.monotonic() + seconds)
        else:
            page = make_page()
        (self.replace if replace else self.start)(page)
        if stalls < self.dialogs / 6 and self._front in self.apps:
            self.windows.append(NotResponding(self, self.apps[self._front]))
            self.changed()

    def apps_by_label(self) -> list[App]:
        return sorted(self.apps.values(), key=lambda app: app.label.lower())

    # ---- input

    def tap(self, x: float, y: float) -> None:
        self._finish_load()
        x, y = int(x), int(y)
        if y < STATUS_BAR:
            return
        if self.keyboard and y >= KEYBOARD_TOP:
            if inside(draw.ENTER_KEY, x, y):
                self._submit()
            elif inside(draw.HIDE_KEY, x, y):
                self.focus(None)
            return
        for w in reversed(self.top.shown()):
            if inside(w.bounds, x, y) and (w.on_tap or w.kind in ("field", "box")):
                if w.kind == "field":
                    self.focus(w.id)
                if w.on_tap:
                    w.on_tap()
                self.changed()
                return

    def swipe(self, x0: float, y0: float, x1: float, y1: float, ms: int = 300) -> None:
        """A finger's way: scrolls what scrolls; from the top edge down opens the shade."""
        self._finish_load()
        if math.hypot(x1 - x0, y1 - y0) <= _TAP_SLOP:
            self.tap(x0, y0)
            return
        screen, up = self.top, int(y0 - y1)
        if abs(up) < abs(x1 - x0) or (self.keyboard and y0 >= KEYBOARD_TOP):
            return
        if isinstance(screen, NotificationShade):
            if up > 0:
                screen.close()
        elif y0 < 24 and up < -40:
            if not self.windows:
                self.windows.append(NotificationShade(self))
        elif isinstance(screen, Home):
            if up > 40:
                screen.open_drawer()
        elif isinstance(screen, Drawer) and screen.scroll == 0 and up < 0:
            self.back()
        else:
            screen.scroll += up
        self.changed()

    def type_text(self, text: str) -> None:
        """Into the focused field: after what is there, or over it when it is selected."""
        self._finish_load()
        screen = self.top
        if screen.focused is None:
            return
        old = "" if screen.selected else screen.fields.get(screen.focused, "")
        screen.fields[screen.focused], screen.selected = old + text, False
        self.changed()

    def key(self, code: int) -> None:
        """An Android key code; those a phone of this kind does nothing with do nothing."""
        self._finish_load()
        if code == HOME:
            self.home()
        elif code == BACK:
            self._back_pressed()
        elif code in SUBMITS:
            self._submit()
        elif code == DELETE and self.keyboard:
            screen = self.top
            screen.fields[screen.focused] = "" if screen.selected else screen.fields[screen.focused][:-1]
            screen.selected = False
            self.changed()
        elif code in _KEY_TEXT:
            self.type_text(_KEY_TEXT[code])

    def _back_pressed(self) -> None:
        if self.keyboard:
            self.focus(None)
        elif self.windows:
            self.windows.pop()
        elif not self.stack[-1].on_back():
            self.back()
        self.changed()

    def _submit(self) -> None:
        screen = self.top
        text = screen.fields.get(screen.focused or "", "")
        if screen.focused is None or not text.strip():
            return
        submits = [w.on_submit for w in screen.widgets() if w.kind == "field" and w.id == screen.focused]
        self.focus(None)
        if submits and submits[0]:
            submits[0](text)
        self.changed()

    def _finish_load(self) -> None:
        page = self.stack[-1]
        if isinstance(page, LoadingPage) and time.monotonic() >= page.ready_at:
            self.replace(page.make_page())

    # ---- what is on the screen

    def png(self) -> bytes:
        """The screen as a PNG, drawn once per state."""
        self._finish_load()
        if self._drawn[0] != self.version:
            screens = [*self.stack, *self.windows]
            first = max(i for i, screen in enumerate(screens) if not screen.modal)
            layers = [draw.Layer.of(screen) for screen in screens[first:]]
            self._drawn = self.version, draw.encode_png(draw.render(layers, keyboard=self.keyboard))
        return self._drawn[1]

    def focus_component(self) -> str:
        """The focused window's "package/activity"."""
        self._finish_load()
        return f"{self.top.package}/{self.top.activity}"

    def hierarchy_xml(self) -> str:
        """The focused window as `uiautomator dump` prints it."""
        self._finish_load()
        return hierarchy_xml(self.top, self.top.shown(), self.keyboard)

    # ---- packages

    def start_activity(self, component_or_package: str) -> str:
        """`am start`: "" or the error that it prints."""
        package, _, activity = component_or_package.partition("/")
        main = LAUNCHER_ACTIVITY if package == LAUNCHER else getattr(self.apps.get(package), "activity", None)
        if main is None or activity not in ("", main, package + main, main.removeprefix(package)):
            name = f"{package}/{package if activity.startswith('.') else ''}{activity}"
            return f"Error type 3\nError: Activity class {{{name}}} does not exist."
        self.home() if package == LAUNCHER else self.launch(package)
        return ""

    def force_stop(self, package: str) -> None:
        """End an app: its screens and dialogs are gone; in front of the user there is home then."""
        self.windows = [w for w in self.windows if package not in (w.package, w.owner)]
        if package == LAUNCHER:
            self._stacks[LAUNCHER] = [Home(self)]
        else:
            self._stacks.pop(package, None)
            if self._front == package:
                self._front = LAUNCHER
        self.changed()

    def clear(self, package: str) -> bool:
        """`pm clear`: end it and forget what it stored, its permission included."""
        if package not in self.apps and package not in SERVICES:
            return False
        self.force_stop(package)
        self._data.pop(package, None)
        self.answered.discard(package)
        return True

    def packages(self, third_party: bool = False) -> list[str]:
        apps = [name for name, app in self.apps.items() if not (third_party and app.system)]
        return sorted(apps if third_party else [*apps, *SERVICES])

    def install(self, label: str) -> str:
        """Install the app of that name; its package."""
        app = app_named(label)
        self.apps.setdefault(app.package, app)
        self.changed()
        return app.package

    def uninstall(self, package: str) -> bool:
        app = self.apps.get(package)
        if app is None or app.system:
            return False
        self.clear(package)
        del self.apps[package]
        return True
