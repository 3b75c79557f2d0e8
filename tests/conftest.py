"""Two simulated phones behind a real adb server, shared by all tests of a run."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: its threads are 30 times slower on busy cores than one

import pytest  # noqa: E402

from android_env import AdbPhone
from sim import start_phones


@pytest.fixture(scope="session")
def phones():
    """`phones.host`, `.port`, `.serials`: no latency, no dialogs, no failed loads. Leave them as found."""
    with start_phones(2, seed=0, latency=0.0, dialogs=0.0, failed_loads=0.0, slow_loads=0.0) as running:
        yield running


@pytest.fixture
def phone(phones):
    """The first phone, as the environment drives it."""
    return AdbPhone(phones.serials[0], phones.host, phones.port)
