"""The action text, and the environment.

The rules of an episode run against a phone of a few lines; tests/test_conformance.py has what every phone must do."""

import random
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from android_env import (
    KINDS,
    Action,
    AndroidEnv,
    DeviceOffline,
    ScreenUnreadable,
    format_action,
    make_prompt,
    parse_action,
    to_pixel,
)

ROOT = Path(__file__).resolve().parent.parent
TEXTS = ["it's", 'say "hi"', "x; reboot", "pizza, near me", "time: 5", '"', "a\\b", '", "', "\\n"]


def text_of(kind="DUAL_POINT", touch="[0.5, 0.25]", lift="[0.5, 0.25]", typed=""):
    return (
        f'Action Decision: "action_type": "{kind}", "touch_point": "{touch}", "lift_point": "{lift}", '
        f'"typed_text": "{typed}"'
    )


# ---- actions


def test_format_is_the_papers_text():
    assert format_action(Action("DUAL_POINT", (0.7852, 0.6779), (0.7852, 0.6779))) == (
        'Action Decision: "action_type": "DUAL_POINT", "touch_point": "[0.7852, 0.6779]", '
        '"lift_point": "[0.7852, 0.6779]", "typed_text": ""'
    )
    assert format_action(Action("PRESS_HOME")) == (
        'Action Decision: "action_type": "PRESS_HOME", "touch_point": "[-1.0, -1.0]", '
        '"lift_point": "[-1.0, -1.0]", "typed_text": ""'
    )


def test_parse_undoes_format():
    rng = random.Random(0)
    for _ in range(2000):
        kind = rng.choice(KINDS)
        points = [tuple(rng.randint(0, 10_000) / 10_000 for _ in "yx") for _ in range(2)]
        points = points if kind == "DUAL_POINT" or rng.random() < 0.2 else [(-1.0, -1.0)] * 2
        text = "".join(rng.choice('ab "\\,:[]{}%$`\n</s>é你') for _ in range(rng.randint(0, 12)))
        action = Action(kind, *points, text)
        assert parse_action(format_action(action)) == action
        assert parse_action("Action Plan: [DUAL_POINT, TYPE], " + format_action(action)) == action


@pytest.mark.parametrize("text", TEXTS)
def test_f1_typed_text_survives(text):
    assert parse_action(text_of("TYPE", "[-1.0, -1.0]", "[-1.0, -1.0]", text)).text == text


def test_f1_both_spacings_are_equal():
    tight = '"action_type":"DUAL_POINT","touch_point":"[0.5,0.25]","lift_point":"[0.5,0.25]","typed_text":""'
    assert parse_action("Action Decision: " + tight) == parse_action(text_of()) != parse_action(tight)


@pytest.mark.parametrize(
    "text, reason",
    [
        ("", "no 'Action Decision:'"),
        ("DUAL_POINT", "no 'Action Decision:'"),
        ("Action Decision:", "incomplete"),
        (
            'Action Decision: "action_type": "DUAL_POINT", "touch_point": "[0.5, 0.2]", "typed_text": ""',
            "incomplete",
        ),
        (text_of()[:-1], "incomplete"),
        (text_of("CLICK"), "unknown action_type 'CLICK'"),
        (text_of(touch="[0.1, 0.2, 0.3]"), "touch_point '[0.1, 0.2, 0.3]'"),
        (text_of(lift="[a, b]"), "lift_point"),
        (text_of(touch=""), "touch_point"),
        (text_of(touch="[1.5, -0.2]"), "outside"),
        (text_of(touch="[nan, 0.2]"), "outside"),
        (text_of(touch="[-1.0, -1.0]"), "outside"),
        (text_of("TYPE", touch="[nan, inf]"), "outside"),
    ],
)
def test_f1_a22_what_is_no_action_is_invalid_with_a_reason(text, reason):
    action = parse_action(text)
    assert action.kind == "INVALID" and reason in action.reason


def test_tap_when_the_points_nearly_coincide():
    assert Action("DUAL_POINT", (0.5, 0.5), (0.54, 0.5)).is_tap
    assert not Action("DUAL_POINT", (0.5, 0.5), (0.53, 0.53)).is_tap
    assert not Action("TYPE").is_tap


def test_f2_a11_a22_y_comes_first_and_pixels_stay_on_screen():
    assert to_pixel((0.7852, 0.6779), (1080, 2280)) == (732, 1790)
    assert to_pixel((0.5, 0.25), (720, 1520)) == (180, 760)
    assert to_pixel((1.0, 1.0), (1080, 2280)) == (1079, 2279)


