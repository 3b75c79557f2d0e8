"""Where a run's phones come from: simulated ones, given ones, or emulators that we launch; a context each.

    with phone_source(args.phones, seed=1, families={"maps"}) as source:
        source.addresses, source.what                  # one PhoneAddress a worker; "2 phones: R58M12, 10.0.0.7:5555"

What was started is ended with the context, and nothing else: not the user's adb server (one that had to be started on
the usual port stays, as adb's own commands leave it), not a phone. A given phone is left as found but for the apps that
episodes used: its keyboard is set back. What can be refused is refused here, before a worker starts: a phone that is
offline or unauthorized, or, without --allow-offline, without network while the tasks need the web.
"""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from typing import IO

import adbutils

from adb_phone import (
    EMULATOR_SERIAL,
    NETWORK_SERIAL,
    AdbPhone,
    AndroidEnvError,
    DeviceOffline,
    DeviceUnauthorized,
    list_devices,
)
from android_env import third_party_packages
from args import PhoneArgs
from emulator import claim
from judge_clients import without_keys
from run_folder import UsageError
from worker import PhoneAddress

LOCAL = frozenset({"alarm", "app_settings", "notifications", "open_app", "chrome_tab", "personal"})  # need no network
SETTLE = 2.0  # s: a real screen moves for a while after an input
ATTACH_SECONDS = 15.0  # for a given phone that is not online to come
NETWORK_SECONDS = 20.0  # that a phone may take after its boot to find out that it is online
LEAVE_SECONDS = 2.0  # for a command to a given phone at the end
RULES_READ = "the rule judge reads English alone: change its language, or take another --judge"
MARK = "debug.distrl.mark"  # a property of phones


@dataclass
class Source:
    """A run's phones."""

    what: str  # for a person: how many, which
    addresses: list[PhoneAddress]
    set_latency: Callable[[float], None]  # of simulated phones; nothing on others
    restart: Callable[[PhoneAddress], None]  # after outages in a row; returns at once
    cluster: object = None  # ray_pool.Cluster, whose nodes have the phones


def phone_source(phones: PhoneArgs, *, seed: int = 0, families: Collection[str] = (), judge: str = ""):
    """A context manager of the run's phones. UsageError: they cannot be had, and why. Lowers `phones.num_workers` to
    the number of phones there are. judge "rules": phones that these cannot read are warned of."""
    if phones.simulated:
        return _simulated(phones, seed)
    return (_owned if phones.avd else _given)(phones, families, judge)


@contextmanager
def _simulated(phones: PhoneArgs, seed: int) -> Iterator[Source]:
    from sim import start_phones

    try:
        running = start_phones(
            phones.num_workers, seed=seed, latency=phones.latency, dialogs=phones.dialogs,
            failed_loads=phones.failed_loads, slow_loads=phones.slow_loads, adb_port=phones.adb_port,
        )  # fmt: skip
    except (RuntimeError, OSError) as error:
        raise UsageError(str(error)) from error
    with running:
        addresses = [PhoneAddress(serial, running.host, running.port) for serial in running.serials]
        addresses = with_packages(addresses)
        restart = lambda address: phone_at(address, 1.0).reboot()  # noqa: E731  (a mute phone is not waited for)
        yield Source("simulated phones", addresses, running.set_latency, restart)


@contextmanager
def _owned(phones: PhoneArgs, families: Collection[str], judge: str) -> Iterator[Source]:
    from emulator import EmulatorError, Emulators, how_many_fit

    with ExitStack() as stack:
        try:
            emulators = Emulators(phones.avd, phones.num_workers)
            fit, why = how_many_fit(phones.avd, phones.num_workers)
            if not fit:
                raise EmulatorError(f"not enough memory for one emulator ({why}): lower hw.ramSize in its config.ini")
            if fit < phones.num_workers:
                print(f"  {fit} emulators, not {phones.num_workers}: memory is enough for no more ({why})", flush=True)
            emulators.count = phones.num_workers = fit
            print(f"Booting {phones.num_workers} of {phones.avd} ...", flush=True)
            stack.enter_context(emulators)
        except (EmulatorError, OSError, adbutils.AdbError) as error:
            raise UsageError(f"--avd {phones.avd}: {error}") from error
        if len(emulators.servers) > 1:
            ports = ", ".join(map(str, emulators.servers))
            print(f"  adb serves no more than about 15 emulators: adb servers on ports {ports}", flush=True)
        mode = "snapshot" if phones.reset == "snapshot" else "clear"
        addresses = [
            PhoneAddress(phone.serial, phone.host, phone.port, mode, SETTLE, boot_timeout=emulators.boot_seconds)
            for phone in emulators.phones
        ]
        require_network(emulators.phones, phones.allow_offline, families)
        warn_of_language(emulators.phones, judge)
        what = f"{len(addresses)} emulator{'s' * (len(addresses) > 1)} of {phones.avd}"
        what += ": " + ", ".join(address.serial for address in addresses)
        restart = lambda address: emulators.relaunch(address.serial)  # noqa: E731
        yield Source(what, with_packages(addresses), lambda latency: None, restart)


