"""What a simulated phone is besides its screen: its properties, and how long its inputs take.

    seconds = heavy_tail(random.Random(0))       # mean 1, one in a hundred above 5
"""

from __future__ import annotations

import random

_LOG_SD = 0.85  # of the lognormal: with mean 1 its 99th percentile is 5


def heavy_tail(rng: random.Random) -> float:
    """A time with mean 1 s and a heavy tail."""
    return rng.lognormvariate(-(_LOG_SD**2) / 2, _LOG_SD)


def properties(serial: str, model: str, seed: int) -> dict[str, str]:
    """What `getprop` lists."""
    return {
        "debug.distrl.seed": str(seed),
        "dev.bootcomplete": "1",
        "init.svc.bootanim": "stopped",
        "ro.boot.qemu": "1",  # as an emulator's: nothing on it belongs to anyone
        "ro.build.version.release": "11",
        "ro.build.version.sdk": "30",
        "ro.product.cpu.abi": "x86_64",
        "ro.product.device": "sim_phone",
        "ro.product.locale": "en-US",
        "ro.product.manufacturer": "DistRL",
        "ro.product.model": model,
        "ro.product.name": "sim_phone",
        "ro.serialno": serial,
        "sys.boot_completed": "1",
    }
