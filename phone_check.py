"""What of the phones' flags can be refused before a phone is asked.

    check_phones(args.phones)                        # UsageError: the flag, its value, what to do
"""

from __future__ import annotations

import re

from run_folder import UsageError

# Flags that say nothing of other phones.
SIMULATED = ("latency", "dialogs", "failed_loads", "slow_loads", "adb_port")


def check_phones(phones) -> None:
    """UsageError for flags of `args.PhoneArgs` that contradict each other, or that would change nothing."""
    usual = type(phones)  # its defaults
    if phones.avd and (phones.devices or phones.adb_server):
        raise UsageError("--avd launches emulators of its own: leave out --devices and --adb-server")
    for serial in (*phones.devices, *filter(None, [phones.avd])):
        if not re.fullmatch(r"[\w\[][\w.:%\[\]()-]*( \(\d+\)[\w.-]*)?", serial):
            raise UsageError(f"{serial!r} is neither a serial (R58M..., emulator-5554, 192.168.1.5:5555) nor an AVD")
    if "all" in phones.devices and len(phones.devices) > 1:
        raise UsageError(f"--devices {' '.join(phones.devices)}: give all, or serials")
    for server in phones.adb_server:
        host, _, port = server.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise UsageError(f"--adb-server {server}: want HOST:PORT, such as 192.168.1.7:5037")
    if phones.reset == "snapshot":
        if phones.simulated:
            raise UsageError("--reset snapshot: simulated phones have no snapshots: use it with --avd or emulators")
        real = [serial for serial in phones.devices if not serial.startswith("emulator-") and serial != "all"]
        if real or phones.adb_server:
            raise UsageError(f"--reset snapshot: {' '.join(real or phones.adb_server)}: only emulators of this machine "
                             "have snapshots that we can load")  # fmt: skip
    if phones.workers_per_node != usual.workers_per_node and not phones.ray_address:
        raise UsageError(f"--workers-per-node {phones.workers_per_node}: is for --ray-address: leave it out without")
    if phones.ray_address and phones.adb_port != usual.adb_port:
        raise UsageError(f"--adb-port {phones.adb_port}: each node of --ray-address takes a free one: leave it out")
    if phones.simulated and phones.allow_offline:
        raise UsageError("--allow-offline: simulated phones have a network: leave it out")
    if not phones.simulated:
        for name in SIMULATED:
            if getattr(phones, name) != getattr(usual, name):
                raise UsageError(f"--{name.replace('_', '-')} is for simulated phones: leave it out with others")
