"""Tasks: instructions in Android-in-the-Wild form, and what counts as done for each.

An instruction is read by an ordered table of templates, which also generates instructions of its own:

    What is the [capital of {country}]?     {slot} is a value, [ ] the span that a user types into a search

A rule then says, from what any phone shows (foreground package and activity, visible text of `uiautomator
dump`), whether the instruction is done:

    task = parse_task("What is the capital of Chile?")
    task.family, task.slot("query")                      # 'question', 'capital of Chile'
    done, reason = is_done(task, [screen_0, ..., screen_now])
    train, test = generate_tasks("train", 256), generate_tasks("test", 256)
    overlap(train, test)                                 # {'exact': 0, 'template': ...}
    novelty(train, test)                                 # ['instance', ...]: what is new in each test task

The instruction lists hold typing mistakes ("Checkthe settings", "a goodrestaurant"): each template is tried
as it stands first, then with the blanks between its words optional. Values held out for `tune` and `test`
(cities, countries, products, ...) never fill their template in `train`; families without such values are
split by instruction.

Departs from the paper: it uses DigiRL's instruction lists with a VLM as the judge. The rules here need no key
and no network, and give the same verdict each time; lists of that form load with `load_tasks`.
"""

from __future__ import annotations

import itertools
import random
import re
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import task_words as words
from task_rules import is_done

__all__ = ["FAMILIES", "Task", "UnknownInstruction", "app_of", "generate_tasks", "is_done", "load_tasks", "novelty",
           "overlap", "parse_task", "two_sets"]

