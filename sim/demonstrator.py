"""A scripted user of the simulated phone: does a task by the shortest way, seeing only the UI state.

    memory = {}
    kind, *args = next_action(task, ui, memory)     # ui: package, activity, nodes of `uiautomator dump`

Actions: ("tap", x, y) and ("swipe", x0, y0, x1, y1) in pixels, ("type", text), ("enter",), ("back",),
("home",), ("complete",) when nothing is left to do. A task has `family`, `instruction` and `slot(name)`, as
in tasks.py; what is typed is the slot "query", a span of the instruction as it stands there. `memory` is the
episode's, {} at its start.

It starts from any screen: answers dialogs, waits for slow pages (with a tap on the status bar, which does
nothing), retries failed ones, scrolls lists, and goes home from apps that it does not need.
"""

from __future__ import annotations

from sim.catalog import (
    CALENDAR,
    CHROME,
    CLOCK,
    GMAIL,
    GOOGLE,
    LAUNCHER,
    MAPS,
    PLAY_STORE,
    SETTINGS,
    SYSTEM_UI,
    YOUTUBE,
)

HINTS = ("", "Search", "Search YouTube", "Search here", "Search for apps & games",
         "Search or type web address")
ANSWERS = ("Allow", "Wait", "Retry", "Got it")
WAIT = ("tap", 135, 6)
SCROLL_DOWN, SCROLL_UP = ("swipe", 135, 390, 135, 150), ("swipe", 135, 150, 135, 390)
DONE, BACK = ("complete",), ("back",)


class _Screen:
    """Questions to a UI state, and the answers as actions."""

    def __init__(self, ui, memory: dict):
        self.package, self.nodes, self.memory = ui.package, ui.nodes, memory

    def shows(self, *texts: str) -> bool:
        found = {text for node in self.nodes for text in (node.text, node.desc)}
        return all(text in found for text in texts)

    def node(self, text: str = "", *, desc: str = "", id: str = ""):
        """The first node with that text, description or id, None without."""
        for node in self.nodes:
            if (not text or node.text == text) and (not desc or node.desc == desc) and (
                    not id or node.id.endswith("/" + id)):
                return node
        return None

    def tap(self, text: str = "", *, desc: str = "", id: str = ""):
        node = self.node(text, desc=desc, id=id)
        return ("tap", *node.center) if node else None

    def fill(self, id: str, text: str):
        """Tap a search field, type into it, press ENTER; None without the field."""
        node = self.node(id=id)
        if node is None:
            return None
        if not node.focused:
            self.memory["tapped"] = id
            return ("tap", *node.center)
        if node.text == text:
            return ("enter",)
        fresh = self.memory.pop("tapped", "") == id or node.text in HINTS
        return ("type", text) if fresh else BACK    # hides the keyboard; the next tap selects the old text

    def find_row(self, text: str):
        """Tap the row with that text, scrolling its list: down to its end, then up again."""
        row = self.tap(text)
        if row:
            return row
        seen = [node.text for node in self.nodes]
        if self.memory.get("list") == seen:         # scrolling changed nothing: its end
            self.memory["up"] = not self.memory.get("up", False)
        self.memory["list"] = seen
        return SCROLL_UP if self.memory.get("up") else SCROLL_DOWN

    def start(self, label: str):
        """Open an app from the home screen or the drawer; from elsewhere, home first."""
        if self.package != LAUNCHER:
            return ("home",)
        icon = self.tap(label)
        return icon or self.tap(desc="Apps list") or self.find_row(label)


def next_action(task, ui, memory: dict) -> tuple:
    """What the user does next on this screen."""
    screen = _Screen(ui, memory)
    for text in ANSWERS:
        if screen.shows(text):
            return screen.tap(text)
    if screen.shows("Loading"):
        return WAIT
    if screen.package == SYSTEM_UI and task.slot("label"):
        return BACK
    return _WAYS.get(task.family, _search)(task, screen) or DONE


def _search(task, screen):
    if screen.package == LAUNCHER:
        return screen.tap(desc="Search") or BACK
    if screen.package != GOOGLE:
        return ("home",)
    box = screen.node(id="search_box")
    if box and box.text == task.slot("query") and not box.focused:
        return DONE
    return screen.fill("search_box", task.slot("query")) or ("home",)


def _maps(task, screen):
    if screen.package != MAPS:
        return screen.start("Maps")
    if screen.shows("Your location", "Start"):
        return DONE if screen.memory.get("routed") else BACK
    box, query = screen.node(id="search_omnibox"), task.slot("query")
    if box and box.text == query and not box.focused:
        screen.memory["routed"] = task.family == "directions"
        return screen.tap("Directions") if task.family == "directions" else DONE
    return screen.fill("search_omnibox", query) or BACK


