"""The Google app and YouTube of the simulated phone.

Each has a start screen with a way to its search field; ENTER or a suggestion leads to results, and from
there to an article or a video. Results follow from the query and the phone (`sim.sites.stable`).
`GooglePage`, the page of web results, is shown by the Google app and by Chrome.

    phone.launch("com.google.android.youtube"); phone.tap(240, 38); phone.type_text("news"); phone.key(66)
"""

from __future__ import annotations

import re
from functools import partial

from sim.sites import (
    GREY,
    LINE,
    LINK,
    PAINTS,
    Page,
    PageScreen,
    plus,
    stable,
    suggestion_rows,
    titled,
    uncovered,
    wrapped_height,
)
from sim.ui import STATUS_BAR, WIDTH, Screen, Widget

TABS = ("All", "Images", "News", "Videos", "Shopping")
HEADLINES = (
    "Local team wins in the final minute", "Five recipes for a cold evening", "What to watch this weekend",
    "A new bridge opens downtown", "Stargazers expect a clear night", "How to keep houseplants alive",
    "Trains run later from Monday", "The quiet return of the typewriter", "Hikers find a lost trail",
)
SOURCES = ("Wikipedia", "Daily Courier", "The Guide", "Open Almanac", "City Herald", "Answers Weekly")


class GooglePage(Page):
    """Web results: field, five tabs, an answer card and four titles that hold the query."""

    field = "search_box"
    endings = (" near me", " images")
    header_height = 84

    def __init__(self, phone, query: str, tab: str = "All"):
        super().__init__(phone)
        self.query, self.tab = query.strip(), tab
        self.url = f"google.com/search?q={plus(query)}"
        self.title_height = wrapped_height(self.query + " " * 22, 14, 246, 3)
        self.height = 84 + 118 + 4 * (self.title_height + 60)

    def search(self, text: str) -> Page:
        return GooglePage(self.phone, text)

    def header(self, host, top):
        typing = host.focused == self.field
        found = [
            Widget("box", (0, top, WIDTH, top + (50 if typing else 84)), colour="#ffffff"),
            Widget("field", (8, top + 6, 262, top + 44), host.fields[self.field], id=self.field,
                   hint="Search",
                   on_submit=host.find, colour=GREY),
        ]
        if typing:
            return found
        for i, name in enumerate(TABS):
            x = 4 + i * 52
            found.append(Widget("tab", (x, top + 50, x + 52, top + 82), name, checked=name == self.tab,
                                size=11,
                                colour="#ffffff", ink="#1a73e8" if name == self.tab else "#5f6368",
                                on_tap=lambda name=name: host.open(GooglePage(self.phone, self.query, name))))
        return [*found, Widget("box", (0, top + 83, WIDTH, top + 84), colour=LINE)]

    def results(self) -> list[tuple[str, str]]:
        """(title, source) of the four."""
        chance = stable(self.phone, "google", self.tab, self.query.lower())
        forms = ("{} - facts and figures", "All about {}", "{}: what to know", "{} | latest", "A guide to {}",
                 "{} explained", "More on {}")
        sources = chance.sample(SOURCES, 4)
        return [(form.format(self.query), sources[i]) for i, form in enumerate(chance.sample(forms, 4))]

    def _open(self, host, title: str) -> None:
        host.open(ArticlePage(self.phone, title))

    def body(self, host, y):
        chance = stable(self.phone, "answer", self.query.lower())
        found = [
            Widget("card", (8, y + 6, 262, y + 106), colour="#d2e3fc"),
            Widget("text", (16, y + 8, 254, y + 28), "Top answer", ink="#1967d2", size=11),
            Widget("text", (16, y + 28, 254, y + 64), titled(self.query), id="answer", size=15),
            Widget("text", (16, y + 66, 254, y + 102), f"{chance.randrange(3, 40)} sources agree.",
                   ink="#5f6368"),
        ]
        for row, (title, source) in enumerate(self.results()):
            top = y + 114 + (self.title_height + 60) * row
            end = top + self.title_height + 54
            tap = partial(self._open, host, title)
            found += [
                Widget("text", (12, top, 258, top + 16), source, ink="#5f6368", size=11),
                Widget("text", (12, top + 16, 258, end - 36), title, id="result", ink=LINK, size=14,
                       on_tap=tap),
                Widget("text", (12, end - 36, 258, end - 4), "A short account, with further reading.",
                       ink="#4d5156", size=11),
                Widget("box", (0, end, WIDTH, end + 1), colour=LINE),
            ]
        return found