# Family, template; the first that matches wins. {name:list} draws its values from task_words.LISTS[list].
RULES: tuple[tuple[str, str], ...] = (
    ("web_select", 'Go to {host:shop_host}, search for "[{item:product}]", and select the first entry'),
    ("web_search", 'Go to {host:shop_host}, search for "[{item:product}]"'),
    ("web_search", "Search for a new [{item:cosmetic}] on {shop:short_shop}"),
    ("web_search", "Find a nice [{item:furniture}] on {shop:short_shop}"),
    ("web_open", "Go to [{host}]"),
    ("web_open", "Go to [{site}]"),
    ("web_open", "Open [{site}]"),
    ("maps", "Search for a [{place}] on Maps"),
    ("maps", "Search for [{places}] on Maps"),
    ("maps", "Search for [{places}] on Google Maps"),
    ("maps", "Find a [{place}] on Maps"),
    ("maps", "Find [{places}] on Maps"),
    ("directions", "How do I get to the nearest [{spot}]?"),
    ("directions", "Find the nearest [{spot}] that's open {opening}"),
    ("directions", "Find the nearest [{spot}] that's open"),
    ("directions", "Find the nearest [{spot}]"),
    ("video", "Play the new [{artist}] video on YouTube"),
    ("video", "Play the latest video from [{channel}]"),
    ("video", "What's the latest video from [{channel}]?"),
    ("video", "Play some [{tune}] on YouTube"),
    ("install", "Install the [{app:store_app}] app"),
    ("install", "Install [{app:store_app}]"),
    ("alarm", "Set an alarm for {hour}{half}"),
    ("alarm", "Set an alarm for {hour} {half}"),
    ("app_settings", "Check the settings for the [{app:setting_app}] app"),
    ("app_settings", "Check the settings for [{app:setting_app}]"),
    ("notifications", "Show me my notifications"),
    ("notifications", "Show me the notifications"),
    ("notifications", "Show my notifications"),
    ("notifications", "Turn {wanted} notifications for the {app:setting_app} app"),
    ("notifications", "Toggle notifications for the {app:setting_app} app"),
    ("chrome_tab", "Open a new {tab} in Chrome"),
    ("chrome_tab", "Open a new {tab} in the Chrome app"),
    ("chrome_tab", "Open a new Chrome {tab}"),
    ("personal", "Check my {mail}"),
    ("personal", "Check my {mail} inbox"),
    ("personal", "What's on my calendar for {period}?"),
    ("personal", "Open the calendar and show me {span} events?"),
    ("open_app", "Open the {app:own_app} app"),
    ("open_app", "Open the {app:own_app}"),
    ("travel", "Search for [flights from {origin:city} to {city}]"),
    ("travel", "Search for [hotels in {city}]"),
    ("places", "What's a [good restaurant near me]?"),
    ("places", "What's a [good restaurant in {city}]?"),
    ("places", "What's on the [menu at {chain}]?"),
    ("places", "Search for [good {cuisine} restaurants]"),
    ("places", "Search for the [best {cuisine} restaurants]"),
    ("places", "Search for [top rated {cuisine} restaurants]"),
    ("places", "Search for [top rated {cuisine} restaurant]"),
    ("products", "How much does the [{item:gadget} cost on {shop}]?"),
    ("products", "How much does the [{item:gadget} cost]?"),
    ("products", "How much does a [{item:tool} cost at {shop:store}]?"),
    ("products", "What's the [price of the {item:gadget} on {shop}]?"),
    ("products", "What's the [price of the {item:tool} at {shop:store}]?"),
    ("products", "What's the [price of the {item:gadget}]?"),
    ("products", "What is the [price of a {item:tool} at {shop:store}]?"),
    ("products", "What are the [best selling {item:appliance} at {shop:store}]?"),
    ("products", "What are the [new products by {item:brand} on {shop}]?"),
    ("products", "What are the [new products by {item:brand}]?"),
    ("products", "What does the [{item:gadget} look like on {shop}]?"),
    ("products", "What does the [{item:gadget} look like]?"),
    ("products", "Where can I [buy a nice {item:beach}]?"),
    ("products", "Search for a [new {item:cosmetic}]"),
    ("news", "What's the [top post on reddit {when}]?"),
    ("news", "What's the [top post on reddit]?"),
    ("news", "What's on [Reddit {when}]"),
    ("news", "What's on [Reddit]"),
    ("news", "What's the [news in {country}]?"),
    ("news", "What's the [news about {topic:headline}]?"),
    ("news", "What's the [news {when}]?"),
    ("news", "What's the [news]?"),
    ("news", "What's the [latest news in {topic:science}]?"),
    ("news", "What's the [latest {topic:field} news]?"),
    ("question", "What is the [capital of {country}]?"),
    ("question", "Google the [capital of {country}]"),
    ("question", "[How big is {thing}]?"),
    ("question", "[How old is {thing:old_thing}]?"),
    ("question", "[How far is {thing:far_thing}]?"),
    ("question", "What is the [average speed of {thing:mover}]?"),
    ("question", "What is the [speed of {thing:mover}]?"),
    ("question", "What's the [speed of {thing:mover}]?"),
    ("question", "What's the [weather like in {city}]?"),
    ("question", "What [time is it in {city}]?"),
    ("question", "What [time is it]?"),
    ("question", "What's the [time in {city}]?"),
    ("question", "What's the [time]?"),
    ("question", "What's the [US dollar exchange rate against the {currency}]?"),
    ("question", "What's [US dollar exchange rate against the {currency}]?"),
    ("question", "Who is the [{office} of {country}]?"),
    ("question", "Show me some [nice wallpapers for my {device}]"),
    ("question", "How much does a [{rooms} bedroom apartment rent for in {city}]?"),
)
FAMILIES: tuple[str, ...] = (
    "question", "news", "places", "products", "travel", "maps", "directions", "video", "install", "alarm",
    "app_settings", "notifications", "open_app", "chrome_tab", "personal", "web_open", "web_search",
    "web_select")
CLOSED = frozenset({  # split by instruction
    "install", "alarm", "app_settings", "notifications", "open_app", "chrome_tab", "personal"})
APPS = {"maps": "Maps", "directions": "Maps", "video": "YouTube", "install": "Play Store", "alarm": "Clock",
        "app_settings": "Settings", "notifications": "Settings", "personal": "Calendar"}  # of a family; else Chrome
SPLITS = ("test", "tune", "train")
_SLOT = re.compile(r"\{(\w+):?(\w*)\}")


class UnknownInstruction(ValueError):
    """An instruction that no template reads."""


@dataclass(frozen=True)
class Task:
    """One instruction, its family and template, the values in it, and the steps an episode may take."""

    instruction: str
    family: str
    template: str
    slots: tuple[tuple[str, str], ...]
    horizon: int

    @property
    def key(self) -> tuple:
        """The same for all that ask for the same thing: quotes, marks and case aside."""
        return self.template, tuple((name, value.lower()) for name, value in self.slots)

    def slot(self, name: str, default: str = "") -> str:
        return dict(self.slots).get(name, default)

    def is_done(self, screens: Sequence) -> tuple[bool, str]:
        """See `is_done`."""
        return is_done(self, screens)


