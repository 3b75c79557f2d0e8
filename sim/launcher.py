"""The home screen and the app drawer."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from sim.catalog import APPS, LAUNCHER, LAUNCHER_ACTIVITY, App
from sim.ui import WIDTH, Screen, Widget

if TYPE_CHECKING:
    from sim.phone import Phone

_COLUMN, _DRAWER_ROW, _DRAWER_TOP = WIDTH // 4, 66, 28


def _app_icon(phone: Phone, app: App, x: int, y: int) -> Widget:
    return Widget(
        "icon",
        (x, y, x + 60, y + 60),
        app.label,
        id="icon",
        desc=app.label,
        glyph=app.glyph,
        colour=app.colour,
        ink=app.ink,
        on_tap=partial(phone.launch, app.package),
    )


class Home(Screen):
    """Search bar, eight icons in the phone's own order, the drawer's button."""

    package, activity = LAUNCHER, LAUNCHER_ACTIVITY

    def __init__(self, phone: Phone):
        super().__init__(phone)
        self.background = phone.wallpaper

    def open_drawer(self) -> None:
        self.phone.start(Drawer(self.phone))

    def widgets(self) -> list[Widget]:
        listed = [
            Widget(
                "button",
                (14, 34, 256, 72),
                "Search",
                "Search",
                "search_bar",
                self.phone.open_search,
                colour="#ffffff",
                ink="#5f6368",
                size=14,
            ),
        ]
        for place, package in enumerate(self.phone.home_order):
            x = _COLUMN * (place % 4) + 3
            listed.append(_app_icon(self.phone, APPS[package], x, 190 + 84 * (place // 4)))
        listed.append(
            Widget(
                "icon",
                (110, 412, 160, 462),
                desc="Apps list",
                id="all_apps",
                glyph="apps",
                colour="#e8eaed",
                ink="#3c4043",
                on_tap=self.open_drawer,
            )
        )
        return listed


class Drawer(Screen):
    """Every installed app, alphabetically, four in a row."""

    package, activity = LAUNCHER, LAUNCHER_ACTIVITY
    background = "#fafafa"

    @property
    def content_height(self) -> int:
        return _DRAWER_TOP + _DRAWER_ROW * -(-len(self.phone.apps) // 4)

    def widgets(self) -> list[Widget]:
        listed = [Widget("text", (14, 18 - self.scroll, 200, 42 - self.scroll), "Apps", size=14)]
        for place, app in enumerate(self.phone.apps_by_label()):
            y = 16 + _DRAWER_TOP + _DRAWER_ROW * (place // 4) - self.scroll
            listed.append(_app_icon(self.phone, app, _COLUMN * (place % 4) + 3, y))
        return listed
