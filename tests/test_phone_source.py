"""Where a run's phones come from, and what is refused before a worker starts."""

from types import SimpleNamespace

import numpy as np
import pytest
from conftest import disconnect

import sim
from actor_pool import ActorPool
from adb_phone import AdbPhone, AndroidEnvError, list_devices
from args import Args, PhoneArgs, check_phones, prepare
from phone_source import find_devices, keyboard_of, phone_at, phone_source
from policy import AutoUIPolicy
from replay import Trajectory
from run_folder import UsageError
from shared_weights import SharedWeights
from tasks import generate_tasks
from worker import Episode, PhoneAddress


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


def test_a21_web_tasks_need_a_network_or_leave(phones, capsys):
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


def test_real_phones_are_stopped_not_cleared_and_keep_their_keyboard(phones, monkeypatch, capsys):
    monkeypatch.setattr(AdbPhone, "virtual", False)
    phone = AdbPhone(phones.serials[0], port=phones.port)
    before = keyboard_of(phone)
    with phone_source(at(phones)) as source:
        assert {address.reset_mode for address in source.addresses} == {"stop"}
        assert "not cleared" in capsys.readouterr().out
        phone.shell("setprop debug.distrl.adbkeyboard 1")
        assert phone.type_text("你好") and keyboard_of(phone) != before
    assert keyboard_of(phone) == before
    phone.shell("setprop debug.distrl.adbkeyboard 0")


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


def wait_for(condition, seconds: float = 60.0) -> None:
    import time

    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)
