"""The phone behind an adb server; tests/test_ui_state.py has what its screen holds.

Faults run against a scripted adb server here (`FakeServer`, whose phone's shell is a real `sh`), against simulated
phones behind the real adb server in tests/test_phone_faults.py; tests/test_conformance.py has what every phone must do.
"""

import io
import socket
import struct
import subprocess
import threading
import time
from contextlib import suppress

import numpy as np
import pytest
from PIL import Image
from test_ui_state import DUMP

from adb_phone import (
    AdbPhone,
    AdbTimeout,
    AndroidEnvError,
    DeviceOffline,
    DeviceUnauthorized,
    ScreenLocked,
    ScreenshotError,
    ScreenUnreadable,
    extract_png,
    input_commands,
    parse_devices,
)
from ui_state import is_locked

TEXTS = [
    "hello world",
    "it's",
    'say "hi"',
    "a$HOME b",
    "`id`",
    "x; reboot",
    "a&b|c",
    "(x)",
    "*",
    "~",
    "a\\b",
    "50% off",
    "50%solid %s %%s",
    "-n",
    "#x",
    "pizza, near me",
    "time: 5",
    '"',
    "a<b>c",
    "!x {y} [z]?",
    "%",
    "\\n",
]


# ---- the phone, behind a scripted adb server


class FakeServer:
    """Answers like an adb server whose one phone is the dict `answers`: shell or exec command -> bytes, or a
    list of them for one call each. None: hangs; a `bytearray`: the connection breaks after these bytes. A
    command that is not there runs in a real `sh` in `folder`."""

    def __init__(self, folder=None):
        self.answers, self.commands, self.folder, self.fail = {}, [], folder, ""
        self.services = []
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
                self.services.append(service)
                fail = self.fail.pop(0) if isinstance(self.fail, list) and self.fail else self.fail
                if fail:
                    connection.sendall(b"FAIL%04x" % len(fail) + fail.encode())
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
                        ran = subprocess.run(
                            ["sh", "-c", command],
                            cwd=self.folder,
                            capture_output=True,
                            env={"PATH": f"{self.folder}:/usr/bin:/bin", "TMP": str(self.folder)},
                        )
                        answer, code = ran.stdout + ran.stderr, ran.returncode
                    # In two pieces, with stderr and window-size packets between, as a device may send them.
                    with suppress(ConnectionError):  # who asked has left
                        for part in (answer[:7], answer[7:]):
                            connection.sendall(struct.pack("<BI", 1, len(part)) + part)
                        connection.sendall(struct.pack("<BI", 5, 2) + b"xx" + struct.pack("<BIB", 3, 1, code))
                return

    def close(self):
        self.done.set()
        self.server.close()


@pytest.fixture
def fake(tmp_path):
    """A scripted server; its phone's `input` appends what a field would get to the file `typed`."""
    stub = tmp_path / "input"
    stub.write_text(
        '#!/bin/sh\nprintf "%s\\n" "$#:$1" >> log\nif [ "$1" = text ]; then\n'
        'printf "%s" "$2" | sed "s/%s/ /g" | tr -d "\\n" >> typed; else printf "<%s>" "$2" >> typed; fi\n'
    )
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
    assert not (tmp_path / "pwn").exists() and {p.name for p in tmp_path.iterdir()} == {
        "input",
        "typed",
        "log",
    }


def test_a5_newline_is_enter(fake, tmp_path):
    assert input_commands("a\r\nb\tc") == [
        "input text a",
        "input keyevent 66",
        "input text b",
        "input keyevent 61",
        "input text c",
    ]
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
    latin = "settings get secure default_input_method > /data/local/tmp/distrl-keyboard"  # to be set back
    fake.answers |= {c: b"" for c in (
        f"{latin} && ime enable com.android.adbkeyboard/.AdbIME && ime set com.android.adbkeyboard/.AdbIME",
        "am broadcast -a ADB_INPUT_B64 --es msg bmHDr3ZlIOS9oOWlvSDwn5iA",
    )}  # fmt: skip
    fake.answers["settings get secure default_input_method"] = b"com.google.android.inputmethod.latin/.Ime\n"
    fake.answers["dumpsys input_method"] = [
        b"  mCurMethodId=com.android.adbkeyboard/.AdbIME\n"  # chosen, not bound
        b"  mCurId=com.google.android.inputmethod.latin/.Ime mHaveConnection=false mBoundToMethod=false\n",
        b"  mCurId=com.android.adbkeyboard/.AdbIME mHaveConnect=true mBoundToMethod=true\n",  # as Android 8 spells it
    ]
    fake.commands.clear()
    assert other.type_text("naïve 你好 😀")
    assert fake.commands == [  # it is typed once the keyboard is up
        "ime list -s -a",
        "settings get secure default_input_method",
        f"{latin} && ime enable com.android.adbkeyboard/.AdbIME && ime set com.android.adbkeyboard/.AdbIME",
        "dumpsys input_method",
        "dumpsys input_method",
        "am broadcast -a ADB_INPUT_B64 --es msg bmHDr3ZlIOS9oOWlvSDwn5iA",
    ]