@contextmanager
def _given(phones: PhoneArgs, families: Collection[str], judge: str) -> Iterator[Source]:
    found, left_out = find_devices(phones)
    locks: list[IO] = []
    for serial, state in left_out.items():
        print(f"  not used: {serial} is {state}", flush=True)
    if not found:
        where = " ".join(f"{host}:{port}" for host, port in server_addresses(phones))
        states = ", ".join(f"{serial} {state}" for serial, state in left_out.items()) or "none at all"
        raise UsageError(f"--devices: no phone that can be used on {where} ({states}): plug one in, "
                         "accept the prompt on its screen, see `adb devices`")  # fmt: skip
    try:
        found, again = each_once(found)
        for phone, same in again:
            print(f"  not used: {named(phone, same)} is {named(same, phone)} once more: one worker a phone", flush=True)
        found = list(islice((phone for phone in found if _claimed(phone, locks)), phones.num_workers))
        if not found:
            raise UsageError("--devices: other runs use all of these phones: wait for them, or name others")
        phones.num_workers = len(found)
        with ThreadPoolExecutor(len(found)) as pool:
            list(pool.map(_ready, found))
            virtual = list(pool.map(lambda phone: phone.virtual, found))
    except AndroidEnvError as error:
        raise UsageError(str(error)) from error
    require_network(found, phones.allow_offline, families)
    warn_of_language(found, judge)
    if phones.reset == "snapshot" and (real := [p.serial for p in found if not EMULATOR_SERIAL.fullmatch(p.serial)]):
        raise UsageError(f"--reset snapshot: {' '.join(real)}: only emulators of this machine have snapshots")
    if not all(virtual):
        print("  on real phones apps are stopped between episodes, not cleared: their data stays", flush=True)
    addresses = [
        PhoneAddress(
            phone.serial, phone.host, phone.port,
            "snapshot" if phones.reset == "snapshot" else "clear" if is_virtual else "stop", SETTLE,
        )
        for phone, is_virtual in zip(found, virtual, strict=True)
    ]  # fmt: skip
    what = f"{len(found)} phone{'s' * (len(found) > 1)}: {', '.join(phone.serial for phone in found)}"

    one_at_a_time = threading.Lock()

    def connect_again(address: PhoneAddress) -> None:
        with suppress(AndroidEnvError, OSError), one_at_a_time:  # what is wrong, its next worker tells
            if not phones.adb_server:  # this machine's: it may have died
                start_server(address.port)
            phone_at(address).attach(1.0)

    def restart(address: PhoneAddress) -> None:  # not waited for: starting a server may take its time
        threading.Thread(target=connect_again, args=(address,), daemon=True).start()

    try:
        addresses = with_packages(addresses)
        yield Source(what, addresses, lambda latency: None, restart)
    finally:
        with ThreadPoolExecutor(len(found)) as pool:  # a run that is to stop has 5 s for all of them
            list(pool.map(_leave, found))
        for lock in locks:
            lock.close()


def _leave(phone: AdbPhone) -> None:
    """Sets the keyboard back, if the phone answers: else the next run that finds it does."""
    with suppress(AndroidEnvError):
        phone.restore_keyboard(timeout=LEAVE_SECONDS)


def _claimed(phone: AdbPhone, locks: list[IO]) -> bool:
    """Is the phone ours alone? Two runs of this machine on one phone would act on each other's screens."""
    lock = claim(f"{phone.host}:{phone.port} {phone.serial}")
    if lock:
        locks.append(lock)
    else:
        print(f"  not used: {phone.serial} is in use by another run", flush=True)
    return lock is not None


