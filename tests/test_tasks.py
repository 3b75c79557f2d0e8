"""Reading and generating instructions, and the rules of what is done, on screens made by hand."""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

import task_words
from task_rules import key_words, words_of
from tasks import (
    FAMILIES,
    RULES,
    UnknownInstruction,
    app_of,
    generate_tasks,
    load_tasks,
    novelty,
    overlap,
    parse_task,
    two_sets,
)
from ui_state import Node, UiState

LISTS = Path(__file__).parent / "fixtures" / "aitw"
SPLITS = ("train", "tune", "test")


def lists(*names: str):
    return [task for name in names for task in load_tasks(str(LISTS / name))]


# ---- reading


def test_every_line_of_the_real_lists_has_its_family():
    tasks = lists("general_train.txt", "general_test.txt", "webshop_train.txt", "webshop_test.txt")
    assert len(tasks) == 544 + 432 + 438 + 360 + 1      # the first file's last line has no newline
    different = {task.instruction: task for task in tasks}
    assert len(different) == 962
    assert Counter(task.family for task in different.values()) == {
        "question": 135, "news": 70, "places": 51, "products": 52, "travel": 60, "maps": 14, "directions": 26,
        "video": 27, "install": 20, "alarm": 15, "app_settings": 21, "notifications": 5, "open_app": 17,
        "chrome_tab": 17, "personal": 7, "web_open": 7, "web_search": 212, "web_select": 206}


@pytest.mark.parametrize(("instruction", "family", "query"), [
    ("What is the capital of Chile?", "question", "capital of Chile"),
    ("Google the capital of Peru", "question", "capital of Peru"),
    ("What's the time?", "question", "time"),
    ("How much does a 2 bedroom apartment rent for in Miami?", "question",
     "2 bedroom apartment rent for in Miami"),
    ("What's the news in Peru?", "news", "news in Peru"),
    ("What's on Reddit today", "news", "Reddit today"),
    ("What's the news about the US dollar exchange rate?", "news", "news about the US dollar exchange rate"),
    ("Search for good Thai restaurants", "places", "good Thai restaurants"),
    ("Search for good pizza restaurants on Maps", "maps", "good pizza restaurants"),
    ("Search for top rated burger restaurants on Google Maps", "maps", "top rated burger restaurants"),
    ("What's the price of the LG TV?", "products", "price of the LG TV"),
    ("What is the price of a 12' ladder at Home Depot?", "products", "price of a 12' ladder at Home Depot"),
    ("Search for a new mascara", "products", "new mascara"),
    ("Search for a new mascara on Sephora", "web_search", "mascara"),
    ("Find a nice sofa on eBay", "web_search", "sofa"),
    ("Search for hotels in Las Vegas", "travel", "hotels in Las Vegas"),
    ("Find the nearest electronics store that's open now", "directions", "electronics store"),
    ("Play some music on YouTube", "video", "music"),
    ("What's the latest video from IGN?", "video", "IGN"),
    ("Install the eBay app", "install", "eBay"),
    ("Open Reddit", "web_open", "Reddit.com"),
    ("Go to bestbuy.com", "web_open", "bestbuy.com"),
    ("Go to ebay.com, search for \"usb-c to usb-a\"", "web_search", "usb-c to usb-a"),
    ("Go to ebay.com, search for 'asus rog', and select the first entry", "web_select", "asus rog"),
    ("Open a new private window in the chrome app", "chrome_tab", ""),
    ("Open the calendar", "open_app", ""),
    ("Open the calendar and show me this week's events?", "personal", ""),
])
def test_family_and_the_span_to_type(instruction, family, query):
    task = parse_task(instruction)
    assert (task.family, task.slot("query")) == (family, query)
    assert task.horizon == (20 if family.startswith("web_") else 15)
    assert query.removesuffix(".com") in instruction    # copied verbatim


