"""What goes wrong with a phone behind the real adb server becomes one typed error, and is recovered from."""

import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import disconnect

from adb_phone import (
    AdbPhone,
    AdbTimeout,
    AndroidEnvError,
    DeviceOffline,
    DeviceUnauthorized,
    ScreenLocked,
    ScreenshotError,
    ScreenUnreadable,
    list_devices,
)
from android_env import Action, AndroidEnv, format_action
from evaluator import RuleJudge
from phone_source import has_network, start_server
from tasks import parse_task


def test_a14_a_dropped_network_phone_is_connected_again(phone):
    phone._host(f"host:disconnect:{phone.serial}", 5)
    with pytest.raises(DeviceOffline, match="not found"):
        phone.shell("id")
    phone.recover(timeout=20)
    assert phone.screenshot().ndim == 3


def test_a14_offline_for_ever_names_phone_state_and_port(phone):
    lost = AdbPhone("127.0.0.1:1", phone.host, phone.port)
    waits = []
    lost.on_wait = lambda: waits.append(1)
    with pytest.raises(AndroidEnvError, match=f"127.0.0.1:1.*state .*:{phone.port}, waited 0.6 s"):
        lost.recover(timeout=0.6)
    assert waits  # so that whoever watches knows that it still lives


@pytest.mark.parametrize("kind, error", [("offline", DeviceOffline), ("unauthorized", DeviceUnauthorized)])
def test_a13_a_phone_in_that_state_is_a_typed_error_until_it_is_healed(phones, phone, kind, error):
    disconnect(phones, phone.serial, kind)
    try:
        with pytest.raises(error, match=phone.serial) as caught:
            phone.recover(timeout=2)
        assert caught.value.remedy and kind in caught.value.state
    finally:
        phones.fault(phone.serial, "none")
    phone.recover(timeout=20)
    assert phone.shell("echo on") == "on\n"


def test_a18_a_mute_phone_is_a_timeout(phones, phone):
    phones.fault(phone.serial, "mute", 1)
    with pytest.raises(AdbTimeout, match="within 0.3 s"):
        phone.shell("getprop", timeout=0.3)
    assert phone.shell("echo on") == "on\n"


def test_a_connection_that_drops_is_an_error_and_comes_back(phones, phone):
    phones.fault(phone.serial, "drop", 1)
    with pytest.raises(DeviceOffline, match="middle of a command"):
        phone.shell("getprop")
    phone.recover(timeout=20)
    assert phone.shell("echo on") == "on\n"


def test_a7_a8_a9_faults_of_the_screenshot(phones, phone):
    want = phone.screenshot()
    phones.fault(phone.serial, "warning", 1)
    assert np.array_equal(phone.screenshot(), want)
    for kind in ("crlf", "no-screenshot", "cut-screenshot"):
        retries = phone.retries
        phones.fault(phone.serial, kind, 2)
        assert np.array_equal(phone.screenshot(), want) and phone.retries == retries + 2
        phones.fault(phone.serial, kind, 3)
        with pytest.raises(ScreenshotError, match="3 tries"):
            phone.screenshot()


def test_a_sleeping_phone_is_woken(phones, phone):
    want = phone.screenshot()
    phones.fault(phone.serial, "asleep")
    assert np.array_equal(phone.screenshot(), want)


def test_a21_the_phone_itself_says_whether_it_has_a_network(phones, phone):
    assert has_network(phone)
    phones.fault(phone.serial, "no-network")
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("phone_source.NETWORK_SECONDS", 0.3)
            began = time.monotonic()
            assert not has_network(phone) and time.monotonic() - began >= 0.3
        threading.Timer(0.3, phones.fault, (phone.serial, "none")).start()
        assert has_network(phone)  # soon after a boot
    finally:
        phones.fault(phone.serial, "none")


@pytest.mark.parametrize("to_file", [False, True])
def test_a_screen_that_never_rests_is_not_taken_for_the_one_before(phones, phone, to_file):
    """uiautomator says so, exits with 0, and leaves the file of its last dump as it is."""
    phone._to_file = to_file
    home = phone.ui()
    phone.shell("am start -n com.android.chrome/com.google.android.apps.chrome.Main")
    phones.fault(phone.serial, "restless")
    try:
        with pytest.raises(ScreenUnreadable, match="could not get idle state"):
            phone.ui()
        phones.fault(phone.serial, "none")
        phones.fault(phone.serial, "restless", 2)
        assert phone.ui().package == "com.android.chrome" != home.package  # the third try
    finally:
        phones.fault(phone.serial, "none")
        phone.key(3)


def test_the_home_app_is_asked_for(phone):
    env = AndroidEnv(phone, None, RuleJudge())
    phone.shell("am start -n com.android.chrome/com.google.android.apps.chrome.Main")
    assert env._home() == "com.google.android.apps.nexuslauncher" and phone.foreground()[0] == "com.android.chrome"
    phone.key(3)


def test_a_server_that_runs_is_left_alone(phones):
    assert start_server(phones.port) is False and len(list_devices(port=phones.port)) == 2


# ---- a lock screen


class Believer:
    """A judge that takes any screen but the first for a success, and looks at no UI state."""

    def reset(self, task, observation):
        return SimpleNamespace(success=False, reason="first")

    def __call__(self, task, observation):
        return SimpleNamespace(success=True, reason="looks good")


@pytest.fixture
def clock(phone):
    """An environment with a judge, after its first reset."""

    def make(judge):
        env = AndroidEnv(phone, None, judge)
        env.reset(seed=1, options={"task": parse_task("Open the clock")})
        return env

    return make


def test_a_swiped_lock_screen_is_put_away_at_reset(phones, phone, clock):
    env = clock(RuleJudge())
    want = env.reset(seed=1, options={"task": env.task})[0]["image"]
    for kind in ("locked", "asleep"):
        phones.fault(phone.serial, kind)
    with pytest.raises(ScreenLocked):
        phone.foreground()
    got = env.reset(seed=1, options={"task": env.task})[0]["image"]
    assert np.array_equal(got, want) and phone.foreground()[0]


@pytest.mark.parametrize("judge", [RuleJudge, Believer])
@pytest.mark.parametrize("action", [Action("DUAL_POINT", (0.5, 0.5), (0.5, 0.5)), Action("STATUS_TASK_COMPLETE")])
def test_what_is_done_on_a_locked_phone_is_an_outage_and_neither_success_nor_failure(
    phones, phone, clock, judge, action, monkeypatch
):
    monkeypatch.setattr("adb_phone._UP_TIMEOUT", 0.3)
    env = clock(judge())
    phones.fault(phone.serial, "pin")
    try:
        _, reward, terminated, truncated, info = env.step(format_action(action))
        assert (reward, terminated, truncated, info["success"]) == (0.0, False, True, None)
        assert "its screen is locked" in info["error"]
        with pytest.raises(ScreenLocked, match=f"{phone.serial}.*its screen is locked.*unlock it"):
            env.reset(seed=1, options={"task": env.task})
    finally:
        phones.fault(phone.serial, "none")
    env.reset(seed=1, options={"task": env.task})
    assert "error" not in env.step(format_action(Action("PRESS_HOME")))[4]