def _pattern(template: str, gap: str) -> re.Pattern[str]:
    parts = []
    for piece in re.split(r"(\{[\w:]+\}|\[|\]|\s+|['\"?])", template):
        slot = _SLOT.fullmatch(piece)
        if slot:
            parts.append(f"(?P<{slot[1]}>{words.SLOTS.get(slot[1], '.+?')})")
        elif piece.isspace():
            parts.append(gap)
        else:
            parts.append({"[": "(?P<query>", "]": ")", "'": "['’]?", '"': "[\"'“”‘’]", "?": ""}.get(
                piece, re.escape(piece)))
    return re.compile("".join(parts) + r"[\s?.!]*", re.IGNORECASE)


@cache
def _patterns() -> list[tuple[str, str, re.Pattern[str]]]:
    """All templates as they stand, then all with optional blanks, which forgives missing ones."""
    return [(family, template, _pattern(template, gap))
            for gap in (r"\s+", r"\s*") for family, template in RULES]


def parse_task(instruction: str) -> Task:
    """Raises UnknownInstruction, with the text, when no template reads it."""
    text = " ".join(instruction.split())
    for family, template, pattern in _patterns():
        match = pattern.fullmatch(text)
        if match is None:
            continue
        slots = {name: value.strip() for name, value in match.groupdict().items()}
        if not all(re.search(r"\w", value) for value in slots.values()):
            continue
        slots = _complete(family, template, slots)
        if slots is not None:
            return Task(text, family, template, tuple(slots.items()), 20 if family.startswith("web_") else 15)
    raise UnknownInstruction(f"no rule reads the instruction {instruction!r}: phrase it as in `python -c "
                             "\"import tasks; print(*tasks.generate_tasks('train', 50), sep='\\n')\"`")


def _complete(family: str, template: str, slots: dict[str, str]) -> dict[str, str] | None:
    """Adds what the values mean (an app's label and package, a site's host); None if they mean nothing."""
    if "app" in slots:
        slots["label"] = words.label_of(slots["app"])
        slots["package"] = words.PACKAGES.get(slots["label"], "")
        if family == "open_app" and not slots["package"]:
            return None
    if family == "alarm":
        slots["time"] = f"{int(slots['hour'])}:00 {slots['half'].upper()}"
    if "site" in slots:
        slots["query"] += ".com"
    if "host" in slots or "site" in slots:
        slots["address"] = slots["query"] if family == "web_open" else slots["host"]
        slots["host"] = slots["address"].lower().removeprefix("www.")
    elif "shop" in slots:
        slots["host"] = words.host_of(slots["shop"])
        slots["address"] = re.sub(r"\s", "", slots["shop"]) + ".com"
    if "query" in slots and "site" not in slots:
        span = template[template.index("[") + 1:template.index("]")]
        spelt = _SLOT.sub(lambda slot: re.sub(r"^the(?=[A-Z])", "the ", slots[slot[1]]), span)
        if spelt.lower() != slots["query"].lower():          # a typing mistake: how it would be spelt
            slots["spelt"] = spelt
    return slots


def load_tasks(path: str, skip_unknown: bool = False) -> list[Task]:
    """Tasks of a file with one instruction a line; blank lines are passed over.

    Raises OSError for a file that cannot be read and ValueError for one without instructions;
    UnknownInstruction names file, line number and text; `skip_unknown` leaves such lines out, and prints how many.
    """
    tasks, unread = [], []
    try:
        with open(path, encoding="utf-8-sig") as file:           # with or without a byte order mark
            lines = file.readlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: no UTF-8 text ({error.reason} at byte {error.start}): give a text file, one "
                         "instruction a line") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            tasks.append(parse_task(line))
        except UnknownInstruction:
            if not skip_unknown:
                raise UnknownInstruction(
                    f"{path}, line {number}: no rule reads {line.strip()!r}: correct it, or pass over "
                    "such lines with --skip-unknown-tasks") from None
            unread.append(number)
    if unread:
        print(f"{path}: {len(unread)} of {len(lines)} lines left out, the first in line {unread[0]}", flush=True)
    if not tasks:
        raise ValueError(f"{path}: no instruction in it: give a file with one instruction a line")
    return tasks


def overlap(train: Sequence[Task], test: Sequence[Task]) -> dict[str, int]:
    """How many test tasks are among the train tasks ("exact", by `Task.key`), how many have their template there."""
    seen, templates = {task.key for task in train}, {task.template for task in train}
    return {"exact": sum(task.key in seen for task in test),
            "template": sum(task.template in templates for task in test)}


def app_of(task: Task) -> str:
    """The app that the instruction has its user work in: the web is one app, whatever the site."""
    if task.family == "open_app":
        return task.slot("label")
    return "Gmail" if task.slot("mail") else APPS.get(task.family, "Chrome")


