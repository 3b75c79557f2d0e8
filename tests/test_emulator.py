"""Emulators that we own, with an `emulator` executable of our own behind which the simulated phones are."""

import ast
import io
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import emulator
from adb_phone import AdbPhone, list_devices
from args import PhoneArgs
from emulator import EmulatorError, Emulators, acceleration_problem, allocate_ports, claim, console, emulator_argv
from judge_clients import without_keys
from phone_source import phone_source
from sim import start_phones

ROOT = Path(__file__).resolve().parent.parent


def children(pids: list[int]) -> list[int]:
    """The processes that these have started, and theirs."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
    found = list(pids)
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def gone(pid: int, seconds: float = 15.0) -> bool:
    """Waits for a process that is not our child to end."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([fd], [], [], seconds)[0])
    finally:
        os.close(fd)


def test_a20_ports_of_32_emulators():
    assert allocate_ports(32) == list(range(5554, 5618, 2))
    assert allocate_ports(3, busy=lambda port: port in (5554, 5558)) == [5556, 5560, 5562]
    for count in (0, 65):
        with pytest.raises(ValueError, match="64"):
            allocate_ports(count)
    with pytest.raises(ValueError, match="0 of the 64"):
        allocate_ports(1, busy=lambda port: True)


def test_a20_a_port_is_claimed_before_its_emulator_listens():
    for _ in range(2):  # and again once it is let go
        with claim("emulator-5680"):
            assert claim("emulator-5680") is None


def test_a20_more_than_15_get_another_adb_server_and_its_port_is_told(monkeypatch, capsys):
    started = []
    monkeypatch.setattr(emulator, "find_emulator", lambda: "emulator")
    monkeypatch.setattr(emulator, "list_avds", lambda executable: ["test"])
    monkeypatch.setattr(emulator, "acceleration_problem", lambda executable: "")
    monkeypatch.setattr(emulator, "in_use", lambda port: False)
    monkeypatch.setattr(emulator, "claim", lambda what: io.StringIO())
    monkeypatch.setattr(Emulators, "_start_server", lambda self: self.servers.append(7000 + len(self.servers)))
    monkeypatch.setattr(Emulators, "_wait", lambda self, phone: None)
    monkeypatch.setattr(emulator, "_Guarded", lambda argv, log, env: started.append((argv, env)) or Ended())
    with Emulators("test", 32) as owned:
        servers = [phone.port for phone in owned.phones]
    assert servers == [7000] * 15 + [7001] * 15 + [7002] * 2
    assert [int(env["ANDROID_ADB_SERVER_PORT"]) for _, env in started] == servers
    assert len({argv[argv.index("-port") + 1] for argv, _ in started}) == 32
    monkeypatch.setattr(emulator, "how_many_fit", lambda avd, count: (count, ""))
    monkeypatch.setattr("phone_source.require_network", lambda *_: None)
    monkeypatch.setattr("phone_source.with_packages", lambda addresses: addresses)
    for number, told in ((15, False), (32, True)):
        with phone_source(PhoneArgs(avd="test", num_workers=number)) as source:
            assert len({address.port for address in source.addresses}) == (3 if told else 1)
        said = [line for line in capsys.readouterr().out.splitlines() if "no more than about 15 emulators" in line]
        assert [line.split(": ")[1] for line in said] == ["adb servers on ports 7000, 7001, 7002"] * told


class Ended:
    ended = True

    def ask_to_end(self):
        pass

    def close(self):
        pass


def test_a15_no_file_is_copied_and_the_avd_is_not_written_to():
    argv = emulator_argv("/sdk/emulator", "test", 5554)
    assert isinstance(argv, list) and {"-read-only", "-no-snapshot-save", "-no-window"} < set(argv)


def test_two_boot_one_is_relaunched_alone_and_all_end(machine):
    with Emulators("test", 2, boot_seconds=60) as owned:
        first, second = owned.phones
        assert [phone.serial for phone in owned.phones] == sorted(list_devices(port=first.port))
        assert list_devices(port=first.port).keys() == {first.serial, second.serial}  # nobody else's
        second.shell("setprop debug.kept 1")
        first.shell("setprop debug.kept 1")
        owned.relaunch(first.serial)
        first.recover()
        assert [p.shell("getprop debug.kept").strip() for p in (first, second)] == ["", "1"]
        owned._children[f"adb server {first.port}"].kill()
        owned.relaunch(first.serial)  # the server alone
        first.recover(), second.recover()
        assert [p.shell("getprop debug.kept").strip() for p in (first, second)] == ["", "1"]
        ports = [int(p.serial.removeprefix("emulator-")) for p in owned.phones]
        assert "default_boot" in console(ports[0], "avd snapshot list")
        with pytest.raises(EmulatorError, match="KO: unknown command"):
            console(ports[0], "nonsense")
        machine.setenv("HOME", str(ROOT / "tests"))  # no token there
        with pytest.raises(EmulatorError, match="emulator_console_auth_token"):
            console(ports[0], "avd snapshot list")
        pids = children(owned.pids)
        assert len(pids) >= 6  # guards, emulators, the adb server
    assert all(gone(pid) for pid in pids)
    owned.close()


