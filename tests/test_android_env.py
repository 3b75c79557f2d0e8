"""The action text, UI parsing, the phone behind an adb server, and the environment.

The phone's faults run against a scripted adb server (`FakeServer`, whose shell is a real `sh`); the conformance tests
run against simulated phones behind the real adb server and would run against any phone."""

import io
import random
import socket
import struct
import subprocess
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from adb_phone import extract_png, input_commands, parse_devices
from android_env import (
    KINDS,
    Action,
    AdbPhone,
    AdbTimeout,
    AndroidEnv,
    AndroidEnvError,
    DeviceOffline,
    DeviceUnauthorized,
    ScreenshotError,
    format_action,
    list_devices,
    make_prompt,
    parse_action,
    to_pixel,
)
from ui_state import parse_ui

TEXTS = ["hello world", "it's", 'say "hi"', "a$HOME b", "`id`", "x; reboot", "a&b|c", "(x)", "*", "~", "a\\b",
         "50% off", "50%solid %s %%s", "-n", "#x", "pizza, near me", "time: 5", '"', "a<b>c", "!x {y} [z]?", "%", "\\n"]


def text_of(kind="DUAL_POINT", touch="[0.5, 0.25]", lift="[0.5, 0.25]", typed=""):
    return (f'Action Decision: "action_type": "{kind}", "touch_point": "{touch}", "lift_point": "{lift}", '
            f'"typed_text": "{typed}"')


# ---- actions

def test_format_is_the_papers_text():
    assert format_action(Action("DUAL_POINT", (0.7852, 0.6779), (0.7852, 0.6779))) == (
        'Action Decision: "action_type": "DUAL_POINT", "touch_point": "[0.7852, 0.6779]", '
        '"lift_point": "[0.7852, 0.6779]", "typed_text": ""')
    assert format_action(Action("PRESS_HOME")) == (
        'Action Decision: "action_type": "PRESS_HOME", "touch_point": "[-1.0, -1.0]", '
        '"lift_point": "[-1.0, -1.0]", "typed_text": ""')


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


@pytest.mark.parametrize("text, reason", [
    ("", "no 'Action Decision:'"), ("DUAL_POINT", "no 'Action Decision:'"), ("Action Decision:", "incomplete"),
    ('Action Decision: "action_type": "DUAL_POINT", "touch_point": "[0.5, 0.2]", "typed_text": ""', "incomplete"),
    (text_of()[:-1], "incomplete"), (text_of("CLICK"), "unknown action_type 'CLICK'"),
    (text_of(touch="[0.1, 0.2, 0.3]"), "touch_point '[0.1, 0.2, 0.3]'"), (text_of(lift="[a, b]"), "lift_point"),
    (text_of(touch=""), "touch_point"), (text_of(touch="[1.5, -0.2]"), "outside"),
    (text_of(touch="[nan, 0.2]"), "outside"), (text_of(touch="[-1.0, -1.0]"), "outside"),
    (text_of("TYPE", touch="[nan, inf]"), "outside"),
])
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


# ---- what is on screen

DUMP = """  mCurrentFocus=null
  mCurrentFocus=Window{{5f3 u0 com.android.chrome/.Main}}
  mFocusedApp=ActivityRecord{{2b u0 com.google.android.youtube/.Watch t12}}
<?xml version='1.0' encoding='UTF-8' standalone='yes' ?><hierarchy rotation="0">
<node text="" class="F" package="p" content-desc="" bounds="[0,0][100,200]">
<node text="low" resource-id="i" package="p" content-desc="d" bounds="[0,90][50,110]" clickable="true" checked="true"/>
<node text="{0}" package="p" content-desc="" bounds="[10,20][31,40]" focused="true"/>
<node text="flat" package="p" bounds="[10,20][10,40]"/><node text="off" package="p" bounds="[0,200][9,240]"/>
<node text="hid" package="p" bounds="[1,1][9,9]" visible-to-user="false"/>
</node></hierarchy>UI hierchary dumped to: /dev/tty
"""


def test_ui_keeps_visible_nodes_in_reading_order():
    state = parse_ui(DUMP.format("a &amp; b").encode())
    assert (state.package, state.activity) == ("com.android.chrome", "com.android.chrome.Main")
    assert state.app == "com.google.android.youtube"
    assert state.texts == ["a & b", "low", "d"]
    high, low = state.nodes[1:]
    assert high.center == (20, 30) and high.focused and not high.clickable
    assert low.clickable and low.checked and low.id == "i" and low.bounds == (0, 90, 50, 110)