@pytest.mark.parametrize(("instruction", "family", "query", "spelt"), [
    ("Checkthe settings for the Amazon Prime Music app", "app_settings", "Amazon Prime Music", ""),
    ("What's a goodrestaurant in Austin?", "places", "goodrestaurant in Austin", "good restaurant in Austin"),
    ("What's the news in theFalkland Islands?", "news", "news in theFalkland Islands",
     "news in the Falkland Islands"),
    ("Searchfor good French restaurants", "places", "good French restaurants", ""),
    ("Set an alarmfor 5pm", "alarm", "", ""),
    ("How much does a3 bedroom apartment rent for in Portland?", "question",
     "3 bedroom apartment rent for in Portland", ""),
    ("What's US dollar exchange rateagainst the Mexican Peso?", "question",
     "US dollar exchange rateagainst the Mexican Peso", "US dollar exchange rate against the Mexican Peso"),
    ("WHat are the new products by Samsung on eBay?", "products", "new products by Samsung on eBay", ""),
    ("What's the price of the new iPhone", "products", "price of the new iPhone", ""),
    ("What’s the news?", "news", "news", ""),
    ("  Open   Reddit. ", "web_open", "Reddit.com", ""),
])
def test_typing_mistakes_are_read(instruction, family, query, spelt):
    task = parse_task(instruction)
    assert (task.family, task.slot("query"), task.slot("spelt")) == (family, query, spelt)


def test_slots_say_what_names_mean():
    assert parse_task("Set an alarm for 6am").slot("time") == "6:00 AM"
    assert parse_task("Set an alarm for 07am").slot("time") == "7:00 AM"  # as a clock shows it
    assert parse_task("Open the SMS app").slot("package") == "com.google.android.apps.messaging"
    assert parse_task("Open the gallery").slot("label") == "Photos"
    assert parse_task("Check the settings for the Google Play Books app").slot("label") == "Play Books"
    task = parse_task("Search for a new blush on Sephora")
    assert (task.slot("host"), task.slot("address")) == ("sephora.com", "Sephora.com")
    assert parse_task("What are the best selling refrigerators at Lowes?").slot("host") == "lowes.com"


@pytest.mark.parametrize("line", [
    "Make me a sandwich", "Open the pod bay doors", "Go to ", "?", "Set an alarm for 25pm"])
def test_an_unknown_line_is_named(tmp_path, line):
    with pytest.raises(UnknownInstruction, match="no rule reads"):
        parse_task(line)
    path = tmp_path / "list.txt"
    path.write_text(f"Open Reddit\n\n{line}\nOpen the clock\n")
    with pytest.raises(UnknownInstruction) as error:
        load_tasks(str(path))
    assert f"{path}, line 3: " in str(error.value) and repr(line.strip()) in str(error.value)
    assert [task.family for task in load_tasks(str(path), skip_unknown=True)] == ["web_open", "open_app"]


def test_a_byte_order_mark_is_no_part_of_an_instruction_and_other_bytes_are_named(tmp_path):
    path = tmp_path / "list.txt"
    path.write_text("Open the clock\n", encoding="utf-8-sig")
    assert [task.instruction for task in load_tasks(str(path))] == ["Open the clock"]
    path.write_bytes(b"Open the clock\n\xff")
    with pytest.raises(ValueError, match=r"list\.txt: no UTF-8 text \(invalid start byte at byte 15\)"):
        load_tasks(str(path))


def test_a_file_without_instructions_is_an_error(tmp_path):
    path = tmp_path / "empty.txt"
    path.write_text("\n \n")
    with pytest.raises(ValueError, match="no instruction in it"):
        load_tasks(str(path))
    path.write_text("Make me a sandwich\n")
    with pytest.raises(ValueError, match="no instruction in it"):
        load_tasks(str(path), skip_unknown=True)
    with pytest.raises(FileNotFoundError):
        load_tasks(str(tmp_path / "none.txt"))


# ---- generating


def test_the_splits_share_no_instruction_and_no_family_is_empty():
    splits = {split: generate_tasks(split, 5000) for split in SPLITS}
    seen = {split: {task.instruction.lower() for task in tasks} for split, tasks in splits.items()}
    assert not seen["train"] & seen["test"] and not seen["train"] & seen["tune"] and not seen["tune"] & seen["test"]
    for tasks in splits.values():
        assert {task.family for task in tasks} == set(FAMILIES)
        for task in tasks:
            assert parse_task(task.instruction) == task
    assert overlap(splits["train"], splits["test"])["exact"] == 0