def test_prompt():
    assert make_prompt("open Maps", "X") == "Previous Actions: X Goal: open Maps</s>"


# ---- the environment over a phone of a few lines


class ToyPhone:
    """A phone whose screen is a number; tapping adds 1, swiping 10, BACK takes 1."""

    size, serial = (100, 200), "toy"

    def __init__(self):
        self.number, self.calls, self.error, self.boot = 0, [], None, "77"
        self.unreadable, self.seen = None, ""

    def screenshot(self):
        if self.error:
            raise self.error
        return np.full((200, 100, 3), self.number % 256, np.uint8)

    def ui(self):
        if self.unreadable:
            raise self.unreadable
        return SimpleNamespace(package="com.app", app="com.under", texts=[str(self.number)])

    def shell(self, command, timeout=None, check=False):
        if command == "getprop ro.boottime.init":
            return self.boot + "\n"
        self.calls.append(command)
        if command.endswith("input keyevent 3"):
            self.number = 0
        return self.seen + "package:com.old\n" + ("package:com.new\n" if len(self.calls) > 3 else "")

    def foreground(self):
        return ("home", "x", "home")

    def tap(self, x, y):
        self.calls.append(f"tap {x} {y}")
        self.number += 1

    def swipe(self, x0, y0, x1, y1):
        self.number += 10

    def key(self, code):
        self.number -= code == 4

    def type_text(self, text):
        self.calls.append(f"type {text}")
        return text.isascii()

    def recover(self):
        self.calls.append("recover")
        self.error = None


class CountJudge:
    """Success when the screen shows 2; cannot tell at 9."""

    def __init__(self):
        self.calls = 0

    def reset(self, task, observation):
        assert observation.image.dtype == np.uint8 and observation.instruction == task.instruction

    def __call__(self, task, observation):
        self.calls += 1
        number = int(observation.ui().texts[0])
        return SimpleNamespace(success=None if number == 9 else number == 2, reason=f"shows {number}", raw="")


TASK = SimpleNamespace(instruction="show 2", horizon=5)
TAP = format_action(Action("DUAL_POINT", (0.5, 0.25), (0.5, 0.25)))
BACK, DONE = format_action(Action("PRESS_BACK")), format_action(Action("STATUS_TASK_COMPLETE"))


@pytest.fixture
def toy():
    env = AndroidEnv(ToyPhone(), [TASK], CountJudge())
    env.reset(seed=3)
    return env


def test_success_terminates_with_reward_1(toy):
    obs, reward, terminated, truncated, info = toy.step(TAP)
    assert (reward, terminated, truncated, info["success"], info["screen_changed"]) == (
        0.0,
        False,
        False,
        False,
        True,
    )
    assert obs["prompt"] == f"Previous Actions: {TAP} Goal: show 2</s>" and "tap 25 100" in toy.phone.calls
    obs, reward, terminated, truncated, info = toy.step(TAP)
    assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True)
    assert info["verdict_reason"] == "shows 2" and obs["image"][0, 0, 0] == 2


@pytest.mark.parametrize("before, after, noticed", [("77", "78", True), ("77", "77", False), ("", "", False)])
def test_a14_a_reboot_that_nobody_noticed_is_an_outage_at_the_episodes_end(before, after, noticed):
    phone = ToyPhone()
    phone.boot = before
    env = AndroidEnv(phone, [TASK], CountJudge())
    env.reset(seed=3)
    env.step(TAP)
    phone.boot = after
    _, reward, terminated, truncated, info = env.step(TAP)
    assert (reward, terminated, truncated) == ((0.0, False, True) if noticed else (1.0, True, False))
    assert info["success"] is (None if noticed else True)
    assert ("restarted in the middle" in info.get("error", "")) == noticed


def test_a23_after_the_end_the_same_answer_and_no_action(toy):
    toy.step(TAP)
    last, calls = toy.step(TAP), len(toy.phone.calls)
    obs, reward, terminated, truncated, info = toy.step(TAP)
    assert (
        reward == 0.0
        and (terminated, truncated) == last[2:4]
        and obs is last[0]
        and len(toy.phone.calls) == calls
    )
    with pytest.raises(RuntimeError, match="reset"):
        AndroidEnv(toy.phone, [TASK], CountJudge()).step(TAP)


@pytest.mark.parametrize("kind", ["STATUS_TASK_COMPLETE", "STATUS_TASK_IMPOSSIBLE"])
def test_b12_saying_so_is_not_success(toy, kind):
    _, reward, terminated, truncated, info = toy.step(format_action(Action(kind)))
    assert (reward, terminated, truncated, info["success"], toy.judge.calls) == (0.0, True, False, False, 1)


