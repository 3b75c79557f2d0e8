"""What counts as done, family by family, from what any phone shows.

A screen has `.package`, `.activity` and `.texts` (texts and content descriptions in reading order, as
`uiautomator dump` gives them) and may have `.nodes` (`ui_state.Node`). A rule sees all
screens of the episode: some tasks are done by a change ("toggle"), some by a choice ("the first entry").

A search is done on a page of results that holds every key word of the query, not on its suggestions; an app
is open when its own window is in front, not a dialog over it, nor its icon on the home screen.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence

CHROME, GOOGLE = "com.android.chrome", "com.google.android.googlequicksearchbox"
YOUTUBE, MAPS = "com.google.android.youtube", "com.google.android.apps.maps"
PLAY_STORE, SETTINGS, CLOCK = "com.android.vending", "com.android.settings", "com.google.android.deskclock"
CALENDAR, GMAIL, SYSTEM_UI = "com.google.android.calendar", "com.google.android.gm", "com.android.systemui"
RESULT_TABS = frozenset({"all", "images", "news", "videos", "shopping", "maps", "books"})
STOP_WORDS = frozenset("a an and are at be by can do does for from how i in is it like me my of on s some "
                       "that the this to what whats when where who with".split())


def words_of(text: str) -> list[str]:
    """Lower-case words without punctuation and plural s: "USB-C to 12' Ladders" -> usbc, to, 12, ladder."""
    text = unicodedata.normalize("NFKC", text).lower()
    words = (re.sub(r"\W", "", word) for word in re.split(r"[\s,;:/+?!=()\"“”]+", text))
    return [re.sub(r"(?<=\w\w[^s])s$", "", word) for word in words if word]


def key_words(text: str) -> list[str]:
    """The words that a result must hold: all but stop words, or all when there is nothing else."""
    words = words_of(text)
    return [word for word in words if word not in STOP_WORDS] or words


def _holds(text: str, keys: Sequence[str], ordered: bool) -> bool:
    words = words_of(text)
    if not ordered:
        return set(keys) <= set(words)
    rest = iter(words)
    return all(key in rest for key in keys)


def _holding(texts: Iterable[str], *spans: str, ordered: bool = False) -> list[str]:
    """The texts that hold every key word of one of the spans."""
    keys = [key_words(span) for span in spans if span]
    return [text for text in texts if any(_holds(text, key, ordered) for key in keys)]


def _spans(task) -> tuple[str, str]:
    return task.slot("query"), task.slot("spelt")


def _flat(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).lower().split())


def _plain(screen) -> list[str]:
    return [_flat(text) for text in screen.texts]


def _switches(screen) -> list:
    """Nodes whose mark says what is on; up to Android 10 a switch had a text ON or OFF, too."""
    return [node for node in getattr(screen, "nodes", ()) if node.cls.endswith("Switch")]


def _typing(screen) -> bool:
    return any(node.focused and "EditText" in node.cls for node in getattr(screen, "nodes", ()))


def _results(screen, task) -> tuple[bool, str]:
    """A page of Google's results for the query."""
    if screen.package not in (CHROME, GOOGLE):
        return False, f"{screen.package} is in front, not Google or Chrome"
    if len(RESULT_TABS.intersection(_plain(screen))) < 3:
        return False, "no results page (only suggestions, or another page)"
    if not _holding(screen.texts, *_spans(task), ordered=task.family == "travel"):
        return False, f"results, but none for {task.slot('query')!r}"
    return True, f"results for {task.slot('query')!r}"


def _on_site(screen, host: str) -> bool:
    """The site's page has loaded: its address, and its name on the page."""
    if screen.package != CHROME or _suggesting(screen):
        return False
    texts = _plain(screen)
    address = re.compile(rf"(https?://)?(www\.)?{re.escape(host)}(/.*)?")
    name = re.sub(r"\W", "", host.split(".")[0])
    on_page = [text for text in texts if not address.fullmatch(text)]
    return (any(address.fullmatch(text) for text in texts) and "this site can't be reached" not in texts
            and any(name in re.sub(r"\W", "", text) for text in on_page))


