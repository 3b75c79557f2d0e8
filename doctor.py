"""`python run_distrl.py --check`: is everything there that a run with these flags needs? A table, and what to do.

    rows = examine(args)                                # one Row for each thing looked at
    print(table(rows)); all(row.ok for row in rows)

It looks at the real things: adb answers, each phone makes a screenshot, the policy file is loaded, the judge is asked.
With --avd one emulator is booted. Nothing is left running but the adb server.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import adbutils

from adb_phone import AdbPhone, AndroidEnvError, list_devices
from args import Args, check_flags, check_phones, judge_config
from judge_check import ask_judge
from policy_check import check_policy
from recorded import alone, journal_paths
from run_folder import KEPT, LEAST_FREE, RunStopped, UsageError

REMEDIES = {
    "unauthorized": "accept the prompt on its screen; none there: unplug it and plug it in again",
    "authorizing": "accept the prompt on its screen",
    "offline": "plug it in again or `adb connect` it; reboot it when that does not help",
    "connecting": "wait a moment; is its link fine?",
    "no permissions": "add a udev rule for it, or join the group plugdev, and plug it in again",
    "recovery": "reboot it",
    "bootloader": "reboot it",
}


@dataclass(frozen=True)
class Row:
    """One thing that was looked at."""

    what: str
    ok: bool
    found: str
    remedy: str = ""  # when it is not ok; a note when it is
    checkpoint_bytes: int = 0  # of one that a run with this policy saves


def check(args: Args) -> int:
    """Prints the table; the exit code."""
    check_phones(args.phones)
    rows = list(examine(args))
    print(table(rows))
    return 0 if all(row.ok for row in rows) else 1


def examine(args: Args) -> Iterator[Row]:
    """All rows, in the order of the table."""
    yield flags_row(args)
    if not alone(args):
        yield adb_row()
        yield from phone_rows(args)
    yield judge_row(args)
    checkpoint = checkpoint_row(args)
    yield checkpoint
    yield disk_row(args.run.runs_dir, checkpoint.checkpoint_bytes)


def table(rows: list[Row]) -> str:
    width = max(len(row.what) for row in rows)
    lines = []
    for row in rows:
        lines.append(f"{'ok ' if row.ok else 'NO '} {row.what:<{width}}  {row.found}")
        if row.remedy:
            lines.append(f"    {'':<{width}}  -> {row.remedy}")
    missing = sum(not row.ok for row in rows)
    return "\n".join([*lines, "", f"{missing} of {len(rows)} to be mended." if missing else "Everything is there."])


def flags_row(args: Args) -> Row:
    """Would a run with these flags begin?"""
    try:
        journal_paths(args.recorded)
        train, test = check_flags(args)
    except UsageError as error:
        return Row("flags", False, "refused", str(error))
    return Row("flags", True, f"{len(train)} instructions to train on, {len(test)} to evaluate on")


def adb_row() -> Row:
    try:
        path = adbutils.adb_path()
    except adbutils.AdbError as error:  # none that runs here
        return Row("adb", False, str(error), "install Android's platform-tools, or set ADBUTILS_ADB_PATH")
    return Row("adb", True, path)


def phone_rows(args: Args) -> Iterator[Row]:
    phones = args.phones
    if phones.avd:
        yield from emulator_rows(args)
    elif phones.simulated:
        yield from sourced_rows(args, "simulated phones", 1)
    else:
        yield from device_rows(args)


def sourced_rows(args: Args, name: str, count: int) -> Iterator[Row]:
    """Rows of phones that are started for the check."""
    from phone_source import phone_at, phone_source

    began = time.monotonic()
    try:
        with phone_source(replace(args.phones, num_workers=count, allow_offline=True), seed=args.run.seed) as source:
            yield Row(name, True, f"{source.what}, up after {time.monotonic() - began:.1f} s")
            for address in source.addresses:
                yield device_row(phone_at(address), args)
    except UsageError as error:
        yield Row(name, False, "not started", str(error))


def emulator_rows(args: Args) -> Iterator[Row]:
    from emulator import EmulatorError, acceleration_problem, find_emulator, how_many_fit, list_avds

    avd = args.phones.avd
    try:
        executable = find_emulator()
        known, problem = list_avds(executable), acceleration_problem(executable)
    except EmulatorError as error:
        yield Row("emulator", False, "none that runs", str(error))
        return
    yield Row("emulator", True, executable)
    remedy = "" if avd in known else f"make {avd!r} in Android Studio or with avdmanager, or name another one"
    yield Row("avd", avd in known, f"{avd} of {', '.join(known) or 'none'}", remedy)
    yield Row("acceleration", not problem, "none" if problem else "the emulator can use it", problem)
    fit, why = how_many_fit(avd, args.phones.num_workers)
    remedy = "" if fit else "end other programs, or lower hw.ramSize in the AVD's config.ini"
    yield Row("memory", bool(fit), f"for {fit} of {args.phones.num_workers} emulators: {why}", remedy)
    if avd in known and fit and not problem:
        yield from sourced_rows(args, "boot", 1)


def device_rows(args: Args) -> Iterator[Row]:
    """A row for each server, and for each phone on it or named."""
    from phone_source import each_once, named, reach, server_addresses, start_server

    wanted = list(dict.fromkeys(serial for serial in args.phones.devices if serial != "all"))
    servers, usable = [], []
    for host, port in server_addresses(args.phones):
        try:
            started = not args.phones.adb_server and start_server(port)
            states = list_devices(host, port)
        except (AndroidEnvError, OSError) as error:
            remedy = "is it up, and started with `adb -a` when it is another machine's?"
            yield Row(f"adb server {host}:{port}", False, str(error), remedy)
            continue
        servers.append((host, port, states))
        yield Row(f"adb server {host}:{port}", True, f"{len(states)} devices" + ", just started" * started)
    for serial in wanted if servers else ():  # as a run does
        try:
            reach(serial, wanted.index(serial), servers)
        except (UsageError, AndroidEnvError) as error:
            state = next((states[serial] for *_, states in servers if serial in states), "not found")
            yield Row(serial, False, state, str(error))
    for host, port, states in servers:
        usable += [
            AdbPhone(serial, host, port, timeout=10)
            for serial, state in states.items()
            if state == "device" and (serial in wanted or not wanted)
        ]
        for serial, state in states.items() if not wanted else ():
            if state != "device":
                yield Row(serial, False, state, REMEDIES.get(state, "see `adb devices -l`"))
    try:
        usable, again = each_once(usable)
        for phone, same in again:
            yield Row(named(phone, same), True, f"the same phone as {named(same, phone)}: not used twice")
    except AndroidEnvError:
        pass  # its own row says what is wrong with it
    if usable:
        with ThreadPoolExecutor(len(usable)) as pool:
            yield from pool.map(lambda phone: device_row(phone, args), usable)
    elif not wanted and not any(states for *_, states in servers):
        yield Row("devices", False, "none", "plug a phone in with USB debugging on, or start an emulator")


def device_row(phone: AdbPhone, args: Args) -> Row:
    """One phone that is online: everything a run asks of it."""
    from phone_source import RULES_READ, foreign_language, has_network

    try:
        if "1" not in phone.shell("getprop sys.boot_completed").split():
            return Row(phone.serial, False, "device, not booted", "wait for its home screen")
        width, height = phone.size
        phone.unlock()
        began = time.monotonic()
        phone.screenshot()
        milliseconds = 1000 * (time.monotonic() - began)
        phone.ui()
        keyboard, network = phone.has_adb_keyboard(), has_network(phone)
    except AndroidEnvError as error:
        return Row(phone.serial, False, error.state, error.remedy)
    found = (
        f"device, booted, {width}x{height}, screenshot {milliseconds:.0f} ms, "
        f"{'ADBKeyBoard' if keyboard else 'ASCII keyboard'}, {'network' if network else 'no network'}"
    )
    if not network and not args.phones.allow_offline:
        return Row(phone.serial, False, found, "give it a network, or --allow-offline for tasks that need none")
    if args.judge.judge == "rules" and (other := foreign_language(phone)):
        return Row(phone.serial, True, f"{found}, {other}", RULES_READ)
    return Row(phone.serial, True, found, "" if keyboard else "other than ASCII needs ADBKeyBoard (optional)")


def judge_row(args: Args) -> Row:
    """The judge that a run would ask, asked once."""
    if args.judge.judge == "rules":
        return Row("judge", True, "rules: on the phone's own UI state, no service needed")
    began = time.monotonic()
    try:
        config = judge_config(args.judge)
        silent = ask_judge(config)
    except (UsageError, RunStopped) as error:
        return Row("judge", False, f"{args.judge.judge} does not answer", str(error))
    if silent:
        return Row("judge", False, f"{config.name} does not answer now", f"{silent}: try again later")
    return Row("judge", True, f"{config.name} answered after {time.monotonic() - began:.1f} s")


def checkpoint_row(args: Args) -> Row:
    """The policy to start from, or to evaluate: loaded, and thrown away."""
    from evaluation import take_policy
    from learner import Learner
    from loaders import WARM_START, load_policy, load_screen_features, load_text_encoder

    path = args.policy.policy or WARM_START
    if not Path(path).exists():
        remedy = "it is built once, in about 40 minutes" if path == WARM_START else "name a policy file: --policy"
        return Row("checkpoint", path == WARM_START, f"{path}: not there", remedy)
    try:
        check_policy(args.policy)
        if args.run.eval:
            with tempfile.TemporaryDirectory() as folder:
                take_policy(args, Path(folder))
                policy, path = load_policy(args)[0], args.run.eval
        else:
            policy, _ = load_policy(args)
        learner = Learner(policy, args.algorithm, text_encoder=load_text_encoder(args))
        load_screen_features(args)
    except (UsageError, ValueError) as error:  # the latter: torch's, of a flag that is refused above
        return Row("checkpoint", False, str(path), str(error))
    found = f"{path}: {sum(p.numel() for p in policy.parameters()) / 1e6:.2f}M parameters"
    return Row("checkpoint", True, found, checkpoint_bytes=learner.checkpoint_bytes())


def disk_row(folder: Path, checkpoint: int = 0) -> Row:
    """Room where the run's folder goes, for checkpoints of so many bytes."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(there).free
    if not os.access(there, os.W_OK):
        return Row("disk", False, f"{there} cannot be written to", "name another folder: --runs-dir")
    needed = LEAST_FREE + (KEPT + 1) * checkpoint
    remedy = "" if free >= needed else f"a run needs {needed / 1e6:,.0f} MB: name another folder: --runs-dir"
    return Row("disk", free >= needed, f"{free / 1e9:.1f} GB free for {folder}", remedy)
