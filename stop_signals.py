"""Ctrl-C, SIGTERM and a closed terminal: each asks the run to stop, save itself and go; again, the first two kill it.

    on_stop_signals(lambda: setattr(experiment, "stopping", True))

A terminal that closes sends SIGHUP, often twice (the shell does, then the kernel), and takes the output away: nothing
that is printed afterwards may end the run before it is saved. Under `nohup` a run stays deaf to it.
"""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Callable
from contextlib import suppress


def on_stop_signals(stop: Callable[[], None]) -> None:
    """From now on those signals call `stop`. Only in the main thread."""

    def asked(signum: int, _) -> None:
        stop()
        signal.signal(signum, signal.SIG_DFL)
        with suppress(OSError):  # nobody reads
            os.write(1, b"\nStopping: saving the run (again to kill).\n")  # print may have been interrupted itself

    def hung_up(signum: int, _) -> None:
        stop()
        signal.signal(signum, signal.SIG_IGN)
        for output in (1, 2):
            with suppress(OSError):  # closed, as a service may have it
                if not stat.S_ISREG(os.fstat(output).st_mode):  # a log file stays
                    os.dup2(os.open(os.devnull, os.O_WRONLY), output)

    signal.signal(signal.SIGINT, asked)
    signal.signal(signal.SIGTERM, asked)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, hung_up)
