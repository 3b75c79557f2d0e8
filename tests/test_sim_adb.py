"""Simulated phones as the real adb binary and unmodified adbutils see them."""

import json
import os
import select
import shlex
import signal
import socket
import struct
import subprocess
import sys
import time
from io import BytesIO
from pathlib import Path
from xml.etree import ElementTree

import adbutils
import pytest
from PIL import Image

import sim
from adb_phone import AndroidEnvError, list_devices

ROOT = Path(__file__).resolve().parent.parent
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def phones():
    with sim.start_phones(2, latency=0.0, dialogs=0.0, failed_loads=0.0, slow_loads=0.0) as phones:
        yield phones


@pytest.fixture
def device(phones):
    device = adbutils.AdbClient(host=phones.host, port=phones.port).device(phones.serials[0])
    device.shell("input keyevent HOME")
    return device


def adb(phones, *args, serial=0, **options):
    command = [adbutils.adb_path(), "-P", str(phones.port)]
    command += ["-s", phones.serials[serial]] if serial is not None else []
    return subprocess.run([*command, *args], capture_output=True, timeout=20, **options)


def fields(device) -> list[str]:
    nodes = ElementTree.fromstring(device.dump_hierarchy()).iter("node")
    return [node.get("text") for node in nodes if node.get("focused") == "true"]


# ---- the plain adb command line


def test_adb_devices_lists_every_phone_as_a_device(phones):
    lines = adb(phones, "devices", "-l", serial=None).stdout.decode().splitlines()[1:]
    found = {line.split()[0]: line.split()[1] for line in lines if line}
    assert found == dict.fromkeys(phones.serials, "device")


def test_shell_exit_status_and_streams(phones):
    done = adb(phones, "shell", "echo out; nonsense; echo $?; ls /missing; exit 7")
    assert done.returncode == 7
    assert done.stdout == b"out\n127\n"
    assert done.stderr.splitlines() == [
        b"/system/bin/sh: nonsense: inaccessible or not found",
        b"ls: /missing: No such file or directory",
    ]


def test_shell_without_a_command_reads_lines(phones):
    done = adb(phones, "shell", input=b"cd /sdcard\npwd\nexit 3\n")
    assert (done.stdout, done.returncode) == (b"/sdcard\n", 3)


def test_exec_out_screencap_is_a_png_of_the_screen(phones):
    png = adb(phones, "exec-out", "screencap", "-p").stdout
    assert png.startswith(PNG)
    assert Image.open(BytesIO(png)).size == (270, 480)


def test_push_pull_and_list_with_the_adb_binary(phones, tmp_path):
    data = os.urandom(1 << 20)
    (tmp_path / "a.bin").write_bytes(data)
    assert adb(phones, "push", str(tmp_path / "a.bin"), "/sdcard/new/a.bin").returncode == 0
    assert adb(phones, "pull", "/sdcard/new", str(tmp_path / "back")).returncode == 0
    assert (tmp_path / "back" / "a.bin").read_bytes() == data
    assert b"a.bin" in adb(phones, "ls", "/storage/emulated/0/new").stdout
    missing = adb(phones, "pull", "/sdcard/none", str(tmp_path))
    assert missing.returncode != 0 and b"/sdcard/none" in missing.stderr + missing.stdout


def test_reconnect_keeps_the_phone(phones):
    adb(phones, "shell", "echo kept > /sdcard/kept", serial=1)
    serial = phones.serials[1]
    assert b"disconnected" in adb(phones, "disconnect", serial, serial=None).stdout
    assert b"connected to" in adb(phones, "connect", serial, serial=None).stdout
    assert adb(phones, "shell", "cat /sdcard/kept", serial=1).stdout == b"kept\n"


def test_unknown_service_is_closed(device):
    for service in ("framebuffer:", "nonsense:"):
        with pytest.raises((adbutils.AdbError, EOFError)), device.open_transport() as connection:
            connection.send_command(service)
            connection.check_okay()


# ---- unmodified adbutils


def test_adbutils_reads_size_focus_and_hierarchy(device):
    assert device.window_size() == (270, 480)
    assert device.rotation() == 0
    device.app_start("com.android.settings")
    assert device.app_current().package == "com.android.settings"
    tree = ElementTree.fromstring(device.dump_hierarchy())
    assert "Display" in [node.get("text") for node in tree.iter("node")]
    assert device.screenshot(error_ok=False).size == (270, 480)


def test_logcat_of_the_adb_binary_finds_its_command(phones):
    done = adb(phones, "logcat", "-d")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_adbutils_exit_codes_and_properties(device):
    assert device.shell2("true", v2=True).returncode == 0
    done = device.shell2("echo a; cat /none; false", v2=True)
    assert (done.returncode, done.stdout) == (1, "a\n")
    assert done.stderr == "cat: /none: No such file or directory\n"
    assert device.shell2("sh -c 'exit 9'").returncode == 9
    assert device.getprop("sys.boot_completed") == "1"
    device.shell("setprop debug.x 1")
    assert device.getprop("debug.x") == "1"


