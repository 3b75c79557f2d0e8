"""The scripted user does every family, dialogs and failed loads included; the judge tells its work from near misses."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from android_env import AdbPhone, AndroidEnv
from benchmarks.bench_demonstrator import run_episode
from evaluator import RuleJudge
from sim import start_phones
from sim.demonstrator import WAIT, next_action
from sim.phone import BACK, HOME, Phone
from tasks import FAMILIES, generate_tasks, load_tasks, parse_task
from ui_state import parse_ui

LISTS = Path(__file__).parent / "fixtures" / "aitw"
# Fewer steps than this would mean that the judge takes something on the way for the end.
LEAST = {"question": 3, "news": 3, "places": 3, "products": 3, "travel": 3, "maps": 4, "directions": 5, "video": 4,
         "install": 5, "alarm": 4, "app_settings": 3, "notifications": 1, "open_app": 1, "chrome_tab": 3, "personal": 2,
         "web_open": 4, "web_search": 7, "web_select": 8}


def state(phone: Phone):
    focus = f"mCurrentFocus=Window{{1 u0 {phone.focus_component()}}}\n"
    return parse_ui((focus + phone.hierarchy_xml()).encode())


def seen(ui) -> SimpleNamespace:
    """The judge's observation of a UI state."""
    return SimpleNamespace(ui=lambda: ui)


def act(phone: Phone, kind: str, *args) -> None:
    {"tap": phone.tap, "swipe": phone.swipe, "type": phone.type_text, "enter": lambda: phone.key(66),
     "back": lambda: phone.key(BACK), "home": lambda: phone.key(HOME)}[kind](*args)


def play(phone: Phone, task, judged=None) -> tuple[list, list[tuple], list]:
    """The demonstrator does `task`; (verdicts on `judged`, or on the task, after each action; actions; screens)."""
    judged, judge, memory = judged or task, RuleJudge(), {}
    ui = state(phone)
    judge.reset(judged, seen(ui))
    verdicts, actions = [], []
    while len(actions) < task.horizon and not (judged is task and verdicts and verdicts[-1].success):
        action = next_action(task, ui, memory)
        actions.append(action)
        if action == ("complete",):
            break
        act(phone, *action)
        ui = state(phone)
        verdicts.append(judge(judged, seen(ui)))
    return verdicts, actions, judge.screens


def real_sample() -> list:
    """Two instructions of every family, from the real lists."""
    tasks = [task for name in ("general_train.txt", "webshop_train.txt") for task in load_tasks(str(LISTS / name))]
    by_family = {family: [task for task in tasks if task.family == family] for family in FAMILIES}
    return [found[place] for found in by_family.values() for place in (0, -1)]


@pytest.mark.parametrize("task", real_sample() + generate_tasks("test", 36), ids=lambda task: task.instruction[:50])
def test_does_the_task_among_dialogs_and_failed_loads(task):
    for seed in (1, 2):
        verdicts, actions, _ = play(Phone(seed, seed=seed, dialogs=0.5, failed_loads=0.3), task)
        assert verdicts[-1].success, (verdicts[-1].reason, actions)
        assert [verdict.success for verdict in verdicts[:-1]] == [False] * (len(verdicts) - 1)
        assert len(actions) >= LEAST[task.family], actions


@pytest.mark.parametrize(("does", "asked"), [
    ("What's the weather like in Paris?", "What's the weather like in London?"),
    ("What's the news in Peru?", "What's the news in Chile?"),
    ("Search for flights from Paris to London", "Search for flights from London to Paris"),
    ("What's the price of the LG TV?", "What's the price of the LG TV on eBay?"),
    ("Search for good pizza restaurants on Maps", "Search for good sushi restaurants on Maps"),
    ("Search for good sushi restaurants", "Search for good sushi restaurants on Maps"),
    ("How do I get to the nearest IKEA?", "How do I get to the nearest Target?"),
    ("Play the new Drake video on YouTube", "Play the new Adele video on YouTube"),
    ("Install the Yelp app", "Install the CNN app"),
    ("Set an alarm for 10am", "Set an alarm for 10pm"),
    ("Check the settings for the Netflix app", "Check the settings for the Spotify app"),
    ("Turn on notifications for the Netflix app", "Turn on notifications for the Spotify app"),
    ("Open the clock", "Open the camera"),
    ("Open a new tab in Chrome", "Open a new incognito tab in Chrome"),
    ("Open a new private window in Chrome", "Open a new window in Chrome"),
    ("What's on my calendar for the rest of the week?", "What's on my calendar for the rest of the month?"),
    ("Open the calendar", "What's on my calendar for the rest of the week?"),
    ("Go to ebay.com", "Go to walmart.com"),
    ("Go to ebay.com, search for 'asus rog'", "Go to ebay.com, search for 'acer nitro'"),
    ("Go to ebay.com, search for 'asus rog'", "Go to costco.com, search for 'asus rog'"),
    ("Go to ebay.com, search for 'asus rog'", "Go to ebay.com, search for 'asus rog', and select the first entry"),
    ("Go to ebay.com, search for 'asus rog', and select the first entry",
     "Go to costco.com, search for 'asus rog', and select the first entry"),
])
def test_near_misses_fail(does, asked):
    verdicts, _, screens = play(Phone(3, seed=3), parse_task(does), parse_task(asked))
    assert any(parse_task(does).is_done(screens[:last])[0] for last in range(1, len(screens) + 1))
    assert verdicts and not any(verdict.success for verdict in verdicts), [v.reason for v in verdicts if v.success]


def test_the_second_entry_is_not_the_first():
    """The demonstrator's way, but for its last tap."""
    phone, task = Phone(4, dialogs=0, failed_loads=0), parse_task(
        "Go to ebay.com, search for 'asus rog', and select the first entry")
    judge, memory, ui = RuleJudge(), {}, state(phone)
    judge.reset(task, seen(ui))
    while not any(text.startswith("Results for") for text in ui.texts):
        act(phone, *next_action(task, ui, memory))
        ui = state(phone)
        assert not judge(task, seen(ui)).success
    second = [node for node in ui.nodes if node.id.endswith("/entry")][1]
    phone.tap(*second.center)
    ui = state(phone)
    verdict = judge(task, seen(ui))
    assert "Add to cart" in ui.texts and not verdict.success and "not the first entry" in verdict.reason


def test_it_starts_from_anywhere():
    phone = Phone(5, dialogs=0, failed_loads=0)
    for task in (task for task in generate_tasks("train", 54, seed=1) if task.family != "notifications"):
        if task.family == "chrome_tab" and "cognito" not in task.instruction:
            continue            # Chrome may show a page without its count of tabs
        verdicts, actions, _ = play(phone, task)
        assert not verdicts or verdicts[-1].success, (task.instruction, verdicts[-1].reason, actions)


def test_slow_pages_are_waited_for():
    phone = Phone(6, dialogs=0, failed_loads=0, slow_loads=1.0, latency=1000.0)
    verdicts, actions, _ = play(phone, parse_task("Find coffee shops on Maps"))
    assert actions[-1] == WAIT and actions.count(WAIT) > 5 and not verdicts[-1].success


def test_through_adb_and_the_environment():
    with start_phones(1, seed=7, latency=0.002, dialogs=0.4, failed_loads=0.3, slow_loads=0.2) as phones:
        env = AndroidEnv(AdbPhone(phones.serials[0], phones.host, phones.port), None, RuleJudge())
        for number, task in enumerate(generate_tasks("tune", 36)):
            episode = run_episode(env, task, number)
            assert episode.success, (task.instruction, episode.reason, episode.actions)
