"""The simulated phone's web, Google, video, map and store apps: driven by taps on what the dump shows."""

import re
import xml.etree.ElementTree as ET

import pytest

from sim.phone import Phone
from sim.sites import SITES, is_address

BACK, ENTER = 4, 66  # Android key codes
CHROME, GOOGLE = "com.android.chrome", "com.google.android.googlequicksearchbox"
YOUTUBE, MAPS, STORE = "com.google.android.youtube", "com.google.android.apps.maps", "com.android.vending"
TABS = ["All", "Images", "News", "Videos", "Shopping"]


class Finger:
    """Acts on a phone the way the demonstrator does: finds a node in the dump and taps its middle."""

    def __init__(self, package: str, **odds):
        self.phone = Phone(0, seed=1, **{"dialogs": 0, "failed_loads": 0, "slow_loads": 0, **odds})
        self.phone.launch(package)

    def nodes(self) -> list[dict]:
        return [node.attrib for node in ET.fromstring(self.phone.hierarchy_xml().encode()).iter("node")]

    def texts(self) -> list[str]:
        return [value for node in self.nodes() for value in (node["text"], node["content-desc"]) if value]

    def find(self, name: str) -> list[dict]:
        """Nodes of that text, description or id, in reading order."""
        names = (name, f"{self.phone.top.package}:id/{name}")
        return [n for n in self.nodes() if {n["text"], n["content-desc"], n["resource-id"]} & set(names)]

    def box(self, name: str) -> list[int]:
        found = self.find(name)
        assert found, f"{name!r} is not on the screen: {self.texts()}"
        return [int(value) for value in re.findall(r"\d+", found[0]["bounds"])]

    def tap(self, name: str) -> None:
        x0, y0, x1, y1 = self.box(name)
        self.phone.tap((x0 + x1) // 2, (y0 + y1) // 2)

    def text(self, name: str) -> str:
        return self.find(name)[0]["text"]

    def type(self, field: str, text: str, enter: bool = True) -> None:
        self.tap(field)
        self.phone.type_text(text)
        if enter:
            self.phone.key(ENTER)


@pytest.mark.parametrize(("text", "expected"), [
    ("bestbuy.com", True), ("https://www.reddit.com/r/all", True), ("news.bbc.co.uk", True),
    ("lowes", False), ("what is 3.5", False),
    ("St. Louis hotels", False), ("12.50", False), ("best buy.com", False), ("", False),
])
def test_is_address(text, expected):
    assert is_address(text) is expected


def test_chrome_suggestions_are_not_results():
    hand = Finger(CHROME)
    hand.type("url_bar", "hotels in rome", enter=False)
    rows = [node["text"] for node in hand.find("suggestion")]
    assert rows == ["hotels in rome", "hotels in rome near me", "hotels in rome images"]
    assert not set(TABS) & set(hand.texts())
    hand.tap("hotels in rome near me")
    assert hand.text("url_bar") == "google.com/search?q=hotels+in+rome+near+me"
    assert set(TABS) <= set(hand.texts()) and hand.text("search_box") == "hotels in rome near me"


def test_chrome_results_hold_the_query_and_are_the_same_each_time():
    hand, titles = Finger(CHROME), []
    for _ in range(2):
        hand.type("url_bar", "capital of peru")
        page = hand.phone.top.page
        titles.append([title for title, _ in page.results()])
        assert len(set(titles[-1])) == 4 and all("capital of peru" in title for title in titles[-1])
        assert hand.find("result")[0]["text"] == titles[-1][0]
    assert titles[0] == titles[1]
    hand.type("search_box", "weather", enter=False)
    assert not set(TABS) & set(hand.texts())
    hand.phone.key(BACK)  # keyboard away: the page is there again with its query
    assert hand.text("search_box") == "capital of peru" and "News" in hand.texts()
    hand.tap("result")
    assert "News" not in hand.texts() and hand.text("headline") == titles[0][0]


def test_abandoned_typing_leaves_the_address():
    hand = Finger(CHROME)
    hand.type("url_bar", "costco.com")
    hand.type("url_bar", "bestbuy.com", enter=False)
    assert hand.text("url_bar") == "bestbuy.com" and "Costco" not in hand.texts()
    hand.phone.key(BACK)
    assert hand.text("url_bar") == "costco.com" and "Costco" in hand.texts()


def test_tabs_and_incognito_count():
    hand = Finger(CHROME)
    for count in (2, 3):
        hand.tap("More options")
        assert {"New incognito tab", "Bookmarks", "History", "Downloads", "Settings"} <= set(hand.texts())
        hand.tap("New tab")
        assert f"{count} open tabs" in hand.texts()
    hand.tap("More options")
    hand.tap("New incognito tab")
    assert "You've gone Incognito" in hand.texts() and "1 open tabs" in hand.texts()
    hand.type("url_bar", "lowes.com")
    assert "1 open tabs" in hand.texts() and "Lowe's" in hand.texts()
    hand.phone.clear(CHROME)
    hand.phone.launch(CHROME)
    assert "1 open tabs" in hand.texts() and "You've gone Incognito" not in hand.texts()


def test_menu_closes():
    hand = Finger(CHROME)
    for close in (lambda: hand.phone.key(BACK), lambda: hand.phone.tap(30, 300)):
        hand.tap("More options")
        close()
        assert "Bookmarks" not in hand.texts() and "1 open tabs" in hand.texts()


@pytest.mark.parametrize("host", [host for host in SITES if host != "reddit.com"])
def test_shop_search_to_product(host):
    hand, name = Finger(CHROME), SITES[host].name
    hand.type("url_bar", host)
    assert hand.text("url_bar") == host and {name, "Deals", "Top sellers"} <= set(hand.texts())
    assert hand.text("site_search") == f"Search {name}"
    hand.type("site_search", "macbook air", enter=False)
    assert "macbook air deals" in hand.texts() and 'Results for "macbook air"' not in hand.texts()
    hand.phone.key(ENTER)
    assert hand.text("url_bar") == f"{host}/search?q=macbook+air"
    assert 'Results for "macbook air"' in hand.texts()
    entries = hand.phone.top.page.entries()
    assert len({title for title, _ in entries}) == 5
    assert all({"macbook", "air"} <= set(title.lower().split()) for title, _ in entries)
    assert all(re.fullmatch(r"\$\d+\.\d\d", price) for _, price in entries)
    assert "Add to cart" not in hand.texts()
    title, bottom = hand.text("entry"), hand.box("entry")[3]
    assert title == entries[0][0] and bottom < 480
    hand.tap("entry")
    assert hand.text("url_bar").startswith(f"{host}/product/macbook-air-")
    assert hand.text("title") == title and {entries[0][1], "Add to cart"} <= set(hand.texts())
    x0, y0, x1, y1 = hand.box("Add to cart")
    assert y1 - y0 >= 28 and x1 - x0 > 200 and y1 <= 480


def test_results_scroll_to_the_last_entry():
    hand = Finger(CHROME)
    hand.type("url_bar", "newegg.com")
    hand.type("site_search", "razer blade")
    last = hand.phone.top.page.entries()[-1][0]
    assert last not in hand.texts()
    for _ in range(3):
        hand.phone.swipe(130, 400, 130, 150)
    hand.tap(last)
    assert hand.text("title") == last


def test_reddit_has_posts_and_no_product():
    hand = Finger(CHROME)
    hand.type("url_bar", "reddit.com")
    assert {"Reddit", "Popular posts"} <= set(hand.texts())
    hand.type("site_search", "cats")
    assert 'Results for "cats"' in hand.texts()
    hand.tap("entry")
    assert "Comments" in hand.texts() and "Add to cart" not in hand.texts()


@pytest.mark.parametrize("query", [
    "it's", 'say "hi" & <bye>', "naïve 你好 😀", "x " * 150, "50% off; $HOME", "12' ladder",
])
def test_any_query_works(query):
    hand = Finger(CHROME)
    hand.type("url_bar", "target.com")
    assert "target.com" in hand.texts()
    hand.type("site_search", query)
    assert f'Results for "{query.strip()}"' in hand.texts()
    title = hand.text("entry")
    assert all(word.lower() in title.lower() for word in query.split())
    hand.tap("entry")
    assert hand.text("title") == title
    hand.type("url_bar", query)
    assert hand.text("search_box") == query.strip() and hand.phone.png().startswith(b"\x89PNG")
    for package, field in ((GOOGLE, "search_box"), (MAPS, "search_omnibox"), (STORE, "search_bar")):
        hand.phone.launch(package)
        hand.type(field, query)
        assert hand.text(field) == query.strip() and hand.phone.png().startswith(b"\x89PNG")


def test_failed_load_and_retry():
    hand = Finger(CHROME, failed_loads=1)
    hand.type("url_bar", "bestbuy.com")
    assert "This site can't be reached" in hand.texts() and "Best Buy" not in hand.texts()
    for _ in range(60):
        if hand.find("Retry"):
            hand.tap("Retry")
    assert "Best Buy" in hand.texts()


def test_google_app():
    hand = Finger(GOOGLE)
    assert "Discover" in hand.texts() and not hand.phone.keyboard and hand.text("search_box") == "Search"
    hand.type("search_box", "how big is the universe?", enter=False)
    assert "Discover" not in hand.texts() and not set(TABS) & set(hand.texts())
    hand.phone.key(ENTER)
    assert set(TABS) <= set(hand.texts()) and not hand.find("url_bar")
    assert hand.phone.focus_component().startswith(GOOGLE + "/")
    assert "how big is the universe?" in hand.text("result")
    hand.phone.home()
    hand.phone.open_search()
    assert hand.phone.keyboard and hand.phone.focused == "search_box"


def test_youtube_to_watch_page():
    hand = Finger(YOUTUBE)
    hand.tap("Search")
    assert hand.phone.focused == "search_edit_text" and hand.text("search_edit_text") == "Search YouTube"
    hand.phone.type_text("bruno mars")
    assert not hand.find("video")
    hand.phone.key(ENTER)
    assert hand.text("search_edit_text") == "bruno mars"
    title = hand.text("video")
    assert {"bruno", "mars"} <= set(title.lower().split()) and "Subscribe" not in hand.texts()
    hand.tap("video")
    assert hand.phone.focus_component() == f"{YOUTUBE}/com.google.android.apps.youtube.app.WatchActivity"
    assert {title, "Pause video", "Subscribe"} <= set(hand.texts())
    hand.tap("Pause video")
    assert "Play video" in hand.texts()


def test_maps_directions():
    hand = Finger(MAPS)
    assert hand.text("search_omnibox") == "Search here"
    hand.type("search_omnibox", "best pizza", enter=False)
    assert "Results" not in hand.texts()
    hand.phone.key(ENTER)
    assert "Results" in hand.texts() and hand.text("search_omnibox") == "best pizza"
    place = hand.text("place")
    assert place.startswith("Best Pizza") and "Start" not in hand.texts()
    hand.tap("Directions")
    assert {"Your location", place, "Start", "min"} <= set(hand.texts())
    hand.phone.key(BACK)
    hand.tap("place")
    assert "Start" not in hand.texts()
    hand.tap("Directions")
    assert {"Your location", place, "Start", "min"} <= set(hand.texts())


def test_store_installs_and_uninstalls():
    hand = Finger(STORE)
    before = set(hand.phone.packages(third_party=True))
    hand.type("search_bar", "ebay app")
    assert hand.text("app_name") == "eBay" and "About this app" not in hand.texts()
    hand.tap("app_name")
    assert {"eBay", "Install", "About this app"} <= set(hand.texts()) and "Uninstall" not in hand.texts()
    assert set(hand.phone.packages(third_party=True)) == before
    hand.phone.key(BACK)
    hand.tap("Install")
    assert {"eBay", "Uninstall", "Open", "About this app"} <= set(hand.texts())
    (new,) = set(hand.phone.packages(third_party=True)) - before
    hand.tap("Open")
    assert hand.phone.focus_component().startswith(new + "/")
    hand.phone.launch(STORE)
    hand.tap("Uninstall")
    assert "Install" in hand.texts() and set(hand.phone.packages(third_party=True)) == before


def test_store_knows_what_is_installed():
    hand = Finger(STORE)
    hand.type("search_bar", "spotify")
    assert hand.text("app_name") == "Spotify" and hand.find("Open")
    hand.tap("app_name")
    assert {"Uninstall", "Open"} <= set(hand.texts())


def test_content_does_not_depend_on_the_episode():
    shown = []
    for seed in (5, 6):
        hand = Finger(CHROME)
        hand.phone.reseed(seed)
        hand.type("url_bar", "ebay.com")
        hand.type("site_search", "usb-c")
        shown.append(hand.texts())
    assert shown[0] == shown[1]
