"""What any phone must do for `AdbPhone` and `AndroidEnv`: simulated ones over TCP and as emulator-N behind the real adb
server, and one of yours:

    python -m pytest tests/test_conformance.py --serial R58M12ABC

On a phone of yours it presses HOME and BACK, swipes, opens the settings and stops them again; nothing is cleared.
"""

import time
from types import SimpleNamespace

import numpy as np
import pytest

from android_env import Action, AdbTimeout, AndroidEnv, AndroidEnvError, format_action, list_devices
from emulator import load_snapshot

TASK = SimpleNamespace(instruction="show 2", horizon=5)
SWIPE = format_action(Action("DUAL_POINT", (0.8, 0.5), (0.2, 0.5)))
TEXTS = ["it's", 'say "hi"', "a$HOME b", "`id`", "x; reboot", "a&b|c", "(x)", "*", "~", "a\\b", "50% off %s", "$(id)"]


class NeverJudge:
    def reset(self, task, observation):
        pass

    def __call__(self, task, observation):
        return SimpleNamespace(success=False, reason="never", raw="")


@pytest.fixture
def env(any_phone):
    how = dict(reset_mode="clear", settle=0.0) if any_phone.virtual else dict(reset_mode="stop", settle=2.0)
    return AndroidEnv(any_phone, [TASK], NeverJudge(), **how)


@pytest.fixture
def virtual(any_phone):
    if not any_phone.virtual:
        pytest.skip("changes settings: for simulated phones and emulators")
    return any_phone


def search_field(phone):
    """The text of the search bar's field, after a tap on it on the home screen."""
    return next(node.text for node in phone.ui().nodes if node.focused)


def open_search(phone):
    """Taps the search bar and waits for its field: loads take time, and a dialog may come between."""
    for _ in range(5):
        phone.shell("am force-stop com.google.android.googlequicksearchbox")
        phone.key(3)
        phone.tap(*next(node.center for node in phone.ui().nodes if node.text == "Search" or node.desc == "Search"))
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            if any(node.focused for node in phone.ui().nodes):
                return
    raise AssertionError(f"{phone.serial}: no field is focused after a tap on the search bar")


def test_it_is_online_and_booted(any_phone):
    assert list_devices(any_phone.host, any_phone.port)[any_phone.serial] == "device"
    assert any_phone.shell("getprop sys.boot_completed").strip() == "1"


def test_the_screenshot_has_the_screens_size(any_phone):
    width, height = any_phone.size
    image = any_phone.screenshot()
    assert image.shape == (height, width, 3) and image.dtype == np.uint8 and image.any()


def test_ui_is_what_is_in_front_and_on_the_screen(any_phone):
    any_phone.key(3)
    state, (width, height) = any_phone.ui(), any_phone.size
    assert state.package and state.nodes and (state.package, state.activity) == any_phone.foreground()[:2]
    assert all(0 <= n.center[0] <= width and 0 <= n.center[1] <= height for n in state.nodes if n.text)


def test_exit_codes_and_quoting(any_phone):
    assert any_phone.shell("echo $HOME'x'").endswith("x\n")
    assert any_phone.run("exit 7")[2] == 7
    with pytest.raises(AndroidEnvError, match="exited with"):
        any_phone.shell("ls /no/such/file", check=True)


def test_a18_a_command_ends_at_its_deadline_and_the_next_one_works(any_phone):
    with pytest.raises(AdbTimeout, match=f"'{any_phone.serial}'.*within 0.3 s"):
        any_phone.shell("sleep 3", timeout=0.3)
    assert any_phone.shell("echo on") == "on\n"


def test_a6_blank_text_changes_nothing(any_phone):
    any_phone.key(3)
    before = any_phone.ui()
    assert any_phone.type_text("") and any_phone.type_text("  ") and any_phone.ui() == before


@pytest.mark.parametrize("text", TEXTS)
def test_a1_text_arrives_exactly(virtual, text):
    open_search(virtual)
    assert virtual.type_text(text) and search_field(virtual) == text


def test_a4_unicode_through_the_base64_keyboard_or_not_at_all(virtual):
    text = "naïve 你好 😀"
    virtual.recover()  # forgets which keyboards there are
    open_search(virtual)
    before = search_field(virtual)
    assert not virtual.type_text(text) and search_field(virtual) == before
    virtual.shell("setprop debug.distrl.adbkeyboard 1")
    try:
        virtual.recover()
        assert virtual.type_text(text) and search_field(virtual) == text
    finally:
        virtual.shell("setprop debug.distrl.adbkeyboard 0; ime set com.android.inputmethod.latin/.LatinIME")
        virtual.recover()


