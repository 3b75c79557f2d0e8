"""Phones for the tests: two simulated ones behind a real adb server, and an `emulator` executable of our own.

    python -m pytest tests/test_conformance.py --serial R58M12ABC      # the conformance suite on a phone of yours
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: its threads are 30 times slower on busy cores than one

import importlib  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
from pathlib import Path  # noqa: E402

import pytest  # noqa: E402

from adb_phone import AdbPhone, list_devices
from emulator import Emulators
from sim import start_phones

ROOT = Path(__file__).resolve().parent.parent
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)


def pytest_addoption(parser):
    parser.addoption("--serial", help="run tests/test_conformance.py on this phone of `adb devices` only")


def pytest_configure(config):
    """`python -m pytest` leaves out what is marked slow; a file or folder that is named runs whole."""
    config.addinivalue_line("markers", "slow: takes long; left out of `python -m pytest` without a path")
    if config.args_source is config.ArgsSource.TESTPATHS and not config.option.markexpr:
        config.option.markexpr = "not slow"


def pytest_generate_tests(metafunc):
    if "any_phone" in metafunc.fixturenames:
        kinds = ["own"] if metafunc.config.getoption("--serial") else ["network", "emulator"]
        metafunc.parametrize("any_phone", kinds, indirect=True)


# They run whole programs: first, so that the suite's two processes end together.
LONG = ("test_run", "test_actor_pool", "test_policy_flags", "test_phone_run", "test_judged_run", "test_phone_source")


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: LONG.index(item.path.stem) if item.path.stem in LONG else len(LONG))


@pytest.fixture(autouse=True)
def same_signals():
    """The next test finds the handlers as this one did: after a `--help` in this process, a closed pipe killed it."""
    before = {number: signal.getsignal(number) for number in STOPPING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def phones():
    """`phones.host`, `.port`, `.serials`: no latency, no dialogs, no failed loads. Leave them as found."""
    with start_phones(2, seed=0, latency=0.0, dialogs=0.0, failed_loads=0.0, slow_loads=0.0) as running:
        yield running


@pytest.fixture
def phone(phones):
    """The first phone, as the environment drives it; whole again if a test before this one failed and left it down."""
    found = AdbPhone(phones.serials[0], phones.host, phones.port)
    if list_devices(phones.host, phones.port).get(found.serial) != "device":
        phones.fault(found.serial, "none")
        found.recover()
    return found


def wait_for(condition, seconds: float = 60.0) -> None:
    """Return when `condition()` holds: counters and other processes follow what was seen, they do not precede it."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen within {seconds:.0f} s"
        time.sleep(0.02)


def disconnect(phones, serial: str, kind: str) -> None:
    """The fault "offline" or "unauthorized", seen by the adb server: it takes a moment to find out."""
    phones.fault(serial, kind)
    while list_devices(phones.host, phones.port)[serial] != kind:
        time.sleep(0.01)


@pytest.fixture(scope="session")
def scripts():
    """(run, plot), the two scripts of reproduce/ as modules."""
    sys.path.insert(0, str(ROOT / "reproduce"))
    try:
        yield importlib.import_module("run"), importlib.import_module("plot")
    finally:
        sys.path.remove(str(ROOT / "reproduce"))


@pytest.fixture(scope="session")
def sdk(tmp_path_factory):
    """Environment variables of a machine with an Android SDK: our `emulator` executable, an AVD named `test`."""
    folder = tmp_path_factory.mktemp("sdk")
    launcher = folder / "bin" / "emulator"
    launcher.parent.mkdir()
    launcher.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m sim.emulator "$@"\n')
    launcher.chmod(0o755)
    (folder / ".android" / "avd" / "test.avd" / "snapshots" / "default_boot").mkdir(parents=True)
    (folder / ".android" / "avd" / "test.ini").write_text("target=android-30\n")
    (folder / ".android" / "avd" / "test.avd" / "config.ini").write_text("hw.cpu.ncore=1\nhw.ramSize = 64M\n")
    return {"HOME": str(folder), "PATH": f"{launcher.parent}:{os.environ['PATH']}"}


@pytest.fixture
def machine(sdk, monkeypatch):
    """This process is on that machine; `machine.setenv("SIM_EMULATOR", "kvm=no")` changes its hardware."""
    for name, value in sdk.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


@pytest.fixture(scope="session")
def owned(sdk):
    """One emulator of ours."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in sdk.items():
            patch.setenv(name, value)
        emulators = Emulators("test", 1, boot_seconds=60)
        emulators.__enter__()
    yield emulators
    emulators.close()


@pytest.fixture
def any_phone(request):
    """A phone of each kind; with --serial, the user's own."""
    if request.param == "own":
        port = int(os.environ.get("ANDROID_ADB_SERVER_PORT") or 5037)
        return AdbPhone(request.config.getoption("--serial"), port=port)
    if request.param == "network":
        return request.getfixturevalue("phone")
    request.getfixturevalue("machine")
    return request.getfixturevalue("owned").phones[0]
