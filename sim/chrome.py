"""Chrome on the simulated phone: address bar with suggestions, tabs, incognito, menu, any page inside.

ENTER in the address bar opens the site if the text looks like a host ("bestbuy.com") and searches the
web otherwise. Pages are `sim.sites.Page`s; every one loads through `phone.load`, so it may be slow, fail
or find Chrome not responding. The counts of tabs live in `phone.data`, so clearing Chrome's data
brings back one tab.

    phone.launch("com.android.chrome"); phone.tap(90, 38); phone.type_text("costco.com"); phone.key(66)
"""

from __future__ import annotations

from functools import partial

from sim.google_apps import ArticlePage, GooglePage, feed
from sim.sites import GREY, LINE, PAINTS, Page, PageScreen, is_address, page_for, suggestion_rows
from sim.ui import HEIGHT, STATUS_BAR, WIDTH, Screen, Widget

PACKAGE, ACTIVITY = "com.android.chrome", "com.google.android.apps.chrome.Main"
TOOLBAR_END = 60
SHORTCUTS = (("Wikipedia", "wikipedia.org"), ("Weather", "weather.com"), ("Recipes", "allrecipes.com"),
             ("Sports", "espn.com"))
DARK, DARK_BAR = "#202124", "#35363a"


def _tabs(phone, incognito: bool) -> int:
    return phone.data(PACKAGE).get("incognito" if incognito else "tabs", 0 if incognito else 1)


def _add_tab(phone, incognito: bool) -> None:
    phone.data(PACKAGE)["incognito" if incognito else "tabs"] = _tabs(phone, incognito) + 1
    phone.start(Chrome(phone, NewTabPage(phone, incognito), incognito))


class NewTabPage(Page):
    """Logo, shortcuts and articles; in incognito, a dark page that says so."""

    def __init__(self, phone, incognito: bool = False):
        super().__init__(phone)
        self.incognito = incognito
        self.height = 400 if incognito else 660

    def body(self, host, y):
        if self.incognito:
            return [
                Widget("box", (0, y, WIDTH, HEIGHT + 200), colour=DARK),
                Widget("box", (100, y + 50, 170, y + 80), colour="#5f6368"),
                Widget("box", (70, y + 80, 200, y + 92), colour="#5f6368"),
                Widget("text", (14, y + 130, 256, y + 160), "You've gone Incognito", ink="#ffffff", size=18,
                       align="centre"),
                Widget("text", (24, y + 170, 246, y + 250), ink="#bdc1c6",
                       text="Browse privately: other people on this device won't see your activity."),
            ]
        found = [Widget("text", (40, y + 14, 230, y + 74), "Google", ink="#4285f4", size=38, align="centre")]
        for i, (name, site) in enumerate(SHORTCUTS):
            x, go = 12 + 64 * i, lambda site=site: host.open(page_for(self.phone, site))
            found += [
                Widget("image", (x + 6, y + 88, x + 50, y + 132), colour=PAINTS[i], glyph=name[0], on_tap=go),
                Widget("text", (x - 4, y + 134, x + 60, y + 152), name, size=10, align="centre", on_tap=go),
            ]
        return found + feed(
            self.phone, "Articles for you", y + 164, lambda title: host.open(ArticlePage(self.phone, title))
        )