def test_a7_png_from_signature_to_iend(fake):
    data, pixels = png()
    fake.answers["screencap -p"] = b"[Warning] Multiple displays were found\n" + data + b"trailing"
    assert np.array_equal(fake.phone.screenshot(), pixels)
    assert extract_png(b"x" + data + b"y") == data


def test_a7_a8_a9_damaged_screenshots(fake):
    data, pixels = png()
    bad = [
        data[:-20],
        data.replace(b"\n", b"\r\n"),
        data.replace(b"\n", b"\r\r\n"),
        b"",
        b"screencap: exit status 1",
        data[:60] + bytes([data[60] ^ 1]) + data[61:],
    ]
    for damaged in bad:
        fake.answers["screencap -p"] = damaged
        with pytest.raises(ScreenshotError, match="R58M12"):
            fake.phone.screenshot()
    fake.phone.retries = 0
    fake.answers["screencap -p"] = [bad[0], bad[1], data]
    assert np.array_equal(fake.phone.screenshot(), pixels) and fake.phone.retries == 2


@pytest.mark.parametrize(
    "answer, size",
    [
        (b"Physical size: 1080x2280\nOverride size: 720x1520\n", (720, 1520)),
        (b"Physical size: 1080x2280\n", (1080, 2280)),
        (b"Physical size: 1080x2280\n  mViewports=[DisplayViewport{orientation=1, x}]\n", (2280, 1080)),
    ],
)
def test_a11_size(fake, answer, size):
    fake.answers["wm size; dumpsys display | grep -E 'orientation='"] = answer
    assert fake.phone.size == size
    data, _ = png(0, size[1], size[0])  # now it is turned
    fake.answers["screencap -p"] = data
    fake.phone.screenshot()
    assert fake.phone.size == size[::-1]


@pytest.mark.parametrize("answer", [b"", b"cmd: Can't find service: window", b"Physical size: 0x0"])
def test_a11_no_size_is_an_error(fake, answer):
    fake.answers["wm size; dumpsys display | grep -E 'orientation='"] = answer
    with pytest.raises(AndroidEnvError, match="wm size"):
        _ = fake.phone.size


def test_a13_states():
    listing = (
        "* daemon started successfully\nList of devices attached\nemulator-5554\tdevice\nR58M\toffline\n"
        "192.168.1.5:5555 unauthorized transport_id:2\nX1\tno permissions (user in plugdev group)\n"
        "Z9 device product:x transport_id:3\nadb-39071FDJ-dHvVvs (2)._adb-tls-connect._tcp\tdevice\n\n"
    )
    assert parse_devices(listing) == {
        "emulator-5554": "device",
        "R58M": "offline",
        "192.168.1.5:5555": "unauthorized",
        "X1": "no permissions",
        "Z9": "device",
        "adb-39071FDJ-dHvVvs (2)._adb-tls-connect._tcp": "device",  # the second of that name in the network
    }