def phone_at(address: PhoneAddress, timeout: float | None = None) -> AdbPhone:
    """The phone behind an address; `timeout` instead of its own, s a command."""
    return (replace(address, timeout=timeout) if timeout else address).connect()


def with_packages(addresses: list[PhoneAddress]) -> list[PhoneAddress]:
    """The addresses with what is installed on each phone now, where episodes' apps are uninstalled."""

    def looked_at(address: PhoneAddress) -> PhoneAddress:
        if address.reset_mode == "stop":
            return address
        return replace(address, installed=tuple(sorted(third_party_packages(address.connect()))))

    try:
        with ThreadPoolExecutor(len(addresses)) as pool:
            return list(pool.map(looked_at, addresses))
    except AndroidEnvError as error:
        raise UsageError(str(error)) from error


def _ready(phone: AdbPhone) -> None:
    """Waits until a phone is up, and puts away its lock screen and what a run that was killed has left."""
    if "1" not in phone.shell("getprop sys.boot_completed").split():
        phone.recover()
    _ = phone.size
    phone.unlock()
    phone.restore_keyboard()


def named(phone: AdbPhone, other: AdbPhone) -> str:
    """Its serial; with its server when the other one has the same."""
    return f"{phone.serial} on {phone.host}:{phone.port}" if phone.serial == other.serial else phone.serial


def each_once(found: list[AdbPhone]) -> tuple[list[AdbPhone], list[tuple[AdbPhone, AdbPhone]]]:
    """The phones without those that are listed twice, by cable and by network say; and those: (left out, the same as).

    Two workers on one phone would act on each other's screens. Its serial number tells; where several have the same one
    (emulators do, and some cheap phones) each sets a property to a value of its own: who reads another's is that other.
    """

    def ask(phones: list[AdbPhone], command: Callable[[AdbPhone], str]) -> dict[AdbPhone, str]:
        with ThreadPoolExecutor(max(1, len(phones))) as pool:
            return dict(zip(phones, pool.map(lambda phone: phone.shell(command(phone)).strip(), phones), strict=True))

    numbers = ask(found, lambda phone: "getprop ro.serialno")
    alike = [phone for phone in found if list(numbers.values()).count(numbers[phone]) > 1]
    run = secrets.token_hex(4)
    ask(alike, lambda phone: f"setprop {MARK} {run}-{alike.index(phone)}")
    marks = ask(alike, lambda phone: f"getprop {MARK}")
    ask(alike, lambda phone: f"setprop {MARK} ''")
    first: dict[tuple, AdbPhone] = {}
    for phone in sorted(found, key=lambda phone: ":" in phone.serial or "._" in phone.serial):  # cables are better
        first.setdefault((numbers[phone], marks.get(phone)), phone)
    same = {phone: first[numbers[phone], marks.get(phone)] for phone in found}
    return [p for p in found if same[p] is p], [(p, same[p]) for p in found if same[p] is not p]


def server_addresses(phones: PhoneArgs) -> list[tuple[str, int]]:
    """(host, port) of the adb servers that are named, or of this machine's."""
    usual = os.environ.get("ANDROID_ADB_SERVER_PORT") or "5037"
    if not usual.isdecimal():
        raise UsageError(f"ANDROID_ADB_SERVER_PORT={usual}: want adb's port, or unset it for 5037")
    named = phones.adb_server or [f"127.0.0.1:{usual}"]
    return [(host, int(port)) for host, _, port in (server.rpartition(":") for server in named)]


def start_server(port: int = 5037) -> bool:
    """Starts the adb that adbutils brings (or ADBUTILS_ADB_PATH) as a server where none listens yet. False: one did.

    It is asked for first, since `adb start-server` ends a server of another version. DeviceOffline, with adb's words:
    it does not start.
    """
    try:
        list_devices(port=port)
        return False
    except DeviceOffline:
        try:
            command = [adbutils.adb_path(), "-P", str(port), "start-server"]
            subprocess.run(command, check=True, capture_output=True, timeout=30, env=without_keys())
        except (subprocess.SubprocessError, adbutils.AdbError, OSError) as error:
            said = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip()[-200:] or error
            raise DeviceOffline("any", f"adb did not start on port {port} ({said})", "is the port free?") from error
        return True