def _video(task, screen):
    if screen.package != YOUTUBE:
        return screen.start("YouTube")
    box, query = screen.node(id="search_edit_text"), task.slot("query")
    if box and box.text == query and not box.focused:
        return screen.tap(id="video") or SCROLL_UP
    if screen.shows("Pause video"):
        return DONE if screen.memory.get("sent") else BACK
    action = screen.fill("search_edit_text", query) or screen.tap(desc="Search") or BACK
    screen.memory["sent"] = action == ("enter",) or screen.memory.get("sent", False)
    return action


def _install(task, screen):
    if screen.package != PLAY_STORE:
        return screen.start("Play Store")
    app = task.slot("query")
    if screen.shows("About this app"):
        title = screen.node(id="title")
        if title is None or title.text.lower() != app.lower():
            return BACK
        return DONE if screen.shows("Uninstall") else screen.tap("Install")
    box = screen.node(id="search_bar")
    if box and box.text == app and not box.focused:
        for row in screen.nodes:
            if row.id.endswith("/app_name") and row.text.lower() == app.lower():
                near = [node for node in screen.nodes if node.text == "Install"
                        and abs(node.center[1] - row.center[1]) < 40]
                return ("tap", *(near[0] if near else row).center)     # installed: its page, not the app
        return SCROLL_UP
    return screen.fill("search_bar", app) or BACK


def _alarm(task, screen):
    if screen.package != CLOCK:
        return screen.start("Clock")
    if not screen.shows("Select time"):
        if screen.shows(task.slot("time")) and screen.memory.get("set"):
            return DONE
        return screen.tap(desc="Add alarm") or screen.tap("Alarm") or BACK
    hour, half = str(int(task.slot("hour"))), task.slot("half").upper()
    if not screen.shows(f"{hour}:00"):
        return screen.tap(hour)
    if not screen.node(half).checked:
        return screen.tap(half)
    screen.memory["set"] = True
    return screen.tap("OK")


def _app_info(task, screen):
    """To the app's page in Settings; None when it is there."""
    if screen.package != SETTINGS:
        return screen.start("Settings")
    if screen.shows("App info"):
        return None if screen.shows(task.slot("label")) else BACK
    if screen.shows("All apps"):
        return screen.find_row(task.slot("label"))
    return screen.tap("Apps") or BACK


def _notifications(task, screen):
    label = task.slot("label")
    if not label:
        return DONE if screen.package == SYSTEM_UI else ("swipe", 135, 4, 135, 300)
    if not screen.shows("App notifications"):
        return _app_info(task, screen) or screen.tap("Notifications")
    if not screen.shows(f"All {label} notifications"):
        return BACK
    switch = screen.node(id="switch")
    first = screen.memory.setdefault("first", switch.checked)
    wanted = {"on": True, "off": False}.get(task.slot("wanted").lower(), not first)
    return DONE if switch.checked == wanted else ("tap", *switch.center)


def _open_app(task, screen):
    return DONE if screen.package == task.slot("package") else screen.start(task.slot("label"))


def _chrome_tab(task, screen):
    if screen.package != CHROME:
        return screen.start("Chrome")
    if screen.memory.get("opened"):
        return DONE
    plain = task.slot("tab").lower().startswith(("tab", "window"))
    row = screen.tap("New tab" if plain else "New incognito tab") if screen.shows("Bookmarks") else None
    screen.memory["opened"] = row is not None
    return row or screen.tap(desc="More options") or BACK


def _personal(task, screen):
    if task.slot("mail"):
        return DONE if screen.package == GMAIL else screen.start("Gmail")
    if screen.package != CALENDAR:
        return screen.start("Calendar")
    view = "Month" if "month" in task.instruction.lower() else "Week"
    if screen.shows("This " + view.lower()):
        return DONE
    return (screen.tap(view) if screen.shows("Day", view) else None) or screen.tap(desc="Views") or BACK


def _web(task, screen):
    if screen.package != CHROME:
        return screen.start("Chrome")
    address, item = screen.node(id="url_bar"), task.slot("query")
    if address is None:
        return BACK
    here = address.text.lower()
    if address.focused or here.split("/")[0] != task.slot("host"):
        return screen.fill("url_bar", task.slot("address"))
    if task.family == "web_open":
        return DONE
    if task.family == "web_select" and "/product/" in here:
        return DONE if screen.memory.get("entered") else BACK
    box = screen.node(id="site_search")
    if box and not box.focused and screen.shows(f'Results for "{item}"'):
        screen.memory["entered"] = task.family == "web_select"
        return screen.tap(id="entry") if task.family == "web_select" else DONE
    return screen.fill("site_search", item) or SCROLL_UP


_WAYS = {"maps": _maps, "directions": _maps, "video": _video, "install": _install, "alarm": _alarm,
         "app_settings": _app_info, "notifications": _notifications,
         "open_app": _open_app, "chrome_tab": _chrome_tab, "personal": _personal,
         "web_open": _web, "web_search": _web, "web_select": _web}