def novelty(train: Sequence[Task], test: Sequence[Task]) -> list[str]:
    """What is new in each test task, the first of these: its "app", its "template", the "instance"; else "seen"."""
    seen = {task.key for task in train}
    templates, apps = {task.template for task in train}, {app_of(task) for task in train}
    return ["app" if app_of(task) not in apps else "template" if task.template not in templates
            else "instance" if task.key not in seen else "seen" for task in test]


def two_sets(tasks: Sequence[Task], each: int) -> list[Task]:
    """General and Web Shopping in turns: the first `each` different tasks of each, as many as there are."""
    halves = [[task for task in dict.fromkeys(tasks) if task.family.startswith("web_") == web][:each]
              for web in (False, True)]
    return [task for pair in itertools.zip_longest(*halves) for task in pair if task]


def _mark(text: str) -> int:
    return zlib.crc32(text.encode())


def _share(values: Sequence[str], split: str) -> list[str]:
    """The part of the values that belongs to a split: 15 % test, 15 % tune, the others train."""
    ranked = sorted(values, key=_mark)
    held = max(1, round(0.15 * len(ranked)))
    return {"test": ranked[:held], "tune": ranked[held:2 * held], "train": ranked[2 * held:]}[split]


def _fill(template: str, split: str | None) -> list[str]:
    """All instructions of a template, open values from one split only (from all with None)."""
    slots = _SLOT.findall(template)
    choices = []
    for name, source in slots:
        values = words.LISTS[source or name]
        choices.append(_share(values, split) if split and (source or name) in words.OPEN else values)
    plain = _SLOT.sub("{}", template.replace("[", "").replace("]", ""))
    return [plain.format(*values) for values in itertools.product(*choices)
            if len(set(values)) == len(values)]


def _split_closed(instructions: list[str], entity) -> dict[str, list[str]]:
    """By a hash of the instruction; an entity's last instruction stays in train as long as that goes."""
    parts: dict[str, list[str]] = {split: [] for split in SPLITS}
    held = max(1, round(0.15 * len(instructions)))
    left = Counter(entity(text) for text in instructions)
    for split in ("test", "tune"):
        rest = [text for part in parts.values() for text in part]
        ranked = sorted((text for text in instructions if text not in rest), key=_mark)
        for lone in (False, True):
            for text in ranked:
                if len(parts[split]) < held and text not in parts[split] and (lone or left[entity(text)] > 1):
                    parts[split].append(text)
                    left[entity(text)] -= 1
    taken = set(parts["test"] + parts["tune"])
    parts["train"] = [text for text in instructions if text not in taken]
    return parts


def _entity(text: str) -> str:
    task = parse_task(text)
    return task.slot("label") or task.slot("time") or task.slot("tab") or ("mail" if task.slot("mail") else task.family)


@cache
def _pool(split: str, family: str) -> tuple[tuple[str, ...], ...]:
    """The split's distinct instructions of a family, one group a template."""
    templates = [template for owner, template in RULES if owner == family]
    open_ones = [template for template in templates
                 if family not in CLOSED and any((b or a) in words.OPEN for a, b in _SLOT.findall(template))]
    groups = [_fill(template, split) for template in open_ones]
    closed = [text for template in templates if template not in open_ones for text in _fill(template, None)]
    if closed:
        closed = _split_closed(closed, _entity if family in CLOSED else str)[split]
        by_template: dict[str, list[str]] = {}
        for text in closed:
            by_template.setdefault(parse_task(text).template, []).append(text)
        groups += by_template.values()
    return tuple(tuple(group) for group in groups if group)


def generate_tasks(split: str, num: int, seed: int = 0) -> list[Task]:
    """`num` tasks of "train", "tune" or "test" (no instruction in two of them), each family as often.

    Templates take turns within a family, so that one with few instructions is drawn as often as one with many;
    each gives all of its own before any comes twice.
    """
    if split not in SPLITS:
        raise ValueError(f"split {split!r}: use 'train', 'tune' or 'test'")
    if num < 1:
        raise ValueError(f"num {num}: ask for at least one task")
    rng = random.Random(f"{seed} {split}")
    order = list(FAMILIES)
    rng.shuffle(order)
    streams = {}
    for family in order:
        groups = [itertools.cycle(rng.sample(group, len(group))) for group in _pool(split, family)]
        rng.shuffle(groups)
        streams[family] = itertools.chain.from_iterable(zip(*groups, strict=True))
    return [parse_task(next(streams[family])) for family in itertools.islice(itertools.cycle(order), num)]