def test_families_take_turns_and_a_seed_repeats_itself():
    tasks = generate_tasks("test", 36, seed=3)
    assert Counter(task.family for task in tasks) == dict.fromkeys(FAMILIES, 2)
    assert [task.family for task in tasks[:18]] == [task.family for task in tasks[18:]]
    assert tasks == generate_tasks("test", 36, seed=3) != generate_tasks("test", 36, seed=4)


def test_open_values_are_held_out():
    def values(split: str) -> set[tuple[str, str]]:
        return {(task.template, value) for task in generate_tasks(split, 9000)
                for name, value in task.slots if name in ("city", "country", "query")
                and f"{{{name}" in task.template and task.family in ("travel", "question", "news")}

    train, tune, test = (values(split) for split in SPLITS)
    assert len(test) > 50 and not train & test and not train & tune and not tune & test


def test_held_out_entities_of_closed_families_are_known_from_train():
    def entities(split: str) -> set[tuple[str, str]]:
        return {(task.family, task.slot("label") or task.slot("time")) for task in generate_tasks(split, 4000)
                if task.family in ("app_settings", "notifications", "open_app", "alarm", "install")}

    assert entities("test") | entities("tune") <= entities("train")


def test_enough_to_learn_from():
    counts = Counter(task.family for task in set(generate_tasks("train", 18 * 1200)))
    assert all(counts[family] >= 250 for family in ("question", "products", "travel", "web_search", "web_select"))
    assert min(counts.values()) >= 12 and sum(counts.values()) > 4000


def test_word_lists_hold_no_value_twice_and_every_template_generates():
    for name, values in task_words.LISTS.items():
        assert len({value.lower() for value in values}) == len(values), name
    templates = {task.template for split in SPLITS for task in generate_tasks(split, 4000)}
    assert templates == {template for _, template in RULES}


@pytest.mark.parametrize(("split", "num", "what"), [
    ("dev", 5, "'train', 'tune' or 'test'"), ("train", 0, "at least one")])
def test_bad_requests_are_refused(split, num, what):
    with pytest.raises(ValueError, match=what):
        generate_tasks(split, num)


def test_novelty_names_the_largest_thing_that_is_new():
    def tasks(*instructions):
        return [parse_task(text) for text in instructions]

    train = tasks("Set an alarm for 4pm", "Open the Camera app", "What's the news?", "Check my email")
    test = tasks("set an alarm for 4pm", "Set an alarm for 4 pm", "Set an alarm for 7pm", "Open the Clock",
                 "Go to ebay.com", "Play some jazz on YouTube", "Check my gmail inbox",
                 "What's on my calendar for this week?")  # fmt: skip
    assert [app_of(task) for task in train] == ["Clock", "Camera", "Chrome", "Gmail"]
    assert novelty(train, test) == ["seen", "template", "instance", "template", "template", "app", "template", "app"]
    assert novelty(train, train) == ["seen"] * 4
    generated = novelty(generate_tasks("train", 8000, 1), generate_tasks("test", 256))
    assert "seen" not in generated and generated.count("instance") > 240


def test_two_sets_take_turns_and_nothing_comes_twice():
    tasks = [parse_task(text) for text in (
        "Go to ebay.com", "Open the Camera app", "Set an alarm for 4pm", "Go to ebay.com", "Show my notifications",
        "Open the Camera app", "Go to reddit.com")]  # fmt: skip
    assert [task.instruction for task in two_sets(tasks, 2)] == [
        "Open the Camera app", "Go to ebay.com", "Set an alarm for 4pm", "Go to reddit.com"]
    assert [task.instruction for task in two_sets(tasks, 9)][4:] == ["Show my notifications"]  # as many as there are
    assert two_sets(tasks, 0) == []


def test_overlap_of_the_real_lists():
    assert overlap(lists("general_train.txt"), lists("general_test.txt")) == {"exact": 432, "template": 432}
    train, test = lists("webshop_train.txt"), list({t.instruction: t for t in lists("webshop_test.txt")}.values())
    assert (len(test), overlap(train, test)["exact"]) == (193, 77)  # 5 to the letter
    assert sum(task.instruction.lower() in {other.instruction.lower() for other in train} for task in test) == 5