def _suggesting(screen) -> bool:
    """The address bar's suggestions are open."""
    return any(node.focused and node.id.endswith("url_bar") for node in getattr(screen, "nodes", ())) or any(
        text.endswith((" near me", " images")) for text in _plain(screen))


def _shop_results(screen, host: str, *spans: str) -> str:
    """The header of the shop's results for the item, "" without."""
    headers = [text for text in screen.texts if re.search(r"\bresults?\b", text, re.IGNORECASE)]
    found = _holding(headers, *spans)
    return found[0] if found and _on_site(screen, host) else ""


def _search(task, screens) -> tuple[bool, str]:
    now = screens[-1]
    if task.slot("shop") and _shop_results(now, task.slot("host"), task.slot("item")):
        return True, f"{task.slot('shop')}'s results for {task.slot('item')!r}"
    if "reddit" in words_of(task.slot("query")) and task.family == "news" and _on_site(now, "reddit.com"):
        return True, "reddit.com"
    return _results(now, task)


def _maps(task, screens) -> tuple[bool, str]:
    now = screens[-1]
    if now.package != MAPS:
        return False, f"{now.package} is in front, not Maps"
    texts = _plain(now)
    if task.family == "directions":
        if not {"your location", "start"} <= set(texts):
            return False, "no directions on the screen"
    elif "results" not in texts:
        return False, "no results on the map"
    if not _holding(now.texts, *_spans(task)):
        return False, f"not for {task.slot('query')!r}"
    return True, f"{task.family} for {task.slot('query')!r}"


def _video(task, screens) -> tuple[bool, str]:
    now = screens[-1]
    found = _holding(now.texts, *_spans(task))
    if now.package == YOUTUBE and found and "pause video" in _plain(now):
        return True, f"playing {found[0]!r}"
    if task.instruction.lower().startswith("play"):
        return False, "no video of it is playing"
    if now.package == YOUTUBE:
        shown = len(found) > 1 and not _typing(now)
        return shown, f"YouTube's results for {task.slot('query')!r}" if shown else "no results on YouTube"
    return _results(now, task)


def _install(task, screens) -> tuple[bool, str]:
    now, texts = screens[-1], _plain(screens[-1])
    if now.package != PLAY_STORE or "about this app" not in texts:
        return False, "not on an app's page of the Play Store"
    if not any(words_of(text) == words_of(task.slot("query")) for text in now.texts):
        return False, f"not the page of {task.slot('query')!r}"
    done = "open" in texts or "uninstall" in texts
    return done, f"{task.slot('query')!r} is installed" if done else "not installed yet"


def _alarm(task, screens) -> tuple[bool, str]:
    now, texts = screens[-1], _plain(screens[-1])
    wanted = task.slot("time").lower()
    if now.package != CLOCK or "select time" in texts:
        return False, "no list of alarms in front"
    shown = {wanted}
    if not any(text.endswith((" am", " pm")) for text in texts):  # a clock of 24 hours
        hour, minutes = re.split("[: ]", wanted)[:2]
        hour = int(hour) % 12 + 12 * wanted.endswith("pm")
        shown |= {f"{hour}:{minutes}", f"{hour:02}:{minutes}"}
    if switches := _switches(now):
        found = [node for node in now.nodes if shown & {_flat(node.text), _flat(node.desc)}]
        row = [min(switches, key=lambda switch, at=node.center[1]: abs(switch.center[1] - at)) for node in found]
        on = any(switch.checked for switch in row)
    else:
        states = [next((later for later in texts[place:] if later in ("on", "off")), "off")
                  for place, text in enumerate(texts) if text in shown]
        on = "on" in states
    return on, f"alarm at {wanted} {'on' if on else 'off or missing'}"


def _app_settings(task, screens) -> tuple[bool, str]:
    now, texts = screens[-1], _plain(screens[-1])
    if now.package != SETTINGS or "app info" not in texts:
        return False, "no app's settings in front"
    done = task.slot("label").lower() in texts
    return done, f"settings of {task.slot('label')!r}" if done else "settings of another app"


