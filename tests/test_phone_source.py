"""Where a run's phones come from, and what is refused before a worker starts."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import disconnect, wait_for

import sim
from actor_pool import ActorPool
from adb_phone import AdbPhone, AndroidEnvError, list_devices
from args import Args, PhoneArgs, check_phones, prepare
from phone_source import each_once, find_devices, phone_at, phone_source, start_server
from policy import AutoUIPolicy
from replay import Trajectory
from run_folder import UsageError
from shared_weights import SharedWeights
from tasks import generate_tasks
from worker import Episode, PhoneAddress

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def other():
    """Two more phones, on another adb server."""
    with sim.start_phones(2, seed=1, latency=0.0, dialogs=0.0, failed_loads=0.0, slow_loads=0.0) as running:
        yield running


def at(*servers, devices=("all",), **options):
    return PhoneArgs(devices=devices, adb_server=tuple(f"{s.host}:{s.port}" for s in servers), **options)


# ---- flags


@pytest.mark.parametrize("serial", ["192.168.1.5:5555", "R58M12ABC", "emulator-5554", "[fe80::1]:5555",
                                    "adb-R58M-x1._adb-tls-connect._tcp"])  # fmt: skip
def test_g10_serials_of_every_kind(serial):
    check_phones(PhoneArgs(devices=(serial,)))


@pytest.mark.parametrize(
    "flags, words",
    [
        (dict(devices=("-x",)), "'-x' is neither a serial"),
        (dict(devices=("a b",)), "neither a serial"),
        (dict(avd="../x"), "neither a serial"),
        (dict(devices=("adb-X (2) ; reboot",)), "neither a serial"),
        (dict(devices=("all", "R58M")), "all, or serials"),
        (dict(avd="test", devices=("R58M",)), "leave out --devices"),
        (dict(adb_server=("10.0.0.7",)), "HOST:PORT"),
        (dict(adb_server=("10.0.0.7:x",)), "HOST:PORT"),
        (dict(reset="snapshot"), "simulated phones have no snapshots"),
        (dict(reset="snapshot", devices=("R58M",)), "R58M: only emulators"),
        (dict(devices=("R58M",), latency=0.0), "--latency is for simulated phones"),
        (dict(avd="test", failed_loads=0.1), "--failed-loads is for simulated phones"),
        (dict(avd="test", adb_port=6037), "--adb-port is for simulated phones"),
    ],
)
def test_flags_that_do_nothing_or_contradict_are_refused(flags, words):
    with pytest.raises(UsageError, match=words):
        check_phones(PhoneArgs(**flags))


def test_a_runs_name_says_what_kind_of_phones(tmp_path):
    for phones, prefix in ((PhoneArgs(), "sim__"), (PhoneArgs(devices=("R58M",)), "adb__")):
        args = Args(phones=phones)
        args.run.runs_dir = tmp_path
        assert prepare(args)[2].name.startswith(prefix)


# ---- given phones


def test_all_are_used_and_the_others_named_with_their_state(phones, other):
    disconnect(other, other.serials[1], "offline")
    try:
        found, left_out = find_devices(at(phones, other))
        first, last = list_devices(port=phones.port)  # adb's own order; the servers take turns
        assert [(p.serial, p.port) for p in found] == [
            (first, phones.port), (other.serials[0], other.port), (last, phones.port),
        ]  # fmt: skip
        assert left_out == {other.serials[1]: "offline"}
    finally:
        other.fault(other.serials[1], "none")
    AdbPhone(other.serials[1], port=other.port).recover(timeout=20)


def test_workers_are_spread_over_the_servers(phones, other):
    args = at(phones, other, num_workers=2)
    with phone_source(args) as source:
        assert [address.port for address in source.addresses] == [phones.port, other.port]
        assert source.what == "2 phones: " + ", ".join(next(iter(list_devices(port=s.port))) for s in (phones, other))
        assert {(a.reset_mode, a.settle) for a in source.addresses} == {("clear", 2.0)}
    assert list_devices(port=phones.port)  # the servers go on


def test_fewer_phones_than_workers_lower_the_number(phones):
    args = at(phones, num_workers=32)
    with phone_source(args):
        assert args.num_workers == 2


def test_a_phone_that_another_run_uses_is_left_to_it(phones, capsys):
    first, second = phones.serials
    with phone_source(at(phones, devices=(first,))):
        with phone_source(at(phones)) as source:
            assert source.what == f"1 phone: {second}" and f"not used: {first} is in use" in capsys.readouterr().out
            with pytest.raises(UsageError, match="other runs use all of these phones"), phone_source(at(phones)):
                pass
    with phone_source(at(phones)) as source:  # and then it is free again
        assert len(source.addresses) == 2


def test_named_network_phones_are_connected(phones):
    serial = phones.serials[1]
    AdbPhone(serial, port=phones.port)._host(f"host:disconnect:{serial}", 5)
    found, _ = find_devices(at(phones, devices=(serial,)))
    assert [phone.serial for phone in found] == [serial] and list_devices(port=phones.port)[serial] == "device"


def test_what_cannot_be_had_is_one_error(phones, monkeypatch):
    monkeypatch.setattr("phone_source.ATTACH_SECONDS", 1.0)
    for serial, words in (("R58M12", "not on .*which has .* device"), ("127.0.0.1:1", "waited 1 s.*adb tcpip")):
        with pytest.raises(UsageError, match=words):
            find_devices(at(phones, devices=(serial,)))
    disconnect(phones, phones.serials[1], "unauthorized")
    try:
        with pytest.raises(UsageError, match="unauthorized.*accept the prompt"):
            find_devices(at(phones, devices=(phones.serials[1],)))
    finally:
        phones.fault(phones.serials[1], "none")
        AdbPhone(phones.serials[1], port=phones.port).recover(timeout=20)
    nowhere = SimpleNamespace(host="127.0.0.1", port=1)
    with pytest.raises(UsageError, match="no adb server at 127.0.0.1:1"):
        find_devices(at(nowhere))


def test_a_serial_with_the_number_that_adb_gives_the_second_of_a_name_is_one():
    check_phones(PhoneArgs(devices=("adb-39071FDJG00C1P-dHvVvs (2)._adb-tls-connect._tcp",)))


def test_a_phone_of_another_language_is_warned_of_where_rules_judge(phones, phone, capsys):
    for judge, language, warned in (("rules", "de-DE", 1), ("gemini", "de-DE", 0), ("rules", "", 0)):
        phone.shell(f"setprop persist.sys.locale '{language}'")
        with phone_source(at(phones), judge=judge):
            assert capsys.readouterr().out.count(f"{phone.serial} speaks de-DE: the rule judge reads English") == warned


def test_a21_web_tasks_need_a_network_or_leave(phones, capsys, monkeypatch):
    monkeypatch.setattr("phone_source.NETWORK_SECONDS", 0.3)
    phones.fault(phones.serials[0], "no-network")
    try:
        with pytest.raises(UsageError, match=f"{phones.serials[0]}: tasks of maps need it.*--allow-offline"):
            phone_source(at(phones), families={"maps", "alarm"}).__enter__()
        capsys.readouterr()
        for args, families in ((at(phones), {"alarm"}), (at(phones, allow_offline=True), {"maps", "alarm"})):
            with phone_source(args, families=families):
                assert capsys.readouterr().out.count("no network on") == 1
    finally:
        phones.fault(phones.serials[0], "none")


def test_real_phones_are_stopped_not_cleared(phones, monkeypatch, capsys):
    monkeypatch.setattr(AdbPhone, "virtual", False)
    with phone_source(at(phones)) as source:
        assert {address.reset_mode for address in source.addresses} == {"stop"}
        assert "not cleared" in capsys.readouterr().out


# ---- the keyboard of the phone's owner

LATIN = "com.android.inputmethod.latin/.LatinIME"
TYPES = """
import os, signal, sys
from adb_phone import AdbPhone
assert AdbPhone(sys.argv[1], port=int(sys.argv[2])).type_text("\u4f60\u597d")
os.kill(os.getpid(), signal.SIGKILL)
"""


def keyboard_of(phone):
    return phone.shell("settings get secure default_input_method").strip()


@pytest.fixture
def typist(phone):
    """A phone with ADBKeyBoard installed, and a program that types through it and is killed."""
    phone.shell("setprop debug.distrl.adbkeyboard 1")

    def type_and_die():
        command = [sys.executable, "-c", TYPES, phone.serial, str(phone.port)]
        done = subprocess.run(command, cwd=ROOT, check=False, timeout=60)
        assert done.returncode == -signal.SIGKILL and keyboard_of(phone) == "com.android.adbkeyboard/.AdbIME"

    yield type_and_die
    phone.shell(f"setprop debug.distrl.adbkeyboard 0; ime set {LATIN}; rm -f /data/local/tmp/distrl-keyboard")


def test_the_keyboard_is_set_back_at_the_end_also_when_the_worker_that_set_another_was_killed(phones, phone, typist):
    with phone_source(at(phones)):
        typist()
    assert keyboard_of(phone) == LATIN and "distrl-keyboard" not in phone.shell("ls /data/local/tmp")


def test_the_next_run_sets_it_back_when_the_run_itself_was_killed(phones, phone, typist):
    typist()
    with phone_source(at(phones)):
        assert keyboard_of(phone) == LATIN
        typist()
    assert keyboard_of(phone) == LATIN


def test_who_chose_another_keyboard_since_then_keeps_it(phones, phone, typist):
    typist()
    phone.shell(f"ime set {LATIN}")
    phone.shell("echo com.android.adbkeyboard/.AdbIME > /data/local/tmp/distrl-keyboard")
    phone.restore_keyboard()
    assert keyboard_of(phone) == LATIN and "distrl-keyboard" not in phone.shell("ls /data/local/tmp")


def test_whose_own_keyboard_is_adbkeyboard_keeps_it(phones, phone, typist):
    typist()
    phone.shell("rm /data/local/tmp/distrl-keyboard")
    with phone_source(at(phones)):
        assert phone.type_text("\u4f60\u597d")
    assert keyboard_of(phone) == "com.android.adbkeyboard/.AdbIME"


def test_phones_that_hang_at_the_end_hold_up_nobody_for_long(phones, monkeypatch):
    monkeypatch.setattr("phone_source.LEAVE_SECONDS", 1.5)
    try:
        with phone_source(at(phones)):
            for serial in phones.serials:
                phones.fault(serial, "mute")
            began = time.monotonic()
        assert time.monotonic() - began < 2.9  # both at the same time
    finally:
        for serial in phones.serials:
            phones.fault(serial, "none")


def test_the_pool_does_not_wait_for_a_phone_that_is_connected_again(phones, monkeypatch):
    asked, answered = [], threading.Event()
    monkeypatch.setattr("phone_source.start_server", lambda port: asked.append(port) or answered.wait(10))
    monkeypatch.setattr("phone_source.find_devices", lambda args: ([AdbPhone(phones.serials[0], port=phones.port)], {}))
    attached = threading.Event()
    monkeypatch.setattr(AdbPhone, "attach", lambda phone, timeout: attached.set())
    with phone_source(PhoneArgs(devices=("all",))) as source:
        source.restart(source.addresses[0])
        source.restart(source.addresses[0])
        assert not attached.is_set()
        answered.set()
        assert attached.wait(10) and set(asked) == {phones.port}


# ---- one phone, one worker


@pytest.fixture
def second_name(phone):
    """The phone is connected under another serial, too."""
    twin = AdbPhone(phone.serial.replace("127.0.0.1", "localhost"), port=phone.port)
    twin.attach()
    twin.recover(timeout=20)
    yield twin.serial
    twin._host(f"host:disconnect:{twin.serial}", 5)


def test_a_phone_with_two_serials_gets_one_worker(phones, phone, second_name, capsys):
    args = at(phones)
    with phone_source(args) as source:
        serials = [address.serial for address in source.addresses]
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "not used" in line]
    assert args.num_workers == len(serials) == 2 and len({phone.serial, second_name} & set(serials)) == 1
    assert phone.serial in line and second_name in line and "one worker a phone" in line
    assert phone.shell("getprop debug.distrl.mark") == "\n"


def test_the_cable_is_preferred_to_the_network(monkeypatch):
    class Wired(AdbPhone):
        def shell(self, command, *_, **__):
            if command.startswith("setprop"):
                marks[self.host] = command.split()[-1]
            return "R58M12\n" if "serialno" in command else marks.get(self.host, "")

    marks = {}
    network, cable, other = Wired("10.0.0.5:5555", "a"), Wired("R58M12", "a"), Wired("10.0.0.6:5555", "b")
    assert each_once([network, cable, other]) == ([cable, other], [(network, cable)])


def test_phones_that_only_share_a_serial_number_are_two(phones, other):
    """Emulators do, and some cheap phones."""
    with sim.start_phones(1, seed=0, latency=0.0, dialogs=0.0, failed_loads=0.0) as like:
        ask = "getprop ro.serialno"
        found, _ = find_devices(at(phones, like))
        assert len({phone.shell(ask) for phone in found}) == 2 and len(found) == 3
        assert each_once(found) == (found, [])


def test_a_phone_on_two_servers_is_one(phones, phone, other, capsys):
    twin = AdbPhone(phone.serial, port=other.port)
    twin.attach()
    twin.recover(timeout=20)
    try:
        with phone_source(at(phones, other)) as source:
            assert len(source.addresses) == 4
        out = capsys.readouterr().out
        assert all(f"{phone.serial} on 127.0.0.1:{server.port}" in out for server in (phones, other))
    finally:
        twin._host(f"host:disconnect:{phone.serial}", 5)


# ---- a lock screen


def test_a_lock_screen_is_put_away_and_one_with_a_pin_refused_before_a_worker_starts(phones, phone, monkeypatch):
    monkeypatch.setattr("adb_phone._UP_TIMEOUT", 0.3)
    phones.fault(phone.serial, "locked")
    with phone_source(at(phones)):
        assert phone.foreground()[0]
    phones.fault(phone.serial, "pin")
    try:
        with pytest.raises(UsageError, match=f"{phone.serial}.*its screen is locked.*unlock it"):
            phone_source(at(phones)).__enter__()
    finally:
        phones.fault(phone.serial, "none")


# ---- emulators that are ours


def test_emulators_are_launched_for_a_run_and_ended_with_it(machine):
    args = PhoneArgs(avd="test", num_workers=1, reset="snapshot")
    with phone_source(args, families={"maps"}) as source:
        address = source.addresses[0]
        assert (address.reset_mode, address.settle) == ("snapshot", 2.0)
        source.restart(address)
        phone = phone_at(address)
        phone.recover()
        assert phone.screenshot().any()
    with pytest.raises(AndroidEnvError):
        phone.shell("id")
    with pytest.raises(UsageError, match="--avd pixel: no AVD 'pixel'"):
        phone_source(PhoneArgs(avd="pixel", num_workers=1)).__enter__()


def test_no_more_emulators_are_launched_than_memory_is_enough_for(machine, monkeypatch, capsys):
    monkeypatch.setattr("emulator.free_memory", lambda: 1200)  # the AVD's phone takes 64 MB, its emulator 512 more
    args = PhoneArgs(avd="test")
    with phone_source(args) as source:
        assert args.num_workers == len(source.addresses) == 2
    out = capsys.readouterr().out
    assert "2 emulators, not 32: memory is enough for no more (about 576 MB each, 1,200 MB free)" in out
    monkeypatch.setattr("emulator.free_memory", lambda: 500)
    with pytest.raises(UsageError, match="--avd test: not enough memory for one .* 576 MB each, 500 MB free"):
        phone_source(PhoneArgs(avd="test")).__enter__()
    with pytest.raises(UsageError, match="no AVD 'pixel'"):
        phone_source(PhoneArgs(avd="pixel")).__enter__()


def test_B16_an_adb_server_that_we_start_gets_no_key(monkeypatch):
    seen = []
    monkeypatch.setenv("GEMINI_API_KEY", "not-a-real-key")
    monkeypatch.setattr("subprocess.run", lambda command, **options: seen.append((command, options["env"])))
    assert start_server(1)
    ((command, environment),) = seen
    assert "start-server" in command and environment["PATH"] == os.environ["PATH"]
    assert "GEMINI_API_KEY" not in environment


# ---- three outages in a row


def test_a18_a_mute_phone_is_restarted_alone(phones, tmp_path):
    policy = AutoUIPolicy.small(seed=0, d_model=32, layers=1, heads=2, d_ff=64)
    policy.save(tmp_path / "policy.safetensors")
    size, tasks = sum(p.numel() for p in policy.parameters()), generate_tasks("train", 4, 1)
    played, restarted, numbers = [], [], iter(range(10**6))
    mute, well = phones.serials

    def restart(address: PhoneAddress) -> None:
        restarted.append(address.serial)
        phones.fault(address.serial, "none")  # as a restart would mend it

    pool = ActorPool(
        [PhoneAddress(serial, phones.host, phones.port, timeout=2.0, boot_timeout=2.0) for serial in phones.serials],
        tmp_path / "policy.safetensors", lambda context: SharedWeights(context, size),
        next_episode=lambda: Episode(tasks[0], seed=next(numbers)), on_lost=lambda episode: None,
        on_trajectory=lambda episode, data: played.append(Trajectory.from_bytes(data)),
        restart_phone=restart, env_options={"horizon": 2},
    )  # fmt: skip

    def games(serial: str) -> int:
        return sum(t.info["serial"] == serial and not t.info["outage"] for t in played)

    try:
        pool.start()
        wait_for(lambda: games(mute) and games(well))
        phones.fault(mute, "mute")
        before = games(well)
        wait_for(lambda: restarted)
        assert games(well) > before  # the other one went on all the time
        before = games(mute)
        wait_for(lambda: games(mute) > before)
    finally:
        pool.stop()
        phones.fault(mute, "none")
    assert restarted == [mute] and pool.phone_restarts == 1
    assert all(t.success is None for t in played if t.info["outage"])  # an outage is not a failure
    assert np.isfinite([t.rewards.sum() for t in played]).all()
