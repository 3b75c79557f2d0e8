"""Clock of the simulated phone: alarms and the dialog that sets one, the time, a timer, a stopwatch.

phone.launch("com.google.android.deskclock")     # then Add alarm -> 10 -> AM -> OK
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from sim.catalog import CLOCK
from sim.ui import WIDTH, Screen, Widget

if TYPE_CHECKING:
    from sim.phone import Phone

TABS = {"Alarm": "#1a1f7a", "Clock": "#00838f", "Timer": "#ad1457", "Stopwatch": "#4e342e"}
_ACTIVITY = "com.android.deskclock.DeskClock"


class Clock(Screen):
    """Four tabs. An alarm is [time as text, on]."""

    package, activity = CLOCK, _ACTIVITY

    def __init__(self, phone: Phone):
        super().__init__(phone)
        self.tab = "Alarm"

    @property
    def alarms(self) -> list[list]:
        return self.phone.data(CLOCK).setdefault("alarms", [["8:30 AM", False], ["9:45 PM", False]])

    @property
    def content_height(self) -> int:
        return 120 + 64 * len(self.alarms) + 60 if self.tab == "Alarm" else 0

    def choose(self, tab: str) -> None:
        self.tab, self.scroll = tab, 0

    def flip(self, alarm: list) -> None:
        alarm[1] = not alarm[1]

    def add(self) -> None:
        self.phone.start(TimePicker(self.phone, self.set_alarm))

    def set_alarm(self, time: str) -> None:
        self.alarms[:] = [[time, True], *(alarm for alarm in self.alarms if alarm[0] != time)]

    def widgets(self) -> list[Widget]:
        colour = TABS[self.tab]
        listed = self._alarm_list() if self.tab == "Alarm" else []
        listed.append(Widget("box", (0, 16, WIDTH, 84), colour=colour))
        for i, tab in enumerate(TABS):
            x0, x1 = WIDTH * i // 4, WIDTH * (i + 1) // 4
            here = tab == self.tab
            listed.append(
                Widget(
                    "tab",
                    (x0, 48, x1, 84),
                    tab,
                    checked=here,
                    on_tap=partial(self.choose, tab),
                    colour="#ffffff" if here else colour,
                    ink="#202124" if here else "#ffffff",
                )
            )
        listed.append(
            Widget("text", (12, 18, 200, 46), self.tab, id="action_bar_title", ink="#ffffff", size=16)
        )
        if self.tab == "Alarm":
            listed.append(
                Widget(
                    "icon",
                    (107, 412, 163, 468),
                    desc="Add alarm",
                    id="fab",
                    glyph="add",
                    colour="#1a73e8",
                    ink="#ffffff",
                    on_tap=self.add,
                )
            )
        elif self.tab == "Clock":
            listed += [
                Widget("text", (20, 170, 250, 240), "9:41", id="digital_clock", size=56, align="centre"),
                Widget("text", (20, 246, 250, 270), "Local time", size=14, align="centre"),
            ]
        else:
            shown = "00h 05m 00s" if self.tab == "Timer" else "0:00.00"
            listed += [
                Widget("text", (20, 170, 250, 230), shown, size=34, align="centre"),
                Widget("button", (85, 380, 185, 424), "Start", colour=colour, ink="#ffffff", size=16),
            ]
        return listed

    def _alarm_list(self) -> list[Widget]:
        listed = []
        for i, alarm in enumerate(self.alarms):
            y = 96 + 64 * i - self.scroll
            time, on = alarm
            listed += [
                Widget("card", (8, y, 262, y + 58), colour="#cfe2ff" if on else "#f1f3f4"),
                Widget("text", (22, y, 180, y + 58), time, id="digital_clock", size=26),
                Widget(
                    "switch",
                    (206, y + 13, 254, y + 45),
                    "ON" if on else "OFF",
                    id="onoff",
                    checked=on,
                    on_tap=partial(self.flip, alarm),
                ),
            ]
        return listed


class TimePicker(Screen):
    """Twelve hours, AM and PM; OK hands the time to `done` as "10:00 AM"."""

    package, activity = CLOCK, _ACTIVITY
    modal = True

    def __init__(self, phone: Phone, done):
        super().__init__(phone)
        self.done = done
        self.hour, self.half = 12, "AM"

    def choose_hour(self, hour: int) -> None:
        self.hour = hour

    def choose_half(self, half: str) -> None:
        self.half = half

    def ok(self) -> None:
        self.phone.back()
        self.done(f"{self.hour}:00 {self.half}")

    def widgets(self) -> list[Widget]:
        def button(box, text, act, chosen=False, **kw):
            colour, ink = ("#1a1f7a", "#ffffff") if chosen else ("#dfe3ea", "#202124")
            return Widget(
                "button", box, text, on_tap=act, colour=colour, ink=ink, size=16, checked=chosen or None, **kw
            )

        listed = [
            Widget("box", (12, 60, 258, 440), colour="#ffffff"),
            Widget("text", (26, 66, 240, 88), "Select time", id="title", ink="#5f6368", size=13),
            Widget("text", (26, 92, 160, 146), f"{self.hour}:00", id="time", size=44, ink="#1a1f7a"),
        ]
        for i, half in enumerate(("AM", "PM")):
            listed.append(
                button(
                    (190, 92 + 28 * i, 246, 118 + 28 * i),
                    half,
                    partial(self.choose_half, half),
                    half == self.half,
                )
            )
        for hour in range(1, 13):
            x, y = 24 + 76 * ((hour - 1) % 3), 160 + 56 * ((hour - 1) // 3)
            listed.append(
                button((x, y, x + 70, y + 50), str(hour), partial(self.choose_hour, hour), hour == self.hour)
            )
        listed += [
            Widget(
                "button", (24, 392, 130, 432), "Cancel", colour="#eceff1", size=15, on_tap=self.phone.back
            ),
            Widget(
                "button", (140, 392, 246, 432), "OK", colour="#1e8e3e", ink="#ffffff", size=15, on_tap=self.ok
            ),
        ]
        return listed