def find_devices(phones: PhoneArgs) -> tuple[list[AdbPhone], dict[str, str]]:
    """The phones that are asked for and online, drawn from the servers in turn; and {serial: state} of the others (only
    with `all`: one that was named and is not there is an error)."""
    wanted = [] if phones.devices in ((), ("all",)) else list(dict.fromkeys(phones.devices))
    servers = []
    for host, port in server_addresses(phones):
        try:
            if not phones.adb_server:
                start_server(port)
            servers.append((host, port, list_devices(host, port)))
        except (AndroidEnvError, OSError) as error:
            raise UsageError(f"adb server {host}:{port}: {error}") from error
    for serial in wanted:
        reach(serial, wanted.index(serial), servers)
    by_server, left_out = [], {}
    for host, port, states in servers:
        usable = [serial for serial, state in states.items() if state == "device"]
        left_out |= {serial: state for serial, state in states.items() if state != "device" and not wanted}
        chosen = [serial for serial in wanted if serial in usable] if wanted else usable
        by_server.append([AdbPhone(serial, host, port) for serial in chosen])
    return [phone for turn in zip_longest(*by_server) for phone in turn if phone], left_out


def reach(serial: str, number: int, servers: list[tuple[str, int, dict[str, str]]]) -> None:
    """Brings a named phone online, if it is not: on the server (host, port, {serial: state}) that knows it, else on the
    `number`-th. UsageError: it does not come."""
    known = [server for server in servers if serial in server[2]]
    if not any(states[serial] == "device" for *_, states in known):
        host, port, states = known[0] if known else servers[number % len(servers)]
        states[serial] = attached(AdbPhone(serial, host, port))


def attached(phone: AdbPhone) -> str:
    """Connects a named phone. "device", or UsageError with its state and what to do."""
    known = list_devices(phone.host, phone.port)
    remedy = "plug it in and switch USB debugging on; `adb devices` lists what there is"
    if NETWORK_SERIAL.fullmatch(phone.serial):
        remedy = "is `adb tcpip 5555` or wireless debugging on, and this machine in its network?"
    elif phone.serial not in known:
        listed = ", ".join(f"{serial} {state}" for serial, state in known.items()) or "no phone"
        raise UsageError(f"--devices {phone.serial}: not on {phone.host}:{phone.port}, which has {listed}: {remedy}")
    try:
        phone.recover(ATTACH_SECONDS)
    except DeviceUnauthorized as error:
        raise UsageError(str(error)) from error
    except DeviceOffline as error:
        raise UsageError(f"{error}; {remedy}") from error
    except AndroidEnvError as error:
        raise UsageError(str(error)) from error
    return "device"


def require_network(found: list[AdbPhone], allow_offline: bool, families: Collection[str]) -> None:
    """One warning for phones without a network, or UsageError when the tasks need one and that is not allowed."""
    with ThreadPoolExecutor(len(found)) as pool:
        lost = [p.serial for p, online in zip(found, pool.map(has_network, found), strict=True) if not online]
    needing = sorted(set(families) - LOCAL)
    if lost and needing and not allow_offline:
        raise UsageError(f"no network on {', '.join(lost)}: tasks of {', '.join(needing)} need it: give it one, or "
                         "train all the same with --allow-offline")  # fmt: skip
    if lost:
        print(f"  warning: no network on {', '.join(lost)}: tasks of the web cannot succeed there", flush=True)


def warn_of_language(found: list[AdbPhone], judge: str) -> None:
    """One warning for phones whose words the rule judge does not know."""
    for phone in found if judge == "rules" else ():
        if other := foreign_language(phone):
            print(f"  warning: {phone.serial} speaks {other}: {RULES_READ}", flush=True)


def foreign_language(phone: AdbPhone) -> str:
    """Its locale ("de-DE") when that is not English; "" when it is, or cannot be asked."""
    with suppress(AndroidEnvError):
        found = phone.shell("getprop persist.sys.locale; getprop ro.product.locale").split()
        return "".join(locale for locale in found[:1] if not locale.startswith("en"))
    return ""


def has_network(phone: AdbPhone) -> bool:
    """Does Android itself say that it reaches the internet, within NETWORK_SECONDS? A phone that cannot be asked does
    not."""
    deadline = time.monotonic() + NETWORK_SECONDS
    while True:
        try:
            agents = re.findall(r"NetworkAgentInfo.*", phone.shell("dumpsys connectivity"))
        except AndroidEnvError:
            return False
        if any(re.search(r"\bVALIDATED\b", agent) for agent in agents):
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.5)  # a phone says in no other way that it is online
