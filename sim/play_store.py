"""The Play Store of the simulated phone: search, a list of apps, one app's page, install and uninstall.

    phone.launch("com.android.vending"); phone.tap(130, 40); phone.type_text("facebook"); phone.key(66)
"""

from __future__ import annotations

import re
from functools import partial

from sim.catalog import App, app_named
from sim.sites import GREY, LINE, PAINTS, stable, suggestion_rows, titled, uncovered
from sim.ui import STATUS_BAR, WIDTH, Screen, Widget

GREEN, PALE = "#01875f", "#d7f0e5"
PROPER = {name.lower(): name for name in ("eBay", "CNN", "ESPN", "YouTube", "WhatsApp", "TikTok", "LinkedIn",
                                          "PayPal")}
FEATURED = ("Puzzle Garden", "Sky Weather", "Daily Notes", "Run Tracker", "Chess Club", "Photo Frame")


def app_title(query: str) -> str:
    """An app's name as the store writes it: "facebook app" -> "Facebook"."""
    name = re.sub(r"\s+app$", "", " ".join(query.split()), flags=re.IGNORECASE)
    return PROPER.get(name.lower()) or titled(name)


class PlayStore(Screen):
    """The store's start under its search field. With a query, the apps found."""

    package = "com.android.vending"
    activity = "com.android.vending.AssetBrowserActivity"

    def __init__(self, phone, query: str = ""):
        super().__init__(phone)
        self.query = query.strip()
        self.fields["search_bar"] = self.query
        self.content_height = 70 + (5 * 84 if self.query else 530)

    def find(self, text: str) -> None:
        if text.strip():
            self.phone.load(lambda: PlayStore(self.phone, text), site="play.google.com")

    def found(self) -> list[App]:
        """The app asked for, then four like it."""
        title = app_named(app_title(self.query)).label
        endings = stable(self.phone, "store", title).sample(("Lite", "Guide", "Pro", "Tips", "Plus"), 4)
        return [app_named(name) for name in (title, *(f"{title} {end}" for end in endings))]

    def show(self, app: App, install: bool = False) -> None:
        self.phone.start(AppPage(self.phone, app))
        if install:
            self.phone.install(app.label)

    def act(self, app: App) -> None:
        """The button at the right of a row."""
        if app.package in self.phone.apps:
            self.phone.launch(app.package)
        else:
            self.show(app, install=True)

    def widgets(self):
        field = [
            Widget("box", (0, STATUS_BAR, WIDTH, 64), colour=PALE),
            Widget("field", (10, 22, 260, 58), self.fields["search_bar"], id="search_bar",
                   hint="Search for apps & games", on_submit=self.find, colour="#ffffff"),
        ]
        if self.focused == "search_bar":
            return suggestion_rows(64, self.fields["search_bar"], (" app", " games"), self.find) + field
        body = self._rows() if self.query else self._start()
        return uncovered(body, 64) + field

    def _rows(self) -> list[Widget]:
        shown = []
        for row, app in enumerate(self.found()):
            y, chance = 68 + 84 * row - self.scroll, stable(self.phone, "rating", app.label)
            installed, go = app.package in self.phone.apps, partial(self.show, app)
            shown += [
                Widget("row", (0, y, WIDTH, y + 82), on_tap=go),
                Widget("icon", (10, y + 15, 62, y + 67), colour=app.colour, ink=app.ink, glyph=app.glyph,
                       on_tap=go),
                Widget("text", (70, y + 10, 174, y + 46), app.label, id="app_name", size=14, on_tap=go),
                Widget("text", (70, y + 48, 174, y + 68), f"{chance.randrange(30, 50) / 10} stars",
                       ink="#5f6368",
                       size=11, on_tap=go),
                Widget("button", (178, y + 22, 262, y + 60), "Open" if installed else "Install", size=13,
                       colour=GREEN, ink="#ffffff", on_tap=partial(self.act, app)),
            ]
        return shown

    def _start(self) -> list[Widget]:
        y, chance = 68 - self.scroll, stable(self.phone, "store")
        shown = []
        for i, name in enumerate(("For you", "Top charts", "Kids")):
            shown.append(Widget("tab", (90 * i, y, 90 * i + 90, y + 34), name, checked=i == 0, ink=GREEN))
        shown += [
            Widget("image", (10, y + 42, 260, y + 152), colour="#00c2a8"),
            Widget("text", (24, y + 60, 246, y + 134), "Games for a rainy day", ink="#ffffff", size=20,
                   align="centre"),
            Widget("text", (12, y + 158, 258, y + 180), "Recommended for you", size=14),
        ]
        for i, name in enumerate(chance.sample(FEATURED, 6)):
            x, top = 16 + 84 * (i % 3), y + 190 + 128 * (i // 3)
            go = partial(self.show, app_named(name))
            shown += [
                Widget("image", (x, top, x + 70, top + 70), colour=PAINTS[i], glyph=name[0], on_tap=go),
                Widget("text", (x - 4, top + 72, x + 78, top + 106), name, size=11, align="centre",
                       on_tap=go),
            ]
        return shown


class AppPage(PlayStore):
    """One app: install it, or open or uninstall it."""

    def __init__(self, phone, app: App):
        super().__init__(phone)
        self.app = app
        self.content_height = 520

    def _uninstall(self) -> None:
        self.phone.uninstall(self.app.package)
        self.phone.changed()

    def widgets(self):
        app, y, white = self.app, -self.scroll, "#ffffff"
        chance = stable(self.phone, "rating", app.label)
        found = [
            Widget("icon", (12, y + 64, 80, y + 132), colour=app.colour, ink=app.ink, glyph=app.glyph),
            Widget("text", (92, y + 64, 260, y + 106), app.label, id="title", size=18),
            Widget("text", (92, y + 108, 260, y + 130), f"{chance.randrange(30, 50) / 10} stars",
                   ink="#5f6368"),
        ]
        if app.package in self.phone.apps:
            found += [
                Widget("button", (12, y + 144, 130, y + 184), "Uninstall", colour=white, ink=GREEN, size=14,
                       on_tap=self._uninstall),
                Widget("button", (140, y + 144, 258, y + 184), "Open", colour=GREEN, ink=white, size=14,
                       on_tap=lambda: self.phone.launch(app.package)),
                Widget("box", (12, y + 184, 130, y + 186), colour=GREEN),
            ]
        else:
            found.append(Widget("button", (12, y + 144, 258, y + 184), "Install", colour=GREEN, ink=white,
                                size=15,
                                on_tap=lambda: self.phone.install(app.label)))
        found += [
            *(Widget("image", (12 + 84 * i, y + 200, 90 + 84 * i, y + 320),
                     colour=chance.choice(PAINTS)) for i in range(3)),
            Widget("box", (0, y + 332, WIDTH, y + 333), colour=LINE),
            Widget("text", (12, y + 340, 258, y + 364), "About this app", size=15),
            Widget("text", (12, y + 366, 258, y + 430), ink="#5f6368",
                   text="Fast, friendly and free. Made for your phone, with regular updates."),
            Widget("card", (12, y + 440, 258, y + 500), "Data safety: no data shared", colour=GREY),
        ]
        bar = [
            Widget("box", (0, STATUS_BAR, WIDTH, 56), colour=PALE),
            Widget("icon", (4, 20, 36, 52), desc="Navigate up", glyph="back", on_tap=self.phone.back),
            Widget("text", (44, 16, 250, 56), "Google Play", ink=GREEN, size=15),
        ]
        return uncovered(found, 56) + bar