@pytest.mark.parametrize("written, read", [("&#55357;&#56832;", "😀"), ("&#xD83D;&#xDE00;!", "😀!"), ("a&#1;b", "ab"),
                                           ("a\x02b", "ab"), ("&#55357;a", "a"), ("&#233;&#2;", "é")])
def test_ui_mends_what_is_not_xml(written, read):
    assert parse_ui(DUMP.format(written).encode()).texts[0] == read


@pytest.mark.parametrize("dump", [b"", b"ERROR: could not get idle state.", b"<hierarchy><node></hierarchy>"])
def test_ui_without_a_hierarchy_is_an_error(dump):
    with pytest.raises(ValueError, match="hierarchy"):
        parse_ui(dump)


# ---- the phone, behind a scripted adb server

class FakeServer:
    """Answers like an adb server whose one phone is the dict `answers`: shell or exec command -> bytes, or a list of
    them for one call each. None: hangs; a `bytearray`: the connection breaks after these bytes. A command that is not
    there runs in a real `sh` in `folder`."""

    def __init__(self, folder=None):
        self.answers, self.commands, self.folder, self.fail = {}, [], folder, ""
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        self.done = threading.Event()
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                connection, _ = self.server.accept()
            except OSError:
                return
            threading.Thread(target=self.talk, args=(connection,), daemon=True).start()

    def talk(self, connection):
        with connection:
            while size := connection.recv(4):
                service = connection.recv(int(size, 16)).decode()
                if self.fail:
                    connection.sendall(b"FAIL%04x" % len(self.fail) + self.fail.encode())
                    return
                connection.sendall(b"OKAY")
                if service.startswith("host:transport:"):
                    continue
                kind, _, command = service.partition(":")
                command = command.removeprefix("v2,raw:")
                self.commands.append(command)
                answer = self.answers.get(command, b"")
                if isinstance(answer, list):
                    answer = answer.pop(0)
                if answer is None:
                    self.done.wait(10)
                elif kind == "exec":
                    connection.sendall(answer)
                elif isinstance(answer, bytearray):
                    connection.sendall(struct.pack("<BI", 1, 1000) + answer)
                else:
                    code = 0
                    if command not in self.answers and self.folder:
                        ran = subprocess.run(["sh", "-c", command], cwd=self.folder, capture_output=True,
                                             env={"PATH": f"{self.folder}:/usr/bin:/bin", "TMP": str(self.folder)})
                        answer, code = ran.stdout + ran.stderr, ran.returncode
                    # In two pieces, with stderr and window-size packets between, as a device may send them.
                    for part in (answer[:7], answer[7:]):
                        connection.sendall(struct.pack("<BI", 1, len(part)) + part)
                    connection.sendall(struct.pack("<BI", 5, 2) + b"xx" + struct.pack("<BIB", 3, 1, code))
                return

    def close(self):
        self.done.set()
        self.server.close()


@pytest.fixture
def fake(tmp_path):
    """A scripted server; its phone's `input` appends what the field would hold, NUL-ended, to the file `typed`."""
    stub = tmp_path / "input"
    stub.write_text('#!/bin/sh\nprintf "%s\\n" "$#:$1" >> log\nif [ "$1" = text ]; then\n'
                    'printf "%s" "$2" | sed "s/%s/ /g" | tr -d "\\n" >> typed; else printf "<%s>" "$2" >> typed; fi\n')
    stub.chmod(0o755)
    server = FakeServer(tmp_path)
    server.phone = AdbPhone("R58M12", port=server.port, timeout=5)
    yield server
    server.close()


def png(seed=0, width=27, height=48):
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue(), pixels


@pytest.mark.parametrize("text", TEXTS + ["`touch $TMP/pwn`", "$(touch $TMP/pwn)"])
def test_a1_a2_text_reaches_the_field_as_it_is(fake, tmp_path, text):
    assert fake.phone.type_text(text)
    assert (tmp_path / "typed").read_text() == text
    assert set((tmp_path / "log").read_text().split()) == {"2:text"}
    assert not (tmp_path / "pwn").exists() and {p.name for p in tmp_path.iterdir()} == {"input", "typed", "log"}


def test_a5_newline_is_enter(fake, tmp_path):
    assert input_commands("a\r\nb\tc") == ["input text a", "input keyevent 66", "input text b", "input keyevent 61",
                                           "input text c"]
    fake.phone.type_text("a\nb")
    assert (tmp_path / "typed").read_text() == "a<66>b"


