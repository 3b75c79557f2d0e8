"""`--check`: what is there, what is missing, what to do."""

import subprocess
import sys
from pathlib import Path

import adbutils
import pytest
from conftest import disconnect

import doctor
from args import AlgorithmArgs, Args, JudgeArgs, PhoneArgs, RecordedArgs, TaskArgs
from doctor import check, disk_row
from phone_source import find_devices, phone_source
from run_folder import UsageError
from sim import Phones
from sim.judge_server import JudgeServer

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def table(monkeypatch, capsys):
    """table(PhoneArgs) -> (exit code, what is printed); the policy's check is a test of its own."""
    monkeypatch.setattr(doctor, "checkpoint_row", lambda args: doctor.Row("checkpoint", True, "not looked at"))

    def run(phones: PhoneArgs) -> tuple[int, str]:
        return check(Args(phones=phones)), capsys.readouterr().out

    return run


def given(phones, *devices):
    return PhoneArgs(devices=devices, adb_server=(f"{phones.host}:{phones.port}",))


def test_all_well(phones, table):
    code, out = table(given(phones, "all"))
    assert code == 0 and out.count("device, booted, 270x480, screenshot") == 2 and "Everything is there." in out
    assert all(word in out for word in ("adb server", "judge", "checkpoint", "disk", "network", "ASCII keyboard"))


@pytest.mark.parametrize(
    "kind, words",
    [
        ("offline", ["offline", "adb connect"]),
        ("unauthorized", ["unauthorized", "accept the prompt"]),
        ("no-network", ["no network", "--allow-offline"]),
        ("no-screenshot", ["no screenshot in 3 tries", "screencap -p"]),
        ("pin", ["its screen is locked", "set its screen lock to none or swipe"]),
    ],
)
def test_a_bad_phone_is_named_with_its_remedy(phones, phone, table, kind, words, monkeypatch):
    monkeypatch.setattr("adb_phone._UP_TIMEOUT", 0.3)
    monkeypatch.setattr("phone_source.NETWORK_SECONDS", 0.3)
    (disconnect if kind in ("offline", "unauthorized") else Phones.fault)(phones, phone.serial, kind)
    try:
        code, out = table(given(phones, "all"))
    finally:
        phones.fault(phone.serial, "none")
        phone.recover(timeout=20)
    row = out[out.index(f"NO  {phone.serial}") :]
    assert code == 1 and all(word in "".join(row.splitlines(keepends=True)[:2]) for word in words)
    assert "1 of 8 to be mended" in out


def test_a_phone_that_boots_is_not_ready(phones, phone, table, monkeypatch):
    monkeypatch.setattr(phone.__class__, "shell", lambda self, command, *a, **b: "")
    code, out = table(given(phones, "all"))
    assert code == 1 and "not booted" in out and "wait for its home screen" in out


def test_a_named_network_phone_is_connected_as_a_run_does(phones, phone, table, monkeypatch):
    monkeypatch.setattr("phone_source.ATTACH_SECONDS", 1.0)
    disconnect(phones, phone.serial, "offline")
    try:
        code, out = table(given(phones, phone.serial))
        with pytest.raises(UsageError) as refused:
            find_devices(given(phones, phone.serial))
        assert code == 1 and f"NO  {phone.serial}" in out
        assert "adb tcpip" in out and "adb tcpip" in str(refused.value)
    finally:
        phones.fault(phone.serial, "none")  # it is fine, and the server has not found out yet
    monkeypatch.undo()
    monkeypatch.setattr(doctor, "checkpoint_row", lambda args: doctor.Row("checkpoint", True, "not looked at"))
    code, out = table(given(phones, phone.serial))
    assert code == 0 and f"ok  {phone.serial}" in out
    assert [p.serial for p in find_devices(given(phones, phone.serial))[0]] == [phone.serial]


def test_a_phone_of_another_language_has_a_note(phones, phone, table):
    phone.shell("setprop persist.sys.locale de-DE")
    try:
        code, out = table(given(phones, "all"))
    finally:
        phone.shell("setprop persist.sys.locale ''")
    assert code == 0 and out.count("network, de-DE\n") == 1 and out.count("-> the rule judge reads English alone") == 1


def test_a_phone_with_two_serials_is_said(phones, phone, table):
    twin = phone.__class__(phone.serial.replace("127.0.0.1", "localhost"), port=phone.port)
    twin.attach()
    try:
        twin.recover(timeout=20)
        code, out = table(given(phones, "all"))
        assert code == 0 and out.count("the same phone as") == 1 and out.count("device, booted") == 2
    finally:
        twin._host(f"host:disconnect:{twin.serial}", 5)


def test_phones_that_are_not_there(phones, table):
    code, out = table(given(phones, "R58M12"))
    assert code == 1 and "NO  R58M12" in out and "USB debugging" in out
    code, out = table(PhoneArgs(adb_server=("127.0.0.1:1",)))
    assert code == 1 and "no adb server at 127.0.0.1:1" in out