def test_the_horizon_truncates_and_an_unchanged_screen_is_not_judged(toy):
    steps = [toy.step("nonsense") for _ in range(5)]
    assert [s[2:4] for s in steps] == [(False, False)] * 4 + [(False, True)]
    assert toy.judge.calls == 1 and steps[-1][4]["success"] is False  # once, so that there is a verdict
    assert (
        steps[0][4]["invalid"]
        and "Action Decision" in steps[0][4]["reason"]
        and not steps[0][4]["screen_changed"]
    )


def test_a_judge_that_cannot_tell_is_none_and_the_last_verdict_counts(toy):
    toy.phone.number = 10
    assert toy.step(BACK)[4]["success"] is None
    toy.phone.number = 10
    assert [toy.step(a)[4]["success"] for a in (BACK, "?", "?", "?")] == [None] * 4


def test_a6_a22_penalties_end_nothing_and_what_is_no_action_reaches_no_phone():
    env = AndroidEnv(
        phone := ToyPhone(),
        [TASK],
        CountJudge(),
        horizon=10,
        repetition_penalty=0.4,
        empty_type_penalty=1.0,
        invalid_penalty=0.25,
    )
    env.reset()
    blank = format_action(Action("TYPE", text=" "))
    taps = [text_of(touch="[1.5, -0.2]"), text_of(touch="[nan, 0.2]")]
    steps = [env.step(a) for a in (BACK, BACK, BACK, blank, "?", "?", BACK, *taps)]
    assert [s[1] for s in steps] == pytest.approx([0, -0.4, -0.8, -1.0, -0.25, -0.65, 0, -0.25, -0.25])
    assert not any(terminated or truncated for _, _, terminated, truncated, _ in steps)
    assert [s[4]["invalid"] for s in steps] == [False] * 4 + [True] * 2 + [False] + [True] * 2
    assert not any(call.startswith(("tap", "swipe")) for call in phone.calls)
    assert env.step(BACK)[3]  # the tenth: all of them were counted
    with pytest.raises(ValueError, match=">= 0"):
        AndroidEnv(ToyPhone(), [TASK], CountJudge(), invalid_penalty=-1)


def test_unsupported_text_is_said(toy):
    *_, info = toy.step(format_action(Action("TYPE", text="你好")))
    assert info["unsupported_text"] and not info["invalid"]


def test_an_outage_truncates_and_the_next_reset_recovers(toy):
    toy.phone.error = DeviceOffline("R58M12", "offline", "plug it in")
    obs, reward, terminated, truncated, info = toy.step(TAP)
    assert (reward, terminated, truncated, info["success"]) == (0.0, False, True, None)
    assert "plug it in" in info["error"] and obs["image"].shape == (200, 100, 3)
    assert toy.step(TAP)[3]
    toy.reset()
    assert "recover" in toy.phone.calls and toy.step(TAP)[4]["success"] is False


def test_a_secure_window_ends_the_episode_without_a_verdict_and_is_no_outage(toy):
    toy.phone.error = ScreenUnreadable("R58M12", "a secure window is in front", "leave it out")
    *_, reward, terminated, truncated, info = toy.step(TAP)
    assert (reward, terminated, truncated, info["success"]) == (0.0, False, True, None) and "error" not in info
    assert "secure window" in info["verdict_reason"]
    toy.phone.error = None
    toy.reset()
    assert "recover" not in toy.phone.calls and toy.step(TAP)[4]["success"] is False


def test_reset_undoes_what_the_episode_did(toy):
    toy.step(TAP)
    toy.reset(seed=7, options={"task": TASK})
    assert toy.phone.calls[-1] == (
        "pm uninstall com.new; am force-stop com.app; pm clear com.app; "
        "am force-stop com.under; pm clear com.under; rm -f /data/local/tmp/distrl-touched; "
        "setprop debug.distrl.seed 7; input keyevent 3"
    )
    toy.reset(seed=8)
    assert "com.app" not in toy.phone.calls[-1]


def test_reset_never_stops_the_home_app_even_when_the_first_one_fails_halfway():
    phone = ToyPhone()
    phone.error = DeviceOffline("R58M12", "offline", "plug it in")
    env = AndroidEnv(phone, [TASK], CountJudge(), reset_mode="stop")
    env.reset()
    assert "recover" in phone.calls and not any("am force-stop" in call for call in phone.calls)
    env.step(TAP)
    env.reset()
    forget = "rm -f /data/local/tmp/distrl-touched"
    assert phone.calls[-1] == f"am force-stop com.app; am force-stop com.under; {forget}; input keyevent 3"