class Chrome(PageScreen):
    """One tab, at one page."""

    package, activity = PACKAGE, ACTIVITY
    top = TOOLBAR_END

    def __init__(self, phone, page: Page | None = None, incognito: bool = False):
        super().__init__(phone, page or NewTabPage(phone))
        self.incognito, self.menu = incognito, False
        self.background = DARK if incognito else "#ffffff"
        self.fields["url_bar"] = self.page.url

    def around(self, page: Page) -> Chrome:
        return Chrome(self.phone, page, self.incognito)

    def go(self, text: str) -> None:
        """ENTER in the address bar, or a suggestion."""
        if is_address(text):
            self.open(page_for(self.phone, text))
        elif text.strip():
            self.open(GooglePage(self.phone, text))

    def on_back(self) -> bool:
        handled, self.menu = self.menu, False
        return handled

    def _open_menu(self) -> None:
        self.menu = not self.menu
        self.phone.focus(None)
        self.phone.changed()

    def _choose(self, name: str) -> None:
        self.menu = False
        if name in ("New tab", "New incognito tab"):
            _add_tab(self.phone, name != "New tab")
        else:
            self.phone.start(ChromeList(self.phone, name))

    def toolbar(self) -> list[Widget]:
        colour, ink = (DARK_BAR, "#ffffff") if self.incognito else ("#ffffff", "#202124")
        tabs = _tabs(self.phone, self.incognito)
        found = [
            Widget("box", (0, STATUS_BAR, WIDTH, TOOLBAR_END), colour=colour),
            Widget("box", (0, TOOLBAR_END - 1, WIDTH, TOOLBAR_END), colour=LINE),
            Widget("field", (8, 21, 184, 55), self.fields["url_bar"], id="url_bar",
                   hint="Search or type web address",
                   on_submit=self.go, colour="#5f6368" if self.incognito else GREY, ink=ink),
            Widget("button", (192, 24, 222, 52), str(tabs), desc=f"{tabs} open tabs", colour="#9aa0a6",
                   size=13,
                   on_tap=lambda: self.phone.start(TabSwitcher(self.phone, self.incognito))),
            Widget("icon", (230, 22, 266, 54), desc="More options", glyph="more", ink=ink,
                   on_tap=self._open_menu),
        ]
        if self.menu:
            found.append(Widget("box", (0, STATUS_BAR, WIDTH, HEIGHT), on_tap=self._open_menu))
            found.append(Widget("box", (94, 20, 268, 266), colour="#e8f0fe"))
            for row, name in enumerate(("New tab", "New incognito tab", "Bookmarks", "History", "Downloads",
                                        "Settings")):
                found.append(Widget("row", (96, 22 + 40 * row, 266, 62 + 40 * row), name, colour="#e8f0fe",
                                    size=13,
                                    on_tap=partial(self._choose, name)))
        return found

    def widgets(self) -> list[Widget]:
        if self.focused != "url_bar":
            self.fields["url_bar"] = self.page.url  # what was typed and not sent is forgotten
            return super().widgets()
        typed = self.fields["url_bar"]
        ink, colour = ("#ffffff", DARK) if self.incognito else ("#202124", "#ffffff")
        endings = () if typed == self.page.url else (" near me", " images")
        return suggestion_rows(TOOLBAR_END, typed, endings, self.go, ink, colour) + self.toolbar()


class TabSwitcher(Screen):
    """All open tabs, as cards; the plus opens another one."""

    package, activity, background = PACKAGE, ACTIVITY, "#dfe1e5"

    def __init__(self, phone, incognito: bool):
        super().__init__(phone)
        self.incognito = incognito
        self.content_height = 60 + 110 * -(-_tabs(phone, incognito) // 2)

    def widgets(self):
        found = []
        for i in range(_tabs(self.phone, self.incognito)):
            x, y = 10 + 128 * (i % 2), 70 + 110 * (i // 2) - self.scroll
            found.append(Widget("card", (x, y, x + 122, y + 100), f"Tab {i + 1}", on_tap=self.phone.back,
                                colour="#5f6368" if self.incognito else "#ffffff",
                                ink="#ffffff" if self.incognito else DARK))
        return [
            *found,
            Widget("box", (0, STATUS_BAR, WIDTH, TOOLBAR_END), colour="#c4c7cc"),
            Widget("icon", (8, 22, 44, 54), desc="New tab", glyph="add",
                   on_tap=lambda: _add_tab(self.phone, self.incognito)),
            Widget("text", (60, 22, 240, 54), "Incognito tabs" if self.incognito else "Tabs", size=15),
        ]


class ChromeList(Screen):
    """Bookmarks, history, downloads or Chrome's own settings."""

    package, activity = PACKAGE, ACTIVITY
    ROWS = {
        "Bookmarks": ("Mobile bookmarks", "Reading list"),
        "History": ("Clear browsing data", "Your history appears here"),
        "Downloads": ("Files you download appear here",),
        "Settings": ("Search engine", "Privacy and security", "Passwords", "Site settings", "Languages"),
    }

    def __init__(self, phone, name: str):
        super().__init__(phone)
        self.name = name

    def widgets(self):
        bar = [
            Widget("box", (0, STATUS_BAR, WIDTH, TOOLBAR_END), colour="#e8f0fe"),
            Widget("icon", (4, 22, 40, 54), desc="Navigate up", glyph="back", on_tap=self.phone.back),
            Widget("text", (50, 20, 250, 56), self.name, size=17),
        ]
        return bar + [
            Widget("row", (0, 64 + 44 * i, WIDTH, 108 + 44 * i), name, size=13)
            for i, name in enumerate(self.ROWS[self.name])
        ]
