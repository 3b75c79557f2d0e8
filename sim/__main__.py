"""`python -m sim --num-phones 4`: simulated phones for anyone's adb client, until Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import signal
import sys

from sim import PhonesError
from sim.faults import KINDS


def positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def chance(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 1.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a probability between 0 and 1")
    return value


def scale(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value < 1000.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return value


def port(text: str) -> int:
    if not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port (0 to 65535; 0 takes a free one)")
    return int(text)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m sim",
        description="Simulated phones behind a real adb server, for anyone's adb, until Ctrl-C.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--num-phones", type=positive, default=4, metavar="N", help="how many")
    parser.add_argument(
        "--seed", type=int, default=0, help="layouts, contents, dialogs and times follow from it"
    )
    parser.add_argument("--dialogs", type=chance, default=0.3, help="probability of a dialog as an app opens")
    parser.add_argument(
        "--failed-loads", type=chance, default=0.2, help="probability that a page does not load"
    )
    parser.add_argument("--slow-loads", type=chance, default=0.1, help="probability that a page loads slowly")
    parser.add_argument(
        "--latency", type=scale, default=1.0, help="1: an input takes 1 s on average; 0: no time"
    )
    parser.add_argument("--adb-port", type=port, default=0, help="port of the adb server; 0 takes a free one")
    parser.add_argument(
        "--fault", action="append", default=[], choices=["none", *KINDS], metavar="KIND",
        help="what is wrong with the first phone; again: with the next (none, " + ", ".join(KINDS) + ")",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON line, end at the end of stdin")
    return parser.parse_args()


async def until_told(world, stdin: bool) -> None:
    """Returns at SIGINT or SIGTERM, and with `stdin` also when whoever started us closes it or dies.

    A line `latency X` on stdin changes the phones' latency, `fault INDEX KIND TIMES` what goes wrong with one.
    """
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, told.set)
    if stdin:
        if sys.platform == "linux":  # stopped, it wakes at their end, reads that stdin has ended, and removes its files
            ctypes.CDLL(None).prctl(1, signal.SIGCONT)  # PR_SET_PDEATHSIG
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

        async def obey() -> None:
            while line := await reader.readline():
                what, *words = line.decode().split()
                if what == "fault":
                    world.devices[int(words[0])].fault(words[1], int(words[2]))
                    print("done", flush=True)
                    continue
                for phone in world.phones:
                    phone.latency = scale(words[0])
            told.set()

        end = asyncio.create_task(obey())
        end.add_done_callback(lambda _: told.set())
    await told.wait()


async def main(args: argparse.Namespace) -> None:
    from sim.world import World  # after the arguments: it loads Pillow and adbutils

    options = {k: v for k, v in vars(args).items() if k not in ("json", "num_phones", "fault")}
    if len(args.fault) > args.num_phones:
        raise PhonesError(f"--fault {args.fault[-1]}: phone {len(args.fault)} of {args.num_phones}; more --num-phones")
    world = World(args.num_phones, **options)
    # The handlers stand before the start, which a Ctrl-C may interrupt as well.
    told = asyncio.create_task(until_told(world, args.json))
    start = asyncio.create_task(world.__aenter__())
    await asyncio.wait((told, start), return_when=asyncio.FIRST_COMPLETED)
    if not start.done():
        start.cancel()
        await asyncio.wait((start,))
        return
    start.result()
    for device, kind in zip(world.devices, args.fault, strict=False):
        device.fault(kind)
    try:
        show(world, args.json)
        await told
    finally:
        world.close()


def show(world, as_json: bool) -> None:
    """How to reach the phones, for a program or for a person."""
    if as_json:
        found = {
            "host": world.host,
            "port": world.port,
            "serials": world.serials,
            "adb_pid": world.server.pid,
        }
        print(json.dumps(found), flush=True)
        return
    print(
        f"{len(world.serials)} simulated phones on the adb server at port {world.port}:",
        *world.serials,
        sep="\n  ",
    )
    print(
        f"""
  export ANDROID_ADB_SERVER_PORT={world.port}     # or adb -P {world.port} each time
  adb devices
  adb -s {world.serials[0]} exec-out screencap -p > screen.png

adb, if none is on the PATH: {world.adb}
Ctrl-C ends the phones and this adb server.""",
        flush=True,
    )


if __name__ == "__main__":
    arguments = parse_args()
    try:
        asyncio.run(main(arguments))
    except PhonesError as error:
        print(f"python -m sim: {error}", file=sys.stderr)
        sys.exit(2)