def test_quotes_marks_and_case_do_not_make_another_task():
    train = [parse_task("What's the news in Chile?"), parse_task('Go to ebay.com, search for "corsair k70"')]
    same = [parse_task(text) for text in ("what's the news in chile", "What\u2019s the news in Chile?",
                                          "Go to ebay.com, search for 'Corsair K70'")]  # fmt: skip
    other = [parse_task("What's the news in Peru?"), parse_task("Go to ebay.com, search for 'corsair k65'"),
             parse_task("Go to newegg.com, search for 'corsair k70'")]  # fmt: skip
    assert overlap(train, same) == {"exact": 3, "template": 3} and set(novelty(train, same)) == {"seen"}
    assert overlap(train, other)["exact"] == 0 and set(novelty(train, other)) == {"instance"}


# ---- what is done

CHROME, GOOGLE = "com.android.chrome", "com.google.android.googlequicksearchbox"
YOUTUBE, MAPS = "com.google.android.youtube", "com.google.android.apps.maps"
SETTINGS, CLOCK, STORE = "com.android.settings", "com.google.android.deskclock", "com.android.vending"
LAUNCHER, PERMISSION = "com.google.android.apps.nexuslauncher", "com.google.android.permissioncontroller"
TABS = ("All", "Images", "News", "Videos", "Shopping")


def screen(package: str, *texts: str):
    return SimpleNamespace(package=package, activity=package + ".Main", texts=list(texts))


def web(address: str, *texts: str):
    return screen(CHROME, address, "1 open tabs", "More options", *texts)


def results(query: str):
    return screen(GOOGLE, query, *TABS, f"All about {query}")


def switch(label: str, state: str):
    return screen(SETTINGS, "App notifications", label, f"All {label} notifications", state)


HOME = screen(LAUNCHER, "Search", "Chrome", "Clock", "Apps list")
SHOP = web("ebay.com", "eBay", "Search eBay", "Deals", "Top sellers")
FOUND = web("ebay.com/search?q=asus+rog", "eBay", "asus rog", 'Results for "asus rog"', "Asus Rog Black", "$9.00",
            "Asus Rog 2-Pack", "$8.00")
SELECT = "Go to ebay.com, search for 'asus rog', and select the first entry"


def product(title: str, host: str = "ebay.com"):
    return web(f"{host}/product/x", host.split(".")[0], "asus rog", title, "$9.00", "Add to cart")


