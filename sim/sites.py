"""Web pages of the simulated phone: the shops, Reddit, and a plain page for every other host.

A `Page` is what a browser shows under its toolbar; a `PageScreen` is the screen around one. Chrome
(`sim.chrome`) and the Google app (`sim.google_apps`) are such screens. What a page shows follows from
its address and the phone alone: the same query gives the same entries, prices included.

    page = page_for(phone, "bestbuy.com")        # home; page.search("macbook air") -> its results
    page = page_for(phone, "bestbuy.com/search?q=macbook+air")

Entries are titled with every word of the query and differ from each other. Colours are large and flat,
so that a thumbnail of 22 x 16 cells tells home, suggestions, results and product apart.
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from sim.ui import HEIGHT, STATUS_BAR, WIDTH, Screen, Widget

HOST = re.compile(r"(?:https?://)?((?:[a-z0-9][a-z0-9-]*\.)+[a-z]{2,})(?::\d+)?(?:/(\S*))?", re.IGNORECASE)
GREY, LINE, LINK = "#f1f3f4", "#dadce0", "#1a0dab"


@dataclass(frozen=True)
class Site:
    host: str
    name: str
    colour: str  # of the header
    ink: str  # on the header
    banner: str  # the home page's large block
    accent: str  # the strip of an entry's card that holds the price
    stripe: tuple[str, ...] = ()  # small blocks at the header's right


SITES = {
    site.host: site
    for site in (
        Site("bestbuy.com", "Best Buy", "#0046be", "#ffffff", "#003087", "#c9dcff", ("#fff200",)),
        Site("costco.com", "Costco", "#e31837", "#ffffff", "#7a0c1d", "#ffd0d6"),
        Site("ebay.com", "eBay", "#ffffff", "#202124", "#f5af02", "#d9ecb8",
             ("#e53238", "#0064d2", "#f5af02", "#86b817")),
        Site("newegg.com", "Newegg", "#f7a01d", "#202124", "#313a4b", "#ffe2b0"),
        Site("walmart.com", "Walmart", "#4dbdf5", "#002d62", "#ffc220", "#d3effd", ("#ffc220",)),
        Site("sephora.com", "Sephora", "#000000", "#ffffff", "#f3c6d3", "#f9dfe7"),
        Site("homedepot.com", "Home Depot", "#b34700", "#ffffff", "#5d2600", "#f6d0b5"),
        Site("lowes.com", "Lowe's", "#012169", "#ffffff", "#8fa4d6", "#cdd6ee"),
        Site("amazon.com", "Amazon", "#232f3e", "#ffffff", "#37b8a5", "#ffdf9e", ("#ff9900",)),
        Site("reddit.com", "Reddit", "#ff4500", "#ffffff", "#ffb79a", "#e3e9ee"),
    )
}
VARIANTS = (
    "13-inch Silver", "Black", "White", "2-Pack", "Renewed", "with Case", "Limited Edition", "Starter Bundle",
    "Midnight Blue", "Large", "Gift Set", "2026 Model", "Value Pack", "Space Grey", "Compact", "Deluxe",
    "15-inch Black", "Special Edition", "Open Box", "Everyday Pack",
)
POSTS = (
    "what do you think?", "finally got one", "a beginner's guide", "megathread", "is it worth it?",
    "my honest review", "help needed", "daily discussion", "unpopular opinion", "it keeps surprising me",
)
GOODS = ("Headphones", "Laptops", "Kitchen", "Garden", "Toys", "Phones", "Cameras", "Tools", "Games",
         "Beauty")
PAINTS = ("#9bb7d4", "#d4a59b", "#a8c69f", "#c9b6d8", "#d8c88f", "#8fc1bd", "#b9bec7", "#d79fb6")


def stable(phone, *parts: str) -> random.Random:
    """A generator seeded by the phone and `parts` only: the same content every time it is looked at."""
    return random.Random(zlib.crc32(repr((phone.serial_name, parts)).encode()))


def is_address(text: str) -> bool:
    """Whether the omnibox takes `text` for an address ("bestbuy.com") and not for a query."""
    return HOST.fullmatch(text.strip()) is not None


def titled(query: str) -> str:
    """The query's words with capital initials: "macbook air" -> "Macbook Air"; the rest is kept."""
    return " ".join(word[:1].upper() + word[1:] for word in query.split())