def _switch(screen, label: str) -> str:
    """State of the app's notification switch on its own screen, "" on any other screen."""
    texts = _plain(screen)
    if screen.package != SETTINGS or f"all {label.lower()} notifications" not in texts:
        return ""
    if switches := _switches(screen):
        return "on" if switches[0].checked else "off"
    return next((text for text in texts if text in ("on", "off")), "")


def _notifications(task, screens) -> tuple[bool, str]:
    label = task.slot("label")
    if not label:
        done = screens[-1].package == SYSTEM_UI and bool({"manage", "clear all"} & set(_plain(screens[-1])))
        return done, "the notifications are open" if done else "the notifications are not open"
    seen = [state for state in (_switch(screen, label) for screen in screens) if state]
    now = _switch(screens[-1], label)
    if not now:
        return False, f"not on the notification settings of {label}"
    done = now == task.slot("wanted").lower() if task.slot("wanted") else now != seen[0]
    return done, f"notifications of {label} are {now}, first {seen[0]}"


def _open_app(task, screens) -> tuple[bool, str]:
    done = screens[-1].package == task.slot("package")
    return done, f"{screens[-1].package} is in front"


def _tabs(screen) -> int:
    """How many tabs Chrome says are open, 0 where it does not say."""
    found = (re.match(r"(\d+) open tabs?", text) for text in _plain(screen) if screen.package == CHROME)
    return next((int(match[1]) for match in found if match), 0)


def _chrome_tab(task, screens) -> tuple[bool, str]:
    now = screens[-1]
    incognito = now.package == CHROME and any("gone incognito" in text for text in _plain(now))
    if not task.slot("tab").lower().startswith(("tab", "window")):
        return incognito, "an incognito tab is open" if incognito else "no incognito tab"
    counts = [count for count in map(_tabs, screens) if count]
    done = not incognito and _tabs(now) > 0 and _tabs(now) > counts[0]
    return done, f"open tabs in the course of the episode: {counts}"


def _personal(task, screens) -> tuple[bool, str]:
    now, texts = screens[-1], _plain(screens[-1])
    if task.slot("mail"):
        done = now.package == GMAIL and "primary" in texts and "new in gmail" not in texts
        return done, "the inbox" if done else "no inbox in front"
    view = "month" if "month" in task.instruction.lower() else "week"
    done = now.package == CALENDAR and f"this {view}" in texts
    return done, f"the calendar's {view} is {'' if done else 'not '}shown"


def _web(task, screens) -> tuple[bool, str]:
    now, host, item = screens[-1], task.slot("host"), task.slot("item")
    if not _on_site(now, host):
        return False, f"{host} is not loaded"
    if task.family == "web_open":
        return True, f"{host} is loaded"
    if task.family == "web_search":
        done = bool(_shop_results(now, host, item))
        return done, f"results for {item!r} on {host}" if done else f"no results for {item!r} on {host}"
    texts = _plain(now)
    first = next(filter(None, (_first_entry(screen, host, item) for screen in reversed(screens[:-1]))), "")
    if not first:
        return False, f"no results for {item!r} on {host} were seen before"
    if "add to cart" not in texts:
        return False, "no product page"
    titles = now.texts[:texts.index("add to cart")]
    done = any(words_of(title) == words_of(first) for title in titles)
    return done, f"product page of the first entry {first!r}" if done else f"not the first entry, {first!r}"


def _first_entry(screen, host: str, item: str) -> str:
    """Title of the first entry under the header of the shop's results, "" on any other screen."""
    header = _shop_results(screen, host, item)
    if not header:
        return ""
    below = screen.texts[list(screen.texts).index(header) + 1:]
    return next(iter(_holding(below, item)), "")


_RULES = {"maps": _maps, "directions": _maps, "video": _video, "install": _install, "alarm": _alarm,
          "app_settings": _app_settings, "notifications": _notifications, "open_app": _open_app,
          "chrome_tab": _chrome_tab, "personal": _personal,
          "web_open": _web, "web_search": _web, "web_select": _web}


def is_done(task, screens: Sequence) -> tuple[bool, str]:
    """Whether the last of the episode's screens (oldest first) has the task done, and why or why not."""
    if not screens:
        raise ValueError("no screens: give those of the episode, oldest first")
    return _RULES.get(task.family, _search)(task, screens)