def test_adbutils_push_pull_a_megabyte(device, tmp_path):
    data = os.urandom(1 << 20)
    assert device.sync.push(data, "/data/local/tmp/blob", check=True) == len(data)
    assert device.sync.read_bytes("/data/local/tmp/blob") == data
    assert [f.path for f in device.sync.list("/data/local/tmp")].count("blob") == 1
    assert device.sync.stat("/data/local/tmp/none").mode == 0
    with pytest.raises(adbutils.AdbError, match="No such file"):
        device.sync.read_bytes("/data/local/tmp/none")


def test_packages(device):
    everything, third = device.list_packages(), device.list_packages(["-3"])
    assert "com.android.chrome" in everything and "com.android.chrome" not in third
    assert set(third) < set(everything)
    assert device.app_info("com.android.chrome").version_name == "1.0"
    assert device.shell("pm clear com.nobody") == "Failed"
    assert device.uninstall(third[0]) == "Success"
    assert third[0] not in device.list_packages()


def test_a_reset_in_one_command(device):
    device.shell("am start -n com.android.chrome/com.google.android.apps.chrome.Main")
    assert device.app_current().package == "com.android.chrome"
    done = device.shell2(
        "am force-stop com.android.chrome; pm clear com.android.chrome; pm clear com.android.settings; "
        "setprop debug.distrl.seed 7; input keyevent HOME; pm list packages -3",
        v2=True,
    )
    assert done.returncode == 0
    assert done.stdout.startswith("Success\nSuccess\npackage:")
    assert "launcher" in device.app_current().package


def test_open_a_web_address(device):
    device.shell("am force-stop com.android.chrome")
    device.open_browser("https://www.bestbuy.com")
    assert "bestbuy.com" in device.dump_hierarchy()


# ---- text: cases A1 and A2


