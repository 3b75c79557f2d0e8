"""Settings of the simulated phone: topics, all apps, one app's info and its notifications.

phone.launch("com.android.settings")         # then Apps -> the app -> Notifications -> the switch
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from sim.catalog import SETTINGS, App
from sim.ui import WIDTH, Screen, Widget, top_bar

if TYPE_CHECKING:
    from sim.phone import Phone

# Topic -> what its page lists; a line ending in "|" has a switch.
TOPICS = {
    "Network & internet": ("Wi-Fi|", "Mobile network", "Airplane mode|", "Hotspot & tethering"),
    "Connected devices": ("Pair new device", "Connection preferences"),
    "Apps": (),
    "Notifications": (),
    "Battery": ("Battery Saver|", "Battery usage", "Battery percentage|"),
    "Display": ("Dark theme|", "Brightness level", "Wallpaper", "Auto-rotate screen|"),
    "Sound": ("Media volume", "Ring volume", "Do Not Disturb", "Vibrate for calls|"),
    "Storage": ("Apps 12 GB", "Images 3.1 GB", "Videos 1.4 GB", "System 9 GB"),
    "Security": ("Screen lock", "Find My Device|", "Security update"),
    "Location": ("Use location|", "App location permissions"),
    "About phone": ("Device name", "Phone number", "Android version 11", "Build number"),
}
_TOPIC_COLOURS = (
    "#1a73e8",
    "#00897b",
    "#8e24aa",
    "#e53935",
    "#43a047",
    "#fb8c00",
    "#3949ab",
    "#6d4c41",
    "#00acc1",
    "#c0ca33",
    "#757575",
)
_ROW = 40


def notification_key(package: str) -> str:
    return f"notifications:{package}"


def notifications_on(phone: Phone, package: str) -> bool:
    """The app's notification switch; the phone's own seed decides where it stands at first."""
    at_first = phone.own_random(f"notifications {package}").random() < 0.5
    return phone.data(SETTINGS).get(notification_key(package), at_first)


class Settings(Screen):
    """The list of topics."""

    package, activity = SETTINGS, "com.android.settings.Settings"
    content_height = 44 + 38 * len(TOPICS)

    def open(self, topic: str) -> None:
        pages = {"Apps": AllApps, "Notifications": NotificationApps}
        page = pages[topic](self.phone) if topic in pages else Topic(self.phone, topic)
        self.phone.start(page)

    def widgets(self) -> list[Widget]:
        listed = []
        for i, topic in enumerate(TOPICS):
            y = 58 + 38 * i - self.scroll
            listed += [
                Widget("row", (0, y, WIDTH, y + 38), on_tap=partial(self.open, topic)),
                Widget(
                    "icon", (10, y + 5, 38, y + 33), colour=_TOPIC_COLOURS[i], glyph=topic[:1], ink="#ffffff"
                ),
                Widget("text", (52, y, 260, y + 38), topic, id="title", size=14),
            ]
        return listed + top_bar("Settings", "#5f6368")


class Topic(Screen):
    """A topic without a part in any task: some lines, some with a switch."""

    package, activity = SETTINGS, "com.android.settings.SubSettings"

    def __init__(self, phone: Phone, topic: str):
        super().__init__(phone)
        self.topic = topic

    def flip(self, line: str) -> None:
        switches = self.phone.data(SETTINGS)
        switches[line] = not switches.get(line, False)

    def widgets(self) -> list[Widget]:
        listed = top_bar(self.topic, _TOPIC_COLOURS[list(TOPICS).index(self.topic)], back=self.phone.back)
        for i, line in enumerate(TOPICS[self.topic]):
            y = 64 + 48 * i
            flip = partial(self.flip, line) if line.endswith("|") else None
            listed.append(Widget("row", (0, y, WIDTH, y + 48), line.rstrip("|"), size=14, on_tap=flip))
            if flip:
                on = self.phone.data(SETTINGS).get(line, False)
                listed.append(_switch(y + 8, on, flip, ""))
        return listed


class _AppList(Screen):
    package = SETTINGS
    title, colour, opens = "", "", None

    @property
    def content_height(self) -> int:
        return 44 + _ROW * len(self.phone.apps)

    def open(self, app: App) -> None:
        self.phone.start(type(self).opens(self.phone, app))

    def widgets(self) -> list[Widget]:
        listed = []
        for i, app in enumerate(self.phone.apps_by_label()):
            y = 58 + _ROW * i - self.scroll
            listed += [
                Widget("row", (0, y, WIDTH, y + _ROW), on_tap=partial(self.open, app)),
                Widget("icon", (10, y + 4, 42, y + 36), glyph=app.glyph, colour=app.colour, ink=app.ink),
                Widget("text", (54, y, 260, y + _ROW), app.label, id="title", size=14),
            ]
        return listed + top_bar(self.title, self.colour, back=self.phone.back)


class _AppPage(Screen):
    """A page about one app; when that is uninstalled the page goes."""

    package = SETTINGS

    def __init__(self, phone: Phone, app: App):
        super().__init__(phone)
        self.app = app

    def heading(self, title: str, colour: str) -> list[Widget]:
        app = self.app
        return [
            *top_bar(title, colour, back=self.phone.back),
            Widget("icon", (105, 66, 165, 126), glyph=app.glyph, colour=app.colour, ink=app.ink),
            Widget("text", (10, 128, 260, 152), app.label, id="entity_header_title", size=16, align="centre"),
        ]


class AppInfo(_AppPage):
    activity = "com.android.settings.applications.InstalledAppDetailsTop"

    def open(self) -> None:
        if self.app.package in self.phone.apps:
            self.phone.launch(self.app.package)

    def uninstall(self) -> None:
        if self.phone.uninstall(self.app.package):
            self.phone.back()

    def force_stop(self) -> None:
        self.phone.force_stop(self.app.package)

    def notifications(self) -> None:
        self.phone.start(AppNotifications(self.phone, self.app))

    def widgets(self) -> list[Widget]:
        listed = self.heading("App info", "#00695c")
        for i, (text, act, usable) in enumerate(
            (
                ("Open", self.open, True),
                ("Uninstall", self.uninstall, not self.app.system),
                ("Force stop", self.force_stop, True),
            )
        ):
            x = 8 + 86 * i
            ink = "#1a73e8" if usable else "#9aa0a6"
            listed.append(
                Widget("button", (x, 160, x + 82, 196), text, on_tap=act if usable else None, ink=ink)
            )
        for i, (text, act) in enumerate(
            (
                ("Notifications", self.notifications),
                ("Permissions", None),
                ("Storage & cache", None),
            )
        ):
            y = 212 + 52 * i
            listed.append(Widget("row", (0, y, WIDTH, y + 52), text, on_tap=act, size=15, colour="#eef3f2"))
        return listed


class AppNotifications(_AppPage):
    activity = "com.android.settings.Settings$AppNotificationSettingsActivity"

    def flip(self) -> None:
        switches = self.phone.data(SETTINGS)
        switches[notification_key(self.app.package)] = not notifications_on(self.phone, self.app.package)

    def widgets(self) -> list[Widget]:
        on = notifications_on(self.phone, self.app.package)
        band = "#9fe3b4" if on else "#c4c7cc"
        return [
            *self.heading("App notifications", "#e53935"),
            Widget("box", (0, 170, WIDTH, 230), colour=band, on_tap=self.flip),
            Widget("text", (14, 174, 200, 226), f"All {self.app.label} notifications", size=14),
            _switch(184, on, self.flip, "switch"),
        ]


class AllApps(_AppList):
    activity = "com.android.settings.Settings$ManageApplicationsActivity"
    title, colour, opens = "All apps", "#8e24aa", AppInfo


class NotificationApps(_AppList):
    activity = "com.android.settings.Settings$NotificationAppListActivity"
    title, colour, opens = "Notifications", "#fb8c00", AppNotifications


def _switch(y: int, on: bool, flip, widget_id: str) -> Widget:
    return Widget(
        "switch", (214, y, 262, y + 32), "ON" if on else "OFF", id=widget_id, checked=on, on_tap=flip
    )