def test_all_of_it_ends_with_a_killed_parent(sdk):
    code = (
        "import sys, emulator\n"
        "owned = emulator.Emulators('test', 1, boot_seconds=60).__enter__()\n"
        "print(*owned.pids, flush=True)\n"
        "sys.stdin.read()\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT,
                              env=os.environ | sdk)  # fmt: skip
    line = parent.stdout.readline()
    while line.startswith(b" "):
        line = parent.stdout.readline()
    pids = children([int(word) for word in line.split()])
    assert len(pids) >= 4
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    assert all(gone(pid) for pid in pids)


def test_g11_without_kvm_nothing_is_launched(machine):
    machine.setenv("SIM_EMULATOR", "kvm=no")
    with pytest.raises(EmulatorError, match="(?s)/dev/kvm is not found.*modprobe"):
        Emulators("test", 1)
    machine.setenv("SIM_EMULATOR", "")
    assert acceleration_problem(emulator.find_emulator()) == ""


def test_a_boot_that_fails_says_why_at_once_and_leaves_nothing(machine):
    machine.setenv("SIM_EMULATOR", "dies=1")
    owned = Emulators("test", 2, boot_seconds=60)
    with pytest.raises(EmulatorError, match="the guest could not be started"):
        owned.__enter__()
    assert not owned.pids and not owned._folder.exists()


def test_a_boot_that_never_ends_is_bounded_and_names_phone_and_state(machine):
    machine.setenv("SIM_EMULATOR", "fault=offline")
    with pytest.raises(EmulatorError, match="(?s)emulator-.*state offline.*waited 1.5 s.*console on"):
        Emulators("test", 1, boot_seconds=1.5).__enter__()


def test_what_is_not_there_is_named(machine):
    with pytest.raises(EmulatorError, match="no AVD 'pixel'.*knows test"):
        Emulators("pixel", 1)
    machine.setenv("PATH", "/usr/bin")
    for name in ("ANDROID_HOME", "ANDROID_SDK_ROOT"):
        machine.delenv(name, raising=False)
    with pytest.raises(EmulatorError, match="ANDROID_HOME"):
        Emulators("test", 1)


def test_snapshots_are_for_emulators():
    with pytest.raises(ValueError, match="only an emulator-N"):
        emulator.load_snapshot(AdbPhone("R58M12"))


# ---- memory


@pytest.mark.parametrize(
    "config, megabytes",
    [("hw.ramSize=1536\n", 2048), ("a=b\nhw.ramSize = 2G\n", 2560), ("hw.ramSize=96M", 608), ("hw.lcd=1\n", 2560)],
)
def test_what_an_emulator_needs_is_in_its_avds_config(tmp_path, monkeypatch, config, megabytes):
    monkeypatch.setenv("ANDROID_AVD_HOME", str(tmp_path / "avd"))
    for folder, ini in ((tmp_path / "avd" / "x.avd", "target=1\n"), (tmp_path / "y", f"path={tmp_path / 'y'}\n")):
        folder.mkdir(parents=True)
        (folder / "config.ini").write_text(config)
        (tmp_path / "avd" / "x.ini").write_text(ini)
        assert emulator.avd_memory("x") == megabytes
        (folder / "config.ini").unlink()
    assert emulator.avd_memory("nowhere") == 2560
    monkeypatch.setattr(emulator, "free_memory", lambda: 8000)
    assert emulator.how_many_fit("nowhere", 32) == (3, "about 2,560 MB each, 8,000 MB free")
    assert emulator.how_many_fit("nowhere", 2)[0] == 2
    monkeypatch.setattr(emulator, "free_memory", lambda: None)  # a system that does not say
    assert emulator.how_many_fit("nowhere", 32)[0] == 32


def test_free_memory_is_the_systems_own_word():
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    assert 0 < emulator.free_memory() <= total


# ---- keys


KEYS = ("GEMINI_API_KEY", "GOOGLE_API_KEY", "OPENAI_API_KEY", "WANDB_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY")


def test_B16_what_we_start_gets_no_key(machine):
    for name in KEYS:
        machine.setenv(name, "not-a-real-key")
    with Emulators("test", 1, boot_seconds=60) as owned, start_phones(1, latency=0.0) as phones:
        pids = children([*owned.pids, *phones.pids])
        assert len(pids) >= 6  # a guard, an emulator, a guard, its adb server; the simulated phones, their adb server
        for pid in pids:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
            assert b"PATH=" in environment and b"not-a-real-key" not in environment


def test_B16_every_program_is_started_with_an_environment_of_its_own():
    """So that a new one is thought of as well."""
    calls = []
    for path in [*ROOT.glob("*.py"), *(ROOT / "sim").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("subprocess.run", "subprocess.Popen"):
                calls.append((path.name, {keyword.arg for keyword in node.keywords}))
    assert len(calls) == 6 and all("env" in keywords for _, keywords in calls), calls


def test_B16_names_of_keys():
    kept = {"PATH": "/bin", "ADB_VENDOR_KEYS": "/k", "TOKENIZERS_PARALLELISM": "false", "KEYBOARD": "us"}
    more = ("gemini_api_keys", "AWS_ACCESS_KEY_ID", "GOOGLE_APPLICATION_CREDENTIALS", "A_PASSWORD")
    gone = dict.fromkeys([*KEYS, *more], "x")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "environ", kept | gone)
        assert without_keys() == kept