def test_g11_emulators_with_and_without_kvm(machine, table, monkeypatch):
    code, out = table(PhoneArgs(avd="test"))
    assert code == 0 and "1 emulator of test: emulator-" in out and "device, booted" in out
    monkeypatch.setattr("emulator.free_memory", lambda: 500)
    code, out = table(PhoneArgs(avd="test", num_workers=4))
    assert code == 1 and "NO  memory" in out and "for 0 of 4 emulators: about 576 MB each, 500 MB free" in out
    monkeypatch.setattr("emulator.free_memory", lambda: 2000)
    machine.setenv("SIM_EMULATOR", "kvm=no")
    code, out = table(PhoneArgs(avd="test"))
    assert "ok  memory" in out and "for 3 of 32 emulators" in out
    assert code == 1 and "NO  acceleration" in out and "/dev/kvm is not found" in out and "modprobe" in out
    code, out = table(PhoneArgs(avd="pixel"))
    assert code == 1 and "NO  avd" in out and "avdmanager" in out


@pytest.mark.parametrize("error", [OSError(8, "Exec format error"), subprocess.TimeoutExpired("emulator", 30)])
def test_an_emulator_that_does_not_run_is_said(machine, table, monkeypatch, error):
    def run(*_, **__):
        raise error

    monkeypatch.setattr("emulator.subprocess.run", run)
    code, out = table(PhoneArgs(avd="test"))
    assert code == 1 and "NO  emulator" in out and "-list-avds` does not run" in out
    with pytest.raises(UsageError, match="--avd test: .*does not run"):
        phone_source(PhoneArgs(avd="test")).__enter__()


def test_a_machine_that_no_adb_runs_on_is_said(monkeypatch):
    def no_adb():
        raise adbutils.AdbError("No adb exe could be found. Install adb on your system")

    monkeypatch.setattr("adbutils.adb_path", no_adb)
    assert not doctor.adb_row().ok and "No adb exe" in doctor.adb_row().found
    monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", "1")
    with pytest.raises(UsageError, match="No adb exe"):
        phone_source(PhoneArgs(devices=("all",))).__enter__()
    monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", "adb")
    with pytest.raises(UsageError, match="ANDROID_ADB_SERVER_PORT=adb: want adb's port"):
        phone_source(PhoneArgs(devices=("all",))).__enter__()


@pytest.mark.parametrize(("args", "words"), [
    (Args(phones=PhoneArgs(num_workers=0)), "--num-workers 0: at least 1 is needed"),
    (Args(tasks=TaskArgs(tasks=Path("none.txt"))), "--tasks none.txt: No such file or directory: give a text file"),
    (Args(judge=JudgeArgs(judge_votes=3)), "--judge-votes: rules need no model: leave it out"),
    (Args(algorithm=AlgorithmArgs(learning_rate=-1.0)), "--learning-rate -1.0: at least 0 is needed"),
    (Args(recorded=RecordedArgs(offline=(Path("none"),))), "--offline none"),
    (Args(), ""),
])  # fmt: skip
def test_flags_that_a_run_would_refuse_are_not_called_well(args, words, monkeypatch, capsys):
    monkeypatch.setattr(doctor, "phone_rows", lambda args: ())
    assert check(args) == (1 if words else 0)
    out = capsys.readouterr().out
    assert words in out and ("NO  flags" in out) == bool(words) and ("Everything is there." in out) == (not words)


def test_a_disk_that_is_full(tmp_path, monkeypatch):
    assert disk_row(tmp_path / "not" / "there").ok
    monkeypatch.setattr(doctor, "LEAST_FREE", 1e18)
    row = disk_row(tmp_path)
    assert not row.ok and "--runs-dir" in row.remedy


def test_the_command_loads_the_policy_and_gives_the_exit_code(tmp_path):
    (tmp_path / "bad.safetensors").write_bytes(b"nonsense")
    command = [sys.executable, "run_distrl.py", "--check", "--policy", str(tmp_path / "bad.safetensors"),
               "--runs-dir", str(tmp_path)]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1 and "NO  checkpoint" in done.stdout and "simulated phones" in done.stdout
    assert "Traceback" not in done.stderr and list(tmp_path.iterdir()) == [tmp_path / "bad.safetensors"]


@pytest.mark.parametrize(("answer", "ok", "words"), [
    ("Status: success", True, "answered after"), ("404", False, "--judge-model x"), ("503", False, "try again later"),
])  # fmt: skip
def test_the_judge_is_asked_once(answer, ok, words, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "not-a-real-key")
    with JudgeServer([answer]) as server:
        row = doctor.judge_row(Args(judge=JudgeArgs(judge="openai", judge_model="x", judge_url=server.url)))
        assert len(server.requests) == 1
    assert row.ok is ok and words in row.found + row.remedy
