"""The simulated phone: focus and typing, back and home, scrolling, dialogs, failed loads, seeds, apps."""

import io
import re
import xml.etree.ElementTree as ElementTree

import pytest
from PIL import Image

from sim.catalog import APPS, CALCULATOR, CALENDAR, CLOCK, GMAIL, GOOGLE, LAUNCHER, SETTINGS
from sim.phone import BACK, HOME, Phone
from sim.settings_app import notifications_on
from sim.ui import Screen, Widget
from sim.windows import ErrorPage, LoadingPage, NotResponding

ENTER = 66


def calm(index=0, seed=0, **odds) -> Phone:
    """A phone on which nothing goes wrong unless asked for."""
    return Phone(index, seed, **{"dialogs": 0, "failed_loads": 0, "slow_loads": 0, **odds})


def nodes(phone) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(phone.hierarchy_xml()).iter("node"))


def texts(phone) -> list[str]:
    return [value for n in nodes(phone) for value in (n.get("text"), n.get("content-desc")) if value]


def tap(phone, name) -> None:
    """On the node with that text, description or id."""
    for n in nodes(phone):
        if name in (n.get("text"), n.get("content-desc"), n.get("resource-id").rpartition("/")[2]):
            x0, y0, x1, y1 = map(int, re.findall(r"\d+", n.get("bounds")))
            phone.tap((x0 + x1) // 2, (y0 + y1) // 2)
            return
    raise AssertionError(f"no {name!r} among {texts(phone)}")


class Form(Screen):
    package, activity = "org.example", ".Form"

    def __init__(self, phone):
        super().__init__(phone)
        self.sent, self.under = [], 0

    def press(self):
        self.under += 1

    def widgets(self):
        return [
            Widget("field", (10, 40, 260, 70), id="plain", hint="Name", select_all=False,
                   on_submit=self.sent.append),
            Widget("field", (10, 90, 260, 120), "old", id="search", on_submit=self.sent.append),
            Widget("button", (10, 400, 260, 440), "Under", on_tap=self.press),
        ]


@pytest.fixture
def form():
    phone = calm()
    screen = Form(phone)
    phone.start(screen)
    return phone, screen


def test_typing_without_focus_does_nothing(form):
    phone, screen = form
    before = phone.png()
    phone.type_text("lost")
    assert phone.png() == before
    assert "Name" in texts(phone)  # the hint is an empty field's text


def test_typing_appends_but_replaces_a_selection(form):
    phone, screen = form
    tap(phone, "plain")
    phone.type_text("ab")
    phone.type_text("cd")
    phone.key(67)
    assert screen.fields["plain"] == "abc"
    tap(phone, "search")
    phone.type_text("new")
    phone.type_text(" one")
    phone.key(ENTER)
    assert screen.sent == ["new one"]
    assert not phone.keyboard


def test_keyboard_hides_what_is_under_it_and_its_enter_key_submits(form):
    phone, screen = form
    tap(phone, "Under")
    tap(phone, "plain")
    assert "Under" not in texts(phone)
    phone.tap(100, 420)
    assert screen.under == 1
    phone.tap(240, 460)
    assert screen.sent == [] and phone.keyboard  # nothing to submit
    phone.type_text("x")
    phone.tap(240, 460)
    assert screen.sent == ["x"]
    tap(phone, "plain")
    phone.tap(20, 460)
    assert not phone.keyboard


def test_back_takes_the_keyboard_then_the_screen_then_the_app():
    phone = calm()
    phone.launch(SETTINGS)
    phone.start(Form(phone))
    tap(phone, "plain")
    phone.key(BACK)
    assert not phone.keyboard and phone.top.activity == ".Form"
    phone.key(BACK)
    assert phone.focus_component() == f"{SETTINGS}/com.android.settings.Settings"
    phone.key(BACK)
    phone.key(BACK)
    assert phone.focus_component().startswith(LAUNCHER)


def test_home_leaves_everything_and_the_app_comes_back_as_it_was():
    phone = calm()
    start = phone.png()
    phone.launch(SETTINGS)
    tap(phone, "Apps")
    phone.windows.append(NotResponding(phone, APPS[SETTINGS]))
    phone.key(HOME)
    assert phone.png() == start
    phone.launch(SETTINGS)
    assert "All apps" in texts(phone)


def test_scrolling_is_clamped():
    phone = calm()
    phone.swipe(135, 400, 135, 100)
    assert "Amazon Alexa" in texts(phone)
    for _ in range(9):
        phone.swipe(135, 400, 135, 100)
    bottom = phone.png()
    phone.swipe(135, 400, 135, 100)
    assert phone.png() == bottom and "YT Music" in texts(phone)
    for _ in range(4):
        if phone.top.scroll:
            phone.swipe(135, 100, 135, 400)
    assert phone.top.scroll == 0
    phone.swipe(135, 100, 135, 400)
    assert "Apps list" in texts(phone)  # at its top the drawer is pulled away


def test_shade_opens_from_the_top_edge_and_back_closes_it():
    phone = calm()
    phone.swipe(135, 4, 135, 200)
    assert phone.focus_component().startswith("com.android.systemui")
    assert {"Notifications", "Manage", "Clear all"} <= set(texts(phone))
    phone.key(BACK)
    assert "Apps list" in texts(phone)


@pytest.mark.parametrize("leave", ["Allow", "Don't allow", BACK, HOME])
def test_permission_dialog_is_modal_and_goes(leave):
    phone = calm(dialogs=1)
    phone.launch(CLOCK)
    assert texts(phone) == ["Allow Clock to send you notifications?", "Allow", "Don't allow"]
    phone.tap(135, 440)  # Add alarm, behind the scrim
    assert phone.focus_component().startswith("com.google.android.permissioncontroller/")
    tap(phone, leave) if isinstance(leave, str) else phone.key(leave)
    assert not phone.windows
    assert phone.focus_component().split("/")[0] == (LAUNCHER if leave == HOME else CLOCK)


def test_an_answered_permission_is_asked_again_only_after_clear():
    phone = calm(dialogs=1)
    phone.launch(CLOCK)
    tap(phone, "Allow")
    phone.force_stop(CLOCK)
    phone.dialogs = 0.99
    phone.launch(CLOCK)
    assert not any("Allow" in text for text in texts(phone))
    phone.clear(CLOCK)
    phone.launch(CLOCK)
    assert "Allow" in texts(phone)


def test_close_app_stops_it_and_wait_does_not():
    phone = calm()
    phone.launch(SETTINGS)
    tap(phone, "Apps")
    for button, where in (("Wait", SETTINGS), ("Close app", LAUNCHER)):
        phone.windows.append(NotResponding(phone, APPS[SETTINGS]))
        phone.changed()
        assert phone.focus_component().startswith("android/")
        tap(phone, button)
        assert phone.focus_component().split("/")[0] == where
    phone.launch(SETTINGS)
    assert "All apps" not in texts(phone)


def test_failed_load_and_retry_fails_half_as_often():
    phone = calm(failed_loads=1)
    phone.launch(SETTINGS)
    phone.load(lambda: Form(phone), "example.org")
    assert phone.top.package == SETTINGS and "This site can't be reached" in texts(phone)
    retries = 0
    while isinstance(phone.top, ErrorPage):
        odds = phone.top.odds
        tap(phone, "Retry")
        retries += 1
        assert not isinstance(phone.top, ErrorPage) or phone.top.odds == odds / 2
    assert phone.top.package == "org.example" and retries < 20
    assert len(phone.stack) == 2


def test_slow_load_turns_into_the_page(monkeypatch):
    phone = calm(slow_loads=1, latency=1.0)
    now = 100.0
    monkeypatch.setattr("sim.phone.time.monotonic", lambda: now)
    phone.load(lambda: Form(phone), "example.org")
    assert isinstance(phone.top, LoadingPage) and "Loading" in texts(phone)
    loading = phone.png()
    now = phone.top.ready_at
    assert phone.png() != loading and isinstance(phone.top, Form)
    instant = calm(slow_loads=1)
    instant.load(lambda: Form(instant), "example.org")
    assert isinstance(instant.top, Form) and instant.delay() == 0


def test_input_times_have_mean_one_and_a_heavy_tail():
    phone = calm(latency=2.0)
    times = sorted(phone.delay() for _ in range(20_000))
    assert 1.9 < sum(times) / len(times) < 2.1
    assert 8.5 < times[19_800] < 11.5
    assert phone.delay("screencap") == pytest.approx(0.04)


def play(phone) -> list[bytes]:
    shots = [phone.png()]
    phone.tap(135, 50)
    phone.type_text("blue shoes")
    shots.append(phone.png())
    phone.key(ENTER)
    shots.append(phone.png())
    for x, y in ((135, 300), (135, 270), (60, 200), (135, 100)):
        phone.tap(x, y)
        shots.append(phone.png())
    return shots


def test_same_seed_same_bytes_and_reseed_starts_over():
    harsh = {"dialogs": 0.5, "failed_loads": 0.5}
    first, second = Phone(3, 7, **harsh), Phone(3, 7, **harsh)
    assert play(first) == play(second)
    for package in APPS:
        first.clear(package)
    first.home()
    first.reseed(7)
    assert play(first) == play(Phone(3, 7, **harsh))


def test_layouts_and_switches_differ_between_phones_not_episodes():
    phones = [calm(index) for index in range(8)]
    assert len({tuple(phone.home_order) for phone in phones}) > 6
    assert len({phone.png() for phone in phones}) > 6
    order = list(phones[0].home_order)
    phones[0].reseed(99)
    assert phones[0].home_order == order


def test_every_app_opens_and_says_who_it_is():
    phone = calm()
    pictures = set()
    for package, app in APPS.items():
        assert phone.start_activity(f"{package}/{app.activity}") == ""
        assert phone.focus_component() == f"{package}/{app.activity}"
        assert all(n.get("package") == package for n in nodes(phone))
        image = Image.open(io.BytesIO(phone.png()))
        assert image.size == (270, 480) and image.mode == "RGB"
        pictures.add(image.resize((16, 22), Image.Resampling.BOX).tobytes())
    assert len(pictures) == len(APPS)


def test_start_activity_names_what_does_not_exist():
    phone = calm()
    assert "does not exist" in phone.start_activity("org.nothing")
    assert f"{{{CLOCK}/{CLOCK}.No}}" in phone.start_activity(f"{CLOCK}/.No")
    assert phone.start_activity(LAUNCHER) == ""


def test_install_uninstall_and_packages():
    phone = calm()
    package = phone.install("Zoom Meetings")
    assert package in phone.packages(third_party=True)
    phone.launch(package)
    assert "Zoom Meetings" in texts(phone)
    assert phone.uninstall(package) and not phone.uninstall(package) and not phone.uninstall(CLOCK)
    assert phone.focus_component().startswith(LAUNCHER)
    assert package not in phone.packages() and CLOCK not in phone.packages(third_party=True)
    assert phone.uninstall("com.facebook.katana") and phone.install("Facebook") == "com.facebook.katana"
    assert not phone.clear("org.nothing")


def test_settings_to_an_apps_notification_switch():
    phone = calm()
    phone.launch(SETTINGS)
    tap(phone, "Apps")
    assert phone.top.activity == "com.android.settings.Settings$ManageApplicationsActivity"
    assert "App info" not in texts(phone)
    while "Gmail" not in texts(phone):
        phone.swipe(135, 400, 135, 200)
    tap(phone, "Gmail")
    assert {"App info", "Gmail", "Open", "Uninstall", "Force stop", "Storage & cache"} <= set(texts(phone))
    tap(phone, "Notifications")
    assert phone.top.activity == "com.android.settings.Settings$AppNotificationSettingsActivity"
    assert {"App notifications", "All Gmail notifications"} <= set(texts(phone))

    def switch():
        found = [n for n in nodes(phone) if n.get("resource-id").endswith("id/switch")]
        assert found[0].get("text") == ""  # as since Android 11
        return found[0].get("checked")

    before = switch()
    tap(phone, "switch")
    assert switch() != before
    phone.clear(SETTINGS)
    assert notifications_on(phone, GMAIL) == (before == "true")


def test_clock_sets_an_alarm():
    phone = calm()
    phone.launch(CLOCK)
    tap(phone, "Add alarm")
    assert {"Select time", "12:00", "AM", "PM", "Cancel", "OK"} <= set(texts(phone))
    assert "8:30 AM" not in texts(phone)
    tap(phone, "10")
    tap(phone, "PM")
    tap(phone, "OK")
    listed = texts(phone)
    assert "10:00 PM" in listed and "Add alarm" in listed
    assert nodes(phone)[[n.get("text") for n in nodes(phone)].index("10:00 PM") + 1].get("checked") == "true"
    phone.clear(CLOCK)
    phone.launch(CLOCK)
    assert "10:00 PM" not in texts(phone)
    tap(phone, "Clock")
    assert {"9:41", "Local time"} <= set(texts(phone))


def test_calendar_views():
    phone = calm()
    phone.launch(CALENDAR)
    assert "Schedule" in texts(phone)
    for view, line in (("Week", "This week"), ("Month", "This month")):
        tap(phone, "Views")
        assert texts(phone) == ["Schedule", "Day", "Week", "Month"]
        tap(phone, view)
        assert {view, line} <= set(texts(phone))


def test_small_apps():
    phone = calm()
    phone.launch(GMAIL)
    tap(phone, "Got it")
    assert {"Primary", "Search in mail"} <= set(texts(phone))
    phone.launch(CALCULATOR)
    for key in "12*3=":
        tap(phone, key)
    assert "36" in texts(phone)


def test_search_bar_opens_google_with_the_keyboard():
    phone = calm()
    tap(phone, "Search")
    assert phone.focus_component().startswith(GOOGLE) and phone.focused == "search_box"


def test_dump_quotes_what_was_typed(form):
    phone, screen = form
    tap(phone, "plain")
    phone.type_text("a<b> & \"c\" 'd' \x07")
    assert "a<b> & \"c\" 'd' ." in texts(phone)