def test_a17_a_snapshot_that_is_rejected_is_told_and_the_apps_are_cleared_instead(monkeypatch):
    env, asked = AndroidEnv(ToyPhone(), [TASK], CountJudge(), reset_mode="snapshot"), []
    refusal = "KO: Snapshot 'default_boot' was made by another version of the emulator"
    monkeypatch.setattr("emulator.load_snapshot", lambda phone: asked.append(phone) or refusal)
    with pytest.warns(UserWarning, match=f"{refusal}: apps are stopped and cleared instead"):
        obs, _ = env.reset(seed=1)
    assert env.reset_mode == "clear" and obs["image"].shape == (200, 100, 3)
    env.step(TAP)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env.reset(seed=2)  # asked and told once
    assert asked == [env.phone] and "am force-stop com.app; pm clear com.app" in env.phone.calls[-1]


def test_reset_needs_a_task():
    with pytest.raises(ValueError, match="no task"):
        AndroidEnv(ToyPhone(), None, CountJudge()).reset()


def test_a19_no_instrumentation_server_is_needed():
    code = "import phone_source, emulator, sys; print([m for m in sys.modules if 'appium' in m or 'automator' in m])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_belongs_on_the_phone_is_not_for_a_later_worker_to_say():
    """It finds what its predecessor's last episode installed, and uninstalls it."""
    heir = AndroidEnv(ToyPhone(), [TASK], CountJudge(), installed=["com.old"])
    heir.phone.calls = ["", "", ""]  # com.new is there by now
    heir.reset(seed=0)
    assert any("pm uninstall com.new" in call and "com.old" not in call for call in heir.phone.calls)


def test_what_was_open_before_the_first_episode_is_stopped_but_keeps_its_data():
    phone = ToyPhone()
    phone.seen = "  * Hist #0: ActivityRecord{1a2b u0 com.mine.notes/.Main t9}\ntouched com.episode\n"
    env = AndroidEnv(phone, [TASK], CountJudge())
    phone.error = DeviceOffline("R58M12", "offline", "plug it in")  # at first
    shell = phone.shell

    def fails_once(command, **how):
        if phone.error and "force-stop" in command:
            raise phone.error
        return shell(command, **how)

    phone.shell = fails_once
    env.reset(seed=1)
    assert "recover" in phone.calls and not any("pm clear com.mine" in call for call in phone.calls)
    assert "am force-stop com.episode; pm clear com.episode; am force-stop com.mine.notes; rm -f" in phone.calls[-1]
    phone.seen = "  * Hist #0: ActivityRecord{1a2b u0 com.mine.notes/.Main t9}\n"  # by an episode
    env.reset(seed=2)
    assert "am force-stop com.mine.notes; pm clear com.mine.notes" in phone.calls[-1]


def test_the_home_app_is_what_the_phone_says_or_what_its_key_shows():
    env = AndroidEnv(phone := ToyPhone(), [TASK], CountJudge())
    for phone.seen, found in (("priority=0 isDefault=true\ncom.other.launcher/.Main\n", "com.other.launcher"),
                              ("android/com.android.internal.app.ResolverActivity\n", "home"),
                              ("No activity found\n", "home")):  # fmt: skip
        assert env._home() == found


def test_an_episode_with_a_screen_that_cannot_be_read_is_no_failure():
    """And no outage: a video that plays never rests. A success that is seen later counts."""
    for seen_later, success in ((1, None), (2, True)):
        env = AndroidEnv(phone := ToyPhone(), [TASK], CountJudge())
        env.reset(seed=0)
        phone.unreadable = ScreenUnreadable("toy", "no UI state in 3 tries", "it never rests")
        *_, terminated, truncated, info = env.step(TAP)
        assert (terminated, truncated, info["success"]) == (False, False, None) and "error" not in info
        phone.unreadable, phone.number = None, seen_later - 1
        *_, info = env.step(TAP)
        assert info["success"] is success and ("never rests" in info["verdict_reason"]) == (success is None)


def test_a_success_after_a_first_screen_without_a_verdict_is_unknown():
    """Case B11: it may have been done before the first action."""

    class Doubtful(CountJudge):
        def reset(self, task, observation):
            return SimpleNamespace(success=None, reason="503")

    env = AndroidEnv(ToyPhone(), [TASK], Doubtful())
    env.reset(seed=0)
    env.step(TAP)
    *_, reward, terminated, _, info = env.step(TAP)
    assert reward == 0 and terminated and info["doubtful_success"]
    assert info["success"] is None and "first screen" in info["verdict_reason"]