def plus(query: str) -> str:
    """A query as an address shows it."""
    return query.strip().replace(" ", "+")


def wrapped_height(text: str, size: int, width: int, lines: int) -> int:
    """Pixels that `text` needs at `size`, at most `lines` lines: an estimate with a wide letter's width."""
    needed = -(-int(len(text) * size * 0.56) // width)
    return max(1, min(lines, needed)) * (size + 4)


def uncovered(widgets: list[Widget], top: int) -> list[Widget]:
    """Those below a header that ends at `top`: texts and buttons by their middle, areas by any part."""
    return [
        w for w in widgets
        if w.bounds[1] < HEIGHT
        and (w.bounds[3] if w.kind in ("box", "card", "image") else (w.bounds[1] + w.bounds[3]) / 2) > top
    ]


def suggestion_rows(top: int, text: str, endings: tuple[str, ...], pick: Callable[[str], None],
                    ink: str = "#202124", colour: str = "#ffffff") -> list[Widget]:
    """The panel under a focused search field: the text typed so far and `text + ending`s, 40 px each."""
    panel = [Widget("box", (0, top, WIDTH, HEIGHT), colour=colour)]
    if not text.strip():
        return panel
    for row, ending in enumerate(("", *endings)):
        found, y = text + ending, top + 4 + 40 * row
        panel.append(Widget("row", (0, y, WIDTH, y + 38), found, id="suggestion", colour=colour, ink=ink,
                            on_tap=lambda found=found: pick(found)))
    return panel


class Page:
    """What is under a browser's toolbar. `header` stays, `body` scrolls."""

    url = ""
    field = ""  # id of the page's own search field; "" has none
    query = ""  # the text in that field
    endings: tuple[str, ...] = ()  # what its suggestions add to the text typed
    header_height = 0
    height = 0  # px of header and body

    def __init__(self, phone):
        self.phone = phone

    def header(self, host: PageScreen, top: int) -> list[Widget]:
        return []

    def body(self, host: PageScreen, y: int) -> list[Widget]:
        """The part below the header; `y` is where it begins, less the scroll."""
        return []

    def search(self, text: str) -> Page:
        raise NotImplementedError(f"{type(self).__name__} has no search field")


class PageScreen(Screen):
    """A screen around one page: toolbar, the page's header, its body or the suggestions."""

    top = STATUS_BAR  # where the page begins

    def __init__(self, phone, page: Page):
        super().__init__(phone)
        self.page = page
        self.content_height = page.height + self.top - STATUS_BAR
        if page.field:
            self.fields[page.field] = page.query

    def around(self, page: Page) -> PageScreen:
        """The screen that another page gets."""
        return type(self)(self.phone, page)

    def open(self, page: Page) -> None:
        self.phone.load(lambda: self.around(page), site=page.url)

    def find(self, text: str) -> None:
        if text.strip():
            self.open(self.page.search(text))

    def toolbar(self) -> list[Widget]:
        return []

    def widgets(self) -> list[Widget]:
        page, below = self.page, self.top + self.page.header_height
        if page.field and self.focused != page.field:
            self.fields[page.field] = page.query  # what was typed and not sent is forgotten
        if page.field and self.focused == page.field:
            body = suggestion_rows(below, self.fields[page.field], page.endings, self.find)
        else:
            body = uncovered(page.body(self, below - self.scroll), below)
        return body + page.header(self, self.top) + self.toolbar()


class SitePage(Page):
    """A site's home page, and the header that all its pages share."""

    field = "site_search"
    endings = (" deals", " best rated")
    header_height = 88

    def __init__(self, phone, site: Site):
        super().__init__(phone)
        self.site = site
        self.url = site.host
        self.height = 88 + (570 if self.is_shop else 500)

    @property
    def is_shop(self) -> bool:
        return self.site.host != "reddit.com"

    def search(self, text: str) -> Page:
        return ResultsPage(self.phone, self.site, text)

    def header(self, host, top):
        site = self.site
        blocks = [
            Widget("box", (250 - 16 * i, top + 10, 262 - 16 * i, top + 30), colour=colour)
            for i, colour in enumerate(reversed(site.stripe))
        ]
        return [
            Widget("box", (0, top, WIDTH, top + 88), colour=site.colour),
            Widget("text", (10, top + 4, 180, top + 40), site.name, id="site_name", ink=site.ink, size=20,
                   on_tap=lambda: host.open(page_for(self.phone, site.host))),
            *blocks,
            Widget("field", (10, top + 46, 260, top + 80), host.fields[self.field], id=self.field,
                   hint=f"Search {site.name}", on_submit=host.find,
                   colour=GREY if site.colour == "#ffffff" else "#ffffff"),
            Widget("box", (0, top + 87, WIDTH, top + 88), colour=LINE),
        ]

    def body(self, host, y):
        site, chance = self.site, stable(self.phone, self.site.host)
        if not self.is_shop:
            found = [Widget("text", (10, y + 6, 260, y + 30), "Popular posts", size=15)]
            for row, word in enumerate(chance.sample(POSTS, 6)):
                title, top = f"{chance.choice(GOODS)}: {word}", y + 34 + 76 * row
                found += _card(site, title, f"r/{chance.choice(GOODS).lower()}", top, 70, chance, "post",
                               lambda title=title: host.open(ProductPage(self.phone, site, title, "")))
            return found
        found = [
            Widget("button", (10 + 128 * i, y + 8, 132 + 128 * i, y + 42), name, colour=GREY,
                   on_tap=lambda name=name: host.find(name))
            for i, name in enumerate(("Deals", "Top sellers"))
        ]
        found += [
            Widget("image", (0, y + 50, WIDTH, y + 170), colour=site.banner, desc="Banner"),
            Widget("text", (20, y + 84, 250, y + 124), f"Save up to {chance.choice((20, 30, 40))}%", size=22,
                   colour=site.colour, ink=site.ink, align="centre"),
            Widget("text", (10, y + 176, 260, y + 200), "Shop by category", size=14),
        ]
        for i, name in enumerate(chance.sample(GOODS, 6)):
            x, top = 10 + 128 * (i % 2), y + 204 + 118 * (i // 2)
            found += [
                Widget("image", (x, top, x + 122, top + 84), colour=chance.choice(PAINTS), glyph=name[0]),
                Widget("button", (x, top + 84, x + 122, top + 112), name, colour=GREY,
                       on_tap=lambda name=name: host.find(name)),
            ]
        return found


class ResultsPage(SitePage):
    """Five entries for a query; the first is fully visible without scrolling."""

    def __init__(self, phone, site, query: str):
        super().__init__(phone, site)
        self.query = query.strip()
        self.url = f"{site.host}/search?q={plus(query)}"
        self.label = f'Results for "{self.query}"'
        self.label_height = wrapped_height(self.label, 13, 250, 2) + 10
        self.height = 88 + self.label_height + 5 * 98 + 12

    def entries(self) -> list[tuple[str, str]]:
        """(title, price) of the five."""
        chance, name = stable(self.phone, self.site.host, self.query.lower()), titled(self.query)
        if not self.is_shop:
            endings = chance.sample(POSTS, 5)
            return [(f"{name}: {end}", f"{chance.randrange(9, 4000)} upvotes") for end in endings]
        endings = chance.sample(VARIANTS, 5)
        return [(f"{name} {end}", f"${chance.randrange(999, 99999) / 100:.2f}") for end in endings]

    def body(self, host, y):
        found = [Widget("text", (10, y + 4, 260, y + self.label_height), self.label, size=13)]
        chance = stable(self.phone, self.site.host, self.query.lower(), "paint")
        for row, (title, price) in enumerate(self.entries()):
            top = y + self.label_height + 4 + 98 * row
            found += _card(self.site, title, price, top, 92, chance, "entry",
                           lambda title=title, price=price: host.open(
                               ProductPage(self.phone, self.site, title, price, self.query)))
        return found


class ProductPage(SitePage):
    """One entry: a shop's product, or a post and its comments."""

    def __init__(self, phone, site, title: str, price: str, query: str = ""):
        super().__init__(phone, site)
        self.title, self.price, self.query = title, price, query
        slug = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60] or "item"
        self.url = f"{site.host}/{'product' if self.is_shop else 'comments'}/{slug}"
        self.title_height = wrapped_height(title, 15, 250, 3) + 6
        self.height = 88 + 150 + self.title_height + 270

    def body(self, host, y):
        chance = stable(self.phone, self.site.host, self.title)
        below = y + 150 + self.title_height
        title = Widget("text", (10, y + 148, 260, below), self.title, id="title", size=15)
        if not self.is_shop:
            title.bounds = (10, y + 34, 260, y + 34 + self.title_height)
            below = y + 46 + self.title_height
            found = [
                Widget("box", (0, y, WIDTH, below), colour=self.site.accent),
                Widget("text", (10, y + 6, 260, y + 30), f"r/{chance.choice(GOODS).lower()}"),
                title,
                Widget("text", (10, below + 6, 260, below + 30), "Comments", size=15),
            ]
            for row, word in enumerate(("I was wondering the same.", "Thanks for sharing!",
                                        "This is the way.")):
                top = below + 36 + 56 * row
                found.append(Widget("card", (10, top, 260, top + 50), word, colour=GREY))
            return found
        return [
            Widget("image", (0, y, WIDTH, y + 144), colour=chance.choice(PAINTS), glyph=self.title[:1],
                   desc="Product image"),
            title,
            Widget("text", (10, below, 130, below + 28), self.price, id="price", size=18, ink="#b12704"),
            Widget("text", (140, below, 260, below + 28), "In stock", ink="#137333"),
            Widget("button", (10, below + 32, 260, below + 72), "Add to cart", colour="#ffd814", size=15,
                   on_tap=lambda: host.open(CartPage(self.phone, self.site, self.title, self.price))),
            Widget("text", (10, below + 84, 260, below + 106), "About this item", size=14),
            Widget("text", (10, below + 108, 260, below + 172),
                   "Free delivery on orders over $35. Free returns within 30 days. One year of guarantee.",
                   ink="#5f6368"),
        ]


class CartPage(SitePage):
    """After "Add to cart"."""

    def __init__(self, phone, site, title: str, price: str):
        super().__init__(phone, site)
        self.title, self.price = title, price
        self.url = f"{site.host}/cart"
        self.height = 88 + 200

    def body(self, host, y):
        return [
            Widget("box", (0, y, WIDTH, y + 40), colour="#ceead6"),
            Widget("text", (10, y + 6, 260, y + 34), "Added to cart", size=16, ink="#137333"),
            Widget("text", (10, y + 50, 260, y + 100), self.title, size=13),
            Widget("text", (10, y + 102, 260, y + 126), f"Subtotal {self.price}", size=14),
            Widget("button", (10, y + 136, 260, y + 176), "Checkout", colour="#ffd814", size=15),
        ]


def _card(site: Site, title: str, note: str, top: int, height: int, chance: random.Random, name: str,
          tap: Callable[[], None]) -> list[Widget]:
    """An entry: a grey card, tapped as a whole, a picture at its left, a strip with the price below."""
    end = top + height
    return [
        Widget("card", (8, top, 262, end), colour=GREY, on_tap=tap),
        Widget("image", (14, top + 6, 74, end - 28), colour=chance.choice(PAINTS), glyph=title[:1],
               on_tap=tap),
        Widget("text", (82, top + 4, 258, end - 26), title, id=name, on_tap=tap, size=13),
        Widget("box", (9, end - 24, 261, end - 1), colour=site.accent, on_tap=tap),
        Widget("text", (16, end - 24, 256, end), note, size=13, on_tap=tap),
    ]


def page_for(phone, address: str) -> Page:
    """The page at `address`, any host: a site's home, or its results for `/search?q=`."""
    match = HOST.fullmatch(address.strip())
    if match is None:
        raise ValueError(f"{address!r} is not an address: give host or host/path, as in bestbuy.com")
    host, path = match[1].lower().removeprefix("www."), match[2] or ""
    grey = Site(host, host, "#5f6368", "#ffffff", "#bdc1c6", "#e8eaed")
    site = SITES.get(host, grey)
    found = re.fullmatch(r"search\?q=(.+)", path)
    return ResultsPage(phone, site, found[1].replace("+", " ")) if found else SitePage(phone, site)