SUCCESSES = [
    ("What is the capital of Chile?", [HOME, results("capital of Chile")]),
    ("What is the capital of Chile?", [web("google.com/search?q=x", "the capital city of CHILE", *TABS)]),
    ("What's the news in theFalkland Islands?", [results("news in theFalkland Islands")]),
    ("What's the news in theFalkland Islands?", [results("news in the Falkland Islands")]),
    ("What's on Reddit", [results("Reddit")]),
    ("What's on Reddit", [web("reddit.com", "Reddit", "Popular posts")]),
    ("What's the price of the Galaxy phone on eBay?",
     [web("ebay.com/search?q=x", "eBay", 'Results for "galaxy phone"')]),
    ("Search for good BBQ restaurants", [results("good bbq restaurant")]),
    ("Find coffee shops on Maps", [screen(MAPS, "coffee shops", "Results", "Coffee Shops - Main Street")]),
    ("How do I get to the nearest IKEA?", [screen(MAPS, "Your location", "Ikea - Mill Lane", "12", "min", "Start")]),
    ("Play the new Drake video on YouTube", [screen(YOUTUBE, "Pause video", "Drake (Official Video)", "Subscribe")]),
    ("What's the latest video from IGN?", [screen(YOUTUBE, "IGN", "IGN - Live", "IGN Top 10")]),
    ("Install the eBay app", [screen(STORE, "Google Play", "eBay", "Uninstall", "Open", "About this app")]),
    ("Set an alarm for 10am", [screen(CLOCK, "Alarm", "8:30 AM", "OFF", "10:00\u202fAM", "ON", "Add alarm")]),
    ("Check the settings for the Google Maps app", [screen(SETTINGS, "App info", "Maps", "Open", "Force stop")]),
    ("Show me my notifications", [screen("com.android.systemui", "Notifications", "Manage", "Clear all")]),
    ("Turn on notifications for the Google Maps app", [switch("Maps", "ON")]),
    ("Toggle notifications for the Google Maps app", [HOME, switch("Maps", "ON"), switch("Maps", "OFF")]),
    ("Open the clock", [HOME, screen(CLOCK, "Alarm")]),
    ("Open a new tab in Chrome", [screen(CHROME, "1 open tabs"), screen(CHROME, "2 open tabs")]),
    ("Open a new Chrome private window", [screen(CHROME, "1 open tabs"), screen(CHROME, "You've gone Incognito")]),
    ("Check my email", [screen("com.google.android.gm", "Search in mail", "Primary")]),
    ("What's on my calendar for the rest of the week?", [screen("com.google.android.calendar", "Week", "This week")]),
    ("Go to ebay.com", [SHOP]),
    ("Go to target.com", [web("target.com", "target.com", "Search target.com")]),
    ("Go to ebay.com, search for 'asus rog'", [SHOP, FOUND]),
    ("Go to lowes.com, search for 'usb-a'", [web("https://www.lowes.com/s", "Lowe's", "12 results for USB-A")]),
    (SELECT, [SHOP, FOUND, product("Asus Rog Black")]),
]
FAILURES = [
    # suggestions, another query, another page, a dialog, the icon of the app
    ("What is the capital of Chile?", [screen(GOOGLE, "capital of Chile", "capital of Chile near me")]),
    ("What is the capital of Chile?", [results("capital of Peru")]),
    ("What is the capital of Chile?", [screen(PERMISSION, "Allow Google?", "Allow", *TABS, "capital of Chile")]),
    ("Search for hotels in Paris", [results("hotels in London")]),
    ("Search for flights from NYC to Paris", [results("flights from Paris to NYC")]),
    ("What's the price of the Galaxy phone on eBay?", [web("walmart.com/s", "Walmart", 'Results for "galaxy phone"')]),
    ("Find coffee shops on Maps", [screen(MAPS, "coffee shops", "coffee shops nearby")]),
    ("Find coffee shops on Maps", [results("coffee shops")]),
    ("How do I get to the nearest IKEA?", [screen(MAPS, "IKEA", "Results", "Ikea - Mill Lane", "Directions")]),
    ("How do I get to the nearest IKEA?", [screen(MAPS, "Your location", "Target - Mill Lane", "Start")]),
    ("Play the new Drake video on YouTube", [screen(YOUTUBE, "Drake", "Drake - Live", "Drake Top 10")]),
    ("Play the new Drake video on YouTube", [screen(YOUTUBE, "Pause video", "Adele - Live")]),
    ("Install the eBay app", [screen(STORE, "eBay", "Install", "eBay Lite", "Open")]),
    ("Install the eBay app", [screen(STORE, "eBay", "Install", "About this app")]),
    ("Install the eBay app", [screen(STORE, "eBay Lite", "Uninstall", "Open", "About this app")]),
    ("Set an alarm for 10am", [screen(CLOCK, "8:30 AM", "ON", "10:00 AM", "OFF")]),
    ("Set an alarm for 10am", [screen(CLOCK, "10:00 PM", "ON")]),
    ("Set an alarm for 10am", [screen(CLOCK, "Select time", "10:00", "AM", "PM", "10:00 AM", "ON")]),
    ("Check the settings for the Google Maps app", [screen(SETTINGS, "App info", "Messages")]),
    ("Check the settings for the Google Maps app", [screen(SETTINGS, "All apps", "Maps")]),
    ("Show me my notifications", [screen(SETTINGS, "Notifications")]),
    ("Turn on notifications for the Google Maps app", [switch("Maps", "OFF")]),
    ("Turn on notifications for the Google Maps app", [switch("Clock", "ON")]),
    ("Toggle notifications for the Google Maps app", [HOME, switch("Maps", "ON")]),
    ("Open the clock", [HOME]),
    ("Open the clock", [screen(PERMISSION, "Allow Clock to send you notifications?", "Allow")]),
    ("Open a new tab in Chrome", [screen(CHROME, "1 open tabs")]),
    ("Open a new tab in Chrome",
     [screen(CHROME, "1 open tabs"), screen(CHROME, "2 open tabs", "You've gone Incognito")]),
    ("Open a new Chrome private window", [screen(CHROME, "1 open tabs"), screen(CHROME, "2 open tabs")]),
    ("Check my email", [screen("com.google.android.gm", "New in Gmail", "Got it", "Primary")]),
    ("What's on my calendar for the rest of the week?", [screen("com.google.android.calendar", "Month", "This month")]),
    ("Go to ebay.com", [web("ebay.com", "ebay.com", "ebay.com near me", "ebay.com images")]),
    ("Go to ebay.com", [web("ebay.com", "This site can't be reached", "ebay.com", "Retry")]),
    ("Go to ebay.com", [web("google.com/search?q=ebay.com", "eBay", *TABS)]),
    ("Go to ebay.com, search for 'asus rog'", [SHOP]),
    ("Go to ebay.com, search for 'asus rog'", [web("ebay.com", "eBay", "asus rog", "asus rog deals")]),
    ("Go to ebay.com, search for 'acer nitro'", [FOUND]),
    ("Go to costco.com, search for 'asus rog'", [FOUND]),
    (SELECT, [SHOP, FOUND]),
    (SELECT, [SHOP, FOUND, product("Asus Rog 2-Pack")]),
    (SELECT, [SHOP, product("Asus Rog Black")]),
    (SELECT, [SHOP, FOUND, product("Asus Rog Black", "costco.com")]),
]