@pytest.mark.parametrize(
    "message, error, words",
    [
        ("device 'R58M12' not found", DeviceOffline, "not found"),
        ("device offline", DeviceOffline, "offline"),
        (
            "device unauthorized.\nThis adb server's $ADB_VENDOR_KEYS is not set",
            DeviceUnauthorized,
            "accept the prompt",
        ),
        ("device still authorizing", DeviceUnauthorized, "accept the prompt"),
    ],
)
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
    focus = "dumpsys window | grep -E 'mCurrentFocus|mFocusedApp|Lockscreen=|isKeyguardShowing='; uiautomator dump "
    file = "/sdcard/window_dump.xml"
    in_file = focus.replace("uiautomator", f"rm -f {file}; uiautomator") + f"{file} >/dev/null && cat {file}"
    fake.answers = {
        focus + "/dev/tty": b"UI hierchary dumped to: /dev/tty",
        in_file: DUMP.format("x").encode(),
    }
    for _ in range(2):
        assert fake.phone.ui().texts == ["x", "low", "d"]
    assert fake.commands == [focus + "/dev/tty", in_file, in_file]
    other, null = AdbPhone("R58M13", port=fake.port, timeout=5), b"ERROR: null root node returned by UiAutomation."
    fake.answers[in_file] = [null, DUMP.format("y").encode(), null, null, DUMP.format("z").encode()]
    assert [other.ui().texts[0], other.ui().texts[0]] == ["y", "z"]  # that passes: the way is fine
    fake.answers[in_file] = fake.answers[focus + "/dev/tty"] = b"ERROR: could not get idle state."
    with pytest.raises(ScreenUnreadable, match="idle state"):
        fake.phone.ui()


def test_a14_offline_twice_then_there(fake):
    fake.answers["getprop sys.boot_completed"] = b"1\n"
    fake.fail = ["device offline", "device offline"]
    fake.phone.recover(timeout=20)
    assert fake.fail == []


def test_a8_a_picture_of_another_shape_than_the_screen_is_an_error(fake):
    fake.answers["wm size; dumpsys display | grep -E 'orientation='"] = b"Physical size: 100x200\n"
    fake.answers["screencap -p"] = png()[0]
    assert fake.phone.size == (100, 200)
    with pytest.raises(ScreenshotError, match="27x48 pixels on a screen of"):
        fake.phone.screenshot()


def test_a_usb_phones_connection_is_restarted_when_asked(fake):
    fake.phone.attach()
    assert fake.services == ["host-serial:R58M12:reconnect"]


def test_a_black_picture_is_an_error(fake):
    stream = io.BytesIO()
    Image.new("RGB", (27, 48)).save(stream, "PNG")
    fake.answers["screencap -p"] = stream.getvalue()
    with pytest.raises(ScreenshotError, match="black"):
        fake.phone.screenshot()


def test_a_secure_window_of_android_8_or_9_is_no_broken_screenshot(fake):
    fake.answers["screencap -p"] = bytes(12)
    with pytest.raises(ScreenUnreadable, match="secure window"):
        fake.phone.screenshot()
    assert fake.commands == ["screencap -p"]


def test_a_phone_that_refuses_input_says_which_switch_it_needs(fake, tmp_path):
    refusal = "SecurityException: ... requires INJECT_EVENTS permission"
    (tmp_path / "input").write_text(f"#!/bin/sh\necho '{refusal}'; exit 255")
    for act in (lambda: fake.phone.tap(1, 1), fake.phone.unlock):
        with pytest.raises(AndroidEnvError, match=r"exited with 255.*USB debugging \(Security settings\)"):
            act()


FOCUS = "dumpsys window | grep -E 'mCurrentFocus|mFocusedApp|Lockscreen=|isKeyguardShowing='"


@pytest.mark.parametrize(
    "line, locked",
    [
        ("    mShowingLockscreen=true mShowingDream=false mDreamingLockscreen=false", True),
        ("    mShowingDream=false mDreamingLockscreen=true mDreamingSleepToken=null", True),
        ("    mDreamingLockscreen=false isKeyguardShowing=true", True),
        ("    mShowingDream=false mDreamingLockscreen=false isKeyguardShowing=false", False),
        ("  mCurrentFocus=Window{5f3 u0 com.android.chrome/.Main}", False),
    ],
)
def test_a_lock_screen_is_told_by_its_name_in_every_android_version(fake, line, locked):
    assert is_locked(line) is locked
    fake.answers = {FOCUS: line.encode()}
    if locked:
        with pytest.raises(ScreenLocked, match="'R58M12'.*its screen is locked.*PIN"):
            fake.phone.foreground()
    else:
        fake.phone.foreground()


def test_text_on_the_screen_locks_nothing(fake):
    """A policy may type it."""
    fake.answers = {f"{FOCUS}; uiautomator dump /dev/tty": DUMP.format("isKeyguardShowing=true").encode()}
    assert fake.phone.ui().texts[0] == "isKeyguardShowing=true"
    locked = b"  mDreamingLockscreen=true\n" + DUMP.format("x").encode()
    fake.answers = {f"{FOCUS}; uiautomator dump /dev/tty": locked}
    with pytest.raises(ScreenLocked):
        fake.phone.ui()