class ArticlePage(Page):
    """What a result or a feed's card leads to."""

    def __init__(self, phone, title: str):
        super().__init__(phone)
        self.title = title
        slug = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:40] or "article"
        self.url = f"courier.example/{slug}"
        self.title_height = wrapped_height(title, 18, 250, 5) + 8
        self.height = self.title_height + 420

    def body(self, host, y):
        chance = stable(self.phone, "article", self.title)
        text = "It began quietly, as such things do, and within a week everyone was talking about it. "
        end = y + self.title_height + 12
        return [
            Widget("text", (10, y + 8, 260, end), self.title, id="headline", size=18),
            Widget("image", (0, end + 6, WIDTH, end + 126), colour=chance.choice(PAINTS)),
            *(Widget("text", (10, end + 136 + 84 * i, 260, end + 214 + 84 * i), text * 2, ink="#3c4043")
              for i in range(3)),
        ]


def feed(phone, label: str, y: int, tap) -> list[Widget]:
    """Cards with headlines: a picture and one line each; `tap(headline)`."""
    chance = stable(phone, "feed", label)
    found = [Widget("text", (12, y, 258, y + 22), label, size=14)]
    for row, headline in enumerate(chance.sample(HEADLINES, 3)):
        top, go = y + 28 + 150 * row, lambda headline=headline: tap(headline)
        found += [
            Widget("image", (10, top, 260, top + 92), colour=chance.choice(PAINTS), on_tap=go),
            Widget("text", (10, top + 92, 260, top + 134), headline, colour=GREY, size=13, on_tap=go),
        ]
    return found


class GoogleApp(Screen):
    """Start of the Google app: the Discover feed, or suggestions while its field has the focus."""

    package = "com.google.android.googlequicksearchbox"
    activity = "com.google.android.googlequicksearchbox.SearchActivity"
    content_height = 590

    def __init__(self, phone):
        super().__init__(phone)
        self.fields["search_box"] = ""

    def find(self, text: str) -> None:
        if text.strip():
            self.open(GooglePage(self.phone, text))

    def open(self, page: Page) -> None:
        self.phone.load(lambda: GoogleResults(self.phone, page), site=page.url)

    def widgets(self):
        typing = self.focused == "search_box"
        top = 22 if typing else 84 - self.scroll
        field = Widget("field", (8, top, 262, top + 38), self.fields["search_box"], id="search_box",
                       hint="Search",
                       on_submit=self.find, colour=GREY)
        if typing:
            return [*suggestion_rows(66, self.fields["search_box"], GooglePage.endings, self.find), field]
        logo = Widget("text", (40, 26 - self.scroll, 230, 76 - self.scroll), "Google", size=34,
                      ink="#4285f4", align="centre")
        return [*feed(self.phone, "Discover", 134 - self.scroll,
                      lambda headline: self.open(ArticlePage(self.phone, headline))), logo, field]


class GoogleResults(PageScreen):
    """A page inside the Google app: no address, its field on top."""

    package, activity = GoogleApp.package, GoogleApp.activity


# --- YouTube -----------------------------------------------------------------------------------------


def views(phone, title: str) -> str:
    return f"{stable(phone, 'views', title).randrange(2, 900)}K views"


class YouTube(Screen):
    """YouTube's start: a feed of videos and the button that opens the search."""

    package = "com.google.android.youtube"
    activity = "com.google.android.apps.youtube.app.WatchWhileActivity"
    content_height = 44 + 4 * 152

    def videos(self) -> list[str]:
        return stable(self.phone, "youtube").sample(HEADLINES, 4)

    def widgets(self):
        return [
            *self.rows(60, self.videos(), "feed_video"),
            Widget("box", (0, STATUS_BAR, WIDTH, 60), colour="#ffffff"),
            Widget("box", (12, 26, 40, 48), colour="#ff0000"),
            Widget("text", (46, 20, 160, 56), "YouTube", size=18),
            Widget("icon", (220, 20, 262, 56), desc="Search", glyph="search",
                   on_tap=lambda: self.phone.start(VideoSearch(self.phone))),
        ]

    def watch(self, title: str) -> None:
        self.phone.load(lambda: Watch(self.phone, title), site="youtube.com")

    def rows(self, top: int, titles: list[str], name: str) -> list[Widget]:
        found = []
        for row, title in enumerate(titles):
            y = top + 152 * row - self.scroll
            chance = stable(self.phone, "video", title)
            length = f"{chance.randrange(2, 20)}:{chance.randrange(10, 60)}"
            tap = partial(self.watch, title)
            found += [
                Widget("image", (0, y, WIDTH, y + 102), colour=chance.choice(PAINTS), glyph="play",
                       on_tap=tap),
                Widget("text", (226, y + 82, 266, y + 98), length, align="centre",
                       colour="#202124", ink="#ffffff", size=11),
                Widget("text", (10, y + 104, 260, y + 138), title, id=name, size=13, on_tap=tap),
                Widget("text", (10, y + 136, 260, y + 150), views(self.phone, title),
                       ink="#5f6368", size=11),
            ]
        return uncovered(found, 60)