@pytest.mark.parametrize("rotation, size", [(0, (540, 960)), (1, (960, 540))])
def test_a11_override_size_and_rotation(virtual, rotation, size):
    size_before = virtual.size
    virtual.shell(f"wm size 540x960; settings put system user_rotation {rotation}")
    try:
        assert virtual.screenshot().shape == (size[1], size[0], 3) and virtual.size == size
        open_search(virtual)
        assert virtual.type_text("hit") and search_field(virtual) == "hit"
        virtual.tap(size[0] - 1, size[1] - 1)
    finally:
        virtual.shell("wm size reset; settings put system user_rotation 0")
    virtual.screenshot()
    assert virtual.size == size_before


def test_a23_shapes_and_types(env):
    obs, info = env.reset(seed=1)
    width, height = env.phone.size
    texts = (SWIPE, "nonsense", format_action(Action("TYPE", text="it's")), format_action(Action("PRESS_BACK")), SWIPE)
    for text in texts:
        obs, reward, terminated, truncated, step_info = env.step(text)
        assert obs["image"].shape == (height, width, 3) and obs["image"].dtype == np.uint8
        assert isinstance(obs["prompt"], str)
        assert [type(x) for x in (reward, terminated, truncated)] == [float, bool, bool]
        assert step_info.keys() >= info.keys() and "error" not in step_info
    assert truncated and not terminated
    again = env.step(SWIPE)
    assert len(again) == 5 and again[3] and again[1] == 0.0


def test_a17_reset_ends_what_the_last_episode_opened(env):
    env.reset(seed=1)
    home = env.phone.foreground()[0]
    env.phone.shell("am start -a android.settings.SETTINGS || am start -n com.android.settings/.Settings")
    env.step(SWIPE)
    env.reset(seed=1)
    assert env.phone.foreground()[0] == home


def test_a17_the_first_frame_is_the_same(env, virtual):
    first = env.reset(seed=1)[0]["image"]
    app = [Action("DUAL_POINT", (y, x), (y, x)) for y in (0.3, 0.5, 0.7) for x in (0.15, 0.4)]
    for seed in (1, 2, 1):
        for action in [*app[seed : seed + 3], Action("TYPE", text="x")]:
            env.step(format_action(action))
        assert np.array_equal(env.reset(seed=seed)[0]["image"], first)


def test_the_same_seed_and_actions_give_the_same_frames(env, virtual):
    def frames():
        env.reset(seed=5)
        points = [(0.4, 0.15), (0.5, 0.5), (0.3, 0.4), (0.6, 0.8)]
        return [env.step(format_action(Action("DUAL_POINT", p, p)))[0]["image"] for p in points]

    frames()
    assert all(np.array_equal(a, b) for a, b in zip(frames(), frames(), strict=True))


def test_an_invalid_action_leaves_the_prompt_as_it_was(env):
    env.reset(seed=1)
    done, *_ = env.step(format_action(Action("PRESS_HOME")))
    observation, _, _, _, info = env.step("Action Decision: nothing that can be parsed")
    assert info["invalid"] and observation["prompt"] == done["prompt"]


def test_a14_it_comes_back_after_its_connection_was_lost(any_phone):
    any_phone.attach()
    any_phone.recover(timeout=30)
    assert any_phone.screenshot().ndim == 3


def test_a16_a_reboot_is_waited_for_by_its_own_word(virtual):
    virtual.reboot()
    virtual.recover(timeout=300)
    assert virtual.shell("getprop sys.boot_completed").strip() == "1" and virtual.screenshot().any()


def test_a16_a17_a_snapshot_brings_the_first_frame_back(any_phone, recwarn):
    if not any_phone.serial.startswith("emulator-"):
        pytest.skip("only emulators have snapshots")
    env = AndroidEnv(any_phone, [TASK], NeverJudge(), reset_mode="snapshot")
    first = env.reset(seed=1)[0]["image"]
    open_search(any_phone)
    any_phone.shell("setprop debug.left over")
    assert np.array_equal(env.reset(seed=1)[0]["image"], first)
    assert any_phone.shell("getprop debug.left").strip() == "" and not recwarn.list
    assert "does not exist" in load_snapshot(any_phone, "no-such-snapshot")