def test_a6_blank_text_asks_nothing_of_adb(fake):
    for text in ("", "  ", "\n"):
        assert fake.phone.type_text(text)
    assert fake.commands == []


def test_a4_non_ascii_needs_the_keyboard(fake):
    fake.answers["ime list -s -a"] = b"com.google.android.inputmethod.latin/.Ime\n"
    assert not fake.phone.type_text("naïve 你好 😀")
    assert fake.commands == ["ime list -s -a"]
    other = AdbPhone("R58M12", port=fake.port, timeout=5)
    fake.answers["ime list -s -a"] = b"com.android.adbkeyboard/.AdbIME\n"
    want = ("ime enable com.android.adbkeyboard/.AdbIME && ime set com.android.adbkeyboard/.AdbIME && "
            "am broadcast -a ADB_INPUT_B64 --es msg bmHDr3ZlIOS9oOWlvSDwn5iA")
    fake.answers[want] = b""
    assert other.type_text("naïve 你好 😀") and fake.commands[-1] == want


def test_a7_png_from_signature_to_iend(fake):
    data, pixels = png()
    fake.answers["screencap -p"] = b"[Warning] Multiple displays were found\n" + data + b"trailing"
    assert np.array_equal(fake.phone.screenshot(), pixels)
    assert extract_png(b"x" + data + b"y") == data


def test_a7_a8_a9_damaged_screenshots(fake):
    data, pixels = png()
    bad = [data[:-20], data.replace(b"\n", b"\r\n"), data.replace(b"\n", b"\r\r\n"), b"", b"screencap: exit status 1",
           data[:60] + bytes([data[60] ^ 1]) + data[61:]]
    for damaged in bad:
        fake.answers["screencap -p"] = damaged
        with pytest.raises(ScreenshotError, match="R58M12"):
            fake.phone.screenshot()
    fake.phone.retries = 0
    fake.answers["screencap -p"] = [bad[0], bad[1], data]
    assert np.array_equal(fake.phone.screenshot(), pixels) and fake.phone.retries == 2


@pytest.mark.parametrize("answer, size", [
    (b"Physical size: 1080x2280\nOverride size: 720x1520\n", (720, 1520)),
    (b"Physical size: 1080x2280\n", (1080, 2280)),
    (b"Physical size: 1080x2280\n  mViewports=[DisplayViewport{orientation=1, x}]\n", (2280, 1080)),
])
def test_a11_size(fake, answer, size):
    fake.answers["wm size; dumpsys display | grep -E 'orientation='"] = answer
    assert fake.phone.size == size
    data, _ = png(0, size[1], size[0])                       # now it is turned
    fake.answers["screencap -p"] = data
    fake.phone.screenshot()
    assert fake.phone.size == size[::-1]


@pytest.mark.parametrize("answer", [b"", b"cmd: Can't find service: window", b"Physical size: 0x0"])
def test_a11_no_size_is_an_error(fake, answer):
    fake.answers["wm size; dumpsys display | grep -E 'orientation='"] = answer
    with pytest.raises(AndroidEnvError, match="wm size"):
        _ = fake.phone.size


def test_a13_states():
    listing = ("* daemon started successfully\nList of devices attached\nemulator-5554\tdevice\nR58M\toffline\n"
               "192.168.1.5:5555 unauthorized transport_id:2\nX1\tno permissions (user in plugdev group)\n"
               "Z9 device product:x transport_id:3\n\n")
    assert parse_devices(listing) == {"emulator-5554": "device", "R58M": "offline", "192.168.1.5:5555": "unauthorized",
                                      "X1": "no permissions", "Z9": "device"}


@pytest.mark.parametrize("message, error, words", [
    ("device 'R58M12' not found", DeviceOffline, "not found"), ("device offline", DeviceOffline, "offline"),
    ("device unauthorized.\nThis adb server's $ADB_VENDOR_KEYS is not set", DeviceUnauthorized, "accept the prompt"),
    ("device still authorizing", DeviceUnauthorized, "accept the prompt"),
])
def test_a14_errors_say_which_phone_and_what_to_do(fake, message, error, words):
    fake.fail = message
    with pytest.raises(error, match=f"'R58M12'.*{words}") as caught:
        fake.phone.shell("id")
    assert caught.value.serial == "R58M12" and caught.value.remedy


def test_a18_every_command_has_a_deadline(fake):
    fake.answers["sleep 1000"] = None
    started = time.monotonic()
    for call in (fake.phone.shell, fake.phone.exec_out):
        with pytest.raises(AdbTimeout, match="within 0.2 s"):
            call("sleep 1000", timeout=0.2)
    assert time.monotonic() - started < 3


