"""What the system shows over or instead of an app: dialogs, the shade, a page that loads or failed.

phone.windows.append(NotResponding(phone, app))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sim.catalog import (
    NOT_RESPONDING_ACTIVITY,
    PERMISSIONS,
    PERMISSIONS_ACTIVITY,
    SYSTEM_UI,
    App,
)
from sim.ui import Screen, Widget

if TYPE_CHECKING:
    from sim.phone import Phone


class _Dialog(Screen):
    """A question in the middle of the screen with buttons below each other; BACK puts it away."""

    modal = True
    question = ""

    def __init__(self, phone: Phone, app: App):
        super().__init__(phone)
        self.owner = app.package  # whose dialog this is: gone when that app is stopped
        self.app = app

    def buttons(self) -> list[tuple[str, Callable[[], None]]]:
        return []

    def close(self) -> None:
        self.phone.windows.remove(self)

    def widgets(self) -> list[Widget]:
        listed = [
            Widget("box", (20, 150, 250, 346), colour="#ffffff"),
            Widget("box", (20, 150, 250, 158), colour=self.app.colour),
            Widget("text", (34, 164, 236, 236), self.question, id="message", size=15),
        ]
        for i, (text, act) in enumerate(self.buttons()):
            top = 244 + 50 * i
            listed.append(
                Widget(
                    "button",
                    (34, top, 236, top + 42),
                    text,
                    on_tap=act,
                    colour="#1a73e8",
                    ink="#ffffff",
                    size=15,
                )
            )
        return listed


class PermissionDialog(_Dialog):
    package, activity = PERMISSIONS, PERMISSIONS_ACTIVITY

    @property
    def question(self) -> str:
        what = "access this device's location" if self.app.location else "send you notifications"
        return f"Allow {self.app.label} to {what}?"

    def buttons(self):
        return [("Allow", self.answer), ("Don't allow", self.answer)]

    def answer(self) -> None:
        """Either answer is remembered until the app's data are cleared."""
        self.phone.answered.add(self.app.package)
        self.close()


class NotResponding(_Dialog):
    package, activity = "android", NOT_RESPONDING_ACTIVITY

    @property
    def question(self) -> str:
        return f"{self.app.label} isn't responding"

    def buttons(self):
        return [("Close app", self.close_app), ("Wait", self.close)]

    def close_app(self) -> None:
        self.phone.force_stop(self.app.package)
        self.phone.home()


class NotificationShade(Screen):
    package, activity = SYSTEM_UI, "NotificationShade"
    background = "#20242b"
    owner = SYSTEM_UI

    def __init__(self, phone: Phone):
        super().__init__(phone)
        self.kept = [("Software update", "Ready to install"), ("Screenshot saved", "Tap to view")]

    def close(self) -> None:
        self.phone.windows.remove(self)

    def clear_all(self) -> None:
        self.kept = []
        self.close()

    def widgets(self) -> list[Widget]:
        listed = [Widget("text", (14, 24, 200, 50), "Notifications", ink="#ffffff", size=15)]
        for i, (title, line) in enumerate(self.kept):
            y = 60 + 66 * i
            listed += [
                Widget("card", (10, y, 260, y + 58), colour="#ffffff"),
                Widget("text", (22, y + 6, 250, y + 30), title, size=13),
                Widget("text", (22, y + 30, 250, y + 52), line, ink="#5f6368"),
            ]
        y = 70 + 66 * len(self.kept)
        return [
            *listed,
            Widget(
                "button", (10, y, 120, y + 34), "Manage", colour="#4a5160", ink="#ffffff", on_tap=self.close
            ),
            Widget(
                "button",
                (150, y, 260, y + 34),
                "Clear all",
                colour="#4a5160",
                ink="#ffffff",
                on_tap=self.clear_all,
            ),
        ]


class LoadingPage(Screen):
    """Stands in for a page until its time has come; then the phone puts `make_page()` in its place."""

    background = "#f1f3f4"

    def __init__(
        self, phone: Phone, like: Screen, make_page: Callable[[], Screen], site: str, ready_at: float
    ):
        super().__init__(phone)
        self.package, self.activity = like.package, like.activity
        self.make_page, self.site, self.ready_at = make_page, site, ready_at

    def widgets(self) -> list[Widget]:
        return [
            Widget("box", (0, 16, 135, 24), colour="#1a73e8"),
            Widget("text", (20, 60, 250, 84), self.site, ink="#5f6368", align="centre"),
            Widget("text", (20, 200, 250, 240), "Loading", size=18, align="centre"),
        ]


class ErrorPage(Screen):
    """A load that failed. Retry loads again, failing with half the probability of before."""

    background = "#4a4f57"

    def __init__(self, phone: Phone, like: Screen, make_page: Callable[[], Screen], site: str, odds: float):
        super().__init__(phone)
        self.package, self.activity = like.package, like.activity
        self.make_page, self.site, self.odds = make_page, site, odds

    def retry(self) -> None:
        self.phone.load(self.make_page, self.site, odds=self.odds / 2, replace=True)

    def widgets(self) -> list[Widget]:
        white = "#ffffff"
        return [
            Widget("image", (105, 90, 165, 150), desc="Error", glyph="close", colour="#4a4f57", ink=white),
            Widget(
                "text", (20, 170, 250, 214), "This site can't be reached", ink=white, size=17, align="centre"
            ),
            Widget("text", (20, 216, 250, 240), self.site, ink="#dadce0", align="centre"),
            Widget("button", (65, 270, 205, 316), "Retry", colour="#8ab4f8", size=16, on_tap=self.retry),
        ]
