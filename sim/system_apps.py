"""The system's own apps besides Settings and Clock, each small, and the screen of any third-party app.

`SCREENS`: package -> the screen the app opens with.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from sim.catalog import (
    APPS,
    CALCULATOR,
    CALENDAR,
    CAMERA,
    CLOCK,
    CONTACTS,
    FILES,
    GMAIL,
    MESSAGES,
    PHOTOS,
    SETTINGS,
    YT_MUSIC,
)
from sim.clock_app import Clock
from sim.settings_app import Settings
from sim.ui import WIDTH, Screen, Widget, top_bar

if TYPE_CHECKING:
    from sim.phone import Phone

WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_EVENTS = (
    ("Team meeting", "10:00 - 11:00"),
    ("Dentist", "2:30 - 3:15"),
    ("Gym", "6:00 - 7:00"),
    ("Lunch with Ana", "12:30 - 1:30"),
    ("Pay rent", "All day"),
)
_PAINTS = ("#e57373", "#64b5f6", "#81c784", "#ffd54f", "#ba68c8", "#4db6ac", "#ff8a65", "#90a4ae")


class _Lines(Screen):
    """A coloured title bar over two-line rows, the plain form of most lists."""

    title, bar, ink = "", "", "#ffffff"
    lines: tuple[tuple[str, str], ...] = ()
    top = 62

    def widgets(self) -> list[Widget]:
        listed = top_bar(self.title, self.bar, self.ink)
        for i, (first, second) in enumerate(self.lines):
            y = self.top + 56 * i
            listed += [
                Widget("row", (0, y, WIDTH, y + 56)),
                Widget(
                    "icon", (10, y + 10, 46, y + 46), glyph=first[:1], colour=_PAINTS[i % 8], ink="#ffffff"
                ),
                Widget("text", (58, y + 8, 262, y + 30), first, size=14),
                Widget("text", (58, y + 30, 262, y + 50), second, ink="#5f6368"),
            ]
        return listed


class Calendar(Screen):
    """Schedule, day, week or month; the button Views lists them."""

    package, activity = CALENDAR, APPS[CALENDAR].activity
    views = {"Schedule": "#3f8cff", "Day": "#f9a825", "Week": "#2e7d32", "Month": "#8e24aa"}

    def __init__(self, phone: Phone):
        super().__init__(phone)
        self.view, self.menu = "Schedule", False

    def toggle_menu(self) -> None:
        self.menu = not self.menu

    def choose(self, view: str) -> None:
        self.view, self.menu = view, False

    def on_back(self) -> bool:
        was_open, self.menu = self.menu, False
        return was_open

    def widgets(self) -> list[Widget]:
        colour = self.views[self.view]
        if self.menu:  # the menu is all there is while it is open
            listed = [Widget("box", (0, 16, WIDTH, 480), colour="#70757a", on_tap=self.toggle_menu)]
            listed.append(Widget("box", (0, 16, 190, 480), colour="#ffffff"))
            for i, (view, paint) in enumerate(self.views.items()):
                y = 70 + 62 * i
                listed += [
                    Widget(
                        "row",
                        (0, y, 190, y + 62),
                        view,
                        size=16,
                        on_tap=partial(self.choose, view),
                        colour="#d2e3fc" if view == self.view else "#ffffff",
                    ),
                    Widget("box", (0, y, 6, y + 62), colour=paint, on_tap=partial(self.choose, view)),
                ]
            return listed
        listed = [
            Widget("box", (0, 16, WIDTH, 56), colour=colour),
            Widget(
                "icon",
                (4, 20, 36, 52),
                desc="Views",
                id="views",
                glyph="menu",
                ink="#ffffff",
                on_tap=self.toggle_menu,
            ),
            Widget("text", (46, 16, 250, 56), self.view, id="title", ink="#ffffff", size=17),
        ]
        return listed + getattr(self, f"_{self.view.lower()}")()

    def _events(self, x: int, y: int, count: int) -> list[Widget]:
        listed = []
        for i, (name, time) in enumerate(_EVENTS[:count]):
            top = y + 58 * i
            listed += [
                Widget("card", (x, top, 260, top + 52), colour=_PAINTS[i]),
                Widget("text", (x + 10, top + 4, 256, top + 28), name, size=14),
                Widget("text", (x + 10, top + 26, 256, top + 48), time),
            ]
        return listed

    def _schedule(self) -> list[Widget]:
        return [Widget("text", (10, 62, 260, 86), "Upcoming", size=13), *self._events(56, 92, 5)]

    def _day(self) -> list[Widget]:
        hours = [Widget("text", (8, 100 + 60 * i, 50, 120 + 60 * i), f"{8 + 2 * i}:00") for i in range(6)]
        return [Widget("text", (10, 62, 260, 86), "Today", size=13), *hours, *self._events(56, 100, 3)]

    def _week(self) -> list[Widget]:
        listed = [Widget("text", (10, 62, 260, 86), "This week", size=13)]
        for i, day in enumerate(WEEKDAYS):
            x = 4 + 38 * i
            listed.append(Widget("text", (x, 88, x + 34, 108), day, align="centre"))
            listed.append(Widget("box", (x, 112, x + 34, 470), colour="#e8f5e9"))
        for i, (name, _) in enumerate(_EVENTS):
            x, y = 4 + 38 * (i + i // 3), 130 + 62 * (i * 2 % 5)
            listed.append(Widget("card", (x, y, x + 34, y + 56), name, size=9, colour=_PAINTS[i]))
        return listed

    def _month(self) -> list[Widget]:
        listed = [Widget("text", (10, 62, 260, 86), "This month", size=13)]
        for day in range(1, 31):
            x, y = 4 + 38 * ((day - 1) % 7), 92 + 74 * ((day - 1) // 7)
            listed.append(Widget("card", (x, y, x + 36, y + 70), colour="#f3e5f5"))
            listed.append(Widget("text", (x + 4, y + 2, x + 34, y + 20), str(day)))
            if day % 6 == 2:
                listed.append(Widget("box", (x + 3, y + 30, x + 33, y + 50), colour=_PAINTS[day % 8]))
        return listed


class Gmail(_Lines):
    """Says what is new until "Got it", then the inbox."""

    package, activity = GMAIL, APPS[GMAIL].activity
    title, bar, ink, top = "Primary", "#c5221f", "#ffffff", 106
    lines = (
        ("Maya Chen", "Photos from the trip"),
        ("Bank", "Your statement is ready"),
        ("Weekly digest", "Five things to read"),
        ("Jon Park", "Re: Saturday"),
        ("City library", "A book is due"),
    )

    def got_it(self) -> None:
        self.phone.data(GMAIL)["welcomed"] = True

    def widgets(self) -> list[Widget]:
        if not self.phone.data(GMAIL).get("welcomed"):
            return [
                Widget("box", (0, 16, WIDTH, 250), colour="#c5221f"),
                Widget("image", (85, 80, 185, 180), glyph="mail", colour="#ffffff", ink="#c5221f"),
                Widget("text", (20, 270, 250, 300), "New in Gmail", size=20, align="centre"),
                Widget(
                    "text",
                    (20, 302, 250, 340),
                    "All the features you love, with a fresh new look",
                    align="centre",
                ),
                Widget(
                    "button",
                    (40, 390, 230, 436),
                    "Got it",
                    id="welcome_tour_got_it",
                    colour="#1a73e8",
                    ink="#ffffff",
                    size=16,
                    on_tap=self.got_it,
                ),
            ]
        bar = Widget(
            "button", (10, 62, 260, 98), "Search in mail", id="search", colour="#fde7ea", ink="#5f6368"
        )
        return [*super().widgets(), bar]


class Contacts(_Lines):
    package, activity = CONTACTS, APPS[CONTACTS].activity
    title, bar = "Contacts", APPS[CONTACTS].colour
    lines = (
        ("Ana Silva", "Mobile"),
        ("Ben Okoro", "Work"),
        ("Jon Park", "Mobile"),
        ("Maya Chen", "Mobile"),
        ("Mum", "Home"),
        ("Tom Weber", "Work"),
    )


class Messages(_Lines):
    package, activity = MESSAGES, APPS[MESSAGES].activity
    title, bar = "Messages", APPS[MESSAGES].colour
    lines = (
        ("Mum", "Call me when you can"),
        ("Ana Silva", "See you at noon"),
        ("12345", "Your code was used"),
        ("Ben Okoro", "Thanks!"),
    )


class Files(_Lines):
    package, activity = FILES, APPS[FILES].activity
    title, bar, ink = "Files", APPS[FILES].colour, "#01579b"
    lines = (
        ("Downloads", "4 files"),
        ("Images", "128 files"),
        ("Videos", "9 files"),
        ("Audio", "31 files"),
        ("Documents", "12 files"),
        ("Apps", "31 apps"),
    )


class YTMusic(_Lines):
    package, activity = YT_MUSIC, APPS[YT_MUSIC].activity
    background = "#2a0716"
    title, bar, top = "Listen again", APPS[YT_MUSIC].colour, 62

    def widgets(self) -> list[Widget]:
        listed = top_bar(self.title, self.bar)
        for i, name in enumerate(
            ("Quiet morning", "Road songs", "Focus", "New this week", "Old favourites", "Jazz")
        ):
            x, y = 14 + 126 * (i % 2), 68 + 134 * (i // 2)
            listed += [
                Widget("image", (x, y, x + 116, y + 96), glyph="play", colour=_PAINTS[i], ink="#ffffff"),
                Widget("text", (x, y + 100, x + 116, y + 122), name, ink="#ffffff"),
            ]
        return listed


class Photos(Screen):
    package, activity = PHOTOS, APPS[PHOTOS].activity

    def widgets(self) -> list[Widget]:
        listed = top_bar("Photos", APPS[PHOTOS].colour)
        for i in range(12):
            x, y = 6 + 88 * (i % 3), 64 + 102 * (i // 3)
            listed.append(
                Widget("image", (x, y, x + 82, y + 96), desc=f"Photo {i + 1}", colour=_PAINTS[i * 3 % 8])
            )
        return listed


class Camera(Screen):
    package, activity, background = CAMERA, APPS[CAMERA].activity, "#101214"

    def shoot(self) -> None:
        taken = self.phone.data(CAMERA)
        taken["photos"] = taken.get("photos", 0) + 1

    def widgets(self) -> list[Widget]:
        taken = self.phone.data(CAMERA).get("photos", 0)
        return [
            Widget("image", (0, 60, WIDTH, 376), desc="Viewfinder", colour="#46604a"),
            Widget("box", (0, 270, WIDTH, 376), colour="#7d6a4f"),
            Widget(
                "icon",
                (105, 398, 165, 458),
                desc="Shutter",
                id="shutter_button",
                glyph="ring",
                colour="#ffffff",
                ink="#16181a",
                on_tap=self.shoot,
            ),
            Widget(
                "text", (190, 410, 262, 446), f"{taken} taken" if taken else "", ink="#ffffff", align="centre"
            ),
        ]


class Calculator(Screen):
    """Numbers up to twelve digits, left to right."""

    package, activity = CALCULATOR, APPS[CALCULATOR].activity
    keys = "789/456*123-C0=+"

    def __init__(self, phone: Phone):
        super().__init__(phone)
        self.display, self.before, self.operator, self.fresh = "0", 0.0, "", True

    def press(self, key: str) -> None:
        if key.isdigit():
            self.display = key if self.fresh or self.display == "0" else (self.display + key)[:12]
            self.fresh = False
        elif key == "C":
            self.display, self.before, self.operator, self.fresh = "0", 0.0, "", True
        elif self.display != "Error":
            now = float(self.display)
            if self.operator == "/" and now == 0:
                self.display, self.operator, self.fresh = "Error", "", True
                return
            if self.operator:
                now = {
                    "+": self.before + now,
                    "-": self.before - now,
                    "*": self.before * now,
                    "/": self.before / (now or 1),
                }[self.operator]
            self.display, self.before, self.fresh = f"{now:.10g}", now, True
            self.operator = "" if key == "=" else key

    def widgets(self) -> list[Widget]:
        listed = [
            Widget("box", (0, 16, WIDTH, 140), colour="#f4f7da"),
            Widget("text", (16, 60, 254, 120), self.display, id="result", size=38),
        ]
        for i, key in enumerate(self.keys):
            x, y = 6 + 66 * (i % 4), 150 + 82 * (i // 4)
            colour = "#e6ebf0" if key.isdigit() else APPS[CALCULATOR].colour
            listed.append(
                Widget(
                    "button",
                    (x, y, x + 60, y + 76),
                    key,
                    size=24,
                    colour=colour,
                    on_tap=partial(self.press, key),
                )
            )
        return listed


class ThirdPartyApp(Screen):
    """Any other app: its name in its colours, nothing to do. The phone sets its package."""

    def widgets(self) -> list[Widget]:
        app = self.phone.apps.get(self.package)
        if app is None:
            return []
        return [
            Widget("box", (0, 16, WIDTH, 300), colour=app.colour),
            Widget("image", (75, 70, 195, 190), glyph=app.glyph, colour="#ffffff", ink="#3c4043"),
            Widget("text", (14, 210, 256, 250), app.label, size=22, align="centre", ink=app.ink),
            Widget("text", (20, 316, 250, 344), f"Welcome to {app.label}", size=14, align="centre"),
            Widget("button", (40, 356, 230, 396), "Sign in", colour=app.colour, ink=app.ink, size=15),
            Widget("button", (40, 406, 230, 446), "Create account", colour="#e8eaed", size=15),
        ]


SCREENS: dict[str, type[Screen]] = {
    SETTINGS: Settings,
    CLOCK: Clock,
    CALENDAR: Calendar,
    GMAIL: Gmail,
    CONTACTS: Contacts,
    MESSAGES: Messages,
    FILES: Files,
    YT_MUSIC: YTMusic,
    PHOTOS: Photos,
    CAMERA: Camera,
    CALCULATOR: Calculator,
}