def test_a_drop_in_the_middle_is_an_error_not_a_short_answer(fake):
    fake.answers["getprop"] = bytearray(b"[ro.product.mod")
    with pytest.raises(DeviceOffline, match="middle of a command"):
        fake.phone.shell("getprop")


def test_a_failed_command_is_an_error_when_checked(fake):
    assert "No such file" in fake.phone.shell("cat /nowhere")
    with pytest.raises(AndroidEnvError, match="exited with 1.*No such file"):
        fake.phone.shell("cat /nowhere", check=True)


def test_no_server():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(DeviceOffline, match=f"adb -P {port} start-server"):
        AdbPhone("x", port=port).shell("id")


def test_ui_falls_back_to_a_file_and_stays_there(fake):
    focus = "dumpsys window | grep -E 'mCurrentFocus|mFocusedApp'; uiautomator dump "
    in_file = focus + "/sdcard/window_dump.xml >/dev/null && cat /sdcard/window_dump.xml"
    fake.answers = {focus + "/dev/tty": b"UI hierchary dumped to: /dev/tty", in_file: DUMP.format("x").encode()}
    for _ in range(2):
        assert fake.phone.ui().texts == ["x", "low", "d"]
    assert fake.commands == [focus + "/dev/tty", in_file, in_file]
    fake.answers[in_file] = fake.answers[focus + "/dev/tty"] = b"ERROR: could not get idle state."
    with pytest.raises(AndroidEnvError, match="idle state"):
        fake.phone.ui()


# ---- the environment over a phone of a few lines

class ToyPhone:
    """A phone whose screen is a number; tapping adds 1, swiping 10, BACK takes 1."""

    size = (100, 200)

    def __init__(self):
        self.number, self.calls, self.error = 0, [], None

    def screenshot(self):
        if self.error:
            raise self.error
        return np.full((200, 100, 3), self.number % 256, np.uint8)

    def ui(self):
        return SimpleNamespace(package="com.app", app="com.under", texts=[str(self.number)])

    def shell(self, command, timeout=None, check=False):
        self.calls.append(command)
        if command.endswith("input keyevent 3"):
            self.number = 0
        return "package:com.old\n" + ("package:com.new\n" if len(self.calls) > 3 else "")

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
    assert (reward, terminated, truncated, info["success"], info["screen_changed"]) == (0.0, False, False, False, True)
    assert obs["prompt"] == f"Previous Actions: {TAP} Goal: show 2</s>" and "tap 25 100" in toy.phone.calls
    obs, reward, terminated, truncated, info = toy.step(TAP)
    assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True)
    assert info["verdict_reason"] == "shows 2" and obs["image"][0, 0, 0] == 2


def test_a23_after_the_end_the_same_answer_and_no_action(toy):
    toy.step(TAP)
    last, calls = toy.step(TAP), len(toy.phone.calls)
    obs, reward, terminated, truncated, info = toy.step(TAP)
    assert reward == 0.0 and (terminated, truncated) == last[2:4] and obs is last[0] and len(toy.phone.calls) == calls
    with pytest.raises(RuntimeError, match="reset"):
        AndroidEnv(toy.phone, [TASK], CountJudge()).step(TAP)


@pytest.mark.parametrize("kind", ["STATUS_TASK_COMPLETE", "STATUS_TASK_IMPOSSIBLE"])
def test_b12_saying_so_is_not_success(toy, kind):
    _, reward, terminated, truncated, info = toy.step(format_action(Action(kind)))
    assert (reward, terminated, truncated, info["success"], toy.judge.calls) == (0.0, True, False, False, 1)


def test_the_horizon_truncates_and_an_unchanged_screen_is_not_judged(toy):
    steps = [toy.step("nonsense") for _ in range(5)]
    assert [s[2:4] for s in steps] == [(False, False)] * 4 + [(False, True)]
    assert toy.judge.calls == 1 and steps[-1][4]["success"] is False        # once, so that there is a verdict
    assert steps[0][4]["invalid"] and "Action Decision" in steps[0][4]["reason"] and not steps[0][4]["screen_changed"]


def test_a_judge_that_cannot_tell_is_none_and_the_last_verdict_counts(toy):
    toy.phone.number = 10
    assert toy.step(BACK)[4]["success"] is None
    toy.phone.number = 10
    assert [toy.step(a)[4]["success"] for a in (BACK, "?", "?", "?")] == [None] * 4