class VideoSearch(YouTube):
    """The search field of YouTube; with a query, its results under it."""

    content_height = 464

    def __init__(self, phone, query: str = ""):
        super().__init__(phone)
        self.query = query.strip()
        self.fields["search_edit_text"] = self.query
        if self.query:
            self.content_height = 44 + 4 * 152
        else:
            self.initial_focus = "search_edit_text"

    def find(self, text: str) -> None:
        if text.strip():
            self.phone.load(lambda: VideoSearch(self.phone, text), site="youtube.com")

    def videos(self) -> list[str]:
        chance = stable(self.phone, "youtube", self.query.lower())
        endings = ("(Official Video)", "- Live", "(Lyrics)", "Top 10", "- Full Episode", "Explained",
                   "Reaction")
        return [f"{titled(self.query)} {end}" for end in chance.sample(endings, 4)]

    def widgets(self):
        typing = self.focused == "search_edit_text"
        if typing or not self.query:
            body = suggestion_rows(60, self.fields["search_edit_text"] if typing else "",
                                   (" live", " playlist"),
                                   self.find)
        else:
            body = self.rows(60, self.videos(), "video")
        return [
            *body,
            Widget("box", (0, STATUS_BAR, WIDTH, 60), colour="#ffffff"),
            Widget("icon", (4, 20, 40, 56), desc="Navigate up", glyph="back",
                   on_tap=self.phone.back),
            Widget("field", (44, 20, 262, 56), self.fields["search_edit_text"], id="search_edit_text",
                   hint="Search YouTube", on_submit=self.find, colour=GREY),
        ]


class Watch(YouTube):
    """One video playing."""

    activity = "com.google.android.apps.youtube.app.WatchActivity"
    content_height = 370 + 3 * 64

    def __init__(self, phone, title: str):
        super().__init__(phone)
        self.title, self.playing = title, True

    def _toggle(self) -> None:
        self.playing = not self.playing
        self.phone.changed()

    def widgets(self):
        y, chance = -self.scroll, stable(self.phone, "video", self.title)
        sign = "pause" if self.playing else "play"
        found = [
            Widget("image", (0, y + 16, WIDTH, y + 176), colour="#0f0f0f", desc="Video player"),
            Widget("icon", (110, y + 70, 160, y + 120), desc=f"{sign.title()} video", glyph=sign,
                   colour="#3d3d3d", ink="#ffffff", on_tap=self._toggle),
            Widget("box", (0, y + 172, 96, y + 176), colour="#ff0000"),
            Widget("text", (10, y + 182, 260, y + 222), self.title, id="title", size=15),
            Widget("text", (10, y + 224, 260, y + 242), views(self.phone, self.title), size=11,
                   ink="#5f6368"),
            Widget("box", (10, y + 252, 44, y + 286), colour=chance.choice(PAINTS)),
            Widget("text", (52, y + 252, 160, y + 286), "The Channel", size=13),
            Widget("button", (166, y + 250, 260, y + 288), "Subscribe", colour="#cc0000", ink="#ffffff"),
            Widget("text", (10, y + 300, 260, y + 322), "Up next", size=14),
        ]
        for row, headline in enumerate(chance.sample(HEADLINES, 3)):
            top = y + 328 + 64 * row
            found += [
                Widget("image", (10, top, 100, top + 56), colour=chance.choice(PAINTS), glyph="play"),
                Widget("text", (108, top, 260, top + 56), headline),
            ]
        return found