@pytest.mark.parametrize(("instruction", "screens"), SUCCESSES)
def test_done(instruction, screens):
    done, reason = parse_task(instruction).is_done(screens)
    assert done, reason


@pytest.mark.parametrize(("instruction", "screens"), FAILURES)
def test_near_misses_are_not_done(instruction, screens):
    done, reason = parse_task(instruction).is_done(screens)
    assert not done and reason


def node(package: str, y: int, text: str, on: bool | None = None) -> Node:
    """A line of text; with `on`, the switch beside it, higher than it and its mark alone, as since Android 11."""
    if on is None:
        return Node(text, text, "", "android.widget.TextView", (40, y + 10, 400, y + 90), True, False, False, package)
    return Node("", "", "", "android.widget.Switch", (800, y, 900, y + 100), True, False, on, package)


def alarms(*rows: tuple[str, bool]) -> UiState:
    nodes = [node(CLOCK, 200 * i, *row) for i, (time, on) in enumerate(rows) for row in (("", on), (time,))]
    return UiState(CLOCK, f"{CLOCK}.Main", nodes)


@pytest.mark.parametrize(("rows", "done"), [
    ([("8:30 AM", False), ("10:00\u202fAM", True)], True), ([("10:00 AM", False), ("10:30 AM", True)], False),
    ([("8:30 AM", True), ("10:00 AM", False)], False), ([("10:00 AM", False), ("10:00 AM", True)], True),
    ([("08:30", False), ("10:00", True)], True), ([("10:00", False), ("22:00", True)], False), ([], False),
    ([("10:00 PM", True), ("10:00", True)], False),
])  # fmt: skip
def test_an_alarm_is_on_by_the_mark_of_its_switch_on_clocks_of_12_and_24_hours(rows, done):
    assert parse_task("Set an alarm for 10am").is_done([alarms(*rows)])[0] is done


def test_an_alarm_at_noon_and_midnight_on_a_clock_of_24_hours():
    for said, shown in (("12pm", "12:00"), ("12am", "00:00"), ("7pm", "19:00"), ("7am", "07:00")):
        assert parse_task(f"Set an alarm for {said}").is_done([alarms((shown, True))])[0], said


def test_notifications_are_on_by_the_mark_of_their_switch():
    def page(on: bool) -> UiState:
        return UiState(SETTINGS, "", [node(SETTINGS, 300, "", on), node(SETTINGS, 300, "All Maps notifications")])

    off, toggle = "Turn off notifications for the Google Maps app", "Toggle notifications for the Google Maps app"
    assert parse_task(off).is_done([page(True), page(False)])[0] and not parse_task(off).is_done([page(True)])[0]
    assert parse_task(toggle).is_done([page(True), page(False)])[0]


def test_a_rule_needs_a_screen():
    with pytest.raises(ValueError, match="no screens"):
        parse_task("Open Reddit").is_done([])


def test_words_of_a_text():
    assert words_of("USB-C to the 12' Ladders, \"Denny's\"") == ["usbc", "to", "the", "12", "ladder", "denny"]
    assert key_words("capital of the United States") == ["capital", "united", "state"]
    assert key_words("what is it") == ["what", "is", "it"]      # never none
