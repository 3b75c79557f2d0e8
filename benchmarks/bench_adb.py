"""What a command and a screenshot cost beyond the phone's own time: `AdbPhone` against adbutils as shipped.

    python benchmarks/bench_adb.py                     # a simulated phone behind the real adb server
    python benchmarks/bench_adb.py --serial R58M12     # a phone of yours

"phone" is the floor: the two requests and the reading to the end on a bare socket, nothing parsed. All ways take turns
in one process; the table has the median of each, what ours adds to the phone's time, and adbutils' time over ours. A
screenshot of ours and of adbutils ends as pixels, the phone's as PNG bytes.
"""

from __future__ import annotations

import argparse
import os
import random
import socket
import statistics
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import adbutils
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from adb_phone import AdbPhone  # noqa: E402
from sim import start_phones  # noqa: E402


def bare(phone: AdbPhone, service: str) -> bytes:
    """The exchange itself."""
    with socket.create_connection((phone.host, phone.port)) as stream:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for request in (f"host:transport:{phone.serial}", service):
            stream.sendall(f"{len(request):04x}{request}".encode())
            if stream.recv(4, socket.MSG_WAITALL) != b"OKAY":
                raise RuntimeError(f"adb: {service}: {stream.recv(999)!r}")
        chunks = []
        while chunk := stream.recv(1 << 18):
            chunks.append(chunk)
        return b"".join(chunks)


def measure(ways: dict, repeats: int) -> dict[str, float]:
    """Median milliseconds of each; they take turns in random order, since what ran before matters."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    order, shuffle = list(ways), random.Random(0).shuffle
    for number in range(repeats + 2):
        shuffle(order)
        for name in order:
            began = time.perf_counter()
            ways[name]()
            if number >= 2:  # the first two warm up
                times[name].append(1000 * (time.perf_counter() - began))
    return {name: statistics.median(taken) for name, taken in times.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--serial", help="a phone of `adb devices`; default: a simulated one")
    parser.add_argument("--repeats", type=int, default=200)
    args = parser.parse_args()
    with ExitStack() as stack:
        if args.serial:
            phone = AdbPhone(args.serial, port=int(os.environ.get("ANDROID_ADB_SERVER_PORT") or 5037))
        else:
            running = stack.enter_context(start_phones(1, latency=0.0, dialogs=0.0))
            phone = AdbPhone(running.serials[0], running.host, running.port)
        device = adbutils.AdbClient(host=phone.host, port=phone.port).device(phone.serial)
        jobs = {
            "command `echo on`": {
                "phone": lambda: bare(phone, "shell,v2,raw:echo on"),
                "AdbPhone": lambda: phone.shell("echo on", check=True),
                "adbutils": lambda: device.shell("echo on"),
            },
            "screenshot": {
                "phone": lambda: bare(phone, "exec:screencap -p"),
                "AdbPhone": phone.screenshot,
                "adbutils": lambda: np.asarray(device.screenshot(error_ok=False)),
            },
        }
        width, height = phone.size
        print(f"{phone.serial}, {width}x{height}, {args.repeats} times each, median ms\n")
        print(f"{'':<20}{'phone':>10}{'AdbPhone':>10}{'adbutils':>10}{'ours adds':>11}{'adbutils / ours':>17}")
        for job, ways in jobs.items():
            ms = measure(ways, args.repeats)
            adds, ratio = ms["AdbPhone"] - ms["phone"], ms["adbutils"] / ms["AdbPhone"]
            print(f"{job:<20}" + "".join(f"{ms[name]:>10.2f}" for name in ways) + f"{adds:>11.2f}{ratio:>17.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