TEXTS = [
    "hello world", "it's", 'say "hi"', "a$HOME b", "`id`", "x; reboot", "a&b|c", "(x)", "*", "~", "a\\b",
    "50% off", "$(echo pwned)", "a > b < c", "#1 {x} [y] !", "two  spaces", "-n",
]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_a1_quoted_text_arrives_exactly(device, text):
    device.shell("am force-stop com.google.android.googlequicksearchbox")
    size = ElementTree.fromstring(device.dump_hierarchy())
    bar = next(node for node in size.iter("node") if node.get("content-desc") == "Search")
    x0, y0, x1, y1 = (int(n) for n in bar.get("bounds").replace("][", ",").strip("[]").split(","))
    device.click((x0 + x1) // 2, (y0 + y1) // 2)
    assert "mInputShown=true" in device.shell("dumpsys input_method")
    assert device.shell2("input text " + shlex.quote(text), v2=True).returncode == 0
    assert fields(device) == [text]


def test_a2_nothing_reaches_the_host(device, tmp_path):
    target = tmp_path / "pwn"
    for text in (f"`touch {target}`", f"$(touch {target})", f"; touch {target}", f"| sh -c 'touch {target}'"):
        device.shell("input text " + text)
        device.shell(f"/bin/sh -c {shlex.quote(text)}; python3 -c 1; ./{target}")
    assert not target.exists()
    assert device.shell("cat /etc/passwd; ls /home; cat /proc/self/environ").count("No such file") == 3


def test_unquoted_text_expands_as_in_a_real_shell(device):
    assert device.shell("echo a$HOME b `echo c  d` \"$(echo 'e  f')\" $NONE'x'") == "a/ b c d e  f x"
    assert device.shell("input text naïve; echo $?").endswith("255")


def test_an_unwatched_and_a_cut_command_leave_the_phone_usable(phones, device):
    with device.open_transport() as connection:
        connection.send_command("shell:sleep 20; input keyevent HOME")
        connection.check_okay()
    assert device.shell("echo still here") == "still here"


def test_a_terminal_gets_a_prompt_and_an_echo(phones):
    with device_stream(phones, "shell,v2,TERM=xterm,pty:") as stream:
        for line in (b"ecj\x7fho hi\r", b"exit 4\r"):
            stream.sendall(struct.pack("<BI", 0, len(line)) + line)
        data = b"".join(iter(lambda: stream.recv(4096), b""))
    assert data.endswith(struct.pack("<BIB", 3, 1, 4))
    assert b"hi\r\n" in data and b":/ $ " in data


def device_stream(phones, service: str) -> socket.socket:
    stream = socket.create_connection((phones.host, phones.port), timeout=10)
    for request in (f"host:transport:{phones.serials[0]}", service):
        stream.sendall(f"{len(request):04x}{request}".encode())
        assert stream.recv(4, socket.MSG_WAITALL) == b"OKAY"
    return stream


# ---- processes


def gone(pid: int, seconds: float = 10.0) -> bool:
    """Waits for a process that is not our child to end."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([fd], [], [], seconds)[0])
    finally:
        os.close(fd)


def test_phones_and_server_die_with_their_parent(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    code = (
        "import sim, sys\n"
        "p = sim.start_phones(1, latency=0.0)\n"
        "print(*p.pids, flush=True)\n"
        "sys.stdin.read()\n"
    )  # fmt: skip
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    )
    pids = [int(word) for word in parent.stdout.readline().split()]
    assert len(pids) == 2
    os.kill(pids[0], signal.SIGSTOP)  # what is stopped must not stay either, nor its files
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    assert all(gone(pid) for pid in pids)
    assert not list(tmp_path.iterdir())


def test_the_adb_server_dies_with_a_killed_simulator(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # for what is left behind
    phones = sim.start_phones(1, latency=0.0)
    phones.process.kill()
    assert gone(phones.pids[1])
    phones.close()


def test_close_ends_both_and_leaves_no_home_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    phones = sim.start_phones(1, latency=0.0)
    assert list(tmp_path.iterdir())
    phones.process.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    phones.close()
    assert time.monotonic() - began < 5
    phones.close()
    assert all(gone(pid, 0) for pid in phones.pids)
    assert not list(tmp_path.iterdir())


def test_command_line_ends_at_a_signal():
    process = subprocess.Popen(
        [sys.executable, "-m", "sim", "--num-phones", "1"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    with process.stdout as lines:
        shown = [next(lines)]
        while "Ctrl-C" not in shown[-1]:
            shown.append(next(lines))
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=10) == 0
    assert "1 simulated phone" in shown[0] and "  adb devices\n" in shown


@pytest.mark.parametrize(
    ("option", "words"),
    [("--num-phones=0", "at least 1"), ("--dialogs=2", "probability"), ("--adb-port=5555", "5554-5585")],
)
def test_bad_options_are_named(option, words):
    done = subprocess.run(
        [sys.executable, "-m", "sim", option], cwd=ROOT, capture_output=True, text=True, timeout=20
    )
    assert done.returncode == 2
    assert words in done.stderr and "Traceback" not in done.stderr


def test_a_busy_port_is_one_clear_error():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(sim.PhonesError, match=f"^--adb-port {port}: Address already in use"):
            sim.start_phones(1, adb_port=port)


def test_importing_sim_is_cheap():
    code = "import sim, sys, json; print(json.dumps([m for m in ('PIL', 'adbutils') if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True)
    assert json.loads(done.stdout) == []


def test_latency_can_be_changed_while_the_phones_run():
    with sim.start_phones(1, latency=0.0, dialogs=0.0) as phones:
        device = adbutils.AdbClient(host=phones.host, port=phones.port).device(phones.serials[0])

        def seconds(count: int) -> float:
            began = time.monotonic()
            for _ in range(count):
                device.shell("input keyevent 3")
            return time.monotonic() - began

        seconds(1)
        fast = seconds(5)
        phones.set_latency(1.0)  # 5 inputs take about 5 s, the shortest of them far above 10 ms
        assert seconds(5) > fast + 0.5


@pytest.mark.parametrize(("kinds", "states"), [(["none", "offline"], ["device", "offline"])])
def test_faults_can_be_given_on_the_command_line(kinds, states):
    command = [sys.executable, "-m", "sim", "--json", "--num-phones=2", "--latency=0", *(f"--fault={k}" for k in kinds)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process.stdout as lines:
        found = json.loads(next(lines))
        client = adbutils.AdbClient(host=found["host"], port=found["port"])
        wanted = dict(zip(found["serials"], states, strict=True))
        deadline = time.monotonic() + 10
        while {item.serial: item.state for item in client.list()} != wanted:
            assert time.monotonic() < deadline
        process.stdin.close()
    assert process.wait(timeout=10) == 0
    command[-1] = "--fault=nonsense"
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 2 and "unauthorized" in done.stderr and "Traceback" not in done.stderr


def test_an_adb_server_that_dies_is_started_again_with_its_phones():
    with sim.start_phones(2, latency=0.0) as phones:
        os.kill(phones.pids[1], signal.SIGKILL)
        deadline = time.monotonic() + 20
        while os.path.exists(f"/proc/{phones.pids[1]}") or list(online(phones).values()) != ["device", "device"]:
            assert time.monotonic() < deadline
        assert adb(phones, "shell", "echo here").stdout == b"here\n"


def online(phones) -> dict[str, str]:
    """What the adb server knows; unlike the binary this starts none where there is none."""
    try:
        return list_devices(phones.host, phones.port)
    except AndroidEnvError:
        return {}