def test_penalties():
    env = AndroidEnv(ToyPhone(), [TASK], CountJudge(), horizon=9, repetition_penalty=0.4, empty_type_penalty=1.0,
                     invalid_penalty=0.25)
    env.reset()
    blank = format_action(Action("TYPE", text=" "))
    rewards = [env.step(a)[1] for a in (BACK, BACK, BACK, blank, "?", "?", BACK)]
    assert rewards == pytest.approx([0, -0.4, -0.8, -1.0, -0.25, -0.65, 0])
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


def test_reset_undoes_what_the_episode_did(toy):
    toy.step(TAP)
    toy.reset(seed=7, options={"task": TASK})
    assert toy.phone.calls[-1] == (
        "pm uninstall com.new; am force-stop com.app; pm clear com.app; am force-stop com.under; pm clear com.under; "
        "setprop debug.distrl.seed 7; input keyevent 3")
    toy.reset(seed=8)
    assert "com.app" not in toy.phone.calls[-1]


def test_reset_needs_a_task():
    with pytest.raises(ValueError, match="no task"):
        AndroidEnv(ToyPhone(), None, CountJudge()).reset()


# ---- conformance: any phone, here simulated ones behind the real adb server

class NeverJudge:
    def reset(self, task, observation):
        pass

    def __call__(self, task, observation):
        return SimpleNamespace(success=False, reason="never", raw="")


@pytest.fixture
def env(phone):
    return AndroidEnv(phone, [TASK], NeverJudge())


def test_conformance_shapes_and_types(env):
    obs, info = env.reset(seed=1)
    width, height = env.phone.size
    for text in (TAP, "nonsense", format_action(Action("TYPE", text="it's")), BACK,
                 format_action(Action("DUAL_POINT", (0.8, 0.5), (0.2, 0.5)))):
        obs, reward, terminated, truncated, step_info = env.step(text)
        assert obs["image"].shape == (height, width, 3) and obs["image"].dtype == np.uint8
        assert isinstance(obs["prompt"], str) and [type(x) for x in (reward, terminated, truncated)] == [float, bool, bool]
        assert step_info.keys() >= info.keys() and "error" not in step_info
    assert truncated and not terminated
    again = env.step(TAP)
    assert len(again) == 5 and again[3] and again[1] == 0.0


def test_a17_conformance_the_first_frame_is_the_same(env):
    first = env.reset(seed=1)[0]["image"]
    app = [Action("DUAL_POINT", (y, x), (y, x)) for y in (0.3, 0.5, 0.7) for x in (0.15, 0.4)]
    for seed in (1, 2, 1):
        for action in [*app[seed:seed + 3], Action("TYPE", text="x")]:
            env.step(format_action(action))
        assert np.array_equal(env.reset(seed=seed)[0]["image"], first)


def test_conformance_the_same_seed_and_actions_give_the_same_frames(env):
    def frames():
        env.reset(seed=5)
        points = [(0.4, 0.15), (0.5, 0.5), (0.3, 0.4), (0.6, 0.8)]
        return [env.step(format_action(Action("DUAL_POINT", p, p)))[0]["image"] for p in points]
    frames()
    assert all(np.array_equal(a, b) for a, b in zip(frames(), frames(), strict=True))


def test_conformance_ui_and_devices(phone):
    phone.key(3)
    state = phone.ui()
    assert state.package and state.nodes and (state.package, state.activity) == phone.foreground()[:2]
    width, height = phone.size
    assert all(0 <= n.center[0] <= width and 0 <= n.center[1] <= height for n in state.nodes if n.text)
    assert list_devices(phone.host, phone.port)[phone.serial] == "device"
    assert phone.shell("echo $HOME'x'").endswith("x\n")
    with pytest.raises(AndroidEnvError, match="exited with"):
        phone.shell("ls /no/such/file", check=True)


def test_a14_conformance_recovers_a_dropped_network_phone(phone):
    if ":" not in phone.serial:
        pytest.skip("only network phones can be disconnected")
    phone._host(f"host:disconnect:{phone.serial}", 5)
    with pytest.raises(DeviceOffline, match="not found"):
        phone.shell("id")
    phone.recover(timeout=20)
    assert phone.screenshot().ndim == 3


def test_a14_recovery_is_bounded_and_says_where_it_looked(phone):
    lost = AdbPhone("127.0.0.1:1", phone.host, phone.port)
    with pytest.raises(AndroidEnvError, match=f"127.0.0.1:1.*state .*:{phone.port}"):
        lost.recover(timeout=0.6, attempts=2)
